"""MATLAB .mat files, version 5 to 7 and 7.3: SuiteSparse's `Problem.A`, else the only sparse variable.

Version 5 is read here and not by scipy.io, which crashes on damaged files. A variable is a tree of tagged elements;
only sparse ones, and those in a struct named Problem, are looked into.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp

from sparsegen.canonical import from_columns, from_triplets
from sparsegen.errors import SparsegenError, SparsegenValueError
from sparsegen.readers.container import LIMIT
from sparsegen.readers.stored import FIELDS, Stored

MATRIX, COMPRESSED, STRUCT, SPARSE = 14, 15, 2, 5
COMPLEX, LOGICAL = 0x800, 0x200
DTYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}


def read(raw: bytes, where: str) -> Stored:
    """The sparse matrix of a .mat file; SuiteSparse's `Problem.Zeros` adds the stored zeros that MATLAB cannot hold.

    Raises SparsegenValueError where there is no such matrix, or several, or the file is damaged.
    """
    try:
        found = _version73(raw) if b"\x89HDF" in raw[:1024] else dict(_version5(raw))
    except SparsegenError:
        raise
    except Exception as error:  # h5py raises as many types as there are ways to damage a file
        raise SparsegenValueError(f"{where}: not a readable .mat file: {type(error).__name__}: {error}") from error
    problem: Any = found.pop("Problem", None)
    A: Any = None
    zeros: Any = None
    if isinstance(problem, dict):
        A, zeros = problem.get("A"), problem.get("Zeros")
    if not sp.issparse(A):
        sparse = {name: value for name, value in found.items() if sp.issparse(value)}
        if len(sparse) != 1:
            names = ", ".join(sorted(sparse)) or f"none among {', '.join(sorted(found)) or 'no variables'}"
            raise SparsegenValueError(f"{where}: expected Problem.A or one sparse variable; got {names}")
        A, zeros = next(iter(sparse.values())), None
    if sp.issparse(zeros) and zeros.shape == A.shape:
        A, zeros = A.tocoo(), zeros.tocoo()
        data = np.concatenate((A.data, np.zeros(zeros.nnz, A.dtype)))
        A = from_triplets(np.concatenate((A.row, zeros.row)), np.concatenate((A.col, zeros.col)), data, A.shape)
    return Stored(A, A.nnz, FIELDS[A.dtype.kind])


# ---------------------------------------------------------------- version 5


def _version5(raw: bytes) -> Iterator[tuple[str, Any]]:
    """Name and value of each variable; None for what is neither sparse nor the struct Problem."""
    order = {b"IM": "<", b"MI": ">"}.get(raw[126:128])
    if order is None:
        raise ValueError("no header of version 5; save it from MATLAB as -v7")
    for kind, payload in _elements(memoryview(raw)[128:], order):
        if kind == COMPRESSED:
            stream = zlib.decompressobj()
            payload = memoryview(stream.decompress(payload, LIMIT))
            if not stream.eof:
                raise ValueError("a compressed variable is truncated or too large")
            kind, payload = next(_elements(payload, order))
        if kind == MATRIX:
            yield _variable(payload, order)


def _variable(payload: memoryview, order: str, inside: bool = False) -> tuple[str, Any]:
    """Name and value of a matrix element; structs are opened at the top only."""
    parts = _elements(payload, order)
    flags = int(_array(next(parts), order)[0])
    shape = _array(next(parts), order).tolist()
    name = bytes(next(parts)[1]).decode("latin-1")
    if flags & 255 == SPARSE and len(shape) == 2:
        return name, _sparse5(flags, (shape[0], shape[1]), [_array(part, order) for part in parts])
    if flags & 255 == STRUCT and name == "Problem" and np.prod(shape) == 1 and not inside:
        width = int(_array(next(parts), order)[0])
        names = bytes(next(parts)[1])
        if width < 1:
            raise ValueError("a struct with field names of no length")
        fields = [names[i : i + width].rstrip(b"\0").decode("latin-1") for i in range(0, len(names), width)]
        values = [_variable(part, order, True)[1] if len(part) else None for _, part in parts]
        return name, dict(zip(fields, values, strict=True))
    return name, None


def _sparse5(flags: int, shape: tuple[int, int], parts: list[np.ndarray]) -> sp.csr_array:
    indices, indptr, data = parts[:3]
    nnz = int(indptr[-1])
    data = data.astype(bool if flags & LOGICAL else np.float64)
    if flags & COMPLEX:
        data = data[:nnz] + 1j * parts[3][:nnz].astype(np.float64)
    return from_columns(indptr, indices[:nnz], data[:nnz], shape)


def _elements(raw: memoryview, order: str) -> Iterator[tuple[int, memoryview]]:
    """Type and payload of each element, small ones within their tag; ValueError where one goes beyond the end."""
    at = 0
    while at < len(raw):
        if len(raw) - at < 8:
            raise ValueError("it ends inside a tag")
        kind, size = np.frombuffer(raw[at : at + 8], order + "u4").tolist()
        start = at + 8
        if kind >> 16:
            kind, size, start = kind & 0xFFFF, kind >> 16, at + 4
        if size > len(raw) - start or (start == at + 4 and size > 4):
            raise ValueError(f"an element claims {size} bytes where {len(raw) - start} are left")
        yield kind, raw[start : start + size]
        at = max(start + size, at + 8)
        if kind != COMPRESSED:
            at += -at % 8


def _array(element: tuple[int, memoryview], order: str) -> np.ndarray:
    kind, payload = element
    if kind not in DTYPES:
        raise ValueError(f"an element of type {kind} where numbers are expected")
    dtype = np.dtype(order + DTYPES[kind])
    return np.frombuffer(payload, dtype, len(payload) // dtype.itemsize)


# ---------------------------------------------------------------- version 7.3


def _version73(raw: bytes) -> dict[str, Any]:
    import h5py

    with h5py.File(io.BytesIO(raw), "r") as file:
        found = {name: _sparse73(item) for name, item in file.items() if not name.startswith("#")}
        if isinstance(file.get("Problem"), h5py.Group):
            found["Problem"] = {name: _sparse73(item) for name, item in file["Problem"].items()}
        return found


def _sparse73(item: Any) -> Any:
    """The sparse matrix that an HDF5 group holds by columns, or None."""
    rows = item.attrs.get("MATLAB_sparse")
    if rows is None:
        return None
    shape = (int(rows), len(item["jc"]) - 1)
    if "data" not in item:
        return from_triplets([], [], np.empty(0), shape)
    size = sum(item[name].size * item[name].dtype.itemsize for name in ("jc", "ir", "data"))
    if size > LIMIT:
        raise SparsegenValueError(f"a sparse variable would take {size / 2**30:.1f} GiB")
    data = item["data"][()]
    if data.dtype.names == ("real", "imag"):
        data = data["real"] + 1j * data["imag"]
    if item.attrs.get("MATLAB_class") in (b"logical", "logical"):
        data = data.astype(bool)
    return from_columns(item["jc"][()], item["ir"][()], data, shape)
