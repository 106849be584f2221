"""Strips of R consecutive rows: the columns in which any of them has an entry, R values each. Work item: a strip.

Strip s holds rows s * R to s * R + R - 1, the last one those that are left, and the slots indptr[s] to indptr[s + 1];
slot p is column indices[p], and its value in row s * R + r is data[p * R + r], zero where that row has no entry. As
bsr with S = 1, but of any number of rows, and with fewer entries in a block.
"""

from __future__ import annotations

import numpy as np

from sparsegen.formats import Packed, weighted_cuts
from sparsegen.problem import Pattern

ARRAYS = {"indptr": "OFFSET", "indices": "INDEX", "data": "STORED"}
SIZES = ("strips",)
PARAMS = {"R": 2}
BAKED: tuple[str, ...] = ()
PADS = "zero"
LEAST_FILL = 0.35  # of a strip: below, the zeros cost more than rows of B read once save
LOOKS, LOOK = 16, 12  # strips that are looked at before all are, so many times so many


def feasible(pattern: Pattern, R: int = 2) -> str | None:
    if not 1 <= R <= 64:
        return f"R is {R}; a strip has 1 to 64 rows"
    if pattern.nnz == 0:
        return "no entries, so no strips"
    count = -(-pattern.m // R)
    if count > 2 * LOOKS * LOOK:
        starts = np.arange(0, count - LOOK, count // LOOKS)
        entries = sum(int(pattern.indptr[(s + LOOK) * R] - pattern.indptr[s * R]) for s in starts.tolist())
        slots = sum(int(_columns(pattern, R, s, s + LOOK)[0][-1]) for s in starts.tolist())
        if entries > 200 and entries < 0.8 * LEAST_FILL * slots * R:
            return f"some strips of {R} rows are {entries / (slots * R):.0%} full; {LEAST_FILL:.0%} is wanted"
    slots = stored(pattern, R)
    if pattern.nnz < LEAST_FILL * slots:
        return f"strips of {R} rows are {pattern.nnz / slots:.0%} full; at least {LEAST_FILL:.0%} is wanted"
    return None


def stored(pattern: Pattern, R: int = 2) -> int:
    return int(_columns(pattern, R, 0, -(-pattern.m // R))[0][-1]) * R


def pack(pattern: Pattern, index, offset, R: int = 2) -> Packed:
    strips = -(-pattern.m // R)
    indptr, indices, place = _columns(pattern, R, 0, strips)
    source = np.full(len(indices) * R, -1, np.int32 if max(pattern.nnz, len(indices) * R) < 2**31 else np.int64)
    rows = np.repeat(np.arange(pattern.m) % R, pattern.lengths)
    source[place * R + rows] = np.arange(pattern.nnz, dtype=source.dtype)
    arrays = {"indptr": indptr.astype(offset), "indices": indices.astype(index)}
    return Packed(arrays, pattern.nnz, len(source), {"strips": strips}, source=source)


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


def _columns(pattern: Pattern, R: int, begin: int, end: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of strips begin to end: indptr, columns in ascending order, and the slot of each entry."""
    first, last = begin * R, min(end * R, pattern.m)
    entries = slice(int(pattern.indptr[first]), int(pattern.indptr[last]))
    strip = np.repeat(np.arange(first, last) // R - begin, pattern.lengths[first:last])
    keys = strip * np.int64(pattern.n) + pattern.indices[entries]
    if R == 1:
        kept, place = keys, np.arange(len(keys))
    else:
        kept, place = np.unique(keys, return_inverse=True)
    counts = np.bincount(kept // max(pattern.n, 1), minlength=end - begin)
    return np.concatenate([[0], np.cumsum(counts)]), kept % max(pattern.n, 1), place
