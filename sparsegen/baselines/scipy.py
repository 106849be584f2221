"""scipy.sparse: one thread, every dtype. The one baseline that is always there."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.sparse as sp

from sparsegen.problem import Problem

try:
    from scipy.sparse import _sparsetools  # what A @ x calls after allocating y
except ImportError:  # it is not part of scipy's promises
    _sparsetools = None

ABOUT = "scipy.sparse csr_array @ x, one thread"


def available(problem: Problem) -> str | None:
    return None


def prepare(A: sp.csr_array, problem: Problem) -> Callable:
    def call(x: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        return A @ x

    return call


def into(A: sp.csr_array, problem: Problem) -> Callable | None:
    """call(x, y): y = A @ x in place, for whole C-ordered operands of A's dtype. None where scipy does not offer it."""
    (m, n), arrays = A.shape, (A.indptr, A.indices, A.data)
    if _sparsetools is None or A.dtype == np.float16 or (problem.layout_b, problem.layout_c) != ("row", "row"):
        return None

    def vector(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        y.fill(0)
        _sparsetools.csr_matvec(m, n, *arrays, x, y)
        return y

    def columns(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        y.fill(0)
        _sparsetools.csr_matvecs(m, n, problem.k, *arrays, x.ravel(), y.reshape(-1))
        return y

    return vector if problem.op == "spmv" else columns
