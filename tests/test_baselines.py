"""Every baseline that is available here gives the product, in every shape, dtype and layout it accepts."""

from __future__ import annotations

import gc
import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsegen import baselines
from sparsegen.errors import SparsegenValueError
from sparsegen.problem import Pattern, Problem

SHAPES = [(1, 1, 1.0), (1, 37, 0.5), (53, 1, 0.4), (61, 47, 0.0), (97, 61, 0.1), (301, 509, 0.02), (1031, 7, 0.05)]
PRODUCTS = [("spmv", 1, "row"), ("spmm", 1, "column"), ("spmm", 3, "row"), ("spmm", 33, "row"), ("spmm", 33, "column")]


@pytest.fixture(autouse=True, scope="module")
def torch_imported():
    pytest.importorskip("torch")  # its baseline is there only once the user has imported it


def problem(A, op="spmv", k=1, layout="row", threads=1, **options) -> Problem:
    return Problem(
        op, Pattern.of(A), dtype=A.dtype, k=k, layout_b=layout, layout_c=layout, threads=threads, **options
    )  # fmt: skip


def matrix(m, n, density, dtype, seed=20260) -> sp.csr_array:
    A = sp.random_array((m, n), density=density, format="csr", dtype=dtype, rng=seed)
    if m > 50:
        keep = np.repeat(np.arange(m) % 11 != 3, np.diff(A.indptr))  # some empty rows
        A = sp.csr_array((A.data * keep, A.indices, A.indptr), A.shape)
        A.eliminate_zeros()
    A.data -= A.dtype.type(0.3)
    return A


def operand(A, p: Problem, seed=611) -> np.ndarray:
    shape = A.shape[1] if p.op == "spmv" else (A.shape[1], p.k)
    x = np.random.default_rng(seed).standard_normal(shape).astype(A.dtype)
    return np.asarray(x, order="C" if p.layout_b == "row" else "F")


def check(y, A, x) -> None:
    """y = A @ x within the bound of any summation order."""
    assert isinstance(y, np.ndarray) and y.dtype == A.dtype
    wide, x = sp.csr_array(A, dtype=np.float64), x.astype(np.float64)
    exact = wide @ x
    assert y.shape == exact.shape
    terms = np.diff(A.indptr).max(initial=0) + 2
    assert (np.abs(y - exact) <= terms * np.finfo(A.dtype).eps * (abs(wide) @ np.abs(x))).all()


def usable(name: str, p: Problem):
    baseline = baselines.get(name)
    reason = baseline.available(p)
    if reason is not None:
        pytest.skip(reason)
    return baseline


def test_names_and_contract():
    assert {"scipy", "mkl", "mkl_noopt", "torch", "numba", "cupy"} <= set(baselines.names())
    with pytest.raises(SparsegenValueError, match=r"'eigen'.*scipy"):
        baselines.get("eigen")
    A = matrix(53, 31, 0.1, np.float64)
    for name in baselines.names():
        baseline = baselines.get(name)
        assert "\n" not in baseline.ABOUT and len(baseline.ABOUT) > 10
        reason = baseline.available(problem(A))
        assert reason is None or (len(reason) > 10 and "\n" not in reason)
    assert baselines.get("scipy").available(problem(A)) is None


