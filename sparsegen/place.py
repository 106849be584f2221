"""Where a worker's x and y lie, between guards, and the clock of that place: this process's memory, or a GPU's."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sparsegen import device_arrays, events, gpu, ops, timing
from sparsegen.arena import Arena
from sparsegen.problem import Problem

Arms = Mapping[str, Callable[[], object]]
RUNS = 32  # that a disturbance of y on a GPU moves


def of(problem: Problem, x: np.ndarray) -> Host | Device:
    """The place for a problem, holding an input like x."""
    return Device(problem, x) if problem.target == "cuda" else Host(problem, x)


class Host:
    """Beyond the guards lies memory that nothing may touch."""

    def __init__(self, problem: Problem, x: np.ndarray):
        shape = ops.get(problem.op).shapes(problem)[1]
        flat = {"x": x.ravel(order="K"), "y": np.zeros(int(np.prod(shape)), problem.dtype)}
        self._arena, self.threads = Arena(flat, fenced=True), problem.threads
        self.x: Any = self._arena.arrays["x"].reshape(x.shape, order=problem.order_b)
        self.y: Any = self._arena.arrays["y"].reshape(shape, order=problem.order_c)
        self.guard, self.intact = self._arena.guard, self._arena.intact

    def put_x(self, x: np.ndarray) -> None:
        self.x[...] = x

    def put_y(self, y) -> None:
        self.y[...] = y

    def disturb(self, rng: np.random.Generator) -> None:
        """Some elements of y take the values of others."""
        y = self._arena.arrays["y"]
        if y.size:
            some = rng.integers(y.size, size=(2, 1 + y.size // 64))
            y[some[0]] = y[some[1]]

    def holds(self, x: np.ndarray) -> bool:
        """Whether x is what it was set to."""
        return np.array_equal(self.x, x, equal_nan=True)

    def result(self, returned: object = None) -> np.ndarray:
        """y of a call: a library may return an array of its own, a plan returns its status."""
        return returned if isinstance(returned, np.ndarray) else self.y

    def rough(self, call: Callable[[], object]) -> float:
        return timing.rough(call)

    def interleaved(self, arms: Arms, count: int, seed: int, most_seconds: float, **steps) -> list[dict[str, float]]:
        return timing.interleaved(arms, self.threads, count, seed, most_seconds, **steps)

    def cold(self, call: Callable[[], object]) -> float | None:
        return None  # the caches of a CPU are not flushed

    def state(self) -> dict:
        return {}


class Device:
    """x and y stay on the GPU: no call that is timed copies them."""

    def __init__(self, problem: Problem, x: np.ndarray):
        self.device, shape = gpu.get(problem.ordinal), ops.get(problem.op).shapes(problem)[1]
        self.device.enter()  # for libraries, which take the context as they find it
        self.host_x = np.asarray(x, order=problem.order_b).copy(order="K")
        arrays = device_arrays.DeviceArray
        self.x: Any = arrays(self.device, x.shape, problem.dtype, problem.order_b, guarded=True)
        self.y: Any = arrays(self.device, shape, problem.dtype, problem.order_c, guarded=True)
        self.x.stream = self.y.stream = None  # all that is timed is in the default stream: no library need wait
        self.clock = events.Clock(self.device)

    def guard(self) -> None:
        """Guards that were once overwritten are never trusted again: the worker ends."""

    def intact(self) -> bool:
        return self.x.buffer.intact() and self.y.buffer.intact()

    def put_x(self, x: np.ndarray) -> None:
        self.host_x[...] = x
        self.x.set(self.host_x)

    def put_y(self, y) -> None:
        self.y.set(np.broadcast_to(np.asarray(y, self.y.dtype), self.y.shape))

    def disturb(self, rng: np.random.Generator) -> None:
        """Some elements of y take the values of others, in runs: each is one copy on the GPU."""
        size, count = self.y.dtype.itemsize, math.prod(self.y.shape)
        run = 1 + count // (64 * RUNS)
        for to, source in rng.integers(max(count - run, 0) + 1, size=(RUNS, 2)).tolist():
            if abs(to - source) >= run:
                self.y.buffer.move(to * size, source * size, run * size)

    def holds(self, x: np.ndarray) -> bool:
        """Whether x on the GPU is what it was set to."""
        return np.array_equal(self.x.get(), x, equal_nan=True)

    def result(self, returned: object = None) -> np.ndarray:
        """y of a call on the host: a library may return an array of its own, a plan returns its status."""
        mine = returned is None or isinstance(returned, int)
        return self.y.get() if mine else device_arrays.host(returned, self.device)

    def rough(self, call: Callable[[], object]) -> float:
        return self.clock.rough(call)

    def interleaved(self, arms: Arms, count: int, seed: int, most_seconds: float, **steps) -> list[dict[str, float]]:
        return self.clock.interleaved(arms, count, seed, most_seconds, **steps)

    def cold(self, call: Callable[[], object]) -> float | None:
        return self.clock.cold(call)

    def state(self) -> dict:
        """Clocks and temperature as they are."""
        return gpu.state(self.device)
