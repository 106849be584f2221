"""`compile`: a matrix goes in, the fastest verified kernel comes out, or the baseline that nothing beat.

    A -> Problem -> cached choice? -> propose -> search beside the baselines -> Kernel -> cached choice
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from sparsegen import baselines, cache, candidate, choices, fence, gpu, inputs, ops, prelude, proposers, targets
from sparsegen import report as reports
from sparsegen.artifact import Artifact
from sparsegen.binding import CertificateError
from sparsegen.candidate import Candidate
from sparsegen.errors import SparsegenError, SparsegenTypeError, SparsegenValueError
from sparsegen.kernel import Kernel
from sparsegen.problem import Facts, Pattern, Problem
from sparsegen.ptx import gpus
from sparsegen.search import Outcome, Tried, search
from sparsegen.targets import cpu

logger = logging.getLogger("sparsegen")

CHOICE_VERSION = 1  # of what is stored for a choice
SCIPY_NS_PER_ENTRY = 1.2  # a first guess of what a product costs now
MOST_GAIN = 0.7  # of a baseline's time that a kernel can be expected to save at best
LEAST_BUDGET = 0.05  # seconds below which a search cannot verify and time anything
MATMUL_KERNELS = 8
OPERAND_COPIES = 8  # of x and y that checking and timing hold at once, here and in the worker


def compile(
    A,
    op: str = "spmv",
    *,
    k: int | None = None,
    dtype=None,
    target: str = "auto",
    device: int | str | None = None,
    arch: str | None = None,
    budget: float = 2.0,
    expected_calls: float | None = None,
    max_candidates: int | None = None,
    threads: int | None = None,
    facts: str | Facts | None = "detect",
    deterministic: bool = False,
    cache: bool = True,
    retune: bool = False,
    model: str | os.PathLike | None = "auto",
    seed: int = 20260,
) -> Kernel | Artifact:
    """Search for the fastest verified kernel of A's product.

    A: anything `inputs.as_csr` reads, a path included; never modified, and not to be changed in place afterwards. op:
    "spmv", or "spmm" with k columns (other widths of x are still right). dtype: of the values, A's own by default;
    kernels exist for float32 and float64, float16 is widened, everything else is served by the baseline. target: "cpu",
    "cuda", or "auto": cuda if a GPU is usable; "emulator" executes CUDA without one and gives the verified kernel of
    the least estimated time on `device`, such as "H200", by default "A100". target "cuda" with such a device, or with
    arch ("sm_90"), is for a GPU elsewhere: it returns an Artifact that the emulator has verified. budget: seconds for
    the whole search, best so far; one candidate is checked and raced whatever that takes. expected_calls: spend no more
    than so many calls can win back. threads: that a call may use, all cores allowed by default; the same limit holds
    for the baselines. facts: "detect" them, None for values that may be anything later, or a Facts that is checked.
    deterministic: bitwise equal results of equal calls. cache: use and keep the choice for this pattern on this
    machine; retune searches again. model: "auto" tries what the shipped model writes beside the templates, None
    templates alone, a folder that checkpoint. seed: of the order in which arms are timed.

    Raises SparsegenValueError and SparsegenTypeError, which say what was expected.
    """
    started = time.monotonic()
    options = dict(
        op=op, k=k, dtype=dtype, target=target, device=device, arch=arch, budget=budget, expected_calls=expected_calls,
        max_candidates=max_candidates, threads=threads, facts=facts, deterministic=deterministic, cache=cache,
        model=choices.model(model), seed=seed,
    )  # fmt: skip
    choices.validate(options)
    estimated, arch = gpus.asked(device, target, arch)
    options["arch"] = arch
    target = target_of(target, arch, device)
    if target == "cpu" and cpu.available() is None and budget >= LEAST_BUDGET:
        fence.warm()
    matrix = inputs.as_csr(A)
    if dtype is not None:
        if not np.can_cast(matrix.dtype, wanted := choices.dtype(dtype), "same_kind"):
            raise SparsegenTypeError(f"dtype = {wanted} for an A of {matrix.dtype}; expected one that holds its values")
        matrix = _cast(matrix, wanted)
    problem, reason = _problem(matrix, options, target)
    if target == "cuda" and arch is not None:
        left = 0.0 if reason else budget
        return Artifact.cross_compile(matrix, problem, arch, estimated, left, max_candidates, seed)
    if estimated is not None:
        problem = replace(problem, device=f"{problem.device}, times estimated of {estimated.name}")
    own = _cast(matrix, problem.dtype)
    if reason is None:
        reason = _not_worth(own, problem, budget, expected_calls)
    if reason is not None:
        return Kernel(matrix, problem, None, "scipy", _plain_report(problem, reason, started), 1, options)
    if expected_calls is not None:
        budget = min(budget, _affordable(own, problem, expected_calls))
    left = max(budget - (time.monotonic() - started), LEAST_BUDGET)
    versions = proposers.versions(options["model"], left, max_candidates)
    keys = [json.dumps([CHOICE_VERSION, repr(problem.key), problem.device, each]) for each in versions]
    for key in keys if cache and not retune else []:
        if kernel := _cached(key, matrix, problem, options, started):
            return kernel
    if options["model"] not in ("auto", "none"):
        proposers.checkpoint_of(options["model"])  # a folder that holds none is told before a search
    proposed = proposers.Proposers(problem, options["model"], left, max_candidates)
    outcome = search(problem, own, iter(proposed), left, max_candidates, seed, baselines.imported(), estimated)
    outcome.notes += proposed.ended().notes
    written = {"model_ms": proposed.ms, "model": proposed.report}
    kernel = _kernel(outcome, matrix, problem, options, started, written)
    if cache and (kernel.candidate is not None or outcome.rounds):
        _remember(keys[-1], kernel)
    return kernel


def compile_many(matrices: Iterable, op: str = "spmv", **options) -> list[Kernel | Artifact]:
    """`compile` for each of `matrices`, one after the other (timing never overlaps), with the same options."""
    if sp.issparse(matrices) or isinstance(matrices, (np.ndarray, str, os.PathLike)) or hasattr(matrices, "nnz"):
        raise SparsegenTypeError(f"compile_many got one {type(matrices).__name__}; expected a list of matrices")
    return [compile(A, op, **options) for A in matrices]


_kernels: OrderedDict[tuple, Kernel] = OrderedDict()
_kernels_lock = threading.Lock()


def matmul(A, X, **options) -> np.ndarray:
    """A @ X through a kernel compiled on first sight of A and kept for the last few matrices.

    Each call reads A once, to notice a change; `compile` is for loops that cannot afford that.
    """
    matrix = inputs.as_csr(A)
    X = np.asarray(X)
    wide = X.ndim == 2 and X.shape[1] > 1
    options = {"op": "spmm" if wide else "spmv", **({"k": X.shape[1]} if wide else {}), **options}
    digest = hashlib.blake2b(np.ascontiguousarray(matrix.data).view(np.uint8).data, digest_size=16).digest()
    key = (Pattern.of(matrix).key, digest, matrix.dtype.str, json.dumps(options, default=repr, sort_keys=True))
    with _kernels_lock:
        kernel = _kernels.pop(key, None)
    if kernel is None:
        A = sp.csr_array((matrix.data.copy(), matrix.indices.copy(), matrix.indptr.copy()), shape=matrix.shape)
        made = compile(A, **options)
        if not isinstance(made, Kernel):
            raise SparsegenValueError("matmul got arch; expected a target that is here")
        kernel = made
    with _kernels_lock:
        _kernels[key] = kernel
        while len(_kernels) > MATMUL_KERNELS:
            _kernels.popitem(last=False)
    return kernel @ X


def _cast(A: sp.csr_array, dtype: np.dtype) -> sp.csr_array:
    """A with values of dtype; its index arrays are shared. scipy's own astype refuses float16."""
    return A if A.dtype == dtype else sp.csr_array((A.data.astype(dtype), A.indices, A.indptr), shape=A.shape)


