"""The templates are read once, proposed in an order that pays, and refused with a reason."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.sparse as sp

from sparsegen import composite, gallery, templates, values
from sparsegen.candidate import instances
from sparsegen.errors import SparsegenValueError
from sparsegen.problem import Facts, Pattern, Problem


def problem(A: sp.csr_array, op: str = "spmv", facts: Facts | None = None, **of) -> Problem:
    return Problem(op, Pattern.of(A), facts or Facts(), **of)


def first(of: Problem, count: int = 1) -> list:
    return list(itertools.islice(templates.propose(of), count))


@pytest.mark.parametrize("language", ["cpp", "cuda"])
def test_templates_are_read_once(language):
    found = templates.load(language)
    assert found and templates.load(language) is found
    assert all(each.language == language and each.origin == "template" for each in found)
    assert len({(each.op, each.name) for each in found}) == len(found)
    for each in found:
        assert templates.get(each.name, each.op, language) is each


def test_unknown_names_are_errors():
    with pytest.raises(SparsegenValueError, match="csr_scalar"):
        templates.get("csr_nothing")
    with pytest.raises(SparsegenValueError, match="fortran"):
        templates.load("fortran")


@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize("op, k", [("spmv", 1), ("spmm", 9)])
@pytest.mark.parametrize("name", ["stencil3d", "block_3x3", "dense_row", "empty_rows", "one_value", "powerlaw"])
def test_what_is_proposed_is_feasible_and_the_rest_has_a_reason(name, op, k, target):
    A = gallery.small()[name]
    of = problem(A, op, Facts.of(A.data), k=k, target=target)
    language = "cpp" if target == "cpu" else "cuda"
    proposed = list(templates.propose(of))
    assert proposed
    for each in proposed:
        assert each.op == op and each.language == language and not each.tune
        assert values.feasible(each.encoding, of) is None and composite.feasible(each, of) is None
    labels = [each.label for each in proposed]
    refused = dict(templates.refusals(of))
    assert len(set(labels)) == len(labels) and not set(labels) & set(refused)
    assert all(len(reason) > 15 for reason in refused.values())
    files = [each for each in templates.load(language) if each.op == op]
    assert len(labels) + len(refused) == sum(len(list(instances(each))) for each in files)


@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize("op", ["spmv", "spmm"])
@pytest.mark.parametrize("shape", [(0, 7), (7, 0), (5, 9)])
def test_no_entries_are_no_accident(shape, op, target):
    for each in templates.propose(problem(sp.csr_array(shape), op, k=3, target=target)):
        assert each.op == op


def test_feasibility_is_asked_when_the_turn_comes(monkeypatch):
    asked = []
    real = composite.feasible
    monkeypatch.setattr(composite, "feasible", lambda each, of: asked.append(each) or real(each, of))
    assert len(first(problem(gallery.small()["uniform"]), 3)) == 3
    assert 3 <= len(asked) < 12


def test_structure_is_found():
    stencil, blocks = gallery.stencil3d(17, 19, 21), gallery.block(2003, 2003, 3, 3, 9)
    dense = gallery.dense_row(5003, 5001)
    assert first(problem(stencil))[0].name == "dia_chunk"
    assert "bsell_slice" in {each.name for each in first(problem(blocks), 2)}
    assert "dense_rows_slice" in {each.name for each in first(problem(dense), 4)}
    assert "sell_slice" in {each.name for each in first(problem(gallery.powerlaw(3001, 3001, 30_011)), 2)}
    long_rows = gallery.rows(np.full(11, 40_007), 50_021)
    assert "csr_vector" in {each.name for each in first(problem(long_rows), 4)}


def test_facts_are_used_first():
    A = gallery.powerlaw(3001, 3001, 30_011)
    assert first(problem(A, facts=Facts(constant=True, exact_f32=True)))[0].encoding == "constant"
    assert first(problem(A, facts=Facts(exact_f32=True)))[0].encoding == "f32"
    assert {each.encoding for each in templates.propose(problem(A))} == {"full"}


def test_operands_stored_by_columns_get_their_kernel():
    A = gallery.stencil3d(17, 19, 21)
    by_column = problem(A, "spmm", k=16, layout_b="column", layout_c="column")
    assert first(by_column)[0].name == "dia_columns"
    scattered = first(problem(gallery.powerlaw(3001, 3001, 30_011), "spmm", k=16, layout_b="column", layout_c="column"))
    assert scattered[0].params["TURN_B"] == 1
    by_row = first(problem(A, "spmm", k=32))[0]
    assert by_row.name in ("csr_row", "csr_ahead") and not by_row.params.get("NARROW")
    assert "sell_columns" not in {each.name for each in first(problem(A, "spmm", k=32), 8)}
    few = first(problem(A, "spmm", k=3), 2)
    assert any(each.params.get("NARROW") for each in few)


def test_the_first_few_differ():
    found = first(problem(gallery.uniform(4001, 4003, 40_009)), 8)
    assert len({each.name for each in found}) >= 2


def test_deterministic_leaves_floating_atomics_out():
    A = gallery.powerlaw(501, 501, 3001)
    adding = {each.name for each in templates.load("cuda") if "ATOMIC_ADD" in each.source}
    assert adding
    free = {each.name for each in templates.propose(problem(A, target="cuda"))}
    held = {each.name for each in templates.propose(problem(A, target="cuda", deterministic=True))}
    assert free & adding and not held & adding
    reasons = {reason for _, reason in templates.refusals(problem(A, target="cuda", deterministic=True))}
    assert any("atomic" in reason for reason in reasons)


def test_features_agree_with_the_whole_on_small_matrices():
    A = gallery.block(31, 29, 2, 3)
    features = templates.Features(Pattern.of(A))
    assert features.fill(2, 3) == 1.0
    assert features.fill(2, 1) == 1.0 and features.fill(1, 1) == 1.0 and features.fill(4, 6) < 1
    assert templates.Features(Pattern.of(gallery.small()["tridiagonal"])).diagonals == 3


def test_columns_are_turned_only_where_there_are_columns():
    A = gallery.uniform(401, 403, 4009)
    for layout_b, wanted in (("row", {0, None}), ("column", {0, 1, None})):
        found = templates.propose(problem(A, "spmm", k=8, layout_b=layout_b))
        assert {each.params.get("TURN_B") for each in found} == wanted
    refused = dict(templates.refusals(problem(A, "spmm", k=8)))
    assert any("TURN_B=1" in label and "by rows already" in reason for label, reason in refused.items())


def test_rows_in_common_get_strips_and_far_rows_are_fetched_ahead():
    blocks = gallery.block(2003, 2003, 3, 3, 9)
    assert any(each.params.get("R", 1) > 1 for each in first(problem(blocks, "spmm", k=8), 2))
    odd = sp.csr_array(blocks[:-1])  # which no block divides
    assert first(problem(odd, "spmm", k=8))[0].format == "strip"
    assert first(problem(odd, "spmm", k=3))[0].params.get("NARROW") == 4
    far = gallery.uniform(120_011, 120_013, 480_017)
    assert any(each.params.get("AHEAD") for each in first(problem(far, "spmm", k=32), 3))
    near = gallery.uniform(401, 403, 4009)
    assert not any(each.params.get("AHEAD") for each in first(problem(near, "spmm", k=32), 3))
