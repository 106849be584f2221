"""Runs over a cluster: by a stand-in for Ray, and by Ray itself where it is installed."""

from __future__ import annotations

import contextlib
import sys
import threading
import types
from pathlib import Path

import pytest
from support import folder_of

from sparsegen import matrices
from sparsegen.batch import bench, cluster, jobs, run
from sparsegen.batch.jobs import Product
from sparsegen.errors import SparsegenError, SparsegenValueError
from sparsegen.record import known

QUICK = run.Settings(target="cpu", budget=0.0, threads=1, model="none", seed=7131, timeout=60.0)


@pytest.fixture(autouse=True)
def _own_places(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARSEGEN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("SPARSEGEN_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(cluster, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(cluster, "WAIT_SECONDS", 0.05)


class RayError(Exception):
    pass


class FakeRay(types.ModuleType):
    """As much of Ray as is used: actors are objects, calls run when they are waited for, nodes can be killed."""

    def __init__(self, nodes: int, gpus: int = 0):
        super().__init__("ray")
        self.alive = {f"node{number}": True for number in range(nodes)}
        self.gpus, self.started, self.inside, self.calls = gpus, False, [], []
        self.doomed: dict[int, str] = {}  # number of a call -> node that dies in it
        self.exceptions = types.SimpleNamespace(RayError=RayError)
        pinned = lambda node_id, soft: node_id  # noqa: E731
        self.util = types.SimpleNamespace(
            scheduling_strategies=types.SimpleNamespace(NodeAffinitySchedulingStrategy=pinned)
        )

    def is_initialized(self):
        return self.started

    def init(self, **options):
        if options["address"] == "nowhere:1":
            raise ConnectionError("refused")
        self.started, self.options = True, options

    def shutdown(self):
        self.started = False

    def nodes(self):
        resources = {"GPU": float(self.gpus)} if self.gpus else {}
        return [{"NodeID": name, "Alive": alive, "Resources": resources} for name, alive in self.alive.items()]

    def remote(self, made):
        ray = self

        class Options:
            def options(self, scheduling_strategy, **needs):
                self.node, self.needs = scheduling_strategy, needs
                ray.inside.append((self.node, needs))
                return self

            def remote(self, settings):
                actor = made(settings)
                node = self.node

                def call(*arguments):
                    ray.calls.append((node, actor, arguments))
                    return len(ray.calls) - 1

                return types.SimpleNamespace(do=types.SimpleNamespace(remote=call), actor=actor)

        return Options()

    def put(self, value):
        return value

    def wait(self, answers, num_returns, timeout):
        return answers[:num_returns], answers[num_returns:]

    def get(self, answer):
        node, actor, arguments = self.calls[answer]
        if answer in self.doomed:
            self.alive[self.doomed[answer]] = False
        if not self.alive[node]:
            raise RayError(f"{node} died")
        return actor.do(*arguments)

    def kill(self, handle):
        handle.actor.bench.stop()


def set_of(tmp_path: Path, count: int):
    folder = folder_of(tmp_path, count)
    return jobs.planned(matrices.listed(folder), [Product()], folder)


def fake(monkeypatch, *arguments, **options) -> FakeRay:
    ray = FakeRay(*arguments, **options)
    monkeypatch.setitem(sys.modules, "ray", ray)
    return ray


def test_every_node_has_an_actor_and_every_job_a_record(tmp_path, monkeypatch):
    ray = fake(monkeypatch, 2)
    asked = set_of(tmp_path, 5)
    assert run.run(tmp_path / "run", asked, QUICK, ray="auto", workers=1) == run.Ended(5, 5, {}, False)
    assert [node for node, _ in ray.inside] == ["node0", "node1"] and not ray.started
    assert {node for node, _, _ in ray.calls} == {"node0", "node1"}
    found = known(tmp_path / "run" / run.RECORDS)
    assert all(found[job.key]["fault"] == "" and found[job.key]["host"] for job in asked)


def test_a_gpu_has_an_actor_of_its_own(monkeypatch):
    ray = fake(monkeypatch, 1, gpus=3)
    settings = {**vars(QUICK), "target": "cuda"}
    fleet = cluster._Fleet(ray, [], settings, 2)
    fleet._look()
    assert len(ray.inside) == 6 and {needs["num_gpus"] for _, needs in ray.inside} == {0.5}


def test_what_a_dead_node_was_at_is_done_by_another(tmp_path, monkeypatch):
    ray = fake(monkeypatch, 2)
    ray.doomed = {1: "node1"}
    asked = set_of(tmp_path, 6)
    assert run.run(tmp_path / "run", asked, QUICK, ray="auto", workers=1) == run.Ended(6, 6, {}, False)
    arguments = [given[0].key for _, _, given in ray.calls]
    assert arguments.count(asked[1].key) == 2 and {node for node, _, _ in ray.calls[2:]} == {"node0"}


def test_a_job_that_takes_every_machine_down_is_given_up(tmp_path, monkeypatch):
    ray = fake(monkeypatch, 1)
    asked = set_of(tmp_path, 2)
    get = ray.get

    def deadly(answer):
        if ray.calls[answer][2][0].key == asked[0].key:
            raise RayError("the actor died")
        return get(answer)

    monkeypatch.setattr(ray, "get", deadly)
    ended = run.run(tmp_path / "run", asked, QUICK, ray="auto", workers=1)
    assert ended == run.Ended(2, 2, {"lost": 1}, False)
    assert "the actor died" in known(tmp_path / "run" / run.RECORDS)[asked[0].key]["message"]


def test_where_no_machine_is_left_the_run_ends_and_goes_on_later(tmp_path, monkeypatch):
    ray = fake(monkeypatch, 1)
    ray.doomed = {1: "node0"}
    monkeypatch.setattr(cluster, "ALONE_SECONDS", 0.1)
    asked = set_of(tmp_path, 4)
    with pytest.raises(SparsegenError, match=r"no machine .* is left.*--resume"):
        run.run(tmp_path / "run", asked, QUICK, ray="auto", workers=1)
    ray.alive["node1"] = True
    assert run.run(tmp_path / "run", asked, QUICK, resume=True, ray="auto", workers=1).done == 4


def test_a_file_that_a_machine_does_not_have_is_sent_to_it(tmp_path, monkeypatch):
    (job,) = set_of(tmp_path, 1)
    content = Path(job.path).read_bytes()
    Path(job.path).unlink()
    station = cluster.Station({**vars(QUICK), "workers": 1})
    try:
        assert station.do(job) == {"absent": True}
        found = station.do(job, content)
        assert found["fault"] == "" and found["key"] == job.key and found["nnz"] > 0
    finally:
        station.bench.stop()


def test_a_machine_that_can_do_nothing_is_left_out(tmp_path, monkeypatch):
    ray = fake(monkeypatch, 2)

    def started(self):
        raise SparsegenError("no compiler")

    real = bench.Bench._child
    first: list = []

    def child(self):
        first.append(self)
        return started(self) if self is first[0] else real(self)

    monkeypatch.setattr(bench.Bench, "_child", child)
    assert run.run(tmp_path / "run", set_of(tmp_path, 4), QUICK, ray="auto", workers=1).done == 4
    monkeypatch.setattr(bench.Bench, "_child", started)
    ray.started = False
    with pytest.raises(SparsegenError, match="can do a job: no compiler"):
        run.run(tmp_path / "other", jobs.planned(["HB/x"], [Product()]), QUICK, ray="auto", workers=1)


def test_without_ray_or_a_cluster_there_is_one_clear_error(tmp_path, monkeypatch):
    asked = set_of(tmp_path, 1)
    fake(monkeypatch, 1)
    with pytest.raises(SparsegenValueError, match="no Ray cluster answers at 'nowhere:1'"):
        run.run(tmp_path / "run", asked, QUICK, ray="nowhere:1")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SparsegenValueError, match="pip install"):
        run.run(tmp_path / "run", asked, QUICK, resume=True, ray="auto", workers=1)


@pytest.mark.filterwarnings("ignore")
def test_nothing_is_lost_when_a_node_of_a_real_cluster_is_killed(tmp_path, monkeypatch):
    pytest.importorskip("ray")
    import ray
    from ray.cluster_utils import Cluster

    asked = set_of(tmp_path, 24)
    monkeypatch.setattr(cluster, "WAIT_SECONDS", 0.5)
    with contextlib.ExitStack() as stack:
        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
        stack.callback(made.shutdown)
        second = made.add_node(num_cpus=1)
        made.wait_for_nodes()
        stack.callback(ray.shutdown)
        seen: list[str] = []

        def told(record: dict, left: int) -> None:
            seen.append(record["key"])
            if len(seen) == 4:
                threading.Thread(target=made.remove_node, args=(second, False)).start()

        ended = run.run(tmp_path / "run", asked, QUICK, ray=made.address, told=told)
    assert ended == run.Ended(24, 24, {}, False)
    assert sorted(seen) == sorted(job.key for job in asked)
