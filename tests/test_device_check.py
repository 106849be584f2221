"""The two scripts that wait for a GPU, run to their last line on one that is none (fake_gpu.py)."""

from __future__ import annotations

import gc
import json
import sys
import tomllib
from pathlib import Path

import fake_gpu
import numpy as np
import pytest

from sparsegen import events, gallery, ptx
from sparsegen.ptx import estimate, gpus

EXPERIMENTS = Path(__file__).resolve().parent.parent / "experiments"
sys.path.insert(0, str(EXPERIMENTS))

import calibrate  # noqa: E402
import device_check  # noqa: E402
import device_matrices  # noqa: E402

executes = pytest.mark.skipif(ptx.available() is not None, reason=f"{ptx.available()}")


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(device_matrices, "TINY", {"tiny_graph": lambda: gallery.powerlaw(101, 97, 311, seed=7013)})
    monkeypatch.setattr(events, "BURST_NS", 1)
    device_matrices.get.cache_clear()

    def install(**options) -> None:
        fake_gpu.install(options, monkeypatch.setattr)

    yield install
    gc.collect()
    monkeypatch.undo()
    fake_gpu.remove()


@executes
def test_all_of_it_and_what_it_is_for(tiny, tmp_path, monkeypatch, capsys):
    tiny()
    out = str(tmp_path / "check")
    found = device_check.main(["--smoke", "--seconds", "600", "--out", out])
    assert not found["failed"] and not any(found["left_out"].values())
    records = json.loads((tmp_path / "check.json").read_text())["records"]
    stages = {name: [each for each in records if each["stage"] == name] for name in device_check.SHARES}
    checked = stages["checks"]
    assert {each["level"] for each in checked if each["fault"] != "infeasible"} == {"CORRECT"}
    bitwise = {each["bitwise"] for each in checked if each["level"] == "CORRECT"}
    assert bitwise == {"equal", "not compared: atomic additions come in any order"}
    assert {each["op"] for each in checked} == {"spmv", "spmm"}
    timed = stages["times"]
    assert {(each["op"], each["k"], each["dtype"]) for each in timed} == {
        ("spmv", 1, "float32"), ("spmv", 1, "float64"), ("spmm", 32, "float32"), ("spmm", 128, "float32"),
        ("spmm", 32, "float64"),
    }  # fmt: skip
    kernels = {each["kernel"] for each in timed if not each.get("fault")}
    assert {"cuSPARSE csr alg1", "cuSPARSE coo alg2", "cuSPARSE csr alg3"} <= kernels
    assert all(each["hot_us"] > 0 and each["cold_us"] > 0 for each in timed if not each.get("fault"))
    lanes = {each["params"].get("THREADS_PER_ROW") for each in stages["variants"] if each.get("name") == "csr_vector"}
    assert lanes == {2, 4, 8, 16, 32}
    assert all(isinstance(cost, float) and cost > 0 for cost in found["calls"].values()), found["calls"]
    text = (tmp_path / "check.md").read_text()
    assert "0 wrong" in text and "| spmm float32 tiny_graph k=128 |" in text and "graph()" in text
    assert text in capsys.readouterr().out

    with monkeypatch.context() as patch:
        patch.setattr(gpus, "FITTED", tmp_path / "fitted.toml")
        options = ["--records", f"{out}.json", "--gpu", "H200", "--out", str(tmp_path / "fit"), "--smoke", "--write"]
        fitted = calibrate.main(options)
        assert fitted["records"] >= 10 and fitted["fitted"]["rms"] <= fitted["unfitted"]["rms"]
        gpus._all.cache_clear()
        gpu = gpus.get("H200")
        assert gpu.fitted.records == fitted["records"] and gpus.get("A100").fitted is None
        assert estimate.label(gpu).startswith("estimated, calibrated on") and "rms factor" in estimate.label(gpu)
    gpus._all.cache_clear()
    assert gpus.get("H200").fitted is None


