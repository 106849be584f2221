"""Matrix files of every kind in use, as canonical CSR; and collections: lists, folders and queries of them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

import scipy.sparse as sp

from sparsegen import index, paths
from sparsegen.errors import SparsegenError, SparsegenValueError
from sparsegen.readers import binsparse, container, harwell_boeing, matlab, matrix_market, npz, smtx
from sparsegen.readers.stored import Stored

BOEING = re.compile(r"\.(rb|hb|[rcpi][ushzr][ae])", re.IGNORECASE)
KINDS = ".mtx .mat .rb .hb (or .rua, .psa, ...) .npz .smtx .h5, plain, .gz or .bz2, or one of them in a .tar.gz"
FILES = re.compile(  # what in a folder is a matrix file, by its name
    r"[^.].*\.((mtx|mm|mat|rb|hb|[rcpi][ushzr][ae]|npz|smtx|h5)(\.gz|\.bz2)?|tar\.gz|tgz)", re.IGNORECASE
)


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
    the only sparse variable), scipy's .npz, DLMC's .smtx and binsparse in HDF5 (.h5), plain or compressed (.gz, .bz2),
    and the .tar.gz of the SuiteSparse collection. What a file is, its first bytes say, and its name only where they do
    not. Values are float64, complex128 or int64 in the text formats (1.0 for patterns; integers beyond 64 bits are
    refused), and as stored in the binary ones. A dense (array) file has all its places stored.

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


def about(name: str) -> str:
    """What a shipped collection is: the first line of its file."""
    with open(paths.data("matrices") / "collections" / f"{name}.txt", encoding="utf-8") as file:
        return file.readline().lstrip("# ").strip()


def collection(chosen: str | os.PathLike | index.Query) -> list[str]:
    """The matrices of a collection, each as the path of its file or, where there is none here, as `Group/Name`.

    chosen: the name of a list in `matrices/collections`; a text file; a folder, for the matrix files in it and below,
    in the order of their names; or an `index.Query` of the SuiteSparse collection.

    Each line of a list is a file, given as its path when it lies below `matrices/` or beside the list, or a
    `Group/Name` of the SuiteSparse collection; `#` begins a comment. Raises SparsegenValueError.
    """
    return [_here(name) for name in listed(chosen)]


def listed(chosen: str | os.PathLike | index.Query) -> list[str]:
    """As `collection`, but `Group/Name` also where the matrix has been downloaded."""
    if isinstance(chosen, index.Query):
        return [entry.key for entry in index.search(chosen)]
    shipped = paths.data("matrices")
    file = Path(chosen).expanduser()
    if file.is_dir():
        found = sorted(str(each) for each in file.rglob("*") if FILES.fullmatch(each.name) and each.is_file())
        if not found:
            raise SparsegenValueError(f"{file}: no matrix file in this folder; expected {KINDS}")
        return found
    if not file.is_file():
        file = shipped / "collections" / f"{chosen}.txt"
    if not file.is_file():
        known = ", ".join(collections()) or "none"
        raise SparsegenValueError(f"{str(chosen)!r} is neither a file, a folder nor one of the collections: {known}")
    try:
        lines = file.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SparsegenValueError(f"{file}: not a list of matrices: {error}") from error
    names = [name for line in lines if (name := line.split("#")[0].strip())]
    places = (shipped, file.parent)
    return [next((str(at / name) for at in places if (at / name).is_file()), name) for name in names]


def downloaded(name: str) -> Path:
    """Where the matrix `Group/Name` is once it was downloaded: below `SPARSEGEN_HOME/matrices`.

    The archive of SuiteSparse, which `load` reads as it is; DLMC's matrices are the files of its one archive.
    Raises SparsegenValueError for what is no such name.
    """
    parts = name.split("/")
    deep = parts[0] == "DLMC" and 2 < len(parts) < 8
    if not (len(parts) == 2 or deep) or not all(re.fullmatch(r"\w[\w.+-]*", part, re.ASCII) for part in parts):
        raise SparsegenValueError(f"{name!r} is neither a matrix file nor a Group/Name, such as HB/west0479")
    return paths.home() / "matrices" / (f"{name}.smtx" if deep else f"{name}.tar.gz")


def _here(name: str) -> str:
    """The file of a matrix that was downloaded, else the name."""
    try:
        file = downloaded(name)
    except SparsegenValueError:
        return name
    return str(file) if file.is_file() else name


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
    if binsparse.sniff(raw):
        return binsparse
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
