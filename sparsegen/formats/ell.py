"""ELLPACK: every row padded to the longest; slot j of row r is at j * m + r. Work item: a row.

lengths says how many slots of a row are entries; a padding slot holds column 0.
"""

from __future__ import annotations

import numpy as np

from sparsegen.formats import Packed, even_cuts, lane_slots
from sparsegen.problem import Pattern

ARRAYS = {"lengths": "INDEX", "indices": "INDEX", "data": "STORED"}
SIZES = ("width",)
PARAMS: dict[str, int] = {}
BAKED: tuple[str, ...] = ()
PADS = "masked"
MOST_PADDING = 3.0  # slots per entry: beyond, the padding costs more than the indices of CSR could


def feasible(pattern: Pattern) -> str | None:
    slots = stored(pattern)
    if slots > MOST_PADDING * max(pattern.nnz, 1):
        return f"the longest row has {slots // max(pattern.m, 1)} entries: {slots} slots for {pattern.nnz} entries"
    return None


def stored(pattern: Pattern) -> int:
    return pattern.m * int(pattern.lengths.max(initial=0))


def pack(pattern: Pattern, index, offset) -> Packed:
    m, slots = pattern.m, stored(pattern)
    width = slots // m if m else 0
    place = np.int32 if slots < 2**31 else np.int64
    source, indices = np.full(slots, -1, place), np.zeros(slots, index)
    for _, entries, slot in lane_slots(pattern.indptr, max(m, 1), None, np.zeros(1, np.int64)):  # one slice of m lanes
        source[slot] = np.arange(entries.start, entries.stop, dtype=place)
        indices[slot] = pattern.indices[entries]
    arrays = {"lengths": pattern.lengths.astype(index), "indices": indices}
    return Packed(arrays, pattern.nnz, slots, sizes={"width": width}, source=source)


def unpack(packed: Packed, shape: tuple[int, int]) -> Pattern:
    lengths, width = packed.arrays["lengths"].astype(np.int64), packed.sizes["width"]
    by_row = packed.arrays["indices"].reshape(width, shape[0]).T
    return Pattern(
        shape, np.concatenate([[0], np.cumsum(lengths)]), by_row[np.arange(width) < lengths[:, None]].astype(np.int64)
    )


def cuts(packed: Packed, pieces: int) -> np.ndarray:
    return even_cuts(len(packed.arrays["lengths"]), pieces)
