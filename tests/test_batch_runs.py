"""The experiments on runs over collections, in small."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

EXPERIMENTS = Path(__file__).resolve().parent.parent / "experiments"


@pytest.fixture
def experiment(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(EXPERIMENTS))
    monkeypatch.setenv("SPARSEGEN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("SPARSEGEN_HOME", str(tmp_path / "home"))
    return importlib.import_module


@pytest.mark.parametrize("which", ["interrupted", "many"])
def test_runs_are_as_expected(experiment, tmp_path, capsys, which):
    assert experiment("batch_runs").main([which, "--smoke", "--out", str(tmp_path / "out")]) == 0
    said = (tmp_path / "out" / f"batch_{which}.md").read_text()
    assert "| as expected | True |" in said and "| jobs | 9 |" in said


def test_a_difference_is_no_success(experiment, tmp_path, monkeypatch, capsys):
    module = experiment("batch_runs")
    monkeypatch.setattr(module.compare, "differences", lambda one, other: ["m00001: nnz is 3 and 4"])
    assert module.main(["interrupted", "--smoke", "--out", str(tmp_path / "out")]) == 1


def test_faults_of_a_server_are_rows(experiment, tmp_path, monkeypatch, capsys):
    module = experiment("fetch_faults")
    outside = "an archive with a path outside"
    for name, kept in (("PASSING", "503 twice"), ("LASTING", "404"), ("ARCHIVES", outside)):
        monkeypatch.setattr(module, name, {kept: getattr(module, name)[kept]})
    assert module.main(["--out", str(tmp_path)]) == 0
    rows = (tmp_path / "fetch_faults.md").read_text().splitlines()[-3:]
    assert [row.split(" | ")[2] for row in rows] == ["fetched", "failed", "failed"]
    assert all(row.endswith("| yes |") for row in rows) and "127.0.0.1" not in "".join(rows)
