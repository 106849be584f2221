"""cuSPARSE itself: every algorithm for CSR, COO, SELL and BSR with its preprocessing and one buffer, the quickest kept.

x is an array on the device, and then y is one; a numpy x is copied there and y back. Calls and numbers as documented:
https://docs.nvidia.com/cuda/cusparse/#cusparse-generic-apis
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from ctypes import c_int64 as L
from ctypes import c_void_p as P
from typing import Any

import numpy as np
import scipy.sparse as sp

from sparsegen import device_arrays, events, gpu, ops
from sparsegen.errors import SparsegenError, SparsegenValueError
from sparsegen.problem import Problem

ABOUT = "cuSPARSE SpMV/SpMM with preprocessing, the best of its algorithms"

REAL = {"float32": 0, "float64": 1}  # cudaDataType
INDEX = {4: 2, 8: 3}  # cusparseIndexType_t by bytes
ORDER = {"C": 2, "F": 1}
SPMV = {"csr default": 0, "csr alg1": 2, "csr alg2": 3, "coo alg1": 1, "coo alg2": 4, "sell alg1": 5, "bsr alg1": 6}
SPMM = {"csr default": 0, "csr alg1": 4, "csr alg2": 6, "csr alg3": 12}
SLICE = 32  # rows of a slice of SELL
MOST_PADDING = 3.0  # stored over used entries, beyond which SELL is not tried
LEAST_FILL = 0.6  # of the blocks of BSR
BLOCKS = (4, 3, 2)


def available(problem: Problem) -> str | None:
    if problem.target != "cuda":
        return "cuSPARSE runs on CUDA GPUs only"
    if problem.dtype.name not in REAL:
        return f"cuSPARSE is called for float32 and float64 only, not {problem.dtype}"
    if min(*problem.pattern.shape, problem.k) < 1:
        return "cuSPARSE is not called for a matrix with no rows or no columns"
    try:
        gpu.get(problem.ordinal)
    except SparsegenError as error:
        return str(error)
    if isinstance(found := library(), str):
        return f"cuSPARSE is not found ({found}): pip install nvidia-cusparse, or nvidia-cusparse-cu12"
    return None


def prepare(A: sp.csr_array, problem: Problem) -> Callable:
    """The quickest algorithm's call; its `chosen` says which. Raises SparsegenError when cuSPARSE accepts none."""
    device = gpu.get(problem.ordinal)
    device.enter()
    clock = events.Clock(device)
    shape = ops.get(problem.op).shapes(problem)[0]
    x = device_arrays.DeviceArray(device, shape, problem.dtype, problem.order_b)
    x.stream = None
    x.set(np.ones(shape, problem.dtype))
    best, least, refusals = None, float("inf"), []
    for name, make in arms(A, problem).items():
        try:
            call = make()
            elapsed = clock.rough(functools.partial(call, x, call.y))
        except gpu.GPUError as error:
            if error.ends:
                raise
            refusals.append(f"{name}: {error}")
            continue
        except SparsegenError as error:  # not for this layout, or not on this device
            refusals.append(f"{name}: {error}")
            continue
        if elapsed < least:
            best, least = call, elapsed
    if best is None:
        raise SparsegenError(f"cuSPARSE accepts none of its algorithms here: {'; '.join(refusals)}")
    return best


def arms(A: sp.csr_array, problem: Problem) -> dict[str, Callable[[], Call]]:
    """Algorithm -> what makes its call; those of formats that the matrix is not for are left out."""
    known, block = SPMV if problem.op == "spmv" else SPMM, _block(A)
    names = list(known)
    if problem.op == "spmv" and block is None:
        names.remove("bsr alg1")
    if problem.op == "spmv" and _padding(A) > MOST_PADDING:
        names.remove("sell alg1")
    return {name: functools.partial(Call, A, problem, name, known[name], block) for name in names}


@functools.cache
def library() -> Any:
    """libcusparse, or why it cannot be loaded."""
    reason = "no such library"
    try:
        from cuda import pathfinder

        if path := pathfinder.load_nvidia_dynamic_lib("cusparse").abs_path:
            return _ready(ctypes.CDLL(path))
    except Exception as error:  # no package, or its own kinds
        reason = str(error).splitlines()[0][:100] if str(error) else reason
    for name in ("libcusparse.so.12", "libcusparse.so.13", "libcusparse.so"):
        try:
            return _ready(ctypes.CDLL(name))
        except OSError:
            continue
    return reason


def _ready(found: ctypes.CDLL) -> ctypes.CDLL:
    found.cusparseGetErrorString.restype = ctypes.c_char_p
    return found


def _check(status: int) -> None:
    if status:
        words = library().cusparseGetErrorString(status) or b""
        raise SparsegenError(f"cuSPARSE answers {status} ({words.decode()})")


