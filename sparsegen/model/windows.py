"""Our embedding of nonzeros: close views of a few places and a view of the whole, for any size and shape.

Half of the tokens come from windows of consecutive rows, so that stencils and blocks show: one window per WINDOW of
those tokens, about an entry from each of as many equal parts of the stored order, from the multiple of ALIGNED rows
below it on. Rows of up to LONGEST entries are shown whole; of a longer one LONGEST consecutive entries, all rows of a
window from about the same column, a multiple of ALIGNED. The other half of the tokens is one entry from each of as
many equal parts of the stored order. A matrix with no more nonzeros than tokens is one window.

No number grows with the matrix: absolute places are fractions, distances are logarithms, one of a few small numbers,
or places in a short period.
"""

from __future__ import annotations

import numpy as np

from sparsegen.model.entries import present, rows_of, stratified
from sparsegen.problem import Pattern

WINDOW, ALIGNED, LONGEST = 16, 12, 8
NEAR = 8  # columns beside the diagonal that are told apart exactly
PERIODS = (2, 3, 4, 6)  # of rows and columns: sides of blocks
SPANS = (*PERIODS, 8, 16, 32, 64)  # of the distance from the diagonal
LOG = 32  # powers of two to which logarithms reach before they repeat
# above, below, before, after: there is an entry at (r -+ 1, c) and (r -+ 1, c -+ 1); mirrored: at (c, r)
FLAGS = ("window", "spread", "first", "last", "above", "below", "before", "after", "mirrored")

FIELDS: dict[str, int] = {  # numbers of a token, in order
    "row": 16,  # u = row / m: sin and cos of pi 2^j u
    "column": 16,  # column / n, likewise
    "beside": 12,  # the diagonal of A's rectangle: the sign times log2(1 + distance) / LOG, likewise
    "offset": 2 * NEAR + 1,  # which of -NEAR to NEAR that distance is, in whole columns; none when farther
    "offset_cycles": 2 * len(SPANS),  # sin and cos of where it is in each period
    "gap": 6,  # to the entry before in the row: no entry, 1, 2, 3, 4, more
    "gap_log": 6,
    "place": 6,  # in the row, over its length
    "length": 8,  # of the row: log2 / LOG
    "step": ALIGNED + 1,  # rows below the first one of the window, the last for more; none outside windows
    "row_cycles": 2 * len(PERIODS),
    "column_cycles": 2 * len(PERIODS),
    "flags": len(FLAGS),
}
WIDTH = sum(FIELDS.values())


def field(name: str) -> slice:
    """Where the numbers of one of FIELDS are in a token."""
    names = list(FIELDS)
    first = sum(FIELDS[each] for each in names[: names.index(name)])
    return slice(first, first + FIELDS[name])


def embed(pattern: Pattern, tokens: int, rng: np.random.Generator) -> np.ndarray:
    """At most `tokens` entries of a pattern that has some, windows first: (T, WIDTH) float64."""
    return read(pattern, *choose(pattern, tokens, rng))


def choose(pattern: Pattern, tokens: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """The entries to show, as positions in `indices`, and the first row of the window of each, -1 outside windows."""
    if pattern.nnz <= tokens:
        return np.arange(pattern.nnz), np.zeros(pattern.nnz, np.int64)
    close = tokens // 2
    spread = stratified(pattern.nnz, tokens - close, rng)
    places, firsts = [], []
    count = -(-close // WINDOW)
    for i, chosen in enumerate(stratified(pattern.nnz, count, rng).tolist()):
        found, first = _window(pattern, chosen, close * (i + 1) // count - close * i // count)
        places += found
        firsts += [first] * len(found)
    return np.concatenate((np.array(places, np.int64), spread)), np.array(firsts + [-1] * len(spread), np.int64)


def _window(pattern: Pattern, chosen: int, tokens: int) -> tuple[list[int], int]:
    """Up to `tokens` entries of consecutive rows about the entry `chosen`, and the first of those rows."""
    row = int(rows_of(pattern, np.array([chosen]))[0])
    first = row = row - row % ALIGNED
    column = pattern.indices[chosen]
    column -= column % ALIGNED
    places: list[int] = []
    while len(places) < tokens and row < pattern.m and pattern.indptr[row] < pattern.nnz:
        begin, end = int(pattern.indptr[row]), int(pattern.indptr[row + 1])
        if begin == end:
            row = int(rows_of(pattern, np.array([begin]))[0])  # past any number of empty rows
            continue
        if end - begin > LONGEST:
            begin += min(int(np.searchsorted(pattern.indices[begin:end], column)), end - begin - LONGEST)
        places += range(begin, min(end, begin + LONGEST, begin + tokens - len(places)))
        row += 1
    return places, first


def read(pattern: Pattern, places: np.ndarray, firsts: np.ndarray) -> np.ndarray:
    """What FIELDS say of the entries at `places`, (len(places), WIDTH) float64; `firsts` as `choose` gives them."""
    rows, columns = rows_of(pattern, places), pattern.indices[places].astype(np.int64)
    begin, end = pattern.indptr[rows].astype(np.int64), pattern.indptr[rows + 1].astype(np.int64)
    beside = columns - np.floor(rows * (pattern.n / pattern.m)).astype(np.int64)
    gap = np.where(places > begin, columns - pattern.indices[np.maximum(places - 1, 0)], 0)
    fields = {
        "row": _waves(rows / pattern.m, 8),
        "column": _waves(columns / pattern.n, 8),
        "beside": _waves(np.sign(beside) * _log(np.abs(beside)), 6),
        "offset": _one_of(beside + NEAR, 2 * NEAR + 1),
        "offset_cycles": _cycles(beside, SPANS),
        "gap": _one_of(np.minimum(gap, 5), 6),
        "gap_log": _waves(_log(gap), 3),
        "place": _waves((places - begin + 0.5) / (end - begin), 3),
        "length": _waves(_log(end - begin), 4),
        "step": _one_of(np.where(firsts < 0, -1, np.minimum(rows - firsts, ALIGNED)), ALIGNED + 1),
        "row_cycles": _cycles(rows, PERIODS),
        "column_cycles": _cycles(columns, PERIODS),
        "flags": np.stack([
            firsts >= 0, firsts < 0, places == begin, places == end - 1,
            present(pattern, rows - 1, columns), present(pattern, rows + 1, columns),
            present(pattern, rows - 1, columns - 1), present(pattern, rows + 1, columns + 1),
            present(pattern, columns, rows),
        ], axis=1),
    }  # fmt: skip
    return np.concatenate([fields[name] for name in FIELDS], axis=1, dtype=np.float64)


def _log(distance: np.ndarray) -> np.ndarray:
    return np.log2(1.0 + distance) / LOG


def _waves(u: np.ndarray, count: int) -> np.ndarray:
    """sin and cos of pi 2^j u, j < count: (len(u), 2 count)."""
    angles = np.pi * u[:, None] * 2.0 ** np.arange(count)
    return np.concatenate((np.sin(angles), np.cos(angles)), axis=1)


def _cycles(number: np.ndarray, periods: tuple[int, ...]) -> np.ndarray:
    """sin and cos of the place of whole numbers in each period: (len(number), 2 len(periods))."""
    angles = 2 * np.pi * (number[:, None] % np.array(periods)) / np.array(periods)  # exact for large numbers
    return np.concatenate((np.sin(angles), np.cos(angles)), axis=1)


def _one_of(number: np.ndarray, count: int) -> np.ndarray:
    """1 at the number's place, no 1 where it is outside 0 to count - 1: (len(number), count)."""
    return (number[:, None] == np.arange(count)).astype(np.float64)
