"""Blocks of R x S entries in compressed block rows, each block by rows. Work item: a block row.

A needs a shape that the blocks divide. Entries that a block lacks are stored as zeros.
"""

from __future__ import annotations

import numpy as np

from sparsegen.formats import Packed, block_lengths, blocks, blocks_refused, weighted_cuts
from sparsegen.problem import Pattern

ARRAYS = {"indptr": "OFFSET", "indices": "INDEX", "data": "STORED"}
SIZES = ("block_rows",)
PARAMS = {"R": 2, "S": 2}
BAKED: tuple[str, ...] = ()
PADS = "zero"
LEAST_FILL = 0.5  # of a block: below, the zeros cost more than the indices they save


def feasible(pattern: Pattern, R: int = 2, S: int = 2) -> str | None:
    if reason := blocks_refused(pattern, R, S, LEAST_FILL):
        return reason
    slots = stored(pattern, R, S)
    if pattern.nnz < LEAST_FILL * slots:
        return f"{R} x {S} blocks are {pattern.nnz / slots:.0%} full; at least {LEAST_FILL:.0%} is wanted"
    return None


def stored(pattern: Pattern, R: int = 2, S: int = 2) -> int:
    return int(block_lengths(pattern, R, S).sum()) * R * S


def pack(pattern: Pattern, index, offset, R: int = 2, S: int = 2) -> Packed:
    indptr, columns, source = blocks(pattern, R, S)
    arrays = {"indptr": indptr.astype(offset), "indices": columns.astype(index)}
    return Packed(arrays, pattern.nnz, source.size, {"block_rows": pattern.m // R}, source=source.ravel())


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
