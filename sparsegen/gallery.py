"""Synthetic matrices, one function per structure class; all seeded, float64, canonical CSR.

The names and shapes are those of the field: stencils of finite differences and elements, bands, blocks, power-law
graphs (R-MAT: Chakrabarti, Zhan & Faloutsos, 2004), linear programs. Values are standard normal unless said
otherwise. Sizes that make no sense raise SparsegenValueError. `twin` makes a matrix after the `statistics` of another.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp

from sparsegen.canonical import from_compressed, from_triplets
from sparsegen.errors import SparsegenValueError
from sparsegen.twins import Statistics, statistics, twin

__all__ = [
    "Statistics", "arrow", "banded", "bipartite", "block", "circuit", "dense_row", "permuted", "powerlaw", "pruned",
    "road", "rows", "runs", "small", "statistics", "stencil2d", "stencil3d", "tiny", "twin", "uniform",
]  # fmt: skip

SEED = 20260


def stencil2d(nx: int, ny: int, points: int = 5, variable: bool = False, seed: int = SEED) -> sp.csr_array:
    """Diffusion on an nx x ny grid, 5 or 9 points, zero outside; (nx ny, nx ny), symmetric positive definite.

    constant: 4 (or 8) on the diagonal, -1 beside it. variable: -div(c grad u) with log-normal c on the edges.
    """
    if points not in (5, 9):
        raise SparsegenValueError(f"a 2-D stencil of {points} points; expected 5 or 9")
    return _stencil((nx, ny), points == 9, variable, seed)


def stencil3d(
    nx: int, ny: int, nz: int, points: int = 7, variable: bool = False, seed: int = SEED
) -> sp.csr_array:  # fmt: skip
    """As `stencil2d` on an nx x ny x nz grid, 7 or 27 points: 6 (or 26) on the diagonal, -1 beside it."""
    if points not in (7, 27):
        raise SparsegenValueError(f"a 3-D stencil of {points} points; expected 7 or 27")
    return _stencil((nx, ny, nz), points == 27, variable, seed)


def banded(m: int, n: int, offsets: Sequence[int], density: float = 1.0, seed: int = SEED) -> sp.csr_array:
    """Entries on the diagonals `offsets` (column minus row), each present with probability `density`."""
    rng = _rng(seed, m, n)
    rows = np.tile(np.arange(m), len(offsets))
    columns = rows + np.repeat(np.asarray(offsets, dtype=np.int64), m)
    kept = (columns >= 0) & (columns < n) & (rng.random(len(rows)) < density)
    return _normal(rng, rows[kept], columns[kept], m, n)


def block(
    block_rows: int, block_columns: int, r: int, c: int, per_row: int = 3, seed: int = SEED
) -> sp.csr_array:  # fmt: skip
    """Dense blocks of r x c: `per_row` of them (fewer where they collide) at random places of each block row."""
    rng = _rng(seed, block_rows, block_columns, r, c, per_row)
    if block_columns == 0:
        return _empty(block_rows * r, 0)
    up = np.repeat(np.arange(block_rows), per_row)
    across = rng.integers(0, block_columns, len(up))
    place = _distinct(up * block_columns + across)
    up, across = np.divmod(place, block_columns)
    rows = (up[:, None, None] * r + np.arange(r)[:, None] + np.zeros(c, np.int64)).ravel()
    columns = (across[:, None, None] * c + np.arange(c) + np.zeros((r, 1), np.int64)).ravel()
    return _normal(rng, rows, columns, block_rows * r, block_columns * c)


def uniform(m: int, n: int, nnz: int, seed: int = SEED) -> sp.csr_array:
    """`nnz` entries at distinct places drawn uniformly."""
    rng = _rng(seed, m, n, nnz)
    if nnz > m * n:
        raise SparsegenValueError(f"{nnz} entries do not fit a {m} x {n} matrix")
    if m * n < 1 << 22 or nnz * 4 > m * n:
        place = rng.choice(m * n, nnz, replace=False)
    else:
        place = _distinct(rng.integers(0, m * n, nnz))
        while len(place) < nnz:
            place = _distinct(np.concatenate((place, rng.integers(0, m * n, nnz - len(place)))))
    rows, columns = np.divmod(place, max(n, 1))
    return _normal(rng, rows, columns, m, n)


def powerlaw(
    m: int, n: int, nnz: int, skew: tuple[float, float, float, float] = (0.57, 0.19, 0.19, 0.05), seed: int = SEED
) -> sp.csr_array:
    """An R-MAT graph: `nnz` edges (fewer where they collide), each placed by descending into quadrants with
    probabilities `skew` (top left, top right, bottom left, bottom right); edges outside m x n are drawn again."""
    rng = _rng(seed, m, n, nnz)
    if nnz and not m * n:
        raise SparsegenValueError(f"{nnz} entries do not fit a {m} x {n} matrix")
    if min(skew) < 0 or abs(sum(skew) - 1) > 1e-9 or skew[0] == 0:
        raise SparsegenValueError(f"skew {skew}; expected four probabilities that sum to 1, the first positive")
    levels = max(m - 1, n - 1, 1).bit_length()
    rows, columns = np.empty(0, np.int64), np.empty(0, np.int64)
    while len(rows) < nnz:
        i, j = np.zeros(nnz, np.int64), np.zeros(nnz, np.int64)
        for _ in range(levels):
            quadrant = rng.choice(4, nnz, p=skew)
            i, j = 2 * i + quadrant // 2, 2 * j + quadrant % 2
        kept = (i < m) & (j < n)
        rows, columns = np.concatenate((rows, i[kept])), np.concatenate((columns, j[kept]))
    place = _distinct(rows[:nnz] * n + columns[:nnz])
    return _normal(rng, *np.divmod(place, max(n, 1)), m, n)


def rows(lengths: Sequence[int] | np.ndarray, n: int, seed: int = SEED) -> sp.csr_array:
    """Row i has lengths[i] entries, 0 allowed, in distinct columns drawn uniformly; (len(lengths), n)."""
    lengths = np.asarray(lengths, dtype=np.int64)
    rng = _rng(seed, len(lengths), n)
    if lengths.ndim != 1 or (lengths.size and not 0 <= lengths.min() <= lengths.max() <= n):
        raise SparsegenValueError(f"row lengths must be a list of numbers from 0 to the {n} columns")
    columns = [np.sort(rng.choice(n, length, replace=False)) for length in lengths.tolist() if length]
    indices = np.concatenate(columns) if columns else np.empty(0, np.int64)
    indptr = np.concatenate(([0], np.cumsum(lengths)))
    return from_compressed(indptr, indices, rng.standard_normal(len(indices)), (len(lengths), n))


def dense_row(m: int, n: int, full: int = 2, per_row: int = 3, seed: int = SEED) -> sp.csr_array:
    """`full` rows, spread evenly, with an entry in every column; `per_row` random entries in each of the others."""
    _rng(seed, m, n, full, per_row)
    if full > m:
        raise SparsegenValueError(f"{full} full rows do not fit {m} rows")
    lengths = np.full(m, min(per_row, n))
    lengths[(np.arange(full) * m + m // 2) // max(full, 1)] = n
    return rows(lengths, n, seed)


def arrow(n: int, width: int = 1, seed: int = SEED) -> sp.csr_array:
    """The diagonal, and the last `width` rows and columns full; (n, n)."""
    rng = _rng(seed, n, width)
    diagonal = np.arange(n)
    border = np.arange(max(n - width, 0), n)
    i, j = np.tile(diagonal, len(border)), np.repeat(border, n)
    place = _distinct(np.concatenate((diagonal * (n + 1), i * n + j, j * n + i)))
    return _normal(rng, *np.divmod(place, max(n, 1)), n, n)


def bipartite(m: int, n: int, per_column: int = 3, coupling: int = 2, seed: int = SEED) -> sp.csr_array:
    """A linear program's constraints: `per_column` entries of +-1 in each column, `coupling` full rows of costs,
    and a slack column (identity) for each row; (m, n + m)."""
    rng = _rng(seed, m, n, per_column, coupling)
    if per_column > m or coupling > m:
        raise SparsegenValueError(f"{max(per_column, coupling)} entries do not fit a column of {m}")
    columns = np.repeat(np.arange(n), per_column)
    place = np.concatenate([rng.choice(m, per_column, replace=False) for _ in range(n)] or [np.empty(0, np.int64)])
    signs = sp.coo_array((rng.choice([-1.0, 1.0], len(columns)), (place, columns)), shape=(m, n)).tolil()
    signs[:coupling, :] = rng.uniform(1.0, 100.0, (coupling, n))
    A = sp.hstack([signs.tocsr(), sp.eye_array(m)], format="csr") if m else sp.csr_array((0, n))
    return from_compressed(A.indptr, A.indices, A.data, A.shape)


def road(n: int, degree: float = 2.6, seed: int = SEED) -> sp.csr_array:
    """A road network: crossings on a grid, about sqrt(n) wide and numbered along it, each joined to its at most four
    neighbours by some of the streets; (n, n), symmetric, no diagonal, `degree` entries per row on average (0 to 4, less
    what the rim lacks), values the lengths of the streets."""
    rng = _rng(seed, n)
    if not 0 <= degree <= 4:
        raise SparsegenValueError(f"a road network with {degree} streets at a crossing; expected 0 to 4")
    wide = max(int(n**0.5), 1)
    node = np.arange(n)
    right, below = node[(node % wide < wide - 1) & (node + 1 < n)], node[node + wide < n]
    first, second = np.concatenate((right, below)), np.concatenate((right + 1, below + wide))
    count = min(round(degree * n / 2), len(first))
    kept = rng.permutation(len(first))[:count]
    first, second, length = first[kept], second[kept], rng.lognormal(size=count)
    return from_triplets(
        np.concatenate((first, second)), np.concatenate((second, first)), np.concatenate((length, length)), (n, n)
    )  # fmt: skip


def circuit(n: int, degree: float = 3.0, rails: int = 2, seed: int = SEED) -> sp.csr_array:
    """Nodal analysis of a circuit: devices between nodes that are mostly close in their numbering, and `rails` nodes
    (supply, ground, clock) that one node in eight is joined to; (n, n), symmetric pattern and values, a full diagonal
    that dominates, about `degree` entries beside it per row, the rails' apart."""
    rng = _rng(seed, n, rails)
    if rails > n or degree < 0 or (n < 2 and degree):
        raise SparsegenValueError(f"a circuit of {n} nodes, {rails} of them rails, of degree {degree}")
    count = round(degree * n / 2)
    first = rng.integers(0, max(n, 1), count)
    second = first + np.rint(rng.standard_cauchy(count) * 4).astype(np.int64)  # near, and now and then far
    wild = (second < 0) | (second >= n) | (second == first)
    second[wild] = (first[wild] + rng.integers(1, max(n, 2), int(wild.sum()))) % max(n, 1)
    rail = (np.arange(rails) * n + n // 2) // max(rails, 1)
    joined = rng.random((rails, n)) < 0.125
    joined[:, rail] = False
    which, node = np.nonzero(joined)
    first, second = np.concatenate((first, rail[which])), np.concatenate((second, node))
    place = _distinct(np.minimum(first, second) * n + np.maximum(first, second))
    first, second = np.divmod(place, max(n, 1))
    conductance = rng.lognormal(sigma=2.0, size=len(place))
    diagonal = np.bincount(first, conductance, n) + np.bincount(second, conductance, n) + rng.uniform(0.01, 1.0, n)
    node = np.arange(n)
    return from_triplets(
        np.concatenate((node, first, second)), np.concatenate((node, second, first)),
        np.concatenate((diagonal, -conductance, -conductance)), (n, n),
    )  # fmt: skip


def pruned(m: int, n: int, density: float = 0.1, seed: int = SEED) -> sp.csr_array:
    """A layer pruned by magnitude: of m x n normal weights, with a scale for each row and each column, the largest
    `density` of all are left: round(density m n) entries, their rows of uneven lengths."""
    rng = _rng(seed, m, n)
    if not 0 <= density <= 1:
        raise SparsegenValueError(f"a density of {density}; expected 0 to 1")
    weights = rng.standard_normal((m, n)) * rng.lognormal(sigma=0.25, size=(m, 1)) * rng.lognormal(sigma=0.25, size=n)
    count = round(density * m * n)
    flat = weights.ravel()
    place = np.argpartition(-np.abs(flat), max(count - 1, 0))[:count] if flat.size else np.empty(0, np.int64)
    return from_triplets(*np.divmod(place, max(n, 1)), flat[place], (m, n))


def runs(m: int, length: int = 8, per_row: int = 3, seed: int | np.random.Generator = SEED) -> sp.csr_array:
    """Rows of `per_row` runs of `length` consecutive columns at random places, as in images, genome contacts and
    supernodes; (m, m). Runs that meet overlap, their values summed."""
    rng = _rng(seed, m, length, per_row)
    starts = rng.integers(0, max(m - length, 1), (m, per_row))
    up = np.repeat(np.arange(m), per_row * length)
    columns = (starts[:, :, None] + np.arange(length)).ravel() % max(m, 1)
    return _normal(rng, up, columns, m, m)


def permuted(A: sp.csr_array, seed: int = SEED) -> sp.csr_array:
    """`A` with its rows and, independently, its columns in random order."""
    rng = _rng(seed)
    B = A.tocoo()
    return from_triplets(rng.permutation(A.shape[0])[B.row], rng.permutation(A.shape[1])[B.col], B.data, A.shape)


def tiny() -> dict[str, sp.csr_array]:
    """The edge cases: no rows, no columns, no entries, one row, one column, one entry."""
    return {
        "zero_by_zero": _empty(0, 0),
        "no_rows": _empty(0, 7),
        "no_columns": _empty(5, 0),
        "all_empty": _empty(9, 11),
        "one_row": uniform(1, 37, 13),
        "one_column": uniform(37, 1, 13),
        "one_by_one": from_triplets([0], [0], np.array([-2.5]), (1, 1)),
        "single_entry": from_triplets([6], [2], np.array([3.5]), (13, 5)),
    }


def small() -> dict[str, sp.csr_array]:
    """About twenty matrices of 20 to 3,000 rows, every structure class, on which every kernel must be right.

    No dimension is a multiple of 4, and few are even, so that no block, slice or vector fits by luck.
    """
    rng = np.random.default_rng(SEED)
    graded = np.minimum(rng.geometric(0.12, 507) - 1, 90)
    emptied = np.where(rng.random(301) < 0.6, 0, rng.integers(1, 9, 301))
    return {
        "stencil2d": stencil2d(23, 19),
        "stencil2d_variable": stencil2d(31, 17, variable=True),
        "stencil2d_nine": stencil2d(15, 21, points=9),
        "stencil3d": stencil3d(7, 9, 11),
        "stencil3d_27": stencil3d(5, 7, 9, points=27, variable=True),
        "tridiagonal": banded(203, 203, (-1, 0, 1)),
        "banded_gaps": banded(411, 411, (-29, -7, 0, 3, 17), density=0.6),
        "banded_wide": banded(53, 131, range(-9, 40), density=0.8),
        "block_3x3": block(51, 51, 3, 3),
        "block_2x5": block(67, 35, 2, 5),
        "uniform": uniform(499, 487, 6113),
        "uniform_tall": uniform(2999, 21, 7013),
        "uniform_wide": uniform(21, 2999, 7013),
        "powerlaw": powerlaw(1021, 1021, 8009),
        "row_lengths": rows(graded, 301),
        "empty_rows": rows(emptied, 299),
        "dense_row": dense_row(257, 251),
        "arrow": arrow(149, width=2),
        "bipartite": bipartite(61, 173),
        "permuted": permuted(stencil2d(19, 13, variable=True)),
        "dense": uniform(27, 45, 27 * 45),
        "one_value": from_compressed([0, 0, 2, 2, 3] + [3] * 18, [1, 20, 7], np.full(3, 0.5), (22, 23)),
    }


def _stencil(sizes: tuple[int, ...], corners: bool, variable: bool, seed: int) -> sp.csr_array:
    rng = _rng(seed, *sizes)
    grid = np.arange(int(np.prod(sizes))).reshape(sizes)
    firsts, seconds = [], []
    for step in np.ndindex(*(3,) * len(sizes)):
        offset = [d - 1 for d in step]
        if offset <= [0] * len(sizes) or (not corners and sum(map(abs, offset)) != 1):
            continue  # each edge once, from its lower end
        here = grid[tuple(slice(max(-d, 0), size - max(d, 0)) for d, size in zip(offset, sizes, strict=True))]
        there = grid[tuple(slice(max(d, 0), size - max(-d, 0)) for d, size in zip(offset, sizes, strict=True))]
        if here.size:
            firsts.append(here.ravel())
            seconds.append(there.ravel())
    count, degree = grid.size, 3 ** len(sizes) - 1 if corners else 2 * len(sizes)
    none = np.empty(0, np.int64)
    first, second = np.concatenate(firsts or [none]), np.concatenate(seconds or [none])
    weight = rng.lognormal(size=len(first)) if variable else np.ones(len(first))
    missing = degree - np.bincount(first, minlength=count) - np.bincount(second, minlength=count)
    diagonal = (
        np.bincount(first, weight, count) + np.bincount(second, weight, count) + missing  # outside: u = 0, c = 1
    )  # fmt: skip
    node = np.arange(count)
    return from_triplets(
        np.concatenate((node, first, second)), np.concatenate((node, second, first)),
        np.concatenate((diagonal, -weight, -weight)), (count, count),
    )  # fmt: skip


def _normal(rng: np.random.Generator, rows: np.ndarray, columns: np.ndarray, m: int, n: int) -> sp.csr_array:
    return from_triplets(rows, columns, rng.standard_normal(len(rows)), (m, n))


def _distinct(places: np.ndarray) -> np.ndarray:
    """Sorted, each once: numpy.unique hashes first, which takes ten times as long on millions."""
    places = np.sort(places)
    return places[np.diff(places, prepend=-1) > 0]


def _empty(m: int, n: int) -> sp.csr_array:
    return from_triplets([], [], np.empty(0), (m, n))


def _rng(seed: int | np.random.Generator, *sizes: int) -> np.random.Generator:
    if min(sizes, default=0) < 0:
        raise SparsegenValueError(f"a negative size among {sizes}")
    return np.random.default_rng(seed)
