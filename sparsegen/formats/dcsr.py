"""Doubly compressed sparse rows: only rows with entries are kept; stored row i is row rows[i] of A.

For the parts of a composite, most of whose rows are empty (Buluc and Gilbert 2008). Work item: a stored row.
"""

from __future__ import annotations

import numpy as np

from sparsegen.formats import Packed, weighted_cuts
from sparsegen.problem import Pattern

ARRAYS = {"rows": "INDEX", "indptr": "OFFSET", "indices": "INDEX", "data": "STORED"}
SIZES = ("stored_rows",)
PARAMS: dict[str, int] = {}
BAKED: tuple[str, ...] = ()
PADS = "none"


def feasible(pattern: Pattern) -> str | None:
    return None


def stored(pattern: Pattern) -> int:
    return pattern.nnz


def pack(pattern: Pattern, index, offset) -> Packed:
    rows = np.flatnonzero(pattern.lengths)
    arrays = {
        "rows": rows.astype(index),
        "indptr": np.concatenate([pattern.indptr[rows], pattern.indptr[-1:]]).astype(offset),
        "indices": pattern.indices.astype(index, copy=False),
    }
    return Packed(arrays, pattern.nnz, pattern.nnz, sizes={"stored_rows": len(rows)})


def unpack(packed: Packed, shape: tuple[int, int]) -> Pattern:
    lengths = np.zeros(shape[0], np.int64)
    lengths[packed.arrays["rows"]] = np.diff(packed.arrays["indptr"])
    return Pattern(shape, np.concatenate([[0], np.cumsum(lengths)]), packed.arrays["indices"])


def cuts(packed: Packed, pieces: int) -> np.ndarray:
    return weighted_cuts(packed.arrays["indptr"], pieces)
