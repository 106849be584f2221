"""The worker's side of the fence: a template process that forks a child per search, and what the child does.

The child holds the problem, binds candidates, runs them on inputs it draws itself and times them beside the baselines.
It never has the reference. Its parent reads the answers as untrusted.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import pickle
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from sparsegen import baselines, candidate, checks, composite, gpu, operands, ops, place, targets, values
from sparsegen.arena import Arena
from sparsegen.errors import SparsegenError
from sparsegen.problem import Pattern, Problem

SLOW_IMPORTS = ("numba",)
FETCH_SEED = 20282
SPARE_MEMORY = 3 << 30  # bytes a child may add to what the matrix explains


def main(descriptor: int) -> None:
    """The template process: answer "open" by forking, watch the child, say how it ended."""
    connected = socket.socket(fileno=descriptor)
    pipe = Connection(os.dup(descriptor))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when a search ends
    while True:
        try:
            request, opening = pickle.loads(pipe.recv_bytes())
        except EOFError:
            return
        if request != "open":
            continue
        _, files, _, _ = socket.recv_fds(connected, 1, 1)
        for module in (*opening["modules"], *SLOW_IMPORTS):  # once, rather than in every child
            with contextlib.suppress(Exception):
                __import__(module)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                _serve(pipe, opening, files[0])
                status = 0
            except MemoryError as error:
                pipe.send_bytes(_refused("memory", f"out of the memory allowed: {error}", True))
            except SparsegenError as error:
                pipe.send_bytes(_refused(getattr(error, "fault", "driver"), str(error), True))
            except EOFError:
                pass
            finally:
                os._exit(status)
        os.close(files[0])
        ended = _watch(child, connected)
        with contextlib.suppress(OSError):
            pipe.send_bytes(json.dumps({"ended": ended}).encode())


def _watch(child: int, connected: socket.socket) -> int:
    """Wait for the child; end it if the parent is gone. Returns its exit status, or minus the signal that ended it."""
    poll = select.poll()
    poll.register(connected, 0)  # hang-up alone
    descriptor = None
    if hasattr(os, "pidfd_open"):
        with contextlib.suppress(OSError):
            descriptor = os.pidfd_open(child)
            poll.register(descriptor, select.POLLIN)
    while True:
        hung_up = any(fd == connected.fileno() for fd, _ in poll.poll(None if descriptor is not None else 10))
        if hung_up:
            os.kill(child, signal.SIGKILL)
        pid, status = os.waitpid(child, 0 if hung_up or descriptor is not None else os.WNOHANG)
        if pid:
            if descriptor is not None:
                os.close(descriptor)
            for left in Path("/dev/shm").glob(f"__KMP_REGISTERED_LIB_{pid}_*"):  # Intel's OpenMP, ended unasked
                left.unlink(missing_ok=True)
            return os.waitstatus_to_exitcode(status)


def _serve(pipe: Connection, opening: dict, file: int) -> None:
    child = _Child(opening, file)
    pipe.send_bytes(json.dumps({"pid": os.getpid()}).encode())
    while True:
        request, details = pickle.loads(pipe.recv_bytes())
        if request == "close":
            return
        try:
            answer = json.dumps(getattr(child, request)(**details)).encode()
        except gpu.GPUError as error:
            if error.ends:  # its context can do nothing more, and no other can be made in this process
                raise
            answer = _refused(error.fault, str(error), False)
        except SparsegenError as error:  # launch expressions are evaluated here, where the sizes are
            answer = _refused("header", str(error), False)
        pipe.send_bytes(answer)


def _refused(fault: str, why: str, ends: bool) -> bytes:
    """The answer to what could not be done; ends: nor anything else in this process."""
    return json.dumps({"refused": why, "fault": fault, "ends": ends}).encode()


class _Bound:
    """A candidate in this process: arrays between guards, ready to run with any number of threads."""

    def __init__(self, problem: Problem, file_text: str, name: str, path: str, packs: list):
        self.candidate = candidate.parse(file_text, name=name)
        self.problem, self.packs = problem, packs
        self.target = targets.get(problem.target)
        self.library = self.target.load(path)
        dtype = values.stored_dtype(self.candidate.encoding, problem.dtype)
        slots = [1 if self.candidate.encoding == "constant" else packed.slots for packed in packs]
        self.arenas = [
            Arena({**packed.arrays, "data": np.zeros(count, dtype)}, fenced=True)
            for packed, count in zip(packs, slots, strict=True)
        ]
        self.plans: dict[int, Any] = {}

    def set_values(self, data: np.ndarray) -> None:
        for arena, packed in zip(self.arenas, self.packs, strict=True):
            arena.arrays["data"][...] = values.encode(self.candidate.encoding, data, packed, self.problem.dtype)
        if self.target.COPIES:
            self.plans.clear()

    def plan(self, threads: int):
        if threads not in self.plans:
            arrays = [arena.arrays for arena in self.arenas]
            self.plans[threads] = self.target.bind(
                self.library, self.candidate, self.problem, self.packs, arrays, threads
            )
        return self.plans[threads]

    def checksum(self) -> list[int]:
        return [_mark(array) for arena in self.arenas for array in arena.arrays.values()]

    def intact(self) -> bool:
        """Whether nothing was written around its arrays, here or where the target has copied them to."""
        copies = self.plans.values() if self.target.COPIES else ()
        return all(arena.intact() for arena in self.arenas) and all(plan.intact() for plan in copies)

    def unchanged(self, before: list[int]) -> bool:
        """Whether its arrays are what they were."""
        copies = self.plans.values() if self.target.COPIES else ()
        return before == self.checksum() and all(plan.unchanged() for plan in copies)


class _Child:
    """Requests are methods; answers are JSON."""

    def __init__(self, opening: dict, file: int):
        spec = opening["problem"]
        arrays = [_read(file, start, dtype, size) for start, dtype, size in opening["arrays"]]
        self.A = sp.csr_array((arrays[2], arrays[1], arrays[0]), shape=spec["shape"])
        dtype = np.dtype(spec.pop("dtype"))
        shape = tuple(spec.pop("shape"))
        self.problem = Problem(pattern=Pattern(shape, arrays[0], arrays[1]), dtype=dtype, **spec)
        output_shape = ops.get(self.problem.op).shapes(self.problem)[1]
        count = int(np.prod(output_shape))
        self.output = np.frombuffer(mmap.mmap(file, max(count * dtype.itemsize, 1)), dtype, count)
        self.bound: dict[str, _Bound] = {}
        self.arms: dict[str, Callable[[], object]] = {}
        self.packs: dict[tuple, list] = {}
        _limit(self.A, self.output, self.problem.target == "cpu")
        self.inputs = checks.timed_inputs(self.problem)
        self.place = place.of(self.problem, self.inputs[0])

    def load(self, name: str, text: str, path: str, label: str) -> dict:
        """Pack A for a candidate and bind it under `name`."""
        parsed = candidate.parse(text, name=label)
        key = tuple((part.select, part.format, tuple(parsed.format_params(part).items())) for part in parsed.parts)
        started = time.perf_counter_ns()
        if key not in self.packs:
            self.packs = {key: composite.pack(parsed, self.problem)}  # one at a time: memory
        self.bound[name] = _Bound(self.problem, text, label, path, self.packs[key])
        size = sum(array.nbytes for arena in self.bound[name].arenas for array in arena.arrays.values())
        return {"pack_ms": (time.perf_counter_ns() - started) / 1e6, "packed_bytes": size}

    def check(self, name: str, check: checks.Check, threads: int, sampled: bool = False) -> dict:
        """Run a candidate on the inputs of a check; y goes to the output. sampled: in the emulator, some blocks."""
        bound = self.bound[name]
        data, x, y0 = checks.inputs(self.problem, check)
        bound.set_values(data)
        self.place.put_x(x)
        self.place.put_y(y0)
        before, plan = bound.checksum(), bound.plan(threads)
        try:
            some = {"sampled": True} if sampled else {}
            status = plan.run(self.place.x, self.place.y, check.alpha, check.beta, **some)
        except targets.Fault as fault:
            return {"fault": fault.kind, "message": str(fault)}
        self.output[...] = self.place.result().ravel(order="K")
        intact = self.place.intact() and bound.intact()
        unchanged = bound.unchanged(before) and self.place.holds(x)
        return {"status": status, "intact": bool(intact), "unchanged": bool(unchanged)}

    def estimate(self, name: str, gpu: str, resources: dict) -> dict:
        """What a call of a candidate of the emulator, with A's own values, might take on a GPU."""
        from sparsegen.ptx import gpus

        self.bound[name].set_values(self.A.data)
        self.place.put_x(self.inputs[0])
        self.place.put_y(0)
        try:
            return self.bound[name].plan(1).estimate(self.place.x, self.place.y, gpus.get(gpu), resources).as_dict()
        except targets.Fault as fault:
            return {"fault": fault.kind, "message": str(fault)}

    def arm(self, name: str, bound: str, threads: int) -> dict:
        """Make a candidate with A's own values an arm; answers with a first rough time."""
        self.bound[bound].set_values(self.A.data)
        plan, x, y = self.bound[bound].plan(threads), self.place.x, self.place.y
        self.arms[name] = lambda: plan.run(x, y, 1.0, 0.0)
        if self.problem.target == "cpu":  # as kernels are called
            call = operands.Call()
            call._plan = plan
            self.arms[name] = lambda: call(x, out=y)
        self.place.put_x(self.inputs[0])
        return {"rough_ns": self.place.rough(self.arms[name])}

    def baseline(self, name: str, way: str = "") -> dict:
        """Prepare a baseline as an arm; y of its first call goes to the output. way: one of its `arms`."""
        module, problem = baselines.get(name), replace(self.problem, threads=self.problem.useful_threads)
        if reason := module.available(problem):
            return {"refused": reason}
        started = time.perf_counter_ns()
        call = module.arms(self.A, problem)[way]() if way else module.prepare(self.A, problem)
        x, y = self.place.x, self.place.y
        prepared = (time.perf_counter_ns() - started) / 1e6
        self.place.put_x(self.inputs[0])
        self.arms[name] = lambda: call(x, y)
        if isinstance(self.place, place.Device) and name == "scipy":  # the one library that is not on the GPU
            host = self.place.host_x
            self.arms[name] = lambda: call(host)
        self.output[...] = self.place.result(self.arms[name]()).ravel(order=self.problem.order_c)
        return {"prepare_ms": prepared, "rough_ns": self.place.rough(self.arms[name]), **_chosen(call)}

    def drop(self, names: list[str]) -> dict:
        """Forget arms and candidates."""
        for name in names:
            self.arms.pop(name, None)
            self.bound.pop(name, None)
        return {}

    def fetch(self, arm: str, which: int) -> dict:
        """Two calls of an arm on one of the timed inputs, the second with some of y moved; its y goes to the output."""
        self.place.put_x(self.inputs[which])
        self.place.put_y(np.nan)
        self.place.guard()
        self.arms[arm]()
        self.place.disturb(np.random.default_rng(FETCH_SEED + which))
        result = self.arms[arm]()
        self.output[...] = self.place.result(result).ravel(order=self.problem.order_c)
        return {"intact": bool(self.place.intact())}

    def cold(self, arms: list[str]) -> dict:
        """Where caches can be flushed: of each arm one call after that, ns."""
        self.place.put_x(self.inputs[0])
        return {"cold_ns": {arm: self.place.cold(self.arms[arm]) for arm in arms}}

    def rounds(self, arms: list[str], count: int, most_seconds: float, seed: int) -> dict:
        """Interleaved bursts (timing.py). Inputs change between bursts, and every result must equal what the arm gave
        for that input before; so must that of one more call, for which some of y holds what belongs elsewhere: who
        found y computed already, and left it, is found. `changed` names the arms where it did not."""
        first: dict[tuple[str, int], int] = {}
        changed = set()
        rng = np.random.default_rng(seed)

        def prepare(which: int) -> None:
            self.place.put_x(self.inputs[which])

        def finished(arm: str, which: int, result: object) -> None:
            mark = _mark(self.place.result(result).ravel(order="K"))
            self.place.disturb(rng)
            again = _mark(self.place.result(self.arms[arm]()).ravel(order="K"))
            if {first.setdefault((arm, which), mark), again} != {mark}:
                changed.add(arm)

        chosen = {arm: self.arms[arm] for arm in arms}
        before = self.place.state()
        measured = self.place.interleaved(chosen, count, seed, most_seconds, prepare=prepare, finished=finished)
        states = [each for each in (before, self.place.state()) if each]
        return {"rounds": measured, "changed": sorted(changed), "states": states}


