"""Intel MKL, inspector-executor: the matrix is analysed once for 1000 expected products."""

from __future__ import annotations

from collections.abc import Callable

import scipy.sparse as sp

from sparsegen import mkl_library
from sparsegen.problem import Problem

ABOUT = "Intel MKL inspector-executor: mkl_sparse_?_mv and _mm after mkl_sparse_optimize"


def available(problem: Problem) -> str | None:
    return mkl_library.available(problem)


def prepare(A: sp.csr_array, problem: Problem) -> Callable:
    return mkl_library.prepare(A, problem, optimize=True)
