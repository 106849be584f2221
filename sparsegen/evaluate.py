"""(candidate, problem) -> Verdict: parse, screen, compile, run on several seeds, compare, time.

Each step returns at the first failure with its reason. Compiling happens in a fenced compiler process, running and
timing in a worker that can be killed (fence.py); comparing happens here, where the candidate has never been.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from sparsegen import bandwidth, composite, ops, prelude, targets, values
from sparsegen import candidate as kernel_file
from sparsegen.candidate import Candidate
from sparsegen.checks import CHECKS, References, TimedReferences
from sparsegen.errors import SparsegenError
from sparsegen.fence import Died, Session
from sparsegen.nvrtc import Image
from sparsegen.problem import Problem
from sparsegen.ptx.gpus import GPU
from sparsegen.verdict import Level, Verdict

RUN_SECONDS = 5.0  # of wall clock for one check, beside what the size explains
NS_PER_ENTRY = 400.0  # a very slow kernel, drawing and packing included
EMULATED_NS = 200.0  # of a usual kernel in the emulator
TOO_SHORT = "the budget is too short for more"
TOO_FAST = 0.5  # of the physical limit: beyond noise of the bandwidth, a broken clock or a wrong kernel
CORRUPTING = ("out of bounds", "writes input")  # faults after which the worker's memory is not to be trusted


@dataclass(frozen=True)
class Compiled:
    """A candidate that may be run: its binary and what making it took."""

    candidate: Candidate
    path: Path
    compile_ms: float


def refuse(candidate: Candidate, problem: Problem) -> Verdict | None:
    """Parse and screen: a verdict for what may not, or cannot, be compiled for this problem."""
    target = targets.get(problem.target)
    if candidate.op != problem.op or candidate.language != target.LANGUAGE or candidate.tune:
        wrong = f"a {candidate.language} kernel for {candidate.op}" + (" with a [tune] table" if candidate.tune else "")
        return Verdict(Level.NONE, "header", f"{wrong}; expected one {target.LANGUAGE} instance for {problem.op}")
    if reason := values.feasible(candidate.encoding, problem) or composite.feasible(candidate, problem):
        return Verdict(Level.PARSED, "infeasible", reason)
    if reason := target.screen(candidate):
        return Verdict(Level.NONE, "screen", reason)
    return None


def compile(candidate: Candidate, problem: Problem) -> Compiled | Verdict:
    """Compile for this machine; A is not packed for that."""
    started, target = time.perf_counter(), targets.get(problem.target)
    try:
        unit = target.unit(candidate, problem, composite.literals(candidate, problem))
        path = target.build(unit, problem.ordinal)
    except target.CompileFailure as error:
        return Verdict(Level.PARSED, "compile", str(error))
    except SparsegenError as error:
        return Verdict(Level.PARSED, "header", str(error))
    return Compiled(candidate, path, (time.perf_counter() - started) * 1e3)


def cross_compile(candidate: Candidate, problem: Problem, arch: str) -> Verdict:
    """Refuse, or compile CUDA for a GPU that is not here: COMPILED at best."""
    if verdict := refuse(candidate, problem):
        return verdict
    started, target = time.perf_counter(), targets.get("cuda")
    try:
        image = target.compile(target.unit(candidate, problem, composite.literals(candidate, problem)), arch)
    except target.CompileFailure as error:
        return Verdict(Level.PARSED, "compile", str(error))
    except SparsegenError as error:
        return Verdict(Level.PARSED, "header", str(error))
    resources = {"compile_ms": (time.perf_counter() - started) * 1e3, "image_bytes": float(len(image))}
    return Verdict(Level.COMPILED, message=f"compiled for {arch}; nothing ran it", resources=resources)


def run(
    compiled: Compiled, problem: Problem, session: Session, references: References, name: str,
    patience: float | None = None, until: float = float("inf"),
) -> Verdict:  # fmt: skip
    """Load into the worker under `name`; run every check with all threads allowed, the exact one with one as well.

    patience: seconds of one check, beside what the size explains; RUN_SECONDS by default. until: on time.monotonic(),
    when the emulator must be done: a check that would not be is left out, and the verdict says what was covered. Where
    not one would be, some blocks are run, nothing is compared, and it stays RAN.
    """
    entries = problem.pattern.nnz * problem.k
    allowed = (RUN_SECONDS if patience is None else patience) + seconds(problem)
    resources = {"compile_ms": compiled.compile_ms}
    verdict = Verdict(Level.COMPILED, seeds=tuple(check.seed for check in CHECKS), worst=0.0, resources=resources)
    text = kernel_file.text(compiled.candidate)
    try:
        resources |= session.ask("load", allowed + 20, name=name, text=text, path=str(compiled.path), label=name)
        emulated = problem.target == "emulator"
        if emulated and time.monotonic() + entries * EMULATED_NS / 1e9 > until:
            verdict = replace(verdict, worst=float("nan"), seeds=(), covered=f"nothing: {TOO_SHORT}")
            if compiled.candidate.scratch:  # a launch needs what every block of the one before has left
                return verdict
            answer = session.ask("check", allowed, name=name, check=CHECKS[0], threads=1, sampled=True)
            covered = f"some blocks, watched for faults, no result compared: {TOO_SHORT}"
            verdict = replace(verdict, level=Level.RAN, covered=covered)
            return replace(verdict, fault=answer.get("fault", ""), message=answer.get("message", ""))
        took = 0.0
        for done, check in enumerate(CHECKS):
            begun = time.monotonic()
            if emulated and done and begun + took > until:
                kinds = " and ".join(each.kind for each in CHECKS[:done])
                covered = f"{done} of {len(CHECKS)} checks ({kinds}), in full: {TOO_SHORT}"
                verdict = replace(verdict, seeds=verdict.seeds[:done], covered=covered)
                break
            for threads in {problem.threads, 1 if check.kind == "integer" else problem.threads}:
                answer = session.ask("check", allowed, name=name, check=check, threads=threads)
                verdict = replace(verdict, level=Level.RAN)
                if fault := _fault(answer, compiled.candidate, check.kind):
                    if fault[0] in CORRUPTING and "fault" not in answer:
                        session.discard()
                    return replace(verdict, fault=fault[0], message=fault[1])
                if answer["status"] == 0:
                    worst = references.worst(check, session.output)
                    verdict = replace(verdict, worst=max(verdict.worst, worst))
                    if not worst <= 1:
                        return replace(verdict, fault="wrong", message=_wrong(check, worst, threads))
            took = time.monotonic() - begun
    except Died as error:
        return replace(verdict, fault=error.fault, message=str(error))
    return replace(verdict, level=Level.CORRECT)


def image(compiled: Compiled, problem: Problem, arch: str) -> Image:
    """The CUBIN of a candidate of the emulator, from memory where it was asked for lately. Raises CompileFailure."""
    candidate, target = compiled.candidate, targets.get("emulator")
    return target.image(target.unit(candidate, problem, composite.literals(candidate, problem)), arch)


def estimate(verdict: Verdict, compiled: Compiled, problem: Problem, session: Session, name: str, gpu: GPU) -> Verdict:
    """The verdict of `run` with an estimate of the time on a GPU, or a message why there is none."""
    target = targets.get("emulator")
    try:
        resources = image(compiled, problem, gpu.arch).resources
        answer = session.ask("estimate", RUN_SECONDS + seconds(problem), name=name, gpu=gpu.name, resources=resources)
    except target.CompileFailure as error:
        return replace(verdict, message=f"no estimate: it does not compile for {gpu.arch}: {error}")
    except Died as error:
        return replace(verdict, message=f"no estimate: {error}")
    if "fault" in answer:
        return replace(verdict, level=Level.RAN, fault=answer["fault"], message=answer["message"])
    return replace(verdict, estimated_us=answer["estimated_us"], estimate=answer)


def timed_right(
    session: Session, references: TimedReferences, arm: str, seconds: float, which: tuple[int, ...] = (0, 1)
) -> bool:
    """Whether an arm of the worker, called once more for each of these timed inputs, gives the product, and writes
    nowhere else. seconds: of a call. Raises Died."""
    for each in which:
        intact = session.ask("fetch", seconds, arm=arm, which=each)["intact"]
        if not intact or not references.right(each, session.output):
            return False
    return True


def disbelieved(
    session: Session, references: TimedReferences, candidate: Candidate, arm: str, changed: Iterable[str],
    seconds: float,
) -> str | None:  # fmt: skip
    """What speaks against the time of an arm: results that changed, or wrong ones afterwards. changed: by the worker,
    the arms whose results did; those of atomic additions may, within their bound. seconds: of a call. Raises Died."""
    if arm in changed and not candidate.atomic:
        return "equal inputs gave different results while it was timed"
    if not timed_right(session, references, arm, seconds):
        return "the result after timing is not the product"
    return None


def too_fast(problem: Problem, packed_bytes: int, us: float) -> str | None:
    """One sentence why a call that reads `packed_bytes` of A cannot take so short a time, or None. On a CPU: what the
    memory of a GPU allows is not measured."""
    if problem.target != "cpu":
        return None
    moved = packed_bytes + ops.get(problem.op).moved_bytes(problem)
    for again in (False, True):  # a bandwidth that was measured on a busy machine is too low
        _, limit = bandwidth.limit(moved, problem.threads, again)
        if us >= TOO_FAST * limit:
            return None
    return f"{us:.3g} us is under the {limit:.3g} us that its bytes take to read"


def seconds(problem: Problem) -> float:
    """What the size of a problem explains of the time of one check."""
    slowest = getattr(targets.get(problem.target), "NS_PER_ENTRY", NS_PER_ENTRY)
    return (problem.pattern.nnz + problem.pattern.m + problem.pattern.n) * problem.k * slowest / 1e9


def _fault(answer: dict, candidate: Candidate, kind: str) -> tuple[str, str] | None:
    if "fault" in answer:  # the target saw it, and nothing else was touched
        return answer["fault"], answer["message"]
    if not answer["intact"]:
        return "out of bounds", "bytes around an array have changed: the kernel writes outside what it was given"
    if not answer["unchanged"]:
        return "writes input", "an array of A, or x, has changed"
    if answer["status"] == -1:
        return "wrong", "the operands were refused"
    if answer["status"] == 1 and (kind != "special" or not prelude.checks_finite(candidate)):
        return "wrong", "a sum that is not finite was reported where every input is finite"
    return None


def _wrong(check, worst: float, threads: int) -> str:
    how = "is not the exact integer result" if check.kind == "integer" else "misses the componentwise bound"
    size = f"by a factor {worst:.3g}" if np.isfinite(worst) else "with NaN or infinity in the wrong places"
    return f"y {how} {size} (inputs {check.kind}, seed {check.seed}, {threads} threads)"


def evaluate(candidate: Candidate, problem: Problem, session: Session, references: References, name: str) -> Verdict:
    """All steps up to CORRECT; on success the candidate stays in the worker under `name`, ready to be timed."""
    if verdict := refuse(candidate, problem):
        return verdict
    compiled = compile(candidate, problem)
    if isinstance(compiled, Verdict):
        return compiled
    return run(compiled, problem, session, references, name)
