"""The script that judges every CUDA template on a folder of matrices, without a GPU."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sparsegen import evaluate, paths, ptx
from sparsegen.verdict import Level

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "experiments"))

import emulated_collection

pytestmark = pytest.mark.skipif(ptx.available() is not None, reason=f"{ptx.available()}")


ENTRIES = "".join(f"{row} {column}\n" for row in range(1, 100) for column in range(1, 100))


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "in").mkdir()
    shutil.copy(paths.data("matrices") / "tiny" / "gaps.mtx", tmp_path / "in")
    banner = "%%MatrixMarket matrix coordinate"
    (tmp_path / "in" / "complex.mtx").write_text(f"{banner} complex general\n2 2 1\n1 2 0.5 -1\n")
    (tmp_path / "in" / "large.mtx").write_text(f"{banner} pattern general\n99 99 9801\n" + ENTRIES)
    (tmp_path / "in" / "broken.mtx").write_text("nothing\n")
    return tmp_path


def run(folder: Path, *options: str) -> str:
    given = ["--matrices", str(folder / "in"), "--out", str(folder), "--most", "9800", *options]
    emulated_collection.main(given)
    return (folder / "emulated_spmv.md").read_text()


def test_every_template_is_judged_once_and_faults_are_listed(folder, monkeypatch):
    real, judged = evaluate.evaluate, []

    def one_is_wrong(each, problem, *rest):
        judged.append((each.name, problem.dtype.name))
        verdict = real(each, problem, *rest)
        wrong = each.name == "csr_scalar" and problem.dtype == "float32"
        return replace(verdict, level=Level.RAN, fault="race", message="two blocks") if wrong else verdict

    monkeypatch.setattr(evaluate, "evaluate", one_is_wrong)
    table = run(folder)
    rows = {line.split(" | ")[0][2:]: line for line in table.splitlines() if line.startswith("| csr")}
    assert rows["csr_merge"] == "| csr_merge | 2 | 1 | 0 | 0 |"
    assert rows["csr_scalar"] == "| csr_scalar | 1 | 1 | 0 | 1 |"
    assert table.count("gaps.mtx float32: race: two blocks") == 1
    assert "- 1 x complex" in table and "- 1 x # entries" in table and "broken.mtx" in table
    assert len(judged) == len(set(judged))
    lines = [json.loads(line) for line in (folder / "emulated_spmv.jsonl").read_text().splitlines()]
    found = next(line for line in lines if line["key"] == "gaps.mtx float64")["templates"]
    assert {each["level"] for each in found.values() if "level" in each} == {"CORRECT"}
    assert any("refused" in each for each in found.values())
    judged.clear()
    assert run(folder, "--resume") == table and not judged
    run(folder)
    assert judged  # without it, all is judged again