@executes
def test_a_kernel_that_ends_its_context_and_no_time(tiny, tmp_path):
    tiny(poison="merge", library=False)
    found = device_check.main(["--smoke", "--seconds", "600", "--out", str(tmp_path / "check")])
    faults = {each["kernel"].split()[0]: each["fault"] for each in found["records"] if each["stage"] == "checks"}
    assert faults["csr_merge"] == "illegal address" and faults["csr_vector"] == ""
    refused = [each for each in found["records"] if each["kernel"].startswith("cuSPARSE")]
    assert refused and {each["fault"] for each in refused} == {"refused"}
    assert "csr_merge" in (tmp_path / "check.md").read_text()
    found = device_check.main(["--smoke", "--seconds", "0", "--out", str(tmp_path / "none")])
    assert found["left_out"]["checks"] == 4 and not found["failed"] and (tmp_path / "none.md").exists()


def test_a_stage_that_fails_costs_itself_alone(tiny, tmp_path, monkeypatch):
    tiny()
    for name in ("check", "times", "variants"):
        monkeypatch.setattr(device_check, name, lambda run: None)

    def broken(run):
        raise RuntimeError("as it happens")

    monkeypatch.setattr(device_check, "calls", broken)
    found = device_check.main(["--smoke", "--out", str(tmp_path / "check")])
    assert "as it happens" in found["failed"]["calls"] and "as it happens" in (tmp_path / "check.md").read_text()


def test_without_a_gpu_one_sentence_says_so(tiny, tmp_path):
    tiny(refuse="cuInit", code=100)
    with pytest.raises(SystemExit, match="no CUDA device"):
        device_check.main(["--out", str(tmp_path / "check")])


def test_a_fit_finds_the_constants_it_was_made_of():
    rng = np.random.default_rng(20281)
    truth = calibrate.start() + np.array([0.7, -0.4, 0.5, -0.3, 0.4, 0.8, 0.0, -0.6, 0.3])
    launches = [np.exp(rng.normal(1, 2, (rng.integers(1, 4), len(calibrate.FACTORS)))) for _ in range(400)]
    times = calibrate.predicted(truth, launches) * np.exp(rng.normal(0, 0.02, 400))
    off = np.log(calibrate.predicted(calibrate.fit(launches, times), launches) / times)
    assert np.sqrt((off**2).mean()) < 0.04
    assert np.sqrt((np.log(calibrate.predicted(calibrate.start(), launches) / times) ** 2).mean()) > 0.2


def test_orders_are_judged_within_one_problem():
    records = [
        {"matrix": matrix, "op": "spmv", "k": 1, "dtype": "float64", "name": name}
        for matrix, name in (("a", "v"), ("a", "v"), ("a", "s"), ("b", "v"))
    ]
    times, estimates = np.array([1.0, 2.0, 4.0, 9.0]), np.array([1.0, 0.5, 3.0, 9.0])
    found = calibrate.judged(estimates, times, records)
    assert found["pairs"] == {
        "kernels": {"right": 2, "of": 2}, "variants": {"right": 0, "of": 1}, "variants, close": {"right": 0, "of": 0}
    }  # fmt: skip
    assert found["regret"] == pytest.approx(2.0)


def test_the_file_of_fits_keeps_other_gpus():
    found = {
        "gpu": "H200", "launch_us": 1.25, "rest": 0.1, "records": 7, "matrices": 2, "commit": "abc",
        "held out": {"rms": 1.3}, "factors": {"memory": 1.5, "l2": 0.5},
    }  # fmt: skip
    text = calibrate.toml({**found, "gpu": "A100"}, "")
    text = calibrate.toml({**found, "launch_us": 2.5}, calibrate.toml(found, text))
    read = tomllib.loads(text)
    assert set(read) == {"A100", "H200"} and read["H200"]["launch_us"] == 2.5
    assert gpus.Fitted(**read["A100"]).factors == {"memory": 1.5, "l2": 0.5}


@pytest.mark.parametrize("name, known", [
    ("NVIDIA H200", "H200"), ("NVIDIA A100-SXM4-40GB", "A100"), ("NVIDIA GeForce RTX 4090", "RTX4090"),
])  # fmt: skip
def test_the_gpu_that_a_device_is(name, known):
    assert calibrate.described(name).name == known


def test_matrices_are_the_same_everywhere():
    assert not set(device_matrices.SMALL) & set(device_matrices.LARGE)
    assert {*device_matrices.VARIED, *device_matrices.WIDE} <= {*device_matrices.SMALL, *device_matrices.LARGE}
    for name in device_matrices.SMALL:
        A = device_matrices.get(name)
        assert A.has_canonical_format and 9_000 < A.nnz < 400_000, (name, A.nnz)
