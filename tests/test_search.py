"""Who wins a race, on rounds made by hand; and what limits a search."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from support import problem_of, template, user_kernel

import sparsegen
from sparsegen import bandwidth, baselines, gallery, ops, search
from sparsegen.candidate import instances
from sparsegen.fence import Died
from sparsegen.search import LEAST_RESOLUTION, Outcome, Tried, _Search
from sparsegen.verdict import Level, Verdict

A = gallery.small()["uniform"]


class Fake:
    """A session whose rounds are given: arm -> ns of each round. The arms in `wrong` give another result afterwards."""

    def __init__(self, times: dict[str, list[float]], problem, changed=(), wrong=(), broken=(), dies=()):
        self.times, self.problem, self.asked = times, problem, []
        self.changed, self.wrong, self.broken, self.dies = changed, wrong, broken, dies
        self.output = np.empty(problem.pattern.m)

    def ask(self, request: str, seconds: float, **details) -> dict:
        self.asked.append((request, details))
        if request in self.dies:
            raise Died("crash", "scripted")
        if request == "fetch":
            from sparsegen import checks

            self.output[:] = A @ checks.timed_inputs(self.problem)[details["which"]]
            if details["arm"] in self.wrong:
                self.output[7] += 1e-3
            return {"intact": details["arm"] not in self.broken}
        if request == "rounds":
            count = len(next(iter(self.times.values())))
            rounds = [{arm: self.times[arm][i] for arm in details["arms"]} for i in range(count)]
            return {"rounds": rounds, "changed": list(self.changed)}
        return {"rough_ns": 1000.0}


def race(monkeypatch, times: dict[str, float | list[float]], threads=1, bytes_moved=0, limit=1e18, **fake) -> Outcome:
    """The outcome of a race of the arms "a 1", "b 1" against scipy (and others) with these times in ns."""
    level = bandwidth.Level("memory", 0, limit)
    monkeypatch.setattr(bandwidth, "levels", lambda threads, again=False: (level,))
    rounds = max((len(each) for each in times.values() if isinstance(each, list)), default=24)
    full = {name: each if isinstance(each, list) else [each] * rounds for name, each in times.items()}
    problem = problem_of(A, threads=threads)
    outcome = Outcome(None, "scipy", None, {}, [])
    session = Fake(full, problem, **fake)
    made = _Search(problem, A, session, 0.0, 20276, outcome)
    kernels = {"a": user_kernel(name="a"), "b": template("csr_scalar")}
    for arm in (arm for arm in full if arm.partition(" ")[0] in kernels):
        tried = Tried(kernels[arm[0]], Verdict(Level.CORRECT), full[arm][0] / 1e3, int(arm[2:]), bytes_moved)
        made.arms[arm] = (tried, int(arm[2:]))
        outcome.tried.append(tried)
    for name in full:
        if name in baselines.names():
            outcome.baselines[name] = {"rough_ns": full[name][0], "prepare_ms": 0.0}
    made._race()
    return outcome


def test_a_clear_win(monkeypatch):
    outcome = race(monkeypatch, {"a 1": 1000, "null": 1000, "scipy": 2000})
    assert outcome.winner.candidate.name == "a"
    assert outcome.speedup == 2
    assert outcome.timing.median_us == 1
    assert outcome.winner.verdict.level == Level.TIMED
    assert outcome.baselines["scipy"]["measured_us"] == 2
    assert outcome.resolution == LEAST_RESOLUTION


@pytest.mark.parametrize("ratio", [1.0, 1 + LEAST_RESOLUTION / 2, 0.5])
def test_a_tie_or_a_loss_goes_to_the_baseline(monkeypatch, ratio):
    outcome = race(monkeypatch, {"a 1": 1000, "null": 1000, "scipy": 1000 * ratio})
    assert outcome.winner is None
    assert outcome.baseline == "scipy"
    assert outcome.speedup == pytest.approx(ratio)
    assert outcome.tried[0].verdict.level == Level.TIMED


def test_what_the_null_pair_shows_is_not_told_apart(monkeypatch):
    outcome = race(monkeypatch, {"a 1": 1000, "null": 1080, "scipy": 1070})
    assert outcome.resolution == pytest.approx(0.08)
    assert outcome.winner is None
    assert race(monkeypatch, {"a 1": 1000, "null": 920, "scipy": 1070}).winner is None
    assert race(monkeypatch, {"a 1": 1000, "null": 1080, "scipy": 1090}).winner is not None


def test_the_best_baseline_is_the_one_to_beat(monkeypatch):
    outcome = race(monkeypatch, {"a 1": 1000, "null": 1000, "scipy": 1300, "mkl": 990})
    assert outcome.winner is None
    assert outcome.baseline == "mkl"
    outcome = race(monkeypatch, {"a 1": 1000, "null": 1000, "scipy": 1005, "mkl": 995})
    assert (outcome.winner, outcome.baseline) == (None, "scipy")  # mkl's lead is a tie: what the user had stays
    assert race(monkeypatch, {"a 1": 1000, "null": 1000, "scipy": 1300, "mkl": 1200}).speedup == pytest.approx(1.2)


def test_luck_in_being_chosen_is_not_scored(monkeypatch):
    """An arm that is fast in the choosing rounds alone wins the choice and loses the race."""
    lucky = [900.0, 1100.0] * 12
    outcome = race(monkeypatch, {"a 1": lucky, "b 1": 1000, "null": lucky, "scipy": 1000})
    assert outcome.timing.median_us == 1.1
    assert outcome.winner is None


def test_changed_results_are_refused_whatever_the_time(monkeypatch):
    for reason in ({"changed": ["a 1"]}, {"wrong": ["a 1"]}, {"broken": ["a 1"]}):
        outcome = race(monkeypatch, {"a 1": 100, "null": 100, "scipy": 2000}, **reason)
        assert outcome.winner is None
        assert outcome.tried[0].verdict.fault == "wrong"
        assert outcome.tried[0].verdict.level == Level.RAN
        assert outcome.tried[0].verdict.measured is None
        second = race(monkeypatch, {"a 1": 900, "b 1": 1000, "null": 900, "scipy": 2000}, **reason)
        assert second.winner.candidate.name == "csr_scalar"
        assert second.speedup == 2


def test_a_time_that_no_memory_allows_is_refused(monkeypatch):
    moved = A.nnz * 12
    limit_ns = (moved + 8 * sum(A.shape)) / 100e9 * 1e9
    outcome = race(monkeypatch, {"a 1": 0.4 * limit_ns, "null": 0.4 * limit_ns, "scipy": 1e6}, 1, moved, 100e9)
    assert outcome.winner is None
    assert outcome.tried[0].verdict.fault == "too fast"
    outcome = race(monkeypatch, {"a 1": 0.9 * limit_ns, "null": 0.9 * limit_ns, "scipy": 1e6}, 1, moved, 100e9)
    assert outcome.winner is not None


@pytest.mark.parametrize(("op", "k"), [("spmv", None), ("spmm", 7)])
def test_the_limit_counts_what_is_read_of_x(op, k):
    """Of a wide and nearly empty matrix, a kernel reads the few values of x that meet an entry."""
    wide = gallery.uniform(13, 100_003, 50)
    problem = problem_of(wide, op=op, k=k)
    moved = ops.get(op).moved_bytes(problem)
    assert moved == (len(set(wide.indices.tolist())) + 13) * (k or 1) * 8
    assert ops.get(op).operand_bytes(problem) == (100_003 + 13) * (k or 1) * 8


def test_noisy_rounds_of_several_threads_say_nothing(monkeypatch):
    noise = [1000.0, 1000.0, 5000.0] * 8
    null = [1000.0, 1000.0, 1000.0] * 8
    scipy = [1500.0, 1500.0, 100.0] * 8
    outcome = race(monkeypatch, {"a 2": noise, "null": null, "scipy": scipy}, threads=2)
    assert outcome.rounds == 16
    assert outcome.winner is not None
    assert outcome.speedup == 1.5
    alternating = [1000.0, 3000.0] * 12
    outcome = race(monkeypatch, {"a 2": alternating, "null": alternating[::-1], "scipy": 1500}, threads=2)
    assert any("noisy machine" in note for note in outcome.notes)
    assert outcome.winner is None  # no figure of several threads can be trusted
    one = {"a 1": 1000, "a 2": alternating, "null": alternating[::-1], "scipy": 1500}
    outcome = race(monkeypatch, one, threads=2)
    assert outcome.winner is not None
    assert outcome.winner.threads == 1


def test_a_worker_that_dies_in_the_race_leaves_the_baseline(monkeypatch):
    for request in ("rounds", "arm", "fetch"):
        outcome = race(monkeypatch, {"a 1": 1000, "null": 1000, "scipy": 2000}, dies=[request])
        assert outcome.winner is None
        assert outcome.baseline == "scipy"
        assert any("died in the race" in note for note in outcome.notes)
        assert outcome.baselines["scipy"]["measured_us"] == 2


def test_without_scipy_nothing_is_raced(monkeypatch):
    outcome = race(monkeypatch, {"a 1": 1000, "null": 1000, "mkl": 2000})
    assert outcome.winner is None


# ---- with a worker


def proposals(count: int):
    return itertools.islice(instances(sparsegen.templates.get("sell_slice")), count)


def test_most_candidates(monkeypatch):
    problem = problem_of(A, facts=None)
    for most in (0, 1, 3):
        outcome = search.search(problem, A, proposals(30), 5.0, most, 20277)
        assert len(outcome.tried) == most
    assert sparsegen.compile(A, max_candidates=0, budget=0.3, cache=False).candidate is None


def test_a_candidate_is_tried_once():
    problem = problem_of(A)
    same = [user_kernel(name="a"), user_kernel(name="b"), user_kernel("/* the same */" + search_loop(), name="c")]
    outcome = search.search(problem, A, iter(same), 2.0, None, 20278)
    assert [tried.candidate.name for tried in outcome.tried] == ["a"]


def search_loop() -> str:
    from support import LOOP

    return LOOP


def test_padding_is_not_offered_values_that_are_not_finite():
    bad = gallery.small()["stencil2d"].copy()
    bad.data[5] = np.nan
    problem = problem_of(bad)
    both = [template("dia_chunk", values="full"), template("csr_scalar", values="full")]
    outcome = search.search(problem, bad, iter(both), 1.0, None, 20279)
    assert [tried.candidate.name for tried in outcome.tried] == ["csr_scalar"]


def test_the_baseline_of_a_budget_spent(monkeypatch):
    """With no time at all one candidate is tried, one baseline is measured, and an answer is given."""
    outcome = search.search(problem_of(A), A, proposals(3), 0.0, None, 20280)
    assert outcome.baselines["scipy"]["measured_us"] > 0
    assert outcome.baselines["numba"] == {"refused": "the budget was used up"} or "not installed" in str(
        outcome.baselines
    )
    assert len(outcome.tried) <= 2


def test_a_worker_that_cannot_be_started(monkeypatch):
    monkeypatch.setattr(search.fence.Session, "_open", lambda self: (_ for _ in ()).throw(Died("crash", "no process")))
    kernel = sparsegen.compile(A, budget=0.3, cache=False)
    x = np.ones(A.shape[1])
    np.testing.assert_allclose(kernel @ x, A @ x)
    assert any("worker could not" in note for note in kernel.report()["notes"])


def test_a_baseline_that_dies_or_is_wrong_is_left_out(monkeypatch):
    asked = search.fence.Session.ask

    def ask(self, request, seconds, **details):
        if request == "baseline" and details["name"] == "mkl":
            raise Died("crash", "scripted")
        answer = asked(self, request, seconds, **details)
        return answer

    monkeypatch.setattr(search.fence.Session, "ask", ask)
    outcome = search.search(problem_of(A), A, proposals(2), 1.0, None, 20281)
    assert "refused" in outcome.baselines["mkl"]
    assert outcome.baselines["scipy"]["measured_us"] > 0


def test_values_at_the_end_of_the_range_compile():
    """Sums that overflow on the way: scipy's rounding is what A @ x means."""
    huge = A.astype(np.float32)
    huge.data = np.sign(huge.data) * np.float32(3e38)
    kernel = sparsegen.compile(huge, budget=0.3, threads=1)
    x = np.ones(A.shape[1], np.float32)
    assert (kernel @ x).shape == (A.shape[0],)
