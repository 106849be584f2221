"""Numba: the CSR loop that a Python user writes by hand, rows in parallel when more than one thread is allowed.

Compiled on first use and kept in numba's own cache. A process forked from one that ran it in parallel uses the serial
loop: numba's OpenMP layer ends such a process.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import threading
from collections.abc import Callable
from typing import Literal

import numpy as np
import scipy.sparse as sp

from sparsegen.problem import Problem

ABOUT = "hand-written numba njit CSR loop, prange over rows, no fastmath"

SLOW_START = True  # importing numba and loading compiled loops takes longer than most searches may

_launched: list[int] = []  # the process that first ran in parallel
_one_at_a_time = threading.Lock()  # numba's workqueue layer ends a process that enters it twice


def available(problem: Problem) -> str | None:
    if problem.target != "cpu":
        return "this baseline of numba is for the CPU"
    if problem.dtype not in (np.float32, np.float64):
        return f"numba is called for float32 and float64 only, not {problem.dtype}"
    if importlib.util.find_spec("numba") is None:
        return "numba is not installed: pip install numba"
    return None


def prepare(A: sp.csr_array, problem: Problem) -> Callable:
    import numba

    threads = min(problem.threads, numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]
    shape: tuple[int, ...] = (A.shape[0],) if problem.op == "spmv" else (A.shape[0], problem.k)
    rows = "vector" if problem.op == "spmv" else problem.layout_b
    order: Literal["C", "F"] = "C" if rows != "column" else "F"
    # unsigned, or numba looks for negative indices at every access and takes twice the time
    indptr, indices = (np.ascontiguousarray(a).view(f"u{a.itemsize}") for a in (A.indptr, A.indices))
    arrays = indptr, indices, np.ascontiguousarray(A.data, problem.dtype)
    serial = _compiled(rows, False)
    parallel = _compiled(rows, True) if threads > 1 else None

    def call(x: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        y = np.empty(shape, problem.dtype, order) if out is None else out
        if parallel is None or (_launched and _launched[0] != os.getpid()):
            serial(*arrays, x, y)
            return y
        with _one_at_a_time:
            if not _launched:
                _launched.append(os.getpid())
            before = numba.get_num_threads()
            numba.set_num_threads(threads)
            try:
                parallel(*arrays, x, y)
            finally:
                numba.set_num_threads(before)
        return y

    return call


@functools.cache
def _compiled(rows: str, parallel: bool) -> Callable:
    import numba

    # numba's cache does not tell parallel code from serial: the loops must differ
    over = numba.prange if parallel else range

    def vector(indptr, indices, data, x, y):
        for row in over(len(y)):
            total = data.dtype.type(0)
            for p in range(indptr[row], indptr[row + 1]):
                total += data[p] * x[indices[p]]
            y[row] = total

    def row(indptr, indices, data, B, C):
        for row in over(C.shape[0]):
            C[row] = 0
            for p in range(indptr[row], indptr[row + 1]):
                value, source = data[p], indices[p]
                for j in range(C.shape[1]):
                    C[row, j] += value * B[source, j]

    def column(indptr, indices, data, B, C):
        for row in over(C.shape[0]):
            for j in range(C.shape[1]):
                total = data.dtype.type(0)
                for p in range(indptr[row], indptr[row + 1]):
                    total += data[p] * B[indices[p], j]
                C[row, j] = total

    loop = {"vector": vector, "row": row, "column": column}[rows]
    try:
        return numba.njit(loop, parallel=parallel, cache=True)
    except RuntimeError:  # no folder that numba could cache in
        return numba.njit(loop, parallel=parallel)
