"""y = alpha A x + beta y: a sparse matrix times a vector."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from sparsegen.ops import componentwise_bound, signed, with_data
from sparsegen.problem import Problem

OPERANDS = {"x": "const VALUE*", "y": "VALUE*"}
OUTPUT = "y"
SIZES: tuple[str, ...] = ()


def shapes(problem: Problem) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of x and y."""
    return (problem.pattern.n,), (problem.pattern.m,)


def make(problem: Problem, rng: np.random.Generator, integer: bool = False) -> np.ndarray:
    """A random x, (n,): signed normals, or integers but 0 from -7 to 7."""
    n = problem.pattern.n
    return (signed(rng, n) if integer else rng.standard_normal(n)).astype(problem.dtype)


def reference(A: sp.csr_array, x: np.ndarray) -> np.ndarray:
    """A @ x in float64, (m,)."""
    return with_data(A, A.data.astype(np.float64, copy=False)) @ x.astype(np.float64, copy=False)


def bound(A: sp.csr_array, x: np.ndarray, exact: np.ndarray, dtype, alpha=1.0, beta=0.0, y0=0.0) -> np.ndarray:
    """What a correct y = alpha A x + beta y0, accumulated in dtype, may differ from `exact` by, (m,)."""
    magnitude = reference(with_data(A, np.abs(A.data)), np.abs(x))
    magnitude *= abs(alpha)
    return componentwise_bound(np.diff(A.indptr), magnitude, exact, dtype, abs(beta) * np.abs(y0))


def flops(problem: Problem) -> int:
    return 2 * problem.pattern.nnz


def operand_bytes(problem: Problem) -> int:
    """What x and y hold."""
    return (problem.pattern.n + problem.pattern.m) * problem.dtype.itemsize


def moved_bytes(problem: Problem) -> int:
    """What any kernel reads of x, once, and writes of y."""
    return (problem.pattern.columns + problem.pattern.m) * problem.dtype.itemsize
