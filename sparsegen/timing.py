"""The one definition of time: interleaved bursts of calls, in random order, after warm-up calls that are not timed.

Per-call times of one round belong together: ratios are taken within rounds, and their median is the answer.
Processes that `share` a file take turns: what they time never overlaps.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

WARM_UP_NS = 2_000_000  # how long an arm runs untimed after another has had the caches, up to five calls
MOST_WARM_UP = 5
BURST_NS = 1_000_000
SETTLE_S = 0.006  # threads of the arm before may spin for so long, on cores that the next arm wants

_shared: dict[str, Path] = {}  # the file whose lock is the turn
_turn: list[int] = []  # its descriptor, while this process has the turn


def share(path: Path | None) -> None:
    """From here on nothing is timed in this process while another one that shares `path` times; None: no more."""
    _shared.clear()
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        _shared["path"] = path


@contextmanager
def turn() -> Iterator[float]:
    """The right to time; what it gives are the seconds that were waited for it. A turn within a turn is the same one.

    Where nothing is shared, or the file system has no locks, nothing is waited for. Of one thread at a time.
    """
    if _turn or not _shared:
        yield 0.0
        return
    import fcntl

    begun = time.monotonic()
    opened = os.open(_shared["path"], os.O_RDWR | os.O_CREAT, 0o666)
    _turn.append(opened)
    try:
        with suppress(OSError):
            fcntl.flock(opened, fcntl.LOCK_EX)
        yield time.monotonic() - begun
    finally:
        _turn.clear()
        os.close(opened)


def rough(call: Callable[[], object], least: int = 3, most_ns: int = 1_500_000) -> float:
    """The shortest of a few single calls, ns, after one that is not counted."""
    call()
    best, stop = float("inf"), time.perf_counter_ns() + most_ns
    for turn in range(50):
        begun = time.perf_counter_ns()
        call()
        ended = time.perf_counter_ns()
        best = min(best, ended - begun)
        if turn + 1 >= least and ended > stop:
            break
    return best


def interleaved(
    arms: Mapping[str, Callable[[], object]],
    threads: int,
    count: int,
    seed: int,
    most_seconds: float = float("inf"),
    burst_ns: int = BURST_NS,
    prepare: Callable[[int], None] | None = None,
    finished: Callable[[str, int, object], None] | None = None,
) -> list[dict[str, float]]:
    """Rounds of bursts: for each round the time of one call of every arm, ns.

    Thread CPU time when one thread is allowed, else wall time, with a pause before every burst. The rest as `rounds`.
    """
    clock = time.thread_time_ns if threads == 1 else time.perf_counter_ns
    cost = {arm: rough(call, 2) for arm, call in arms.items()}

    def burst(arm: str) -> tuple[float, object]:
        call, result = arms[arm], None
        if threads > 1:
            time.sleep(SETTLE_S)
        for _ in range(int(np.clip(WARM_UP_NS // max(cost[arm], 1), 1, MOST_WARM_UP))):
            call()
        calls = range(max(1, int(burst_ns / max(cost[arm], 1))))
        begun = clock()
        for _ in calls:
            result = call()
        return (clock() - begun) / len(calls), result

    return rounds(list(arms), burst, count, seed, most_seconds, prepare, finished)


def rounds(
    arms: Sequence[str],
    burst: Callable[[str], tuple[float, object]],
    count: int,
    seed: int,
    most_seconds: float = float("inf"),
    prepare: Callable[[int], None] | None = None,
    finished: Callable[[str, int, object], None] | None = None,
) -> list[dict[str, float]]:
    """For each round what `burst` says of every arm, in random order: ns of one call, and what the last one returned.

    prepare(which) sets up input 0 or 1 before a burst; finished(arm, which, result) sees what came of it. Stops after
    `count` rounds or most_seconds.
    """
    rng, measured = np.random.default_rng(seed), []
    stop = time.perf_counter() + most_seconds
    for _ in range(count):
        taken = {}
        for index in rng.permutation(len(arms)):
            arm, which = arms[index], int(rng.integers(2))
            if prepare:
                prepare(which)
            taken[arm], result = burst(arm)
            if finished:
                finished(arm, which, result)
        measured.append(taken)
        if time.perf_counter() > stop:
            break
    return measured
