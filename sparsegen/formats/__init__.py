"""Storage formats, one module each. The folder is the registry: adding `formats/<name>.py` adds the format.

A format arranges a `Pattern`; it never sees values. Its module holds

    ARRAYS   what a kernel receives after its sizes, in order: name -> C element type. OFFSET, INDEX and STORED (the
             stored values) are macros, so that one source serves all widths. "data" comes last.
    SIZES    integer arguments of its own, before ARRAYS; m, n and nnz are always passed
    PARAMS   parameters and their defaults; a kernel file chooses them under [params] or [tune]
    BAKED    names that become literals in the source
    PADS     "none":   every slot of data is an entry of A
             "masked": there are padding slots, and arrays that let a kernel skip them
             "zero":   padding slots are multiplied as zeros, so that 0 * inf must be caught (see the prelude)
    feasible(pattern, **params) -> str | None     one sentence why not, before anything large is built
    stored(pattern, **params) -> int              slots of data, padding included
    pack(pattern, index, offset, **params) -> Packed
    baked(pattern, **params) -> dict[str, str]    optional: the literals of BAKED, and types, without building arrays
    unpack(packed, shape) -> Pattern              what the arrays say, for tests
    cuts(packed, pieces) -> int64 (pieces + 1,)   work items at which to cut for as many threads, balanced by work
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from dataclasses import dataclass, field
from types import ModuleType

import numpy as np

from sparsegen.errors import SparsegenValueError

PIECE = 1 << 18  # slots at a time where numpy would make a wider copy of an array


@dataclass(frozen=True)
class Packed:
    """A pattern in some format: arrays (all of ARRAYS but data), sizes, baked literals and the source map.

    source: position in A.data of each slot of data, -1 for padding; None when the slots are A.data in order.
    """

    arrays: dict[str, np.ndarray]
    nnz: int
    slots: int
    sizes: dict[str, int] = field(default_factory=dict)
    baked: dict[str, str] = field(default_factory=dict)
    source: np.ndarray | None = None

    @property
    def nbytes(self) -> int:
        """Of the arrays a kernel reads, data and the source map apart."""
        return sum(array.nbytes for array in self.arrays.values())


@functools.cache  # a folder is read once
def names() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def get(name: str) -> ModuleType:
    if name not in names():
        raise SparsegenValueError(f"unknown format {name!r}; the formats are {', '.join(names())}")
    return importlib.import_module(f"{__name__}.{name}")


def even_cuts(items: int, pieces: int) -> np.ndarray:
    """Cut points of `items` equal work items."""
    return np.linspace(0, items, pieces + 1).astype(np.int64)


def weighted_cuts(cumulative: np.ndarray, pieces: int) -> np.ndarray:
    """Cut points of work items whose cumulative work is `cumulative` (items + 1,); an item itself costs one unit."""
    cost = cumulative.astype(np.int64) + np.arange(len(cumulative))
    cuts = np.searchsorted(cost, np.linspace(cost[0], cost[-1], pieces + 1)).astype(np.int64)
    cuts[0], cuts[-1] = 0, len(cumulative) - 1
    return cuts


def row_of_entry(pattern, dtype=np.int64) -> np.ndarray:
    """Row number of every stored entry, (nnz,)."""
    return np.repeat(np.arange(pattern.m, dtype=dtype), pattern.lengths)


def gather(data: np.ndarray, packed: Packed, dtype) -> np.ndarray:
    """A's values in the slots of `packed`, zeros in its padding: (slots,) of dtype."""
    if packed.source is None:
        return np.ascontiguousarray(data, dtype=dtype)
    return through(packed.source, data.astype(dtype, copy=False), 0)


def through(source: np.ndarray, values: np.ndarray, fill) -> np.ndarray:
    """values[source] with `fill` where source is -1, in pieces: numpy widens what it indexes with."""
    out = np.full(len(source), fill, values.dtype)
    if len(values):
        for first in range(0, len(source), PIECE):
            part = source[first : first + PIECE]
            taken = out[first : first + PIECE]
            np.take(values, part, mode="clip", out=taken)
            taken[part < 0] = fill
    return out


