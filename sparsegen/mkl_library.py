"""Intel MKL's sparse products by ctypes: the PyPI or conda `mkl` package, or a oneAPI installation.

Threading layer, the first that fits:
- GNU where libgomp is in the global scope already (torch puts it there). MKL's INTEL layer would then take
  omp_get_thread_num from libgomp and the rest from libiomp5, and leave rows of y unwritten without any error. A
  process forked from one that ran libgomp's threads would hang, so after a fork one thread is used.
- INTEL (libiomp5, installed with MKL) otherwise: it survives a fork and honours mkl_set_num_threads_local, which TBB
  does not. It is made global at once, so that a torch imported later shares it. Its idle threads spin for 200 ms and
  would take a core from whatever is measured next: 1 ms here, unless KMP_BLOCKTIME says otherwise.
- SEQUENTIAL where neither loads, or where a second copy of the LLVM runtime would abort the process.
MKL_THREADING_LAYER is not read. What someone else initialised differently is refused.

Interface: LP64, that is 32-bit indices; larger matrices are refused.
Calls: https://www.intel.com/content/www/us/en/docs/onemkl/developer-reference-c/current/inspector-executor-sparse-blas-routines.html
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.metadata
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp

from sparsegen.errors import SparsegenError, SparsegenValueError
from sparsegen.problem import Problem

EXPECTED_CALLS = 1000
NON_TRANSPOSE = 10
GENERAL = 20
ROW_MAJOR, COLUMN_MAJOR = 101, 102
INTEL, SEQUENTIAL, GNU = 0, 1, 3
LP64 = 0
INSTALL = "pip install mkl"


class Description(ctypes.Structure):
    """struct matrix_descr: a general matrix, the other two fields unused."""

    _fields_ = [("type", ctypes.c_int), ("mode", ctypes.c_int), ("diag", ctypes.c_int)]


def available(problem: Problem) -> str | None:
    """None when MKL can compute this product, else why not. Loads the library."""
    if problem.target != "cpu":
        return "MKL runs on the CPU only"
    if problem.dtype not in (np.float32, np.float64):
        return f"MKL is called for float32 and float64 only, not {problem.dtype}"
    if min(*problem.pattern.shape, problem.k) < 1:
        return "MKL refuses a matrix with no rows or no columns"
    if max(max(problem.pattern.shape) * problem.k, problem.pattern.nnz) >= 2**31:
        return "MKL is called with 32-bit indices and the matrix needs more"
    try:
        _, layer, _ = load()
    except SparsegenError as error:
        return str(error)
    if problem.threads > 1 and layer == SEQUENTIAL:
        return "MKL is limited to one thread: the OpenMP runtimes of this process do not go together"
    return None


@functools.cache
def load() -> tuple[ctypes.CDLL, int, bool]:
    """The library, its threading layer, and whether others in this process use it too.

    Raises SparsegenError when it is not installed, or someone else initialised it in a way that cannot be used.
    """
    for name in _files():
        shared = _mapped(("libmkl_rt", "mkl_rt"))
        with contextlib.suppress(OSError):
            library = ctypes.CDLL(name)
            break
    else:
        raise SparsegenError(f"MKL is not installed: {INSTALL}")
    wanted = _layer(Path(name).parent)
    layer = library.MKL_Set_Threading_Layer(wanted)
    if layer not in (wanted, SEQUENTIAL):
        raise SparsegenError(f"MKL was initialised with threading layer {layer}, only {wanted} works in this process")
    if library.MKL_Set_Interface_Layer(LP64) & 1:
        raise SparsegenError("MKL was initialised with 64-bit indices (MKL_INTERFACE_LAYER=ILP64): unset it")
    library.MKL_Get_Max_Threads()  # loads what the layer needs now, before anything else changes the global scope
    return library, layer, shared


def _files() -> Iterator[str]:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        for file in importlib.metadata.files("mkl") or ():
            if file.match("libmkl_rt.*") or file.match("mkl_rt.*.dll"):
                yield str(Path(str(file.locate())).resolve())
    for folder, glob in (("lib", "libmkl_rt.*"), ("Library/bin", "mkl_rt.*.dll")):
        yield from sorted(map(str, Path(sys.prefix, folder).glob(glob)), reverse=True)
    yield from ("libmkl_rt.so.3", "libmkl_rt.so.2", "libmkl_rt.so")  # oneAPI: LD_LIBRARY_PATH


def _layer(folder: Path) -> int:
    if sys.platform != "linux":
        return INTEL
    scope = ctypes.CDLL(None)
    if hasattr(scope, "omp_get_thread_num") and not hasattr(scope, "__kmpc_fork_call"):
        return GNU if _runtime("libgomp.so.1") else SEQUENTIAL
    if _mapped(("libomp", "libiomp5"), apart_from=folder):
        return SEQUENTIAL
    runtime = _runtime(str(folder / "libiomp5.so")) or _runtime("libiomp5.so")
    if runtime is None:
        return SEQUENTIAL  # MKL ends the process when it does not find its runtime
    if "KMP_BLOCKTIME" not in os.environ:
        runtime.kmp_set_defaults(b"KMP_BLOCKTIME=1")
    return INTEL


def _runtime(name: str) -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return None


def _mapped(names: tuple[str, ...], apart_from: Path | None = None) -> bool:
    """Whether a library whose file name starts with one of `names` is in this process (Linux; elsewhere False)."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return False
    paths = {Path(line.split(maxsplit=5)[5]) for line in maps.splitlines() if "/" in line}
    return any(path.name.startswith(names) and path.parent != apart_from for path in paths)


