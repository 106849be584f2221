"""Canonical CSR (columns strictly ascending in every row) out of triplets or compressed arrays.

Everything is checked before compiled code sees it, which follows a bad index wherever it points. No argument is
ever modified: what has to be sorted is a private array of positions, so that values of any dtype follow by one
gather.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import scipy.sparse as sp

from sparsegen.errors import SparsegenTypeError, SparsegenValueError

CHUNK = 1 << 18  # entries looked at together: their temporaries stay in cache


def from_triplets(rows, columns, data, shape: tuple[int, int]) -> sp.csr_array:
    """The matrix of entries (rows[i], columns[i], data[i]), any order; duplicates are summed, zeros kept.

    rows, columns: (nnz,) integers. data: (nnz,) bool, integer, real or complex.
    Raises SparsegenValueError (lengths, range, rows too many to point at), SparsegenTypeError (dtypes).
    """
    rows, columns, data = checked_triplets(rows, columns, data, shape)
    _refuse_hypersparse(shape, len(data))
    order = sp.coo_array((_positions(len(data)), (rows, columns)), shape=shape)
    order.has_canonical_format = True  # not so: but positions of duplicates must not be summed
    return gather(order.tocsr(), data)


def from_compressed(indptr, indices, data, shape: tuple[int, int]) -> sp.csr_array:
    """The matrix of hand-made CSR arrays; shares them where they are canonical already.

    indptr: (m + 1,), indices: (>= nnz,), data: (>= nnz,) with nnz = indptr[m]. Index arrays of any integer dtype;
    the result has int32 ones unless a dimension or nnz needs int64.
    Raises SparsegenValueError (naming the first bad row or entry), SparsegenTypeError (dtypes).
    """
    indptr, indices, data = checked_compressed(indptr, indices, data, shape)
    A = sp.csr_array((data, indices, indptr), shape=shape)
    if A.has_canonical_format:
        return A
    return gather(sp.csr_array((_positions(len(data)), indices.copy(), indptr), shape=shape), data)


def from_scipy(A: Any) -> sp.csr_array:
    """A scipy sparse array or matrix of any format; a 1-D one is one row. Errors as `from_compressed`."""
    if A.ndim == 1:
        return _one_row(A)
    if A.ndim != 2:
        raise SparsegenValueError(f"a sparse array of {A.ndim} dimensions (shape {A.shape}); expected two")
    shape = checked_shape(A.shape)
    match A.format:
        case "csr":
            return from_compressed(A.indptr, A.indices, A.data, shape)
        case "csc":
            return from_columns(A.indptr, A.indices, A.data, shape)
        case "bsr":
            return from_blocks(A.indptr, A.indices, A.data, shape)
        case "coo":
            return from_triplets(A.row, A.col, A.data, shape)
        case "lil":
            return _lists(A, shape)
        case "dia":
            A = _rebuilt_dia(A, shape)
    B = _triplets(A)
    return from_triplets(B.row, B.col, B.data, shape)


def _one_row(A: Any) -> sp.csr_array:
    B = A if A.format == "coo" else _triplets(A)
    columns = np.asarray(B.coords[0])
    return from_triplets(np.zeros(len(columns), np.int32), columns, B.data, (1, A.shape[0]))


def from_columns(indptr, indices, data, shape: tuple[int, int]) -> sp.csr_array:
    """The matrix of hand-made CSC arrays: indptr (n + 1,), indices and data (>= nnz,). Errors as `from_compressed`."""
    indptr, indices, data = checked_compressed(indptr, indices, data, shape[::-1], row="column", column="row")
    _refuse_hypersparse(shape, len(data))
    order = sp.csc_array((_positions(len(data)), indices, indptr), shape=shape)
    return gather(order.tocsr(), data)


def from_blocks(indptr, indices, data, shape: tuple[int, int], by_column: bool = False) -> sp.csr_array:
    """The matrix of hand-made BSR arrays, data (blocks, r, c), or BSC `by_column`. Errors as `from_compressed`."""
    data = value_array(data, 3)
    size = data.shape[1:]
    if 0 in size or shape[0] % size[0] or shape[1] % size[1]:
        raise SparsegenValueError(f"blocks of {size[0]} x {size[1]} do not tile a {shape[0]} x {shape[1]} matrix")
    grid = (shape[0] // size[0], shape[1] // size[1])
    names = ("block column", "block row") if by_column else ("block row", "block column")
    indptr, indices, data = checked_compressed(indptr, indices, data, grid[::-1] if by_column else grid, *names, ndim=3)
    major = np.repeat(np.arange(len(indptr) - 1, dtype=np.int64), np.diff(indptr))
    up, across = (indices, major) if by_column else (major, indices)
    r, c = size
    rows = up.astype(np.int64)[:, None, None] * r + np.arange(r)[:, None] + np.zeros(c, np.int64)
    columns = across.astype(np.int64)[:, None, None] * c + np.arange(c) + np.zeros((r, 1), np.int64)
    return from_triplets(rows.ravel(), columns.ravel(), data.ravel(), shape)


def _lists(A: Any, shape: tuple[int, int]) -> sp.csr_array:
    if len(A.rows) != shape[0] or len(A.data) != shape[0]:
        raise SparsegenValueError(f"{len(A.rows)} lists of columns and {len(A.data)} of values for {shape[0]} rows")
    lengths = np.fromiter(map(len, A.rows), np.int64, shape[0])
    unequal = lengths != np.fromiter(map(len, A.data), np.int64, shape[0])
    if unequal.any():
        row = int(unequal.argmax())
        raise SparsegenValueError(f"row {row} has {lengths[row]} columns but {len(A.data[row])} values")
    indptr = np.concatenate(([0], np.cumsum(lengths)))
    try:
        indices = np.array(list(chain.from_iterable(A.rows)))
        data = np.array(list(chain.from_iterable(A.data)), dtype=A.dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise SparsegenTypeError(f"the lists of a LIL matrix hold something other than numbers: {error}") from None
    return from_compressed(indptr, indices, data, shape)


def _rebuilt_dia(A: Any, shape: tuple[int, int]) -> sp.dia_array:
    data = value_array(A.data, 2)
    offsets = np.asarray(A.offsets)
    if offsets.shape != (len(data),) or offsets.dtype.kind not in "iu":
        raise SparsegenValueError(
            f"{len(data)} stored diagonals need as many integer offsets; got {offsets.dtype} of shape {offsets.shape}"
        )
    if len(np.unique(offsets)) != len(offsets):
        raise SparsegenValueError("a diagonal occurs twice in offsets; sum the two first")
    return sp.dia_array((data, offsets.astype(np.int64)), shape=shape)


def _triplets(A: Any) -> sp.coo_array:
    try:
        return A.tocoo()
    except Exception as error:  # scipy's own checks, of as many types as there are ways to damage an array
        raise SparsegenValueError(f"this {A.format} array is damaged: {type(error).__name__}: {error}") from error


def gather(order: sp.csr_array, data: np.ndarray) -> sp.csr_array:
    """The canonical matrix whose entry stored at p in `order` has the value data[order.data[p]]; `order` is used up."""
    if not order.has_sorted_indices:
        order.sort_indices()
    indptr, indices, data = order.indptr, order.indices, data[order.data]
    first = np.ones(len(indices), bool)
    np.not_equal(indices[1:], indices[:-1], out=first[1:])
    first[indptr[:-1][np.diff(indptr) > 0]] = True
    if not first.all():
        starts = np.flatnonzero(first)
        wide = np.float32 if data.dtype == np.float16 else data.dtype
        with np.errstate(over="ignore", invalid="ignore"):
            data = np.add.reduceat(data, starts, dtype=wide).astype(data.dtype, copy=False)
        indices = indices[starts]
        indptr = np.searchsorted(starts, indptr).astype(indptr.dtype)
    A = sp.csr_array((data, indices, indptr), shape=order.shape)
    A.has_canonical_format = True
    return A


def hypersparse(shape: tuple[int, int], nnz: int) -> bool:
    """Whether row pointers would be by far the largest part: then a matrix is kept as triplets or refused."""
    return shape[0] > max(1 << 24, 64 * nnz)


def _refuse_hypersparse(shape: tuple[int, int], nnz: int) -> None:
    if hypersparse(shape, nnz):
        raise SparsegenValueError(
            f"a {shape[0]} x {shape[1]} matrix with {nnz} entries: its row pointers alone would take "
            f"{8 * shape[0] / 2**30:.1f} GiB; drop the empty rows (numpy.unique of the row numbers) first"
        )


def checked_triplets(rows, columns, data, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`rows`, `columns`, `data` as native arrays of one index dtype, or the error that says what is wrong with them."""
    shape = checked_shape(shape)
    rows, columns, data = index_array(rows, "row numbers"), index_array(columns, "column numbers"), value_array(data)
    if not len(rows) == len(columns) == len(data):
        raise SparsegenValueError(
            f"triplets need arrays of one length: {len(rows)} row numbers, {len(columns)} column numbers, "
            f"{len(data)} values"
        )
    for array, size, what in ((rows, shape[0], "row"), (columns, shape[1], "column")):
        bad = first_outside(array, size)
        if bad is not None:
            raise SparsegenValueError(
                f"entry {bad} has {what} {array[bad]}, outside 0..{size - 1} (shape {shape[0]} x {shape[1]})"
            )
    dtype = index_dtype(shape, len(data))
    return rows.astype(dtype, copy=False), columns.astype(dtype, copy=False), data


