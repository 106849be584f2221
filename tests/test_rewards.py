"""Rewards: hand-worked numbers, and the order each of them keeps or breaks."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsegen.errors import SparsegenValueError
from sparsegen.train import rewards
from sparsegen.train.rewards import REWARDS, Outcome, ladder, sparserl, tiered
from sparsegen.verdict import Level

LADDER = (  # lowest first; each line is one rung
    (Outcome(Level.NONE, "header"), Outcome(Level.NONE, "screen"), Outcome(Level.PARSED, "infeasible"),
     Outcome(Level.NONE, "unfinished"), Outcome(Level.TIMED, speedup=3.0, permitted=False)),
    (Outcome(Level.PARSED, "compile"),),
    (Outcome(Level.COMPILED, "crash"), Outcome(Level.RAN, "crash"), Outcome(Level.RAN, "timeout"),
     Outcome(Level.COMPILED, "memory"), Outcome(Level.COMPILED)),
    (Outcome(Level.RAN, "out of bounds"), Outcome(Level.RAN, "writes input"), Outcome(Level.RAN, "race"),
     Outcome(Level.RAN, "too fast")),
    (Outcome(Level.RAN, "wrong"),),
    (Outcome(Level.TIMED, speedup=1e-6), Outcome(Level.TIMED, speedup=0.5), Outcome(Level.CORRECT),
     Outcome(Level.TIMED, speedup=1.02, null_spread=0.03)),
    (Outcome(Level.TIMED, speedup=1.05, null_spread=0.03, best=1.5), Outcome(Level.TIMED, speedup=40.0, best=1.01)),
)  # fmt: skip

outcomes = st.builds(
    Outcome,
    level=st.just(Level.TIMED),
    speedup=st.floats(1e-4, 1e4),
    null_spread=st.floats(0, 0.2),
    best=st.none() | st.floats(0.5, 50),
)


def timed(speedup: float, **more) -> Outcome:
    return Outcome(Level.TIMED, speedup=speedup, time_us=100 / speedup, baseline_us=100.0, **more)


def test_rungs():
    assert [{each.rung for each in line} for line in LADDER] == [{rung} for rung in range(7)]


def test_the_ladder_is_strictly_ordered():
    values = [[ladder(each) for each in line] for line in LADDER]
    for low, high in itertools.pairwise(values):
        assert max(low) < min(high)


def test_the_ladder_is_monotone_in_level():
    """For equal faults, and for what has none, a later stage is never worth less."""
    for fault in (*rewards.RUNG, ""):
        values = [ladder(Outcome(level, fault)) for level in Level if level < Level.CORRECT]
        assert values == sorted(values)
    reached = [Outcome(Level.NONE), Outcome(Level.PARSED), Outcome(Level.COMPILED), Outcome(Level.RAN, "wrong")]
    values = [ladder(each) for each in [*reached, Outcome(Level.CORRECT), timed(1.0)]]
    assert values == sorted(set(values))


def test_the_ladder_by_hand():
    assert ladder(timed(1.5, best=1.5)) == pytest.approx(0.8)
    assert ladder(timed(6.0, best=6.0)) == pytest.approx(0.8)  # normalised: whatever there is to gain
    assert ladder(timed(math.sqrt(6.0), best=6.0)) == pytest.approx(0.6)
    assert ladder(timed(2.0)) == pytest.approx(0.8)
    assert ladder(timed(1.5**1.25, best=1.5)) == pytest.approx(0.9)  # better than the best known still pays
    assert ladder(timed(1000.0, best=1.5)) == 1.0
    assert ladder(timed(1.0)) == ladder(timed(1.02, null_spread=0.03)) == ladder(timed(0.98, null_spread=0.03)) == 0.4
    assert ladder(timed(1 / math.sqrt(8))) == pytest.approx(0.2)
    assert ladder(timed(0.01)) == 0.0
    spread = 0.05  # the best known keeps BEST with a spread as well
    assert ladder(timed(2.0, best=2.0, null_spread=spread)) == pytest.approx(0.8)
    assert ladder(timed(math.sqrt(1.1), best=1.001)) == pytest.approx(0.6)  # as if the best were 1.1
    assert ladder(timed(1.05, best=1.05)) == pytest.approx(0.4 + 0.4 * math.log(1.05) / math.log(1.1))


@given(outcomes)
def test_the_ladder_is_bounded(outcome):
    assert 0.0 <= ladder(outcome) <= 1.0
    assert all(-1 <= ladder(each) <= 1 for line in LADDER for each in line)


@given(outcomes, st.floats(1.0, 1e3), st.sampled_from([ladder, sparserl, rewards.correctness]))
def test_faster_is_never_worse(outcome, factor, reward):
    faster = replace(outcome, speedup=outcome.speedup * factor)
    assert reward(faster) >= reward(outcome)


@given(outcomes, st.floats(0.0, 1.0))
def test_no_credit_inside_the_spread(outcome, share):
    inside = replace(outcome, speedup=1 + outcome.null_spread * share)
    assert ladder(inside) == rewards.EVEN


@given(st.floats(0.1, 20), st.floats(1.001, 10))
def test_tiered_grows_with_speed(speedup, factor):
    slow = timed(speedup, flops=2e6)
    assert tiered(timed(speedup * factor, flops=2e6)) > tiered(slow) > 0


def test_sparserl_by_hand():
    assert sparserl(Outcome(Level.NONE, "header")) == sparserl(Outcome(Level.PARSED, "compile")) == -0.5
    assert sparserl(Outcome(Level.RAN, "wrong")) == sparserl(Outcome(Level.RAN, "crash")) == 0.0
    assert sparserl(Outcome(Level.COMPILED)) == 0.5
    assert sparserl(Outcome(Level.CORRECT)) == 1.0
    assert sparserl(timed(1.42)) == pytest.approx(1.42)
    assert sparserl(timed(0.5)) == pytest.approx(0.5)
    assert sparserl(timed(1.5, shared_bytes_over=True)) == pytest.approx(1.2)
    assert sparserl(timed(1.5, shared_bytes_over=True), r_eff=0.2, r_penalty=0.2) == pytest.approx(0.9)
    assert sparserl(timed(9.0, permitted=False)) == -0.5


def test_sparserl_penalises_what_does_not_compile_as_well():
    """R_penalty stands outside the cases of the formula: -0.5 - 0.3."""
    broken = Outcome(Level.PARSED, "compile", shared_bytes_over=True)
    assert sparserl(broken) == pytest.approx(-0.8)
    assert sparserl(Outcome(Level.RAN, "wrong", shared_bytes_over=True)) == pytest.approx(-0.3)
    assert sparserl(broken, r_penalty=0.2) == pytest.approx(-0.7)
    assert rewards.correctness(broken) == -0.5


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["speedup", "time_us", "baseline_us", "flops", "null_spread", "best"])
def test_no_reward_is_made_of_what_is_no_number(name, number):
    with pytest.raises(SparsegenValueError, match=f"{name} is {number}"):
        Outcome(Level.TIMED, **{name: number})


def test_sparserl_breaks_the_order():
    """Its hole: correct and very slow is worth no more than wrong, and less with the penalty; unbounded above."""
    wrong, slow = Outcome(Level.RAN, "wrong"), timed(1e-9)
    assert sparserl(slow) == pytest.approx(sparserl(wrong), abs=1e-6)
    assert sparserl(replace(slow, shared_bytes_over=True)) < sparserl(wrong)
    assert sparserl(timed(1000.0)) > 500
    assert sparserl(Outcome(Level.RAN, "crash")) == sparserl(wrong)
    assert ladder(slow) > ladder(wrong) > ladder(Outcome(Level.RAN, "crash"))


def test_tiered_by_hand():
    failures = [
        (Outcome(Level.NONE, "screen"), -100), (timed(2.0, permitted=False), -100),
        (Outcome(Level.PARSED, "compile"), -40),
        (Outcome(Level.RAN, "timeout"), -30), (Outcome(Level.COMPILED), -30), (Outcome(Level.RAN, "crash"), -20),
        (Outcome(Level.RAN, "out of bounds"), -20), (Outcome(Level.RAN, "wrong"), -10),
    ]  # fmt: skip
    assert [tiered(each) for each, _ in failures] == [value for _, value in failures]
    assert tiered(timed(2.0, flops=100_000)) == pytest.approx(2.0)  # 1e5 in 50 us
    assert tiered(Outcome(Level.CORRECT)) == 0.0


def test_correctness_by_hand():
    values = [rewards.correctness(each) for each in (Outcome(Level.PARSED, "compile"), Outcome(Level.RAN, "wrong"))]
    assert values == [-0.5, 0.0]
    assert rewards.correctness(timed(0.01)) == rewards.correctness(timed(50.0, shared_bytes_over=True)) == 1.0


def test_rewards_by_name():
    assert set(REWARDS) == {"sparserl", "tiered", "correctness", "ladder"}
    assert all(function.__name__ == name for name, function in REWARDS.items())
