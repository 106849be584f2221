"""Blocks of R x S entries in compressed block rows, each block by rows. Work item: a block row.

A needs a shape that the blocks divide. Entries that a block lacks are stored as zeros.
"""

from __future__ import annotations

import numpy as np

from sparsegen.formats import Packed, row_of_entry, weighted_cuts
from sparsegen.problem import Pattern

ARRAYS = {"indptr": "OFFSET", "indices": "INDEX", "data": "STORED"}
SIZES = ("block_rows",)
PARAMS = {"R": 2, "S": 2}
BAKED: tuple[str, ...] = ()
PADS = "zero"
LEAST_FILL = 0.5  # of a block: below, the zeros cost more than the indices they save


def feasible(pattern: Pattern, R: int = 2, S: int = 2) -> str | None:
    if pattern.m % R or pattern.n % S:
        return f"{R} x {S} blocks do not divide {pattern.m} x {pattern.n}"
    if pattern.nnz == 0:
        return "no entries, so no blocks"
    if pattern.nnz > 1 << 16:  # a look at a tenth refuses most matrices before all of it is read
        rows = pattern.m // 10 // R * R
        middle = slice(4 * rows, 5 * rows)
        part = Pattern(
            (rows, pattern.n),
            pattern.indptr[middle.start : middle.stop + 1] - pattern.indptr[middle.start],
            pattern.indices[pattern.indptr[middle.start] : pattern.indptr[middle.stop]],
        )
        if part.nnz > 1000 and part.nnz < 0.5 * LEAST_FILL * stored(part, R, S):
            return f"{R} x {S} blocks of the middle rows are under {LEAST_FILL:.0%} full"
    slots = stored(pattern, R, S)
    if pattern.nnz < LEAST_FILL * slots:
        return f"{R} x {S} blocks are {pattern.nnz / slots:.0%} full; at least {LEAST_FILL:.0%} is wanted"
    return None


def stored(pattern: Pattern, R: int = 2, S: int = 2) -> int:
    return len(_blocks(pattern, R, S)[0]) * R * S


def pack(pattern: Pattern, index, offset, R: int = 2, S: int = 2) -> Packed:
    blocks, slot = _blocks(pattern, R, S)
    width = max(pattern.n // S, 1)
    slots = len(blocks) * R * S
    place = np.int32 if slots < 2**31 else np.int64
    row = row_of_entry(pattern, place)
    slot = slot.astype(place) * place(R * S) + row % R * place(S) + (pattern.indices % S).astype(place)
    source = np.full(slots, -1, place)
    source[slot] = np.arange(pattern.nnz, dtype=place)
    counts = np.bincount(blocks // width, minlength=pattern.m // R)
    arrays = {
        "indptr": np.concatenate([[0], np.cumsum(counts)]).astype(offset),
        "indices": (blocks % width).astype(index),
    }
    return Packed(arrays, pattern.nnz, slots, {"block_rows": pattern.m // R}, source=source)


def unpack(packed: Packed, shape: tuple[int, int]) -> Pattern:
    assert packed.source is not None
    indptr, block_rows = packed.arrays["indptr"], packed.sizes["block_rows"]
    R = shape[0] // max(block_rows, 1)
    area = packed.slots // max(len(packed.arrays["indices"]), 1)
    S = area // R
    slot = np.flatnonzero(packed.source >= 0)
    block = slot // area
    row = np.repeat(np.arange(block_rows), np.diff(indptr))[block] * R + slot % area // S
    column = packed.arrays["indices"].astype(np.int64)[block] * S + slot % S
    sort = np.lexsort((column, row))
    return Pattern(shape, np.concatenate([[0], np.cumsum(np.bincount(row, minlength=shape[0]))]), column[sort])


def cuts(packed: Packed, pieces: int) -> np.ndarray:
    return weighted_cuts(packed.arrays["indptr"], pieces)


def _blocks(pattern: Pattern, R: int, S: int) -> tuple[np.ndarray, np.ndarray]:
    """Non-empty blocks as block row * (n / S) + block column, ascending, and the number of each entry's block."""
    width = max(pattern.n // S, 1)
    key = row_of_entry(pattern) // R * width + pattern.indices // S
    return np.unique(key, return_inverse=True)
