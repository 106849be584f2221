"""The statistics are what their names say, exactly or near it, and those that claim it do not see an order."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from sparsegen import formats, gallery
from sparsegen.formats import blocks
from sparsegen.model import encoder, statistics
from sparsegen.model.entries import present, rows_of, stratified
from sparsegen.problem import Pattern, Problem

SEED = 7013
PLACES = {name: (t, i) for t, names in enumerate(statistics.NAMES) for i, name in enumerate(names)}


def told(A, **of) -> dict[str, float]:
    table = statistics.of(Problem(of.pop("op", "spmv"), Pattern.of(sp.csr_array(A)), **of), SEED)
    return {name: float(table[place]) for name, place in PLACES.items()}


def test_every_number_has_a_name_and_a_place():
    assert all(len(names) <= statistics.STATISTIC for names in statistics.NAMES)
    assert len(PLACES) == sum(map(len, statistics.NAMES)) and set(statistics.INVARIANT) < set(PLACES)
    table = statistics.of(Problem("spmv", Pattern.of(gallery.stencil2d(23, 19))), SEED)
    assert table.shape == (len(statistics.NAMES), statistics.STATISTIC) and table.dtype == np.float32
    unnamed = np.ones(table.shape, bool)
    unnamed[tuple(zip(*PLACES.values(), strict=True))] = False
    assert not table[unnamed].any()


def test_every_name_is_computed(monkeypatch):
    seen = {}
    monkeypatch.setattr(statistics, "_table", lambda values: seen.update(values))
    statistics.of(Problem("spmv", Pattern.of(gallery.uniform(203, 199, 5003))), SEED)
    assert set(seen) == set(PLACES)


def test_row_lengths_by_hand():
    found = told(gallery.rows([0, 1, 1, 4, 14, 10, 1, 1, 1, 7], 31))  # 40 entries in 10 rows
    assert found["p0"] == -1 and found["p50"] == pytest.approx((1 - 4) / 4)
    assert found["p100"] == pytest.approx((np.log2(15) - 4) / 4)
    assert found["empty"] == pytest.approx(0.1) and found["single"] == found["alike"] == pytest.approx(0.5)
    assert found["up_to_4"] == pytest.approx(0.7) and found["up_to_8"] == pytest.approx(0.8)
    assert found["ell"] == pytest.approx(np.log2(10 * 14 / 40))
    assert found["longest"] == pytest.approx(np.log2(14 / 4) / 4)
    assert found["sell_all"] == pytest.approx(np.log2(8 * (14 + 1) / 40))  # 14 10 7 4 1 1 1 1 | 1 0
    assert found["sell_8_1"] == 2  # 8 (14 + 7) slots, over four times 40: as far as it goes
    assert found["lanes_4"] == pytest.approx(np.log2(4 * (1 + 1 + 1 + 4 + 3 + 1 + 1 + 1 + 2) / 40) / 2**0.5)
    assert found["lengths"] == pytest.approx(np.log2(6) / 5)
    variance = np.var([0, 1, 1, 4, 14, 10, 1, 1, 1, 7])
    assert found["variation"] == pytest.approx(np.log2(1 + np.sqrt(variance) / 4) / 2)
    dense = told(gallery.dense_row(1001, 997))
    assert dense["dense_rows"] == pytest.approx(np.log2(3) / 4)
    assert dense["dense_entries"] == pytest.approx(2 * 997 / (2 * 997 + 999 * 3))


def test_paddings_are_those_of_the_formats():
    A = Pattern.of(gallery.small()["row_lengths"])
    found = told(sp.csr_array((np.ones(A.nnz), A.indices, A.indptr), shape=A.shape))
    sell, ell = formats.get("sell"), formats.get("ell")
    for name, (SLICE, SIGMA) in statistics.PADDINGS.items():
        assert found[f"sell_{name}"] == pytest.approx(min(np.log2(sell.stored(A, SLICE=SLICE, SIGMA=SIGMA) / A.nnz), 2))
    assert found["sell_all"] == pytest.approx(np.log2(sell.stored(A, SLICE=8, SIGMA=0) / A.nnz))
    assert found["ell"] == pytest.approx(min(np.log2(ell.stored(A) / A.nnz), 2))


@pytest.mark.parametrize("name", ["block_3x3", "block_2x5", "uniform", "banded_wide"])
def test_fill_is_that_of_blocks(name):
    A = gallery.small()[name]
    padded = Pattern((-(-A.shape[0] // 24) * 24, -(-A.shape[1] // 24) * 24), A.indptr, A.indices)
    padded = Pattern(padded.shape, np.pad(A.indptr, (0, padded.m - A.shape[0]), mode="edge"), A.indices)
    found = told(A)
    for R, S in statistics.BLOCKS:
        slots = len(blocks(padded, R, S)[1]) * R * S
        assert found[f"fill_{R}x{S}"] == pytest.approx(2 * A.nnz / slots - 1)


def test_structure_is_seen():
    stencil = told(gallery.stencil2d(23, 19))
    assert stencil["diagonals"] == pytest.approx((np.log2(5) - 6) / 4) and stencil["on_5"] == 1
    assert stencil["mirrored"] == stencil["mirrored_strictly"] == stencil["diagonals_64"] == stencil["square"] == 1
    pattern = Pattern.of(gallery.stencil2d(23, 19))
    assert stencil["dia"] == pytest.approx(np.log2(5 * pattern.m / pattern.nnz))
    band = told(gallery.banded(2011, 2011, (-3, 0, 5)))
    assert band["after"] == 0 and band["below"] == 0 and band["below_right"] > 0.99 and band["mirrored_strictly"] == 0
    assert band["band_p100"] == pytest.approx((np.log2(6) - 8) / 6)
    assert band["lower"] == pytest.approx(1 / 3, abs=0.01) and band["upper"] == pytest.approx(1 / 3, abs=0.01)
    block = told(gallery.block(61, 59, 3, 4))
    assert block["rows_by_3"] == block["columns_by_4"] == block["fill_3x4"] == 1 and block["rows_by_2"] == 0
    assert block["run_4"] == 1 and block["run_8"] < 0.5
    dense = told(np.ones((27, 45)))
    assert dense["run_8"] == dense["gap_one"] == 1 and dense["right"] == pytest.approx(44 / 45, abs=0.01)
    assert dense["run_mean"] == pytest.approx(np.log2(45) / 4)


def test_the_map_shows_where():
    A = sp.csr_array((np.ones(80), (np.repeat(np.arange(80), 1), np.arange(80))), shape=(80, 80))
    found = told(A)
    for i in range(8):
        for j in range(8):
            assert found[f"map_{i}_{j}"] == pytest.approx(np.log2((8 if i == j else 0) + 1 / 64) / 6, abs=1e-6)


def test_sizes_depend_on_the_operands():
    A = gallery.uniform(301, 499, 1009)
    one, many = told(A), told(A, op="spmm", k=32, dtype=np.dtype(np.float32), threads=4)
    assert one["bytes_x"] == pytest.approx((np.log2(1 + 499 * 8) - 20) / 8)
    assert many["bytes_x"] == pytest.approx((np.log2(1 + 499 * 32 * 4) - 20) / 8)
    assert many["bytes_csr"] == pytest.approx((np.log2(1 + 1009 * 8 + 302 * 4) - 20) / 8)
    assert many["k"] == 1.25 and many["threads"] == pytest.approx(2 / 3)
    assert one["x_l1"] == -1 and many["x_l1"] == pytest.approx(np.log2(1 + 499 * 128) - 15) and many["x_l2"] == -1
    assert one["p50"] == many["p50"]


@pytest.mark.parametrize("name", gallery.small())
def test_what_claims_it_does_not_see_the_order_of_rows_and_columns(name):
    A = gallery.small()[name]
    one, other = told(A), told(gallery.permuted(A, seed=17))
    assert {key for key in statistics.INVARIANT if one[key] != other[key]} == set()


def test_the_rest_does():
    A = gallery.stencil2d(61, 59)
    one, other = told(A), told(gallery.permuted(A, seed=17))
    changed = {key for key in PLACES if one[key] != other[key]}
    assert {"diagonals", "fill_2x2", "band_p50", "mirrored", "map_0_0", "sell_8_1"} <= changed


def test_invariant_ones_are_exact_for_many_rows():
    lengths = np.zeros(3 * statistics.CHUNK + 17, int)  # several chunks, more rows than are sampled
    assert len(lengths) > statistics.SAMPLED_ROWS
    rng = np.random.default_rng(SEED)
    lengths[rng.permutation(len(lengths))[:7]] = [5001, 5001, 6007, 3, 3, 3, 9]
    indptr = np.concatenate(([0], np.cumsum(lengths)))
    pattern = Pattern((len(lengths), 7001), indptr, np.arange(indptr[-1]) % 7001)
    values, counts = statistics.histogram(pattern)
    assert values.tolist() == [0, 3, 9, 5001, 6007] and counts.tolist() == [len(lengths) - 7, 3, 1, 2, 1]


def samples_are_small(patch) -> None:
    for name, size in (("WHOLE", 400), ("SAMPLED_ROWS", 1 << 10), ("SAMPLED_ENTRIES", 1 << 12), ("LOOK_ENTRIES", 256)):
        patch.setattr(statistics, name, size)


@pytest.mark.parametrize("make", [
    lambda: gallery.block(997, 1013, 3, 2, 5), lambda: gallery.stencil3d(19, 17, 13),
    lambda: gallery.uniform(2999, 3001, 60_017), lambda: gallery.powerlaw(4001, 4001, 40_009),
    lambda: gallery.uniform(301, 307, 45_007), lambda: gallery.block(29, 41, 6, 6, 23),
    lambda: gallery.rows(np.arange(3001) % 37, 2003),
])  # fmt: skip
def test_samples_are_near_the_whole(make, monkeypatch):
    A = make()
    for name in ("WHOLE", "SAMPLED_ROWS", "SAMPLED_ENTRIES", "ASKED"):
        monkeypatch.setattr(statistics, name, 1 << 20)
    whole = told(A)
    samples_are_small(monkeypatch)
    sampled = told(A)
    ends = {
        "top_1",
        "top_8",
        "top_64",
        "distinct",
        "farthest",
        "diagonals",
        "diagonals_64",
        "dia",
        "band_p100",
        "gap_p50",
    }
    apart = {key: abs(whole[key] - sampled[key]) for key in PLACES if not key.startswith("map_") and key not in ends}
    assert {key: round(value, 2) for key, value in apart.items() if value > 0.25} == {}
    assert np.mean(list(apart.values())) < 0.04


def test_blocks_are_whole_in_samples(monkeypatch):
    samples_are_small(monkeypatch)
    for A in (gallery.block(997, 1013, 6, 4, 5), gallery.block(401, 397, 6, 4, 97)):  # few and many entries in 24 rows
        found = told(A)
        assert found["fill_6x4"] == found["fill_3x2"] == found["fill_1x4"] == 1 and found["fill_8x8"] < 0.7


def test_looks_of_heavy_rows_do_not_count_more(monkeypatch):
    """Half of the entries alone in their rows, half in full runs of 48: 9 blocks of 1 x 8 for 16 entries."""
    samples_are_small(monkeypatch)
    alone, runs = np.arange(12_000) * 7 % 1200, np.tile(np.arange(48), 250)
    indptr = np.concatenate((np.arange(12_000), 12_000 + 48 * np.arange(251)))
    A = sp.csr_array((np.ones(24_000), np.concatenate((alone, runs)), indptr), shape=(12_250, 1200))
    found = told(A)
    assert 2 / (8 * (found["fill_1x8"] + 1)) == pytest.approx(9 / 16, abs=0.04)


def test_no_pass_over_the_entries():
    """2^36 entries that take no memory: whatever reads or copies all of them does not come back."""
    indices = np.broadcast_to(np.array([7], np.int32), 1 << 36)
    pattern = Pattern((5, 11), np.array([0, 1 << 33, 1 << 33, 1 << 34, 3 << 34, 1 << 36]), indices)
    with np.errstate(divide="ignore"):  # columns of a row are distinct in real ones
        structure = encoder.encode(Problem("spmv", pattern))
    assert np.isfinite(structure.statistics).all() and len(structure.coordinates) >= 40


def test_stratified_takes_one_of_each_part():
    rng = np.random.default_rng(SEED)
    assert stratified(7, 9, rng).tolist() == list(range(7)) and len(stratified(0, 9, rng)) == 0
    found = stratified(10**12 + 7, 1000, rng)
    assert (found * 1000 // (10**12 + 7)).tolist() == list(range(1000))
    few = stratified(13, 11, rng)
    assert (np.diff(few) > 0).all() and few[0] >= 0 and few[-1] < 13 and len(few) >= 6


@pytest.mark.parametrize("name", gallery.small())
def test_rows_and_presence_are_those_of_the_matrix(name):
    A = gallery.small()[name]
    pattern, coo = Pattern.of(A), A.tocoo()
    np.testing.assert_array_equal(rows_of(pattern, np.arange(pattern.nnz)), coo.coords[0])
    m, n = A.shape
    rows, columns = (each.ravel() for each in np.meshgrid(np.arange(-1, min(m, 60) + 1), np.arange(-1, n + 2)))
    inside = (rows >= 0) & (rows < m) & (columns >= 0) & (columns < n)
    held = np.zeros((m, n), bool)
    held[coo.coords] = True
    expected = inside & held[np.clip(rows, 0, m - 1), np.clip(columns, 0, n - 1)]
    np.testing.assert_array_equal(present(pattern, rows, columns), expected)
