"""The benches of many machines: Ray carries jobs to one or more actors per device, and records back to this process.

All that is kept lies in the run folder of this process: a node that dies loses the jobs it was at, which others do.
"""

from __future__ import annotations

import contextlib
import socket
import tempfile
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from sparsegen.batch.bench import Bench
from sparsegen.batch.jobs import Job
from sparsegen.errors import SparsegenError, SparsegenValueError

LOOK_SECONDS = 5.0  # between looks for new machines
WAIT_SECONDS = 1.0  # for a record, between looks at whether to stop
ALONE_SECONDS = 60.0  # to wait for a machine where there is none
MOST_LOST = 3  # times that a job may go down with its machine


class Station:
    """What an actor is: a bench on its machine."""

    def __init__(self, settings: dict):
        self.bench = Bench(settings)

    def do(self, job: Job, content: bytes | None = None) -> dict:
        """The record of a job. content: of its file, for a machine that does not have it; it asks by "absent"."""
        try:
            if content is None or Path(job.path).is_file():
                if job.path and not Path(job.path).is_file():
                    return {"absent": True}
                return {**self.bench.do(job), "host": socket.gethostname()}
            with tempfile.TemporaryDirectory(prefix="sparsegen-") as folder:
                file = Path(folder) / Path(job.path).name
                file.write_bytes(content)
                return {**self.bench.do(replace(job, path=str(file))), "host": socket.gethostname()}
        except SparsegenError as error:
            return {"unusable": str(error)}


def records(
    jobs: Iterable[Job], settings: dict, workers: int, stopping: Callable[[], bool], address: str
) -> Generator[dict, None, None]:
    """A record of each job, as they are done, until there are no more or `stopping()`; then what runs is lost.

    address: of a Ray cluster, "auto" for the one this machine belongs to, "local" for one of this machine alone.
    workers: actors of each device, which take turns at timing. Raises SparsegenValueError where Ray is not installed
    or does not answer, SparsegenError where no machine is left.
    """
    ray = _ray()
    own = not ray.is_initialized()
    if own:
        try:
            ray.init(address=None if address == "local" else address, log_to_driver=False, logging_level="ERROR")
        except (ConnectionError, ValueError, RuntimeError, AssertionError) as error:
            raise SparsegenValueError(f"no Ray cluster answers at {address!r}: {error}") from error
    try:
        yield from _Fleet(ray, jobs, settings, workers).records(stopping)
    finally:
        if own:
            ray.shutdown()


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise SparsegenValueError("Ray is not installed; expected `pip install 'sparsegen[ray]'`") from None
    return ray


class _Fleet:
    def __init__(self, ray: Any, jobs: Iterable[Job], settings: dict, workers: int):
        self.ray, self.settings, self.workers = ray, settings, workers
        self.waiting, self.lost = iter(jobs), deque[Job]()
        self.losses: dict[str, int] = {}
        self.actors: dict[tuple[str, int], Any] = {}  # by node and number
        self.running: dict[Any, tuple[tuple[str, int], Job]] = {}  # by what Ray answers with
        self.unusable: dict[str, str] = {}  # node -> why
        self.looked = self.seen = -float("inf")

    def records(self, stopping: Callable[[], bool]) -> Generator[dict, None, None]:
        try:
            while not stopping():
                self._look()
                self._assign()
                if not self.running:
                    if self.actors:
                        return  # nothing to do is left
                    self._alone()
                    time.sleep(min(WAIT_SECONDS, LOOK_SECONDS))
                    continue
                done, _ = self.ray.wait(list(self.running), num_returns=1, timeout=WAIT_SECONDS)
                for answer in done:
                    if (found := self._taken(answer)) is not None:
                        yield found
        finally:
            for place in list(self.actors):
                self._drop(place)

    def _look(self) -> None:
        """An actor for each place that has none yet, on machines that came since the last look."""
        if time.monotonic() - self.looked < LOOK_SECONDS and self.actors:
            return
        self.looked = time.monotonic()
        pinned = self.ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        for node in self.ray.nodes():
            name = node["NodeID"]
            if not node["Alive"] or name in self.unusable:
                continue
            gpus = int(node["Resources"].get("GPU", 0)) if self.settings["target"] != "cpu" else 0
            for number in range((gpus or 1) * self.workers):
                if (name, number) not in self.actors:
                    strategy = pinned(node_id=name, soft=False)
                    needs = {"num_cpus": 0, "num_gpus": 1 / self.workers if gpus else 0, "max_restarts": 0}
                    made = self.ray.remote(Station).options(scheduling_strategy=strategy, **needs)
                    self.actors[name, number] = made.remote(self.settings)

    def _assign(self) -> None:
        busy = {place for place, _ in self.running.values()}
        for place, actor in self.actors.items():
            if place not in busy:
                job = self.lost.popleft() if self.lost else next(self.waiting, None)
                if job is None:
                    return
                self.running[actor.do.remote(job)] = place, job

    def _taken(self, answer: Any) -> dict | None:
        """The record that Ray has, or what follows where it has none."""
        place, job = self.running.pop(answer)
        try:
            found = self.ray.get(answer)
        except self.ray.exceptions.RayError as error:
            return self._gone(place, job, error)
        if "unusable" in found:
            self.unusable[place[0]] = found["unusable"]
            for each in [each for each in self.actors if each[0] == place[0]]:
                self._drop(each)
            self.lost.append(job)
            return None
        if "absent" in found and place not in self.actors:  # its machine was left out meanwhile
            self.lost.append(job)
            return None
        if "absent" in found:
            content = self.ray.put(Path(job.path).read_bytes())
            self.running[self.actors[place].do.remote(job, content)] = place, job
            return None
        return found

    def _gone(self, place: tuple[str, int], job: Job, error: Exception) -> dict | None:
        """A machine, or its actor, has died: its job goes to another one, but not for ever."""
        self._drop(place)
        self.looked = -float("inf")
        self.losses[job.key] = self.losses.get(job.key, 0) + 1
        if self.losses[job.key] < MOST_LOST:
            self.lost.append(job)
            return None
        product, said = job.product, " ".join(str(error).split())[:300]
        return {
            "key": job.key, "matrix": job.name, "op": product.op, "k": product.k, "asked": product.dtype,
            "fault": "lost", "message": f"{MOST_LOST} actors died while they were at it; the last: {said}",
        }  # fmt: skip

    def _drop(self, place: tuple[str, int]) -> None:
        """End an actor, which may have died, or have lived on after its answer was lost."""
        actor = self.actors.pop(place, None)
        if actor is not None:
            with contextlib.suppress(self.ray.exceptions.RayError, ValueError):
                self.ray.kill(actor)

    def _alone(self) -> None:
        """Raise where there has been no machine for too long."""
        if self.unusable and not self.actors:
            raise SparsegenError(f"no machine of the cluster can do a job: {next(iter(self.unusable.values()))}")
        if self.seen == -float("inf"):
            self.seen = time.monotonic()
        if time.monotonic() - self.seen > ALONE_SECONDS:
            raise SparsegenError("no machine of the Ray cluster is left; start some, then go on with --resume")
