"""What a run's records become: summaries, comparisons, tables, plots and pages."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from sparsegen import gallery, twins
from sparsegen.__main__ import main
from sparsegen.batch import compare, measured, page, plots, run, summary, tables
from sparsegen.errors import SparsegenValueError


def record(matrix: str, us: float, nnz: int = 5000, **more) -> dict:
    """One of a run, as `measured` makes it; scipy takes 40 us, mkl 20."""
    A = gallery.uniform(61, 67, 401, seed=7151)
    made = {
        "key": f"{matrix} spmv float64", "matrix": matrix, "op": "spmv", "k": 1, "asked": "float64", "fault": "",
        "message": "", "shape": [61, 67], "nnz": nnz, "dtype": "float64", "kernel": "csr_vector values=full",
        "format": "csr", "schedule": "vector", "origin": "template", "measured_us": us, "measured_p20_us": 0.99 * us,
        "measured_p80_us": 1.01 * us, "speedup": 20.0 / us, "speedup_is_over": "mkl", "resolution": 0.05, "rounds": 9,
        "baselines": {"scipy": {"measured_us": 40.0}, "mkl": {"measured_us": 20.0}, "numba": {"refused": "no"}},
        "gflop_per_s": nnz * 2e-3 / us, "bytes_moved": 12 * nnz, "limit_us": us / 2, "fraction_of_limit": 0.5,
        "limit_is": "0.1 MB read at 9 GB/s measured from memory", "break_even_calls": 1000, "total_ms": 700.0,
        "pack_ms": 0.5, "load_ms": 2.0, "device": "a machine", "seed": 7151, "candidates": [], "facts": [],
        "statistics": twins.statistics(A).as_dict(), "spy": measured.spy(A), "environment": "environment ab",
    }  # fmt: skip
    return made | more


ENVIRONMENT = {
    "key": "environment ab", "seed": 7151, "commit": "abc1234", "compiler": "g++ 12", "system": "Linux",
    "versions": {"numpy": "2"}, "threads": 1, "bandwidth": [["L1", 32768, 9e10], ["memory", 0, 9e9]],
}  # fmt: skip


def written(folder: Path, *records: dict) -> Path:
    folder.mkdir()
    lines = [json.dumps(each) for each in (ENVIRONMENT, *records)]
    (folder / run.RECORDS).write_text("\n".join(lines) + "\n")
    return folder


def test_gains_are_counted_over_each_library_and_the_best(tmp_path):
    slow = record("b", 25.0, nnz=50_000, origin="baseline", kernel="baseline mkl", format=None)
    failed = {"key": "c spmv", "matrix": "c", "op": "spmv", "k": None, "fault": "memory", "message": "too large"}
    found = summary.of(summary.read(written(tmp_path / "run", record("a", 10.0), slow, failed)))
    assert found["matrices"] == 3 and found["records"] == 3 and found["faults"] == {"memory": 1}
    assert found["failed"] == {"c spmv": "memory: too large"}
    (name, product), = found["products"].items()  # fmt: skip
    best = product["over"][summary.BEST]
    assert name == "spmv float64" and product["library_serves"] == 1
    assert best["geomean"] == pytest.approx((2.0 * 0.8) ** 0.5) and best["losses"] == 1
    assert best["worst"] == pytest.approx(0.8) and best["worst_matrix"] == "b" and best["median"] == pytest.approx(1.4)
    assert product["over"]["scipy"]["geomean"] == pytest.approx((4.0 * 1.6) ** 0.5) and "numba" not in product["over"]
    assert list(product["by_size"]) == ["1k to 10k", "10k to 100k"]
    assert product["break_even_calls"]["median"] == 1000 and product["of_limit"]["memory"]["geomean"] == pytest.approx(
        0.5
    )
    assert sum(sum(wins.values()) for wins in product["formats"].values()) == 2
    said = summary.text(found)
    assert "over best library" in said and "worst" in said and "nan" not in said


def test_a_loss_within_the_resolution_is_none():
    rows = [record("a", 20.5), record("b", 22.0)]
    assert summary._gains(rows)["losses"] == 1


@pytest.mark.parametrize(
    "A, name",
    [
        (gallery.stencil2d(37, 41), "diagonals"),
        (gallery.dense_row(301, 307, 2, 3, seed=7152), "long rows"),
        (gallery.block(67, 71, 4, 4, 3, seed=7152), "blocks"),
        (gallery.uniform(301, 307, 3001, seed=7152), "scattered"),
    ],
)
def test_structures_are_told_apart(A, name):
    assert summary.structure({"statistics": twins.statistics(A).as_dict()}) == name


def test_domains_come_from_the_index_by_file_or_by_name():
    entry = next(each for each in summary._entries().values() if each.domain)
    for name in (entry.key, f"{entry.group}__{entry.name}.mtx.gz", f"set/{entry.group}/{entry.name}.tar.gz"):
        assert summary.domain({"matrix": name}) == entry.domain
    assert summary.domain({"matrix": "mine.mtx"}) == "other"


def test_the_profile_counts_matrices_within_tau_of_the_best():
    curves = summary.profile([record("a", 10.0), record("b", 25.0)])
    assert curves["sparsegen"] == [(1.0, 0.5), (1.25, 1.0)]
    assert curves["mkl"] == [(1.0, 0.5), (2.0, 1.0)] and curves["scipy"][-1] == (4.0, 1.0)


def test_runs_are_read_together_and_what_is_none_is_refused(tmp_path):
    one, two = written(tmp_path / "one", record("a", 10.0)), written(tmp_path / "two", record("b", 12.0))
    assert len(summary.read(one, two).records) == 2
    with pytest.raises(SparsegenValueError, match="is no run"):
        summary.read(tmp_path)
    other = written(tmp_path / "other")
    (other / run.RECORDS).write_text('{"key": "a"}\n')
    with pytest.raises(SparsegenValueError, match="none of a batch"):
        summary.read(other)


def test_what_is_slower_by_more_than_the_noise_is_found(tmp_path):
    before = summary.read(written(tmp_path / "before", *(record(name, 10.0) for name in "abcd")))
    now = [record("a", 10.4), record("b", 14.0), record("c", 6.0)]
    after = summary.read(written(tmp_path / "after", *now))
    found = compare.of(after, before)
    assert [row["key"][0] for row in found["slower"]] == ["b"] and [row["key"][0] for row in found["faster"]] == ["c"]
    assert found["missing"] == ["d spmv float64"] and found["compared"] == 3 and found["by"] == "times"
    assert "1 slower" in compare.text(found)
    wide = [record("b", 14.0, measured_p20_us=8.0, measured_p80_us=20.0)]
    assert not compare.of(summary.read(written(tmp_path / "wide", *wide)), before)["slower"]
    elsewhere = [record("b", 100.0, device="another", baselines={"mkl": {"measured_us": 200.0}})]
    found = compare.of(summary.read(written(tmp_path / "elsewhere", *elsewhere)), before)
    assert found["by"].startswith("gains") and not found["slower"] and not found["faster"]


def test_runs_differ_by_what_no_clock_decides(tmp_path):
    tried = [{"label": "a", "level": "CORRECT", "fault": ""}, {"label": "b", "level": "RAN", "fault": "wrong"}]
    raced = [{"label": "a", "level": "TIMED", "fault": ""}, {"label": "c", "level": "RAN", "fault": "wrong"}]
    one = summary.read(written(tmp_path / "one", record("a", 10.0, candidates=tried), record("b", 10.0)))
    two = summary.read(written(tmp_path / "two", record("a", 30.0, candidates=raced), record("b", 10.0, seed=7154)))
    assert compare.differences(one, one) == []
    assert compare.differences(one, two) == ["b spmv float64: seed is 7151 and 7154"]
    wrong = [{"label": "a", "level": "RAN", "fault": "wrong"}]
    three = summary.read(written(tmp_path / "three", record("a", 10.0, candidates=wrong)))
    assert len(compare.differences(one, three)) == 2


def test_tables_hold_every_time_and_every_record(tmp_path):
    failed = {"key": "c spmv", "matrix": "c", "op": "spmv", "k": None, "fault": "memory", "message": 'too "large", yes'}
    found = summary.read(written(tmp_path / "run", record("a", 10.0), failed))
    tables.write_times(tmp_path / "times.csv", found)
    rows = list(csv.DictReader((tmp_path / "times.csv").read_text().splitlines()))
    assert tuple(rows[0]) == tables.LONG
    assert [(row["Kernel"], row["Baseline tag"], row["time phase"], float(row["Time"])) for row in rows] == [
        ("sparsegen spmv", "F", "solve_only", 10.0), ("sparsegen spmv", "F", "preprocess", 500.0),
        ("sparsegen spmv", "F", "search", 700_000.0), ("scipy spmv", "T", "solve_only", 40.0),
        ("mkl spmv", "T", "solve_only", 20.0),
    ]  # fmt: skip
    tables.write_records(tmp_path / "records.csv", found)
    rows = list(csv.DictReader((tmp_path / "records.csv").read_text().splitlines()))
    assert [row["fault"] for row in rows] == ["", "memory"] and rows[1]["message"] == failed["message"]
    assert float(rows[0]["gain"]) == 2.0 and rows[0]["m"] == "61"
    h5py = pytest.importorskip("h5py")
    tables.write_records(tmp_path / "records.h5", found)
    with h5py.File(tmp_path / "records.h5") as file:
        assert set(file) == set(tables.COLUMNS) and file["matrix"].asstr()[1] == "c"
        np.testing.assert_array_equal(file["measured_us"], [10.0, np.nan])
    with pytest.raises(SparsegenValueError, match=r"\.csv or \.h5"):
        tables.write_records(tmp_path / "records.txt", found)


class Strict(HTMLParser):
    """Refuses tags that do not close, and anything that a page would load from elsewhere."""

    VOID = ("meta", "br")

    def __init__(self):
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag, attributes):
        self.seen.append(tag)
        assert tag not in ("script", "link", "img", "iframe")
        assert not any(name in ("src", "href") for name, _ in attributes)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.seen.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_a_page_stands_alone_and_escapes_names(tmp_path):
    rows = [record(f"<m&{number}>", 10.0 + number, nnz=1000 * 10**number) for number in range(4)]
    failed = {"key": "<c>", "matrix": "c", "op": "spmv", "k": None, "fault": "memory", "message": "<b>big</b>"}
    found = summary.read(written(tmp_path / "run", *rows, failed))
    page.write(tmp_path / "page.html", found, summary.of(found), compare.of(found, found))
    text = (tmp_path / "page.html").read_text()
    parser = Strict()
    parser.feed(text)
    assert not parser.open and parser.seen.count("svg") == 3 + 4 and "<m&" not in text and "<b>big" not in text
    assert "http" not in text.replace('charset="utf-8"', "") and "nan" not in text.lower()
    assert "5 matrices, 5 records" in text


@pytest.mark.parametrize("count", [0, 1, 3])
def test_plots_are_well_formed_whatever_there_is_to_plot(count):
    rows = [record(str(number), 10.0 + number) for number in range(count)]
    for text in (plots.profile(summary.profile(rows)) if rows else "<svg/>", plots.gains(rows),
                 plots.roofline(rows, ENVIRONMENT["bandwidth"])):  # fmt: skip
        root = ET.fromstring(text)
        numbers = re.findall(r'(?:c?[xy][12]?|[xy])="([-\d.]+)"', text)
        assert root.tag == "svg" and all(-200 < float(number) < 900 for number in numbers)


def test_the_image_of_a_matrix_shows_where_its_entries_are():
    A = gallery.stencil2d(30, 31)
    image = measured.spy(A)
    assert all(image[place][place] != "0" for place in range(measured.SPY)) and image[0][-1] == "0"
    widths = [int(width) for width in re.findall(r"h(\d+)v1", plots.spy(image))]
    assert sum(widths) == sum(digit != "0" for row in image for digit in row)
    assert plots.spy(image).count("<path") == len(set("".join(image)) - {"0"})
    assert measured.spy(gallery.uniform(3, 2, 0, seed=7153)) == ["0" * measured.SPY] * measured.SPY


def test_the_command_reports_and_its_exit_code_says_what_is_slower(tmp_path, capsys):
    before = str(written(tmp_path / "before", record("a", 10.0)))
    after = str(written(tmp_path / "after", record("a", 20.0)))
    assert main(["report", before]) == 0 and "over best library" in capsys.readouterr().out
    files = ["--html", str(tmp_path / "r.html"), "--csv", str(tmp_path / "r.csv"), "--table", str(tmp_path / "t.csv")]
    assert main(["report", before, "--json", *files]) == 0
    assert json.loads(capsys.readouterr().out)["products"]["spmv float64"]["count"] == 1
    assert all((tmp_path / name).stat().st_size for name in ("r.html", "r.csv", "t.csv"))
    assert main(["report", after, "--against", before]) == 1 and "1 slower" in capsys.readouterr().out
    assert main(["report", str(tmp_path / "nowhere")]) == 1


def test_reading_a_report_needs_neither_a_search_nor_a_plotting_library(tmp_path):
    folder = written(tmp_path / "run", record("a", 10.0))
    code = f"""import sys
from sparsegen.__main__ import main
main(["report", {str(folder)!r}, "--html", {str(tmp_path / "r.html")!r}])
print(sorted(set(sys.modules) & {{"matplotlib", "torch", "ray", "numba"}}), file=sys.stderr)"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parent.parent)
    assert ran.returncode == 0 and ran.stderr.strip() == "[]"
