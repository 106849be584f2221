"""SELL-C-sigma of R x S blocks: a slice is SLICE block rows, padded to its longest. Work item: a slice.

Block rows are sorted by length, longest first, inside windows of SIGMA block rows (1: not at all; 0: all of them). Lane
l of slice s is block row rows[s * SLICE + l], -1 past the last; with SIGMA = 1 it is s * SLICE + l, and rows is empty.
lengths[s * SLICE + l] says how many blocks it has. Its block j has its first column of A in indices[b] with
b = slices[s] + j * SLICE + l, and its entry (r, c) at (b - l) * R * S + (r * S + c) * SLICE + l, so that SLICE blocks
are R * S vectors.

A needs a shape that the blocks divide. Entries that a block lacks are zeros, and so are padding blocks, at column 0.
"""

from __future__ import annotations

import numpy as np

from sparsegen.formats import (
    Packed,
    block_lengths,
    blocks,
    blocks_refused,
    lane_arrays,
    lane_slots,
    sliced,
    weighted_cuts,
)
from sparsegen.problem import Pattern

ARRAYS = {"slices": "OFFSET", "rows": "INDEX", "lengths": "INDEX", "indices": "INDEX", "data": "STORED"}
SIZES = ("slice_count", "block_rows")
PARAMS = {"R": 2, "S": 2, "SLICE": 8, "SIGMA": 1}
BAKED: tuple[str, ...] = ()
PADS = "zero"
LEAST_FILL = 0.6  # of all slots


def feasible(pattern: Pattern, R: int = 2, S: int = 2, SLICE: int = 8, SIGMA: int = 1) -> str | None:
    if reason := blocks_refused(pattern, R, S, LEAST_FILL):
        return reason
    slots = stored(pattern, R, S, SLICE, SIGMA)
    if pattern.nnz < LEAST_FILL * slots:
        return f"{R} x {S} blocks take {slots} slots for {pattern.nnz} entries with SIGMA = {SIGMA}"
    return None


def stored(pattern: Pattern, R: int = 2, S: int = 2, SLICE: int = 8, SIGMA: int = 1) -> int:
    return int(sliced(block_lengths(pattern, R, S), SLICE, SIGMA)[1][-1]) * R * S


def pack(pattern: Pattern, index, offset, R: int = 2, S: int = 2, SLICE: int = 8, SIGMA: int = 1) -> Packed:
    indptr, columns, entries = blocks(pattern, R, S)
    order, starts = sliced(np.diff(indptr), SLICE, SIGMA)
    places, block_rows = int(starts[-1]), pattern.m // R
    source = np.full((places // SLICE, R * S, SLICE), -1, entries.dtype)
    indices = np.zeros(places, index)
    for _, some, slot in lane_slots(indptr, SLICE, order, starts):
        source[slot // SLICE, :, slot % SLICE] = entries[some]
        indices[slot] = columns[some] * S
    rows, lengths = lane_arrays(np.diff(indptr), order, len(starts) - 1, SLICE, index)
    arrays = {"slices": starts.astype(offset), "rows": rows, "lengths": lengths, "indices": indices}
    sizes = {"slice_count": len(starts) - 1, "block_rows": block_rows}
    return Packed(arrays, pattern.nnz, places * R * S, sizes, source=source.ravel())


def unpack(packed: Packed, shape: tuple[int, int]) -> Pattern:
    assert packed.source is not None
    slices, rows = packed.arrays["slices"].astype(np.int64), packed.arrays["rows"]
    R = shape[0] // packed.sizes["block_rows"]
    SLICE = len(packed.arrays["lengths"]) // packed.sizes["slice_count"]
    area = packed.slots // int(slices[-1])
    slot = np.flatnonzero(packed.source >= 0)
    element, lane = slot // SLICE % area, slot % SLICE
    block = slot // (SLICE * area) * SLICE + lane
    block_row = (np.searchsorted(slices, block, side="right") - 1) * SLICE + lane
    row = (rows[block_row] if len(rows) else block_row) * R + element // (area // R)
    column = packed.arrays["indices"].astype(np.int64)[block] + element % (area // R)
    sort = np.lexsort((column, row))
    return Pattern(shape, np.concatenate([[0], np.cumsum(np.bincount(row, minlength=shape[0]))]), column[sort])


def cuts(packed: Packed, pieces: int) -> np.ndarray:
    return weighted_cuts(packed.arrays["slices"], pieces)
