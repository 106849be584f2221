"""A candidate's way from a text to a verdict: every step that can stop it, and the reason it gives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support import LOOP, problem_of, template, user_kernel

from sparsegen import bandwidth, candidate, checks, evaluate, fence, gallery, judge, paths, templates
from sparsegen.candidate import instances
from sparsegen.screen import cpp
from sparsegen.verdict import Level

A = gallery.small()["uniform"]


@pytest.fixture(name="judge")
def judged():
    problem = problem_of(A, threads=2, facts=None)
    with fence.session(problem, A) as session:
        references = checks.References(problem)
        yield lambda each: evaluate.evaluate(each, problem, session, references, "candidate")


def test_a_right_kernel_is_correct(judge):
    verdict = judge(user_kernel())
    assert verdict.level == Level.CORRECT
    assert verdict.fault == verdict.message == ""
    assert 0 < verdict.worst <= 1
    assert verdict.seeds == tuple(check.seed for check in checks.CHECKS)
    assert verdict.measured is None
    assert verdict.resources["compile_ms"] >= 0
    assert verdict.resources["packed_bytes"] == A.data.nbytes + A.indices.nbytes + A.indptr.nbytes


@pytest.mark.parametrize(
    ("change", "level", "fault", "words"),
    [
        (lambda k: replace(k, language="cuda"), Level.NONE, "header", "expected"),
        (lambda k: replace(k, op="spmm"), Level.NONE, "header", "expected"),
        (lambda k: replace(k, tune={"BLOCK": (1, 2)}), Level.NONE, "header", "tune"),
        (lambda k: replace(k, params={"values": "f32"}), Level.PARSED, "infeasible", "exact_f32"),
        (lambda k: replace(k, params={"values": "constant"}), Level.PARSED, "infeasible", "constant"),
        (lambda k: template("dia_chunk", values="full"), Level.PARSED, "infeasible", "diagonals"),
        (lambda k: user_kernel("asm(1);" + LOOP), Level.NONE, "screen", "asm"),
        (lambda k: user_kernel("static int64_t calls; ++calls;" + LOOP), Level.NONE, "screen", "static"),
        (lambda k: user_kernel(LOOP.replace("x[", "nothing[")), Level.NONE, "screen", "nothing"),
        (lambda k: user_kernel(LOOP + "const int64_t a = 0; a = 1;"), Level.PARSED, "compile", "error"),
        (lambda k: user_kernel(LOOP.replace("sum +=", "sum =")), Level.RAN, "wrong", "exact integer"),
        (lambda k: items(k, "m + 1"), Level.COMPILED, "header", "work items"),
        (lambda k: items(k, "m // (m - m)"), Level.COMPILED, "header", "divides by zero"),
        (lambda k: items(k, "rows"), Level.COMPILED, "header", "rows"),
    ],
)  # fmt: skip
def test_the_first_thing_wrong_is_the_verdict(judge, change, level, fault, words):
    verdict = judge(change(user_kernel()))
    assert (verdict.level, verdict.fault) == (level, fault), verdict
    assert words in verdict.message
    assert judge(user_kernel()).level == Level.CORRECT


@pytest.mark.parametrize("name", ["ignores_alpha_at_beta_zero", "ignores_beta_at_alpha_one", "ignores_alpha"])
def test_alpha_and_beta_are_tried_apart_and_together(judge, name):
    wrong(judge, name)


def test_infinities_and_nan_are_stored_too(judge):
    wrong(judge, "skips_zeros_of_x")


def wrong(judge, name: str) -> None:
    text = (Path(__file__).parent / "kernels_cpp" / "faulty" / f"{name}.cpp").read_text()
    verdict = judge(candidate.parse(text, name=name, language="cpp"))
    assert (verdict.level, verdict.fault) == (Level.RAN, "wrong"), verdict


@pytest.mark.parametrize("far", [*range(40, 20_000, 1511), 130_000, -40, -700, -60_000])
def test_a_stray_write_is_found_however_far_it_goes(judge, far):
    """Beside the array in its guard, farther away in memory that nothing may touch."""
    verdict = judge(user_kernel(LOOP.replace("STORE(y, row, sum);", f"STORE(y, row, sum); y[m + {far}] = 7;")))
    beside = ("writes input", "wrong") if far < 0 else ()  # x lies before y
    assert verdict.level < Level.CORRECT and verdict.fault in ("out of bounds", "crash", *beside), verdict
    assert judge(user_kernel()).level == Level.CORRECT


def items(kernel, expression: str):
    return candidate.parse(candidate.text(kernel).replace('items = "m"', f'items = "{expression}"'), name="k")


def test_the_compiler_speaks_of_the_kernel_alone(judge, monkeypatch):
    monkeypatch.setattr(cpp, "check", lambda each: None)
    for body in (
        "#include </etc/passwd>\n" + LOOP,
        "#error root\n",
        LOOP + "undefined_function();",
        "((void (*)())a)();" + LOOP,
    ):
        verdict = judge(user_kernel(body))
        assert verdict.fault == "compile"
        assert "root:" not in verdict.message
        assert "/tmp" not in verdict.message


@pytest.mark.parametrize("name", gallery.small())
def test_every_template_is_right_wherever_it_is_feasible(name):
    """Two instances of each template; what is refused says why."""
    matrix = gallery.small()[name]
    problem = problem_of(matrix, threads=2)
    references, judged = checks.References(problem), 0
    with fence.session(problem, matrix) as session:
        for file in templates.load("cpp"):
            if file.op != "spmv":
                continue
            found = [each for each in instances(file) if templates.refusal(each, problem) is None]
            for each in found[:1] + found[1:][-1:]:
                verdict = evaluate.evaluate(each, problem, session, references, "candidate")
                assert verdict.level == Level.CORRECT, (each.label, verdict)
                judged += 1
    assert judged >= 4
    assert all(reason for _, reason in templates.refusals(problem))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("layout_b", "layout_c"), [("row", "row"), ("column", "row"), ("row", "column"), ("column", "column")]
)
def test_every_spmm_template_is_right(dtype, layout_b, layout_c):
    for name in ("powerlaw", "block_3x3"):
        matrix = gallery.small()[name].astype(dtype)
        problem = replace(problem_of(matrix, "spmm", k=5, threads=2), layout_b=layout_b, layout_c=layout_c)
        references = checks.References(problem)
        with fence.session(problem, matrix) as session:
            for file in templates.load("cpp"):
                if file.op == "spmm":
                    each = next((one for one in instances(file) if templates.refusal(one, problem) is None), None)
                    if each is not None:
                        verdict = evaluate.evaluate(each, problem, session, references, "candidate")
                        assert verdict.level == Level.CORRECT, (each.label, verdict)


def test_a_time_is_believed_where_its_results_are_right():
    """Every check calls such a kernel for the first time; only the bursts of timing repeat themselves."""
    path = Path(__file__).parent / "kernels_cpp" / "faulty" / "keeps_y_of_one_row.cpp"
    (record,) = judge.instances(str(path), str(paths.data("matrices") / "tiny" / "diffusion2d.mtx"))
    assert (record["level"], record["fault"], record["measured_us"]) == ("RAN", "wrong", None)
    assert "while it was timed" in record["message"]


def test_a_time_that_no_memory_allows_is_not_told(monkeypatch):
    monkeypatch.setattr(bandwidth, "levels", lambda threads, again=False: (bandwidth.Level("memory", 0, 1e3),))
    kernel, matrix = paths.data("cpu_templates") / "spmv" / "csr_scalar.cpp", paths.data("matrices") / "tiny"
    faults = [record["fault"] for record in judge.instances(str(kernel), str(matrix / "diffusion2d.mtx"))]
    assert set(faults) == {"too fast", "infeasible"}
