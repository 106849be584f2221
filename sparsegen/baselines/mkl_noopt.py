"""Intel MKL without analysis: often the faster one on large random and power-law matrices, and free to prepare."""

from __future__ import annotations

from collections.abc import Callable

import scipy.sparse as sp

from sparsegen import mkl_library
from sparsegen.problem import Problem

ABOUT = "Intel MKL: mkl_sparse_?_mv and _mm on a plain CSR handle, no hints, no mkl_sparse_optimize"


def available(problem: Problem) -> str | None:
    return mkl_library.available(problem)


def prepare(A: sp.csr_array, problem: Problem) -> Callable:
    return mkl_library.prepare(A, problem, optimize=False)
