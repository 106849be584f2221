"""Synthetic twins: from a few numbers of a matrix, another one of the same kind of structure.

The numbers are those of the artificial-matrix literature (Mpakos, Galanopoulos, Anastasiadis, Papadopoulou, Koziris &
Goumas, 2023): row lengths, how far apart a row's entries lie, how often they are neighbours in their row, how much the
next row is like it; two are ours: whether that likeness goes along the diagonal, and how far rows lie from it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from sparsegen.canonical import from_triplets
from sparsegen.errors import SparsegenTypeError, SparsegenValueError

PASSES = 5  # a twin is drawn, measured and drawn again with corrected numbers
MOST_ENTRIES = 1 << 31


@dataclass(frozen=True)
class Statistics:
    """The numbers of a matrix.

    rows, cols. mean, deviation: of the row lengths. skew: (longest row - mean) / mean. bandwidth: the mean distance of
    a row's first and last entry, in columns with both counted, as a share of cols (rows without entries do not count).
    clustering: neighbours of an entry in its row, one column away, 0 to 2 on average. similarity: the share of the
    entries that have one in the next row at most one column away, 0 to 1; shift: the share of the entries that have
    one in the next row exactly one column further (as along a diagonal). drift: the mean distance of a row's middle
    from the diagonal, as a share of cols.
    """

    rows: int
    cols: int
    mean: float
    deviation: float
    skew: float
    bandwidth: float
    clustering: float
    similarity: float
    shift: float = 0.0
    drift: float = 0.0

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


def statistics(A: sp.csr_array) -> Statistics:
    """The numbers of a canonical CSR matrix; exact, in a time that grows with its entries."""
    (m, n), indptr, columns = A.shape, A.indptr.astype(np.int64), A.indices.astype(np.int64)
    lengths = np.diff(indptr)
    if not A.nnz:
        return Statistics(int(m), int(n), 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    mean = A.nnz / m
    filled = np.flatnonzero(lengths)
    first, last = columns[indptr[filled]], columns[indptr[filled + 1] - 1]
    middle = (filled + 0.5) * (n / m) - 0.5
    rows = np.repeat(np.arange(m), lengths)
    beside = np.count_nonzero((np.diff(columns) == 1) & (np.diff(rows) == 0))
    place = rows * n + columns  # ascending
    at, right, left = (_among(place, (rows + 1) * n + columns + step) for step in (0, 1, -1))
    right &= columns + 1 < n
    left &= columns > 0
    return Statistics(
        int(m), int(n), mean, float(lengths.std()), float(lengths.max() / mean - 1),
        float(np.mean(last - first + 1) / n), 2 * beside / A.nnz, float(np.mean(at | right | left)),
        float(np.mean(right)), float(np.mean(np.abs((first + last) / 2 - middle)) / n),
    )  # fmt: skip


def twin(stats: Statistics | Mapping[str, float], seed: int) -> sp.csr_array:
    """A matrix with these numbers, or close to them; canonical float64 CSR, values standard normal.

    stats: a Statistics, or a mapping with its fields (further ones are passed over; shift and drift may be missing).
    The numbers of rows and columns are met exactly, the number of entries to within five in a hundred and mostly much
    better, the others as well as they go together. What they do not say is not imitated: symmetry, which
    columns are popular, values. Raises SparsegenValueError for numbers that no matrix has.
    """
    asked = _checked(stats)
    if asked.mean * asked.rows < 0.5 or not asked.cols:  # no whole entry
        return from_triplets([], [], np.empty(0), (asked.rows, asked.cols))
    best, least, knobs = None, math.inf, asked
    for _ in range(PASSES):
        A = _drawn(knobs, asked, seed)
        found = statistics(A)
        error = distance(found, asked) + abs(found.mean / asked.mean - 1)  # entries matter most
        if error < least:
            best, least = A, error
        if error < 0.01:
            break
        knobs = _corrected(knobs, asked, found)
    assert best is not None
    return best


def distance(found: Statistics, asked: Statistics) -> float:
    """How far two matrices' numbers are apart: the mean over the numbers, each as a share of its size or range."""
    relative = [
        abs(getattr(found, name) - getattr(asked, name)) / max(getattr(asked, name), floor)
        for name, floor in (("mean", 1e-9), ("deviation", 0.1 * asked.mean + 0.1), ("skew", 0.5))
    ]
    wide = max(asked.bandwidth, 1 / asked.cols)
    spread = [abs(found.bandwidth - asked.bandwidth) / wide, abs(found.drift - asked.drift) / max(asked.drift, 0.02)]
    shares = [
        abs(found.clustering - asked.clustering) / 2, abs(found.similarity - asked.similarity),
        abs(found.shift - asked.shift),
    ]  # fmt: skip
    return float(np.mean(relative + spread + shares))


