"""Reports and explanations: every field the caller is promised, finite or None, and words that agree with them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

import numpy as np
import pytest
from support import BUDGET, kernel_of, template

import sparsegen
from sparsegen import bandwidth, explain, gallery, report
from sparsegen.problem import Facts, Pattern
from sparsegen.report import MEASURED, Report

SMALL, TINY = gallery.small(), gallery.tiny()
FIELDS = {
    "kernel", "format", "schedule", "parameters", "origin", "verified", "op", "shape", "nnz", "dtype", "k", "facts",
    "threads", "device", "measured_us", "measured_p20_us", "measured_p80_us", "speedup", "speedup_is_over",
    "resolution", "baselines", "compile_ms", "pack_ms", "search_ms", "total_ms", "break_even_calls", "cached",
    "candidates", "notes", "model", "model_ms",
}  # fmt: skip
LIMITS = {"gflop_per_s", "bytes_moved", "limit_us", "fraction_of_limit", "limit_is"}


def numbers(value):
    if isinstance(value, Mapping):
        for each in value.values():
            yield from numbers(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from numbers(each)
    elif isinstance(value, float):
        yield value


@pytest.fixture(scope="module")
def kernels() -> dict[str, sparsegen.Kernel]:
    A = SMALL["stencil3d"]
    return {
        "searched": sparsegen.compile(A, budget=1.0, cache=False, threads=1),
        "threads": sparsegen.compile(gallery.uniform(3001, 2999, 40009), budget=BUDGET, cache=False, threads=2),
        "spmm": sparsegen.compile(A, op="spmm", k=5, budget=BUDGET, cache=False),
        "no budget": sparsegen.compile(A, budget=0.0),
        "integer": sparsegen.compile(A.astype(np.int32), budget=BUDGET),
        "empty": sparsegen.compile(TINY["all_empty"], budget=BUDGET),
        "nothing": sparsegen.compile(TINY["zero_by_zero"], budget=BUDGET),
        "single": sparsegen.compile(A.astype(np.float32), budget=BUDGET, cache=False, facts=None),
        "non-finite": sparsegen.compile(A * np.inf, budget=BUDGET, cache=False),
    }


NAMES = ["searched", "threads", "spmm", "no budget", "integer", "empty", "nothing", "single", "non-finite"]


@pytest.mark.parametrize("name", NAMES)
def test_every_field_is_there_and_finite(kernels, name):
    kernel = kernels[name]
    report = kernel.report()
    assert set(report) >= FIELDS
    assert isinstance(report, Mapping)
    assert len(report) == len(list(report)) == len(report.as_dict())
    assert all(map(math.isfinite, numbers(report.as_dict())))
    assert json.loads(json.dumps(report.as_dict(), allow_nan=False))["nnz"] == kernel.nnz
    assert tuple(report["shape"]) == kernel.shape
    assert report["kernel"] == (kernel.candidate.label if kernel.candidate else f"baseline {kernel.baseline}")
    if report["measured_us"] is not None:
        assert set(report) >= LIMITS
        assert report["limit_us"] > 0
        assert report["fraction_of_limit"] == pytest.approx(report["limit_us"] / report["measured_us"])
        assert report["bytes_moved"] >= 8 * max(kernel.shape)
    text = str(report)
    assert "baseline" in text or "kernel" in text
    for field in FIELDS - {"baselines", "candidates", "notes"}:
        assert f"\n{field} " in f"\n{text}"
    assert "nan" not in text.split()
    assert all(len(line.split(None, 1)) == 2 for line in text.splitlines())


def test_what_a_search_reports(kernels):
    report = kernels["searched"].report()
    assert report["origin"] in ("model", "template", "baseline")
    assert report["candidates"]
    for tried in report["candidates"]:
        assert {"label", "origin", "level", "fault", "message", "worst", "rough_us", "measured_us", "threads"} <= set(
            tried
        )
        assert tried["level"] in ("NONE", "PARSED", "COMPILED", "RAN", "CORRECT", "TIMED")
        assert bool(tried["fault"]) == bool(tried["message"])
    assert report["baselines"]["scipy"]["measured_us"] > 0
    assert set(sparsegen.baselines.names()) == set(report["baselines"])
    for entry in report["baselines"].values():
        assert "refused" in entry or entry["measured_us"] > 0
    assert report["search_ms"] > 0
    assert report["total_ms"] >= report["search_ms"]
    assert report["cached"] is False
    if report["origin"] == "template":
        assert "worst error" in report["verified"]
        assert str(sparsegen.checks.CHECKS[0].seed) in report["verified"]
        assert report["measured_p20_us"] <= report["measured_us"] <= report["measured_p80_us"]
        assert report["speedup"] > 1
        assert report["break_even_calls"] > 0


def test_why_a_baseline_serves(kernels):
    for name, words in (
        ("no budget", "too short"), ("integer", "no kernels for int32"), ("empty", "no entries"),
        ("nothing", "no entries"),
    ):  # fmt: skip
        report = kernels[name].report()
        assert report["origin"] == "baseline"
        assert any(words in note for note in report["notes"]), report["notes"]
        assert words in kernels[name].explain()


@pytest.mark.parametrize("name", NAMES)
def test_explanations(kernels, name):
    kernel = kernels[name]
    text = kernel.explain()
    m, n = kernel.shape
    assert f"A is {m} x {n}" in text
    assert "nan" not in text.lower().split()
    if kernel.candidate is None:
        assert f"{kernel.baseline} computes the product" in text
    else:
        report = kernel.report()
        for words in (
            kernel.candidate.label,
            "stores A as",
            "where CSR takes",
            "times as fast as",
            "candidates were tried",
        ):
            assert words in text
        assert "of the limit" in text or (report["fraction_of_limit"] > 1 and "was measured to be" in text)
        assert report["speedup_is_over"] in text
        assert "cache-resident" in text  # such a small matrix


def test_the_structure_in_words():
    assert "on 5 diagonals from -19 to 19" in explain.structure(Pattern.of(SMALL["stencil2d"]))
    assert "without entries" in explain.structure(Pattern.of(TINY["no_rows"]))
    assert "rows are empty" in explain.structure(Pattern.of(SMALL["empty_rows"]))
    assert "far longer" in explain.structure(Pattern.of(gallery.dense_row(2003, 1999)))
    assert "diagonals, " in explain.structure(Pattern.of(SMALL["uniform"]))
    said = {
        explain.facts(kernel_of(SMALL["uniform"], None, facts=facts).problem)
        for facts in (None,)
    } | {explain.facts(sparsegen.Problem("spmv", Pattern.of(SMALL["uniform"]), facts=facts))
         for facts in (Facts(), Facts(constant=True), Facts(exact_f32=True))}  # fmt: skip
    assert len(said) == 3


def test_a_kernel_that_changed_is_not_shown_with_old_times():
    A = SMALL["stencil2d"]
    kernel = kernel_of(A, template("dia_chunk", values="f32"))
    kernel._report = Report({**dict.fromkeys(MEASURED, 1.0), "kernel": "", "notes": ["first"], "baselines": {}})
    kernel.update_values(A.data / 3)
    report = kernel.report()
    assert report["kernel"] == kernel.candidate.label
    assert report["parameters"]["values"] == "full"
    assert all(report[name] is None for name in MEASURED)
    assert report["notes"][0] == "first"
    assert any("exact_f32" in note for note in report["notes"])
    assert "stores A as dia" in kernel.explain()
    assert "where CSR takes" not in kernel.explain()
    bad = A.data.copy()
    bad[0] = np.inf
    kernel.update_values(bad)
    assert kernel.report()["kernel"] == "baseline scipy"
    assert "scipy computes the product" in kernel.explain()


def test_a_report_holds_no_number_that_json_lacks():
    report = Report({"a": float("nan"), "b": [1.0, float("inf")], "c": {"d": -float("inf"), "e": 2}, "notes": []})
    assert report.as_dict() == {"a": None, "b": [1.0, None], "c": {"d": None, "e": 2}, "notes": []}
    assert report.noted([]) is report
    assert report.noted(["x"])["notes"] == ["x"]
    assert report["notes"] == []
    with pytest.raises(KeyError):
        report["missing"]


def test_break_even():
    entries = {
        "origin": "template", "baselines": {"scipy": {"measured_us": 10.0}}, "speedup_is_over": "scipy",
        "measured_us": 5.0, "break_even_calls": None,
    }  # fmt: skip
    assert Report(entries).completed({"total_ms": 1.0})["break_even_calls"] == 201
    assert Report({**entries, "measured_us": None}).completed({"total_ms": 1.0})["break_even_calls"] is None
    assert Report({**entries, "measured_us": 11.0}).completed({"total_ms": 1.0})["break_even_calls"] is None
    assert Report({**entries, "origin": "baseline"}).completed({"total_ms": 1.0})["break_even_calls"] is None


def test_a_limit_that_was_beaten_is_measured_again(kernels, monkeypatch):
    """On a machine that was busy before; and what is faster still is not told as more than all there is."""
    problem, asked = kernels["searched"].problem, []
    level = bandwidth.Level("memory", 0, 1e9)

    def limit(nbytes, threads, again=False):
        asked.append(again)
        return level, 4.0 if not again else 1.0

    monkeypatch.setattr(bandwidth, "limit", limit)
    assert report._limit(1000.0, 2.0, problem)["fraction_of_limit"] == 0.5 and asked == [False, True]
    assert report._limit(1000.0, 8.0, problem)["fraction_of_limit"] == 0.5 and asked == [False, True, False]
    beaten = report._limit(1000.0, 0.5, problem)
    assert beaten["fraction_of_limit"] == 2.0
    assert "as fast as this memory was measured to be" in explain._limit(beaten)
    assert "at 50% of the limit" in explain._limit(report._limit(1000.0, 2.0, problem))
