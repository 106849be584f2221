"""Looking at a few entries of a large pattern: which to take, the rows they are in, whether a place holds one.

Nothing here passes over the indices, and nothing converts an array of a pattern to another dtype.
"""

from __future__ import annotations

import numpy as np

from sparsegen.problem import Pattern


def stratified(count: int, wanted: int, rng: np.random.Generator) -> np.ndarray:
    """At most `wanted` of the numbers 0 to count - 1, ascending, int64: one drawn from each of as many equal parts.

    All of them where count <= wanted. Parts of fewer than two numbers may meet, so that fewer come back.
    """
    if count <= wanted:
        return np.arange(count, dtype=np.int64)
    places = ((np.arange(wanted) + rng.random(wanted)) * (count / max(wanted, 1))).astype(np.int64)
    return np.unique(np.minimum(places, count - 1))


def rows_of(pattern: Pattern, places: np.ndarray) -> np.ndarray:
    """The row of each entry, int64; `places` are positions in `pattern.indices`."""
    wanted = np.asarray(places).astype(pattern.indptr.dtype)  # of another dtype, all of indptr would be converted
    return np.searchsorted(pattern.indptr, wanted, side="right").astype(np.int64) - 1


def present(pattern: Pattern, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Whether A has an entry at each (row, column), bool; places outside A hold none."""
    found = (rows >= 0) & (rows < pattern.m) & (columns >= 0) & (columns < pattern.n)
    if pattern.nnz == 0 or not found.any():
        return np.zeros(len(found), bool)
    rows, last = np.where(found, rows, 0), pattern.nnz - 1
    low, end = pattern.indptr[rows].astype(np.int64), pattern.indptr[rows + 1].astype(np.int64)
    high = end.copy()
    while (searching := low < high).any():  # one bisection for all of them
        middle = (low + high) // 2
        below = pattern.indices[np.minimum(middle, last)] < columns
        low = np.where(searching & below, middle + 1, low)
        high = np.where(searching & ~below, middle, high)
    return found & (low < end) & (pattern.indices[np.minimum(low, last)] == columns)