def _among(sorted_places: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    at = np.searchsorted(sorted_places, wanted)
    at[at == len(sorted_places)] = 0
    return sorted_places[at] == wanted


def _checked(stats: Statistics | Mapping[str, float]) -> Statistics:
    if isinstance(stats, Mapping):
        known = {field.name for field in fields(Statistics)}
        missing = known - {"shift", "drift"} - set(stats)
        if missing:
            raise SparsegenValueError(f"statistics without {', '.join(sorted(missing))}; a twin needs them")
        given: dict[str, Any] = {name: stats[name] for name in known & set(stats)}
        stats = Statistics(**given)
    if not isinstance(stats, Statistics):
        raise SparsegenTypeError(f"statistics of type {type(stats).__qualname__}; expected Statistics or a mapping")
    for name, value in asdict(stats).items():
        if not math.isfinite(value) or value < 0:
            raise SparsegenValueError(f"{name} is {value}; expected a number of at least 0")
    m, n = int(stats.rows), int(stats.cols)
    longest = stats.mean * (1 + stats.skew)
    if stats.mean > n or longest > n * (1 + 1e-6) + 0.5 or stats.mean * m > MOST_ENTRIES:
        raise SparsegenValueError(
            f"rows of {stats.mean:g} entries on average, {longest:g} at most, do not fit a {m} x {n} matrix"
        )
    for name, most in (("bandwidth", 1.0), ("clustering", 2.0), ("similarity", 1.0), ("shift", 1.0), ("drift", 1.0)):
        if getattr(stats, name) > most:
            raise SparsegenValueError(f"{name} is {getattr(stats, name)}; expected at most {most:g}")
    return replace(stats, rows=m, cols=n)


def _corrected(knobs: Statistics, asked: Statistics, found: Statistics) -> Statistics:
    """What to draw with next, when drawing with `knobs` gave `found` where `asked` was wanted."""

    def scaled(name: str, most: float) -> float:
        now, wanted, had = getattr(knobs, name), getattr(asked, name), getattr(found, name)
        return min(now * min(max(wanted / had, 0.5), 2.0), most) if had > 0 else wanted

    def moved(name: str, most: float) -> float:
        return min(max(getattr(knobs, name) + getattr(asked, name) - getattr(found, name), 0.0), most)

    return replace(
        knobs, mean=scaled("mean", knobs.cols), deviation=scaled("deviation", math.inf),
        bandwidth=scaled("bandwidth", 1.0), drift=scaled("drift", 1.0), clustering=moved("clustering", 2.0),
        similarity=moved("similarity", 1.0), shift=moved("shift", 1.0),
    )  # fmt: skip


def _drawn(knobs: Statistics, asked: Statistics, seed: int) -> sp.csr_array:
    """Groups of consecutive rows share a template, the columns of their longest row; the others leave some out."""
    rng = np.random.default_rng(seed)
    m, n = asked.rows, asked.cols
    group, along = _groups(rng, knobs, m)
    lengths = _lengths(rng, knobs, asked, group)
    if not lengths.any():
        return from_triplets([], [], np.empty(0), (m, n))
    starts = np.flatnonzero(np.diff(group, prepend=-1))
    longest = np.maximum.reduceat(lengths, starts)
    indptr, template = _templates(rng, knobs, longest, starts, along)
    rows = np.repeat(np.arange(m), lengths)
    of = group[rows]
    j = np.arange(len(rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    left = 1 + np.floor(rng.random(m) * (lengths - 1)).astype(np.int64)  # left out is what follows so many entries
    j += np.where(j >= left[rows], longest[of] - lengths[rows], 0)
    columns = template[indptr[of] + j]
    step = np.where(along[of], rows - starts[of], 0)
    inside = (columns + step >= 0) & (columns + step < n)
    if inside.mean() < 0.9:  # too much would be lost at the ends: what reaches one stays there
        first, last = template[np.minimum(indptr[:-1], len(template) - 1)], template[np.maximum(indptr[1:] - 1, 0)]
        step = np.maximum(np.minimum(step, n - 1 - last[of]), -first[of])
        inside[:] = True
    rows, columns = rows[inside], (columns + step)[inside]
    return from_triplets(rows, columns, rng.standard_normal(len(rows)), (m, n))


def _lengths(rng: np.random.Generator, knobs: Statistics, asked: Statistics, group: np.ndarray) -> np.ndarray:
    """Row lengths: a bell around the mean where the longest row is not far from it, else an even bulk with a tail that
    falls off from the longest row; in a group, each row is about as long as the one before."""
    m, n = asked.rows, asked.cols
    longest = min(max(round(asked.mean * (1 + asked.skew)), 1), n)
    mean, deviation = min(knobs.mean, longest), knobs.deviation
    if deviation < 1e-9:
        values = np.full(m, mean)
    elif longest - mean <= 5 * deviation:
        shape = max((mean / deviation) ** 2, 1e-9)
        values = rng.gamma(shape, mean / shape, m) if shape < 9 else rng.normal(mean, deviation, m)
    else:
        values = _tailed(rng, m, mean, deviation, longest)
    values = np.clip(values, 0, longest)
    low = np.floor(values)
    sizes = (low + (rng.random(m) < values - low)).astype(np.int64)
    sizes[np.argmax(sizes)] = longest
    sizes = _summing(rng, sizes, round(mean * m), longest)
    walk = np.cumsum(0.1 * rng.standard_normal(m))
    starts = np.flatnonzero(np.diff(group, prepend=-1))
    key = (rng.standard_normal(len(starts)) - walk[starts])[group] + walk
    ordered = np.empty(m, np.int64)
    ordered[np.argsort(key)] = np.sort(sizes)
    return ordered


def _tailed(rng: np.random.Generator, m: int, mean: float, deviation: float, longest: float) -> np.ndarray:
    """An even bulk, and a tail longest * exp(-(i / decay)^power) whose sum and sum of squares are what remains."""
    even = min(0.3 * mean, 0.7 * deviation)  # the bulk's own deviation
    squares = deviation**2 - even**2
    bulk = mean - 2 * squares / longest  # with power 1 the squares of the tail sum to half of longest times its sum
    power = 1.0
    if bulk < 0.2 * mean:  # its sum would be too large: fewer rows, longer ones
        bulk = 0.2 * mean
        ratio = (squares + mean**2 - bulk**2) / (longest * (mean - bulk))
        power = min(max(math.log(2) / -math.log(min(ratio, 0.99)), 1.0), 20.0)
    decay = (mean - bulk) * m / (longest * math.gamma(1 + 1 / power))
    tail = longest * np.exp(-((np.arange(m) / max(decay, 0.3)) ** power))
    return np.maximum(tail, rng.normal(bulk, min(even, 0.3 * bulk), m))


def _summing(rng: np.random.Generator, sizes: np.ndarray, total: int, longest: int) -> np.ndarray:
    """The sizes with one added or taken at random rows until they sum to `total`, none beyond 0 or the longest."""
    keep = int(np.argmax(sizes))
    for _ in range(64):
        missing = total - int(sizes.sum())
        if not missing:
            break
        free = np.flatnonzero((sizes < longest) if missing > 0 else (sizes > 0))
        free = free[free != keep]
        if not len(free):
            break
        chosen = rng.permutation(free)[: abs(missing)]
        sizes[chosen] += 1 if missing > 0 else -1
    return sizes


def _groups(rng: np.random.Generator, knobs: Statistics, m: int) -> tuple[np.ndarray, np.ndarray]:
    """(group of each row, whether a group follows the diagonal): a row goes on with its group as often as rows are
    alike, and a group follows the diagonal as often as their likeness does."""
    fresh = rng.random(m) >= knobs.similarity
    fresh[:1] = True
    group = np.cumsum(fresh) - 1
    share = min(knobs.shift / max(knobs.similarity, 1e-9), 1.0)
    return group, rng.random(int(group[-1]) + 1) < share


def _templates(
    rng: np.random.Generator, knobs: Statistics, longest: np.ndarray, starts: np.ndarray, along: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(where each group's columns begin, columns): runs of neighbours, apart by gaps, over a span of columns.

    Where nearly all rows follow the diagonal, as in stencils, most groups have the offsets of one of them, or a part of
    its offsets, so that there are as few diagonals.
    """
    n, count = knobs.cols, len(longest)
    alike = along & (longest > 0) & (rng.random(count) < knobs.shift**4)
    runs = longest * (1 - min(knobs.clustering, 2.0) / 2)
    runs = np.floor(runs) + (np.where(alike, 0.5, rng.random(count)) < runs - np.floor(runs))
    runs = np.clip(runs, np.minimum(longest, 1), longest).astype(np.int64)
    runs = np.minimum(runs, n - longest + 1)  # each but the first needs a free column before it
    least = longest + np.maximum(runs - 1, 0)
    span = _spans(np.where(alike, 1.0, rng.uniform(0.6, 1.4, count)), knobs, least, runs)
    indptr = np.concatenate(([0], np.cumsum(longest)))
    owner = np.repeat(np.arange(count), longest)
    gaps = _gaps(rng, longest, runs, span, owner, indptr)
    inside = np.cumsum(gaps)
    inside -= np.repeat(inside[indptr[:-1][longest > 0]], longest[longest > 0])
    away = rng.choice((-1, 1), count) * rng.exponential(knobs.drift * n, count)
    if alike.any():
        one = int(np.argmax(np.where(alike, longest, -1)))
        offsets = inside[indptr[one] : indptr[one + 1]]
        left = 1 + np.floor(rng.random(count) * (longest - 1)).astype(np.int64)
        j = np.arange(len(owner)) - indptr[owner]
        j += np.where(j >= left[owner], longest[one] - longest[owner], 0)
        inside = np.where(alike[owner], offsets[np.where(alike[owner], j, 0)], inside)
        away[alike], span[alike] = away[one], span[one]
    middle = (starts + 0.5) * (n / knobs.rows) + away
    outside = ((middle < 0) | (middle > n)) & ~alike
    middle[outside] = rng.uniform(0, n, int(outside.sum()))
    first = np.rint(middle - span / 2).astype(np.int64)
    first = np.where(alike, first, np.clip(first, 0, n - span))
    return indptr, first[owner] + inside


def _spans(factor: np.ndarray, knobs: Statistics, least: np.ndarray, runs: np.ndarray) -> np.ndarray:
    """Columns from first to last of each group: in proportion to `factor`, on average what the bandwidth says; its own
    where there is one run."""
    n = knobs.cols
    free = runs > 1

    def spans(width: float) -> np.ndarray:
        return np.where(free, np.clip(width * factor, least, n), least)

    filled, low, high = least > 0, 0.0, 4.0 * n
    for _ in range(40):
        width = (low + high) / 2
        low, high = (low, width) if spans(width)[filled].mean() > knobs.bandwidth * n else (width, high)
    return np.rint(spans(low)).astype(np.int64)


def _gaps(rng, longest, runs, span, owner, indptr) -> np.ndarray:
    """The distance of each entry of a template from the one before: 1 within a run; more between runs, so that all of
    them make up the span. Where a run begins is drawn, the first entry of a template apart."""
    size = len(owner)
    heads = np.zeros(size, bool)
    rest = np.ones(size, bool)
    rest[indptr[:-1][longest > 0]] = False  # the first entries begin a run anyway
    key = np.where(rest, rng.random(size), 2.0)
    order = np.lexsort((key, owner))
    rank = np.empty(size, np.int64)
    rank[order] = np.arange(size) - indptr[owner[order]]
    heads = rest & (rank < (runs - 1)[owner])
    spare = span - longest  # free columns, at least one for each gap
    weight = np.where(heads, rng.exponential(1.0, size), 0.0)
    total = np.bincount(owner, weight, len(longest))
    more = np.maximum(spare - np.maximum(runs - 1, 0), 0)
    passed = np.cumsum(weight) - np.repeat(np.concatenate(([0.0], np.cumsum(total)))[:-1], longest)
    share = np.where(heads, passed / np.maximum(total[owner], 1e-300), 0.0)
    reached = np.where(heads, np.rint(np.minimum(share, 1.0) * more[owner]), 0.0)
    # free columns before each head: what is reached there less what was reached at the head before
    at = np.flatnonzero(heads)
    step = reached[at] - np.where(np.diff(owner[at], prepend=-1) == 0, np.concatenate(([0.0], reached[at][:-1])), 0.0)
    gaps = np.ones(size, np.int64)
    gaps[at] = 2 + np.maximum(step, 0).astype(np.int64)
    return gaps
