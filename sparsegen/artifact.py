"""What cross-compiling gives: a candidate built for a GPU that is not here. Nothing has run it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import scipy.sparse as sp

from sparsegen import candidate as kernel_file
from sparsegen import composite, templates
from sparsegen.candidate import Candidate
from sparsegen.errors import SparsegenError, SparsegenValueError
from sparsegen.problem import Problem
from sparsegen.report import Report
from sparsegen.verdict import Level

UNRUN = "compiled, not verified: nothing has run this kernel yet"


class Artifact:
    """A CUBIN with its kernel file and A. It can be saved and inspected; a call raises until a target verified it."""

    level = Level.COMPILED

    def __init__(self, A: sp.csr_array, problem: Problem, chosen: Candidate, image: bytes, arch: str, report: Mapping):
        self._A, self.problem, self.candidate, self.image, self.arch = A, problem, chosen, image, arch
        self._report = Report(report)
        self.shape, self.dtype = A.shape, A.dtype

    @staticmethod
    def cross_compile(A: sp.csr_array, problem: Problem, arch: str) -> Artifact:
        """The first candidate that fits and compiles for `arch`. Raises SparsegenValueError when there is none."""
        from sparsegen.targets import cuda

        arch = cuda.resolve(arch)
        if problem.dtype not in (np.float32, np.float64):
            raise SparsegenValueError(f"A is {A.dtype}; CUDA kernels exist for float32 and float64: pass dtype")
        tried = []
        for chosen in templates.propose(problem):
            if reason := cuda.screen(chosen):
                tried.append({"label": chosen.label, "level": "NONE", "fault": "screen", "message": reason})
                continue
            try:
                image = cuda.compile(cuda.unit(chosen, problem, composite.literals(chosen, problem)), arch)
            except cuda.CompileFailure as error:
                tried.append({"label": chosen.label, "level": "PARSED", "fault": "compile", "message": str(error)})
                continue
            report = {
                "kernel": chosen.label, "format": chosen.format, "schedule": chosen.schedule,
                "parameters": dict(chosen.params), "origin": chosen.origin, "verified": UNRUN, "level": "COMPILED",
                "arch": arch, "op": problem.op, "shape": list(problem.pattern.shape), "nnz": problem.pattern.nnz,
                "dtype": problem.dtype.name, "k": problem.k, "image_bytes": len(image), "measured_us": None,
                "candidates": tried, "notes": [f"chosen by rule for {arch}, not by measurement"],
            }  # fmt: skip
            return Artifact(A, problem, chosen, image, arch, report)
        raise SparsegenValueError(f"no CUDA kernel could be compiled for {arch}: {tried or 'none is feasible'}")

    @property
    def source(self) -> str:
        """The kernel file."""
        return kernel_file.text(self.candidate)

    def report(self) -> Report:
        return self._report

    def explain(self) -> str:
        return (
            f"{self.candidate.label} was compiled for {self.arch} ({len(self.image)} bytes of machine code): "
            f"{self.candidate.about}. {UNRUN.capitalize()}."
        )

    def save(self, path) -> None:
        """Write A, the kernel file and the CUBIN to `path`."""
        from sparsegen import store

        store.save(self, path)

    def __call__(self, *args, **kwargs):
        raise SparsegenError(f"this is an Artifact for {self.arch}, {UNRUN}; load it on a machine with that GPU")

    __matmul__ = matvec = matmat = __call__

    def __repr__(self) -> str:
        m, n = self.shape
        return f"<sparsegen.Artifact {m} x {n}, {self.candidate.label} for {self.arch}: {UNRUN}>"
