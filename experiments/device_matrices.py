"""The matrices that device_check.py times and calibrate.py counts: made from a recipe, each of another structure.

The same name gives the same matrix on every machine, so that nothing has to travel. "tiny" ones are those of the tests
of these two scripts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import scipy.sparse as sp

from sparsegen import gallery

SEED = 7013


def _lengths(m: int, n: int, least: int, most: int) -> sp.csr_array:
    return gallery.rows(np.random.default_rng(SEED).integers(least, most + 1, m), n, seed=SEED)


SMALL: dict[str, Callable[[], sp.csr_array]] = {  # every template is checked on these
    "stencil2d": lambda: gallery.stencil2d(151, 133),
    "stencil3d": lambda: gallery.stencil3d(23, 21, 19, points=27),
    "banded": lambda: gallery.banded(20_003, 20_011, (-700, -3, 0, 1, 5, 900), density=0.8, seed=SEED),
    "blocks3": lambda: gallery.block(2003, 2003, 3, 3, 6, seed=SEED),
    "blocks4": lambda: gallery.block(1501, 1201, 4, 4, 4, seed=SEED),
    "uniform": lambda: gallery.uniform(15_013, 12_007, 150_001, seed=SEED),
    "powerlaw": lambda: gallery.powerlaw(20_011, 20_011, 160_001, seed=SEED),
    "dense_row": lambda: gallery.dense_row(12_011, 12_007, 3, 4, seed=SEED),
    "short_rows": lambda: _lengths(40_009, 30_011, 0, 4),
    "long_rows": lambda: _lengths(301, 20_011, 300, 700),
    "arrow": lambda: gallery.arrow(9_001, 2, seed=SEED),
    "bipartite": lambda: gallery.bipartite(3_001, 21_001, seed=SEED),
}
LARGE: dict[str, Callable[[], sp.csr_array]] = {  # timed beside the small ones; the last four do not fit an L2
    "uniform_1m": lambda: _lengths(50_021, 50_021, 18, 22),
    "powerlaw_2m": lambda: gallery.powerlaw(150_011, 150_011, 2_000_003, seed=SEED),
    "blocks3_3m": lambda: gallery.block(30_011, 30_011, 3, 3, 11, seed=SEED),
    "dense_row_1m": lambda: gallery.dense_row(200_003, 200_003, 4, 3, seed=SEED),
    "stencil2d_5m": lambda: gallery.stencil2d(1_009, 997),
    "stencil3d_10m": lambda: gallery.stencil3d(73, 71, 71, points=27),
    "uniform_10m": lambda: _lengths(400_009, 400_009, 24, 26),
    "short_rows_5m": lambda: gallery.banded(1_500_007, 1_500_011, (-1, 0, 2, 5_003), density=0.8, seed=SEED),
}
TINY: dict[str, Callable[[], sp.csr_array]] = {
    "tiny_blocks": lambda: gallery.block(31, 29, 3, 3, 3, seed=SEED),
    "tiny_graph": lambda: gallery.powerlaw(301, 299, 1511, seed=SEED),
}
VARIED = ("uniform", "powerlaw", "uniform_1m", "stencil2d_5m", "powerlaw_2m", "uniform_10m")  # all instances are timed
WIDE = ("uniform", "powerlaw", "blocks3", "uniform_1m")  # of SpMM


@functools.cache  # some take seconds to draw, and are asked for several times
def get(name: str) -> sp.csr_array:
    """The matrix of a name, which must not be changed. Raises KeyError."""
    return {**SMALL, **LARGE, **TINY}[name]()
