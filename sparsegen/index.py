"""What is known of the matrices of the SuiteSparse collection without having one: names, sizes, kinds.

Two tables: a small one that is shipped (`matrices/index.tsv`, with statistics for synthetic twins), and the whole one
that the collection publishes, kept in SPARSEGEN_HOME from the first contact on, with its date.
"""

from __future__ import annotations

import csv
import datetime
import functools
import logging
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from dataclasses import field as member
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from sparsegen import paths
from sparsegen.errors import SparsegenError, SparsegenValueError

if TYPE_CHECKING:
    from sparsegen.download import Manners

SITE = "https://sparse.tamu.edu"
TABLE = "files/ssstats.csv"  # at the site: number, date, then a line per matrix, without a head
MOST_BYTES = 1 << 26
RANGES = ("rows", "cols", "nnz")
STATISTICS = ("deviation", "skew", "bandwidth", "clustering", "similarity", "shift", "drift")  # of the shipped table

logger = logging.getLogger("sparsegen")


@dataclass(frozen=True)
class Entry:
    """The public facts of one matrix. nnz counts both triangles of a symmetric one.

    field: real, complex, integer or pattern (the whole table calls integers real). family: near-duplicates share one;
    empty where it is not known. statistics: those of `gallery.statistics`, where they are shipped.
    """

    group: str
    name: str
    rows: int
    cols: int
    nnz: int
    field: str
    symmetric: bool
    kind: str
    domain: str = ""
    family: str = ""
    statistics: dict[str, float] = member(default_factory=dict, compare=False, hash=False)

    @property
    def key(self) -> str:
        return f"{self.group}/{self.name}"


@dataclass(frozen=True)
class Query:
    """Which matrices: those that fit everything that is given.

    rows, cols, nnz: (least, most), or a text such as "1e4:1e6", ":1e7" or "400". group, name: as they are, or with
    * and ?, whatever their case. kind: a part of the kind, whatever its case. field: real, complex, integer, pattern.
    Raises SparsegenValueError for a range that is none.
    """

    rows: str | tuple[float, float] | None = None
    cols: str | tuple[float, float] | None = None
    nnz: str | tuple[float, float] | None = None
    kind: str | None = None
    group: str | None = None
    name: str | None = None
    field: str | None = None

    def __post_init__(self) -> None:
        for name in RANGES:
            object.__setattr__(self, name, _range(getattr(self, name), name))
        if self.field not in (None, "real", "complex", "integer", "pattern"):
            raise SparsegenValueError(f"field {self.field!r}; expected real, complex, integer or pattern")

    def __bool__(self) -> bool:
        return self != Query()

    def admits(self, entry: Entry) -> bool:
        for name in RANGES:
            bounds = getattr(self, name)
            if bounds is not None and not bounds[0] <= getattr(entry, name) <= bounds[1]:
                return False
        for wanted, found in ((self.group, entry.group), (self.name, entry.name)):
            if wanted is not None and not fnmatchcase(found.lower(), wanted.lower()):
                return False
        if self.kind is not None and self.kind.lower() not in entry.kind.lower():
            return False
        return self.field is None or self.field == entry.field


def search(query: Query, entries: Iterable[Entry] | None = None) -> list[Entry]:
    """The entries that the query admits, of `entries`, else of `known()`, by group and name."""
    found = known() if entries is None else entries
    return sorted((entry for entry in found if query.admits(entry)), key=lambda entry: (entry.group, entry.name))


def chosen(query: Query, entries: Iterable[Entry], names: Iterable[str] | None, limit: int | None = None) -> list[str]:
    """The names that the query admits, of `names` (files are left out: nothing is known of them) or of all entries;
    with a limit so many, by entries. In the order of `names`, else by entries."""
    admitted = {entry.key: entry for entry in search(query, entries)}
    if names is None:
        names = sorted(admitted, key=lambda key: (admitted[key].nnz, key))
    elif query:
        names = [name for name in names if name in admitted]
    kept = list(names)
    if limit is not None:
        least = sorted(kept, key=lambda key: (admitted[key].nnz if key in admitted else 0, key))[:limit]
        kept = [name for name in kept if name in set(least)]
    return kept


def known() -> list[Entry]:
    """Without any contact: the whole table where it is in SPARSEGEN_HOME, and what is shipped."""
    try:
        whole = _parsed(_kept())
    except SparsegenError:
        whole = []
    own = {entry.key: entry for entry in shipped()}
    return [own.pop(entry.key, entry) for entry in whole] + list(own.values())