def _chosen(call: object) -> dict:
    """What a library says of itself: which of its algorithms it has taken."""
    return {"chosen": chosen} if (chosen := getattr(call, "chosen", None)) else {}


def _mark(array: np.ndarray) -> int:
    """The sum of the words of an array: changes with it, at the speed of reading it."""
    raw = array.reshape(-1).view(np.uint8)
    whole = len(raw) // 8 * 8
    return int(raw[:whole].view(np.uint64).sum(dtype=np.uint64)) + int(raw[whole:].sum(dtype=np.uint64))


def _read(file: int, start: int, dtype: str, size: int) -> np.ndarray:
    array = np.empty(size, dtype)
    view = memoryview(array.view(np.uint8).data)
    while len(view):
        got = os.preadv(file, [view[: 1 << 30]], start)
        if not got:
            raise EOFError("the matrix file is too short")
        view, start = view[got:], start + got
    return array


def _limit(A: sp.csr_array, output: np.ndarray, on_cpu: bool) -> None:
    """Fence this process: address space, no core files, no new processes' worth of files."""
    matrix = A.data.nbytes + A.indices.nbytes + A.indptr.nbytes + 4 * output.nbytes
    if on_cpu and sys.platform.startswith("linux"):  # a GPU driver reserves address space without bound
        with open("/proc/self/statm") as file:
            now = int(file.read().split()[0]) * mmap.PAGESIZE
        most = now + SPARE_MEMORY + 12 * matrix
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (most if hard < 0 else min(most, hard), hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
