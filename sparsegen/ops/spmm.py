"""C = alpha A B + beta C: a sparse matrix times a dense matrix of k columns."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from sparsegen.ops import componentwise_bound, signed, with_data
from sparsegen.problem import Problem

OPERANDS = {"B": "const VALUE*", "C": "VALUE*"}
OUTPUT = "C"
SIZES = ("k", "ldb", "ldc")


def shapes(problem: Problem) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of B and C."""
    return (problem.pattern.n, problem.k), (problem.pattern.m, problem.k)


def make(problem: Problem, rng: np.random.Generator, integer: bool = False) -> np.ndarray:
    """A random B, (n, k) in the problem's layout: signed normals, or integers but 0 from -7 to 7."""
    shape = shapes(problem)[0]
    drawn = signed(rng, shape) if integer else rng.standard_normal(shape)
    return drawn.astype(problem.dtype, order=problem.order_b)


def reference(A: sp.csr_array, B: np.ndarray) -> np.ndarray:
    """A @ B in float64, (m, k)."""
    return with_data(A, A.data.astype(np.float64, copy=False)) @ B.astype(np.float64, copy=False)


def bound(A: sp.csr_array, B: np.ndarray, exact: np.ndarray, dtype, alpha=1.0, beta=0.0, y0=0.0) -> np.ndarray:
    """What a correct C = alpha A B + beta y0, accumulated in dtype, may differ from `exact` by, (m, k)."""
    magnitude = reference(with_data(A, np.abs(A.data)), np.abs(B))
    magnitude *= abs(alpha)
    return componentwise_bound(np.diff(A.indptr)[:, None], magnitude, exact, dtype, abs(beta) * np.abs(y0))


def flops(problem: Problem) -> int:
    return 2 * problem.pattern.nnz * problem.k


def operand_bytes(problem: Problem) -> int:
    """What B and C hold."""
    return (problem.pattern.n + problem.pattern.m) * problem.k * problem.dtype.itemsize


def moved_bytes(problem: Problem) -> int:
    """What any kernel reads of B, once, and writes of C."""
    return (problem.pattern.columns + problem.pattern.m) * problem.k * problem.dtype.itemsize