def test_listing_imports_no_library():
    code = """
import sys
from sparsegen import baselines
for name in baselines.names():
    baselines.get(name)
assert not {"torch", "numba", "cupy", "nvmath", "mkl"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("op, k, layout", PRODUCTS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", baselines.names())
def test_product(name, dtype, op, k, layout):
    for m, n, density in SHAPES:
        for threads in (1, 2):
            A = matrix(m, n, density, dtype)
            p = problem(A, op, k, layout, threads)
            call = usable(name, p).prepare(A, p)
            x = operand(A, p)
            before = x.copy()
            out = np.full((m,) if op == "spmv" else (m, k), np.nan, dtype, order="C" if layout == "row" else "F")
            check(call(x), A, x)
            check(call(x, out), A, x)
            x.flags.writeable = False
            check(call(x, out), A, x)
            assert (x == before).all()


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 70), st.integers(1, 70), st.floats(0, 0.4), st.sampled_from(PRODUCTS), st.integers(2, 9999))
def test_any_small_matrix(m, n, density, product, seed):
    A = matrix(m, n, density, np.float64, seed)
    p = problem(A, *product)
    x = operand(A, p, seed)
    for name in baselines.names():
        baseline = baselines.get(name)
        if baseline.available(p) is None:
            check(baseline.prepare(A, p)(x), A, x)


@pytest.mark.parametrize("name", baselines.names())
@pytest.mark.parametrize("shape", [(0, 17), (17, 0), (0, 0)])
def test_nothing_to_multiply(name, shape):
    A = sp.csr_array(shape, dtype=np.float64)
    for op, k, layout in PRODUCTS:
        p = problem(A, op, k, layout)
        x = operand(A, p)
        check(usable(name, p).prepare(A, p)(x), A, x)


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.uint16, bool, np.complex64, np.complex128, np.longdouble])
def test_other_dtypes_are_right_or_refused(dtype):
    rng = np.random.default_rng(77)
    dense = (rng.integers(0, 4, (23, 31)) * (rng.random((23, 31)) < 0.3)).astype(dtype)
    A, x = sp.csr_array(dense), rng.integers(0, 4, 31).astype(dtype)
    for name in baselines.names():
        if baselines.get(name).available(problem(A)) is None:
            np.testing.assert_array_equal(baselines.get(name).prepare(A, problem(A))(x), dense @ x)
        else:
            assert name != "scipy"


@pytest.mark.parametrize("name", baselines.names())
def test_int64_indices(name):
    A = matrix(97, 61, 0.1, np.float64)
    A = sp.csr_array((A.data, A.indices.astype(np.int64), A.indptr.astype(np.int64)), A.shape)
    x = operand(A, problem(A))
    check(usable(name, problem(A)).prepare(A, problem(A))(x), A, x)


@pytest.mark.parametrize("name", baselines.names())
def test_awkward_operands(name):
    """Strided or wider operands than agreed: still the product."""
    A = matrix(97, 61, 0.1, np.float32)
    p = problem(A, "spmm", 3)
    call, x = usable(name, p).prepare(A, p), operand(A, p)
    check(call(np.asfortranarray(x)), A, x)
    check(call(np.repeat(x, 2, axis=0)[::2]), A, x)
    out = np.full((97, 3), np.nan, np.float32, order="F")
    check(call(x, out), A, x)


@pytest.mark.parametrize("name", ["mkl", "mkl_noopt"])
def test_mkl_refuses_what_32_bits_cannot_hold(name):
    A = sp.csr_array((1, 2**31), dtype=np.float64)
    assert "32-bit" in baselines.get(name).available(problem(A))
    A = sp.csr_array((1, 2**20), dtype=np.float64)
    assert "32-bit" in baselines.get(name).available(problem(A, "spmm", 2**11))


@pytest.mark.parametrize("name", ["mkl", "mkl_noopt"])
def test_mkl_rejects_a_wrong_length(name):
    A = matrix(97, 61, 0.1, np.float64)
    call = usable(name, problem(A)).prepare(A, problem(A))
    with pytest.raises(SparsegenValueError, match="60"):
        call(np.ones(60))
    with pytest.raises(SparsegenValueError, match="out has shape"):
        call(np.ones(61), np.ones((2, 97)))


@pytest.mark.parametrize("name", ["mkl", "mkl_noopt"])
def test_mkl_frees_its_handle(name, monkeypatch):
    from sparsegen import mkl_library

    A = matrix(97, 61, 0.1, np.float64)
    baseline = usable(name, problem(A))
    freed = []
    monkeypatch.setattr(mkl_library, "_destroy", lambda library, handle, arrays: freed.append(handle.value))
    call = baseline.prepare(A, problem(A))
    assert not freed
    del call
    gc.collect()
    assert len(freed) == 1 and freed[0]


# Which OpenMP runtime MKL finds depends on what was loaded before it; a wrong mix leaves rows unwritten, silently.
THREADS_AND_FORK = """
import os, sys
import numpy as np, scipy.sparse as sp
from sparsegen import baselines
from sparsegen.problem import Pattern, Problem

def run(name):
    if name == "import torch":
        import torch
        torch.set_num_threads(2)
        a = torch.arange(1.0, 640_001.0).reshape(800, 800)
        assert torch.equal(a.sum(0) + a.relu().sum(1) * 0, a.sum(0)) and float((a > 0).sum()) == 640_000
        return
    baseline = baselines.get(name)
    for m, n in ((3, 2), (5003, 4001)):
        A = sp.random_array((m, n), density=min(1, 40 / m), format="csr", rng=9)
        x = np.random.default_rng(8).standard_normal(n)
        for threads in (2, 1):
            p = Problem("spmv", Pattern.of(A), threads=threads)
            if (reason := baseline.available(p)) is not None:
                print(reason)
                sys.exit(77)
            call = baseline.prepare(A, p)
            for _ in range(5):
                assert np.allclose(call(x, np.full(m, np.nan)), A @ x, rtol=1e-10, atol=1e-10), (name, m, threads)

for name in sys.argv[1:]:
    run(name)
child = os.fork()
if not child:
    try:
        [run(name) for name in sys.argv[1:] if "torch" not in name]
    except BaseException:
        os._exit(1)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


ORDERS = ["{}", "import torch,{}", "{},import torch,{}", "numba,{}", "{},numba", "numba,mkl,{}"]


@pytest.mark.skipif(sys.platform != "linux", reason="fork")
@pytest.mark.parametrize("name", ["mkl", "mkl_noopt", "numba"])
@pytest.mark.parametrize("order", ORDERS)
def test_two_threads_beside_others_then_fork(order, name):
    steps = order.replace("{}", name).split(",")
    done = subprocess.run(
        [sys.executable, "-c", THREADS_AND_FORK, *steps], capture_output=True, text=True, timeout=120
    )  # fmt: skip
    if done.returncode == 77:
        pytest.skip(done.stdout)
    assert done.returncode == 0, done.stderr


FORKED = """
import os, signal, sys
{first}
import numpy as np
from sparsegen import baselines, engine, gallery
A = gallery.uniform(3001, 2999, 40009)
problem = engine.problem_of(A, threads=2, facts=None)
calls = [baselines.get(name).prepare(A, problem) for name in ("mkl", "mkl_noopt")]
x = np.random.default_rng(7013).standard_normal(2999)
wanted = [call(x).copy() for call in calls]
child = os.fork()
if child == 0:
    signal.alarm(60)
    same = all(np.allclose(call(x), y) for call, y in zip(calls * 2, wanted * 2))
    os._exit(0 if same else 1)
ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
sys.exit(ended if all(np.allclose(call(x), y) for call, y in zip(calls, wanted)) else 2)
"""


@pytest.mark.parametrize("first", ["", "import torch"])
def test_mkl_answers_in_a_forked_child_whichever_openmp_runtime_it_shares(first):
    if baselines.get("mkl").available(problem(matrix(13, 11, 0.3, np.float64), threads=2)) is not None:
        pytest.skip("no MKL here")
    ran = subprocess.run([sys.executable, "-c", FORKED.format(first=first)], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
