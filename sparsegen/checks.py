"""What a candidate is run on before it is believed: inputs from a seed, and the reference they must match.

Inputs are a function of (problem, check) alone, so that a worker and its parent draw the same ones and the expected
result never exists where the candidate runs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from sparsegen import ops
from sparsegen.problem import Problem


@dataclass(frozen=True)
class Check:
    """One run. kind: "integer" (sums exact: a dropped, doubled or misplaced entry changes y), "signed" (random values
    against the componentwise bound), "special" (infinities and NaN in x, zeros stored in A; where no fact speaks
    against it, also infinities and NaN stored in A, met by zeros of x)."""

    kind: str
    seed: int
    alpha: float = 1.0
    beta: float = 0.0


CHECKS = (
    Check("integer", 20261),
    Check("signed", 20263, alpha=1.5, beta=-0.75),
    Check("special", 20264, alpha=-0.625),
    Check("signed", 20266, beta=0.375),
)


def inputs(problem: Problem, check: Check) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(data, x, y0): values of A within the problem's facts, (nnz,); the input; what y holds before the call.

    With beta = 0, y0 is NaN throughout: nothing of it may be read.
    """
    rng = np.random.default_rng([check.seed, problem.pattern.nnz, problem.pattern.m])
    op, integer = ops.get(problem.op), check.kind == "integer"
    data = problem.facts.draw(rng, problem.pattern.nnz, problem.dtype, integer)
    x = op.make(problem, rng, integer)
    if check.kind == "special" and x.size:
        _special(problem, rng, data, x)
    shape = op.shapes(problem)[1]
    y0 = rng.standard_normal(shape).astype(problem.dtype) if check.beta else np.full(shape, np.nan, problem.dtype)
    return data, x, np.asarray(y0, order=problem.order_c)


def _special(problem: Problem, rng: np.random.Generator, data: np.ndarray, x: np.ndarray) -> None:
    """Put in what is not finite: in a few rows of x, some met by a zero of A; in A, some met by a zero of x."""
    facts, pattern = problem.facts, problem.pattern
    held = np.flatnonzero(pattern.lengths)
    rows = held[rng.integers(0, len(held), 12)] if held.size else held
    entries = pattern.indptr[rows] + rng.integers(0, pattern.lengths[rows])
    stored, zeros = entries[::3], entries[1::3]
    opaque = not (facts.constant or facts.exact_f32)
    if opaque:
        x[pattern.indices[stored]] = 0
    unusual = np.array([np.inf, np.nan, -np.inf], problem.dtype)
    x[rng.integers(0, len(x), 3)] = unusual.reshape(3, *(1,) * (x.ndim - 1))
    x[pattern.indices[zeros]] = np.inf
    if not facts.constant and data.size:
        data[rng.integers(0, len(data), max(1, len(data) // 20))] = 0
        if opaque:
            data[entries[2::3]], data[stored] = unusual[0], np.resize(unusual, len(stored))
        data[zeros] = 0


def timed_inputs(problem: Problem) -> list[np.ndarray]:
    """The two inputs that candidates and baselines are timed on."""
    rng = np.random.default_rng(20265)
    return [ops.get(problem.op).make(problem, rng) for _ in range(2)]


class References:
    """Exact results and bounds of a problem's checks, computed once each."""

    def __init__(self, problem: Problem):
        self.problem = problem
        self._known: dict[Check, tuple[np.ndarray, np.ndarray]] = {}

    def worst(self, check: Check, y: np.ndarray) -> float:
        """The largest |y - exact| / bound; at most 1 for a correct result, inf for one that is not even finite."""
        if check not in self._known:
            pattern = self.problem.pattern
            data, x, y0 = inputs(self.problem, check)
            A = sp.csr_array((data, pattern.indices, pattern.indptr), shape=pattern.shape)
            self._known[check] = reference(self.problem, A, x, check.alpha, check.beta, y0)
        exact, bound = self._known[check]
        # a sum of integers that the accumulator holds is exact in any order
        held = 2.0 ** np.finfo(self.problem.dtype).nmant if check.kind == "integer" else 0.0
        return worst(y, exact, bound, held)


class TimedReferences:
    """Exact results and bounds of A itself for the timed inputs, computed once each."""

    def __init__(self, problem: Problem, A: sp.csr_array):
        self.problem, self.A = problem, A
        self._known: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def right(self, which: int, y: np.ndarray) -> bool:
        """Whether y is A x, within the bound, for timed input `which`."""
        if which not in self._known:
            self._known[which] = reference(self.problem, self.A, timed_inputs(self.problem)[which])
        return worst(y, *self._known[which]) <= 1


def reference(
    problem: Problem, A: sp.csr_array, x: np.ndarray, alpha=1.0, beta=0.0, y0: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """alpha A x + beta y0 in float64 and the bound on what a correct kernel differs by."""
    op = ops.get(problem.op)
    with np.errstate(invalid="ignore", over="ignore"):
        exact = op.reference(A, x)
        exact *= alpha
        if beta and y0 is not None:
            exact += beta * y0.astype(np.float64, copy=False)
        finite = x if np.isfinite(x).all() else np.where(np.isfinite(x), x, 0)
        return exact, op.bound(A, finite, exact, problem.dtype, alpha, beta, 0.0 if y0 is None or not beta else y0)


def worst(y: np.ndarray, exact: np.ndarray, bound: np.ndarray, held: float = 0.0) -> float:
    """max |y - exact| / bound. Where exact is infinite or NaN, y must be the same; one that is not gives inf. So must
    it be where |exact| is under `held`; one that is not gives more than 1."""
    return max((_worst(y[rows], exact[rows], bound[rows], held) for rows in ops.parts(y)), default=0.0)


def _worst(y: np.ndarray, exact: np.ndarray, bound: np.ndarray, held: float) -> float:
    if y.size == 0:
        return 0.0
    least = 0.0
    with np.errstate(invalid="ignore", over="ignore"):
        magnitude = np.abs(exact)
        finite = magnitude <= np.finfo(y.dtype).max  # false for NaN
        if not finite.all():
            special = ~finite
            expected = exact[special].astype(y.dtype)
            if not ((np.isnan(y[special]) & np.isnan(expected)) | (y[special] == expected)).all():
                return float("inf")
            y, exact, bound, magnitude = y[finite], exact[finite], bound[finite], magnitude[finite]
        if held and ((y != exact) & (magnitude < held)).any():
            least = 1.0001
        ratio = float((np.abs(y - exact) / bound).max(initial=least))
    return ratio if np.isfinite(ratio) else float("inf")
