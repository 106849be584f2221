"""What the model reads is what the paper's formula, the window rule and the vocabulary say, for every shape."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from sparsegen import gallery
from sparsegen.errors import SparsegenTypeError, SparsegenValueError
from sparsegen.model import encoder, statistics, windows
from sparsegen.model.encoder import CONDITIONS, EMBEDDINGS, TECHNIQUES, batch, encode, pretraining
from sparsegen.problem import Facts, Pattern, Problem

ROOT = Path(__file__).resolve().parent.parent
SMALL = {**gallery.tiny(), **gallery.small()}


def problem(A, **of) -> Problem:
    return Problem(of.pop("op", "spmv"), Pattern.of(sp.csr_array(A)), **of)


def words(ids: np.ndarray) -> list[str]:
    return [CONDITIONS[each] for each in ids]


def said(**of) -> list[str]:
    return words(encoder.conditions(problem(np.eye(5), **of), permitted=()))


def same(a: encoder.Structure, b: encoder.Structure) -> bool:
    return all(
        np.array_equal(getattr(a, part), getattr(b, part)) for part in ("conditions", "statistics", "coordinates")
    )


def offsets(coordinates: np.ndarray) -> np.ndarray:
    """Column minus row out of the tokens alone, for distances under 2^16 in square matrices."""
    sine = coordinates[:, windows.field("beside")][:, 0].astype(np.float64)
    logs = np.arcsin(sine) / np.pi * windows.LOG
    return np.rint(np.sign(logs) * (2 ** np.abs(logs) - 1)).astype(int)


def phase(coordinates: np.ndarray, name: str, period: int) -> np.ndarray:
    """Row or column modulo a period out of the tokens alone."""
    cycles, place = coordinates[:, windows.field(name)], windows.PERIODS.index(period)
    angle = np.arctan2(cycles[:, place], cycles[:, place + len(windows.PERIODS)])
    return np.rint(angle / (2 * np.pi) * period).astype(int) % period


def flag(coordinates: np.ndarray, name: str) -> np.ndarray:
    return coordinates[:, windows.field("flags")][:, windows.FLAGS.index(name)] == 1


def test_the_papers_formula_by_hand():
    # PE(i, 2j) = sin(i / 10000^(2j/d)), PE(i, 2j+1) = cos(...); d = 4: divisors 1 and 100
    found = encoder.positional(np.array([0, 1, 3, 250]), 4)
    assert found.shape == (4, 4)
    np.testing.assert_array_equal(found[0], [0, 1, 0, 1])
    np.testing.assert_allclose(found[1], [0.8414709848, 0.5403023059, 0.0099998333, 0.9999500004], atol=1e-10)
    np.testing.assert_allclose(found[2], [0.1411200081, -0.9899924966, 0.0299955002, 0.9995500337], atol=1e-10)
    np.testing.assert_allclose(found[3][2:], [0.5984721441, -0.8011436155], atol=1e-10)


def test_the_papers_tokens_are_one_per_nonzero():
    A = gallery.uniform(23, 29, 31)
    coordinates, d = encode(problem(A), "sinusoidal").coordinates, encoder.DEPTH
    assert coordinates.shape == (31, 2 * d) and encoder.width("sinusoidal") == 2 * d
    rows, columns = A.tocoo().coords
    for j in (0, 1, d // 2 - 1):
        divisor = 10000 ** (2 * j / d)
        np.testing.assert_allclose(coordinates[:, 2 * j], np.sin(rows / divisor), atol=1e-6)
        np.testing.assert_allclose(coordinates[:, 2 * j + 1], np.cos(rows / divisor), atol=1e-6)
        np.testing.assert_allclose(coordinates[:, d + 2 * j], np.sin(columns / divisor), atol=1e-6)
        np.testing.assert_allclose(coordinates[:, d + 2 * j + 1], np.cos(columns / divisor), atol=1e-6)


def test_the_other_variants():
    A = gallery.uniform(23, 29, 31)
    rows, columns = A.tocoo().coords
    np.testing.assert_array_equal(encode(problem(A), "raw").coordinates, np.stack((rows, columns), axis=1))
    scaled = encode(problem(A), "max_min").coordinates
    assert scaled.min() == 0 and scaled.max() == 1
    np.testing.assert_allclose(scaled[:, 0], (rows - rows.min()) / (rows.max() - rows.min()), rtol=1e-6)
    np.testing.assert_array_equal(encode(problem(SMALL["one_row"]), "max_min").coordinates[:, 0], 0)
    assert encode(problem(A), "none").coordinates.shape == (0, 1)


@pytest.mark.parametrize("embedding", ["raw", "max_min", "sinusoidal"])
def test_the_papers_variants_show_a_sorted_sample_without_repetition(embedding):
    A = gallery.uniform(203, 199, 5003)
    structure = encode(problem(A), embedding, tokens=67, seed=7)
    assert len(structure.coordinates) == 67
    raw = encode(problem(A), "raw", tokens=67, seed=7).coordinates.astype(int)
    places = raw[:, 0] * 199 + raw[:, 1]
    assert (np.diff(places) > 0).all()
    assert (A.tocoo().toarray()[raw[:, 0], raw[:, 1]] != 0).all()
    assert not np.array_equal(structure.coordinates, encode(problem(A), embedding, tokens=67, seed=9).coordinates)


@pytest.mark.parametrize("embedding", EMBEDDINGS)
@pytest.mark.parametrize("name", SMALL)
def test_every_shape_gives_finite_arrays_of_the_shapes_declared(name, embedding):
    of = problem(SMALL[name])
    structure = encode(of, embedding, tokens=33)
    assert structure.conditions.dtype == np.int64 and structure.conditions.ndim == 1
    assert structure.statistics.shape == (len(statistics.NAMES), encoder.STATISTIC)
    T, W = structure.coordinates.shape
    assert encoder.width(embedding) == W and min(of.pattern.nnz, 1) * (embedding != "none") <= T <= 33
    for array in (structure.statistics, structure.coordinates):
        assert array.dtype == np.float32 and np.isfinite(array).all()
    assert np.abs(structure.statistics).max() <= statistics.BOUND
    if embedding == "windows":
        assert np.abs(structure.coordinates).max(initial=0) <= 1
    assert same(structure, encode(problem(SMALL[name]), embedding, tokens=33))


@pytest.mark.parametrize("tokens", [1, 2, 3, 17, 64, 129])
@pytest.mark.parametrize("name", ["uniform", "dense", "empty_rows", "uniform_wide", "uniform_tall", "single_entry"])
def test_half_of_the_tokens_are_windows(name, tokens):
    of = problem(SMALL[name])
    coordinates = encode(of, tokens=tokens).coordinates
    inside = flag(coordinates, "window")
    assert (inside != flag(coordinates, "spread")).all()
    if of.pattern.nnz <= tokens:
        assert inside.all() and len(inside) == of.pattern.nnz
    else:
        assert inside.sum() <= tokens // 2 and 0.75 * (tokens - tokens // 2) <= (~inside).sum() <= tokens - tokens // 2
    assert (coordinates[~inside, windows.field("step")] == 0).all()
    assert (coordinates[inside, windows.field("step")].sum(axis=1) == 1).all()


def test_windows_of_a_stencil_have_its_offsets():
    A = gallery.stencil2d(101, 37)  # numbered along 37
    coordinates = encode(problem(A), tokens=64, seed=11).coordinates
    inside = flag(coordinates, "window")
    assert set(offsets(coordinates[inside]).tolist()) == {-37, -1, 0, 1, 37}
    exact = coordinates[inside, windows.field("offset")]
    near = np.abs(offsets(coordinates[inside])) <= windows.NEAR
    np.testing.assert_array_equal(exact.sum(axis=1), near)
    np.testing.assert_array_equal(exact[near].argmax(axis=1) - windows.NEAR, offsets(coordinates[inside])[near])
    assert flag(coordinates, "mirrored").all()
    interior = gallery.banded(20011, 20011, (-3, 0, 5))
    coordinates = encode(problem(interior), seed=11).coordinates
    assert flag(coordinates, "after").all() and not flag(coordinates, "below").any()
    assert not flag(coordinates, "mirrored")[offsets(coordinates) != 0].any()
    assert set(offsets(coordinates).tolist()) == {-3, 0, 5}


@pytest.mark.parametrize("R, S", [(3, 3), (2, 4), (6, 2)])
def test_windows_show_blocks_and_how_they_are_aligned(R, S):
    A = gallery.block(997, 1013, R, S, 9)
    coordinates = encode(problem(A), seed=13).coordinates
    rows, columns = phase(coordinates, "row_cycles", R), phase(coordinates, "column_cycles", S)
    below, above = flag(coordinates, "below"), flag(coordinates, "above")
    assert below[rows < R - 1].all() and above[rows > 0].all()
    assert below[rows == R - 1].mean() < 0.2 and above[rows == 0].mean() < 0.2
    gap_one = coordinates[:, windows.field("gap")][:, 1] == 1
    assert gap_one[columns > 0].all() and gap_one[columns == 0].mean() < 0.2
    steps = coordinates[flag(coordinates, "window"), windows.field("step")].argmax(axis=1)
    np.testing.assert_array_equal(steps % R, rows[flag(coordinates, "window")])


def test_windows_of_long_rows_look_at_the_same_columns():
    A = gallery.uniform(61, 97, 61 * 97)
    places, firsts = windows.choose(Pattern.of(A), 40, np.random.default_rng(7))
    inside = firsts >= 0
    rows, columns = np.divmod(places[inside], 97)
    assert len(set(firsts[inside].tolist())) == 2 and (firsts[inside] % windows.ALIGNED == 0).all()
    for first in set(firsts[inside].tolist()):
        mine = firsts[inside] == first
        assert rows[mine].min() == first and len(set(rows[mine].tolist())) == 2
        start = columns[mine][rows[mine] == first].min()
        assert start == columns[mine][rows[mine] == first + 1].min()
        assert start % windows.ALIGNED == 0 or start == 97 - windows.LONGEST


def test_windows_pass_over_empty_rows():
    lengths = np.zeros(30_011, int)
    lengths[::601] = 7
    of = problem(gallery.rows(lengths, 997))
    coordinates = encode(of, tokens=40, seed=9).coordinates
    assert flag(coordinates, "window").sum() >= 14 and flag(coordinates, "spread").sum() >= 15


def test_tokens_place_an_entry():
    A = sp.csr_array((np.ones(4), ([0, 2, 2, 2], [1, 0, 2, 3])), shape=(3, 4))
    coordinates = encode(problem(A)).coordinates
    np.testing.assert_array_equal(coordinates[:, windows.field("gap")].argmax(axis=1), [0, 0, 2, 1])
    np.testing.assert_array_equal(coordinates[:, windows.field("step")].argmax(axis=1), [0, 2, 2, 2])
    np.testing.assert_array_equal(flag(coordinates, "first"), [True, True, False, False])
    np.testing.assert_array_equal(flag(coordinates, "last"), [True, False, False, True])
    np.testing.assert_allclose(
        coordinates[:, windows.field("row")][:, 0], np.sin(np.pi * np.array([0, 2, 2, 2]) / 3), 1e-6
    )
    np.testing.assert_allclose(
        coordinates[:, windows.field("column")][:, 9], np.cos(2 * np.pi * np.array([1, 0, 2, 3]) / 4), atol=1e-6
    )


@pytest.mark.parametrize("embedding", EMBEDDINGS)
def test_the_dtype_of_the_indices_does_not_show(embedding):
    A = gallery.powerlaw(4001, 4003, 40_009)
    narrow = Pattern.of(A)
    wide = Pattern(narrow.shape, narrow.indptr.astype(np.int64), narrow.indices.astype(np.int64))
    assert narrow.indices.dtype == np.int32
    assert same(encode(Problem("spmv", narrow), embedding), encode(Problem("spmv", wide), embedding))


@pytest.mark.parametrize("count", [3, 50_021])
def test_more_columns_than_32_bits_count(count):
    n = 2**41 + 7
    columns = np.unique(np.random.default_rng(5).integers(0, n, 2 * count))
    indptr = np.array([0, 0, count, len(columns)])
    of = Problem("spmv", Pattern((3, n), indptr, columns))
    structure = encode(of)
    assert np.isfinite(structure.coordinates).all() and np.isfinite(structure.statistics).all()
    assert np.abs(structure.coordinates).max() <= 1 and len(structure.coordinates) >= min(2 * count, 45)
    assert "index:64" in words(structure.conditions)


def test_seeds_change_the_sample_and_nothing_else():
    of = problem(gallery.uniform(3001, 3011, 40_013))
    one, other = encode(of, seed=5), encode(of, seed=6)
    assert not np.array_equal(one.coordinates, other.coordinates)
    np.testing.assert_array_equal(one.conditions, other.conditions)
    assert not same(one, other) and same(one, encode(of, seed=5))
    assert np.abs(one.statistics - other.statistics).mean() < 0.03


def test_conditions_say_what_is_to_be_computed():
    assert said(device="AMD EPYC 7J13 avx512 2 cores") == [
        "op:spmv", "k:1", "dtype:f64", "index:32", "fact:opaque", "threads:1", "b:row", "c:row", "target:cpu",
        "device:avx512",
    ]  # fmt: skip
    found = said(
        op="spmm", k=32, facts=Facts(True, True), dtype=np.dtype(np.float32), layout_b="column", threads=4,
        deterministic=True, target="cuda", device="NVIDIA H100 sm_90 driver 13.0",
    )  # fmt: skip
    assert found == [
        "op:spmm", "k:32", "dtype:f32", "index:32", "fact:constant", "fact:exact_f32", "threads:3-4", "b:column",
        "c:row", "deterministic", "target:cuda", "device:sm_90",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "k, word", [(1, 1), (2, 2), (3, 4), (5, 4), (6, 8), (11, 8), (12, 16), (100, 128), (5000, 128)]
)
def test_k_is_the_nearest_power_of_two(k, word):
    assert f"k:{word}" in said(op="spmm", k=k)


@pytest.mark.parametrize(
    "threads, word", [(1, "1"), (2, "2"), (3, "3-4"), (4, "3-4"), (5, "5-8"), (8, "5-8"), (9, "9+"), (64, "9+")]
)
def test_threads_have_classes(threads, word):
    assert f"threads:{word}" in said(threads=threads)


@pytest.mark.parametrize(
    "target, device, word",
    [
        ("cpu", "Intel(R) Xeon(R) CPU avx2 8 cores", "avx2"),
        ("cpu", "cpu sse2 1 cores", "sse2"),
        ("cpu", "Apple M2 arm64 8 cores", "neon"),
        ("cpu", "Neoverse-N1 aarch64 4 cores", "neon"),
        ("cpu", "POWER9 ppc64le 8 cores", "other"),
        ("cpu", "", "other"),
        ("cuda", "NVIDIA A100-SXM4-40GB sm_80 driver 12.4", "sm_80"),
        ("cuda", "GPU sm_999 driver 99.0", "other"),
        ("cuda", "avx512", "other"),
    ],
)
def test_devices_have_classes(target, device, word):
    assert [each for each in said(target=target, device=device) if each.startswith("device:")] == [f"device:{word}"]


def test_techniques_are_conditions():
    of = problem(np.eye(5))
    everything = words(encoder.conditions(of))
    assert set(TECHNIQUES) < set(everything)
    some = words(encoder.conditions(of, permitted=frozenset({"may_block", "may_vector"})))
    assert [each for each in some if each.startswith("may_")] == ["may_vector", "may_block"]
    assert set(everything) - set(some) == set(TECHNIQUES) - {"may_block", "may_vector"}
    np.testing.assert_array_equal(encode(of, permitted=["may_pad"]).conditions, encoder.conditions(of, ["may_pad"]))


def test_places_of_words_do_not_move():
    """A checkpoint knows words by place: append, and extend this test."""
    assert CONDITIONS[0] == "" and len(set(CONDITIONS)) == len(CONDITIONS)
    places = {
        "op:spmv": 1, "k:1": 3, "k:128": 10, "dtype:f64": 12, "fact:opaque": 17, "threads:9+": 22, "deterministic": 27,
        "target:cuda": 29, "device:other": 30, "device:sm_121": 47, "may_vector": 48, "may_shared": 58,
        "task:pretrain": 59, "kind:other": 71,
    }  # fmt: skip
    assert {word: encoder.IDS[word] for word in places} == places
    assert set(TECHNIQUES) < set(CONDITIONS) and all(each.startswith("may_") for each in TECHNIQUES)


def test_pretraining_is_conditions_alone():
    structure = pretraining("cpp", ["task:pretrain", "kind:stencil"])
    assert words(structure.conditions) == ["target:cpu", "task:pretrain", "kind:stencil"]
    assert not structure.statistics.any() and structure.coordinates.shape == (0, encoder.width("windows"))
    np.testing.assert_array_equal(
        structure.conditions, pretraining("cpu", ["kind:stencil", "task:pretrain"]).conditions
    )
    assert pretraining("cuda", [], "raw").coordinates.shape == (0, 2)
    real = encode(problem(np.eye(5)))
    valid = statistics.NAMES[0].index("valid")
    assert real.statistics[0, valid] == 1 and structure.statistics[0, valid] == 0
    both = batch([structure, real])
    assert both.coordinates.shape == (2, 5, encoder.width("windows"))
    assert both.mask[0].sum() == 3 + len(statistics.NAMES)


def test_batches_are_padded_and_masked():
    structures = [
        encode(problem(gallery.uniform(23, 29, 31))),
        encode(problem(gallery.tiny()["no_rows"]), permitted=["may_vector"]),
        encode(problem(gallery.stencil2d(11, 13)), tokens=20),
    ]
    found = batch(structures)
    C, S, T = (
        max(len(each.conditions) for each in structures), len(statistics.NAMES),
        max(len(each.coordinates) for each in structures),
    )  # fmt: skip
    assert T == 31 and found.mask.shape == (3, C + S + T) and found.mask.dtype == bool
    assert found.conditions.dtype == np.int64 and found.statistics.dtype == found.coordinates.dtype == np.float32
    for i, each in enumerate(structures):
        c, t = len(each.conditions), len(each.coordinates)
        np.testing.assert_array_equal(found.conditions[i], np.pad(each.conditions, (0, C - c)))
        np.testing.assert_array_equal(found.statistics[i], each.statistics)
        np.testing.assert_array_equal(found.coordinates[i, :t], each.coordinates)
        assert not found.coordinates[i, t:].any()
        expected = [True] * c + [False] * (C - c) + [True] * S + [True] * t + [False] * (T - t)
        np.testing.assert_array_equal(found.mask[i], expected)
    alone = batch(structures[1:2])
    assert alone.coordinates.shape == (1, 0, encoder.width("windows")) and alone.mask.all()


def test_mistakes_are_errors():
    of = problem(np.eye(5))
    with pytest.raises(SparsegenValueError, match=r"'fourier'.*sinusoidal"):
        encode(of, "fourier")
    with pytest.raises(SparsegenValueError, match="tokens = 0"):
        encode(of, tokens=0)
    with pytest.raises(SparsegenValueError, match="may_cheat"):
        encode(of, permitted=["may_cheat"])
    with pytest.raises(SparsegenValueError, match="op:sddmm"):
        encode(replace(of, op="sddmm"))
    with pytest.raises(SparsegenTypeError, match="complex128"):
        encode(replace(of, dtype=np.dtype(np.complex128)))
    with pytest.raises(SparsegenValueError, match="kind:poem"):
        pretraining("cuda", ["kind:poem"])
    with pytest.raises(SparsegenValueError, match="target:fortran"):
        pretraining("fortran", [])
    with pytest.raises(SparsegenValueError, match="one embedding"):
        batch([encode(of), encode(of, "raw")])
    with pytest.raises(SparsegenValueError, match="one embedding"):
        batch([])


def test_reading_needs_no_training_library():
    code = "import sys, sparsegen.model.encoder; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = set(ran.stdout.split())
    assert "numpy" in loaded and not loaded & {"torch", "transformers", "tokenizers", "safetensors", "sklearn"}
