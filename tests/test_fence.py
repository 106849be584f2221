"""Hostile and broken kernels cost one verdict each; what runs them can be killed and never outlives us."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from support import LOOP, problem_of, together, user_kernel

from sparsegen import candidate, checks, evaluate, fence, gallery
from sparsegen.errors import SparsegenError
from sparsegen.screen import cpp
from sparsegen.search import search
from sparsegen.verdict import Level

ROOT = Path(fence.__file__).resolve().parent.parent
A = gallery.dense_row(257, 251)  # two rows of 251 entries, the others of 3
EACH = "for (OFFSET p = indptr[row]; p < indptr[row + 1]; ++p) sum += VALUE_AT(p) * ACC(x[indices[p]]);"
ROWS = "for (int64_t row = begin; row < end; ++row) { ACC sum = 0; %s }"
FAULTS = {  # name: (body, fault, words of the message)
    "hangs": ("volatile int64_t forever = 1; while (forever) { }" + LOOP, "timeout", "no answer"),
    "wild write": ("y[int64_t(1) << 44] = 1;" + LOOP, "crash", "SIG"),
    "wild read": ("volatile ACC a = x[int64_t(1) << 44];" + LOOP, "crash", "SIG"),
    "jumps to nothing": ("((void (*)())8)();" + LOOP, "crash", "SIG"),
    "divides by zero": ("volatile int zero = 0; volatile int a = 7 / zero;" + LOOP, "crash", "SIG"),
    "traps": ("__builtin_trap();", "crash", "SIG"),
    "writes behind y": (LOOP + "y[m] = 1;", "out of bounds", "outside"),
    "writes before y": (LOOP + "y[-1] = 1;", "out of bounds", "outside"),
    "writes behind x": (LOOP + "((VALUE*)x)[n + 2] = 1;", "out of bounds", "outside"),
    "writes behind indices": (LOOP + "((INDEX*)indices)[nnz] = 1;", "out of bounds", "outside"),
    "writes x": (LOOP + "((VALUE*)x)[3] = 1;", "writes input", "has changed"),
    "writes A": (LOOP + "((STORED*)data)[5] = 1;", "writes input", "has changed"),
    "writes indptr": (LOOP + "((OFFSET*)indptr)[1] ^= 1;", "writes input", "has changed"),
    "reads behind x": (ROWS % (EACH + "sum += 0 * x[n]; STORE(y, row, sum);"), "wrong", "NaN"),
    "reads before x": (ROWS % (EACH + "sum += 0 * x[-1]; STORE(y, row, sum);"), "wrong", "NaN"),
    "reads behind A": (ROWS % (EACH + "sum += 0 * data[nnz]; STORE(y, row, sum);"), "wrong", "NaN"),
    "drops the last entry": (LOOP.replace("indptr[row + 1]", "indptr[row + 1] - 1"), "wrong", "exact integer"),
    "doubles the first": (ROWS % (EACH + "sum += VALUE_AT(indptr[row]) * x[indices[indptr[row]]]; STORE(y, row, sum);"),
                          "wrong", "exact integer"),
    "takes a neighbour": (LOOP.replace("x[indices[p]]", "x[indices[p] ? indices[p] - 1 : 0]"), "wrong", "exact"),
    "skips long rows": (ROWS % f"if (indptr[row + 1] - indptr[row] < 200) {{ {EACH} }} STORE(y, row, sum);",
                        "wrong", "exact integer"),
    "skips a row": (ROWS % f"if (row == 100) continue; {EACH} STORE(y, row, sum);", "wrong", "exact integer"),
    "returns zeros": (ROWS % "STORE(y, row, sum);", "wrong", "exact integer"),
    "returns nothing": ("", "wrong", "exact integer"),
    "single precision": (LOOP.replace("ACC sum", "float sum"), "wrong", "componentwise bound"),
    "ignores alpha": (ROWS % (EACH + "y[row] = beta == 0 ? sum : sum + beta * y[row];"), "wrong", "componentwise"),
    "ignores beta": (ROWS % (EACH + "y[row] = alpha * sum;"), "wrong", "componentwise bound"),
    "reads y at beta 0": (ROWS % (EACH + "y[row] = alpha * sum + beta * y[row];"), "wrong", "NaN"),
    "adds to y": (ROWS % (EACH + "y[row] += alpha * sum;"), "wrong", "NaN"),
    "takes A for ones": (LOOP.replace("VALUE_AT(p) * ", ""), "wrong", "exact integer"),
    "takes A for positive": (LOOP.replace("VALUE_AT(p)", "__builtin_fabs(VALUE_AT(p))"), "wrong", "componentwise"),
    "skips zeros of A": (LOOP.replace("sum +=", "if (data[p] != 0) sum +="), "wrong", "NaN or infinity"),
    "clamps infinity": (LOOP.replace("STORE", "if (!(sum - sum == 0)) sum = 0; STORE"), "wrong", "NaN or infinity"),
    "wrong in parts": ("if (begin > 0) ++begin;" + LOOP, "wrong", "2 threads"),
    "always asks for help": (LOOP + "*status = 1;", "wrong", "not finite"),
}  # fmt: skip


@pytest.fixture
def unscreened(monkeypatch) -> None:
    """The fence holds what the screen would not have let through."""
    monkeypatch.setattr(cpp, "check", lambda candidate: None)
    monkeypatch.setattr(evaluate, "RUN_SECONDS", 1.0)


@pytest.fixture(scope="class")
def session():
    problem = problem_of(A, threads=2)
    with fence.session(problem, A) as opened:
        yield opened, problem, checks.References(problem)


class TestFaults:
    @pytest.mark.parametrize("name", FAULTS)
    def test_a_broken_kernel_costs_one_verdict(self, session, unscreened, name):
        opened, problem, references = session
        body, fault, words = FAULTS[name]
        verdict = evaluate.evaluate(user_kernel(body, name="broken"), problem, opened, references, "broken")
        assert verdict.fault == fault, verdict
        assert words in verdict.message
        assert verdict.level in (Level.COMPILED, Level.RAN)
        assert verdict.measured is None
        after = evaluate.evaluate(user_kernel(), problem, opened, references, "right")
        assert after.level == Level.CORRECT, after
        assert after.fault == ""
        assert after.worst <= 1


def test_a_session_inside_a_session_is_an_error_not_a_deadlock():
    problem = problem_of(A)
    with fence.session(problem, A) as opened:
        with pytest.raises(SparsegenError, match="measures already"), fence.session(problem, A):
            pass
        assert "rough_ns" in opened.ask("baseline", 30.0, name="scipy")


def test_a_matrix_too_large_for_the_memory_allowed_is_a_verdict():
    """ELL would pad 300,001 rows to 300,001 columns: `feasible` refuses that; the fence where it is not asked."""
    wide = gallery.dense_row(300_001, 300_001, full=1, per_row=0)
    problem = problem_of(wide)
    body = "for (int64_t row = begin; row < end; ++row) STORE(y, row, ACC(0));"
    from sparsegen import candidate, composite

    text = (
        candidate.text(user_kernel(body))
        .replace('format = "csr"', 'format = "ell"')
        .replace("CSR_ARRAYS", "ELL_ARRAYS")
    )
    chosen = candidate.parse(text, name="ell_user")
    assert composite.feasible(chosen, problem)
    made = evaluate.compile(chosen, problem)
    with fence.session(problem, wide) as opened:
        verdict = evaluate.run(made, problem, opened, checks.References(problem), "huge")
        assert verdict.fault == "memory", verdict
        assert opened.ask("baseline", 30.0, name="scipy")["rough_ns"] > 0


def test_a_kernel_that_changes_its_mind_while_it_is_timed(unscreened):
    """Right in every check, wrong later: the results of the timed calls are looked at too."""
    later = user_kernel("static int64_t calls; if (++calls > 400) return;" + LOOP, name="later")
    problem = problem_of(A)
    outcome = search(problem, A, iter([later]), 0.5, None, 20261)
    assert outcome.winner is None
    assert [tried.verdict.fault for tried in outcome.tried] == ["wrong"]


def test_crashes_in_the_search_leave_the_others_judged(unscreened):
    broken = [user_kernel(FAULTS[name][0], name="broken") for name in ("wild write", "hangs", "returns zeros")]
    problem = problem_of(A)
    outcome = search(problem, A, iter([broken[0], user_kernel(), broken[1], broken[2]]), 8.0, None, 20262)
    faults = {tried.candidate.key: tried.verdict.fault for tried in outcome.tried}
    assert [faults[each.key] for each in broken] == ["crash", "timeout", "wrong"]
    assert next(each for each in outcome.tried if each.candidate.key == user_kernel().key).verdict.level == Level.TIMED
    assert outcome.baselines["scipy"]["measured_us"] > 0


def test_the_template_process_may_be_killed():
    problem = problem_of(A)
    references = checks.References(problem)
    for _ in range(2):
        with fence.session(problem, A) as opened:
            assert evaluate.evaluate(user_kernel(), problem, opened, references, "one").level == Level.CORRECT
        fence._template.process.kill()
    with fence.session(problem, A) as opened:
        opened.ask("baseline", 30.0, name="scipy")
        fence._template.process.kill()
        for _ in range(2):  # the child may end with the template, or outlive it to its next question
            verdict = evaluate.evaluate(user_kernel(), problem, opened, references, "two")
            if verdict.level == Level.CORRECT:
                break
            assert verdict.fault == "crash"
        assert verdict.level == Level.CORRECT
    with fence.session(problem, A) as opened:
        assert evaluate.evaluate(user_kernel(), problem, opened, references, "three").level == Level.CORRECT


def test_an_interrupted_question_does_not_answer_the_next(monkeypatch):
    problem = problem_of(A)
    with fence.session(problem, A) as opened:
        opened.start()
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(fence.Session, "_answer", lambda self, seconds: (_ for _ in ()).throw(KeyboardInterrupt))
            opened.ask("baseline", 30.0, name="scipy")
    with fence.session(problem, A) as opened:
        assert "rough_ns" in opened.ask("baseline", 30.0, name="scipy")
    with fence.session(problem, A) as opened:
        assert "intact" in opened.ask("check", 30.0, name=_loaded(opened, problem), check=checks.CHECKS[0], threads=1)


def _loaded(opened, problem) -> str:
    from sparsegen import candidate

    made = evaluate.compile(user_kernel(), problem)
    opened.ask("load", 30.0, name="k", text=candidate.text(user_kernel()), path=str(made.path), label="k")
    return "k"


def test_an_answer_that_is_no_answer_is_a_crash(monkeypatch):
    problem = problem_of(A)
    with fence.session(problem, A) as opened:
        opened.start()
        with monkeypatch.context() as patch, pytest.raises(fence.Died) as died:
            patch.setattr(fence.json, "loads", lambda said: (_ for _ in ()).throw(ValueError("garbled")))
            opened.ask("baseline", 30.0, name="scipy")
        assert died.value.fault == "crash"
        assert "rough_ns" in opened.ask("baseline", 30.0, name="scipy")


def test_sessions_of_two_threads_follow_each_other():
    problem, spans = problem_of(A), []

    def run(number: int) -> None:
        with fence.session(problem, A) as opened:
            begun = time.monotonic()
            opened.ask("baseline", 30.0, name="scipy")
            spans.append((begun, time.monotonic()))

    together(3, run)
    spans.sort()
    assert all(first[1] <= second[0] for first, second in itertools.pairwise(spans))


def test_warming_does_not_wait_for_a_session():
    problem = problem_of(A)
    with fence.session(problem, A):
        thread = threading.Thread(target=fence.warm)
        thread.start()
        thread.join(20)
        assert not thread.is_alive()


def test_a_forked_child_has_a_worker_of_its_own():
    problem = problem_of(A)
    references = checks.References(problem)
    with fence.session(problem, A) as opened:
        opened.start()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                with fence.session(problem, A) as own:
                    verdict = evaluate.evaluate(user_kernel(), problem, own, references, "child")
                    status = 0 if verdict.level == Level.CORRECT else 2
                fence._template.stop()
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert evaluate.evaluate(user_kernel(), problem, opened, references, "parent").level == Level.CORRECT


@pytest.mark.parametrize("forked", [False, True])
def test_nothing_is_left_when_the_process_is_killed(forked, tmp_path):
    script = textwrap.dedent(
        f"""
        import os, sys, threading, time
        sys.path[:0] = [{str(ROOT)!r}, {str(Path(__file__).parent)!r}]
        from support import LOOP, problem_of, user_kernel
        from sparsegen import candidate, checks, evaluate, fence, gallery
        from sparsegen.screen import cpp
        cpp.check = lambda candidate: None
        evaluate.RUN_SECONDS = 600.0
        A = gallery.dense_row(257, 251)
        problem = problem_of(A)
        with fence.session(problem, A) as opened:
            opened.start()
            if {forked} and os.fork() == 0:
                time.sleep(30)
                os._exit(0)
            print(fence._template.process.pid, opened._pid, flush=True)
            hang = user_kernel("volatile int64_t forever = 1; while (forever) {{ }}" + LOOP)
            evaluate.evaluate(hang, problem, opened, checks.References(problem), "hang")
        """
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        pids = [int(word) for word in process.stdout.readline().split()]
        assert len(pids) == 2
        for _ in range(600):
            if _cpu_seconds(pids[1]) > 0.3:  # it hangs in the kernel by now
                break
            time.sleep(0.1)
        process.kill()
        process.wait()
        for _ in range(300):
            if not any(map(_alive, pids)):
                break
            time.sleep(0.1)
        assert not any(map(_alive, pids))
    finally:
        process.stdout.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _cpu_seconds(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_output_is_what_the_worker_wrote():
    problem = problem_of(A)
    with fence.session(problem, A) as opened:
        opened.ask("baseline", 30.0, name="scipy")
        x = checks.timed_inputs(problem)[0]
        np.testing.assert_allclose(opened.output, A @ x, rtol=1e-12, atol=1e-12)
        assert opened.output.flags.writeable is False


@pytest.mark.parametrize("threads", [1, 2])
def test_a_kernel_that_leaves_what_was_computed_before_is_found(threads):
    problem = problem_of(A, threads=threads, facts=None)
    with fence.session(problem, A) as opened:
        references = checks.References(problem)
        keeps = (Path(__file__).parent / "kernels_cpp" / "faulty" / "keeps_y_of_one_row.cpp").read_text()
        kernels = {"keeps": candidate.parse(keeps, name="keeps", language="cpp"), "honest": user_kernel(LOOP)}
        for name, kernel in kernels.items():
            verdict = evaluate.evaluate(kernel, problem, opened, references, name)
            assert verdict.level == Level.CORRECT, verdict
            opened.ask("arm", 30.0, name=name, bound=name, threads=threads)
        answer = opened.ask("rounds", 60.0, arms=["keeps", "honest"], count=6, most_seconds=20.0, seed=20281)
    assert answer["changed"] == ["keeps"]
