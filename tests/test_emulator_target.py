"""The emulator as a target: kernel files through evaluate and its worker, to CORRECT or to a fault seen in the act."""

from __future__ import annotations

import itertools
import json
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp

import sparsegen
from sparsegen import __main__ as command_line
from sparsegen import candidate, checks, composite, engine, evaluate, fence, judge, paths, targets, values
from sparsegen.errors import SparsegenError, SparsegenValueError
from sparsegen.kernel import Kernel
from sparsegen.targets import emulator
from sparsegen.verdict import Level

pytestmark = pytest.mark.skipif(emulator.available() is not None, reason=str(emulator.available()))

TEMPLATES = paths.data("cuda_templates")
MATRIX = str(paths.data("matrices") / "tiny" / "graph.mtx")


def matrix(m: int = 203, n: int = 187) -> sp.csr_array:
    rng = np.random.default_rng(7013)
    A = sp.random_array((m, n), density=0.04, rng=rng).tocsr()
    A.data = rng.standard_normal(A.nnz)
    return sp.csr_array(A)


def instance(path: str, change=lambda source: source, **wanted) -> candidate.Candidate:
    template = candidate.parse((TEMPLATES / path).read_text(), name=path.split("/")[1].removesuffix(".cu"))
    found = next(each for each in candidate.instances(template) if wanted.items() <= each.params.items())
    return replace(found, source=change(found.source))


@pytest.fixture
def judged():
    A = matrix()
    problem = engine.problem_of(A, facts=None, target="emulator", threads=1)
    with fence.session(problem, A) as session:
        references = checks.References(problem)
        yield lambda each: evaluate.evaluate(each, problem, session, references, "candidate")


@pytest.mark.parametrize("path", ["spmv/csr_vector.cu", "spmv/csr_merge.cu", "spmv/coo_segmented.cu"])
def test_templates_are_correct(judged, path):
    verdict = judged(instance(path, values="full"))
    assert verdict.level == Level.CORRECT and verdict.fault == "", verdict.message
    assert 0 < verdict.worst <= 1 and verdict.measured is None


@pytest.mark.parametrize(
    ("path", "old", "new", "fault"),
    [
        ("spmv/csr_scalar.cu", "row >= m", "row > m", "out of bounds"),
        ("spmv/csr_scalar.cu", "STORE(y, row, sum)", "STORE(y, row / 2, sum)", "race"),
        ("spmv/csr_scalar.cu", "STORE(y, row, sum)", "y[row] += sum", "uninitialised read"),
        ("spmv/csr_scalar.cu", "STORE(y, row, sum)", "const_cast<VALUE*>(x)[0] = sum", "read-only store"),
        ("spmv/csr_scalar.cu", "STORE(y, row, sum)", "if (row != 5) STORE(y, row, sum)", "wrong"),
        ("spmv/csr_scalar.cu", "STORE(y, row, sum)",
         "if (beta == ACC(0)) y[row] = VALUE(sum); else STORE(y, row, sum)", "wrong"),
        ("spmv/csr_scalar.cu", "STORE(y, row, sum)",
         "if (beta != ACC(0) && alpha == ACC(1)) y[row] = VALUE(sum); else STORE(y, row, sum)", "wrong"),
        ("spmv/coo_atomic.cu", "ATOMIC_ADD(y", "ADD(y", "race"),
    ],
)  # fmt: skip
def test_faults_are_verdicts(judged, path, old, new, fault):
    source = instance(path).source
    assert old in source, f"{path} says it otherwise now"
    verdict = judged(instance(path, lambda text: text.replace(old, new)))
    assert (verdict.level, verdict.fault) == (Level.RAN, fault), verdict
    assert verdict.message and (fault == "wrong" or "thread" in verdict.message)
    assert judged(instance("spmv/csr_vector.cu", values="full")).level == Level.CORRECT, "the worker goes on"


def test_a_plan_runs_on_the_arrays_it_was_given():
    A = matrix()
    problem = engine.problem_of(A, target="emulator", facts=None)
    chosen = instance("spmv/csr_vector.cu", values="full")
    packs = composite.pack(chosen, problem)
    arrays = [{**each.arrays, "data": values.encode("full", A.data, each, A.dtype).copy()} for each in packs]
    text = emulator.load(emulator.build(emulator.unit(chosen, problem, packs)))
    plan = emulator.bind(text, chosen, problem, packs, arrays)
    rng = np.random.default_rng(90210)
    x, y0 = rng.standard_normal(A.shape[1]), rng.standard_normal(A.shape[0])
    y = y0.copy()
    assert plan.run(x, y, -1.5, 0.25, counters=True) == 0
    np.testing.assert_allclose(y, -1.5 * (A @ x) + 0.25 * y0, rtol=1e-11, atol=1e-11)
    assert plan.outcomes[0].counters.total()["instructions"] > 0
    arrays[0]["data"] *= 2  # the arrays stay where they are
    assert plan.run(x, y) == 0
    np.testing.assert_allclose(y, 2 * (A @ x), rtol=1e-11, atol=1e-11)
    for wrong in ((x[:-1], y), (x, y.astype(np.float32))):
        with pytest.raises(SparsegenValueError, match="expected"):
            plan.run(*wrong)
    arrays[0]["indices"][3] = 10**6
    with pytest.raises(targets.Fault) as caught:
        plan.run(x, y)
    assert caught.value.kind == "out of bounds" and "line" in str(caught.value)


