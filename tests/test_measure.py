"""Many candidates of one problem, timed beside the baselines."""

from __future__ import annotations

import pytest
from support import LOOP, problem_of, template, user_kernel

from sparsegen import bandwidth, gallery
from sparsegen.train.measure import measure
from sparsegen.verdict import Level

WRONG = "for (int64_t row = begin; row < end; ++row) STORE(y, row, ACC(1));"
CRASH = "for (int64_t row = begin; row < end; ++row) STORE(y, row + 99999999, x[indices[0] + 999999999]);"
ENDLESS = "for (int64_t row = begin; row < end;) STORE(y, row, ACC(0));"


@pytest.mark.parametrize("trusted", [False, True])
def test_a_wrong_kernel_or_one_that_crashes_costs_no_other_its_time(trusted):
    A = gallery.stencil2d(23, 19, variable=True)
    problem = problem_of(A, facts=None)
    right = [template("csr_scalar", values="full"), template("sell_slice", SIGMA=1, BITS=32, values="full")]
    candidates = [right[0], user_kernel(WRONG, "wrong"), user_kernel(CRASH, "crash"), right[1]]
    found = measure(problem, A, candidates, seed=7013, trusted=trusted, rounds=3)
    levels = [each.verdict.level for each in found.measured]
    assert min(levels[0], levels[3]) >= Level.CORRECT and max(levels) == Level.TIMED  # the slow one has a rough time
    assert [each.verdict.fault for each in found.measured[1:3]] == ["wrong", "crash"]
    assert all(each.us is None and each.speedup is None for each in found.measured[1:3])
    for each in (found.measured[0], found.measured[3]):
        assert each.us > 0 and each.speedup > 0 and each.binary
    assert found.best in found.baselines and found.rounds == 3 and found.spread >= 0


def test_a_kernel_that_never_ends_is_stopped(monkeypatch):
    from sparsegen import evaluate

    monkeypatch.setattr(evaluate, "RUN_SECONDS", 0.5)
    A = gallery.uniform(97, 89, 701)
    found = measure(problem_of(A), A, [user_kernel(ENDLESS, "endless"), template("csr_scalar")], seed=7013, rounds=2)
    assert found.measured[0].verdict.fault == "timeout"
    assert found.measured[1].verdict.level == Level.TIMED and found.measured[1].raced


def test_what_is_refused_or_infeasible_is_a_verdict_and_the_baselines_are_timed_all_the_same():
    A = gallery.uniform(97, 89, 701)
    found = measure(problem_of(A, facts=None), A, [template("csr_scalar", values="constant")], seed=7013, rounds=2)
    assert found.measured[0].verdict.fault == "infeasible"
    assert found.baselines["scipy"] > 0
    assert found.measured[0].as_dict()["level"] == "PARSED"


@pytest.mark.parametrize("trusted", [False, True])
def test_a_time_that_no_memory_allows_is_refused(monkeypatch, trusted):
    """Of kernels that the tests do not know; the slow one, which is not raced, among them."""
    monkeypatch.setattr(bandwidth, "levels", lambda threads, again=False: (bandwidth.Level("memory", 0, 1e3),))
    A = gallery.uniform(97, 89, 701)
    waste = "ACC root = 2; for (int i = 0; i < 199; ++i) root = __builtin_sqrt(root + 3); sum += 0 * root; STORE"
    slow = user_kernel(LOOP.replace("STORE", waste), "slow")
    found = measure(problem_of(A), A, [template("csr_scalar"), slow], seed=7013, trusted=trusted, rounds=2)
    for each in found.measured:
        assert (each.verdict.fault, each.us is None) == (("", False) if trusted else ("too fast", True))
    if trusted:
        assert [each.raced for each in found.measured] == [True, False]
