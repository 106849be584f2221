"""Generated kernels, judged once each."""

from __future__ import annotations

import pytest
from support import LOOP, template, user_kernel

from sparsegen import candidate
from sparsegen.errors import SparsegenError
from sparsegen.record import Records
from sparsegen.train import corpus, verdicts
from sparsegen.train.corpus import Task
from sparsegen.train.verdicts import Verdicts
from sparsegen.verdict import Level

TASK = Task("synthetic:rows_bimodal:3", "synthetic:rows_bimodal", False, "spmv", 1, "float64")
PROBLEM = f"{TASK.key} cpp"


@pytest.fixture
def lines(tmp_path, monkeypatch):
    known = template("csr_scalar", values="full")
    monkeypatch.setattr(corpus.templates, "propose", lambda problem: iter([known]))
    records = Records(tmp_path / "measured.jsonl")
    corpus.collect([TASK], None, records, 7013)
    return list(records.known.values())


def written(kernel) -> str:
    return candidate.text(kernel)


def test_what_the_corpus_knows_is_not_measured(lines, tmp_path):
    judge = Verdicts(lines, None, tmp_path / "judged.jsonl")
    (outcome,) = judge.judge(PROBLEM, [written(template("csr_scalar", values="full"))])
    assert outcome.level == Level.TIMED and outcome.speedup == lines[0]["kernels"][0]["speedup"]
    assert outcome.baseline_us == lines[0]["baselines"][lines[0]["best"]] and not outcome.fresh
    assert judge.fresh == 0 and outcome.best == outcome.speedup


def test_new_kernels_are_measured_once_and_equal_object_code_shares_a_verdict(lines, tmp_path):
    judge = Verdicts(lines, None, tmp_path / "judged.jsonl")
    new = written(user_kernel(LOOP.replace("ACC sum = 0;", "ACC sum = ACC(0) * ACC(2);").replace("++row", "row += 1")))
    vector = written(template("csr_vector", values="full"))
    wrong = written(user_kernel(LOOP.replace("+=", "-=")))
    outcomes = judge.judge(PROBLEM, [vector, new, "no kernel", wrong, vector])
    assert [each.level for each in outcomes] == [Level.TIMED, Level.TIMED, Level.NONE, Level.RAN, Level.TIMED]
    assert outcomes[3].fault == "wrong" and outcomes[2].fault == "header"
    fresh = judge.fresh
    again = Verdicts(lines, None, tmp_path / "judged.jsonl")
    repeated = again.judge(PROBLEM, [vector, new, wrong])
    assert again.fresh == 0 and fresh >= 2
    assert [each.speedup for each in repeated[:2]] == [outcomes[0].speedup, outcomes[1].speedup]
    assert not any(each.fresh for each in repeated)
    renamed = written(user_kernel(LOOP.replace("sum", "total_of_row"), name="other"))
    plain = written(user_kernel(LOOP))
    first, second = again.judge(PROBLEM, [renamed, plain])
    assert first.speedup == second.speedup
    assert again.fresh <= 1  # at most one of two kernels that compile to one object


def test_cuda_is_compiled_and_gets_no_further(lines, tmp_path):
    pytest.importorskip("cuda.bindings")
    from sparsegen import templates

    judge = Verdicts(lines, None, tmp_path / "judged.jsonl")
    kernel = next(candidate.instances(templates.get("csr_scalar", language="cuda")))
    problem = f"{TASK.key} cuda"
    right, broken = judge.judge(problem, [written(kernel), written(kernel).replace("STORE(", "STORED(")])
    assert right.level == Level.COMPILED and right.speedup is None and not right.fault
    assert broken.level < Level.COMPILED and broken.fault
    assert judge.fresh == 0  # nothing was timed


@pytest.mark.parametrize("language", ["cpp", "cuda"])
def test_without_a_compiler_no_kernel_is_recorded_as_a_failure(lines, tmp_path, monkeypatch, language):
    from sparsegen import templates
    from sparsegen.train import measure

    judge = Verdicts(lines, None, tmp_path / "judged.jsonl")
    kernel = next(candidate.instances(templates.get("csr_vector", language=language)))
    for target in (measure.cpu, measure.nvrtc):
        monkeypatch.setattr(target, "available", lambda: "no compiler found: install one")
    with pytest.raises(SparsegenError, match=f"{language} kernels cannot be measured here: no compiler found"):
        judge.judge(f"{TASK.key} {language}", [written(kernel)])
    assert not judge.records.known and (tmp_path / "judged.jsonl").read_bytes() == b""


def test_a_kernel_that_brings_the_worker_down_loses_its_own_evaluation_alone(lines, tmp_path, monkeypatch):
    calls = []
    real = verdicts.measure

    def fragile(problem, A, candidates, **options):
        candidates = list(candidates)
        calls.append(len(candidates))
        if any("999" in each.source for each in candidates):
            raise verdicts.Died("crash", "gone")
        return real(problem, A, candidates, **options)

    monkeypatch.setattr(verdicts, "measure", fragile)
    judge = Verdicts(lines, None, tmp_path / "judged.jsonl")
    bad = written(user_kernel(LOOP.replace("STORE(y, row, sum)", "STORE(y, row, sum * ACC(999))")))
    good = written(template("csr_vector", values="full"))
    outcomes = judge.judge(PROBLEM, [bad, good])
    assert [each.fault for each in outcomes] == ["crash", ""] and outcomes[1].level == Level.TIMED
    assert calls == [2, 1, 1]


def test_the_same_code_on_rows_in_another_order_is_another_kernel(lines, tmp_path):
    judge = Verdicts(lines, None, tmp_path / "judged.jsonl")
    sorted_rows = [written(template("sell_slice", SIGMA=sigma, BITS=32, values="full")) for sigma in (0, 256)]
    judge.judge(PROBLEM, sorted_rows)
    assert judge.fresh == 2
