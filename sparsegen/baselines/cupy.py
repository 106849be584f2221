"""CuPy: cupyx csr_matrix @ x, that is cuSPARSE with its default algorithm and a buffer allocated per call.

Used only when the user has imported cupy: it is cuSPARSE, which cusparse.py calls without the costs of a call. x is an
array on the device, and then y is one; a numpy x is copied there and y back.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable

import numpy as np
import scipy.sparse as sp

from sparsegen.problem import Problem

ABOUT = "CuPy csr_matrix @ x: cuSPARSE, default algorithm"


def available(problem: Problem) -> str | None:
    if problem.target != "cuda":
        return "CuPy runs on CUDA GPUs only"
    if problem.dtype not in (np.float32, np.float64):
        return f"CuPy is called for float32 and float64 only, not {problem.dtype}"
    if min(*problem.pattern.shape, problem.k) < 1:
        return "CuPy is not called for a matrix with no rows or no columns"
    if importlib.util.find_spec("cupy") is None:
        return "CuPy is not installed: pip install cupy-cuda13x, or cupy-cuda12x with an older driver"
    if "cupy" not in sys.modules:
        return "cupy is not imported: import cupy before compiling to compare with it"
    if not sys.modules["cupy"].cuda.is_available():
        return "CuPy finds no CUDA GPU, or no driver new enough for it"
    return None


def prepare(A: sp.csr_array, problem: Problem) -> Callable:
    import cupy
    import cupyx.scipy.sparse

    matrix = cupyx.scipy.sparse.csr_matrix(sp.csr_matrix(A))
    order = "C" if problem.layout_b == "row" else "F"

    def call(x, out=None):
        if type(x) is np.ndarray and (out is None or type(out) is np.ndarray):  # host in, host out
            return call(cupy.asarray(x)).get()
        return matrix @ cupy.asarray(x, problem.dtype, order)

    return call
