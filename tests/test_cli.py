"""The command line: exit codes, what goes to stdout, errors of one line."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import sparsegen
from sparsegen import judge, paths
from sparsegen.__main__ import main
from sparsegen.targets import cpu

TINY = paths.data("matrices") / "tiny"
MATRIX = str(TINY / "gaps.mtx")
KERNEL = str(paths.data("cpu_templates") / "spmv" / "csr_scalar.cpp")
needs_compiler = pytest.mark.skipif(cpu.available() is not None, reason="needs a C++ compiler")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARSEGEN_CACHE_DIR", str(tmp_path / "cache"))


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of one command in this process."""
    try:
        status = main(list(arguments))
    except SystemExit as exit:
        status = exit.code if isinstance(exit.code, int) else 1
    out, err = capsys.readouterr()
    return status, out, err


def refused(capsys, status: int, *arguments: str) -> str:
    """The one line that a refused command says, on stderr alone."""
    found, out, err = run(capsys, *arguments)
    assert (found, out) == (status, "")
    assert err.count("\n") == 1 and err.startswith("sparsegen")
    return err


def test_compile_prints_a_report(capsys):
    status, out, _ = run(capsys, "compile", MATRIX, "--budget", "0.4", "--seed", "7103")
    assert status == 0
    table = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert table["matrix"] == MATRIX and table["seed"] == "7103" and table["budget_s"] == "0.4"
    assert {"kernel", "verified", "measured_us", "speedup"} <= set(table)


@pytest.mark.parametrize(
    "extra", [[], ["--op", "spmm", "--k", "5", "--dtype", "f32"], ["--facts", "none", "--threads", "1", "--no-cache"]]
)
def test_compile_as_json(capsys, extra):
    status, out, _ = run(capsys, "compile", MATRIX, "--json", "--budget", "0.3", *extra)
    report = json.loads(out)
    assert status == 0
    assert report["nnz"] == sparsegen.inputs.as_csr(MATRIX).nnz
    assert report["dtype"] == ("float32" if "f32" in extra else "float64")
    assert report["k"] == (5 if extra[:1] == ["--op"] else 1)
    assert report["seed"] == 20260 and report["saved"] is None


def test_save_explain_and_load(capsys, tmp_path):
    saved = tmp_path / "K.sgk"
    status, out, _ = run(capsys, "compile", MATRIX, "--budget", "0.4", "--save", str(saved), "--json")
    assert status == 0 and json.loads(out)["saved"] == str(saved)
    status, out, _ = run(capsys, "explain", str(saved), "--json")
    assert status == 0 and "entries" in json.loads(out)["explanation"]
    status, out, _ = run(capsys, "explain", MATRIX)
    assert status == 0 and out.startswith("A is ")
    A = sparsegen.inputs.as_csr(MATRIX)
    x = np.random.default_rng(7109).standard_normal(A.shape[1])
    np.testing.assert_allclose(sparsegen.load(saved) @ x, A @ x, rtol=1e-12, atol=1e-12)


@needs_compiler
def test_evaluate(capsys):
    status, out, _ = run(capsys, "evaluate", KERNEL, MATRIX, "--json")
    found = json.loads(out)
    assert status == 0 and found["kernel"] == KERNEL
    full = next(each for each in found["instances"] if each["params"]["values"] == "full")
    assert full["level"] == "TIMED" and full["worst"] <= 1 and full["measured_us"] > 0
    status, out, _ = run(capsys, "evaluate", KERNEL, MATRIX, "--threads", "2")
    assert status == 0 and "csr_scalar values=full  TIMED" in out


@needs_compiler
def test_a_wrong_kernel_is_1(capsys, tmp_path):
    wrong = tmp_path / "wrong.cpp"
    wrong.write_text(Path(KERNEL).read_text().replace("sum +=", "sum -="))
    assert "-=" in wrong.read_text()
    status, out, _ = run(capsys, "evaluate", str(wrong), MATRIX)
    assert status == 1 and "TIMED" not in out


