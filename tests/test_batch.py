"""Runs over collections: their jobs, records, interruptions, and what a bad matrix can do to them."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp
from support import asked_in_turns, folder_of

import sparsegen
from sparsegen import gallery, matrices, timing
from sparsegen.__main__ import main
from sparsegen.batch import bench, compare, jobs, local, measured, run, summary
from sparsegen.batch.jobs import Job, Product
from sparsegen.errors import SparsegenError, SparsegenValueError
from sparsegen.record import Records
from sparsegen.targets import cuda

ROOT = Path(__file__).resolve().parent.parent
QUICK = run.Settings(target="cpu", budget=0.0, threads=1, model="none", seed=7121, timeout=60.0)


@pytest.fixture(autouse=True)
def _own_places(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARSEGEN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("SPARSEGEN_HOME", str(tmp_path / "home"))


def planned(folder: Path, ops: str = "spmv", dtypes: str | None = None) -> list[Job]:
    return jobs.planned(matrices.listed(folder), jobs.products(ops, dtypes), folder)


def records_of(out: Path) -> dict[str, dict]:
    lines = [json.loads(line) for line in (out / run.RECORDS).read_text().splitlines()]
    return {each["key"]: each for each in lines if not each["key"].startswith(run.ENVIRONMENT)}


# ---- jobs


def test_products_are_all_pairs_and_nonsense_is_refused():
    found = jobs.products("spmv,spmm:k=32", "f64,float32")
    assert [str(each) for each in found] == [
        "spmv float64", "spmv float32", "spmm k=32 float64", "spmm k=32 float32",
    ]  # fmt: skip
    assert jobs.products("spmv") == [Product("spmv")] == jobs.products("spmv,spmv")
    for op, dtype in (
        ("spmm", None),
        ("spmv:k=3", None),
        ("spmm:k=0", None),
        ("gemm", None),
        ("", None),
        ("spmv", "f16"),
    ):
        with pytest.raises(SparsegenValueError, match="expected"):
            jobs.products(op, dtype)


def test_shards_share_all_matrices_and_limits_come_first(tmp_path):
    folder = folder_of(tmp_path, 7)
    names = matrices.listed(folder)
    whole = [job.key for job in jobs.planned(names, [Product()], folder)]
    assert whole == [f"m{number:03}.mtx spmv" for number in range(7)]
    parts = [[job.key for job in jobs.planned(names, [Product()], folder, f"{part}/3")] for part in (1, 2, 3)]
    assert sorted(key for part in parts for key in part) == whole and [len(part) for part in parts] == [3, 2, 2]
    assert [job.key for job in jobs.planned(names, [Product()], folder, "2/2", limit=4)] == [whole[1], whole[3]]
    for wrong in ("0/3", "4/3", "a/b", "3", "1/0"):
        with pytest.raises(SparsegenValueError, match="expected i/n"):
            jobs.planned(names, [Product()], folder, wrong)


def test_a_matrix_is_named_alike_wherever_its_collection_lies(tmp_path):
    folder = folder_of(tmp_path, 1)
    assert planned(folder)[0].name == "m000.mtx"
    (tmp_path / "list.txt").write_text("set/m000.mtx\nHB/west0479\n")
    listed = jobs.planned(matrices.listed(tmp_path / "list.txt"), [Product()], tmp_path / "list.txt")
    assert [(job.name, bool(job.path)) for job in listed] == [("set/m000.mtx", True), ("HB/west0479", False)]
    assert jobs.planned(matrices.listed("smoke"), [Product()], "smoke")[0].name == "tiny/diffusion2d.mtx"
    with pytest.raises(SparsegenValueError, match="more than once"):
        jobs.planned(["HB/west0479", "HB/west0479"], [Product()])


# ---- records


def test_a_run_has_a_record_of_each_job_and_names_its_environment(tmp_path):
    folder = folder_of(tmp_path, 3)
    seen = []
    ended = run.run(
        tmp_path / "run", planned(folder, "spmv,spmm:k=3", "f32"), QUICK, told=lambda *each: seen.append(each)
    )
    assert ended == run.Ended(6, 6, {}, False)
    assert [left for _, left in seen] == [5, 4, 3, 2, 1, 0]
    found = records_of(tmp_path / "run")
    assert set(found) == {f"m00{number}.mtx {what} float32" for number in range(3) for what in ("spmv", "spmm k=3")}
    one = found["m002.mtx spmv float32"]
    assert (
        one["shape"] == [33, 29] and one["nnz"] == 97 and one["dtype"] == "float32" and one["statistics"]["rows"] == 33
    )
    assert len(one["spy"]) == measured.SPY and {len(row) for row in one["spy"]} == {measured.SPY}
    about = Records(tmp_path / "run" / run.RECORDS).known[one["environment"]]
    assert about["seed"] == 7121 and about["target"] == "cpu" and about["threads"] == 1 and about["versions"]


def test_a_measured_record_holds_verdicts_times_and_costs(tmp_path):
    pytest.importorskip("sparsegen._native")
    settings = run.Settings(target="cpu", budget=0.4, threads=1, model="none", seed=7122, max_candidates=3)
    run.run(tmp_path / "run", planned(folder_of(tmp_path, 1)), settings)
    (one,) = records_of(tmp_path / "run").values()
    assert one["candidates"] and {"label", "level", "fault", "worst"} <= set(one["candidates"][0])
    assert one["measured_us"] > 0 and one["baselines"]["scipy"]["measured_us"] > 0
    assert one["total_ms"] > 0 and one["load_ms"] > 0 and one["device"]


def test_bad_matrices_are_records_with_their_reason_and_the_rest_goes_on(tmp_path):
    folder = folder_of(tmp_path, 2)
    (folder / "broken.mtx").write_text("%%MatrixMarket matrix coordinate real general\n3 3 9\n1 1 1.0\n")
    scipy.io.mmwrite(folder / "complex.mtx", sp.csr_array(np.array([[1j, 2], [0, 3]])))
    asked = [*planned(folder, "spmv", "f64"), Job("HB/absent", "", Product())]
    ended = run.run(tmp_path / "run", asked, QUICK)
    assert ended.done == 5 and ended.faults == {"refused": 2, "missing": 1}
    found = records_of(tmp_path / "run")
    assert "broken.mtx" in found["broken.mtx spmv float64"]["message"]
    assert "complex128" in found["complex.mtx spmv float64"]["message"]
    assert "fetch" in found["HB/absent spmv"]["message"]


def test_a_missing_matrix_is_done_once_it_is_here_and_others_that_failed_only_when_asked(tmp_path):
    folder = folder_of(tmp_path, 1)
    (folder / "bad.mtx").write_text("nothing")
    late = Job("late.mtx", "", Product())
    asked = [*planned(folder), late]
    run.run(tmp_path / "run", asked, QUICK)
    scipy.io.mmwrite(tmp_path / "late.mtx", gallery.uniform(13, 17, 41, seed=7123))
    asked[-1] = Job("late.mtx", str(tmp_path / "late.mtx"), Product())
    seen = []
    ended = run.run(tmp_path / "run", asked, QUICK, resume=True, told=lambda record, left: seen.append(record["key"]))
    assert seen == ["late.mtx spmv"] and ended.faults == {"refused": 1}
    scipy.io.mmwrite(folder / "bad.mtx", gallery.uniform(13, 17, 41, seed=7124))
    assert run.run(tmp_path / "run", asked, QUICK, resume=True, retry=True).faults == {}


def test_a_run_is_not_overwritten_nor_mixed_with_another(tmp_path):
    asked = planned(folder_of(tmp_path, 1))
    run.run(tmp_path / "run", asked, QUICK)
    with pytest.raises(SparsegenValueError, match="--resume"):
        run.run(tmp_path / "run", asked, QUICK)
    with pytest.raises(SparsegenValueError, match=r"seed = 7121, not 7125.*another --out"):
        run.run(tmp_path / "run", asked, run.Settings(**{**vars(QUICK), "seed": 7125}), resume=True)
    (tmp_path / "run" / run.SETTINGS).write_text("{")
    with pytest.raises(SparsegenValueError, match="damaged"):
        run.run(tmp_path / "run", asked, QUICK, resume=True)


# ---- interruptions


def command(folder: Path, out: Path, *more: str) -> list[str]:
    options = [
        "--out",
        str(out),
        "--budget",
        "0",
        "--threads",
        "1",
        "--model",
        "none",
        "--seed",
        "7121",
        "--target",
        "cpu",
    ]
    return [sys.executable, "-m", "sparsegen", "batch", str(folder), *options, *more]


def waited_for(path: Path, lines: int) -> None:
    until = time.monotonic() + 120
    while time.monotonic() < until:
        if path.exists() and path.read_bytes().count(b"\n") >= lines:
            return
        time.sleep(0.02)
    raise AssertionError(f"{path} did not get {lines} lines")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_run_that_was_ended_goes_on_to_the_same_records(tmp_path, number):
    folder = folder_of(tmp_path, 40)
    run.run(tmp_path / "whole", planned(folder), QUICK)
    out = tmp_path / "cut"
    for lines in (3, 13):
        process = subprocess.Popen(
            command(folder, out, "--resume"), cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE
        )
        waited_for(out / run.RECORDS, lines)
        process.send_signal(number)
        said = process.communicate(timeout=60)[0]
        if number != signal.SIGKILL and process.returncode != 0:
            assert process.returncode == 1 and b"--resume" in said
    if number == signal.SIGKILL:
        with open(out / run.RECORDS, "ab") as file:
            file.write(b'{"key": "m039.mtx spmv", "half a rec')
    assert run.run(out, planned(folder), QUICK, resume=True) == run.Ended(40, 40, {}, False)
    one, other = summary.read(tmp_path / "whole"), summary.read(out)
    assert len(other.records) == 40 and compare.differences(one, other) == []
    keys = [json.loads(line)["key"] for line in (out / run.RECORDS).read_text().splitlines()]
    assert len(keys) == len(set(keys)), "no job is done twice"


def test_a_full_disk_is_one_error_and_loses_nothing(tmp_path):
    folder, out = folder_of(tmp_path, 12), tmp_path / "run"
    most = 12_000
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))  # noqa: E731
    ran = subprocess.run(command(folder, out), cwd=ROOT, capture_output=True, text=True, preexec_fn=limit, timeout=120)
    assert ran.returncode == 1 and "nothing that was recorded is lost" in ran.stderr.splitlines()[-1]
    written = (out / run.RECORDS).read_bytes()
    assert 0 < len(written) <= most and written.endswith(b"\n")
    before = records_of(out)
    assert 0 < len(before) < 12
    assert run.run(out, planned(folder), QUICK, resume=True).done == 12
    assert {key: records_of(out)[key] for key in before} == before


def test_stopping_ends_benches_that_are_at_work(tmp_path, monkeypatch):
    asked = planned(folder_of(tmp_path, 30))
    given = {**vars(QUICK), "workers": 2}
    made = local.records(asked, given, 2, lambda: False)
    next(made)
    made.close()
    assert not [thread for thread in threading.enumerate() if "work" in thread.name]


# ---- fences


class Poison:
    """A job that does harm where it is unpickled: in the child."""

    def __init__(self, code: str):
        self.code, self.key, self.name, self.path, self.product = code, "poison spmv", "poison", "x", Product()

    def __reduce__(self):
        return exec, (self.code,)


@pytest.fixture
def one_bench():
    made = bench.Bench({**vars(QUICK), "workers": 1, "timeout": 3.0, "memory": 4 << 30})
    yield made
    made.stop()


@pytest.mark.parametrize(
    "code, fault, words",
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "crash", "SIGSEGV"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "crash", "memory runs out"),
        ("import os; os._exit(7)", "crash", "status 7"),
        ("import time; time.sleep(60)", "timeout", "--timeout"),
    ],
)
def test_a_job_that_kills_its_process_is_a_record_and_the_next_one_is_done(tmp_path, one_bench, code, fault, words):
    found = one_bench.do(Poison(code))
    assert found["fault"] == fault and words in found["message"] and found["key"] == "poison spmv"
    (job,) = planned(folder_of(tmp_path, 1))
    assert one_bench.do(job)["fault"] == ""


def test_a_matrix_that_needs_more_memory_than_allowed_is_a_record(tmp_path):
    (tmp_path / "set").mkdir()
    sp.save_npz(tmp_path / "set" / "big.npz", sp.eye_array(9_000_011, format="csr"), compressed=False)
    small = run.Settings(**{**vars(QUICK), "memory": 350 << 20})
    ended = run.run(tmp_path / "run", planned(tmp_path / "set"), small)
    assert set(ended.faults) <= {"memory", "crash", "refused"} and ended.done == sum(ended.faults.values()) == 1


def test_a_bench_that_cannot_start_ends_the_run_with_one_error(tmp_path):
    settings = run.Settings(**{**vars(QUICK), "target": "cuda"})
    if cuda.available() is None:
        pytest.skip("a GPU is here")
    with pytest.raises(SparsegenError, match="target = 'cuda'"):
        run.run(tmp_path / "run", planned(folder_of(tmp_path, 2)), settings)


def test_many_jobs_leave_neither_memory_nor_files_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "JOBS", 10_000)
    folder = folder_of(tmp_path, 120)
    here = len(os.listdir("/proc/self/fd"))
    run.run(tmp_path / "run", planned(folder), QUICK)
    found = list(records_of(tmp_path / "run").values())
    assert len({each["open_files"] for each in found[5:]}) == 1
    assert found[-1]["rss_mb"] < found[20]["rss_mb"] + 8
    assert len(os.listdir("/proc/self/fd")) <= here + 1  # the records are held until this process ends


# ---- turns


def test_what_shares_a_file_does_not_time_at_once(tmp_path, monkeypatch):
    lock = tmp_path / "turns" / "lock"
    timing.share(lock)
    try:
        with timing.turn() as waited:
            assert waited < 0.5
            with timing.turn() as again, open(lock, "rb") as other:
                assert again == 0.0
                with pytest.raises(BlockingIOError):
                    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with open(lock, "rb") as other:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            threading.Timer(0.3, lambda: fcntl.flock(other, fcntl.LOCK_UN)).start()
            with timing.turn() as waited:
                assert waited > 0.1
    finally:
        timing.share(None)
    with timing.turn() as waited:
        assert waited == 0.0


def test_a_search_times_in_its_turn_and_verifies_outside_of_it(tmp_path, monkeypatch):
    pytest.importorskip("sparsegen._native")
    A = gallery.uniform(301, 299, 2003, seed=7127)
    with asked_in_turns(tmp_path / "lock", monkeypatch) as asked:
        sparsegen.compile(A, target="cpu", budget=0.4, threads=1, cache=False, model=None, max_candidates=2)
    assert {("baseline", True), ("check", False), ("arm", True), ("rounds", True)} <= asked
    assert not {("baseline", False), ("check", True), ("arm", False), ("rounds", False)} & asked


def test_two_workers_share_the_turns_of_their_device(tmp_path):
    pytest.importorskip("sparsegen._native")
    settings = run.Settings(target="cpu", budget=0.3, threads=1, model="none", seed=7126, max_candidates=2)
    assert run.run(tmp_path / "run", planned(folder_of(tmp_path, 3)), settings, workers=2).done == 3
    assert len(list((tmp_path / "cache").glob("turn-*.lock"))) == 1


# ---- the command


def test_the_command_says_what_it_would_do_and_does_it(tmp_path, capsys):
    folder = folder_of(tmp_path, 2)
    out = str(tmp_path / "run")
    assert main(["batch", str(folder), "--out", out, "--op", "spmv,spmm:k=3", "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [
        f"m00{number}.mtx {what}" for number in (0, 1) for what in ("spmv", "spmm k=3")
    ]
    assert not Path(out).exists()
    given = ["batch", str(folder), "--out", out, "--budget", "0", "--threads", "1", "--model", "none", "--limit", "1"]
    assert main([*given, "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["done"] == 1 and "m000.mtx spmv: " in said.err
    assert main(given) == 1 and "--resume" in capsys.readouterr().err
    assert main(["batch", "--out", out]) == 1 and "whole of SuiteSparse" in capsys.readouterr().err
