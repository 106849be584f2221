"""One kernel file on one matrix: a record for every instance of the file, as far as each gets."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from sparsegen import candidate as kernel_file
from sparsegen import checks, engine, evaluate, fence, inputs, paths, targets
from sparsegen import gpu as gpus_here
from sparsegen.candidate import Candidate
from sparsegen.errors import SparsegenValueError
from sparsegen.problem import Facts, Problem
from sparsegen.ptx import gpus
from sparsegen.verdict import Level, Verdict

ROUNDS = 8
MOST_BYTES = 1 << 20  # of a kernel file


def instances(
    kernel: str, matrix: str, *, op: str = "spmv", k: int | None = None, dtype=None, threads: int | None = None,
    facts: str | Facts | None = "detect", arch: str | None = None, target: str | None = None,
    device: str | None = None,
) -> Iterator[dict]:  # fmt: skip
    """Records with label, level, fault, message, worst and, for a correct C++ kernel, measured_us beside scipy's.

    A CUDA file runs on the GPU here, or with `arch`, or without one, is compiled for it (sm_90 by default) and gets no
    further; with target "emulator" it is executed on the CPU, which verifies it, and its time on a GPU (`device`,
    "A100" by default) is estimated.
    Raises SparsegenValueError for a file that cannot be read or is no kernel file, or a target that is not for it.
    """
    path = Path(kernel)
    try:
        text = paths.read(path, MOST_BYTES).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SparsegenValueError(f"cannot read the kernel file {kernel}: {reason}") from None
    language = {".cu": "cuda", ".cpp": "cpp"}.get(path.suffix)
    template = kernel_file.parse(text, name=path.stem, origin="user", language=language)
    op = template.op if op == "spmv" else op
    k = k or (32 if op == "spmm" else None)
    A = inputs.as_csr(matrix)
    if dtype is not None:
        A = A.astype(dtype)
    own_target = "cpu" if template.language == "cpp" else "cuda"
    if target not in (None, own_target, "emulator" if own_target == "cuda" else own_target):
        raise SparsegenValueError(f"target = {target!r} for a {template.language} kernel; expected {own_target}")
    target = target or own_target
    if A.dtype not in (np.float32, np.float64):
        raise SparsegenValueError(f"{matrix} is {A.dtype}; kernels are judged in float32 or float64: pass dtype")
    problem = engine.problem_of(A, op=op, k=k, threads=threads or 1, facts=facts, target=target)
    if device is not None and target != "emulator":
        raise SparsegenValueError(f"device = {device!r} with target = {target!r}; expected target = 'emulator'")
    gpu = gpus.get(device or gpus.USUAL)
    cuda = targets.get("cuda")
    if target == "cuda" and (arch is not None or cuda.available() is not None):
        arch = cuda.resolve(arch or "sm_90")
        yield from (
            _record(each, evaluate.cross_compile(each, problem, arch), None) for each in kernel_file.instances(template)
        )
        return
    if reason := targets.get(target).available():
        raise SparsegenValueError(f"target = {target!r}: {reason}")
    if target == "cuda":
        problem = replace(problem, device=cuda.device(), ordinal=gpus_here.chosen())
    own = A.astype(problem.dtype)
    references, timed = checks.References(problem), checks.TimedReferences(problem, own)
    with fence.session(problem, own) as session:
        for number, each in enumerate(kernel_file.instances(template)):
            name = f"candidate {number}"
            verdict = evaluate.evaluate(each, problem, session, references, name)
            scipy_us = None
            if verdict.level >= Level.CORRECT and target == "emulator":
                verdict = _estimated(each, verdict, problem, session, name, gpu)
            if verdict.level >= Level.CORRECT and target != "emulator":
                verdict, scipy_us = _timed(each, verdict, problem, timed, session, name)
            yield _record(each, verdict, scipy_us)


def _estimated(
    each: Candidate, verdict: Verdict, problem: Problem, session: fence.Session, name: str, gpu: gpus.GPU
) -> Verdict:
    compiled = evaluate.compile(each, problem)
    if isinstance(compiled, evaluate.Compiled):
        verdict = evaluate.estimate(verdict, compiled, problem, session, name, gpu)
    with contextlib.suppress(fence.Died):
        session.ask("drop", 10.0, names=[name])
    return verdict


def _timed(
    each: Candidate, verdict: Verdict, problem: Problem, timed: checks.TimedReferences, session: fence.Session,
    name: str,
) -> tuple[Verdict, float | None]:  # fmt: skip
    from sparsegen.verdict import Timing

    try:
        session.ask("arm", 60.0, name="kernel", bound=name, threads=problem.threads)
        session.ask("baseline", 60.0, name="scipy")
        answer = session.ask("rounds", 120.0, arms=["kernel", "scipy"], count=ROUNDS, most_seconds=5.0, seed=20260)
        why = evaluate.disbelieved(session, timed, each, "kernel", answer["changed"], 60.0)
        session.ask("drop", 10.0, names=[name, "kernel"])
    except fence.Died as error:
        return replace(verdict, level=Level.RAN, fault=error.fault, message=str(error)), None
    if why is not None:
        return replace(verdict, level=Level.RAN, fault="wrong", message=why), None
    timing = Timing.of([each["kernel"] for each in answer["rounds"]], problem.device)
    if reason := evaluate.too_fast(problem, int(verdict.resources["packed_bytes"]), timing.median_us):
        return replace(verdict, level=Level.RAN, fault="too fast", message=reason), None
    scipy = Timing.of([each["scipy"] for each in answer["rounds"]], problem.device)
    return replace(verdict, level=Level.TIMED, measured=timing), scipy.median_us


def _record(each: Candidate, verdict: Verdict, scipy_us: float | None) -> dict:
    measured = verdict.measured
    return {
        "label": each.label, "language": each.language, "op": each.op, "format": each.format,
        "params": dict(each.params), "verdict": verdict.fault or verdict.level.name.lower(),
        "level": verdict.level.name, "fault": verdict.fault, "message": verdict.message,
        "worst": None if np.isnan(verdict.worst) else verdict.worst, "seeds": list(verdict.seeds),
        "measured_us": measured.median_us if measured else None, "p20_us": measured.p20_us if measured else None,
        "p80_us": measured.p80_us if measured else None, "scipy_us": scipy_us, "resources": dict(verdict.resources),
        "estimated_us": verdict.estimated_us, "estimate": verdict.estimate and dict(verdict.estimate),
    }  # fmt: skip
