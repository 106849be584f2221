"""MATLAB .mat files, version 5 and 7.3: SuiteSparse's `Problem.A`, else the only sparse variable."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import scipy.sparse as sp

from sparsegen.canonical import from_columns, from_scipy, from_triplets
from sparsegen.errors import SparsegenValueError
from sparsegen.readers.stored import FIELDS, Stored


def read(raw: bytes, where: str) -> Stored:
    """The sparse matrix of a .mat file; SuiteSparse's `Problem.Zeros` adds the stored zeros that MATLAB cannot hold.

    Raises SparsegenValueError where there is no such matrix, or several.
    """
    found = _hdf5(raw, where) if raw[:512].startswith(b"MATLAB 7.3") or b"\x89HDF" in raw[:1024] else _version5(raw, where)
    problem = found.pop("Problem", None)
    if isinstance(problem, dict) and sp.issparse(problem.get("A")):
        A, zeros = problem["A"], problem.get("Zeros")
    else:
        sparse = {name: value for name, value in found.items() if sp.issparse(value)}
        if len(sparse) != 1:
            names = ", ".join(sorted(sparse)) or f"none among {', '.join(sorted(found)) or 'no variables'}"
            raise SparsegenValueError(f"{where}: expected Problem.A or one sparse variable; got {names}")
        A, zeros = next(iter(sparse.values())), None
    A = from_scipy(A)
    if sp.issparse(zeros) and zeros.shape == A.shape and zeros.nnz:
        A, zeros = A.tocoo(), from_scipy(zeros).tocoo()
        data = np.concatenate((A.data, np.zeros(zeros.nnz, A.dtype)))
        A = from_triplets(np.concatenate((A.row, zeros.row)), np.concatenate((A.col, zeros.col)), data, A.shape)
    return Stored(A, A.nnz, FIELDS[A.dtype.kind])


def _version5(raw: bytes, where: str) -> dict[str, Any]:
    from scipy.io import loadmat

    try:
        found = loadmat(io.BytesIO(raw), variable_names=None)
    except Exception as error:  # scipy raises as many types as there are ways to damage a file
        raise SparsegenValueError(f"{where}: not a readable MATLAB file: {type(error).__name__}: {error}") from error
    variables = {name: value for name, value in found.items() if not name.startswith("__")}
    problem = variables.get("Problem")
    if isinstance(problem, np.ndarray) and problem.dtype.names and problem.size == 1:
        variables["Problem"] = {name: problem[name].flat[0] for name in problem.dtype.names}
    return variables


def _hdf5(raw: bytes, where: str) -> dict[str, Any]:
    import h5py

    try:
        with h5py.File(io.BytesIO(raw), "r") as file:
            variables = {name: _sparse(file[name], where) for name in file if not name.startswith("#")}
            if isinstance(file.get("Problem"), h5py.Group):
                variables["Problem"] = {name: _sparse(file["Problem"][name], where) for name in ("A", "Zeros") if name in file["Problem"]}
            return variables
    except SparsegenValueError:
        raise
    except Exception as error:  # h5py too
        raise SparsegenValueError(f"{where}: not a readable MATLAB 7.3 file: {type(error).__name__}: {error}") from error


def _sparse(group: Any, where: str) -> Any:
    """The sparse matrix that an HDF5 group holds, or None."""
    rows = group.attrs.get("MATLAB_sparse")
    if rows is None:
        return None
    indptr = group["jc"]
    if "data" not in group:
        return sp.csc_array((int(rows), len(indptr) - 1))
    stored = sum(part.size * part.dtype.itemsize for part in (indptr, group["ir"], group["data"]))
    if stored > 1000 * group.file.id.get_filesize():
        raise SparsegenValueError(f"{where}: a few bytes claim to hold {stored / 2**30:.1f} GiB")
    data = group["data"][()]
    if data.dtype.names == ("real", "imag"):
        data = data["real"] + 1j * data["imag"]
    if group.attrs.get("MATLAB_class") == b"logical":
        data = data.astype(bool)
    return from_columns(indptr[()], group["ir"][()], data, (int(rows), len(indptr) - 1))
