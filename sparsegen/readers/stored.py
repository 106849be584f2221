"""A matrix as a file stored it: canonical, symmetry expanded, with what the file said of itself."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from sparsegen.canonical import checked_triplets, from_triplets, hypersparse
from sparsegen.errors import SparsegenValueError

FIELDS = {"b": "integer", "i": "integer", "u": "integer", "f": "real", "c": "complex"}  # by dtype kind


@dataclass(frozen=True, eq=False)
class Stored:
    """A: the canonical matrix, symmetry expanded. nnz: entries in the file, before expanding and summing.

    field: "real", "complex", "integer" or "pattern" (values are then 1.0).
    symmetry: "general", "symmetric", "skew-symmetric" or "hermitian", as the file declares it.
    """

    A: sp.csr_array | sp.coo_array
    nnz: int
    field: str
    symmetry: str = "general"


def from_entries(rows, columns, data, shape: tuple[int, int], field: str, symmetry: str, where: str) -> Stored:
    """The stored matrix of 0-based triplets, of which a symmetric file holds one triangle.

    A is a canonical coo_array where the row pointers would dwarf the entries. Raises SparsegenValueError.
    """
    rows, columns, data = checked_triplets(rows, columns, data, shape)
    nnz = len(data)
    if symmetry != "general":
        rows, columns, data = _expanded(rows, columns, data, shape, symmetry, where)
    if not hypersparse(shape, len(data)):
        return Stored(from_triplets(rows, columns, data, shape), nnz, field, symmetry)
    A = sp.coo_array((data, (rows, columns)), shape=shape)
    A.sum_duplicates()
    return Stored(A, nnz, field, symmetry)


def _expanded(rows, columns, data, shape: tuple[int, int], symmetry: str, where: str):
    if shape[0] != shape[1]:
        raise SparsegenValueError(f"{where}: a {symmetry} matrix must be square; this one is {shape[0]} x {shape[1]}")
    lower, upper = rows > columns, rows < columns
    if lower.any() and upper.any():
        _refuse_mirrored(rows, columns, lower, upper, symmetry, where)
    diagonal, off = data[~(lower | upper)], lower | upper
    if symmetry == "skew-symmetric" and (diagonal != 0).any():
        value = diagonal[diagonal != 0][0]
        raise SparsegenValueError(f"{where}: a skew-symmetric matrix has a zero diagonal; this one stores {value}")
    if symmetry == "hermitian" and diagonal.dtype.kind == "c" and (diagonal.imag != 0).any():
        warnings.warn(f"{where}: declared Hermitian but its diagonal is not real", stacklevel=2)
    mirror = data[off]
    if symmetry == "hermitian":
        mirror = mirror.conj()
    elif symmetry == "skew-symmetric":
        if data.dtype.kind == "u" or (data.dtype.kind == "i" and (mirror == np.iinfo(data.dtype).min).any()):
            raise SparsegenValueError(f"{where}: skew-symmetric values whose negatives do not fit {data.dtype}")
        mirror = -mirror
    return (
        np.concatenate((rows, columns[off])), np.concatenate((columns, rows[off])), np.concatenate((data, mirror)),
    )  # fmt: skip


def _refuse_mirrored(rows, columns, lower, upper, symmetry: str, where: str) -> None:
    """Entries (i, j) and (j, i) both stored: each counted once, or both mirrored? Nobody can know."""
    below = set(zip(rows[lower].tolist(), columns[lower].tolist(), strict=True))
    for column, row in zip(rows[upper].tolist(), columns[upper].tolist(), strict=True):
        if (row, column) in below:
            raise SparsegenValueError(
                f"{where}: declared {symmetry}, yet entries ({row + 1}, {column + 1}) and ({column + 1}, {row + 1}) "
                "are both stored; keep one triangle, or declare it general"
            )