@pytest.mark.parametrize("what", ["formats", "templates", "targets", "baselines", "ops", "collections"])
def test_list(capsys, what):
    status, out, _ = run(capsys, "list", what)
    assert status == 0 and out.strip()
    status, out, _ = run(capsys, "list", what, "--json")
    found = json.loads(out)
    names = {each["name"] for each in found} if what == "templates" else set(found)
    known = {
        "formats": "csr", "templates": "csr_scalar", "targets": "cpu", "baselines": "scipy", "ops": "spmm",
        "collections": "smoke",
    }  # fmt: skip
    assert status == 0 and known[what] in names


@needs_compiler
def test_cache(capsys):
    run(capsys, "compile", MATRIX, "--budget", "0.4")
    status, out, _ = run(capsys, "cache", "info", "--json")
    info = json.loads(out)
    entries = info["binaries"]["entries"] + info["choices"]["entries"]
    assert status == 0 and info["writable"] and entries > 0
    assert f"{info['choices']['entries']} entries" in run(capsys, "cache", "info")[1]
    status, out, _ = run(capsys, "cache", "clear", "--json")
    assert (status, json.loads(out)) == (0, {"removed": entries})
    assert run(capsys, "cache", "clear")[1] == "0 entries removed\n"


def test_doctor(capsys):
    status, out, _ = run(capsys, "doctor", "--json")
    found = json.loads(out)
    assert status == 0
    assert found["sparsegen"] == sparsegen.__version__
    assert {"cpu target", "NVRTC", "GPU", "baseline scipy", "baseline mkl", "cache"} <= set(found)
    assert set(found) == {line[:20].strip() for line in run(capsys, "doctor")[1].splitlines()}


def test_doctor_says_what_to_install(capsys, monkeypatch):
    monkeypatch.setattr(cpu, "compiler", lambda: None)
    status, out, _ = run(capsys, "doctor", "--json")
    assert status == 0 and "install g++" in json.loads(out)["cpu target"]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ([], "COMMAND"),
        (["nonsense"], "nonsense"),
        (["compile"], "A.mtx"),
        (["compile", MATRIX, "--budget", "soon"], "'soon'"),
        (["compile", MATRIX, "--budget", "-1"], "'-1'"),
        (["compile", MATRIX, "--budget", "nan"], "'nan'"),
        (["compile", MATRIX, "--k", "0"], "'0'"),
        (["compile", MATRIX, "--k", "1e3"], "'1e3'"),
        (["compile", MATRIX, "--k", "9" * 5000], "not an integer"),
        (["compile", MATRIX, "--threads", "257"], "256"),
        (["compile", MATRIX, "--seed", "-5"], "'-5'"),
        (["compile", MATRIX, "--dtype", "f99"], "f32, f64"),
        (["compile", MATRIX, "--arch", "pentium"], "sm_90"),
        (["compile", MATRIX, "--op", "cholesky"], "cholesky"),
        (["compile", MATRIX, "--target", "tpu"], "tpu"),
        (["compile", MATRIX, "--bud", "2"], "--bud"),
        (["evaluate", KERNEL], "A.mtx"),
        (["list", "dragons"], "dragons"),
        (["cache"], "what"),
    ],
)
def test_a_wrong_command_line_is_2(capsys, arguments, word):
    assert word in refused(capsys, 2, *arguments)


def test_what_cannot_be_done_is_1(capsys, tmp_path):
    missing, corrupt, folder = tmp_path / "missing.mtx", tmp_path / "corrupt.mtx", str(tmp_path)
    corrupt.write_text("%%MatrixMarket matrix coordinate real general\n3 3 1\n7 1 2.5\n")
    assert "no such file" in refused(capsys, 1, "compile", str(missing))
    assert "folder" in refused(capsys, 1, "compile", folder)
    assert "line 3" in refused(capsys, 1, "compile", str(corrupt))
    assert "spmm" in refused(capsys, 1, "compile", MATRIX, "--op", "spmm")
    assert "target" in refused(capsys, 1, "compile", MATRIX, "--arch", "sm_90", "--target", "cpu")
    assert "missing" in refused(capsys, 1, "evaluate", str(missing), MATRIX)
    assert "header" in refused(capsys, 1, "evaluate", MATRIX, MATRIX)
    assert "no such file" in refused(capsys, 1, "explain", str(missing))
    damaged = tmp_path / "damaged.sgk"
    damaged.write_bytes(np.random.default_rng(7127).bytes(3001))
    assert "damaged.sgk" in refused(capsys, 1, "explain", str(damaged))


