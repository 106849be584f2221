"""The emulator as a target: kernel files through evaluate and its worker, to CORRECT or to a fault seen in the act."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

import sparsegen
from sparsegen import __main__ as command_line
from sparsegen import candidate, checks, composite, engine, evaluate, fence, judge, paths, targets, values
from sparsegen.errors import SparsegenValueError
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


def test_mistakes_of_a_call():
    for wrong in ({"arch": "sm_90"}, {"device": 1}):
        with pytest.raises(SparsegenValueError, match="target = 'cuda'"):
            sparsegen.compile(matrix(), target="emulator", **wrong)
