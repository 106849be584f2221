"""Every format holds every small matrix it says it can: arrays, source map, sizes and cuts agree with the pattern."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.sparse as sp

from sparsegen import formats, gallery
from sparsegen.problem import Pattern

CHOICES = {
    "SLICE": (4, 8, 16), "SIGMA": (1, 5, 256, 0), "BITS": (16, 32), "R": (1, 2, 3), "S": (1, 2, 3), "CHUNK": (0, 7, 16),
}  # fmt: skip


def odd() -> dict[str, sp.csr_array]:
    rng = np.random.default_rng(1117)
    scattered = sp.random_array((53, 71), density=0.05, rng=rng, format="csr")
    late = sp.csr_array((np.ones(3), ([2, 2, 40], [5, 69, 0])), shape=(41, 70))
    wide = sp.csr_array((np.ones(4), ([0, 0, 1, 1], [0, 70_001, 3, 70_000])), shape=(2, 70_003))
    blocks = sp.csr_array(sp.kron(sp.random_array((13, 14), density=0.3, rng=rng), np.ones((6, 6))))
    chain = sp.diags_array([np.ones(31)] * 3, offsets=[-1, 0, 2], shape=(31, 31))
    return {
        "scattered": scattered,
        "late": late,
        "wide": wide,
        "blocks": blocks,
        "chain of blocks": sp.csr_array(sp.kron(chain, np.ones((6, 6)))),
        "row": sp.csr_array(np.arange(57.0)[None]),
        "column": sp.csr_array(np.where(np.arange(57) % 3, 1.5, 0)[:, None]),
        "empty": sp.csr_array((37, 11)),
        "rowless": sp.csr_array((0, 5)),
        "columnless": sp.csr_array((5, 0)),
        "one": sp.csr_array([[2.0]]),
    }


MATRICES = {**odd(), **gallery.small()}
PARAMS = {
    name: [dict(zip(formats.get(name).PARAMS, each, strict=True)) for each in itertools.product(
        *(CHOICES[param] for param in formats.get(name).PARAMS)
    )]
    for name in formats.names()
}  # fmt: skip
CASES = [(name, params) for name in formats.names() for params in PARAMS[name]]


def label(value: object) -> str:
    return value if isinstance(value, str) else "-".join(f"{key}{each}" for key, each in value.items())


def pattern_of(name: str, index=np.int32) -> Pattern:
    A = sp.csr_array(MATRICES[name])
    A.sum_duplicates()
    A.sort_indices()
    return Pattern(A.shape, A.indptr.astype(index), A.indices.astype(index))


def packs(name: str, params: dict, index=np.int32):
    """(matrix name, pattern, packed) for every matrix the format takes with these parameters."""
    format = formats.get(name)
    for matrix in MATRICES:
        pattern = pattern_of(matrix, index)
        if format.feasible(pattern, **params) is None:
            yield matrix, pattern, format.pack(pattern, index, index, **params)


def test_every_parameter_has_choices():
    assert {param for name in formats.names() for param in formats.get(name).PARAMS} == set(CHOICES)


@pytest.mark.parametrize("name, params", CASES, ids=label)
def test_holds_the_pattern(name, params):
    format, held = formats.get(name), 0
    for matrix, pattern, packed in packs(name, params):
        held += 1
        assert set(packed.arrays) == set(format.ARRAYS) - {"data"}, matrix
        assert set(packed.sizes) == set(format.SIZES), matrix
        assert packed.nnz == pattern.nnz
        assert packed.slots == format.stored(pattern, **params), matrix
        back = format.unpack(packed, pattern.shape)
        np.testing.assert_array_equal(back.indptr, pattern.indptr, err_msg=matrix)
        np.testing.assert_array_equal(back.indices, pattern.indices, err_msg=matrix)
    assert held >= 1


@pytest.mark.parametrize("name, params", CASES, ids=label)
def test_every_entry_has_one_slot(name, params):
    format = formats.get(name)
    for matrix, pattern, packed in packs(name, params):
        values = np.random.default_rng(2027).standard_normal(pattern.nnz)
        stored = formats.gather(values, packed, np.float64)
        assert stored.shape == (packed.slots,)
        if packed.source is None:
            assert packed.slots == pattern.nnz, matrix
            np.testing.assert_array_equal(stored, values)
            continue
        real = packed.source >= 0
        assert (packed.source[~real] == -1).all() and (stored[~real] == 0).all(), matrix
        np.testing.assert_array_equal(np.sort(packed.source[real]), np.arange(pattern.nnz), err_msg=matrix)
        np.testing.assert_array_equal(stored[real], values[packed.source[real]])
        if format.PADS == "none":
            assert real.all()


@pytest.mark.parametrize("name", formats.names())
def test_wide_indices_hold_the_same(name):
    params = PARAMS[name][0]
    narrow = {matrix: packed for matrix, _, packed in packs(name, params)}
    for matrix, pattern, packed in packs(name, params, np.int64):
        for key, array in packed.arrays.items():
            np.testing.assert_array_equal(array, narrow[matrix].arrays[key], err_msg=matrix)
        assert packed.slots == narrow[matrix].slots and pattern.indices.dtype == np.int64


@pytest.mark.parametrize("pieces", [1, 2, 7, 64])
@pytest.mark.parametrize("name", formats.names())
def test_cuts_cover_every_item_once(name, pieces):
    for params in PARAMS[name][:: max(len(PARAMS[name]) // 6, 1)]:
        for matrix, _, packed in packs(name, params):
            cuts = formats.get(name).cuts(packed, pieces)
            assert cuts.shape == (pieces + 1,) and cuts.dtype == np.int64
            assert cuts[0] == 0 and (np.diff(cuts) >= 0).all(), matrix
            whole = formats.get(name).cuts(packed, 1)[-1]
            assert cuts[-1] == whole, matrix
            if name == "coo":
                rows, inner = packed.arrays["rows"], cuts[(cuts > 0) & (cuts < whole)]
                assert (rows[inner] != rows[inner - 1]).all(), matrix


@pytest.mark.parametrize("name", ["csr", "sell", "bsr"])
def test_cuts_balance_the_work(name):
    pattern = Pattern.of(gallery.block(301, 301, 2, 2))
    packed = formats.get(name).pack(pattern, np.int32, np.int32)
    cuts = formats.get(name).cuts(packed, 4)
    work = packed.arrays["slices" if name == "sell" else "indptr"][cuts]
    assert np.diff(work).max() < 1.3 * np.diff(work).mean()


def refused(name: str, matrix: str, **params) -> str:
    reason = formats.get(name).feasible(pattern_of(matrix), **params)
    assert reason is not None and len(reason) > 15 and not reason.endswith(".")
    return reason


def test_refusals_say_why():
    assert "spans 70002 columns" in refused("sell", "wide", SLICE=2, BITS=16)
    assert "BITS is 24" in refused("sell", "scattered", BITS=24)
    assert "do not divide 53 x 71" in refused("bsr", "scattered", R=2, S=2)
    assert "do not divide 1 x 57" in refused("bsell", "row", R=3)
    assert "no entries" in refused("bsr", "empty", R=37, S=11)
    assert "no entries" in refused("dia", "empty")
    assert "diagonals" in refused("dia", "scattered")
    assert "slots" in refused("ell", "late")
    assert "slots" in refused("sell", "late", SLICE=16)
    assert "full" in refused("bsr", "late", R=41, S=70)


def test_a_look_refuses_as_the_whole_would():
    scattered = Pattern.of(gallery.uniform(12_000, 12_000, 60_000))
    assert "some rows" in str(formats.get("bsell").feasible(scattered, R=2, S=2))
    assert "rows" in str(formats.get("dia").feasible(scattered))


@pytest.mark.parametrize("SIGMA", [1, 5, 256, 0])
def test_lanes_are_sorted_in_windows(SIGMA):
    lengths = np.random.default_rng(31).integers(0, 40, 1003).astype(np.int32)
    order, starts = formats.sliced(lengths, 8, SIGMA)
    if order is None:
        assert SIGMA == 1
        order = np.arange(1003)
    window = SIGMA or 1003
    np.testing.assert_array_equal(np.sort(order), np.arange(1003))
    np.testing.assert_array_equal(order // window, np.arange(1003) // window)
    sorted_lengths = lengths[order]
    same = np.arange(1002) // window == np.arange(1, 1003) // window
    if SIGMA != 1:
        assert (np.diff(sorted_lengths)[same] <= 0).all()
    widths = [sorted_lengths[first : first + 8].max() for first in range(0, 1003, 8)]
    np.testing.assert_array_equal(np.diff(starts), 8 * np.array(widths))


def test_rows_longer_than_sixteen_bits_are_sorted():
    lengths = np.array([3, 70_000, 0, 66_000, 3])
    order, starts = formats.sliced(lengths, 4, 0)
    assert order is not None and order.tolist() == [1, 3, 0, 4, 2]
    assert starts.tolist() == [0, 280_000, 280_000]


def test_through_is_the_gather_in_pieces(monkeypatch):
    monkeypatch.setattr(formats, "PIECE", 7)
    source = np.array([3, -1, 0, 2, 2, -1, 1, 0, 3, -1, 1], np.int32)
    values = np.array([10.0, 20.0, 30.0, 40.0])
    expected = np.where(source < 0, -5.0, values[source])
    np.testing.assert_array_equal(formats.through(source, values, -5.0), expected)
    assert (formats.through(np.full(3, -1), np.empty(0), 0.0) == 0).all()


def test_diagonals_of_a_wide_matrix_need_no_counter_each():
    A = sp.csr_array((np.ones(4), ([0, 1, 1, 2], [2_000_000_000, 0, 1_999_999_999, 2])), shape=(3, 2_000_000_001))
    offsets, counts = Pattern.of(A).diagonals
    assert offsets.tolist() == [-1, 0, 1_999_999_998, 2_000_000_000] and counts.tolist() == [1, 1, 1, 1]
