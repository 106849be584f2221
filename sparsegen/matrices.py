"""Matrix files of every kind in use, as canonical CSR; and collections, which are lists of them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

import scipy.sparse as sp

from sparsegen import paths
from sparsegen.errors import SparsegenError, SparsegenValueError
from sparsegen.readers import container, harwell_boeing, matlab, matrix_market, npz, smtx
from sparsegen.readers.stored import Stored

BOEING = re.compile(r"\.(rb|hb|[rcpi][ushzr][ae])", re.IGNORECASE)
KINDS = ".mtx .mat .rb .hb (or .rua, .psa, ...) .npz .smtx, plain, .gz or .bz2, or one of them in a .tar.gz"


@dataclass(frozen=True)
class Info:
    """What a matrix file says of its matrix. nnz counts the entries in the file: one triangle of a symmetric one."""

    rows: int
    cols: int
    nnz: int
    field: str  # real | complex | integer | pattern
    symmetry: str  # general | symmetric | skew-symmetric | hermitian


def load(path: str | os.PathLike) -> sp.csr_array | sp.coo_array:
    """The matrix in the file at `path`: canonical CSR, symmetry expanded, duplicates summed, stored zeros kept.

    Reads Matrix Market (.mtx), Harwell-Boeing and Rutherford-Boeing (.rb, .rua, ...), MATLAB (.mat: `Problem.A` or
    the only sparse variable), scipy's .npz and DLMC's .smtx, plain or compressed (.gz, .bz2), and the .tar.gz of the
    SuiteSparse collection. What a file is, its first bytes say, and its name only where they do not. Values are
    float64, complex128 or int64 in the text formats (1.0 for patterns; integers beyond 64 bits are refused), and as
    stored in the binary ones. A dense (array) file has all its places stored.

    Where a matrix has more than 2^24 rows and more than 64 times as many rows as entries, its row pointers would be
    nearly all of it: it is returned as a canonical coo_array instead.

    Raises SparsegenValueError naming the file, the line where it is known, and what was expected. Warns of what was
    read in spite of a blemish: further numbers on a line, values beyond the range of float64.
    """
    return _stored(path).A


def info(path: str | os.PathLike) -> Info:
    """Size, entries, field and symmetry of the matrix in the file at `path`, which is read and checked as by `load`."""
    stored = _stored(path)
    m, n = stored.A.shape
    return Info(int(m), int(n), stored.nnz, stored.field, stored.symmetry)


def collections() -> list[str]:
    """The names of the collections that are shipped: the files of `matrices/collections`."""
    return sorted(file.stem for file in (paths.data("matrices") / "collections").glob("*.txt"))


def collection(name: str | os.PathLike) -> list[str]:
    """The matrices of a collection: a text file, or the name of one in `matrices/collections`.

    Each line is a file, given as its path when it lies below `matrices/` or beside the collection, or a
    `Group/Name` of the SuiteSparse collection; `#` begins a comment. Raises SparsegenValueError.
    """
    shipped = paths.data("matrices")
    file = Path(name)
    if not file.is_file():
        file = shipped / "collections" / f"{name}.txt"
    if not file.is_file():
        known = ", ".join(collections()) or "none"
        raise SparsegenValueError(f"{str(name)!r} is neither a file nor one of the collections: {known}")
    try:
        lines = file.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SparsegenValueError(f"{file}: not a list of matrices: {error}") from error
    entries = [entry for line in lines if (entry := line.split("#")[0].strip())]
    places = (shipped, file.parent)
    return [next((str(at / entry) for at in places if (at / entry).is_file()), entry) for entry in entries]


def _stored(path: str | os.PathLike) -> Stored:
    if isinstance(path, str) and not path:
        raise SparsegenValueError("the path is empty; expected the name of a matrix file")
    raw, name = container.contents(path)
    reader = _reader(raw, name, str(path))
    try:
        return reader.read(raw, str(path))
    except SparsegenError as error:
        if str(path) in str(error):
            raise
        raise SparsegenValueError(f"{path}: {error}") from error


def _reader(raw: bytes, name: str, where: str):
    """The reader for what `raw` says it is, else for what its name says."""
    if matrix_market.sniff(raw[:4096]):
        return matrix_market
    if raw.startswith(b"PK"):
        return npz
    if raw.startswith((b"MATLAB 5.0", b"MATLAB 7.3", b"\x89HDF")):
        return matlab
    start = raw[:512].lstrip().lower()
    if start.startswith((b"<!doctype", b"<html", b"<?xml", b"<head")):
        raise SparsegenValueError(f"{where}: a web page, not a matrix (a download that failed?); expected {KINDS}")
    suffix = Path(name).suffix.lower()
    if suffix in (".mtx", ".mm"):
        return matrix_market
    if BOEING.fullmatch(suffix):
        return harwell_boeing
    if suffix == ".smtx":
        return smtx
    if suffix == ".mat":
        return matlab
    if suffix == ".npz":
        raise SparsegenValueError(f"{where}: not a zip archive, which .npz files are")
    raise SparsegenValueError(f"{where}: no matrix file that can be recognised; expected {KINDS}")
