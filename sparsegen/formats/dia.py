"""Diagonals, their offsets (column minus row) baked into the source. Work item: a chunk of CHUNK rows.

Chunk c holds, diagonal after diagonal, the entries of its CHUNK rows: A[r, r + offset d] is at
(r / CHUNK * DIAGONALS + d) * CHUNK + r % CHUNK. Rows past m, columns outside A and holes are stored as zeros; a kernel
must not read x outside 0 to n - 1. CHUNK = 0 means one chunk of m rows.
"""

from __future__ import annotations

import numpy as np

from sparsegen.formats import PIECE, Packed, even_cuts
from sparsegen.problem import Pattern

ARRAYS = {"data": "STORED"}
SIZES = ("chunk", "chunk_count")
PARAMS = {"CHUNK": 0}
BAKED = ("OFFSETS", "DIAGONALS")
PADS = "zero"
MOST_DIAGONALS = 64
MOST_PADDING = 2.0
LOOK = 64


def feasible(pattern: Pattern, CHUNK: int = 0) -> str | None:
    if pattern.nnz == 0:
        return "no entries, so no diagonals"
    for first in (0, pattern.m // 3, pattern.m // 3 * 2):  # a look at some rows before all are read
        stop = min(first + LOOK, pattern.m)
        rows = np.repeat(np.arange(first, stop), pattern.lengths[first:stop])
        found = len(np.unique(pattern.indices[pattern.indptr[first] : pattern.indptr[stop]] - rows))
        if found > MOST_DIAGONALS:
            return f"{found} diagonals in {LOOK} rows; at most {MOST_DIAGONALS} are baked into a kernel"
    count = len(pattern.diagonals[0])
    if count > MOST_DIAGONALS:
        return f"{count} diagonals; at most {MOST_DIAGONALS} are baked into a kernel"
    slots = stored(pattern, CHUNK)
    if slots > MOST_PADDING * pattern.nnz + MOST_DIAGONALS * (CHUNK or 1):
        return f"{count} diagonals take {slots} slots for {pattern.nnz} entries"
    return None


def stored(pattern: Pattern, CHUNK: int = 0) -> int:
    chunk, count = _chunks(pattern.m, CHUNK)
    return chunk * count * len(pattern.diagonals[0])


def pack(pattern: Pattern, index, offset, CHUNK: int = 0) -> Packed:
    offsets, _ = pattern.diagonals
    chunk, count = _chunks(pattern.m, CHUNK)
    slots = stored(pattern, CHUNK)
    place = np.int32 if slots < 2**31 else np.int64
    source = np.full(slots, -1, place)
    rows = max(PIECE * pattern.m // max(pattern.nnz, 1), 1)
    for first in range(0, pattern.m, rows):  # the slots of all entries at once would double the memory
        stop = min(first + rows, pattern.m)
        span = slice(int(pattern.indptr[first]), int(pattern.indptr[stop]))
        row = np.repeat(np.arange(first, stop), pattern.lengths[first:stop])
        diagonal = np.searchsorted(offsets, pattern.indices[span] - row)
        slot = (row // chunk * len(offsets) + diagonal) * chunk + row % chunk
        source[slot] = np.arange(span.start, span.stop, dtype=place)
    return Packed({}, pattern.nnz, slots, {"chunk": chunk, "chunk_count": count}, baked(pattern), source)


def baked(pattern: Pattern, CHUNK: int = 0) -> dict[str, str]:
    offsets, _ = pattern.diagonals
    return {"OFFSETS": "{" + ", ".join(map(str, offsets)) + "}", "DIAGONALS": str(len(offsets))}


def unpack(packed: Packed, shape: tuple[int, int]) -> Pattern:
    offsets = np.array([int(word) for word in packed.baked["OFFSETS"].strip("{}").split(",")])
    assert packed.source is not None
    slot = np.flatnonzero(packed.source >= 0)
    chunk = packed.sizes["chunk"]
    row = slot // (chunk * len(offsets)) * chunk + slot % chunk
    column = row + offsets[slot // chunk % len(offsets)]
    sort = np.lexsort((column, row))
    return Pattern(shape, np.concatenate([[0], np.cumsum(np.bincount(row, minlength=shape[0]))]), column[sort])


def cuts(packed: Packed, pieces: int) -> np.ndarray:
    return even_cuts(packed.sizes["chunk_count"], pieces)


def _chunks(m: int, CHUNK: int) -> tuple[int, int]:
    chunk = CHUNK or max(m, 1)
    return chunk, -(-m // chunk)
