"""Strips of R consecutive rows: the columns in which any of them has an entry, R values each. Work item: a strip.

Strip s is rows s * R to s * R + R - 1, the last one those that are left. Slot p of indptr[s] to indptr[s + 1] is column
indices[p], ascending, and its value in row s * R + r is data[p * R + r], zero where that row has no entry: blocks of
R x 1, of a matrix with any number of rows.
"""

from __future__ import annotations

import numpy as np

from sparsegen.formats import Packed, block_lengths, blocks, blocks_refused, weighted_cuts
from sparsegen.problem import Pattern

ARRAYS = {"indptr": "OFFSET", "indices": "INDEX", "data": "STORED"}
SIZES = ("strips",)
PARAMS = {"R": 2}
BAKED: tuple[str, ...] = ()
PADS = "zero"
LEAST_FILL = 0.35  # of a strip: below, the zeros cost more than is saved by reading a row of B for several rows of A


def feasible(pattern: Pattern, R: int = 2) -> str | None:
    if not 1 <= R <= 64:
        return f"R is {R}; a strip has 1 to 64 rows"
    if reason := blocks_refused(_whole(pattern, R), R, 1, LEAST_FILL):
        return reason
    slots = stored(pattern, R)
    if pattern.nnz < LEAST_FILL * slots:
        return f"strips of {R} rows are {pattern.nnz / slots:.0%} full; at least {LEAST_FILL:.0%} is wanted"
    return None


def stored(pattern: Pattern, R: int = 2) -> int:
    return int(block_lengths(_whole(pattern, R), R, 1).sum()) * R


def pack(pattern: Pattern, index, offset, R: int = 2) -> Packed:
    indptr, columns, source = blocks(_whole(pattern, R), R, 1)
    arrays = {"indptr": indptr.astype(offset), "indices": columns.astype(index)}
    return Packed(arrays, pattern.nnz, source.size, {"strips": len(indptr) - 1}, source=source.ravel())


def unpack(packed: Packed, shape: tuple[int, int]) -> Pattern:
    assert packed.source is not None
    R = len(packed.source) // max(len(packed.arrays["indices"]), 1)
    strip = np.repeat(np.arange(packed.sizes["strips"]), np.diff(packed.arrays["indptr"]))
    slot = np.flatnonzero(packed.source >= 0)
    rows, columns = strip[slot // R] * R + slot % R, packed.arrays["indices"].astype(np.int64)[slot // R]
    sort = np.lexsort((columns, rows))
    return Pattern(shape, np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=shape[0]))]), columns[sort])


def cuts(packed: Packed, pieces: int) -> np.ndarray:
    return weighted_cuts(packed.arrays["indptr"], pieces)


def _whole(pattern: Pattern, R: int) -> Pattern:
    """With empty rows below, so that R divides their number."""
    missing = -pattern.m % R
    if not missing:
        return pattern
    indptr = np.concatenate([pattern.indptr, np.repeat(pattern.indptr[-1:], missing)])
    return Pattern((pattern.m + missing, pattern.n), indptr, pattern.indices)
