"""The rounds of timing.py, with a clock that the test moves."""

from __future__ import annotations

import pytest

from sparsegen import timing


class Clock:
    def __init__(self):
        self.now = 0

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    for name in ("thread_time_ns", "perf_counter_ns"):
        monkeypatch.setattr(timing.time, name, clock)
    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock.now / 1e9)
    return clock


def arm(clock: Clock, cost: int, calls: list):
    def call():
        clock.now += cost
        calls.append(cost)
        return cost

    return call


def test_every_round_gives_the_cost_of_one_call(clock):
    arms = {"fast": arm(clock, 20_000, []), "slow": arm(clock, 3_000_000, [])}
    rounds = timing.interleaved(arms, threads=1, count=7, seed=11)
    assert len(rounds) == 7
    assert all(each == {"fast": 20_000, "slow": 3_000_000} for each in rounds)


def test_warm_up_calls_are_made_and_not_counted(clock):
    calls: list[int] = []
    timing.interleaved({"only": arm(clock, 100_000, calls)}, threads=1, count=1, seed=11)
    rough = 1 + 16  # one that is not counted, then until more than 1.5 ms are over
    assert len(calls) - rough == timing.MOST_WARM_UP + timing.BURST_NS // 100_000


def test_the_order_differs_between_rounds(clock):
    order: list[str] = []
    arms = {name: arm(clock, 2_000_000, []) for name in "abcd"}
    timing.interleaved(arms, 1, 12, 11, finished=lambda name, which, result: order.append(name))
    rounds = {tuple(order[start : start + 4]) for start in range(0, len(order), 4)}
    assert all(sorted(each) == list("abcd") for each in rounds)
    assert len(rounds) > 3


def test_it_stops_after_the_seconds_given(clock):
    rounds = timing.interleaved({"only": arm(clock, 50_000_000, [])}, 1, 1000, 11, most_seconds=1.0)
    assert 5 <= len(rounds) < 20


def test_inputs_are_set_up_before_and_results_seen_after_each_burst(clock):
    seen: list[tuple] = []
    timing.interleaved(
        {"only": arm(clock, 1_000_000, [])}, 1, 9, 11,
        prepare=lambda which: seen.append(("prepare", which)),
        finished=lambda name, which, result: seen.append((name, which, result)),
    )  # fmt: skip
    assert len(seen) == 18
    for before, after in zip(seen[::2], seen[1::2], strict=True):
        assert before[0] == "prepare"
        assert after == ("only", before[1], 1_000_000)
    assert {which for _, which in seen[::2]} == {0, 1}
