"""A kernel for a GPU that is not here: its machine code, A's packed arrays, and what the emulator has verified."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import scipy.sparse as sp

from sparsegen import candidate as kernel_file
from sparsegen import composite, explain, templates, values
from sparsegen.candidate import Candidate
from sparsegen.errors import SparsegenError, SparsegenValueError
from sparsegen.problem import Problem
from sparsegen.ptx.gpus import GPU
from sparsegen.report import Report
from sparsegen.search import Outcome, Tried, search
from sparsegen.verdict import Level

UNRUN = "compiled, not verified: nothing has run this kernel yet"
EXECUTED = "compiled, and executed without a GPU"
LEAST_SECONDS = 0.05


class Artifact:
    """A CUBIN with its kernel file, A and A's arrays as the kernel takes them. It can be saved and inspected; a call
    raises. certificate: what was verified: level, seeds, worst error, coverage, and on what."""

    def __init__(
        self, A: sp.csr_array, problem: Problem, chosen: Candidate, image: bytes, arch: str, report: Mapping,
        packed: list[dict[str, np.ndarray]] | None = None,
    ):  # fmt: skip
        """packed: of each part, when it comes from elsewhere; it must be what A packs to here."""
        self._A, self.problem, self.candidate, self.image, self.arch = A, problem, chosen, image, arch
        self._report = Report(report)
        self.shape, self.dtype = A.shape, A.dtype
        self.certificate: dict = dict(self._report.get("certificate") or {"level": "COMPILED"})
        self.level = Level[self.certificate["level"]]
        own = A if A.dtype == problem.dtype else A.astype(problem.dtype)
        self.packed = [
            {**each.arrays, "data": np.array(values.encode(chosen.encoding, own.data, each, problem.dtype))}
            for each in composite.pack(chosen, problem)
        ]
        if packed is not None and not _same(packed, self.packed):
            raise SparsegenValueError("the packed arrays of the artifact are not those of its matrix; save it again")

    @staticmethod
    def cross_compile(
        A: sp.csr_array, problem: Problem, arch: str, gpu: GPU | None = None, seconds: float = 0.0,
        most: int | None = None, seed: int = 20260,
    ) -> Artifact:  # fmt: skip
        """The best kernel for `arch` that the emulator verifies within `seconds`: of the least estimated time on `gpu`,
        or the first. Where it verifies none, the first that compiles. Raises SparsegenValueError when there is none.
        """
        from sparsegen.targets import cuda, emulator

        arch = cuda.resolve(arch)
        if problem.dtype not in (np.float32, np.float64):
            raise SparsegenValueError(f"A is {A.dtype}; CUDA kernels exist for float32 and float64: pass dtype")
        outcome = Outcome(None, "scipy", None, {}, [])
        if seconds >= LEAST_SECONDS and emulator.available() is None:
            emulated = replace(problem, target="emulator", device=emulator.device())
            own = A if A.dtype == problem.dtype else A.astype(problem.dtype)
            proposed = (each for each in templates.propose(emulated) if cuda.screen(each) is None)
            outcome = search(emulated, own, proposed, seconds, most, seed, (), gpu)
            tried: Tried | None = outcome.winner
            for each in outcome.tried if tried is None else ():  # some of it was executed, without a fault
                if each.verdict.level >= Level.RAN and not each.verdict.fault and each.before(tried):
                    tried = each
            if tried is not None:
                return Artifact._of(A, problem, tried, arch, outcome, _certificate(tried, emulated, arch))
        notes, refused = [], [each.as_dict() for each in outcome.tried]
        for chosen in templates.propose(problem):
            if reason := cuda.screen(chosen):
                refused.append({"label": chosen.label, "level": "NONE", "fault": "screen", "message": reason})
                continue
            try:
                image = cuda.compile(cuda.unit(chosen, problem, composite.literals(chosen, problem)), arch)
            except cuda.CompileFailure as error:
                refused.append({"label": chosen.label, "level": "PARSED", "fault": "compile", "message": str(error)})
                continue
            notes = [f"chosen by rule for {arch}, not by measurement", *outcome.notes]
            return Artifact(A, problem, chosen, image, arch, _report(problem, chosen, image, arch, refused, notes))
        raise SparsegenValueError(f"no CUDA kernel could be compiled for {arch}: {refused or 'none is feasible'}")

    @staticmethod
    def _of(
        A: sp.csr_array, problem: Problem, tried: Tried, arch: str, outcome: Outcome, certificate: dict
    ) -> Artifact:
        from sparsegen.targets import cuda

        chosen = tried.candidate
        image = cuda.compile(cuda.unit(chosen, problem, composite.literals(chosen, problem)), arch)
        entries = [each.as_dict() for each in outcome.tried]
        report = _report(problem, chosen, image, arch, entries, outcome.notes) | {
            "verified": _said(certificate), "level": certificate["level"], "certificate": certificate,
            "estimated_us": tried.verdict.estimated_us, "estimate": tried.verdict.estimate,
        }  # fmt: skip
        return Artifact(A, problem, chosen, image, arch, report)

    @property
    def verified(self) -> str:
        """In words, how far it was."""
        return str(self._report["verified"])

    @property
    def source(self) -> str:
        """The kernel file."""
        return kernel_file.text(self.candidate)

    def report(self) -> Report:
        return self._report

    def noted(self, note: str) -> Artifact:
        """Itself, with a note in its report."""
        self._report = self._report.noted([note])
        return self

    def refused(self, why: str, level: Level) -> Artifact:
        """Itself, after a check on a GPU that it failed: its certificate is void."""
        self.level, self.certificate = level, {"level": level.name, "refused": why}
        entries = {"verified": why, "level": level.name, "certificate": self.certificate}
        self._report = Report({**self._report.as_dict(), **entries})
        return self

    def explain(self) -> str:
        words = (
            f"{self.candidate.label} was compiled for {self.arch} ({len(self.image)} bytes of machine code): "
            f"{self.candidate.about}. {self.verified[0].upper()}{self.verified[1:]}."
        )
        return f"{words} {explain.estimated(self._report)}".strip()

    def save(self, path) -> None:
        """Write A, the kernel file, the CUBIN, the packed arrays and the certificate to `path`."""
        from sparsegen import store

        store.save(self, path)

    def __call__(self, *args, **kwargs):
        what = f"this is an Artifact for {self.arch}, {self.verified}"
        if "refused" in self.certificate:
            raise SparsegenError(f"{what}; compile its matrix again")
        raise SparsegenError(f"{what}; load it on a machine with that GPU")

    __matmul__ = matvec = matmat = __call__

    def __repr__(self) -> str:
        m, n = self.shape
        return f"<sparsegen.Artifact {m} x {n}, {self.candidate.label} for {self.arch}: {self.verified}>"


def _certificate(tried: Tried, problem: Problem, arch: str) -> dict:
    verdict = tried.verdict
    return {
        "level": verdict.level.name, "seeds": list(verdict.seeds), "worst": verdict.worst, "covered": verdict.covered,
        "executed_on": problem.device, "compiled_for": arch,
    }  # fmt: skip


def _said(certificate: Mapping) -> str:
    right = certificate["level"] == "CORRECT"
    if certificate["covered"] != "all":
        return f"{EXECUTED}: {certificate['covered']}"
    seeds = ", ".join(map(str, certificate["seeds"]))
    return f"{EXECUTED}: worst error {certificate['worst']:.3g} of its bound, seeds {seeds}" if right else EXECUTED


def _report(problem: Problem, chosen: Candidate, image: bytes, arch: str, tried: list, notes: list[str]) -> dict:
    return {
        "kernel": chosen.label, "format": chosen.format, "schedule": chosen.schedule,
        "parameters": dict(chosen.params), "origin": chosen.origin, "verified": UNRUN, "level": "COMPILED",
        "arch": arch, "op": problem.op, "shape": list(problem.pattern.shape), "nnz": problem.pattern.nnz,
        "dtype": problem.dtype.name, "k": problem.k, "image_bytes": len(image), "measured_us": None,
        "estimated_us": None, "candidates": tried, "notes": notes,
    }  # fmt: skip


def _same(one: list[dict[str, np.ndarray]], other: list[dict[str, np.ndarray]]) -> bool:
    def alike(a: np.ndarray, b: np.ndarray) -> bool:
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()

    return len(one) == len(other) and all(
        a.keys() == b.keys() and all(alike(a[name], b[name]) for name in a) for a, b in zip(one, other, strict=True)
    )
