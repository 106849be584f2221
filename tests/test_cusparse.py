"""The calls that the cuSPARSE baseline makes, in a stand-in of its library that computes them with numpy.

It holds the order and meaning of the arguments as documented; only a GPU can tell whether cuSPARSE agrees.
"""

from __future__ import annotations

import gc
import importlib.util
import sys
from types import ModuleType, SimpleNamespace

import fake_gpu
import numpy as np
import pytest
import scipy.sparse as sp
from fake_gpu import on_device

from sparsegen import baselines, gallery
from sparsegen.baselines import cusparse
from sparsegen.errors import SparsegenError, SparsegenValueError
from sparsegen.problem import Pattern, Problem


@pytest.fixture
def library(monkeypatch):
    found = fake_gpu.CuSparse()
    fake_gpu.install(put=monkeypatch.setattr, cusparse=found)
    yield found
    gc.collect()
    monkeypatch.undo()
    fake_gpu.remove()


def problem(dtype=np.float64, op="spmv", k=1, layout="row", A=None):
    A = sp.random_array((41, 29), density=0.15, format="csr", dtype=dtype, rng=5) if A is None else A.astype(dtype)
    return A, Problem(op, Pattern.of(A), dtype=A.dtype, k=k, layout_b=layout, layout_c=layout, target="cuda")


PRODUCTS = [("spmv", 1, "row"), ("spmm", 3, "row"), ("spmm", 3, "column"), ("spmm", 1, "row")]


@pytest.mark.parametrize("op, k, layout", PRODUCTS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("refused", [(), (0, 3, 6)])
def test_calls(library, refused, dtype, op, k, layout):
    library.refused = refused
    A, p = problem(dtype, op, k, layout)
    assert cusparse.available(p) is None
    call = cusparse.prepare(A, p)
    for seed in (3, 4):
        x = np.random.default_rng(seed).standard_normal(29 if op == "spmv" else (29, k)).astype(dtype)
        x = np.asarray(x, order="C" if layout == "row" else "F")
        y = call(on_device(x))
        np.testing.assert_allclose(y.get(), A @ x, rtol=1e-5)
        out = on_device(np.asarray(np.zeros(y.shape, dtype), order="C" if layout == "row" else "F"))
        assert call(x=on_device(x), out=out) is out
        np.testing.assert_allclose(out.get(), A @ x, rtol=1e-5)
        host = call(x, np.empty(y.shape, dtype))  # host in, host out
        assert type(host) is np.ndarray
        np.testing.assert_allclose(host, A @ x, rtol=1e-5)
    for wrong in (x[:28], on_device(x[:28]), on_device(x.astype("f4" if dtype is np.float64 else "f8"))):
        with pytest.raises(SparsegenValueError, match="expected"):
            call(wrong)
    gc.collect()
    assert len(library.live) == 4  # handle, matrix, x, y of the algorithm that was kept
    assert call.chosen in {**cusparse.SPMV, **cusparse.SPMM}
    del call
    gc.collect()
    assert library.live == {}


@pytest.mark.parametrize("A, formats", [
    (gallery.block(12, 12, 2, 2, 3, seed=7013), {"Csr", "Coo", "SlicedEll", "Bsr"}),
    (gallery.stencil2d(13, 11), {"Csr", "Coo", "SlicedEll"}),
    (gallery.dense_row(201, 301, 2, 3), {"Csr", "Coo"}),
])  # fmt: skip
def test_every_algorithm_of_every_format_that_fits(library, A, formats):
    A, p = problem(np.float64, A=A)
    x = np.random.default_rng(20271).standard_normal(A.shape[1])
    for name, make in cusparse.arms(A, p).items():
        call = make()
        np.testing.assert_allclose(call(x), A @ x, rtol=1e-12, atol=1e-12, err_msg=name)
    assert {each for each in library.made if each in ("Csr", "Coo", "SlicedEll", "Bsr")} == formats
    assert {number for _, number in library.algorithms} == {cusparse.SPMV[name] for name in cusparse.arms(A, p)}


def test_no_algorithm_is_accepted(library):
    library.refused = tuple(cusparse.SPMV.values())
    with pytest.raises(SparsegenError, match="csr alg2: cuSPARSE answers 10"):
        cusparse.prepare(*problem())


def test_reasons(library, monkeypatch):
    _A, p = problem()
    assert cusparse.available(p) is None
    whole = Problem("spmv", p.pattern, dtype=np.dtype(np.int32), target="cuda")
    assert "int32" in cusparse.available(whole)
    assert "GPU" in cusparse.available(Problem("spmv", p.pattern))
    monkeypatch.setattr(cusparse, "library", lambda: "libcusparse is nowhere")
    assert "nowhere" in cusparse.available(p) and "pip install" in cusparse.available(p)


def test_reasons_of_cupy(monkeypatch):
    _A, p = problem()
    module, real = baselines.get("cupy"), importlib.util.find_spec
    with monkeypatch.context() as patch:
        patch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "cupy" else real(name, *rest))
        assert "pip install" in module.available(p)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: object())
    assert "import cupy" in module.available(p)
    cupy = ModuleType("cupy")
    cupy.cuda = SimpleNamespace(is_available=lambda: False)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    assert "GPU" in module.available(p)
    cupy.cuda.is_available = lambda: True
    assert module.available(p) is None


def test_torch_on_a_gpu(monkeypatch):
    torch = pytest.importorskip("torch")
    A, p = problem()
    module = baselines.get("torch")
    assert "CUDA build" in module.available(p) or torch.cuda.is_available()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert module.available(p) is None
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, where: tensor)  # there is no GPU to go to
    call = module.prepare(A, p)
    x = np.random.default_rng(20272).standard_normal(29)
    np.testing.assert_allclose(call(x), A @ x)
    np.testing.assert_allclose(call(torch.from_numpy(x)), A @ x)
