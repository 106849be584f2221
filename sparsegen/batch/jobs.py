"""Which products of which matrices: the jobs of a run, in the order of the collection."""

from __future__ import annotations

import itertools
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sparsegen import matrices, ops, paths
from sparsegen.errors import SparsegenValueError

DTYPES = {"f32": "float32", "f64": "float64"}


@dataclass(frozen=True)
class Product:
    """What is asked of every matrix. dtype: None for that of the file."""

    op: str = "spmv"
    k: int | None = None
    dtype: str | None = None

    def __str__(self) -> str:
        return " ".join(filter(None, (self.op, f"k={self.k}" if self.k else "", self.dtype or "")))


@dataclass(frozen=True)
class Job:
    """One product of one matrix. name: of the matrix, the same on every machine; path: of its file, empty for none."""

    name: str
    path: str
    product: Product

    @property
    def key(self) -> str:
        return f"{self.name} {self.product}"


def products(given: str, dtypes: str | None = None) -> list[Product]:
    """ "spmv,spmm:k=32" for each of "f64,f32", or in the dtype of the file. Raises SparsegenValueError."""
    found = []
    for text, dtype in itertools.product(given.split(","), dtypes.split(",") if dtypes else [None]):
        read = re.fullmatch(r"(\w+)(?::k=(\d{1,6}))?", text.strip())
        if not read or read[1] not in ops.names() or (read[1] == "spmm") != bool(int(read[2] or 0)):
            raise SparsegenValueError(f"op {text.strip()!r}; expected spmv, or spmm:k=32 for so many columns")
        name = dtype and DTYPES.get(dtype.strip(), dtype.strip())
        if name is not None and name not in DTYPES.values():
            raise SparsegenValueError(f"dtype {dtype!r}; expected {' or '.join(DTYPES)}")
        found.append(Product(read[1], int(read[2]) if read[2] else None, name))
    return list(dict.fromkeys(found))


def planned(
    names: Sequence[str], asked: Sequence[Product], collection: str | os.PathLike | None = None,
    shard: str | None = None, limit: int | None = None,
) -> list[Job]:  # fmt: skip
    """The jobs of matrices, as `matrices.listed(collection)` names them: all products of a matrix together.

    limit: the first so many matrices. shard "2/5": every fifth of them from the second on. Raises SparsegenValueError.
    """
    root = Path(collection).expanduser() if collection is not None else None
    found = [(_title(name, root), _file(name)) for name in names]
    counted = Counter(title for title, _ in found)
    if twice := [title for title, count in counted.items() if count > 1]:
        raise SparsegenValueError(f"{twice[0]!r} is more than once in this collection; expected each matrix once")
    first, step = _shard(shard)
    found = found[:limit][first::step]
    return [Job(title, path, product) for title, path in found for product in asked]


def _shard(text: str | None) -> tuple[int, int]:
    if text is None:
        return 0, 1
    read = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    if not read or not 1 <= int(read[1]) <= int(read[2]):
        raise SparsegenValueError(f"shard {text!r}; expected i/n, from 1/n to n/n")
    return int(read[1]) - 1, int(read[2])


def _title(name: str, root: Path | None) -> str:
    """Of a file its place below the collection's folder, below `matrices/`, or beside the list; else its path."""
    places = [] if root is None else [root if root.is_dir() else root.parent]
    for place in (*places, paths.data("matrices")):
        if Path(name).is_relative_to(place):
            return Path(name).relative_to(place).as_posix()
    return name


def _file(name: str) -> str:
    """The absolute path of a matrix that is here, else nothing."""
    if Path(name).is_file():
        return str(Path(name).resolve())
    try:
        kept = matrices.downloaded(name)
    except SparsegenValueError:
        return ""
    return str(kept) if kept.is_file() else ""
