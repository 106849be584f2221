"""Techniques: what every template uses, given by hand."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from sparsegen import templates
from sparsegen.candidate import instances
from sparsegen.train import techniques
from sparsegen.train.techniques import STAGES, TECHNIQUES

V, SL, SO, B, D, C, P, SP, U, A, SH = TECHNIQUES
USED = {  # of the first instance: values in full, the first of each list
    ("cpp", "spmm", "bsr_row"): {V, B, U},
    ("cpp", "spmm", "csr_ahead"): {V, U},
    ("cpp", "spmm", "csr_columns"): {U},
    ("cpp", "spmm", "csr_row"): {V, U},
    ("cpp", "spmm", "csr_whole"): {V, U},
    ("cpp", "spmm", "dia_columns"): {V, D, U},
    ("cpp", "spmm", "sell_columns"): {V, SL, U},
    ("cpp", "spmm", "strip_narrow"): {V, B, U},
    ("cpp", "spmm", "strip_row"): {V, B, U},
    ("cpp", "spmv", "bsell_slice"): {V, SL, B},
    ("cpp", "spmv", "bsr_row"): {V, B},
    ("cpp", "spmv", "coo_runs"): set(),
    ("cpp", "spmv", "csr_scalar"): set(),
    ("cpp", "spmv", "csr_vector"): {V},
    ("cpp", "spmv", "dense_rows_slice"): {V, SL, SO, SP, U},
    ("cpp", "spmv", "dia_chunk"): {V, D, U},
    ("cpp", "spmv", "ell_vector"): {V, P},
    ("cpp", "spmv", "sell_slice"): {V, SL, C},
    ("cuda", "spmm", "bsr_row"): {B, U},
    ("cuda", "spmm", "csr_row"): set(),
    ("cuda", "spmm", "csr_vector"): {V, U},
    ("cuda", "spmm", "ell_row"): {P},
    ("cuda", "spmv", "bsr_warp"): {V, B},
    ("cuda", "spmv", "coo_atomic"): {A},
    ("cuda", "spmv", "coo_segmented"): {V, A},
    ("cuda", "spmv", "csr_merge"): {V, SH},
    ("cuda", "spmv", "csr_scalar"): set(),
    ("cuda", "spmv", "csr_stream"): {V, SH},
    ("cuda", "spmv", "csr_vector"): {V},
    ("cuda", "spmv", "dense_rows"): {V, SP, SH},
    ("cuda", "spmv", "dia_thread"): {D, U},
    ("cuda", "spmv", "ell_thread"): {P},
    ("cuda", "spmv", "sell_thread"): {SL, C},
}


def first(language: str, op: str, name: str):
    return next(iter(instances(templates.get(name, op, language))))


@pytest.mark.parametrize("language", ["cpp", "cuda"])
def test_every_template_has_an_expectation(language):
    known = {(language, each.op, each.name) for each in templates.load(language)}
    assert known == {key for key in USED if key[0] == language}


@pytest.mark.parametrize("key", USED, ids="-".join)
def test_what_templates_use(key):
    assert techniques.of(first(*key)) == USED[key]


def test_parameters_count():
    sell = first("cpp", "spmv", "sell_slice")
    plain = replace(sell, params={**sell.params, "BITS": 32})
    assert techniques.of(plain) == {V, SL}
    assert techniques.of(replace(plain, params={**plain.params, "SIGMA": 0})) == {V, SL, SO}
    assert techniques.of(replace(plain, params={**plain.params, "values": "f32"})) == {V, SL, C}


def test_comments_do_not_count():
    scalar = first("cpp", "spmv", "csr_scalar")
    assert techniques.of(replace(scalar, source="// a vector, #pragma GCC unroll 4\n" + scalar.source)) == set()


def test_unrolling_by_hand_counts():
    scalar = first("cpp", "spmv", "csr_scalar")
    assert techniques.of(replace(scalar, source=scalar.source.replace("++p)", "p += 2)"))) == {U}


def test_permitted():
    vector, scalar = first("cpp", "spmv", "csr_vector"), first("cpp", "spmv", "csr_scalar")
    assert techniques.permitted(vector, None) and techniques.permitted(vector, frozenset({V, U}))
    assert not techniques.permitted(vector, frozenset({U, SL}))
    assert techniques.permitted(scalar, frozenset())


def test_stages_widen_to_everything():
    for small, large in itertools.pairwise(STAGES):
        assert small < large
    assert STAGES[-1] == set(TECHNIQUES)


def test_draws_are_seeded_and_inside_their_stage():
    rng = np.random.default_rng(20261)
    drawn = [techniques.draw(1, rng, keep=0.5) for _ in range(40)]
    assert len(set(drawn)) > 5 and all(each <= STAGES[1] for each in drawn)
    assert drawn == [techniques.draw(1, again, keep=0.5) for again in [np.random.default_rng(20261)] for _ in range(40)]
    assert techniques.draw(1, rng) == STAGES[1]
    assert techniques.draw(9, rng, keep=0.0) == set(TECHNIQUES)
