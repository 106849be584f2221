"""MATLAB .mat files, version 5 and 7.3: SuiteSparse's `Problem.A`, else the only sparse variable."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import scipy.sparse as sp

from sparsegen.canonical import from_columns, from_scipy, from_triplets
from sparsegen.errors import SparsegenError, SparsegenValueError
from sparsegen.readers.container import LIMIT
from sparsegen.readers.stored import FIELDS, Stored


def read(raw: bytes, where: str) -> Stored:
    """The sparse matrix of a .mat file; SuiteSparse's `Problem.Zeros` adds the stored zeros that MATLAB cannot hold.

    Raises SparsegenValueError where there is no such matrix, or several.
    """
    try:
        found = _version73(raw) if b"\x89HDF" in raw[:1024] else _version5(raw)
    except SparsegenError:
        raise
    except Exception as error:  # scipy and h5py raise as many types as there are ways to damage a file
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
    A = from_scipy(A)
    if sp.issparse(zeros) and zeros.shape == A.shape:
        A = _with_zeros(A, from_scipy(zeros))
    return Stored(A, A.nnz, FIELDS[A.dtype.kind])


def _with_zeros(A: sp.csr_array, zeros: sp.csr_array) -> sp.csr_array:
    A, zeros = A.tocoo(), zeros.tocoo()
    data = np.concatenate((A.data, np.zeros(zeros.nnz, A.dtype)))
    return from_triplets(np.concatenate((A.row, zeros.row)), np.concatenate((A.col, zeros.col)), data, A.shape)


def _version5(raw: bytes) -> dict[str, Any]:
    from scipy.io import loadmat

    found = {name: value for name, value in loadmat(io.BytesIO(raw)).items() if not name.startswith("__")}
    problem = found.get("Problem")
    if isinstance(problem, np.ndarray) and problem.dtype.names and problem.size == 1:
        found["Problem"] = {name: problem[name].flat[0] for name in problem.dtype.names}
    return found


def _version73(raw: bytes) -> dict[str, Any]:
    import h5py

    with h5py.File(io.BytesIO(raw), "r") as file:
        found = {name: _sparse(item) for name, item in file.items() if not name.startswith("#")}
        if isinstance(file.get("Problem"), h5py.Group):
            found["Problem"] = {name: _sparse(item) for name, item in file["Problem"].items()}
        return found


def _sparse(item: Any) -> Any:
    """The sparse matrix that an HDF5 group holds by columns, or None."""
    rows = item.attrs.get("MATLAB_sparse")
    if rows is None:
        return None
    shape = (int(rows), len(item["jc"]) - 1)
    if "data" not in item:
        return sp.csc_array(shape)
    size = sum(item[name].size * item[name].dtype.itemsize for name in ("jc", "ir", "data"))
    if size > LIMIT:
        raise SparsegenValueError(f"a sparse variable would take {size / 2**30:.1f} GiB")
    data = item["data"][()]
    if data.dtype.names == ("real", "imag"):
        data = data["real"] + 1j * data["imag"]
    if item.attrs.get("MATLAB_class") in (b"logical", "logical"):
        data = data.astype(bool)
    return from_columns(item["jc"][()], item["ir"][()], data, shape)
