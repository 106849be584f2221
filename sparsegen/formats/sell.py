"""SELL-C-sigma: slices of SLICE rows (the paper's C), each padded to its longest row. Work item: a slice.

Kreutzer et al. 2014, A unified sparse matrix data format.
Rows are sorted by length, longest first, inside windows of SIGMA rows (1: not at all; 0: the whole matrix). Lane l of
slice s is row rows[s * SLICE + l] (with SIGMA = 1, row s * SLICE + l, and rows is empty). Slot j of that row is at
slices[s] + j * SLICE + l. lengths[s * SLICE + l] says how many of its slots are entries; lanes past row m have none.

BITS = 16 stores a column as its distance from bases[s], the smallest column of the slice; with BITS = 32 bases is
empty and LOCAL is INDEX. A padding slot holds the smallest column of its slice, or column 0 in an empty one.
"""

from __future__ import annotations

import numpy as np

from sparsegen.formats import Packed, lane_arrays, lane_slots, sliced, weighted_cuts
from sparsegen.problem import Pattern

ARRAYS = {
    "slices": "OFFSET", "bases": "INDEX", "rows": "INDEX", "lengths": "INDEX", "indices": "LOCAL", "data": "STORED",
}  # fmt: skip
SIZES = ("slice_count",)
PARAMS = {"SLICE": 8, "SIGMA": 1, "BITS": 32}
BAKED: tuple[str, ...] = ()
PADS = "masked"
MOST_PADDING = 3.0


def feasible(pattern: Pattern, SLICE: int = 8, SIGMA: int = 1, BITS: int = 32) -> str | None:
    if BITS not in (16, 32):
        return f"BITS is {BITS}; column indices are stored in 16 or 32 bits"
    order, starts = sliced(pattern.lengths, SLICE, SIGMA)
    slots = int(starts[-1])
    if slots > MOST_PADDING * max(pattern.nnz, 1):
        return f"{slots} slots for {pattern.nnz} entries with SIGMA = {SIGMA}"
    if BITS == 16 and pattern.n > 1 << 16:
        low, high = _column_range(pattern, SLICE, order)
        span = int((high - low).max(initial=0))
        if span >= 1 << 16:
            return f"a slice spans {span + 1} columns; 16-bit indices reach {1 << 16}"
    return None


def stored(pattern: Pattern, SLICE: int = 8, SIGMA: int = 1, BITS: int = 32) -> int:
    return int(sliced(pattern.lengths, SLICE, SIGMA)[1][-1])


def pack(pattern: Pattern, index, offset, SLICE: int = 8, SIGMA: int = 1, BITS: int = 32) -> Packed:
    order, starts = sliced(pattern.lengths, SLICE, SIGMA)
    count, slots = len(starts) - 1, int(starts[-1])
    place = np.int32 if slots < 2**31 else np.int64
    low, _ = _column_range(pattern, SLICE, order)
    base = np.zeros(pattern.m, pattern.indices.dtype)
    if BITS == 16:
        base[slice(None) if order is None else order] = np.repeat(low, SLICE)[: pattern.m]
        bases, indices = low.astype(index), np.zeros(slots, np.uint16)
    else:
        bases, indices = np.empty(0, index), np.repeat(low.astype(index), np.diff(starts))
    source = np.full(slots, -1, place)
    for some, entries, slot in lane_slots(pattern.indptr, SLICE, order, starts):
        source[slot] = np.arange(entries.start, entries.stop, dtype=place)
        columns = pattern.indices[entries]
        indices[slot] = columns if BITS == 32 else columns - np.repeat(base[some], pattern.lengths[some])
    rows, lengths = lane_arrays(pattern.lengths, order, count, SLICE, index)
    arrays = {"slices": starts.astype(offset), "bases": bases, "rows": rows, "lengths": lengths, "indices": indices}
    return Packed(
        arrays, pattern.nnz, slots, {"slice_count": count}, baked(pattern, SLICE, SIGMA, BITS), source
    )


def baked(pattern: Pattern, SLICE: int = 8, SIGMA: int = 1, BITS: int = 32) -> dict[str, str]:
    return {"LOCAL": "uint16_t" if BITS == 16 else "INDEX"}


def unpack(packed: Packed, shape: tuple[int, int]) -> Pattern:
    slices = packed.arrays["slices"].astype(np.int64)
    lanes = packed.arrays["lengths"].astype(np.int64)
    SLICE = len(lanes) // max(packed.sizes["slice_count"], 1)
    indices, rows, columns = packed.arrays["indices"].astype(np.int64), [], []
    for position in np.flatnonzero(lanes):
        s = position // SLICE
        slots = slices[s] + position % SLICE + SLICE * np.arange(lanes[position])
        row = packed.arrays["rows"][position] if len(packed.arrays["rows"]) else position
        rows.append(np.full(lanes[position], row))
        columns.append(indices[slots] + (packed.arrays["bases"][s] if len(packed.arrays["bases"]) else 0))
    all_rows = np.concatenate(rows) if rows else np.empty(0, np.int64)
    sort = np.argsort(all_rows, kind="stable")
    indptr = np.concatenate([[0], np.cumsum(np.bincount(all_rows, minlength=shape[0]))])
    return Pattern(shape, indptr, np.concatenate(columns)[sort] if columns else all_rows)


def cuts(packed: Packed, pieces: int) -> np.ndarray:
    return weighted_cuts(packed.arrays["slices"], pieces)


def _by_slice(values: np.ndarray, SLICE: int, order: np.ndarray | None, fill: int) -> np.ndarray:
    count = -(-len(values) // SLICE)
    lanes = np.full(count * SLICE, fill, np.int64)
    lanes[: len(values)] = values if order is None else values[order]
    return lanes.reshape(count, SLICE)


def _column_range(pattern: Pattern, SLICE: int, order: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Smallest and largest column of each slice; 0 and 0 in an empty one. Columns of a row are sorted."""
    some = pattern.lengths > 0
    first, last = np.full(pattern.m, pattern.n, np.int64), np.full(pattern.m, -1, np.int64)
    first[some] = pattern.indices[pattern.indptr[:-1][some]]
    last[some] = pattern.indices[pattern.indptr[1:][some] - 1]
    low = _by_slice(first, SLICE, order, pattern.n).min(axis=1, initial=pattern.n)
    high = _by_slice(last, SLICE, order, -1).max(axis=1, initial=-1)
    empty = high < 0
    low[empty] = high[empty] = 0
    return low, high
