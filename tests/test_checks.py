"""The inputs kernels are checked on, and the rule by which y is right."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import scipy.sparse as sp
from support import problem_of, right

from sparsegen import checks, gallery
from sparsegen.arena import ALIGN, GUARD, Arena
from sparsegen.checks import CHECKS, References, reference, worst
from sparsegen.problem import Facts
from sparsegen.verdict import Level, Timing, Verdict

SMALL = gallery.small()
DTYPES = [np.float32, np.float64]


def problem(name="uniform", dtype=np.float64, **options):
    return problem_of(SMALL[name].astype(dtype), **{"facts": None, **options})


def product(given, check):
    """y of a correct kernel in the problem's own precision, sums taken in some order."""
    data, x, y0 = checks.inputs(given, check)
    A = sp.csr_array((data, given.pattern.indices, given.pattern.indptr), shape=given.pattern.shape)
    with np.errstate(invalid="ignore"):
        y = given.dtype.type(check.alpha) * (A @ x)
        return y if check.beta == 0 else y + given.dtype.type(check.beta) * y0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: f"{check.kind}{check.seed}")
def test_what_scipy_computes_is_right(name, dtype, check):
    given = problem(name, dtype)
    assert References(given).worst(check, product(given, check)) <= 1


def test_inputs_follow_from_the_seed_alone():
    given = problem()
    for check in CHECKS:
        first, again = checks.inputs(given, check), checks.inputs(given, check)
        for a, b in zip(first, again, strict=True):
            np.testing.assert_array_equal(a, b)
    assert len({checks.inputs(given, check)[1].tobytes() for check in CHECKS}) == len(CHECKS)
    assert len({check.seed for check in CHECKS}) == len(CHECKS)
    assert not np.array_equal(*checks.timed_inputs(given))


def test_inputs_are_of_their_kind():
    given = problem()
    for check in CHECKS:
        data, x, y0 = checks.inputs(given, check)
        assert (data.shape, x.shape, y0.shape) == ((given.pattern.nnz,), (given.pattern.n,), (given.pattern.m,))
        assert np.isnan(y0).all() == (check.beta == 0)
        if check.kind == "integer":
            assert (data == np.round(data)).all()
            assert (x == np.round(x)).all()
            assert data.min() >= 1 and np.abs(x).min() >= 1 and np.abs(x).max() <= 7
        elif check.kind == "special":
            assert np.isnan(x).any()
            assert np.isinf(x).any()
            assert (data == 0).any()
            stored = ~np.isfinite(data)
            assert np.isinf(data).any() and np.isnan(data).any()
            assert (x[given.pattern.indices[stored]] == 0).any()
        else:
            assert (data < 0).any()
            assert (x < 0).any()
    assert any(check.beta and check.alpha != 1 for check in CHECKS)
    held = problem_of(SMALL["one_value"])
    assert held.facts == Facts(constant=True, exact_f32=True)
    for each in (held, dataclasses.replace(held, facts=Facts(exact_f32=True))):
        for check in CHECKS:
            assert each.facts.broken_by(checks.inputs(each, check)[0]) == ()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "name", ["uniform", "powerlaw", "dense_row", "empty_rows", "stencil2d_variable", "uniform_wide", "arrow"]
)
def test_every_dropped_doubled_or_misplaced_entry_is_seen(name, dtype):
    """On the integer inputs, whichever entry it is."""
    given, check = problem(name, dtype), CHECKS[0]
    references = References(given)
    data, x, _ = checks.inputs(given, check)
    pattern = given.pattern
    rows = np.repeat(np.arange(pattern.m), pattern.lengths)
    y = product(given, check)
    assert references.worst(check, y) == 0
    for p in range(0, pattern.nnz, 97):
        term = dtype(data[p] * x[pattern.indices[p]])
        for change in (-term, term):
            wrong = y.copy()
            wrong[rows[p]] += change
            assert references.worst(check, wrong) > 1
        moved = y.copy()
        moved[rows[p]] -= term
        moved[(rows[p] + 1) % pattern.m] += term
        assert references.worst(check, moved) > 1


