"""What a problem looks like in numbers: a fixed table of statistics, finite and within [-2, 2] for every shape.

The time does not depend on the entries: row lengths are counted exactly in one pass over `indptr`; what needs column
indices comes from declared, seeded samples, which are the whole matrix while it is small:

    rows      SAMPLED_ROWS // WINDOW windows of WINDOW consecutive rows, all rows up to SAMPLED_ROWS
    entries   SAMPLED_ENTRIES entries, one from each of as many equal parts of the stored order
    looks     LOOKS groups of 120 consecutive rows, 24 where those hold over LOOK_ENTRIES entries, each chosen with
              a probability proportional to its entries, so that all looks weigh the same in blocks per entry; a
              part of the columns where 24 rows hold more, too. Up to WHOLE entries, A is the one look.

NAMES says what is where. Those of INVARIANT are exact, and the same for every order of the rows and of the columns.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sparsegen import formats
from sparsegen.model.entries import present, rows_of, stratified
from sparsegen.problem import Pattern, Problem

STATISTIC = 32  # numbers of one token
BOUND = 2.0  # of every number
CACHES = {"l1": 15, "l2": 20, "l3": 25}  # log2 of bytes, of no machine in particular
DENSE_ROWS, LEAST_DENSE = 16, 256  # a row is dense with so many times the mean, and so many entries
QUANTILES = {"p0": 0.0, "p5": 0.05, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p95": 0.95, "p100": 1.0}
PADDINGS = {f"{SLICE}_{SIGMA}": (SLICE, SIGMA) for SLICE in (8, 16, 32) for SIGMA in (1, 256)}
HEIGHTS = (1, 2, 3, 4, 6, 8)
BLOCKS = (
    *((1, S) for S in (2, 3, 4, 8)), *((R, 1) for R in (2, 3, 4, 6, 8)),
    *((R, S) for R in (2, 3, 4, 6) for S in (2, 3, 4)), (6, 6), (8, 4), (8, 8),
)  # fmt: skip
DIVISORS = (2, 3, 4, 8)
CELLS = 8  # of the density map, along each side

CHUNK = 1 << 16
LONG = 1 << 12  # longer rows are counted one by one
SAMPLED_ROWS, WINDOW = 1 << 17, 256
SAMPLED_ENTRIES, ASKED = 1 << 13, 1 << 10
WHOLE = 1 << 14
LOOKS, LOOK_ENTRIES, LOOK_RUN = 16, 1 << 11, 48

_SIZE = (
    "valid", "rows", "columns", "entries", "aspect", "square", "mean", "density", "none", "k", "threads",
    "short_indices", "work", "work_per_thread", "bytes_x", "bytes_y", "bytes_csr",
    *(f"{array}_{cache}" for array in ("x", "y", "csr") for cache in CACHES),
)  # fmt: skip
_ROWS = (
    *QUANTILES, "variation", "longest", "empty", "single", "up_to_4", "up_to_8", "alike", "lengths", "dense_rows",
    "dense_entries", "ell", "sell_all", "lanes_2", "lanes_4", "lanes_8", "lanes_32",
    *(f"sell_{name}" for name in PADDINGS), "neighbours",
)  # fmt: skip
_COLUMNS = (
    "distinct", "top_1", "top_8", "top_64", "band_p5", "band_p25", "band_p50", "band_p75", "band_p95", "band_p100",
    "band_median", "band_most", "lower", "upper", "span_p50", "span_p95", "span_p100", "slice_p50", "slice_p95",
    "slice_p100", "slice_short", "gap_one", "gap_line", "gap_p50", "run_mean", "run_2", "run_4", "run_8",
)  # fmt: skip
_DIAGONALS = (
    "diagonals", "diagonals_64", "dia", "on_1", "on_3", "on_5", "on_9", "on_27", "on_64", "main", "farthest",
    "mirrored", "right", "below", "after", "below_right", "below_left", "mirrored_strictly",
)  # fmt: skip
_BLOCKS = (
    *(f"fill_{R}x{S}" for R, S in BLOCKS),
    *(f"rows_by_{d}" for d in DIVISORS), *(f"columns_by_{d}" for d in DIVISORS),
)  # fmt: skip
_MAP = tuple(f"map_{i}_{j}" for i in range(CELLS) for j in range(CELLS))

NAMES: tuple[tuple[str, ...], ...] = (_SIZE, _ROWS, _COLUMNS, _DIAGONALS, _BLOCKS, _MAP[:STATISTIC], _MAP[STATISTIC:])
INVARIANT = (*_SIZE, *_ROWS[: _ROWS.index("sell_8_1")], *_BLOCKS[len(BLOCKS) :])


def of(problem: Problem, seed: int) -> np.ndarray:
    """The statistics of a problem, (len(NAMES), STATISTIC) float32: NAMES[t][i] is at [t, i], what is past is zero."""
    pattern = problem.pattern
    rng = np.random.default_rng(seed)
    values = {**_size(problem), **_lengths(pattern), **_divisors(pattern)}
    if pattern.nnz:
        starts, lengths = _row_sample(pattern, rng)
        places = stratified(pattern.nnz, SAMPLED_ENTRIES, rng)
        looked = _looks(pattern, rng)
        values |= _slices(lengths) | _spans(pattern, starts, lengths)
        values |= _columns(pattern, places) | _asked(pattern, places) | _map(pattern, places)
        values |= _runs(*looked) | _offsets(pattern, *looked) | _fills(*looked)
    return _table(values)


def _table(values: Mapping[str, float]) -> np.ndarray:
    table = np.zeros((len(NAMES), STATISTIC))
    for t, names in enumerate(NAMES):
        for i, name in enumerate(names):
            table[t, i] = values.get(name, 0.0)
    return np.clip(table, -BOUND, BOUND).astype(np.float32)


def _log(value: float) -> float:
    """1 to 2^32 in [-2, 2]."""
    return (np.log2(1.0 + value) - 16) / 8


def _ratio(value: float, step: float = 1.0) -> float:
    """A ratio about one, or above, in units of 2^step."""
    return float(np.log2(max(value, 1e-9))) / step


def _size(problem: Problem) -> dict[str, float]:
    (m, n), nnz, k = problem.pattern.shape, problem.pattern.nnz, problem.k
    wide = problem.dtype.itemsize
    nbytes = {
        "x": n * k * wide,
        "y": m * k * wide,
        "csr": nnz * (wide + problem.index_dtype.itemsize) + (m + 1) * problem.offset_dtype.itemsize,
    }
    values = {
        "valid": 1.0, "rows": _log(m), "columns": _log(n), "entries": _log(nnz),
        "aspect": _ratio(max(n, 1) / max(m, 1), 8), "square": float(m == n),
        "mean": (np.log2(1 + nnz / max(m, 1)) - 4) / 4,
        "density": 1 + _ratio(max(nnz, 1) / max(m, 1) / max(n, 1), 10), "none": float(nnz == 0),
        "k": np.log2(k) / 4, "threads": np.log2(problem.threads) / 3, "short_indices": float(n <= 1 << 16),
        "work": _log(nnz * k), "work_per_thread": _log(nnz * k / problem.threads),
    }  # fmt: skip
    for array, size in nbytes.items():
        values[f"bytes_{array}"] = (np.log2(1 + size) - 20) / 8
        for cache, limit in CACHES.items():  # within a factor of two of the cache, the rest is flat
            values[f"{array}_{cache}"] = float(np.clip(np.log2(1 + size) - limit, -1, 1))
    return values


def histogram(pattern: Pattern) -> tuple[np.ndarray, np.ndarray]:
    """The distinct row lengths, ascending, and how many rows have each; both int64. One empty row where m = 0."""
    counts, longer = np.zeros(LONG + 2, np.int64), [np.empty(0, np.int64)]
    for first in range(0, pattern.m, CHUNK):
        lengths = np.diff(pattern.indptr[first : first + CHUNK + 1])
        if lengths.max() > LONG:
            longer.append(lengths[lengths > LONG].astype(np.int64))
            lengths = np.minimum(lengths, LONG + 1)
        counts += np.bincount(lengths, minlength=LONG + 2)
    counts[0] += pattern.m == 0
    short = np.flatnonzero(counts[: LONG + 1])
    above, times = np.unique(np.concatenate(longer), return_counts=True)
    return np.concatenate((short, above)), np.concatenate((counts[short], times))


def _lengths(pattern: Pattern) -> dict[str, float]:
    lengths, counts = histogram(pattern)
    m, nnz = int(counts.sum()), max(pattern.nnz, 1)
    upto, longest, mean = np.cumsum(counts), int(lengths[-1]), pattern.nnz / m
    values = {}
    for name, q in QUANTILES.items():
        values[name] = (np.log2(1 + lengths[np.searchsorted(upto, int(q * (m - 1)), side="right")]) - 4) / 4
    deviation = float(np.sqrt((counts * (lengths - mean) ** 2).sum() / m))
    dense = lengths > max(DENSE_ROWS * mean, LEAST_DENSE)
    down, many = lengths[::-1], counts[::-1]  # longest first, as all rows sorted are sliced
    before = np.cumsum(many) - many
    heads = -(-(before + many) // 8) - -(-before // 8)  # slices of eight that begin at a row of this length
    values |= {
        "variation": np.log2(1 + deviation / max(mean, 1e-9)) / 2,
        "longest": _ratio(longest / max(mean, 1 / m), 4),
        "empty": float(counts[lengths == 0].sum() / m),
        "single": float(counts[lengths == 1].sum() / m),
        "up_to_4": float(counts[lengths <= 4].sum() / m),
        "up_to_8": float(counts[lengths <= 8].sum() / m),
        "alike": float(counts.max() / m),
        "lengths": np.log2(len(lengths)) / 5,
        "dense_rows": np.log2(1 + counts[dense].sum()) / 4,
        "dense_entries": float((counts * lengths)[dense].sum() / nnz),
        "ell": _ratio(max(m * longest, 1) / nnz),
        "sell_all": _ratio(max(8 * int((heads * down).sum()), 1) / nnz),
    }
    for lanes in (2, 4, 8, 32):
        values[f"lanes_{lanes}"] = _ratio(max(int((counts * -(-lengths // lanes)).sum()) * lanes, 1) / nnz, lanes**0.25)
    return values


def _divisors(pattern: Pattern) -> dict[str, float]:
    sides = (("rows", pattern.m), ("columns", pattern.n))
    return {f"{side}_by_{d}": float(size % d == 0) for side, size in sides for d in DIVISORS}


def _row_sample(pattern: Pattern, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Position of the first entry and number of entries of sampled rows, whole windows in order; both (rows,)."""
    if pattern.m <= SAMPLED_ROWS:
        return pattern.indptr[:-1], np.diff(pattern.indptr)
    windows = stratified(pattern.m // WINDOW, SAMPLED_ROWS // WINDOW, rng)
    ends = pattern.indptr[windows[:, None] * WINDOW + np.arange(WINDOW + 1)]  # (windows, WINDOW + 1)
    return ends[:, :-1].ravel(), np.diff(ends, axis=1).ravel()


def _slices(lengths: np.ndarray) -> dict[str, float]:
    entries = max(int(lengths.sum()), 1)
    values = {}
    for name, (SLICE, SIGMA) in PADDINGS.items():
        values[f"sell_{name}"] = _ratio(max(int(formats.sliced(lengths, SLICE, SIGMA)[1][-1]), 1) / entries)
    apart = np.abs(np.diff(lengths)).mean() if len(lengths) > 1 else 0.0
    return {**values, "neighbours": np.log2(1 + apart * len(lengths) / entries)}


def _spans(pattern: Pattern, starts: np.ndarray, lengths: np.ndarray) -> dict[str, float]:
    """Columns from the first to the last of a row, and of eight consecutive rows, in powers of two about 2^16."""
    some = lengths > 0
    if not some.any():
        return {}
    whole = -(-len(lengths) // 8) * 8
    low, high = np.full(whole, pattern.n, np.int64), np.full(whole, -1, np.int64)
    low[: len(lengths)][some] = pattern.indices[starts[some]]
    high[: len(lengths)][some] = pattern.indices[starts[some] + lengths[some] - 1]
    spans = (high - low)[: len(lengths)][some] + 1
    slices = high.reshape(-1, 8).max(axis=1) - low.reshape(-1, 8).min(axis=1) + 1
    slices = slices[slices > 0]
    values = {f"span_p{q}": (np.log2(np.percentile(spans, q)) - 16) / 8 for q in (50, 95, 100)}
    values |= {f"slice_p{q}": (np.log2(np.percentile(slices, q)) - 16) / 8 for q in (50, 95, 100)}
    return {**values, "slice_short": float((slices <= 1 << 16).mean())}


def _columns(pattern: Pattern, places: np.ndarray) -> dict[str, float]:
    """Of sampled entries: how many columns they share, and how far they lie from the diagonal of A's rectangle."""
    columns, rows = pattern.indices[places].astype(np.int64), rows_of(pattern, places)
    times = np.sort(np.unique(columns, return_counts=True)[1])[::-1]
    values = {"distinct": 2 * len(times) / len(columns) - 1}
    for top in (1, 8, 64):
        values[f"top_{top}"] = 1 + _ratio(times[:top].sum() / len(columns), 6)
    beside = columns - rows * (pattern.n / pattern.m)
    away = np.abs(beside)
    for q in (5, 25, 50, 75, 95, 100):
        values[f"band_p{q}"] = (np.log2(1 + np.percentile(away, q)) - 8) / 6
    values |= {
        "band_median": 1 + _ratio((1 + np.median(away)) / (1 + pattern.n), 8),
        "band_most": 1 + _ratio((1 + np.percentile(away, 95)) / (1 + pattern.n), 8),
        "lower": float((beside < 0).mean()),
        "upper": float((beside > 0).mean()),
    }
    return values


def _asked(pattern: Pattern, places: np.ndarray) -> dict[str, float]:
    """How many of some sampled entries (r, c) have an entry at (c, r), and beside or below themselves."""
    places = places[:: -(-len(places) // ASKED)]
    columns, rows = pattern.indices[places].astype(np.int64), rows_of(pattern, places)
    mirrored = present(pattern, columns, rows)
    off = rows != columns
    steps = {"right": (0, 1), "below": (1, 0), "below_right": (1, 1), "below_left": (1, -1), "after": (0, 2)}
    values = {name: present(pattern, rows + down, columns + right).mean() for name, (down, right) in steps.items()}
    strictly = mirrored[off].mean() if off.any() else 1.0
    return {**values, "mirrored": mirrored.mean(), "mirrored_strictly": strictly}


def _looks(pattern: Pattern, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Look, row and column of each entry of the looks, int64, in the order of A look after look."""
    if pattern.nnz <= WHOLE:
        places = np.arange(pattern.nnz)
        return np.zeros(len(places), np.int64), rows_of(pattern, places), pattern.indices.astype(np.int64)
    chosen = stratified(pattern.nnz, LOOKS, rng)
    found = [_look(pattern, int(place), int(row)) for place, row in zip(chosen, rows_of(pattern, chosen), strict=True)]
    looks = np.repeat(np.arange(len(found)), [len(rows) for rows, _ in found])
    return looks, np.concatenate([rows for rows, _ in found]), np.concatenate([columns for _, columns in found])


def _look(pattern: Pattern, place: int, row: int) -> tuple[np.ndarray, np.ndarray]:
    """Row and column of the entries of the look that has this entry of this row."""
    indptr, indices = pattern.indptr, pattern.indices
    for tall in (120, 24):  # multiples of every height
        first = row - row % tall
        stop = min(first + tall, pattern.m)
        begin, end = int(indptr[first]), int(indptr[stop])
        if end - begin <= LOOK_ENTRIES:
            rows = np.repeat(np.arange(first, stop, dtype=np.int64), np.diff(indptr[first : stop + 1]))
            return rows, indices[begin:end].astype(np.int64)
    begin, end = int(indptr[row]), int(indptr[row + 1])  # too many: the columns that a run in this row reaches
    begin = max(min(place, end - LOOK_RUN), begin)
    left = indices.dtype.type(int(indices[begin]) // 24 * 24)
    right = indices.dtype.type(min(int(indices[min(begin + LOOK_RUN, end) - 1]) // 24 * 24 + 23, pattern.n - 1))
    found = []
    for each in range(first, stop):
        columns = indices[int(indptr[each]) : int(indptr[each + 1])]
        columns = columns[np.searchsorted(columns, left) : np.searchsorted(columns, right, side="right")]
        found.append(columns[: 4 * LOOK_RUN].astype(np.int64))
    return np.repeat(np.arange(first, stop, dtype=np.int64), [len(each) for each in found]), np.concatenate(found)


def _weights(looks: np.ndarray) -> np.ndarray:
    """Of each entry: looks weigh the same, and so do the entries of one."""
    sizes = np.bincount(looks)
    return 1 / (len(sizes) * sizes[looks])


def _changes(*keys: np.ndarray) -> np.ndarray:
    """Where any key differs from the one before it, bool; the first does."""
    changed = np.ones(len(keys[0]), bool)
    changed[1:] = np.logical_or.reduce([key[1:] != key[:-1] for key in keys])
    return changed


def _runs(looks: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> dict[str, float]:
    """Of the looks: distances between neighbours in a row, and runs of consecutive columns."""
    weights = _weights(looks)
    heads = np.flatnonzero(_changes(looks, rows, columns - np.arange(len(columns))))
    lengths, shares = np.diff(heads, append=len(rows)), np.add.reduceat(weights, heads)
    values = {"run_mean": _ratio(1 / weights[heads].sum(), 4)}
    values |= {f"run_{least}": float(shares[lengths >= least].sum()) for least in (2, 4, 8)}
    gaps = np.diff(columns)[~_changes(looks, rows)[1:]]
    if len(gaps):
        values |= {"gap_one": float((gaps == 1).mean()), "gap_line": float((gaps <= 8).mean())}
        values["gap_p50"] = (np.log2(np.median(gaps)) - 8) / 8
    return values


def _offsets(pattern: Pattern, looks: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> dict[str, float]:
    """Of the looks: how many diagonals (column minus row), and the share of the entries on the fullest of them."""
    weights = _weights(looks)
    offsets, on = np.unique(columns - rows, return_inverse=True)
    upto = np.cumsum(np.sort(np.bincount(on, weights))[::-1])
    count = len(offsets)
    values = {f"on_{k}": float(upto[min(k, count) - 1]) for k in (1, 3, 5, 9, 27, 64)}
    return values | {
        "diagonals": (np.log2(count) - 6) / 4,
        "diagonals_64": float(count <= 64),
        "dia": _ratio(count * pattern.m / pattern.nnz),
        "main": float(weights[columns == rows].sum()),
        "farthest": _log(np.abs(offsets).max()),
    }


def _fills(looks: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> dict[str, float]:
    """Of the looks: entries per slot of aligned R x S blocks, 0 to 1 as -1 to 1."""
    weights, values = _weights(looks), {}
    for height in HEIGHTS:
        order = np.lexsort((columns, rows // height, looks)) if height > 1 else np.arange(len(rows))
        up, across, of, weight = rows[order] // height, columns[order], looks[order], weights[order]
        for R, S in BLOCKS:
            if height == R:
                blocks = weight[_changes(of, up, across // S)].sum()  # per entry
                values[f"fill_{R}x{S}"] = 2 / (blocks * R * S) - 1
    return values


def _map(pattern: Pattern, places: np.ndarray) -> dict[str, float]:
    """The share of the entries in each of CELLS x CELLS parts of A, over that of an even spread: -1 (none) to 1."""
    down = rows_of(pattern, places) * CELLS // pattern.m
    across = pattern.indices[places].astype(np.int64) * CELLS // pattern.n
    shares = np.bincount(down * CELLS + across, minlength=CELLS**2) / len(places)
    return dict(zip(_MAP, np.log2(shares * CELLS**2 + CELLS**-2) / 6, strict=True))