def sliced(lengths: np.ndarray, SLICE: int, SIGMA: int) -> tuple[np.ndarray | None, np.ndarray]:
    """Rows of these lengths in slices of SLICE lanes, sorted by length inside windows of SIGMA rows (0: all rows).

    Returns the rows in the order of lanes (longest first, then ascending; None for 0 to m) and the first slot of each
    slice, (slices + 1,): a slice has SLICE times its longest row.
    """
    m = len(lengths)
    order = None
    if SIGMA != 1 and m:
        window, longest = SIGMA or m, int(lengths.max())
        windows = -(-m // window)
        # sixteen bits sort by radix; what is past m comes last, as the sort is stable
        shortness = np.full(windows * window, longest, np.uint16 if longest < 1 << 16 else np.int64)
        np.subtract(longest, lengths, out=shortness[:m], casting="unsafe")
        order = np.argsort(shortness.reshape(windows, window), axis=1, kind="stable")
        order += np.arange(0, windows * window, window)[:, None]
        order = order.ravel()[:m]
    count = -(-m // SLICE)
    lanes = np.zeros(count * SLICE, lengths.dtype)
    lanes[:m] = lengths if order is None else lengths[order]
    starts = np.zeros(count + 1, np.int64)
    np.cumsum(lanes.reshape(count, SLICE).max(axis=1, initial=0), out=starts[1:])
    return order, starts * SLICE


def lane_slots(indptr: np.ndarray, SLICE: int, order: np.ndarray | None, starts: np.ndarray):
    """Slots of the entries of rows in such slices, lane after lane of a step: yields (rows, entries, slots) in turn.

    rows and entries are slices; slots is int64, (entries,). About PIECE entries at a time stay in cache.
    """
    m = len(indptr) - 1
    lane = np.arange(m)
    first = starts[lane // SLICE] + lane % SLICE  # of each lane
    if order is not None:
        first[order] = first.copy()
    row = 0
    while row < m:
        stop = max(int(np.searchsorted(indptr, indptr[row] + PIECE, side="right")) - 1, row + 1)
        entries = slice(int(indptr[row]), int(indptr[stop]))
        slots = np.arange(entries.start, entries.stop, dtype=np.int64)
        slots *= SLICE
        slots += np.repeat(first[row:stop] - indptr[row:stop].astype(np.int64) * SLICE, np.diff(indptr[row : stop + 1]))
        yield slice(row, stop), entries, slots
        row = stop


def lane_arrays(lengths: np.ndarray, order: np.ndarray | None, count: int, SLICE: int, index):
    """Row (-1 past the last; no array where order is None) and length of every lane of `count` slices."""
    m = len(lengths)
    lanes = np.zeros(count * SLICE, index)
    lanes[:m] = lengths if order is None else lengths[order]
    rows = np.empty(0, index)
    if order is not None:
        rows = np.full(count * SLICE, -1, index)
        rows[:m] = order
    return rows, lanes


def blocks_refused(pattern, R: int, S: int, least: float) -> str | None:
    """One sentence why the R x S blocks of a pattern are not to be counted: it does not divide, or a look says so."""
    if pattern.m % R or pattern.n % S:
        return f"{R} x {S} blocks do not divide {pattern.m} x {pattern.n}"
    if pattern.nnz == 0:
        return "no entries, so no blocks"
    looks, rows = 16, 4 * R
    if pattern.m > 2 * looks * rows:
        entries = found = 0
        for first in range(0, pattern.m - rows, pattern.m // looks // R * R):
            start, stop = int(pattern.indptr[first]), int(pattern.indptr[first + rows])
            row = np.repeat(np.arange(rows) // R, pattern.lengths[first : first + rows])
            entries += stop - start
            found += len(np.unique(row * (pattern.n // S) + pattern.indices[start:stop] // S))
        if entries > 200 and entries < 0.8 * least * found * R * S:
            return f"{R} x {S} blocks of some rows are {entries / (found * R * S):.0%} full; {least:.0%} is wanted"
    return None


def block_lengths(pattern, R: int, S: int) -> np.ndarray:
    """Blocks in each block row, (m / R,)."""
    return np.diff(_bsr(pattern, np.ones(pattern.nnz, np.int8), R, S).indptr)


def blocks(pattern, R: int, S: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The non-empty R x S blocks of a pattern whose shape they divide, in compressed block rows.

    Returns their indptr (m / R + 1,), block columns (blocks,) and source map (blocks, R * S), rows first.
    """
    place = np.int32 if pattern.nnz < 2**31 - 1 else np.int64
    found = _bsr(pattern, np.arange(1, pattern.nnz + 1, dtype=place), R, S)
    found.sort_indices()
    source = found.data.reshape(-1, R * S)
    source -= 1
    return found.indptr, found.indices, source


def _bsr(pattern, data: np.ndarray, R: int, S: int):
    import scipy.sparse as sp

    return sp.csr_array((data, pattern.indices, pattern.indptr), shape=pattern.shape).tobsr((R, S))
