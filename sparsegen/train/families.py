"""Synthetic matrices to learn from: families of the gallery's structures with sizes and shapes drawn at random.

A family is a name and a way to draw one matrix; families that start HELD_OUT are for evaluation alone.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np
import scipy.sparse as sp

from sparsegen import gallery
from sparsegen.canonical import from_triplets

LEAST, MOST = 1_500, 600_000  # entries
HELD_OUT = ("stencil2d_nine", "arrow", "bipartite", "block_five", "powerlaw_mild")


def names() -> tuple[str, ...]:
    return tuple(_FAMILIES)


def draw(family: str, number: int) -> sp.csr_array:
    """Matrix `number` of a family, the same each time: canonical float64 CSR of about LEAST to MOST entries."""
    rng = np.random.default_rng([20260, zlib.crc32(family.encode()), number])
    return _FAMILIES[family](rng, int(np.exp(rng.uniform(np.log(LEAST), np.log(MOST)))))


def _seed(rng: np.random.Generator) -> int:
    return int(rng.integers(2, 1 << 31))


def _grid(rng: np.random.Generator, rows: int, axes: int) -> list[int]:
    """Sides of a grid of about `rows` points, not all alike."""
    stretch = np.exp(rng.uniform(-0.7, 0.7, axes))
    sides = (rows / stretch.prod()) ** (1 / axes) * stretch
    return [max(int(side), 3) for side in sides]


def _stencil2d(points: int):
    def make(rng, nnz):
        nx, ny = _grid(rng, max(nnz // points, 9), 2)
        return gallery.stencil2d(nx, ny, points, variable=True, seed=_seed(rng))

    return make


def _stencil3d(points: int):
    def make(rng, nnz):
        nx, ny, nz = _grid(rng, max(nnz // points, 27), 3)
        return gallery.stencil3d(nx, ny, nz, points, variable=True, seed=_seed(rng))

    return make


def _banded(low: float, high: float):
    def make(rng, nnz):
        count = int(rng.integers(3, 40))
        density = rng.uniform(low, high)
        m = max(int(nnz / count / density), 50)
        reach = int(min(m - 1, max(count, m ** rng.uniform(0.3, 0.9))))
        offsets = rng.choice(np.arange(-reach, reach + 1), count, replace=False)
        return gallery.banded(m, m, sorted(offsets.tolist()), density, seed=_seed(rng))

    return make


def _block(sides: tuple[int, ...]):
    def make(rng, nnz):
        r, c = (int(side) for side in rng.choice(sides, 2)) if rng.random() < 0.4 else (int(rng.choice(sides)),) * 2
        per_row = int(rng.integers(2, 14))
        rows = max(nnz // (r * c * per_row), 8)
        return gallery.block(rows, max(int(rows * rng.choice([1, 1, 0.5])), 4), r, c, per_row, seed=_seed(rng))

    return make


def _mesh(rng, nnz):
    """Finite elements: a stencil whose points carry several unknowns each, some of their blocks thinned out."""
    unknowns, points = int(rng.choice([1, 2, 3, 3, 4, 6])), int(rng.choice([5, 9]))
    nx, ny = _grid(rng, max(nnz // (points * unknowns**2), 9), 2)
    points_A = gallery.stencil2d(nx, ny, points, variable=True, seed=_seed(rng))
    A = sp.kron(points_A, np.ones((unknowns, unknowns)), "coo")
    kept = rng.random(A.nnz) < rng.choice([1.0, 1.0, 0.85])
    return _relabelled(rng, A.row[kept], A.col[kept], A.shape, near=int(rng.choice([1, 30, 300])))


def _relabelled(rng, row, column, shape, near: int) -> sp.csr_array:
    """Rows and columns renumbered alike within windows of `near`, as mesh generators leave them."""
    order = np.argsort(np.arange(shape[0]) + rng.uniform(0, near, shape[0]))
    place = np.empty_like(order)
    place[order] = np.arange(shape[0])
    return from_triplets(place[row], place[column], rng.standard_normal(len(row)), shape)


def _uniform(rng, nnz):
    per_row = float(np.exp(rng.uniform(0.3, 4.3)))
    m = max(int(nnz / per_row), 20)
    n = max(int(m * np.exp(rng.normal(0, 0.8))), 20)
    return gallery.uniform(m, n, min(nnz, m * n // 2), seed=_seed(rng))


def _rows(kind: str):
    def make(rng, nnz):
        mean = float(np.exp(rng.uniform(0.7, 4.0)))
        m = max(int(nnz / mean), 40)
        n = max(int(m * np.exp(rng.normal(0, 0.5))), int(4 * mean) + 10)
        if kind == "lognormal":
            lengths = rng.lognormal(0, rng.uniform(0.3, 1.3), m)
        elif kind == "bimodal":
            lengths = np.where(rng.random(m) < rng.uniform(0.02, 0.5), rng.uniform(3, 12), 1.0)
        elif kind == "sorted":
            lengths = np.sort(rng.lognormal(0, 0.8, m))[::-1]
        elif kind == "emptied":
            lengths = np.where(rng.random(m) < rng.uniform(0.3, 0.9), 0.0, rng.uniform(0.5, 2, m))
        else:
            lengths = np.ones(m)
        lengths = np.clip(np.rint(lengths * mean / max(lengths.mean(), 1e-9)), 0, n).astype(np.int64)
        return gallery.rows(lengths, n, seed=_seed(rng))

    return make


def _powerlaw(skew: tuple[float, float, float, float]):
    def make(rng, nnz):
        m = max(int(nnz / np.exp(rng.uniform(0.8, 3.2))), 64)
        return gallery.powerlaw(m, m, min(nnz, m * m // 8), skew, seed=_seed(rng))

    return make


def _dense_rows(rng, nnz):
    per_row = int(rng.integers(2, 8))
    m = max(nnz // (per_row + 2), 400)
    return gallery.dense_row(m, m, int(rng.integers(1, 4)), per_row, seed=_seed(rng))


def _arrow(rng, nnz):
    width = int(rng.integers(1, 4))
    return gallery.arrow(max(nnz // (2 * width + 1), 20), width, seed=_seed(rng))


def _bipartite(rng, nnz):
    per_column = int(rng.integers(2, 7))
    n = max(nnz // (per_column + 1), 40)
    return gallery.bipartite(max(int(n * rng.uniform(0.2, 0.8)), 20), n, per_column, seed=_seed(rng))


def _permuted(rng, nnz):
    family = str(rng.choice(["stencil2d", "stencil3d", "block", "banded"]))
    return gallery.permuted(_FAMILIES[family](rng, nnz), seed=_seed(rng))


def _clustered(rng, nnz):
    """Communities: entries fall near the diagonal, in clusters of columns, the rest anywhere."""
    per_row = float(np.exp(rng.uniform(0.7, 3.5)))
    m = max(int(nnz / per_row), 60)
    width = max(int(m ** rng.uniform(0.3, 0.8)), 8)
    rows = rng.integers(0, m, nnz)
    near = (rows // width) * width + rng.integers(0, width, nnz)
    columns = np.where(rng.random(nnz) < rng.uniform(0.6, 1.0), near % m, rng.integers(0, m, nnz))
    return from_triplets(rows, columns, rng.standard_normal(nnz), (m, m))


def _pruned(rng, nnz):
    """A pruned layer: a small dense matrix with a part of its weights left."""
    density = rng.uniform(0.02, 0.5)
    m = max(int((nnz / density) ** 0.5 * np.exp(rng.normal(0, 0.5))), 24)
    n = max(int(nnz / density / m), 24)
    return gallery.uniform(m, n, min(nnz, int(m * n * 0.6)), seed=_seed(rng))


def _runs(rng, nnz):
    run, per_row = int(rng.integers(3, 24)), int(rng.integers(1, 5))
    return gallery.runs(max(nnz // (run * per_row), 30), run, per_row, seed=rng)


_FAMILIES: dict[str, Callable[[np.random.Generator, int], sp.csr_array]] = {
    "stencil2d": _stencil2d(5),
    "stencil2d_nine": _stencil2d(9),
    "stencil3d": _stencil3d(7),
    "stencil3d_27": _stencil3d(27),
    "banded": _banded(0.95, 1.0),
    "banded_gaps": _banded(0.3, 0.9),
    "block": _block((2, 3, 4, 6)),
    "block_five": _block((5,)),
    "mesh": _mesh,
    "uniform": _uniform,
    "rows_lognormal": _rows("lognormal"),
    "rows_bimodal": _rows("bimodal"),
    "rows_sorted": _rows("sorted"),
    "rows_emptied": _rows("emptied"),
    "rows_constant": _rows("constant"),
    "powerlaw": _powerlaw((0.57, 0.19, 0.19, 0.05)),
    "powerlaw_mild": _powerlaw((0.45, 0.22, 0.22, 0.11)),
    "dense_rows": _dense_rows,
    "arrow": _arrow,
    "bipartite": _bipartite,
    "permuted": _permuted,
    "clustered": _clustered,
    "pruned": _pruned,
    "runs": _runs,
}
