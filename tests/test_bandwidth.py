"""Levels of memory: their order, and that a busy machine cannot make them slower than they once were."""

from __future__ import annotations

import pytest

from sparsegen import bandwidth
from sparsegen.bandwidth import Level
from sparsegen.targets import cpu

pytestmark = pytest.mark.skipif(cpu.available() is not None, reason="no native module")


@pytest.fixture(autouse=True)
def forgotten(monkeypatch, tmp_path):
    monkeypatch.setenv("SPARSEGEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(bandwidth, "_known", {})


def test_levels_end_in_memory_and_never_grow_faster():
    levels = bandwidth.levels(1)
    assert levels[-1].name == "memory"
    assert levels[-1].size_bytes == 0
    rates = [level.bytes_per_s for level in levels]
    assert rates == sorted(rates, reverse=True)
    assert all(1e8 < rate < 1e13 for rate in rates)


def test_the_level_is_the_nearest_that_holds_the_bytes(monkeypatch):
    levels = (Level("L1", 1000, 4e9), Level("L2", 10_000, 3e9), Level("memory", 0, 1e9))
    monkeypatch.setattr(bandwidth, "levels", lambda threads, again=False: levels)
    assert [bandwidth.level_of(size, 1).name for size in (0, 750, 751, 7500, 7501, 1e12)] == [
        "L1", "L1", "L2", "L2", "memory", "memory",
    ]  # fmt: skip


def test_the_limit_is_measured_again_when_told(monkeypatch):
    given = iter([[Level("L1", 1000, 2e9), Level("memory", 0, 1e9)], [Level("L1", 1000, 2e9), Level("memory", 0, 4e9)]])
    monkeypatch.setattr(bandwidth, "_measure", lambda threads: next(given))
    assert bandwidth.limit(500, 3) == (Level("L1", 1000, 2e9), pytest.approx(0.25))
    assert bandwidth.limit(8000, 3)[1] == pytest.approx(8.0)
    assert bandwidth.limit(8000, 3, again=True) == (Level("memory", 0, 4e9), pytest.approx(2.0))


def test_measuring_again_keeps_the_faster(monkeypatch):
    given = iter([[Level("L1", 8, 5.0), Level("memory", 0, 3.0)], [Level("L1", 8, 4.0), Level("memory", 0, 9.0)]])
    monkeypatch.setattr(bandwidth, "_measure", lambda threads: next(given))
    assert [level.bytes_per_s for level in bandwidth.levels(3)] == [5.0, 3.0]
    assert [level.bytes_per_s for level in bandwidth.levels(3, again=True)] == [5.0, 9.0]
    monkeypatch.setattr(bandwidth, "_known", {})  # a new process reads what was kept
    assert [level.bytes_per_s for level in bandwidth.levels(3)] == [5.0, 9.0]