class Call:
    """call(x, out=None) -> y of one algorithm; `chosen` is its name, `y` an output of its own."""

    def __init__(self, A: sp.csr_array, problem: Problem, name: str, algorithm: int, block: int | None):
        self.lib, self.problem, self.chosen = library(), problem, name
        self.device = gpu.get(problem.ordinal)
        self.device.enter()
        self._destroy: list[tuple[str, P]] = []
        self._kept: list[gpu.Buffer] = []
        self.real, dtype = REAL[problem.dtype.name], problem.dtype
        self.shape_x, self.shape_y = ops.get(problem.op).shapes(problem)
        self.y = device_arrays.DeviceArray(self.device, self.shape_y, dtype, problem.order_c)
        self.x = device_arrays.DeviceArray(self.device, self.shape_x, dtype, problem.order_b)
        self.x.stream = self.y.stream = None
        self.handle = self._made("Create", "Destroy")
        matrix = getattr(self, f"_{name.split()[0]}")(A, block)
        self.one = np.ones(1, dtype)
        self.zero = np.zeros(1, dtype)
        single = problem.op == "spmv"
        self.dense = [self._vector(each) if single else self._matrix(each) for each in (self.x, self.y)]
        self.kind = "SpMV" if single else "SpMM"
        self._point = getattr(self.lib, f"cusparseDn{'Vec' if single else 'Mat'}SetValues")
        plain = [ctypes.c_int(0)] * (1 if single else 2)
        alpha, beta = P(self.one.ctypes.data), P(self.zero.ctypes.data)
        self._arguments = (
            self.handle, *plain, alpha, matrix, self.dense[0], beta, self.dense[1], ctypes.c_int(self.real),
            ctypes.c_int(algorithm),
        )  # fmt: skip
        size = ctypes.c_size_t(0)
        _check(getattr(self.lib, f"cusparse{self.kind}_bufferSize")(*self._arguments, ctypes.byref(size)))
        workspace = gpu.Buffer(self.device, max(int(size.value), 256))
        self._kept.append(workspace)
        self._workspace = P(workspace.address)
        if (preprocess := getattr(self.lib, f"cusparse{self.kind}_preprocess", None)) is not None:
            preprocess(*self._arguments, self._workspace)  # an algorithm without one says so, and needs none
        self._multiply = getattr(self.lib, f"cusparse{self.kind}")

    def __call__(self, x, out=None):
        if isinstance(x, np.ndarray):
            if x.shape != self.shape_x:
                raise SparsegenValueError(f"x has shape {x.shape}, expected {self.shape_x}")
            self.x.set(np.asarray(x, self.problem.dtype, order=self.problem.order_b))
            self._run(self.x.buffer.address, self.y.buffer.address, 0)
            y = self.y.get()
            if isinstance(out, np.ndarray):
                out[...] = y
                return out
            return y
        there = device_arrays.seen(x)
        order = self.problem.order_b if self.problem.op == "spmm" and self.problem.k > 1 else "C"
        if there is None or there.shape != self.shape_x or there.dtype != self.problem.dtype:
            got = type(x).__name__ if there is None else f"{there.shape} of {there.dtype}"
            raise SparsegenValueError(f"x is {got}, expected {self.shape_x} of {self.problem.dtype} on the GPU")
        wanted = device_arrays.packed_strides(there.shape, there.dtype.itemsize, order)
        if any(a != b for a, b, size in zip(there.strides, wanted, there.shape, strict=True) if size > 1):
            raise SparsegenValueError(f"x has strides {there.strides}, expected {wanted}")
        y = out
        if out is None:
            y = device_arrays.like(x, self.shape_y, there.dtype, self.problem.order_c, self.device)
        found = device_arrays.seen(y)
        if found is None:
            raise SparsegenValueError(f"out is a {type(out).__name__}, expected an array on the GPU")
        self._run(there.address, found.address, there.stream)
        return y

    def _run(self, x_at: int, y_at: int, stream: int) -> None:
        _check(self.lib.cusparseSetStream(self.handle, P(stream)))
        _check(self._point(self.dense[0], P(x_at)))
        _check(self._point(self.dense[1], P(y_at)))
        _check(self._multiply(*self._arguments, self._workspace))

    def __del__(self):
        for name, descriptor in reversed(getattr(self, "_destroy", [])):
            getattr(self.lib, f"cusparse{name}")(descriptor)

    def _made(self, create: str, destroy: str, *arguments) -> P:
        descriptor = P()
        _check(getattr(self.lib, f"cusparse{create}")(ctypes.byref(descriptor), *arguments))
        self._destroy.append((destroy, descriptor))
        return descriptor

    def _up(self, array: np.ndarray) -> P:
        self._kept.append(gpu.upload(self.device, array))
        return P(self._kept[-1].address)

    def _vector(self, array: device_arrays.DeviceArray) -> P:
        at = P(array.buffer.address)
        return self._made("CreateDnVec", "DestroyDnVec", L(array.shape[0]), at, ctypes.c_int(self.real))

    def _matrix(self, array: device_arrays.DeviceArray) -> P:
        (rows, columns), order = array.shape, array.order
        leading, at = columns if order == "C" else rows, P(array.buffer.address)
        rest = ctypes.c_int(self.real), ctypes.c_int(ORDER[order])
        return self._made("CreateDnMat", "DestroyDnMat", L(rows), L(columns), L(leading), at, *rest)

    def _csr(self, A: sp.csr_array, block: int | None) -> P:
        index = np.int64 if max(*A.shape, A.nnz) >= 2**31 else np.int32
        arrays = [self._up(np.asarray(each, index)) for each in (A.indptr, A.indices)]
        kind = ctypes.c_int(INDEX[np.dtype(index).itemsize])
        return self._made(
            "CreateCsr", "DestroySpMat", L(A.shape[0]), L(A.shape[1]), L(A.nnz), *arrays, self._up(A.data), kind, kind,
            ctypes.c_int(0), ctypes.c_int(self.real),
        )  # fmt: skip

    def _coo(self, A: sp.csr_array, block: int | None) -> P:
        index = np.int64 if max(*A.shape, A.nnz) >= 2**31 else np.int32
        rows = np.repeat(np.arange(A.shape[0], dtype=index), np.diff(A.indptr))
        return self._made(
            "CreateCoo", "DestroySpMat", L(A.shape[0]), L(A.shape[1]), L(A.nnz), self._up(rows),
            self._up(np.asarray(A.indices, index)), self._up(A.data), ctypes.c_int(INDEX[np.dtype(index).itemsize]),
            ctypes.c_int(0), ctypes.c_int(self.real),
        )  # fmt: skip

    def _sell(self, A: sp.csr_array, block: int | None) -> P:
        offsets, columns, data = sliced(A)
        kind = ctypes.c_int(INDEX[4])
        return self._made(
            "CreateSlicedEll", "DestroySpMat", L(A.shape[0]), L(A.shape[1]), L(A.nnz), L(len(data)), L(SLICE),
            self._up(offsets), self._up(columns), self._up(data), kind, kind, ctypes.c_int(0), ctypes.c_int(self.real),
        )  # fmt: skip

    def _bsr(self, A: sp.csr_array, block: int | None) -> P:
        B = sp.bsr_array(A, blocksize=(block, block))
        arrays = [self._up(np.asarray(each, np.int32)) for each in (B.indptr, B.indices)]
        kind, size = ctypes.c_int(INDEX[4]), L(block or 0)
        return self._made(
            "CreateBsr", "DestroySpMat", L(len(B.indptr) - 1), L(A.shape[1] // (block or 1)), L(len(B.indices)), size,
            size, *arrays, self._up(np.ascontiguousarray(B.data)), kind, kind, ctypes.c_int(0), ctypes.c_int(self.real),
            ctypes.c_int(ORDER["C"]),
        )  # fmt: skip


def sliced(A: sp.csr_array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Offsets of slices of SLICE rows, columns (-1 where padded) and values, each slice stored by columns."""
    m, lengths = A.shape[0], np.diff(A.indptr)
    slices = -(-m // SLICE)
    padded = np.zeros(slices * SLICE, lengths.dtype)
    padded[:m] = lengths
    widths = padded.reshape(slices, SLICE).max(axis=1).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(widths * SLICE)])
    columns = np.full(offsets[-1], -1, np.int32)
    data = np.zeros(offsets[-1], A.data.dtype)
    rows = np.repeat(np.arange(m), lengths)
    turn = np.arange(A.nnz) - np.repeat(A.indptr[:-1], lengths)
    places = offsets[rows // SLICE] + turn * SLICE + rows % SLICE
    columns[places], data[places] = A.indices, A.data
    return offsets.astype(np.int32), columns, data


def _padding(A: sp.csr_array) -> float:
    m, lengths = A.shape[0], np.diff(A.indptr)
    slices = -(-m // SLICE)
    padded = np.zeros(slices * SLICE, lengths.dtype)
    padded[:m] = lengths
    stored = int(padded.reshape(slices, SLICE).max(axis=1, initial=0).astype(np.int64).sum()) * SLICE
    return float("inf") if stored >= 2**31 or not A.nnz else stored / A.nnz


def _block(A: sp.csr_array) -> int | None:
    """The side of the dense blocks A is made of, if it is."""
    if not A.nnz:
        return None
    rows = np.repeat(np.arange(A.shape[0]), np.diff(A.indptr))
    for side in BLOCKS:
        if A.shape[0] % side == 0 and A.shape[1] % side == 0:
            keys = rows // side * (A.shape[1] // side) + A.indices // side
            if A.nnz >= LEAST_FILL * side * side * len(np.unique(keys)):
                return side
    return None
