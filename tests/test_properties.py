"""Whatever the pattern, shape and values: a compiled candidate agrees with scipy in float64 within the bound."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsegen import checks, composite, ops, templates, values
from sparsegen.arena import Arena
from sparsegen.candidate import instances
from sparsegen.problem import Facts, Pattern, Problem
from sparsegen.targets import cpu

pytestmark = pytest.mark.skipif(cpu.available() is not None, reason="no compiler")

ALL = [each for file in templates.load("cpp") for each in instances(file)]


@st.composite
def matrices(draw) -> sp.csr_array:
    """Any shape up to 90 x 90, rows of any length, values of one kind or another."""
    m, n = draw(st.integers(1, 90)), draw(st.integers(1, 90))
    rng = np.random.default_rng(draw(st.integers(2, 2**32)))
    kind = draw(st.sampled_from(["scattered", "diagonals", "rows", "blocks", "full"]))
    rows, columns = np.mgrid[:m, :n]
    if kind == "scattered":
        present = rng.random((m, n)) < draw(st.sampled_from([0.01, 0.1, 0.5]))
    elif kind == "diagonals":
        present = np.isin(columns - rows, rng.integers(-m, n, draw(st.integers(1, 5))))
    elif kind == "rows":
        present = columns < (rng.pareto(0.8, m) * 3).astype(int)[:, None]
    elif kind == "blocks":
        side = draw(st.sampled_from([2, 3, 4]))
        present = (rng.random((m // side + 1, n // side + 1)) < 0.3)[rows // side, columns // side]
    else:
        present = np.ones((m, n), bool)
    at = np.flatnonzero(present)
    data = {
        "normal": lambda: rng.standard_normal(len(at)),
        "constant": lambda: np.full(len(at), 2.5),
        "narrow": lambda: rng.standard_normal(len(at)).astype(np.float32).astype(np.float64),
        "wide": lambda: rng.standard_normal(len(at)) * 10.0 ** rng.integers(-9, 9, len(at)),
    }[draw(st.sampled_from(["normal", "constant", "narrow", "wide"]))]()
    return sp.csr_array((data, (at // n, at % n)), shape=(m, n))


@settings(max_examples=120)
@given(A=matrices(), data=st.data())
def test_any_candidate_on_any_matrix(A, data):
    if A.nnz == 0:
        return
    chosen = data.draw(st.sampled_from(ALL))
    dtype = np.dtype(data.draw(st.sampled_from([np.float32, np.float64])))
    A = A.astype(dtype)
    problem = Problem(
        chosen.op, Pattern.of(A), Facts.of(A.data), dtype,
        k=data.draw(st.integers(1, 19)) if chosen.op == "spmm" else 1,
        layout_b=data.draw(st.sampled_from(["row", "column"])), layout_c=data.draw(st.sampled_from(["row", "column"])),
        threads=data.draw(st.integers(1, 3)),
    )  # fmt: skip
    if values.feasible(chosen.encoding, problem) or composite.feasible(chosen, problem):
        return
    packs = composite.pack(chosen, problem)
    library = cpu.load(cpu.build(cpu.unit(chosen, problem, packs)))
    arenas = [Arena({**each.arrays, "data": values.encode(chosen.encoding, A.data, each, dtype)}) for each in packs]
    plan = cpu.bind(library, chosen, problem, packs, [each.arrays for each in arenas], problem.threads)
    rng, op = np.random.default_rng(23), ops.get(chosen.op)
    x = op.make(problem, rng)
    alpha, beta = data.draw(st.sampled_from([(1.0, 0.0), (-0.5, 1.0), (2.0, -1.5)]))
    shape = op.shapes(problem)[1]
    y0 = rng.standard_normal(shape).astype(dtype) if beta else np.full(shape, np.nan, dtype)
    y = np.array(y0, order="C" if chosen.op == "spmv" or problem.layout_c == "row" else "F")
    assert plan.run(x, y, alpha, beta) == 0
    assert all(arena.intact() for arena in arenas)
    assert checks.worst(y, *checks.reference(problem, A, x, alpha, beta, y0)) <= 1, chosen.label


@settings(max_examples=60)
@given(A=matrices(), seed=st.integers(2, 10**6))
def test_new_values_are_one_gather(A, seed):
    if A.nnz == 0:
        return
    fresh = np.random.default_rng(seed).standard_normal(A.nnz)
    for chosen in ALL:
        problem = Problem(chosen.op, Pattern.of(A))
        if chosen.encoding != "full" or composite.feasible(chosen, problem):
            continue
        for packed in composite.pack(chosen, problem):
            stored = values.encode("full", fresh, packed, np.dtype(np.float64))
            real = np.ones(packed.slots, bool) if packed.source is None else packed.source >= 0
            assert real.sum() == packed.nnz
            assert (stored[~real] == 0).all()
            assert np.isin(stored[real], fresh).all()