@pytest.mark.parametrize("where", ["", ".", "absent/K.sgk"])
def test_where_nothing_can_be_saved_nothing_is_searched(capsys, monkeypatch, tmp_path, where):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sparsegen, "compile", lambda *arguments, **options: pytest.fail("searched"))
    assert "cannot write" in refused(capsys, 1, "compile", MATRIX, "--save", where)


def test_complex_values_are_served_and_not_judged(capsys, tmp_path):
    matrix = tmp_path / "complex.mtx"
    matrix.write_text("%%MatrixMarket matrix coordinate complex general\n3 3 2\n1 1 1 2\n2 3 2 1\n")
    status, out, _ = run(capsys, "compile", str(matrix), "--json")
    assert status == 0 and json.loads(out)["origin"] == "baseline"
    assert "complex128" in refused(capsys, 1, "evaluate", KERNEL, str(matrix))


def test_warnings_go_to_stderr(capsys, monkeypatch):
    def instances(*arguments, **options):
        warnings.warn("a blemish", stacklevel=1)
        yield {"label": "k", "fault": "", "message": "", "measured_us": np.float32(2.5), "worst": np.nan}

    monkeypatch.setattr(judge, "instances", instances)
    status, out, err = run(capsys, "evaluate", KERNEL, MATRIX, "--json")
    assert (status, err) == (0, "sparsegen: warning: a blemish\n")
    assert json.loads(out)["instances"][0]["measured_us"] == 2.5
    assert json.loads(out)["instances"][0]["worst"] is None


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_interrupted_or_out_of_memory_is_one_line(capsys, monkeypatch, error):
    def compile(*arguments, **options):
        raise error

    monkeypatch.setattr(sparsegen, "compile", compile)
    refused(capsys, 1, "compile", MATRIX)


def command(*arguments: str, stdout=subprocess.PIPE) -> subprocess.Popen:
    line = [sys.executable, "-m", "sparsegen", *arguments]
    # whoever runs the tests in the background of a shell has interrupts ignored, and children inherit that
    listen = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    return subprocess.Popen(line, stdout=stdout, stderr=subprocess.PIPE, text=True, preexec_fn=listen)


def test_as_a_module():
    process = command("--version")
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err) == (0, f"{sparsegen.__version__}\n", "")


def test_a_reader_that_leaves():
    reading, writing = os.pipe()
    os.close(reading)
    process = command("list", "templates", stdout=writing)
    os.close(writing)
    _, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (1, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk():
    with open("/dev/full", "w") as full:
        process = command("list", "formats", "--json", stdout=full)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1 and err.count("\n") == 1 and err.startswith("sparsegen: ")


@needs_compiler
def test_interrupted_while_searching():
    process = command("--verbose", "compile", str(TINY / "diffusion2d.mtx"), "--no-cache", "--budget", "60")
    assert process.stderr is not None and process.stderr.readline().startswith("sparsegen: ")  # the search is under way
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (1, "")
    assert err.splitlines()[-1] == "sparsegen: interrupted" and "Traceback" not in err


def test_an_error_of_the_system_names_its_file(capsys, monkeypatch, tmp_path):
    file = str(tmp_path / "kept.sgk")
    monkeypatch.setattr(sparsegen, "load", lambda path: Path(path, "within").read_bytes())
    err = refused(capsys, 1, "explain", file)
    assert file in err and "No such file or directory" in err and "Errno" not in err
