"""Anything a user calls a matrix, as canonical CSR. What the caller holds is never modified."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any

import numpy as np
import scipy.sparse as sp

from sparsegen.canonical import (
    checked_shape,
    from_blocks,
    from_columns,
    from_compressed,
    from_scipy,
    from_triplets,
    value_array,
)
from sparsegen.errors import SparsegenError, SparsegenTypeError, SparsegenValueError

DENSE = 0.25  # above this share of nonzeros a dense product is likely faster


def as_csr(A: Any) -> sp.csr_array:
    """`A` as canonical CSR: columns strictly ascending in each row, duplicates summed, stored zeros kept.

    A: a scipy sparse array or matrix of any format (1-D: one row), a cupyx or pydata sparse matrix, a torch sparse or
    dense tensor, a dense array or nested lists (zeros are left out; 1-D: one row), or the path of a matrix file.
    The result may share memory with A where A is canonical. Its values keep their dtype (torch's bfloat16 becomes
    float32, which holds it exactly); its indices are int32 unless a dimension or nnz needs int64.

    Raises SparsegenTypeError for an object or dtype that is no matrix of bools, integers, reals or complex numbers
    (extended precision is refused: rounding it is the caller's choice), and SparsegenValueError for arrays that do
    not describe a matrix, naming the first bad row or entry.
    """
    if isinstance(A, (str, os.PathLike)):
        return _file(A)
    if sp.issparse(A):
        return from_scipy(A)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(A, torch.Tensor):
        return _converted(A, lambda: _torch(torch, A))
    if hasattr(A, "to_coo") and not hasattr(A, "to_scipy_sparse"):  # pydata's DOK
        A = _converted(A, A.to_coo)
    if hasattr(A, "to_scipy_sparse"):
        return from_scipy(_converted(A, A.to_scipy_sparse))
    if hasattr(A, "dtype") and hasattr(A, "shape") and callable(getattr(A, "get", None)):
        host = _converted(A, A.get)  # a matrix on the GPU
        if sp.issparse(host):
            return from_scipy(host)
        if isinstance(host, np.ndarray):
            return _dense(host)
    if isinstance(A, (np.ndarray, list, tuple)) or hasattr(A, "__array__"):
        return _dense(A)
    raise SparsegenTypeError(
        f"an object of type {type(A).__module__}.{type(A).__qualname__} is not a matrix; expected a scipy, cupyx, "
        "pydata or torch sparse matrix, a dense array, or the path of a matrix file"
    )


def _file(path: str | os.PathLike) -> sp.csr_array:
    from sparsegen import matrices  # the readers are half of what importing the package would cost

    A = matrices.load(path)
    return A if A.format == "csr" else from_triplets(A.row, A.col, A.data, A.shape)


def _torch(torch: Any, A: Any) -> sp.csr_array:
    A = A.detach()
    if A.layout == torch.strided:
        return _dense(_numpy(torch, A))
    if A.ndim == 1 and A.layout == torch.sparse_coo:
        columns = A._indices().cpu().numpy()[0]
        return from_triplets(np.zeros(len(columns), np.int32), columns, _numpy(torch, A._values()), (1, A.shape[0]))
    if A.ndim != 2:
        raise SparsegenValueError(f"a torch tensor of {A.ndim} dimensions (shape {tuple(A.shape)}); expected two")
    shape = checked_shape(A.shape)
    if A.layout == torch.sparse_coo:
        values = _numpy(torch, A._values())
        if values.ndim != 1:
            raise SparsegenValueError("a hybrid torch tensor (one sparse and one dense dimension); expected two sparse")
        rows, columns = A._indices().cpu().numpy()
        return from_triplets(rows, columns, values, shape)
    if A.layout in (torch.sparse_csr, torch.sparse_bsr):
        parts = A.crow_indices(), A.col_indices()
    elif A.layout in (torch.sparse_csc, torch.sparse_bsc):
        parts = A.ccol_indices(), A.row_indices()
    else:
        raise SparsegenTypeError(f"a torch tensor of layout {A.layout}; convert it with .to_sparse_csr()")
    indptr, indices = (part.cpu().numpy() for part in parts)
    values = _numpy(torch, A.values())
    if A.layout == torch.sparse_csr:
        return from_compressed(indptr, indices, values, shape)
    if A.layout == torch.sparse_csc:
        return from_columns(indptr, indices, values, shape)
    return from_blocks(indptr, indices, values, shape, by_column=A.layout == torch.sparse_bsc)


def _numpy(torch: Any, tensor: Any) -> np.ndarray:
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.float()
    try:
        return tensor.numpy()
    except TypeError:
        raise SparsegenTypeError(f"a torch tensor of dtype {tensor.dtype}, which numpy does not have") from None


def _dense(A: Any) -> sp.csr_array:
    if isinstance(A, np.ma.MaskedArray):
        raise SparsegenTypeError("a masked array; fill it first (A.filled(0))")
    try:
        dense = np.asarray(A)
    except (TypeError, ValueError) as error:
        raise SparsegenTypeError(f"not a rectangular array of numbers: {error}") from None
    if dense.ndim == 1 and dense.dtype.kind in "biufc":
        dense = dense[None, :]
    if dense.ndim != 2:
        raise SparsegenValueError(f"a dense array of {dense.ndim} dimensions (shape {dense.shape}); expected two")
    dense = value_array(dense, 2)
    mask = dense != 0
    lengths = mask.sum(axis=1, dtype=np.int64)
    nnz = int(lengths.sum())
    if nnz > DENSE * dense.size:
        warnings.warn(
            f"{nnz / dense.size:.0%} of this {dense.shape[0]} x {dense.shape[1]} array is nonzero; a dense product "
            "may be faster",
            stacklevel=3,
        )
    indptr = np.concatenate(([0], np.cumsum(lengths)))
    return from_compressed(indptr, np.nonzero(mask)[1], dense[mask], dense.shape)


def _converted(A: Any, convert: Any) -> Any:
    """`convert()`, with whatever a foreign or damaged object raises turned into one error."""
    try:
        return convert()
    except SparsegenError:
        raise
    except Exception as error:
        raise SparsegenValueError(
            f"{type(A).__module__}.{type(A).__qualname__} cannot be read as a matrix: {type(error).__name__}: {error}"
        ) from error
