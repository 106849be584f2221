"""scipy.sparse: one thread, every dtype. The one baseline that is always there."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.sparse as sp

from sparsegen.problem import Problem

try:
    from scipy.sparse._sparsetools import csr_matvec  # what A @ x calls after allocating y
except ImportError:  # it is not part of scipy's promises
    csr_matvec = None

ABOUT = "scipy.sparse csr_array @ x, one thread"


def available(problem: Problem) -> str | None:
    return None


def prepare(A: sp.csr_array, problem: Problem) -> Callable:
    def call(x: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        return A @ x

    return call


def into(A: sp.csr_array) -> Callable | None:
    """run(x, y, alpha, beta), as a plan has it: y = A x in place for plain operands, -1 with y untouched for others.

    Only with alpha = 1 and beta = 0. None where scipy does not offer it.
    """
    if csr_matvec is None or A.dtype == np.float16:  # which scipy does not multiply
        return None
    (m, n), dtype = A.shape, A.dtype
    arrays = m, n, A.indptr, A.indices, A.data

    def run(x, y, alpha: float, beta: float) -> int:
        if type(x) is not np.ndarray or x.dtype != dtype or y.dtype != dtype or x.shape != (n,) or y.shape != (m,):
            return -1
        plain = x.flags.c_contiguous and x.flags.aligned and y.flags.carray
        if alpha != 1 or beta or not plain or np.may_share_memory(x, y):
            return -1
        y.fill(0)
        csr_matvec(*arrays, x, y)
        return 0

    return run