def test_the_command_line_judges_cuda_without_a_gpu(capsys):
    kernel = str(TEMPLATES / "spmv" / "csr_scalar.cu")
    assert command_line.main(["evaluate", kernel, MATRIX, "--target", "emulator", "--dtype", "f32", "--json"]) == 0
    records = json.loads(capsys.readouterr().out)["instances"]
    told = {each["level"] for each in records if each["fault"] != "infeasible"}  # float32 holds no narrower values
    assert told == {"CORRECT"} and all(each["measured_us"] is None for each in records)
    for each in records:
        if not each["fault"]:
            assert each["verdict"] == "correct" and each["estimate"]["device"] == "A100"
            parts = each["estimate"]["parts"]
            assert each["estimated_us"] == each["estimate"]["estimated_us"] > max(parts.values())
            assert each["estimate"]["label"] == "estimated, uncalibrated" and each["estimate"]["counters"]["sectors"]
    H200 = ["evaluate", kernel, MATRIX, "--target", "emulator", "--device", "H200"]
    assert command_line.main(H200) == 0
    assert "us on H200" in capsys.readouterr().out
    assert command_line.main([*H200[:-1], "Voodoo2"]) == 1 and "RTX4090" in capsys.readouterr().err
    with pytest.raises(SparsegenValueError, match="emulator"):
        next(judge.instances(str(paths.data("cpu_templates") / "spmv" / "csr_scalar.cpp"), MATRIX, target="emulator"))


@pytest.mark.parametrize("op", ["spmv", "spmm"])
def test_compile_gives_a_verified_kernel(op, tmp_path):
    A = matrix()
    k = {"k": 5} if op == "spmm" else {}
    kernel = sparsegen.compile(A, op, target="emulator", model=None, cache=False, budget=1.0, seed=7013, **k)
    report = kernel.report()
    assert kernel.candidate is not None and kernel.candidate.language == "cuda", report
    assert report["measured_us"] is None and "worst error" in report["verified"] and "emulator" in report["device"]
    assert any("not by measurement" in note for note in report["notes"])
    x = np.random.default_rng(90210).standard_normal((A.shape[1], *k.values()))
    np.testing.assert_allclose(kernel @ x, A @ x, rtol=1e-11, atol=1e-11)
    kernel.update_values(2 * A.data)
    np.testing.assert_allclose(kernel(x, alpha=-0.5), -(A @ x), rtol=1e-11, atol=1e-11)
    kernel.save(tmp_path / "K.sgk")
    again = sparsegen.load(tmp_path / "K.sgk")
    np.testing.assert_allclose(again @ x, 2 * (A @ x), rtol=1e-11, atol=1e-11)
    assert kernel.explain() and "Kernel" in repr(kernel)


def test_another_width_is_checked_before_it_is_used():
    """Of three columns this kernel would write outside C, of seven two threads would write the same entry."""
    A = matrix()
    problem = engine.problem_of(A, op="spmm", k=5, facts=None, target="emulator")
    change = ("STORE_C(row, column, sum)", "STORE(C, row * 5 + column, sum)")
    chosen = instance("spmm/csr_row.cu", lambda source: source.replace(*change), values="full")
    kernel = Kernel(A, problem, chosen, "scipy", {"notes": []})
    for k in (5, 3, 7):
        X = np.random.default_rng(90210).standard_normal((A.shape[1], k))
        np.testing.assert_allclose(kernel @ X, A @ X, rtol=1e-11, atol=1e-11)
        assert (kernel._binding.plan(k, "row", "row") is not None) == (k == 5)


def test_mistakes_of_a_call():
    for wrong in ({"arch": "sm_90"}, {"device": 1}):
        with pytest.raises(SparsegenValueError, match="target = 'cuda'"):
            sparsegen.compile(matrix(), target="emulator", **wrong)


