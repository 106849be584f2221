"""Synthetic twins: the statistics are what they say, and a twin has those that were asked for."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sparsegen import gallery, twins
from sparsegen.canonical import from_triplets
from sparsegen.errors import SparsegenTypeError, SparsegenValueError
from sparsegen.targets import cpu
from sparsegen.twins import Statistics, statistics, twin

EXPERIMENTS = Path(__file__).resolve().parent.parent / "experiments"


def slow(A: sp.csr_array) -> Statistics:
    """The same numbers, entry after entry, as their definitions say them."""
    m, n = A.shape
    rows = [set(A.indices[A.indptr[i] : A.indptr[i + 1]].tolist()) for i in range(m)]
    lengths = np.array([len(row) for row in rows])
    mean = lengths.mean()
    filled = [(i, row) for i, row in enumerate(rows) if row]
    clustering = [len({j - 1, j + 1} & row) for row in rows for j in row]
    following = [*rows[1:], set()]
    similar = [bool({j - 1, j, j + 1} & after) for row, after in zip(rows, following, strict=True) for j in row]
    shifted = [j + 1 in after for row, after in zip(rows, following, strict=True) for j in row]
    drift = [abs((min(row) + max(row)) / 2 - ((i + 0.5) * n / m - 0.5)) for i, row in filled]
    return Statistics(
        m, n, mean, lengths.std(), max(lengths) / mean - 1, np.mean([max(row) - min(row) + 1 for _, row in filled]) / n,
        np.mean(clustering), np.mean(similar), np.mean(shifted), np.mean(drift) / n,
    )  # fmt: skip


@given(st.integers(1, 20), st.integers(1, 20), st.floats(0.01, 1), st.integers(2, 2**32))
def test_statistics_are_their_definitions(m, n, share, seed):
    A = gallery.uniform(m, n, max(int(share * m * n), 1), seed)
    expected, found = slow(A).as_dict(), statistics(A).as_dict()
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, abs=1e-12), name


def test_statistics_of_known_matrices():
    assert statistics(gallery.uniform(9, 7, 63)).as_dict() == pytest.approx(
        {
            "rows": 9, "cols": 7, "mean": 7, "deviation": 0, "skew": 0, "bandwidth": 1, "clustering": 12 / 7,
            "similarity": 8 / 9, "shift": 48 / 63, "drift": statistics(gallery.uniform(9, 7, 63)).drift,
        }
    )  # fmt: skip
    diagonal = statistics(gallery.banded(31, 31, [0]))
    assert (diagonal.mean, diagonal.bandwidth, diagonal.clustering, diagonal.drift) == (1, 1 / 31, 0, 0)
    assert diagonal.similarity == diagonal.shift == 30 / 31
    assert statistics(gallery.uniform(5, 7, 0)) == Statistics(5, 7, 0, 0, 0, 0, 0, 0)
    for name in ("zero_by_zero", "no_rows", "no_columns", "one_row", "one_by_one"):
        assert statistics(gallery.tiny()[name]).rows == gallery.tiny()[name].shape[0]


MODELS = {
    "stencil2d": gallery.stencil2d(53, 47),
    "stencil3d": gallery.stencil3d(13, 15, 17, points=27),
    "banded": gallery.banded(3001, 3001, [-90, -7, -1, 0, 1, 2, 90], density=0.8),
    "block": gallery.block(401, 401, 3, 3, per_row=5),
    "uniform": gallery.uniform(2003, 1501, 20011),
    "powerlaw": gallery.powerlaw(4093, 4093, 30011),
    "rows": gallery.rows(np.minimum(np.random.default_rng(7).geometric(0.08, 2011), 150), 3001),
    "dense_row": gallery.dense_row(2501, 2501, full=2),
    "bipartite": gallery.bipartite(507, 1501),
    "road": gallery.road(5003),
    "circuit": gallery.circuit(3001),
    "pruned": gallery.pruned(251, 509),
    "runs": gallery.runs(1009, 9, 3),
    "permuted": gallery.permuted(gallery.stencil2d(41, 37)),
}


@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_twin_has_the_numbers_that_were_asked_for(name):
    A = MODELS[name]
    asked = statistics(A)
    B = twin(asked, seed=7)
    found = statistics(B)
    assert B.shape == A.shape and B.dtype == np.float64
    sp.csr_array((B.data, B.indices, B.indptr), shape=B.shape).check_format(full_check=True)
    assert B.has_canonical_format
    assert found.mean == pytest.approx(asked.mean, rel=0.03)
    assert found.deviation == pytest.approx(asked.deviation, rel=0.25, abs=0.4)
    assert found.skew == pytest.approx(asked.skew, rel=0.1, abs=0.1)
    assert found.bandwidth == pytest.approx(asked.bandwidth, rel=0.2, abs=0.005)
    assert found.clustering == pytest.approx(asked.clustering, abs=0.12)
    assert found.similarity == pytest.approx(asked.similarity, abs=0.08)
    assert found.shift == pytest.approx(asked.shift, abs=0.12)
    assert found.drift == pytest.approx(asked.drift, rel=0.25, abs=0.02)
    assert twins.distance(found, asked) < 0.12
    other = statistics(gallery.uniform(*A.shape, A.nnz, seed=7))
    if name not in ("uniform", "permuted"):
        assert twins.distance(found, asked) < 0.5 * twins.distance(other, asked)


def test_a_twin_of_a_stencil_lies_on_few_diagonals():
    B = twin(statistics(gallery.stencil2d(53, 47)), seed=7).tocoo()
    counts = np.sort(np.unique(B.col - B.row, return_counts=True)[1])
    assert counts[-6:].sum() > 0.8 * B.nnz


def test_twins_are_seeded():
    asked = statistics(MODELS["powerlaw"])
    first, again, other = (twin(asked, seed) for seed in (7, 7, 11))
    assert (first != again).nnz == 0 and (first != other).nnz > 0
    assert (twin({**asked.as_dict(), "name": "ignored"}, 7) != first).nnz == 0


@settings(max_examples=60)
@example(1, 1, 5e-324, 0.125, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
@given(
    st.integers(1, 60), st.integers(1, 60), st.floats(0, 1), st.floats(0, 30), st.floats(0, 20), st.floats(0, 1),
    st.floats(0, 2), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1),
)  # fmt: skip
def test_any_numbers_give_a_matrix(m, n, share, deviation, skew, bandwidth, clustering, similarity, shift, drift):
    mean = share * n
    skew = min(skew, n / mean - 1) if mean > 1e-9 else 0.0
    B = twin(Statistics(m, n, mean, deviation, max(skew, 0.0), bandwidth, clustering, similarity, shift, drift), 7)
    assert B.shape == (m, n)
    sp.csr_array((B.data, B.indices, B.indptr), shape=B.shape).check_format(full_check=True)


@pytest.mark.parametrize("shape", [(0, 0), (0, 7), (5, 0), (9, 11)])
def test_twins_of_nothing(shape):
    A = from_triplets([], [], np.empty(0), shape)
    B = twin(statistics(A), 7)
    assert B.shape == shape and B.nnz == 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"mean": 60.0}, "do not fit a 50 x 40"), ({"skew": 30.0}, "do not fit"), ({"mean": -1.0}, "mean is -1"),
        ({"deviation": float("nan")}, "deviation is nan"), ({"bandwidth": 1.5}, "bandwidth is 1.5"),
        ({"clustering": 2.5}, "at most 2"), ({"similarity": float("inf")}, "similarity is inf"),
    ],
)  # fmt: skip
def test_numbers_that_no_matrix_has(change, said):
    good = Statistics(50, 40, 4.0, 1.0, 1.0, 0.5, 0.5, 0.5)
    with pytest.raises(SparsegenValueError, match=said):
        twin(replace(good, **change), 7)


def test_what_is_no_statistics():
    with pytest.raises(SparsegenValueError, match="without bandwidth, clustering"):
        twin({"rows": 3, "cols": 3, "mean": 1.0, "deviation": 0.0, "skew": 0.0, "similarity": 0.0}, 7)
    with pytest.raises(SparsegenTypeError, match="int"):
        twin(5, 7)  # type: ignore[arg-type]


@pytest.mark.skipif(cpu.available() is not None, reason="measures compiled kernels")
def test_the_experiment_runs(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(EXPERIMENTS))
    monkeypatch.delitem(sys.modules, "twins", raising=False)
    experiment = importlib.import_module("twins")
    try:
        experiment.main(["--smoke", "--out", str(tmp_path)])
        lines = (tmp_path / "twins.jsonl").read_text().count("\n")
        text = (tmp_path / "twins.md").read_text()
        assert lines == 3 and "| twin | 2 |" in text and "| stencil2d |" in text
        experiment.main(["--smoke", "--out", str(tmp_path)])  # nothing is measured twice
        assert (tmp_path / "twins.jsonl").read_text().count("\n") == lines
    finally:
        sys.modules.pop("twins", None)