def test_an_entry_of_a_very_long_row_is_seen():
    """In single precision, where integers of one sign would add up to more than is exact."""
    A = gallery.rows([700_001, 3, 0, 17], 700_001)
    given, check = problem_of(A.astype(np.float32)), CHECKS[0]
    references = References(given)
    data, x, _ = checks.inputs(given, check)
    y = product(given, check)
    assert references.worst(check, y) == 0
    for p in (0, 350_003, 700_000):
        wrong = y.copy()
        wrong[0] -= data[p] * x[A.indices[p]]
        assert references.worst(check, wrong) > 1


@pytest.mark.parametrize("name", ["uniform", "stencil3d_27"])
def test_less_precision_than_declared_misses_the_bound(name):
    given = problem(name)
    references = References(given)
    for check in CHECKS[1:]:
        if check.kind != "signed":
            continue
        y = product(given, check)
        assert references.worst(check, y) <= 1
        assert references.worst(check, y.astype(np.float32).astype(np.float64)) > 1
        assert references.worst(check, np.zeros_like(y)) > 1
        assert references.worst(check, np.full_like(y, np.nan)) == np.inf
        assert references.worst(check, y * (1 + 1e-12)) > 1


def test_worst_where_the_result_is_not_finite():
    bound = np.full(3, 0.5)
    exact = np.array([1.0, np.inf, np.nan])
    assert worst(np.array([1.25, np.inf, np.nan]), exact, bound) == 0.5
    for y in ([1.25, -np.inf, np.nan], [1.25, np.inf, 0.0], [np.nan, np.inf, np.nan], [1.0, 1e300, np.nan]):
        assert worst(np.array(y), exact, bound) == np.inf
    assert worst(np.array([np.inf]), np.array([2.0]), np.array([1.0])) == np.inf
    assert worst(np.empty(0), np.empty(0), np.empty(0)) == 0
    huge = np.array([1e39])  # beyond float32: the result there is infinity
    assert worst(np.array([np.inf], np.float32), huge, np.array([1.0])) == 0
    assert worst(np.array([3e38], np.float32), huge, np.array([1.0])) == np.inf


def test_the_reference_is_the_product():
    A = SMALL["uniform"]
    given = problem()
    rng = np.random.default_rng(20275)
    x, y0 = rng.standard_normal(A.shape[1]), rng.standard_normal(A.shape[0])
    exact, bound = reference(given, A, x, 1.5, -2.0, y0)
    right(exact, A, x, 1.5, -2.0, y0)
    assert (bound > 0).all()
    assert (bound < 1e-10).all()


def test_an_arena_aligns_copies_and_guards():
    given = {"a": np.arange(5.0), "b": np.arange(7, dtype=np.int32), "c": np.empty(0), "d": np.ones((3, 5), np.float32)}
    arena = Arena(given)
    for name, array in given.items():
        np.testing.assert_array_equal(arena.arrays[name], array)
        assert arena.arrays[name].dtype == array.dtype
        assert arena.arrays[name].ctypes.data % ALIGN == 0 or array.size == 0
        assert not np.may_share_memory(arena.arrays[name], array)
    assert arena.intact()
    b = arena.arrays["b"]
    for offset in (7, GUARD // 4):
        word = np.lib.stride_tricks.as_strided(b, (GUARD,), b.strides)[offset : offset + 1]
        kept = word.copy()
        word[...] = 3
        assert not arena.intact()
        word[...] = kept
        assert arena.intact()
    np.lib.stride_tricks.as_strided(b, (9,), b.strides)[7] = 0
    assert not arena.intact()
    arena.guard()
    assert arena.intact()
    behind = np.lib.stride_tricks.as_strided(arena.arrays["a"], (6,), (8,))[5]
    assert np.isnan(behind)  # what a kernel reads there is no number
    assert np.lib.stride_tricks.as_strided(b, (8,), b.strides)[7] == -1
    assert Arena({}).intact()


def test_verdicts_and_timings():
    timing = Timing.of([3000, 1000, 2000, 4000, 5000], "here")
    assert (timing.median_us, timing.repeats, timing.device) == (3.0, 5, "here")
    assert timing.p20_us <= timing.median_us <= timing.p80_us
    assert list(Level) == sorted(Level)
    assert [level.name for level in Level] == ["NONE", "PARSED", "COMPILED", "RAN", "CORRECT", "TIMED"]
    as_dict = Verdict(Level.TIMED, measured=timing).as_dict()
    assert as_dict["level"] == "TIMED"
    assert as_dict["measured"]["median_us"] == 3.0
