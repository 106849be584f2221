"""compile: its options, what it remembers, what it does without a compiler, a GPU, or time."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from support import BUDGET, checksum, kernel_of, right, template, together

import sparsegen
from sparsegen import engine, gallery, paths
from sparsegen.errors import SparsegenError, SparsegenTypeError, SparsegenValueError
from sparsegen.problem import Facts
from sparsegen.targets import cpu

ROOT = Path(sparsegen.__file__).resolve().parent.parent
SMALL = gallery.small()
A = SMALL["stencil2d"]
X = np.random.default_rng(20284).standard_normal(A.shape[1])


@pytest.fixture
def own_cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("SPARSEGEN_CACHE_DIR", str(tmp_path / "cache"))
    sparsegen.bandwidth.levels(1)
    return tmp_path / "cache"


@pytest.fixture
def searches(monkeypatch) -> list:
    """The problems searched for."""
    asked = []

    def counted(problem, *args, **kwargs):
        asked.append(problem)
        return search(problem, *args, **kwargs)

    search = engine.search
    monkeypatch.setattr(engine, "search", counted)
    return asked


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"op": "spmmv"}, SparsegenValueError, "spmv"),
        ({"op": None}, SparsegenValueError, "spmv"),
        ({"op": "spmm"}, SparsegenValueError, "k"),
        ({"op": "spmm", "k": 0}, SparsegenValueError, "at least 1"),
        ({"op": "spmm", "k": 2.0}, SparsegenTypeError, "integer"),
        ({"k": 3}, SparsegenValueError, "spmm"),
        ({"target": "gpu"}, SparsegenValueError, "auto, cpu, cuda or emulator"),
        ({"budget": -1}, SparsegenValueError, "at least 0"),
        ({"budget": float("nan")}, SparsegenValueError, "at least 0"),
        ({"budget": None}, SparsegenTypeError, "seconds"),
        ({"budget": "2"}, SparsegenTypeError, "a number"),
        ({"budget": True}, SparsegenTypeError, "a number"),
        ({"expected_calls": -1}, SparsegenValueError, "at least 0"),
        ({"max_candidates": 1.5}, SparsegenTypeError, "integer"),
        ({"max_candidates": -1}, SparsegenValueError, "at least 0"),
        ({"threads": 0}, SparsegenValueError, "at least 1"),
        ({"threads": 257}, SparsegenValueError, "at most 256"),
        ({"model": 3}, SparsegenTypeError, "folder of a checkpoint"),
        ({"model": True}, SparsegenTypeError, "folder of a checkpoint"),
        ({"model": "automatic"}, SparsegenValueError, "no folder"),
        ({"model": Path(__file__).parent}, SparsegenError, "no checkpoint"),
        ({"seed": -1}, SparsegenValueError, "at least 0"),
        ({"seed": "x"}, SparsegenTypeError, "integer"),
        ({"facts": "constant"}, SparsegenTypeError, "detect"),
        ({"facts": True}, SparsegenTypeError, "detect"),
        ({"facts": Facts(constant=True)}, SparsegenValueError, "constant"),
        ({"dtype": "float13"}, SparsegenTypeError, "numpy dtype"),
        ({"dtype": object}, SparsegenTypeError, "real or complex"),
        ({"dtype": np.longdouble}, SparsegenTypeError, "double precision"),
        ({"dtype": np.int32}, SparsegenTypeError, "holds its values"),
        ({"arch": "sm_90", "target": "cpu"}, SparsegenValueError, "cuda"),
        ({"arch": "sm_1"}, SparsegenValueError, "sm_1"),
    ],
)  # fmt: skip
def test_options_that_make_no_sense(options, error, words):
    with pytest.raises(error, match=words) as raised:
        sparsegen.compile(A, **options)
    assert isinstance(raised.value, SparsegenError)
    with pytest.raises(TypeError, match="unknown"):
        sparsegen.compile(A, unknown=1)


def test_a_complex_matrix_is_not_made_real():
    with pytest.raises(SparsegenTypeError, match="complex128"):
        sparsegen.compile(A * 1j, dtype=np.float64)


@pytest.mark.parametrize("dtype", ["float32", np.float64, np.dtype("complex64"), "float16"])
def test_dtype(dtype):
    kernel = sparsegen.compile(A, dtype=dtype, budget=BUDGET)
    assert kernel.dtype == np.dtype(dtype)
    narrow = sp.csr_array((A.data.astype(dtype), A.indices, A.indptr), shape=A.shape)
    x = X.astype(dtype)
    right(kernel @ x, narrow, x)


@pytest.mark.skipif(sparsegen.targets.get("cuda").available() is None, reason="there is a GPU")
def test_cuda_without_a_gpu():
    with pytest.raises(SparsegenValueError, match=r"cuda.*sm_90"):
        sparsegen.compile(A, target="cuda")
    assert sparsegen.compile(A, target="auto", budget=0.0).problem.target == "cpu"
    made = sparsegen.compile(A, target="cuda", arch="sm_90")
    assert isinstance(made, sparsegen.Artifact)
    assert made.level == sparsegen.verdict.Level.CORRECT and "without a GPU" in made.verified
    with pytest.raises(SparsegenError, match="with that GPU"):
        made @ X
    with pytest.raises(SparsegenValueError, match="arch"):
        sparsegen.matmul(A, X, target="cuda", arch="sm_90")
    with pytest.raises(SparsegenValueError, match="float32 and float64"):
        sparsegen.compile(A.astype(np.complex64), arch="sm_90")


# ---- time


def test_no_time_is_the_baseline(searches):
    for options in ({"budget": 0}, {"budget": 0.0001}, {"expected_calls": 1}, {"expected_calls": 0}):
        kernel = sparsegen.compile(A, cache=False, **options)
        assert kernel.candidate is None
        assert kernel.baseline == "scipy"
        right(kernel @ X, A, X)
        notes = " ".join(kernel.report()["notes"])
        assert "too short" in notes or "win back" in notes
    assert searches == []


def test_expected_calls_bound_the_budget(monkeypatch):
    budgets = []
    search = engine.search

    def noted(problem, own, candidates, seconds, *rest):
        budgets.append(seconds)
        return search(problem, own, candidates, 0.1, *rest)

    monkeypatch.setattr(engine, "search", noted)
    sparsegen.compile(A, cache=False, budget=100.0, expected_calls=100_000)
    sparsegen.compile(A, cache=False, budget=100.0, expected_calls=1e12)
    sparsegen.compile(A, cache=False, budget=0.2, expected_calls=float("inf"))
    assert 0.05 <= budgets[0] < 5
    assert budgets[1] > 90
    assert budgets[2] <= 0.2


def test_the_matrix_is_whatever_is_one(tmp_path):
    dense = A.toarray()
    import scipy.io

    scipy.io.mmwrite(tmp_path / "a.mtx", sp.coo_matrix(A))
    for given in (A, sp.csr_matrix(A), A.tocsc(), A.tocoo(), A.tobsr((1, 1)), A.todia(), A.tolil(), A.todok(), dense,
                  tmp_path / "a.mtx", str(tmp_path / "a.mtx")):  # fmt: skip
        kernel = sparsegen.compile(given, budget=0.0)
        right(kernel @ X, A, X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        right(sparsegen.compile(dense.tolist(), budget=0.0) @ X, A, X)
    for bad in ("nowhere.mtx", 3, None, object(), {}, np.array(["a"])):
        with pytest.raises(SparsegenError):
            sparsegen.compile(bad)
    with pytest.warns(UserWarning, match="dense"):
        sparsegen.compile(np.ones((5, 3)), budget=0.0)


# ---- what is remembered


def test_a_known_pattern_is_not_searched_again(own_cache, searches):
    first = sparsegen.compile(A, budget=1.0, threads=1)
    assert len(searches) == 1
    again = sparsegen.compile(A, budget=1.0, threads=1)
    assert len(searches) == 1
    assert again.report()["cached"] is True
    assert first.report()["cached"] is False
    assert again.source == first.source
    assert again.report()["search_ms"] == 0
    right(again @ X, A, X)
    other = A.copy()
    other.data = 2.0 * other.data
    right(sparsegen.compile(other, budget=1.0, threads=1) @ X, other, X)
    assert len(searches) == 1  # the same facts
    changed = A.copy()
    changed.data = changed.data / 3
    right(sparsegen.compile(changed, budget=BUDGET, threads=1) @ X, changed, X)
    assert len(searches) == 2  # other facts
    wide = sp.csr_array((A.data, A.indices.astype(np.int64), A.indptr.astype(np.int64)), shape=A.shape)
    assert sparsegen.compile(wide, budget=BUDGET, threads=1).report()["cached"] is True
    assert sparsegen.compile(A, budget=BUDGET, threads=1, facts=None).report()["cached"] is True  # as opaque as those
    for options in ({"dtype": np.float32}, {"threads": 2}, {"deterministic": True}, {"op": "spmm", "k": 3}):
        assert sparsegen.compile(A, **{"budget": BUDGET, "threads": 1, **options}).report()["cached"] is False


def test_options_about_the_cache(own_cache, searches):
    sparsegen.compile(A, budget=BUDGET, threads=1, cache=False)
    sparsegen.compile(A, budget=BUDGET, threads=1, cache=False)
    assert len(searches) == 2
    sparsegen.compile(A, budget=BUDGET, threads=1)
    sparsegen.compile(A, budget=BUDGET, threads=1)
    assert len(searches) == 3
    assert sparsegen.compile(A, budget=BUDGET, threads=1, retune=True).report()["cached"] is False
    assert len(searches) == 4
    sparsegen.cache.clear()
    sparsegen.compile(A, budget=BUDGET, threads=1)
    assert len(searches) == 5


@pytest.mark.parametrize("damage", ["truncate", "flip", "other json", "other kernel", "not json"])
def test_a_damaged_choice_is_searched_again(own_cache, searches, monkeypatch, damage):
    first = sparsegen.compile(A, budget=BUDGET, threads=1)
    if damage in ("truncate", "flip"):
        for path in (own_cache / "choices").iterdir():
            blob = path.read_bytes()
            path.write_bytes(blob[:-7] if damage == "truncate" else blob[:50] + bytes([blob[50] ^ 1]) + blob[51:])
    else:
        import json

        get = engine.cache.get

        def altered(kind, key):
            stored = get(kind, key)
            if kind != "choices" or stored is None or b'"kernel"' not in stored:
                return stored
            if damage == "not json":
                return stored[:-3]
            if damage == "other json":
                return b'{"kernel": 3}'
            choice = json.loads(stored)
            lazy = template("csr_scalar").source.replace("p < indptr[row + 1]", "p < indptr[row + 1] - (row == 5)")
            from dataclasses import replace

            from sparsegen import candidate

            choice["kernel"] = candidate.text(replace(template("csr_scalar", values="full"), source=lazy))
            return json.dumps(choice).encode()

        monkeypatch.setattr(engine.cache, "get", altered)
    again = sparsegen.compile(A, budget=BUDGET, threads=1)
    assert len(searches) == 2
    assert again.report()["cached"] is False
    right(again @ X, A, X)
    right(first @ X, A, X)


def test_values_that_the_choice_does_not_suit(own_cache, searches):
    """The same pattern with NaN: opaque facts, another problem; and a padded kernel is not believed."""
    plain = A / 3
    sparsegen.compile(plain, budget=BUDGET, threads=1)
    bad = plain.copy()
    bad.data[11] = np.nan
    kernel = sparsegen.compile(bad, budget=BUDGET, threads=1)
    right(kernel @ X, bad, X)


# ---- no compiler


def test_without_a_compiler(monkeypatch):
    monkeypatch.setattr(cpu, "compiler", lambda: None)
    kernel = sparsegen.compile(A, budget=BUDGET)
    assert kernel.candidate is None
    right(kernel @ X, A, X)
    note = " ".join(kernel.report()["notes"])
    assert "install" in note
    assert "g++" in note
    assert "CXX" in note
    right(kernel.T @ X, A.T.tocsr(), X)


def test_a_compiler_that_always_fails(tmp_path):
    script = (
        "import numpy as np, sparsegen\n"
        "from sparsegen import gallery\n"
        "A = gallery.stencil2d(23, 19)\n"
        "kernel = sparsegen.compile(A, budget=0.3)\n"
        "assert np.allclose(kernel @ np.ones(437), A @ np.ones(437))\n"
        "print(kernel.report()['kernel'], '|', ' '.join(kernel.report()['notes']))\n"
    )
    broken = tmp_path / "c++"  # answers --version and compiles nothing
    broken.write_text("#!/bin/sh\ncase $1 in --version) echo broken 1.0;; *) exit 1;; esac\n")
    broken.chmod(0o755)
    for compiler, path in (("false", ""), (str(broken), os.environ["PATH"]), ("", str(tmp_path / "none"))):
        environment = {
            **os.environ, "CXX": compiler, "CC": compiler, "PATH": path or str(tmp_path / "none"),
            "SPARSEGEN_CACHE_DIR": str(tmp_path / f"cache {len(compiler)}"), "PYTHONPATH": str(ROOT),
        }  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", script], env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        kernel, _, notes = done.stdout.partition("|")
        if compiler == str(broken) or importlib.util.find_spec("ziglang") is None:
            assert kernel.startswith("baseline")
            assert "answers but does not compile" in notes or "install g++" in notes


# ---- convenience


def test_compile_many():
    kernels = sparsegen.compile_many([A, SMALL["uniform"], SMALL["uniform"].T], budget=0.0)
    assert [kernel.shape for kernel in kernels] == [A.shape, SMALL["uniform"].shape, SMALL["uniform"].shape[::-1]]
    assert sparsegen.compile_many([]) == []
    assert all(kernel.problem.op == "spmm" for kernel in sparsegen.compile_many(iter([A]), "spmm", k=3, budget=0.0))


def test_matmul_notices_every_change(monkeypatch):
    engine._kernels.clear()
    made = []
    compile = engine.compile
    monkeypatch.setattr(engine, "compile", lambda *args, **options: made.append(1) or compile(*args, **options))
    B = A.copy()
    before = checksum(B)
    right(sparsegen.matmul(B, X, budget=0.0), B, X)
    right(sparsegen.matmul(B, X, budget=0.0), B, X)
    right(sparsegen.matmul(B.tocoo(), X, budget=0.0), B, X)
    assert len(made) == 1
    assert checksum(B) == before
    B.data *= 3
    right(sparsegen.matmul(B, X, budget=0.0), B, X)
    B.data[17] = np.nan
    right(sparsegen.matmul(B, X, budget=0.0), B, X)
    B.data[17] = -0.0
    right(sparsegen.matmul(B, X, budget=0.0), B, X)
    B.indices[:2] = B.indices[:2][::-1].copy()  # unsorted: the same entries elsewhere
    B.has_sorted_indices = B.has_canonical_format = False
    right(sparsegen.matmul(B, X, budget=0.0), B, X)
    wide = np.stack([X, 2 * X], 1)
    right(sparsegen.matmul(B, wide, budget=0.0), B, wide)
    right(sparsegen.matmul(B, X[:, None], budget=0.0), B, X[:, None])
    half = sp.csr_array((A.data.astype(np.float16), A.indices, A.indptr), shape=A.shape)
    assert sparsegen.matmul(half, X.astype(np.float16), budget=0.0).dtype == np.float16
    for n in range(20):
        C = gallery.uniform(11 + n, 7, 13)
        right(sparsegen.matmul(C, np.ones(7), budget=0.0), C, np.ones(7))
    assert len(engine._kernels) == engine.MATMUL_KERNELS
    for bad in (np.ones(3), "x", None, sp.eye_array(A.shape[1])):
        with pytest.raises(SparsegenError):
            sparsegen.matmul(A, bad, budget=0.0)


def test_matmul_from_threads():
    def run(number: int) -> None:
        for _ in range(5):
            C = (1 + number % 3) * A
            right(sparsegen.matmul(C, X, budget=0.0), C, X)

    together(16, run)


def test_deterministic():
    kernel = sparsegen.compile(SMALL["powerlaw"], deterministic=True, budget=BUDGET, threads=2)
    x = np.random.default_rng(20285).standard_normal(kernel.shape[1])
    first = kernel @ x
    for _ in range(100):
        np.testing.assert_array_equal(kernel @ x, first)
    problem = engine.problem_of(SMALL["powerlaw"])
    assert problem.deterministic is False
    assert kernel.problem.deterministic is True


def test_threads_are_bounded_by_the_caller_and_the_environment(monkeypatch):
    assert sparsegen.compile(A, budget=0.0, threads=1).problem.threads == 1
    cores = engine.allowed_threads()
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert engine.allowed_threads() == 1
    for odd in ("0", "many", "", "-3"):
        monkeypatch.setenv("OMP_NUM_THREADS", odd)
        assert 1 <= engine.allowed_threads() <= (os.cpu_count() or 1)
    monkeypatch.setenv("OMP_NUM_THREADS", "9999,4")
    assert engine.allowed_threads() <= max(cores, len(os.sched_getaffinity(0)))


def test_compiling_from_threads_at_once():
    names = ["uniform", "powerlaw", "stencil3d", "banded_gaps"]

    def run(number: int) -> None:
        B = SMALL[names[number]]
        x = np.ones(B.shape[1])
        right(sparsegen.compile(B, budget=BUDGET, threads=1, cache=False) @ x, B, x)

    together(4, run)


def test_a_kernel_after_fork():
    """In a child: calls with two threads, a compile of its own, the transposed, new values."""
    B = gallery.uniform(3001, 2999, 40009)
    kernels = [kernel_of(B, template("sell_slice"), threads=2), sparsegen.compile(B, budget=0.0)]
    kernels += [kernel_of(B, None, threads=2, baseline=name) for name in ("mkl", "mkl_noopt", "numba")
                if sparsegen.baselines.get(name).available(kernels[0].problem) is None]  # fmt: skip
    x = np.random.default_rng(20286).standard_normal(B.shape[1])
    wanted = [kernel @ x for kernel in kernels]
    for kernel in kernels:
        kernel @ x
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            for kernel, y in zip(kernels, wanted, strict=True):
                np.testing.assert_allclose(kernel @ x, y, rtol=1e-10, atol=1e-12)
                kernel.update_values(2 * B.data)
                np.testing.assert_allclose(kernel @ x, 2 * y, rtol=1e-10, atol=1e-12)
            own = sparsegen.compile(SMALL["row_lengths"], budget=BUDGET, cache=False)
            z = np.ones(own.shape[1])
            right(own @ z, SMALL["row_lengths"], z)
            right(own.T @ np.ones(own.shape[0]), SMALL["row_lengths"].T.tocsr(), np.ones(own.shape[0]))
            sparsegen.fence._template.stop()
            status = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    for kernel, y in zip(kernels, wanted, strict=True):
        np.testing.assert_allclose(kernel @ x, y, rtol=1e-10, atol=1e-12)


def test_importing_loads_nothing_heavy():
    script = (
        "import sys, sparsegen\n"
        "heavy = ('torch', 'cupy', 'numba', 'mkl', 'h5py', 'transformers', 'cuda')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=60,
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_the_cache_folder_is_the_tests_own(cache_folder):
    assert paths.cache() == cache_folder
