"""Coordinates in row-major order. Work item: an entry; cuts fall between rows, so that no row has two owners."""

from __future__ import annotations

import numpy as np

from sparsegen.formats import Packed, even_cuts, row_of_entry
from sparsegen.problem import Pattern

ARRAYS = {"rows": "INDEX", "indices": "INDEX", "data": "STORED"}
SIZES: tuple[str, ...] = ()
PARAMS: dict[str, int] = {}
BAKED: tuple[str, ...] = ()
PADS = "none"


def feasible(pattern: Pattern) -> str | None:
    return None


def stored(pattern: Pattern) -> int:
    return pattern.nnz


def pack(pattern: Pattern, index, offset) -> Packed:
    arrays = {"rows": row_of_entry(pattern, index), "indices": pattern.indices.astype(index, copy=False)}
    return Packed(arrays, pattern.nnz, pattern.nnz)


def unpack(packed: Packed, shape: tuple[int, int]) -> Pattern:
    lengths = np.bincount(packed.arrays["rows"], minlength=shape[0])
    return Pattern(shape, np.concatenate([[0], np.cumsum(lengths)]), packed.arrays["indices"])


def cuts(packed: Packed, pieces: int) -> np.ndarray:
    rows = packed.arrays["rows"]
    cut = even_cuts(len(rows), pieces)
    inner = cut[1:-1]
    cut[1:-1] = np.searchsorted(rows, rows[inner]) if len(rows) else 0
    return cut