def target_of(target: str, arch: str | None = None, ordinal: int | str | None = None) -> str:
    """Which target is meant, "auto" too. Raises SparsegenValueError where it is not here, nor asked for by arch."""
    from sparsegen.targets import cuda, emulator

    if target == "emulator" and (reason := emulator.available()):
        raise SparsegenValueError(f"target = 'emulator': {reason}")
    if arch is not None:
        return "cuda"
    number = ordinal if isinstance(ordinal, int) else None
    if target == "auto":
        return "cuda" if cuda.available(number) is None else "cpu"
    if target == "cuda" and (reason := cuda.available(number)):
        raise SparsegenValueError(
            f"target = 'cuda': {reason}; expected a usable GPU, or arch = 'sm_90' to compile for one elsewhere, "
            "or target = 'cpu'"
        )
    return target


def allowed_threads() -> int:
    """Cores this process may use, and no more than OMP_NUM_THREADS says."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    asked = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return max(1, min(cores, int(asked) if asked.isdigit() and int(asked) > 0 else cores, 256))


def _problem(matrix: sp.csr_array, options: dict, target: str) -> tuple[Problem, str | None]:
    """The problem, and one sentence when only the baseline can serve it."""
    working, reason = matrix.dtype, None
    if matrix.dtype == np.float16:
        working = np.dtype(np.float32)
    elif matrix.dtype not in (np.float32, np.float64):
        reason = f"there are no kernels for {matrix.dtype} yet"
    facts = options["facts"]
    if isinstance(facts, Facts):
        if broken := facts.broken_by(matrix.data):
            raise SparsegenValueError(f"facts declare {' and '.join(broken)}; the values of A are not so")
    else:
        facts = Facts.of(matrix.data) if facts == "detect" and reason is None else Facts()
    here, ordinal = options["arch"] is None, 0
    if here and target == "cuda":
        ordinal = gpu.chosen(options["device"])
        device = str(gpu.get(ordinal))
    else:
        device = targets.get(target).device() if here else ""
    problem = Problem(
        op=options["op"], pattern=Pattern.of(matrix), facts=facts, dtype=working, k=int(options["k"] or 1),
        threads=int(options["threads"] or allowed_threads()) if target == "cpu" else 1,
        deterministic=bool(options["deterministic"]), target=target, device=device, ordinal=ordinal,
    )  # fmt: skip
    if reason is None and matrix.nnz == 0:
        reason = "A has no entries"
    if reason is None and OPERAND_COPIES * ops.get(problem.op).operand_bytes(problem) > free_memory():
        reason = "its operands are too large for the memory that is free to check a kernel"
    if reason is None and target == "cpu":
        reason = cpu.available()
    return problem, reason


def problem_of(matrix: sp.csr_array, *, op="spmv", k=None, threads=None, facts="detect", target="cpu") -> Problem:
    """The problem `compile` would search for; for tools that judge candidates on it."""
    options = dict(
        op=op, k=k, dtype=None, target="cuda" if target == "emulator" else target, device=None, budget=0.0,
        arch="any" if target in ("cuda", "emulator") else None,  # no GPU is needed to judge what needs none
        expected_calls=None, max_candidates=None, threads=threads, facts=facts, deterministic=False, cache=False,
        seed=0,
    )  # fmt: skip
    choices.validate(options)
    return replace(_problem(matrix, options, options["target"])[0], target=target)


def free_memory() -> float:
    """Bytes that may still be taken, as far as the system tells."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable"):
                return 1024.0 * int(line.split()[1])
    except (OSError, ValueError):
        pass
    return float("inf")


