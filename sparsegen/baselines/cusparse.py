"""cuSPARSE through nvmath: every CSR algorithm with its preprocessing and one buffer, the quickest on the device kept.

x is a device array, and then y is one; a numpy x is copied there and y back. C is stored as B is.
Calls: https://docs.nvidia.com/cuda/cusparse/#cusparse-generic-apis
"""

from __future__ import annotations

import contextlib
import importlib.util
import weakref
from collections.abc import Callable

import numpy as np
import scipy.sparse as sp

from sparsegen.errors import SparsegenError, SparsegenValueError
from sparsegen.problem import Problem

ABOUT = "cuSPARSE SpMV/SpMM with preprocessing, the best of its CSR algorithms"

WARM_UP, REPEATS = 3, 10  # products of each algorithm before and while its time is taken


def available(problem: Problem) -> str | None:
    if problem.target != "cuda":
        return "cuSPARSE runs on CUDA GPUs only"
    if problem.dtype not in (np.float32, np.float64):
        return f"cuSPARSE is called for float32 and float64 only, not {problem.dtype}"
    if min(*problem.pattern.shape, problem.k) < 1:
        return "cuSPARSE is not called for a matrix with no rows or no columns"
    for module, package in (("nvmath", "nvmath-python"), ("cupy", "cupy-cuda13x")):
        if importlib.util.find_spec(module) is None:
            return f"{module} is not installed: pip install {package}"
    import cupy

    if not cupy.cuda.is_available():
        return "no CUDA GPU is found, or no driver new enough for CuPy"
    return None


def prepare(A: sp.csr_array, problem: Problem) -> Callable:
    """The quickest algorithm's `call`. Raises SparsegenError when cuSPARSE accepts none."""
    import cupy
    from nvmath.bindings import cusparse

    wide = max(*A.shape, A.nnz) >= 2**31
    index = np.int64 if wide else np.int32
    arrays = [cupy.asarray(a, t) for a, t in ((A.indptr, index), (A.indices, index), (A.data, problem.dtype))]
    if problem.op == "spmv":
        algorithms = [cusparse.SpMVAlg.DEFAULT, cusparse.SpMVAlg.CSR_ALG1, cusparse.SpMVAlg.CSR_ALG2]
    else:
        kinds = cusparse.SpMMAlg
        algorithms = [kinds.DEFAULT, kinds.CSR_ALG1, kinds.CSR_ALG2, kinds.CSR_ALG3]

    best, least, refusals = None, float("inf"), []
    x = cupy.zeros(A.shape[1] if problem.op == "spmv" else (A.shape[1], problem.k), problem.dtype)
    for algorithm in algorithms:
        try:
            call = _call(arrays, A.shape, problem, algorithm)
            elapsed = _milliseconds(call, x)
        except cusparse.cuSPARSEError as error:  # not for this layout, or not on this device
            refusals.append(f"{algorithm.name}: {error}")
            continue
        if elapsed < least:
            best, least = call, elapsed
    if best is None:
        raise SparsegenError(f"cuSPARSE accepts none of its algorithms here: {'; '.join(refusals)}")
    return best


def _call(arrays: list, shape: tuple[int, int], problem: Problem, algorithm: int) -> Callable:
    import cupy
    from nvmath.bindings import cusparse

    (m, n), k, dtype = shape, problem.k, problem.dtype
    real = 0 if dtype == np.float32 else 1  # CUDA_R_32F, CUDA_R_64F
    by_rows, single = problem.layout_b == "row", problem.op == "spmv"
    order = "C" if by_rows else "F"
    shape_x, shape_y = ((n,), (m,)) if single else ((n, k), (m, k))
    integer = cusparse.IndexType.INDEX_32I if arrays[0].dtype == np.int32 else cusparse.IndexType.INDEX_64I
    plain = cusparse.Operation.NON_TRANSPOSE
    one, zero = np.ones(1, dtype), np.zeros(1, dtype)
    alpha, beta = one.ctypes.data, zero.ctypes.data
    x, y = cupy.zeros(shape_x, dtype, order), cupy.empty(shape_y, dtype, order)

    handle = cusparse.create()
    pointers = [array.data.ptr for array in arrays]
    matrix = cusparse.create_csr(m, n, len(arrays[2]), *pointers, integer, integer, cusparse.IndexBase.ZERO, real)
    if single:
        dense = [cusparse.create_dn_vec(len(a), a.data.ptr, real) for a in (x, y)]
        point, release = cusparse.dn_vec_set_values, cusparse.destroy_dn_vec
        multiply, operations = cusparse.sp_mv, [plain]
        measure, preprocess = cusparse.sp_mv_buffer_size, cusparse.sp_mv_preprocess
    else:
        layout = cusparse.Order.ROW if by_rows else cusparse.Order.COL
        dense = [
            cusparse.create_dn_mat(rows, k, k if by_rows else rows, a.data.ptr, real, layout)
            for rows, a in ((n, x), (m, y))
        ]
        point, release = cusparse.dn_mat_set_values, cusparse.destroy_dn_mat
        multiply, operations = cusparse.sp_mm, [plain, plain]
        measure, preprocess = cusparse.sp_mm_buffer_size, cusparse.sp_mm_preprocess
    arguments = (handle, *operations, alpha, matrix, dense[0], beta, dense[1], real, algorithm)

    def call(x, out=None):
        if type(x) is np.ndarray and (out is None or type(out) is np.ndarray):  # host in, host out
            return call(cupy.asarray(x)).get()
        x = cupy.asarray(x, dtype, order)
        if x.shape != shape_x:
            raise SparsegenValueError(f"x has shape {x.shape}, expected {shape_x}")
        contiguous = out is not None and out.flags[f"{order}_CONTIGUOUS"] and out.dtype == dtype
        y = out if contiguous else cupy.empty(shape_y, dtype, order)
        cusparse.set_stream(handle, cupy.cuda.get_current_stream().ptr)
        point(dense[0], x.data.ptr)
        point(dense[1], y.data.ptr)
        multiply(*arguments, workspace.data.ptr)
        return y

    def destroy(kept: tuple) -> None:
        for descriptor in dense:
            release(descriptor)
        cusparse.destroy_sp_mat(matrix)
        cusparse.destroy(handle)

    kept = (arrays, one, zero)  # what the descriptors point at lives as long as they do
    weakref.finalize(call, destroy, kept).atexit = False
    cusparse.set_stream(handle, cupy.cuda.get_current_stream().ptr)
    workspace = cupy.empty(max(1, measure(*arguments)), np.uint8)
    with contextlib.suppress(RuntimeError):  # an older cuSPARSE without this function
        preprocess(*arguments, workspace.data.ptr)
    return call


def _milliseconds(call: Callable, x) -> float:
    import cupy

    for _ in range(WARM_UP):
        call(x)
    start, stop = cupy.cuda.Event(), cupy.cuda.Event()
    start.record()
    for _ in range(REPEATS):
        call(x)
    stop.record()
    stop.synchronize()
    return cupy.cuda.get_elapsed_time(start, stop)
