"""Time on a GPU by CUDA events, of calls that are queued before the first of them begins: none waits for Python.

Hot: calls one after the other, which find in the L2 what the one before has left. Cold: single calls, each after twice
the L2 has been written over. Before either the GPU is kept busy with writes for as long as queueing will take. The
host's clock, which sees the work begin and end, must not be behind the events'.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import numpy as np

from sparsegen import gpu, timing
from sparsegen.errors import SparsegenError

BURST_NS = 1_000_000
MOST_CALLS = 50  # of a burst, far from what a queue holds
MOST_WRITES = 40  # that keep the GPU busy before a burst
WARM_UP = 2  # calls after those writes, not timed
TRIES = 3  # of a burst that began before it was queued; the last one counts
SINGLE = 5  # cold calls of which the median counts


class Clock:
    """Times calls that queue work on `stream` of a GPU. One thread at a time."""

    def __init__(self, device: gpu.Device, stream: int = 0):
        self.device, self.stream, cuda = device, stream, gpu.driver()
        device.enter()
        self._events = [gpu.ask(cuda.cuEventCreate(0)) for _ in range(2)]
        self._flush = gpu.Buffer(device, 2 * max(device.l2_bytes, 1 << 20))
        self._turn = 0
        self._write()
        self._finish()
        begun = time.perf_counter_ns()
        for _ in range(4):
            self._write()
        self._finish()
        self._write_ns = max((time.perf_counter_ns() - begun) / 4, 1e3)
        self._queue_ns = 20_000.0  # what queueing a call takes here: the longest yet, forgotten slowly
        try:  # nothing may stay in the L2 by privilege
            kind = cuda.CUlimit.CU_LIMIT_PERSISTING_L2_CACHE_SIZE
            gpu.ask(cuda.cuCtxSetLimit(kind, 0))
        except (AttributeError, SparsegenError):
            pass  # not on this GPU

    def __del__(self):
        for event in getattr(self, "_events", []):
            gpu.driver().cuEventDestroy(event)

    def burst(self, call: Callable[[], object], calls: int, cold: bool = False, tries: int = TRIES) -> float:
        """Nanoseconds of one of `calls` calls; of one alone, and after a flush of the L2, when cold."""
        cuda, (begin, end) = gpu.driver(), self._events
        for attempt in range(tries):
            begun = time.perf_counter_ns()
            ahead = (calls + WARM_UP) * self._queue_ns * 2**attempt
            for _ in range(min(MOST_WRITES, 1 + int(ahead / self._write_ns))):
                self._write()
            for _ in range(0 if cold else WARM_UP):
                call()
            gpu.ask(cuda.cuEventRecord(begin, self.stream))
            queued = time.perf_counter_ns()
            for _ in range(calls):
                call()
            late = int(cuda.cuEventQuery(begin)[0]) != gpu.NOT_READY
            self._queue_ns = max(0.9 * self._queue_ns, min((time.perf_counter_ns() - queued) / calls, 1e6))
            gpu.ask(cuda.cuEventRecord(end, self.stream))
            gpu.ask(cuda.cuEventSynchronize(end))
            host_ns = time.perf_counter_ns() - begun
            elapsed_ns = 1e6 * float(gpu.ask(cuda.cuEventElapsedTime(begin, end)))
            if elapsed_ns > 1.01 * host_ns + 2000:
                said = f"CUDA events say {elapsed_ns:.0f} ns, the host's clock {host_ns} ns"
                raise SparsegenError(f"{said}: no time is kept")
            if not late:
                break
        return elapsed_ns / calls

    def rough(self, call: Callable[[], object]) -> float:
        """The shortest of a few single calls, ns."""
        call()
        self._finish()
        return max(min(self.burst(call, 1) for _ in range(3)), 1.0)

    def hot(self, call: Callable[[], object], rough_ns: float, burst_ns: int = BURST_NS) -> float:
        """One call of a burst, ns."""
        return self.burst(call, int(np.clip(burst_ns / max(rough_ns, 1.0), 1, MOST_CALLS)))

    def cold(self, call: Callable[[], object], count: int = SINGLE) -> float:
        """The median of `count` single calls with nothing in the L2, ns."""
        return float(np.median([self.burst(call, 1, cold=True) for _ in range(count)]))

    def interleaved(
        self,
        arms: Mapping[str, Callable[[], object]],
        count: int,
        seed: int,
        most_seconds: float = float("inf"),
        prepare: Callable[[int], None] | None = None,
        finished: Callable[[str, int, object], None] | None = None,
    ) -> list[dict[str, float]]:
        """As `timing.interleaved`: rounds of hot bursts in random order, ns of one call of every arm."""
        cost = {arm: self.rough(call) for arm, call in arms.items()}

        def burst(arm: str) -> tuple[float, object]:
            run = arms[arm]
            last: list[object] = [None]

            def call():
                last[0] = run()

            return self.hot(call, cost[arm]), last[0]

        return timing.rounds(list(arms), burst, count, seed, most_seconds, prepare, finished)

    def _write(self) -> None:
        self._turn = (self._turn + 1) % 256
        cuda = gpu.driver()
        gpu.ask(cuda.cuMemsetD8Async(self._flush.address, self._turn, self._flush.nbytes, self.stream))

    def _finish(self) -> None:
        gpu.ask(gpu.driver().cuStreamSynchronize(self.stream))
