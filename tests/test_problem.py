"""Patterns, facts and problems: what is hashed, what is found, what is drawn."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

from sparsegen import gallery
from sparsegen.problem import Facts, Pattern, Problem

SMALL = gallery.small()


@pytest.mark.parametrize("name", SMALL)
def test_a_pattern_says_what_scipy_says(name):
    A = SMALL[name]
    pattern = Pattern.of(A)
    assert (pattern.m, pattern.n, pattern.nnz) == (*A.shape, A.nnz)
    np.testing.assert_array_equal(pattern.lengths, np.diff(A.indptr))
    assert pattern.columns == len(set(A.indices.tolist()))
    wide = Pattern((A.shape[0], 9 * max(A.nnz, A.shape[1])), A.indptr, A.indices)
    assert wide.columns == pattern.columns
    offsets, counts = pattern.diagonals
    rows = np.repeat(np.arange(A.shape[0]), np.diff(A.indptr))
    wanted, number = np.unique(A.indices.astype(np.int64) - rows, return_counts=True)
    np.testing.assert_array_equal(offsets, wanted)
    np.testing.assert_array_equal(counts, number)


def test_the_key_is_of_the_structure_alone():
    A = SMALL["uniform"]
    pattern = Pattern.of(A)
    wide = Pattern(pattern.shape, A.indptr.astype(np.int64), A.indices.astype(np.int64))
    assert wide.key == pattern.key
    assert Pattern.of(3 * A).key == pattern.key
    assert Pattern.of(A.astype(np.float32)).key == pattern.key
    other = A.indices.copy()
    other[-1] = A.indices[-1] + 1 if A.indices[-1] + 1 < A.shape[1] else A.indices[-1] - 1
    assert Pattern(pattern.shape, A.indptr, other).key != pattern.key
    assert Pattern((A.shape[0], A.shape[1] + 1), A.indptr, A.indices).key != pattern.key
    strided = Pattern(pattern.shape, A.indptr, np.repeat(A.indices, 2)[::2])
    assert strided.key == pattern.key
    # rows of 1 and 2 entries, and of 2 and 1: the same columns in the same order
    ab = Pattern((2, 5), np.array([0, 1, 3]), np.array([0, 1, 2]))
    ba = Pattern((2, 5), np.array([0, 2, 3]), np.array([0, 1, 2]))
    assert ab.key != ba.key
    assert all(Pattern.of(A).key for A in gallery.tiny().values())
    assert len({Pattern.of(A).key for A in SMALL.values()}) == len(SMALL)


def test_facts_are_found():
    third = 1 / 3
    for data, constant, exact in (
        ([0.5, 0.5, 0.5], True, True),
        ([third, third], True, False),
        ([1.0, 2.0, -0.0], False, True),
        ([1.0, third], False, False),
        ([np.nan, np.nan], False, False),
        ([np.inf, np.inf], False, False),
        ([1.0, np.inf], False, False),
        ([1e300], True, False),
        ([1e-40], True, False),  # a float32, but a subnormal one
        ([], False, False),
    ):
        assert Facts.of(np.array(data, np.float64)) == Facts(constant, exact), data
    late = np.ones(10_001)
    late[-1] = third
    assert Facts.of(late) == Facts()
    late[-1] = 2
    assert Facts.of(late) == Facts(exact_f32=True)
    assert Facts.of(np.ones(3, np.float32)) == Facts(constant=True)
    assert Facts.of(np.ones(3, np.complex128)) == Facts()
    assert Facts.of(np.ones(3, np.int64)) == Facts()


def test_broken_facts_are_named():
    both = Facts(constant=True, exact_f32=True)
    assert both.broken_by(np.array([2.0, 2.0])) == ()
    assert both.broken_by(np.array([2.0, 3.0])) == ("constant",)
    assert both.broken_by(np.array([1 / 3, 1 / 3])) == ("exact_f32",)
    assert both.broken_by(np.array([1 / 3, np.nan])) == ("constant", "exact_f32")
    assert Facts().broken_by(np.array([np.nan, 1 / 3])) == ()
    assert both.broken_by(np.empty(0)) == ()


@pytest.mark.parametrize("facts", [Facts(), Facts(constant=True), Facts(exact_f32=True), Facts(True, True)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_values_are_drawn_within_the_facts(facts, dtype):
    rng = np.random.default_rng(20274)
    for integer in (False, True):
        data = facts.draw(rng, 1001, np.dtype(dtype), integer)
        assert data.dtype == dtype
        assert data.shape == (1001,)
        if dtype == np.float64 or not facts.exact_f32:
            assert facts.broken_by(data) == ()
        if integer:
            np.testing.assert_array_equal(data, np.round(data))
            assert data.min() >= 1
        if not facts.constant:
            assert len(np.unique(data)) > 5
            assert integer or (data < 0).any()
    assert facts.draw(rng, 0, np.dtype(dtype)).shape == (0,)


def test_the_key_of_a_problem_holds_what_a_choice_depends_on():
    A = SMALL["powerlaw"]
    problem = Problem("spmv", Pattern.of(A))
    changes = dict(
        op="spmm", facts=Facts(constant=True), dtype=np.dtype(np.float32), k=3, layout_b="column", layout_c="column",
        threads=2, deterministic=True, target="cuda",
    )  # fmt: skip
    keys = {problem.key, replace(problem, pattern=Pattern.of(SMALL["uniform"])).key}
    keys |= {replace(problem, **{name: value}).key for name, value in changes.items()}
    assert len(keys) == len(changes) + 2
    assert replace(problem, device="another").key == problem.key


def test_index_types_are_as_narrow_as_they_may_be():
    tall = Problem("spmv", Pattern((2**31, 3), np.zeros(1, np.int64), np.zeros(0, np.int64)))
    assert tall.index_dtype == np.int64
    assert Problem("spmv", Pattern.of(SMALL["uniform"])).index_dtype == np.int32
    virtual = Pattern((3, 3), np.zeros(4, np.int64), np.broadcast_to(np.int32(0), 2**28))
    assert Problem("spmv", virtual).offset_dtype == np.int64
    assert Problem("spmv", Pattern.of(sp.csr_array((3, 3)))).offset_dtype == np.int32