def test_compile_ranks_by_the_estimate():
    A = matrix()
    options = dict(target="emulator", model=None, cache=False, budget=30.0, max_candidates=12, seed=7013)
    found = {name: sparsegen.compile(A, device=name, **options).report() for name in ("A100", "RTX 4090")}
    for name, report in found.items():
        times = [each["estimated_us"] for each in report["candidates"] if each["level"] == "CORRECT"]
        assert len(times) > 3 and report["estimated_us"] == min(times) == report["estimate"]["estimated_us"]
        assert report["estimate"]["device"] == name.replace(" ", "") and report["estimate"]["binds"]
        assert report["measured_us"] is None and any("uncalibrated" in note for note in report["notes"])
    assert "uncalibrated" in sparsegen.compile(A, **options).explain()
    for wrong in (dict(target="cpu"), dict(target="auto"), dict(target="cuda", arch="sm_80")):
        with pytest.raises(SparsegenValueError, match="device"):
            sparsegen.compile(A, device="H200", **{**options, **wrong})
    with pytest.raises(SparsegenValueError, match="A100"):
        sparsegen.compile(A, device="H2000", **options)


def test_a_choice_is_kept_for_its_gpu(monkeypatch, tmp_path):
    monkeypatch.setenv("SPARSEGEN_CACHE_DIR", str(tmp_path))
    A = matrix()
    options = dict(target="emulator", model=None, budget=20.0, max_candidates=3, seed=7013)
    first = sparsegen.compile(A, device="A100", **options).report()
    again = sparsegen.compile(A, device="A100", **options).report()
    assert again["cached"] and again["estimated_us"] == first["estimated_us"]
    assert not sparsegen.compile(A, device="H200", **options).report()["cached"]


@pytest.mark.parametrize("where", [{"arch": "sm_90"}, {"device": "H200"}])
def test_an_artifact_is_verified_here_and_runs_elsewhere(where, tmp_path):
    A = matrix()
    made = sparsegen.compile(A, target="cuda", budget=30.0, max_candidates=4, seed=7013, **where)
    assert isinstance(made, sparsegen.Artifact) and made.arch == "sm_90" and made.level == Level.CORRECT
    made.save(tmp_path / "kernel.sgk")
    loaded = sparsegen.load(tmp_path / "kernel.sgk")
    assert loaded.image[:4] == b"\x7fELF" and loaded.image == made.image
    certificate = loaded.certificate
    assert certificate["seeds"] == [check.seed for check in checks.CHECKS] and certificate["covered"] == "all"
    assert certificate["compiled_for"] == "sm_90" and "emulator" in certificate["executed_on"]
    assert 0 < certificate["worst"] <= 1 and loaded.report()["estimated_us"] > 0
    assert {"data"} < set(loaded.packed[0]) and all(
        np.array_equal(array, made.packed[0][name]) for name, array in loaded.packed[0].items()
    )
    with pytest.raises(SparsegenError, match="sm_90"):
        loaded @ np.ones(A.shape[1])


def test_what_the_budget_leaves_out_is_said(monkeypatch, tmp_path):
    A = matrix()
    options = dict(target="cuda", arch="sm_90", max_candidates=1, seed=7013)
    ticks = itertools.count(0.0, 10.0)  # a clock that makes every check a long one
    clock = SimpleNamespace(monotonic=lambda: next(ticks), perf_counter=time.perf_counter)
    monkeypatch.setattr(evaluate, "time", clock)
    monkeypatch.setattr(evaluate, "EMULATED_NS", 0.0)
    problem = engine.problem_of(A, facts=None, target="emulator", threads=1)
    with fence.session(problem, A) as session:
        session.start()
        made = evaluate.compile(instance("spmv/csr_vector.cu", values="full"), problem)
        verdict = evaluate.run(made, problem, session, checks.References(problem), "one", until=25.0)
        assert (
            verdict.level == Level.CORRECT
            and len(verdict.seeds) == 1
            and f"1 of {len(checks.CHECKS)} checks" in verdict.covered
        )
        monkeypatch.undo()
        verdict = evaluate.run(made, problem, session, checks.References(problem), "two", until=0.0)
        assert verdict.level == Level.RAN and not verdict.fault and "no result compared" in verdict.covered
        merge = evaluate.compile(instance("spmv/csr_merge.cu", values="full"), problem)
        verdict = evaluate.run(merge, problem, session, checks.References(problem), "three", until=0.0)
        assert verdict.level == Level.COMPILED and verdict.covered.startswith("nothing")
    monkeypatch.setattr(evaluate, "EMULATED_NS", 1e12)
    made = sparsegen.compile(A, **options)
    assert made.level == Level.RAN and "no result compared" in made.verified and not made.certificate["seeds"]
    kernel = sparsegen.compile(A, target="emulator", model=None, cache=False, seed=7013, max_candidates=1)
    assert kernel.candidate is None, "what was not verified serves nobody"
