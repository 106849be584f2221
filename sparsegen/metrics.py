"""How evaluations are summed up: pass@k, speedup@k, fraction of optimum, intervals; and what schedule a kernel has.

Samples of a problem are a sequence; a figure of a set of problems is the mean over them, or a geometric mean with a
bootstrap interval. Failures stay in: they count as `failure`, 0 by default, or 1 where a verified fallback is used.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Hashable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from sparsegen import formats, ops, prelude, templates
from sparsegen.candidate import Candidate, normalised
from sparsegen.errors import SparsegenValueError


def pass_at_k(passed: Sequence[Sequence[bool]], k: int) -> float:
    """Mean over problems of 1 - C(n - c, k) / C(n, k): the chance that one of k of the n samples passes, c of which do.

    Unbiased (Chen et al. 2021). Raises SparsegenValueError where a problem has fewer than k samples.
    """
    return _mean([1 - math.comb(len(each) - sum(map(bool, each)), k) / _choices(len(each), k) for each in passed])


def build_at_k(built: Sequence[Sequence[bool]], k: int) -> float:
    """pass@k of compiling alone."""
    return pass_at_k(built, k)


def speedup_at_k(speedups: Sequence[Sequence[float | None]], k: int, failure: float = 0.0) -> float:
    """Mean over problems of the expected best speedup of k of their N samples; None is a failure.

    sum_j C(j-1, k-1) / C(N, k) T_base / T_j with j = 1 for the slowest (Nichols et al. 2024): sample j is the best of
    the k drawn when the other k - 1 are among the j - 1 that are slower. k = 1 is the mean, k = N the best.
    """
    return _mean([_expected_best(each, k, failure) for each in speedups])


def efficiency_at_k(speedups: Sequence[Sequence[float | None]], k: int, threads: int, failure: float = 0.0) -> float:
    """speedup@k over the number of threads. Raises SparsegenValueError for less than one thread as well."""
    if threads < 1:
        raise SparsegenValueError(f"threads is {threads}; expected at least 1")
    return speedup_at_k(speedups, k, failure) / threads


def _expected_best(speedups: Sequence[float | None], k: int, failure: float) -> float:
    count = len(speedups)
    ascending = sorted(failure if each is None else float(each) for each in speedups)
    if any(not math.isfinite(each) for each in ascending):
        raise SparsegenValueError(f"speedups are {ascending}; expected finite numbers, or None for a failure")
    choices = _choices(count, k)
    return sum(math.comb(j - 1, k - 1) / choices * each for j, each in enumerate(ascending, 1))


def _choices(count: int, k: int) -> int:
    if not 1 <= k <= count:
        raise SparsegenValueError(f"k is {k} and a problem has {count} samples; expected 1 <= k <= samples")
    return math.comb(count, k)


def _mean(values: Sequence[float]) -> float:
    if not len(values):
        raise SparsegenValueError("no problems; expected at least one")
    return math.fsum(values) / len(values)


def gflops(flops: float, time_us: float) -> float:
    """10^9 floating-point operations per second. Raises SparsegenValueError for a time that is none."""
    _check_times([time_us])
    return flops / (time_us * 1e3)


def fraction_of_optimum(times_us: Sequence[float | None], optimum_us: Sequence[float]) -> np.ndarray:
    """Per problem, time of the optimum over time of what was chosen: 1 is the optimum, above 1 better; None is 0.

    Raises SparsegenValueError for a time that is none.
    """
    _check_times([*optimum_us, *(each for each in times_us if each is not None)])
    return np.array([0.0 if t is None else best / t for t, best in zip(times_us, optimum_us, strict=True)])


def _check_times(times_us: Sequence[float]) -> None:
    if wrong := [each for each in times_us if not 0 < each < math.inf]:
        raise SparsegenValueError(f"a time of {wrong[0]} microseconds; expected a positive finite number")


def geomean(values: Sequence[float] | np.ndarray) -> float:
    """exp of the mean logarithm; 0 where a value is 0.

    Raises SparsegenValueError for none, for a negative number and for what is not finite.
    """
    array = np.asarray(values, float)
    if array.size == 0 or not np.isfinite(array).all() or (array < 0).any():
        raise SparsegenValueError(f"a geometric mean of {array.tolist()[:8]}; expected finite numbers, 0 or more")
    return 0.0 if (array == 0).any() else float(np.exp(np.log(array).mean()))


class Interval(NamedTuple):
    value: float
    low: float
    high: float


def bootstrap(
    ratios: Sequence[float] | np.ndarray,
    clusters: Sequence[Hashable] | None = None,
    *,
    level: float = 0.95,
    repeats: int = 10_000,
    seed: int = 20260,
) -> Interval:
    """The geometric mean of paired ratios, one per problem, with its percentile bootstrap interval.

    clusters: a label per problem, such as its matrix: whole clusters are drawn, since problems of one matrix are not
    independent; None draws problems. Raises SparsegenValueError unless all ratios are positive and finite,
    0 < level < 1, and there is a draw at least.
    """
    array = np.asarray(ratios, float)
    if array.ndim != 1 or array.size == 0 or not (np.isfinite(array) & (array > 0)).all():
        raise SparsegenValueError(f"ratios {array.tolist()[:8]}; expected a list of positive finite numbers")
    if repeats < 1 or not 0 < level < 1:
        raise SparsegenValueError(f"repeats = {repeats}, level = {level}; expected 1 at least, and 0 < level < 1")
    labels = range(array.size) if clusters is None else clusters
    if len(labels) != array.size:
        raise SparsegenValueError(f"{len(labels)} cluster labels for {array.size} ratios; expected one each")
    numbers = {label: i for i, label in enumerate(dict.fromkeys(labels))}
    of = np.array([numbers[label] for label in labels])
    logs, sizes = np.bincount(of, np.log(array)), np.bincount(of)
    rng, means = np.random.default_rng(seed), np.empty(repeats)
    for i in range(repeats):
        drawn = rng.integers(len(logs), size=len(logs))
        means[i] = logs[drawn].sum() / sizes[drawn].sum()
    low, high = np.percentile(means, [50 * (1 - level), 50 * (1 + level)])
    return Interval(geomean(array), float(np.exp(low)), float(np.exp(high)))


_TOKEN = re.compile(r"[A-Za-z_]\w*|\.?\d[\w.]*|<<=|>>=|->|::|\+\+|--|&&|\|\||[-+*/%&|^=!<>]=|<<|>>|\S")
_NAME = re.compile(r"[A-Za-z_]\w*")
_TYPES = frozenset(
    """int long unsigned signed short char float double bool auto void vector lanes VALUE STORED ACC INDEX OFFSET LOCAL
    int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t __restrict__ __restrict""".split()  # noqa: SIM905
)
_WORDS = frozenset(
    """const constexpr alignas if else for while do break continue return inline sizeof static_cast true false extern
    defined endif elif pragma define undef GCC unroll ivdep C LANES WIDTH SLICE NARROW CONSTANT_VALUES CHECK_FINITE
    B_BY_ROW C_BY_ROW SIZES m n nnz alpha beta status threadIdx blockIdx blockDim gridDim x y z
    min max __global__ __device__ __shared__ __launch_bounds__ __forceinline__ __syncthreads __syncwarp __ldg atomicAdd
    ceil_div""".split()  # noqa: SIM905
)
_RANGE = frozenset({"begin", "end"})


@lru_cache
def _fixed(language: str, op: str, used: tuple[str, ...]) -> frozenset[str]:
    """Names that mean the same in every kernel of this language, op and formats; all others may be chosen."""
    text = prelude.text(language)
    names = set(re.findall(r"^ *#define (\w+)", text, re.MULTILINE)) | set(re.findall(r"\bINLINE \w+ (\w+)\(", text))
    names |= {*ops.get(op).OPERANDS, *ops.get(op).SIZES}
    for format in map(formats.get, used):
        names |= {*format.ARRAYS, *format.SIZES, *format.PARAMS, *format.BAKED}
    names |= {f"{name.upper()}_ARRAYS" for name in formats.names()}
    return frozenset(names) | _TYPES | _WORDS | (_RANGE if language == "cpp" else frozenset())


def tokens(candidate: Candidate) -> tuple[str, ...]:
    """Launches and source as tokens, every name a kernel may choose replaced by a number in order of declaration.

    Equal for two kernels that differ in names, comments and blank space alone.
    """
    launches = [launch for part in candidate.parts for launch in part.launches]
    heads = [f"{each.entry} {each.items} {each.grid} {each.block} {each.shared_bytes}" for each in launches]
    names: dict[str, int] = {}
    outer: list[dict[str, int]] = []
    found: list[str] = []
    fixed = _fixed(candidate.language, candidate.op, tuple(part.format for part in candidate.parts))
    count, previous = 0, ""
    for token in _TOKEN.findall("\n".join([*heads, normalised(candidate.source)])):
        if token == "{":
            outer.append(dict(names))
        elif token == "}" and outer:
            names = outer.pop()
        elif _NAME.fullmatch(token) and token not in fixed and not token.startswith(("__builtin_", "__shfl_")):
            if token not in names or (previous in _TYPES and outer):  # declared anew inside a function
                names[token], count = count, count + 1
            token = f"${names[token]}"
        found.append(token)
        previous = token if token not in ("*", "&") else previous
    return tuple(found)


@lru_cache
def _template_tokens(language: str, op: str) -> dict[str, tuple[str, ...]]:
    return {each.name: tokens(each) for each in templates.load(language) if each.op == op}


def schedule(candidate: Candidate) -> str:
    """The name of the template whose text this is but for names, or "new:<the template it is most like>"."""
    return _schedule(candidate.language, candidate.op, tokens(candidate))


@lru_cache(maxsize=1 << 14)
def _schedule(language: str, op: str, own: tuple[str, ...]) -> str:
    known = _template_tokens(language, op)
    for name, theirs in known.items():
        if own == theirs:
            return name
    matcher = difflib.SequenceMatcher(None, autojunk=False)
    matcher.set_seq2(own)
    best, nearest = -1.0, ""
    for name, theirs in known.items():
        matcher.set_seq1(theirs)
        if matcher.real_quick_ratio() > best and matcher.quick_ratio() > best and (ratio := matcher.ratio()) > best:
            best, nearest = ratio, name
    return f"new:{nearest}"