class _Fork:
    happened = False  # since this module was imported


_fork = _Fork()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=functools.partial(setattr, _fork, "happened", True))


class _Limit(threading.local):
    threads = 0  # what the calling thread was last limited to


_limit = _Limit()


def prepare(A: sp.csr_array, problem: Problem, optimize: bool) -> Callable:
    """`call(x, out=None) -> y` on an MKL handle of A, analysed when `optimize`. C is computed in the layout of B.

    A call limits its thread to `problem.threads`, and undoes that only where MKL is shared with someone else.
    """
    library, layer, shared = load()
    m, n = A.shape
    k, dtype, threads = problem.k, problem.dtype, problem.threads
    letter, number = ("s", ctypes.c_float) if dtype == np.float32 else ("d", ctypes.c_double)
    by_rows = problem.layout_b == "row"
    single = problem.op == "spmv"
    set_threads = ctypes.PyDLL(library._name).MKL_Set_Num_Threads_Local

    # constants of every call, converted once
    ordering = ctypes.c_int(ROW_MAJOR if by_rows else COLUMN_MAJOR)
    operation, general = ctypes.c_int(NON_TRANSPOSE), Description(GENERAL, 0, 0)
    one, zero, columns = number(1), number(0), ctypes.c_int(k)
    ldb, ldc = (columns, columns) if by_rows else (ctypes.c_int(n), ctypes.c_int(m))
    product = getattr(library, f"mkl_sparse_{letter}_{'mv' if single else 'mm'}")
    shape_x, shape_y = ((n,), (m,)) if single else ((n, k), (m, k))
    order: Literal["C", "F"] = "C" if by_rows else "F"

    def limit() -> int:
        return 1 if layer == GNU and _fork.happened else threads

    def made() -> tuple[ctypes.c_void_p, tuple, int]:
        """A handle, its arrays, and the threads that it was analysed for and will ask for again."""
        handle, arrays = _create(library, letter, A, dtype)
        if optimize:
            before = set_threads(limit())
            if single:
                _check(library.mkl_sparse_set_mv_hint(handle, operation, general, EXPECTED_CALLS))
            else:
                _check(library.mkl_sparse_set_mm_hint(handle, operation, general, ordering, columns, EXPECTED_CALLS))
            _check(library.mkl_sparse_optimize(handle))
            set_threads(before)
        return handle, arrays, limit()

    handle, arrays, analysed = made()

    def call(x: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        nonlocal handle, arrays, analysed
        if x.shape != shape_x:
            raise SparsegenValueError(f"x has shape {x.shape}, expected {shape_x}")
        y = np.empty(shape_y, dtype, order) if out is None else out
        if y.shape != shape_y:
            raise SparsegenValueError(f"out has shape {y.shape}, expected {shape_y}")
        y_memory = _writable(y if by_rows else y.T) if y.dtype == dtype else None
        if y_memory is None:  # another layout, or strided
            y[...] = call(x)
            return y
        x_memory = _writable(x if by_rows else x.T) if x.dtype == dtype else None
        if x_memory is None:
            x = np.asarray(x, dtype, order)
            x_memory = ctypes.c_void_p(x.ctypes.data)
        if shared or _limit.threads != threads or _fork.happened:
            _limit.threads = limit()
            before = set_threads(_limit.threads)
            if _limit.threads < analysed:  # forked: GNU's threads stayed with the parent, and would be waited for
                handle, arrays, analysed = made()
        if single:
            status = product(operation, one, handle, general, x_memory, zero, y_memory)
        else:
            status = product(operation, one, handle, general, ordering, x_memory, columns, ldb, zero, y_memory, ldc)
        if shared:
            set_threads(before)
        _check(status)
        return y

    weakref.finalize(call, _destroy, library, handle, arrays).atexit = False
    return call


def _create(library: ctypes.CDLL, letter: str, A: sp.csr_array, dtype: np.dtype) -> tuple[ctypes.c_void_p, tuple]:
    """A handle on the CSR arrays of A, and the arrays, which must outlive it."""
    indptr, indices = (np.ascontiguousarray(array, np.int32) for array in (A.indptr, A.indices))
    data = np.ascontiguousarray(A.data, dtype)
    if not len(data):  # null pointers are refused
        indices, data = np.zeros(1, np.int32), np.zeros(1, dtype)
    handle, start = ctypes.c_void_p(), indptr.ctypes.data
    pointers = (start, start + indptr.itemsize, indices.ctypes.data, data.ctypes.data)
    create = getattr(library, f"mkl_sparse_{letter}_create_csr")
    _check(create(ctypes.byref(handle), 0, *A.shape, *map(ctypes.c_void_p, pointers)))
    return handle, (indptr, indices, data)


def _destroy(library: ctypes.CDLL, handle: ctypes.c_void_p, arrays: tuple) -> None:
    library.mkl_sparse_destroy(handle)


def _writable(array: np.ndarray) -> Any:
    """The memory of an array as an argument, None when it is read-only or not C-contiguous.

    A third of the time of `array.ctypes.data`, which is that of a small product.
    """
    try:
        return ctypes.byref(ctypes.c_char.from_buffer(array))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None


def _check(status: int) -> None:
    if status:
        raise SparsegenError(f"MKL failed with status {status} of sparse_status_t")
