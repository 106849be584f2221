"""The parent's side of the worker: start it, ask it, and outlive it.

A template process (see worker.py) imports what is needed once and forks a child for every search, so that a candidate
that crashes costs a fork. The child reads A from an unlinked file into memory of its own, laid out as the user's is, so
that baselines run as fast there as here; results come back through the same file. Nothing the child says is unpickled:
its answers are JSON.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import mmap
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from sparsegen import ops
from sparsegen.errors import SparsegenError
from sparsegen.problem import Problem

START_SECONDS = 60.0
START = "from sparsegen import worker; worker.main(%d)"  # of the template process; its end of the pipe goes in


class Died(Exception):
    """The child ended while it was asked, or could not do it.

    fault: "crash", "timeout", "memory", one of gpu.FAULTS, "driver", or "header" for what it was asked in vain.
    """

    def __init__(self, fault: str, message: str):
        super().__init__(message)
        self.fault = fault


class _Template:
    """The one template process of this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()  # one session at a time: nothing else may be timed meanwhile
        self.holder: int | None = None  # the thread that has it
        self.process: subprocess.Popen | None = None
        self.owner = 0

    def connection(self) -> Connection:
        if self.owner != os.getpid():  # never started, or this process is a fork of the one that did
            self.process, self.owner = None, os.getpid()
        if self.process is None or self.process.poll() is not None:
            self.stop()
            ours, theirs = socket.socketpair()
            root = str(Path(__file__).resolve().parent.parent)
            first = f"import sys; sys.path.insert(0, {root!r})"
            start = f"{first}; {START % theirs.fileno()}"
            self.process = subprocess.Popen(
                [sys.executable, "-c", start], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
            theirs.close()
            self.socket = ours
            self.pipe = Connection(os.dup(ours.fileno()))
        return self.pipe

    def stop(self) -> None:
        if self.process is not None and self.owner == os.getpid():
            with contextlib.suppress(OSError):
                self.pipe.close()
                self.socket.close()
            self.process.kill()
            self.process.wait()
        self.process = None


_template = _Template()
atexit.register(_template.stop)


def warm() -> None:
    """Start the template process without waiting for it, nor for a session that runs."""
    if _template.lock.acquire(blocking=False):
        try:
            _template.connection()
        finally:
            _template.lock.release()


class Session:
    """A child that holds one problem. `output` is a view of the result it last wrote, shaped like y."""

    def __init__(self, problem: Problem, A: sp.csr_array, modules: tuple[str, ...]):
        self._opening: dict[str, object] = {
            "problem": {
                "op": problem.op, "shape": problem.pattern.shape, "facts": problem.facts, "dtype": problem.dtype.str,
                "k": problem.k, "layout_b": problem.layout_b, "layout_c": problem.layout_c, "threads": problem.threads,
                "deterministic": problem.deterministic, "target": problem.target, "ordinal": problem.ordinal,
            },
            "modules": (*modules, "cuda.bindings.driver") if problem.target == "cuda" else modules,
        }  # fmt: skip
        self._pid = 0
        self._parts = [A.indptr, A.indices, A.data]
        shape = ops.get(problem.op).shapes(problem)[1]
        count = int(np.prod(shape))
        self._output_bytes = max(count * problem.dtype.itemsize, 1)
        end = -(-self._output_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self._starts: list[int] = []
        for array in self._parts:
            self._starts.append(end)
            end += array.nbytes
        kinds = [(start, array.dtype.str, len(array)) for start, array in zip(self._starts, self._parts, strict=True)]
        self._opening["arrays"] = kinds
        self._file = _anonymous_file()
        try:
            os.truncate(self._file, self._output_bytes)
            self._memory = mmap.mmap(self._file, self._output_bytes, access=mmap.ACCESS_READ)
        except BaseException:
            os.close(self._file)
            raise
        self.output = np.frombuffer(self._memory, problem.dtype, count).reshape(shape, order=problem.order_c)

    @property
    def alive(self) -> bool:
        """Whether there is a child, with all that it was given."""
        return self._pid > 0

    def start(self) -> float:
        """Have the child ready; the seconds that took. The first session of a process pays for its imports."""
        begun = time.monotonic()
        if not self._pid:
            try:
                self._open()
            except Died:  # the template may have been killed since it last answered; no candidate had a part in it
                self._open()
        return time.monotonic() - begun

    def ask(self, request: str, seconds: float, **details) -> dict:
        """The child's answer. Raises Died; the next question then goes to a new child."""
        self.start()
        try:
            _template.pipe.send_bytes(pickle.dumps((request, details)))
            return self._answer(seconds)
        except (OSError, EOFError, ValueError) as error:
            self._abandon()
            raise Died("crash", f"the worker ended: {error}") from None
        except Died:
            raise
        except BaseException:  # interrupted: what the child still says must not answer the next question
            self._abandon()
            raise

    def discard(self) -> None:
        """End the child, whose memory may have been written to; the next question goes to a new one."""
        if not self._pid:
            return
        os.kill(self._pid, signal.SIGKILL)
        with contextlib.suppress(Died):
            self._answer(START_SECONDS)

    def close(self) -> None:
        if self._pid:
            with contextlib.suppress(Died):
                self.ask("close", 5.0)
        self._pid = 0
        os.close(self._file)
        del self.output
        with contextlib.suppress(BufferError):  # a caller still holds a view
            self._memory.close()

    def _open(self) -> None:
        pipe = _template.connection()
        for start, array in zip(self._starts, self._parts, strict=True):
            _write(self._file, start, array)
        try:
            pipe.send_bytes(pickle.dumps(("open", self._opening)))
            socket.send_fds(_template.socket, [b"F"], [self._file])
            self._pid = 1
            pid = int(self._answer(START_SECONDS)["pid"])
        except (OSError, EOFError, ValueError, KeyError) as error:
            self._abandon()
            raise Died("crash", f"the worker did not start: {error}") from None
        except Died:
            raise
        except BaseException:
            self._abandon()
            raise
        self._pid = pid
        os.truncate(self._file, self._output_bytes)  # the child has its own copy of A now

    def _abandon(self) -> None:
        if self._pid > 1:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
        self._pid = 0
        _template.stop()

    def _answer(self, seconds: float) -> dict:
        pipe, deadline = _template.pipe, time.monotonic() + seconds
        if not pipe.poll(seconds):
            if self._pid > 1:
                os.kill(self._pid, signal.SIGKILL)
                while pipe.poll(5.0) and "ended" not in json.loads(pipe.recv_bytes()):
                    pass
                self._pid = 0
            else:
                self._pid = 0
                _template.stop()
            raise Died("timeout", f"no answer within {seconds:.1f} s")
        answer = json.loads(pipe.recv_bytes())
        if "refused" in answer and "fault" in answer:
            if answer["ends"]:
                pipe.poll(max(0.1, deadline - time.monotonic())) and pipe.recv_bytes()
                self._pid = 0
            raise Died(answer["fault"], answer["refused"])
        if "ended" in answer:
            self._pid = 0
            if answer["ended"] < 0:
                name = signal.Signals(-answer["ended"]).name
                raise Died("crash", f"the process was ended by {name}")
            if answer["ended"]:
                raise Died("crash", f"the process ended with status {answer['ended']}")
        return answer


@contextlib.contextmanager
def session(problem: Problem, A: sp.csr_array, modules: tuple[str, ...] = ()) -> Iterator[Session]:
    """A worker for one problem; A canonical, in the problem's dtype. One session runs at a time in a process."""
    if _template.holder == threading.get_ident():
        raise SparsegenError("this thread measures already; expected a search to begin after the one before it ended")
    with _template.lock:
        _template.holder = threading.get_ident()
        try:
            opened = Session(problem, A, modules)
            try:
                yield opened
            finally:
                opened.close()
        finally:
            _template.holder = None


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("sparsegen")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _write(file: int, start: int, array: np.ndarray) -> None:
    view = memoryview(np.ascontiguousarray(array).view(np.uint8).data)
    while len(view):
        written = os.pwrite(file, view[: 1 << 30], start)
        view, start = view[written:], start + written


if hasattr(os, "register_at_fork"):

    def _forget() -> None:
        if _template.process is not None:  # the parent's: with its end held here, the worker would outlive the parent
            with contextlib.suppress(OSError):
                _template.pipe.close()
                _template.socket.close()
            _template.process.returncode = 0  # it is not this process's to wait for
        _template.lock, _template.holder = threading.Lock(), None
        _template.process = None
        _template.owner = 0

    os.register_at_fork(after_in_child=_forget)
