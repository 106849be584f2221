"""A bench: a child process that does one job at a time, and is replaced when it dies, hangs or has done many.

Whatever a matrix does to it (memory, time, a crash) ends in a record, and the next job has a new child. Children of one
device take turns at timing, whoever started them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import pickle
import signal
import socket
import subprocess
import sys
import threading
from multiprocessing.connection import Connection
from pathlib import Path

from sparsegen import paths
from sparsegen.batch.jobs import Job
from sparsegen.errors import SparsegenError

START_SECONDS = 300.0  # imports, and measuring the memory, on a busy machine
JOBS = 500  # that one child does
SHARE_OF_MEMORY = 0.8  # of what is free, for all children of a device


class Stopped(Exception):
    """The bench was stopped while it did a job."""


class Bench:
    """settings: those of the run, and the number of `workers` of the device.

    One job at a time; `stop` may be called from another thread.
    """

    def __init__(self, settings: dict):
        self.settings, self.done = settings, 0
        self.stopped = False
        self._lock = threading.Lock()  # of starting and stopping
        self._process: subprocess.Popen | None = None
        self._pipe: Connection
        self._about: dict = {}

    def do(self, job: Job) -> dict:
        """The record of a job, with the `environment` it was made in. Raises Stopped, and SparsegenError where no
        job can be done here."""
        pipe = self._child()
        try:
            pipe.send_bytes(pickle.dumps(job))
            answer = self._answer(pipe, self.settings["timeout"])
        except TimeoutError as error:
            answer = {"fault": "timeout", "message": str(error)}
        except (OSError, EOFError, ValueError) as error:
            answer = {"fault": "crash", "message": self._ended(error)}
        if self.stopped:
            raise Stopped
        if answer.get("fault") in ("crash", "timeout", "memory"):
            self._end()
        self.done += 1
        if self.done % JOBS == 0:
            self._end()
        about = {
            "key": job.key,
            "matrix": job.name,
            "op": job.product.op,
            "k": job.product.k,
            "asked": job.product.dtype,
        }
        return {**about, **answer, "environment": self._about}

    def stop(self) -> None:
        """End the child, whatever it does, and start no other one."""
        self.stopped = True
        self._end()

    def _child(self) -> Connection:
        with self._lock:
            if self.stopped:
                raise Stopped
            if self._process is not None and self._process.poll() is None:
                return self._pipe
            ours, theirs = socket.socketpair()
            root = str(Path(__file__).resolve().parent.parent.parent)
            start = f"import sys; sys.path.insert(0, {root!r}); from sparsegen.batch import bench; "
            self._process = subprocess.Popen(
                [sys.executable, "-c", f"{start}bench.main({theirs.fileno()})"], pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
            theirs.close()
            self._pipe = Connection(ours.detach())
            self._pipe.send_bytes(pickle.dumps(self.settings))
        try:
            self._about = self._answer(self._pipe, START_SECONDS)
        except (OSError, EOFError, ValueError) as error:
            if self.stopped:
                raise Stopped from None
            said = self._ended(error)
            self._end()
            raise SparsegenError(f"no bench could be started: {said}; less --memory than it needs?") from error
        if "error" in self._about:
            self._end()
            raise SparsegenError(self._about["error"])
        return self._pipe

    def _answer(self, pipe: Connection, seconds: float) -> dict:
        if not pipe.poll(seconds):
            raise TimeoutError(f"no record within {seconds:g} s; --timeout allows more")
        return json.loads(pipe.recv_bytes())

    def _ended(self, error: Exception) -> str:
        """How the child ended, in words."""
        try:
            status = self._process.wait(5.0) if self._process else 0
        except subprocess.TimeoutExpired:
            return f"its process does not answer: {error}"
        if status == -signal.SIGKILL:
            return "its process was killed (SIGKILL), as the system does when memory runs out"
        return f"its process ended with {signal.Signals(-status).name if status < 0 else f'status {status}'}"

    def _end(self) -> None:
        with self._lock:
            if self._process is not None:
                with contextlib.suppress(ProcessLookupError):
                    self._process.kill()
                self._process.wait()
                with contextlib.suppress(OSError):
                    self._pipe.close()
            self._process = None


def turns(device: str) -> Path:
    """The file whose lock is the right to time on this device, of all processes of a user on this machine."""
    name = hashlib.blake2b(f"{socket.gethostname()} {device}".encode(), digest_size=8).hexdigest()
    return paths.cache() / f"turn-{name}.lock"


def main(descriptor: int) -> None:
    """The child: settings, then a job after the other until the other end is closed; answers are JSON."""
    pipe = Connection(descriptor)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when a run ends
    settings = pickle.loads(pipe.recv_bytes())
    from sparsegen import engine, targets, timing
    from sparsegen.batch import measured

    free = engine.free_memory()
    share = int(SHARE_OF_MEMORY * free / settings["workers"]) if free < float("inf") else None
    _limited(settings["memory"] or share)
    with contextlib.suppress(EOFError, ConnectionError):
        try:
            timing.share(turns(targets.get(engine.target_of(settings["target"])).device()))
            about = measured.environment(settings)
        except SparsegenError as error:
            about = {"error": str(error)}
        pipe.send_bytes(_json(about))
        while True:
            pipe.send_bytes(_json(measured.measured(pickle.loads(pipe.recv_bytes()), settings)))


def _json(value: dict) -> bytes:
    return json.dumps(value, default=str).encode()


def _limited(most_bytes: int | None) -> None:
    """No more memory than that, and the first to be ended where the system has none left."""
    import resource

    if most_bytes:
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (most_bytes if hard < 0 else min(most_bytes, hard), hard))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("800")