def _not_worth(A: sp.csr_array, problem: Problem, budget: float, expected_calls: float | None) -> str | None:
    if budget < LEAST_BUDGET:
        return f"a budget of {budget:g} s is too short to verify and time a kernel"
    if expected_calls is not None and (saved := _affordable(A, problem, expected_calls)) < LEAST_BUDGET:
        return f"{expected_calls:g} calls can win back {saved * 1e3:.3g} ms at best, less than a search costs"
    return None


def _affordable(A: sp.csr_array, problem: Problem, expected_calls: float) -> float:
    """Seconds that `expected_calls` can win back at best."""
    guess = problem.pattern.nnz * problem.k * SCIPY_NS_PER_ENTRY / 1e9 + 3e-6
    return expected_calls * guess * MOST_GAIN


def _kernel(
    outcome: Outcome, matrix: sp.csr_array, problem: Problem, options: dict, started: float, written: dict
) -> Kernel:
    chosen = outcome.winner.candidate if outcome.winner else None
    threads = outcome.winner.threads if outcome.winner else 1
    searched = time.monotonic()
    report = reports.made(outcome, problem)
    try:
        kernel = Kernel(matrix, problem, chosen, outcome.baseline, report, threads, options)
    except (CertificateError, targets.get(problem.target).CompileFailure) as error:
        logger.warning("%s; %s serves", error, outcome.baseline)
        outcome.notes.append(f"the winner failed its last check: {error}")
        outcome.winner = None
        kernel = Kernel(matrix, problem, None, outcome.baseline, reports.made(outcome, problem), 1, options)
    done = time.monotonic()
    costs = {
        "pack_ms": kernel.pack_ms,
        "startup_ms": outcome.startup_ms,
        "search_ms": (searched - started) * 1e3,
        "total_ms": (done - started) * 1e3,
        **written,
    }
    kernel._report = kernel._report.completed(costs)
    return kernel


