"""Compressed sparse rows: row r holds entries indptr[r] to indptr[r + 1]. Work item: a row."""

from __future__ import annotations

import numpy as np

from sparsegen.formats import Packed, weighted_cuts
from sparsegen.problem import Pattern

ARRAYS = {"indptr": "OFFSET", "indices": "INDEX", "data": "STORED"}
SIZES: tuple[str, ...] = ()
PARAMS: dict[str, int] = {}
BAKED: tuple[str, ...] = ()
PADS = "none"


def feasible(pattern: Pattern) -> str | None:
    return None


def stored(pattern: Pattern) -> int:
    return pattern.nnz


def pack(pattern: Pattern, index, offset) -> Packed:
    arrays = {"indptr": pattern.indptr.astype(offset, copy=False), "indices": pattern.indices.astype(index, copy=False)}
    return Packed(arrays, pattern.nnz, pattern.nnz)


def unpack(packed: Packed, shape: tuple[int, int]) -> Pattern:
    return Pattern(shape, packed.arrays["indptr"], packed.arrays["indices"])


def cuts(packed: Packed, pieces: int) -> np.ndarray:
    return weighted_cuts(packed.arrays["indptr"], pieces)