def full(update: bool = False, mirror: str | None = None, manners: Manners | None = None) -> list[Entry]:
    """The whole table, from SPARSEGEN_HOME, else from the site, which is asked again with `update`.

    Where the site cannot be reached and the package ssgetpy is installed, from its table. Raises SparsegenError.
    """
    from sparsegen import download  # with urllib and ssl, which reading a file does not need

    kept = _kept()
    if kept.exists() and not update:
        try:
            _parsed(kept)
        except SparsegenError as error:
            logger.warning("%s; it is downloaded again", error)
            update = True
    if update or not kept.exists():
        site = (mirror or SITE).rstrip("/")
        try:
            download.download(
                f"{site}/{TABLE}", kept, check=_parsed, most=MOST_BYTES, again=True,
                manners=manners or download.POLITE,
            )  # fmt: skip
        except SparsegenError as error:
            if kept.exists():
                raise
            entries = list(_of_ssgetpy())
            if not entries:
                raise
            logger.warning("%s; the table of ssgetpy serves", error)
            return entries
    return known()


def date() -> str | None:
    """When the whole table in SPARSEGEN_HOME was downloaded, as 2026-07-30; None where there is none."""
    try:
        return datetime.date.fromtimestamp(_kept().stat().st_mtime).isoformat()
    except OSError:
        return None


@functools.lru_cache(1)
def shipped() -> tuple[Entry, ...]:
    """The entries of `matrices/index.tsv`."""
    lines = (paths.data("matrices") / "index.tsv").read_text("utf-8").splitlines()
    entries = []
    for row in csv.DictReader((line for line in lines if not line.startswith("#")), delimiter="\t"):
        rows, cols, nnz = (int(row[name]) for name in RANGES)
        numbers = {name: float(row[name]) for name in STATISTICS}
        numbers |= {"rows": rows, "cols": cols, "mean": nnz / max(rows, 1)}
        made = Entry(
            row["group"], row["name"], rows, cols, nnz, row["field"], row["symmetric"] == "1", row["kind"],
            row["domain"], row["family"], numbers,
        )  # fmt: skip
        entries.append(made)
    return tuple(entries)


def _kept() -> Path:
    return paths.home() / "ssstats.csv"


def _parsed(file: Path) -> list[Entry]:
    """The entries of the site's table. Raises SparsegenValueError where it is not whole."""
    try:
        lines = file.read_text("utf-8").splitlines()
        count = int(lines[0])
        entries = [_entry(row) for row in csv.reader(lines[2:]) if row]
    except (OSError, UnicodeDecodeError, csv.Error, ValueError, IndexError) as error:
        raise SparsegenValueError(f"{file}: not the table of the SuiteSparse collection: {error}") from error
    if len(entries) != count:
        raise SparsegenValueError(f"{file}: {len(entries)} matrices where its first line says {count}")
    return entries


def _entry(row: list[str]) -> Entry:
    """group, name, rows, cols, nnz, real, binary, 2D/3D, definite, symmetry of pattern and values, kind, entries."""
    group, name, rows, cols, nnz, real, binary, _, _, _, symmetry, kind, *entries = row
    return Entry(
        group, name, int(rows), int(cols), int(entries[0]) if entries else int(nnz),
        "pattern" if int(binary) else "real" if int(real) else "complex", float(symmetry) == 1.0, kind,
    )  # fmt: skip


def _of_ssgetpy() -> Iterator[Entry]:
    """The table of the package ssgetpy, where that is installed; importing it downloads the table it lacks."""
    try:
        import ssgetpy

        found = ssgetpy.search(limit=10**9)
    except Exception as error:  # it creates folders and connects when it is imported: anything can go wrong
        logger.info("ssgetpy has no table: %s", error)
        return
    fields = {"binary": "pattern", "real": "real", "complex": "complex"}
    for each in found:
        yield Entry(
            each.group, each.name, int(each.rows), int(each.cols), int(each.nnz), fields.get(each.dtype, "real"),
            float(each.nsym) == 1.0, each.kind,
        )  # fmt: skip


def _range(given: object, name: str) -> tuple[float, float] | None:
    if given is None:
        return None
    try:
        if isinstance(given, str):
            low, colon, high = (each.strip() for each in given.partition(":"))
            if not low and not high:
                raise ValueError
            least = float(low or 0)
            most = float(high or math.inf) if colon else least
        else:
            least, most = (float(each) for each in given)  # type: ignore[attr-defined]
        if not 0 <= least <= most:
            raise ValueError
    except (TypeError, ValueError):
        raise SparsegenValueError(f"{name} {given!r}; expected a range such as 1e4:1e6, :1e7, 400: or 400") from None
    return least, most
