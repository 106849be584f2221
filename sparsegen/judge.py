"""One kernel file on one matrix: a record for every instance of the file, as far as each gets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from sparsegen import candidate as kernel_file
from sparsegen import checks, engine, evaluate, fence, inputs, paths
from sparsegen.candidate import Candidate
from sparsegen.errors import SparsegenValueError
from sparsegen.problem import Facts, Problem
from sparsegen.verdict import Level, Verdict

ROUNDS = 8
MOST_BYTES = 1 << 20  # of a kernel file


def instances(
    kernel: str, matrix: str, *, op: str = "spmv", k: int | None = None, dtype=None, threads: int | None = None,
    facts: str | Facts | None = "detect", arch: str | None = None,
) -> Iterator[dict]:  # fmt: skip
    """Records with label, level, fault, message, worst and, for a correct C++ kernel, measured_us beside scipy's.

    A CUDA file is compiled for `arch` (sm_90 by default) and gets no further without a GPU.
    Raises SparsegenValueError for a file that cannot be read or is no kernel file.
    """
    path = Path(kernel)
    try:
        text = paths.read(path, MOST_BYTES).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SparsegenValueError(f"cannot read the kernel file {kernel}: {error}") from None
    language = {".cu": "cuda", ".cpp": "cpp"}.get(path.suffix)
    template = kernel_file.parse(text, name=path.stem, origin="user", language=language)
    op = template.op if op == "spmv" else op
    k = k or (32 if op == "spmm" else None)
    A = inputs.as_csr(matrix)
    if dtype is not None:
        A = A.astype(dtype)
    target = "cpu" if template.language == "cpp" else "cuda"
    if A.dtype not in (np.float32, np.float64):
        raise SparsegenValueError(f"{matrix} is {A.dtype}; kernels are judged in float32 or float64: pass dtype")
    problem = engine.problem_of(A, op=op, k=k, threads=threads or 1, facts=facts, target=target)
    if template.language == "cuda":
        from sparsegen.targets import cuda

        arch = cuda.resolve(arch or "sm_90")
        yield from (
            _record(each, evaluate.cross_compile(each, problem, arch), None) for each in kernel_file.instances(template)
        )
        return
    own = A.astype(problem.dtype)
    references, timed = checks.References(problem), checks.TimedReferences(problem, own)
    with fence.session(problem, own) as session:
        for number, each in enumerate(kernel_file.instances(template)):
            name = f"candidate {number}"
            verdict = evaluate.evaluate(each, problem, session, references, name)
            scipy_us = None
            if verdict.level >= Level.CORRECT:
                verdict, scipy_us = _timed(verdict, problem, timed, session, name)
            yield _record(each, verdict, scipy_us)


def _timed(
    verdict: Verdict, problem: Problem, timed: checks.TimedReferences, session: fence.Session, name: str
) -> tuple[Verdict, float | None]:
    from sparsegen.verdict import Timing

    try:
        session.ask("arm", 60.0, name="kernel", bound=name, threads=problem.threads)
        session.ask("baseline", 60.0, name="scipy")
        answer = session.ask("rounds", 120.0, arms=["kernel", "scipy"], count=ROUNDS, most_seconds=5.0, seed=20260)
        right = evaluate.timed_right(session, timed, "kernel", 60.0) and "kernel" not in answer["changed"]
        session.ask("drop", 10.0, names=[name, "kernel"])
    except fence.Died as error:
        return replace(verdict, level=Level.RAN, fault=error.fault, message=str(error)), None
    if not right:
        message = "the result of a timed call is not the product"
        return replace(verdict, level=Level.RAN, fault="wrong", message=message), None
    timing = Timing.of([each["kernel"] for each in answer["rounds"]], problem.device)
    if reason := evaluate.too_fast(problem, int(verdict.resources["packed_bytes"]), timing.median_us):
        return replace(verdict, level=Level.RAN, fault="too fast", message=reason), None
    scipy = Timing.of([each["scipy"] for each in answer["rounds"]], problem.device)
    return replace(verdict, level=Level.TIMED, measured=timing), scipy.median_us


def _record(each: Candidate, verdict: Verdict, scipy_us: float | None) -> dict:
    measured = verdict.measured
    return {
        "label": each.label, "language": each.language, "op": each.op, "format": each.format,
        "params": dict(each.params), "level": verdict.level.name, "fault": verdict.fault, "message": verdict.message,
        "worst": None if np.isnan(verdict.worst) else verdict.worst, "seeds": list(verdict.seeds),
        "measured_us": measured.median_us if measured else None, "p20_us": measured.p20_us if measured else None,
        "p80_us": measured.p80_us if measured else None, "scipy_us": scipy_us, "resources": dict(verdict.resources),
    }  # fmt: skip