def _plain_report(problem: Problem, reason: str, started: float) -> dict:
    report = reports.made(Outcome(None, "scipy", None, {}, []), problem)
    report["notes"].append(f"the baseline serves: {reason}")
    report["verified"] = "scipy is the reference"
    report["total_ms"] = (time.monotonic() - started) * 1e3
    return report


def _remember(key: str, kernel: Kernel) -> None:
    choice = {
        "kernel": kernel.source,
        "name": kernel.candidate.name if kernel.candidate else "",
        "origin": kernel.candidate.origin if kernel.candidate else "",
        "baseline": kernel.baseline,
        "threads": kernel._threads,
        "report": kernel.report().as_dict(),
        "versions": {
            "sparsegen": getattr(sys.modules["sparsegen"], "__version__", ""), "prelude": prelude.VERSION,
            "model": (kernel.report()["model"] or {}).get("checkpoint"),
        },
    }  # fmt: skip
    cache.put("choices", key, json.dumps(choice).encode())


def _cached(key: str, matrix: sp.csr_array, problem: Problem, options: dict, started: float) -> Kernel | None:
    """The kernel chosen before for this problem on this device, checked by one reference product; None to search."""
    stored = cache.get("choices", key)
    if stored is None:
        return None
    try:
        choice = json.loads(stored)
        chosen: Candidate | None = None
        if choice["kernel"]:
            chosen = replace(candidate.parse(choice["kernel"], name=choice["name"]), origin=choice["origin"])
        elif baselines.get(choice["baseline"]).available(problem) is not None:
            return None  # the library that won has gone
        kernel = Kernel(matrix, problem, chosen, choice["baseline"], choice["report"], choice["threads"], options)
    except (SparsegenError, targets.get(problem.target).CompileFailure, KeyError, TypeError, ValueError) as error:
        logger.warning("the cached choice cannot be used (%s); searching again", error)
        return None
    total = (time.monotonic() - started) * 1e3
    costs = {"total_ms": total, "pack_ms": kernel.pack_ms, "search_ms": 0.0, "startup_ms": 0.0, "model_ms": 0.0}
    kernel._report = kernel._report.completed({**costs, "cached": True})
    return kernel


__all__: Sequence[str] = ("Outcome", "Tried", "allowed_threads", "compile", "compile_many", "matmul")