def checked_compressed(
    indptr, indices, data, shape: tuple[int, int], row: str = "row", column: str = "column", ndim: int = 1
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """CSR arrays, native, of one index dtype and cut to nnz, or the error that says what is wrong with them.

    data has `ndim` dimensions (three for the blocks of BSR). `row` and `column` name the two directions in errors.
    """
    m, n = checked_shape(shape)
    indptr, indices, data = index_array(indptr, "indptr"), index_array(indices, "indices"), value_array(data, ndim)
    if len(indptr) != m + 1:
        raise SparsegenValueError(f"indptr has {len(indptr)} elements; {m} {row}s need {m + 1}")
    if indptr[0] != 0:
        raise SparsegenValueError(f"indptr[0] is {indptr[0]}; it must be 0")
    for start in range(0, m, CHUNK):
        part = indptr[start : min(start + CHUNK, m) + 1]
        down = part[1:] < part[:-1]
        if down.any():
            at = start + int(down.argmax())
            raise SparsegenValueError(
                f"indptr decreases at {row} {at}: indptr[{at}] = {indptr[at]}, indptr[{at + 1}] = {indptr[at + 1]}"
            )
    nnz = int(indptr[-1])
    for array, what in ((indices, "indices"), (data, "data")):
        if len(array) < nnz:
            raise SparsegenValueError(f"indptr ends at {nnz} but {what} has only {len(array)} elements")
    if len(indices) != len(data):
        raise SparsegenValueError(f"indices has {len(indices)} elements and data {len(data)}; they must be equal")
    indices, data = indices[:nnz], data[:nnz]
    bad = first_outside(indices, n)
    if bad is not None:
        at = int(np.searchsorted(indptr, bad, side="right")) - 1
        raise SparsegenValueError(
            f"indices[{bad}] = {indices[bad]} in {row} {at}: outside 0..{n - 1}, the {column}s of a {m} x {n} matrix"
            if n else f"indices[{bad}] = {indices[bad]} in {row} {at} of a matrix that has no {column}s"
        )  # fmt: skip
    dtype = index_dtype((m, n), nnz)
    return indptr.astype(dtype, copy=False), indices.astype(dtype, copy=False), data


def checked_shape(shape) -> tuple[int, int]:
    """(m, n) as Python integers."""
    try:
        m, n = (int(size) for size in shape)
    except (TypeError, ValueError):
        raise SparsegenValueError(f"shape {shape!r}; expected two numbers (rows, columns)") from None
    if min(m, n) < 0 or max(m, n) >= 2**63:
        raise SparsegenValueError(f"shape {m} x {n}; both must be from 0 to 2^63 - 1")
    return m, n


def index_array(array, name: str) -> np.ndarray:
    """A 1-D native integer array; SparsegenTypeError for anything that is not whole numbers."""
    array = np.asarray(array)
    if array.ndim != 1:
        raise SparsegenValueError(f"{name} has {array.ndim} dimensions (shape {array.shape}); expected one")
    if array.dtype.kind not in "iu":
        if array.size:
            raise SparsegenTypeError(f"{name} is of dtype {array.dtype}; expected an integer dtype")
        return np.empty(0, np.int32)
    if array.dtype == np.uint64 and array.size and array.max() >= 2**63:
        raise SparsegenValueError(f"{name} holds {array.max()}, beyond 2^63 - 1")
    return _native(array.astype(np.int64) if array.dtype.kind == "u" else array)


def value_array(array, ndim: int = 1) -> np.ndarray:
    """A native array of bool, integer, real or complex values; SparsegenTypeError for any other dtype."""
    array = np.asarray(array)
    if array.ndim != ndim:
        raise SparsegenValueError(f"data has {array.ndim} dimensions (shape {array.shape}); expected {ndim}")
    if array.dtype.kind not in "biufc":
        raise SparsegenTypeError(f"values of dtype {array.dtype}; expected bool, integer, real or complex numbers")
    if array.dtype.char in "gG" and np.dtype(np.longdouble) != np.float64:
        raise SparsegenTypeError(
            f"values of dtype {array.dtype} (extended precision); convert them with A.astype(numpy.float64) "
            "or complex128 if that loss is acceptable"
        )
    return _native(array)


def first_outside(array: np.ndarray, size: int) -> int | None:
    """The position of the first element outside 0..size - 1."""
    for start in range(0, len(array), CHUNK):
        part = array[start : start + CHUNK]
        if part.min() < 0 or part.max() >= size:
            return start + int(((part < 0) | (part >= size)).argmax())
    return None


def index_dtype(shape: tuple[int, int], nnz: int) -> np.dtype:
    """int32 unless a dimension or nnz needs int64."""
    return np.dtype(np.int32 if max(*shape, nnz) < 2**31 else np.int64)


def _positions(count: int) -> np.ndarray:
    return np.arange(count, dtype=np.int32 if count < 2**31 else np.int64)


def _native(array: np.ndarray) -> np.ndarray:
    """In this machine's byte order, and in a dtype that says so: one that says "<" is equal, but not the same."""
    native = array.dtype.newbyteorder("=")
    return array.view(native) if array.dtype.isnative else array.astype(native)
