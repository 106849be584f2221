"""Lines of a corpus, and of verdicts: one that cannot be relied on is refused with its number and what is wrong."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from sparsegen.errors import SparsegenValueError
from sparsegen.record import Records, known
from sparsegen.train import lines

KERNEL = {
    "label": "csr_row", "origin": "template", "kernel": "k1", "binary": "b1", "level": "TIMED", "fault": "",
    "message": "", "us": 4.5, "speedup": 1.25, "raced": True,
}  # fmt: skip
LINE = {
    "key": "synthetic:stencil:3 spmv 1 float64 none", "matrix": "synthetic:stencil:3", "family": "synthetic:stencil",
    "held_out": False, "op": "spmv", "k": 1, "dtype": "float64", "facts": "none", "m": 7, "n": 7, "nnz": 31,
    "baselines": {"scipy": 5.625, "mkl": 7.0}, "best": "scipy", "spread": 0.02, "rounds": 12, "seconds": 0.5,
    "kernels": [KERNEL, {**KERNEL, "kernel": "k2", "level": "RAN", "fault": "wrong", "us": None, "speedup": None}],
}  # fmt: skip
VERDICT = {**KERNEL, "key": "p k1", "problem": "p", "baseline_us": 0.0, "spread": 0.0, "text": "..."}
NAN, INFINITE = float("nan"), float("inf")


def changed(line: dict, place: tuple, value: object) -> dict:
    line = copy.deepcopy(line)
    within = line
    for name in place[:-1]:
        within = within[name]
    if value is None:
        del within[place[-1]]
    else:
        within[place[-1]] = value
    return line


def written(path: Path, *each: dict) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in each))
    return path


def test_what_was_measured_is_read_and_failures_are_left_out(tmp_path):
    failed, environment = {"key": "other", "failed": "too large"}, {"key": "environment", "seed": 20260}
    path = written(tmp_path / "measured.jsonl", environment, failed, LINE)
    assert lines.measured(path) == [LINE]
    assert lines.measured(tmp_path / "nothing.jsonl") == []
    assert known(written(tmp_path / "judged.jsonl", VERDICT), lines.verdict_fault) == {"p k1": VERDICT}


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (("spread",), NAN, "spread is nan; expected a number"),
        (("spread",), -0.5, "spread is -0.5"),
        (("best",), "nobody", "best is 'nobody'; expected one of scipy, mkl"),
        (("best",), None, "best is None; expected str"),
        (("baselines",), [], r"baselines is \[\]; expected dict"),
        (("baselines", "mkl"), 0.0, "of the baselines, mkl is 0; expected a number over 0"),
        (("baselines", "mkl"), INFINITE, "of the baselines, mkl is inf"),
        (("op",), "spgemm", "op is 'spgemm'; expected one of spmm, spmv"),
        (("dtype",), "int8", "dtype is 'int8'"),
        (("facts",), "some", "facts is 'some'"),
        (("k",), True, "k is True; expected int"),
        (("k",), 0, "k is 0"),
        (("nnz",), "31", "nnz is '31'; expected int"),
        (("nnz",), -3, "nnz -3"),
        (("held_out",), 0, "held_out is 0; expected bool"),
        (("dtype",), "float32", "key is 'synthetic:stencil:3 spmv 1 float64 none'; expected '.* float32 none'"),
        (("kernels",), {}, "kernels is {}; expected list"),
        (("kernels", 1), 17, "of kernel 2, there is 17; expected an object"),
        (("kernels", 0, "speedup"), NAN, "of kernel 1, speedup is nan"),
        (("kernels", 0, "speedup"), "fast", "of kernel 1, speedup is 'fast'"),
        (("kernels", 0, "us"), -4.5, "of kernel 1, us is -4.5"),
        (("kernels", 1, "level"), "FINE", "of kernel 2, level is 'FINE'; expected one of NONE, PARSED"),
        (("kernels", 1, "kernel"), None, "of kernel 2, kernel is None; expected str"),
    ],
)
def test_a_damaged_problem_is_named(tmp_path, place, value, words):
    path = written(tmp_path / "measured.jsonl", {**LINE, "key": LINE["key"]}, changed(LINE, place, value))
    with pytest.raises(SparsegenValueError, match=f"measured.jsonl, line 2, is damaged: .*{words}"):
        lines.measured(path)


@pytest.mark.parametrize("name", ["problem", "kernel", "level", "baseline_us", "spread"])
def test_a_damaged_verdict_is_named_and_nothing_of_it_is_lost(tmp_path, name):
    path = written(tmp_path / "judged.jsonl", VERDICT, changed(VERDICT, (name,), None))
    before = path.read_bytes()
    with pytest.raises(SparsegenValueError, match=f"line 2, is damaged: {name} is None"):
        Records(path, lines.verdict_fault)
    assert path.read_bytes() == before
