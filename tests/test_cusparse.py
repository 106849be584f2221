"""The calls that the cuSPARSE baseline makes, in a stand-in of nvmath and CuPy that computes them with numpy.

It holds the order and meaning of the arguments as documented; only a GPU can tell whether cuSPARSE agrees.
"""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import itertools
import sys
from enum import IntEnum
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp

from sparsegen import baselines
from sparsegen.errors import SparsegenError, SparsegenValueError
from sparsegen.problem import Pattern, Problem

REAL = {0: np.float32, 1: np.float64}


class Array(np.ndarray):
    @property
    def data(self):
        return SimpleNamespace(ptr=self.ctypes.data)

    def get(self) -> np.ndarray:
        return np.array(self)


def at(pointer: int, size: int, dtype) -> np.ndarray:
    dtype = np.dtype(dtype)
    return (
        np.frombuffer((ctypes.c_char * (size * dtype.itemsize)).from_address(pointer), dtype) if size else np.empty(0)
    )


def stand_in(refused: tuple[str, ...] = ()) -> tuple[ModuleType, ModuleType, dict]:
    """cupy, nvmath.bindings.cusparse, and the live handles and descriptors."""
    cupy, cusparse, live = ModuleType("cupy"), ModuleType("nvmath.bindings.cusparse"), {}
    numbers = itertools.count(1000)
    event = SimpleNamespace(record=lambda: None, synchronize=lambda: None)
    cupy.__dict__.update(
        asarray=lambda a, dtype=None, order=None: np.asarray(a, dtype, order=order).view(Array),
        zeros=lambda shape, dtype, order="C": np.zeros(shape, dtype, order).view(Array),
        empty=lambda shape, dtype, order="C": np.empty(shape, dtype, order).view(Array),
        cuda=SimpleNamespace(
            is_available=lambda: True,
            get_current_stream=lambda: SimpleNamespace(ptr=77),
            Event=lambda: event,
            get_elapsed_time=lambda start, stop: 1.0,
        ),
    )

    def create(*described) -> int:
        number = next(numbers)
        live[number] = list(described)
        return number

    def set_values(descriptor, pointer):
        live[descriptor][-1] = pointer

    class Error(Exception):
        pass

    def check(handle, algorithm, stored):
        assert live[handle] == ["handle"]
        if algorithm.name in refused:
            raise Error(f"{algorithm.name} is not supported")
        m, n, nnz, indptr, indices, data, offsets, columns, base, real = stored
        index = {2: np.int32, 3: np.int64}
        assert base == 0
        arrays = at(data, nnz, REAL[real]), at(indices, nnz, index[columns]), at(indptr, m + 1, index[offsets])
        return sp.csr_array(arrays, (m, n)), REAL[real]

    def sp_mv(handle, op_a, alpha, mat_a, vec_x, beta, vec_y, compute_type, alg, external_buffer):
        A, dtype = check(handle, alg, live[mat_a])
        (length_x, _, x), (length_y, _, y) = live[vec_x], live[vec_y]
        assert (op_a, at(alpha, 1, dtype)[0], at(beta, 1, dtype)[0], compute_type) == (0, 1, 0, live[mat_a][-1])
        assert external_buffer and at(external_buffer, 12, np.uint8).sum() == 12 * 9  # preprocessed
        at(y, length_y, dtype)[:] = A @ at(x, length_x, dtype)

    def sp_mm(handle, op_a, op_b, alpha, mat_a, mat_b, beta, mat_c, compute_type, alg, external_buffer):
        A, dtype = check(handle, alg, live[mat_a])
        assert (op_a, op_b, at(alpha, 1, dtype)[0], at(beta, 1, dtype)[0]) == (0, 0, 1, 0)
        assert at(external_buffer, 12, np.uint8).sum() == 12 * 9
        views = []
        for rows, columns, leading, _, layout, pointer in (live[mat_b], live[mat_c]):
            assert leading == (columns if layout == 2 else rows)
            shape, order = (rows, columns), "C" if layout == 2 else "F"
            views.append(at(pointer, rows * columns, dtype).reshape(shape, order=order))
        views[1][:] = A @ views[0]

    def preprocess(*arguments):
        at(arguments[-1], 12, np.uint8)[:] = 9

    def measure(*arguments):
        matrix = next(live[a] for a in arguments[1:] if a in live and len(live[a]) == 10)
        check(arguments[0], arguments[-1], matrix)
        return 12

    kinds = {"DEFAULT": 0, "CSR_ALG1": 4, "CSR_ALG2": 6, "CSR_ALG3": 12}
    cusparse.__dict__.update(
        SpMVAlg=IntEnum("SpMVAlg", {"DEFAULT": 0, "CSR_ALG1": 2, "CSR_ALG2": 3}),
        SpMMAlg=IntEnum("SpMMAlg", kinds),
        IndexType=IntEnum("IndexType", {"INDEX_32I": 2, "INDEX_64I": 3}),
        Operation=IntEnum("Operation", {"NON_TRANSPOSE": 0}),
        IndexBase=IntEnum("IndexBase", {"ZERO": 0}),
        Order=IntEnum("Order", {"COL": 1, "ROW": 2}),
        cuSPARSEError=Error,
        create=lambda: create("handle"),
        create_csr=create,
        create_dn_vec=lambda size, values, value_type: create(size, value_type, values),
        create_dn_mat=lambda rows, cols, ld, values, value_type, order: create(
            rows, cols, ld, value_type, order, values
        ),
        dn_vec_set_values=set_values,
        dn_mat_set_values=set_values,
        set_stream=lambda handle, stream: None,
        sp_mv=sp_mv,
        sp_mm=sp_mm,
        sp_mv_buffer_size=measure,
        sp_mm_buffer_size=measure,
        sp_mv_preprocess=preprocess,
        sp_mm_preprocess=preprocess,
    )
    for name in ("destroy", "destroy_sp_mat", "destroy_dn_vec", "destroy_dn_mat"):
        setattr(cusparse, name, live.pop)
    return cupy, cusparse, live


def install(monkeypatch, cupy, cusparse):
    bindings = ModuleType("nvmath.bindings")
    bindings.cusparse = cusparse
    for name, module in (("cupy", cupy), ("nvmath", ModuleType("nvmath")), ("nvmath.bindings", bindings)):
        monkeypatch.setitem(sys.modules, name, module)
    installed(monkeypatch, True)


def installed(monkeypatch, there: bool):
    real = importlib.util.find_spec

    def find_spec(name, *rest):
        if name in ("cupy", "nvmath"):
            return object() if there else None
        return real(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)


def problem(dtype=np.float64, op="spmv", k=1, layout="row"):
    A = sp.random_array((41, 29), density=0.15, format="csr", dtype=dtype, rng=5)
    return A, Problem(op, Pattern.of(A), dtype=A.dtype, k=k, layout_b=layout, layout_c=layout, target="cuda")


PRODUCTS = [("spmv", 1, "row"), ("spmm", 3, "row"), ("spmm", 3, "column"), ("spmm", 1, "row")]


@pytest.mark.parametrize("op, k, layout", PRODUCTS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("refused", [(), ("DEFAULT", "CSR_ALG2")])
def test_calls(refused, dtype, op, k, layout, monkeypatch):
    cupy, cusparse, live = stand_in(refused)
    install(monkeypatch, cupy, cusparse)
    A, p = problem(dtype, op, k, layout)
    baseline = baselines.get("cusparse")
    assert baseline.available(p) is None
    call = baseline.prepare(A, p)
    for seed in (3, 4):
        x = np.random.default_rng(seed).standard_normal(29 if op == "spmv" else (29, k)).astype(dtype)
        x = np.asarray(x, order="C" if layout == "row" else "F")
        y = call(cupy.asarray(x))
        np.testing.assert_allclose(y, A @ x, rtol=1e-5)
        out = cupy.empty(y.shape, dtype, "C" if layout == "row" else "F")
        assert call(x, out) is out
        np.testing.assert_allclose(out, A @ x, rtol=1e-5)
        host = call(x, np.empty(y.shape, dtype))  # host in, host out
        assert type(host) is np.ndarray
        np.testing.assert_allclose(host, A @ x, rtol=1e-5)
    with pytest.raises(SparsegenValueError, match="28"):
        call(x[:28])
    gc.collect()
    assert len(live) == 4  # handle, matrix, x, y of the algorithm that was kept
    del call
    gc.collect()
    assert live == {}


def test_no_algorithm_is_accepted(monkeypatch):
    cupy, cusparse, _live = stand_in(("DEFAULT", "CSR_ALG1", "CSR_ALG2"))
    install(monkeypatch, cupy, cusparse)
    A, p = problem()
    with pytest.raises(SparsegenError, match="CSR_ALG2 is not supported"):
        baselines.get("cusparse").prepare(A, p)


@pytest.mark.parametrize("name", ["cupy", "cusparse"])
def test_reasons(name, monkeypatch):
    _A, p = problem()
    with monkeypatch.context() as patch:
        installed(patch, False)
        assert "pip install" in baselines.get(name).available(p)
    cupy, cusparse, _ = stand_in()
    install(monkeypatch, cupy, cusparse)
    assert baselines.get(name).available(p) is None
    cupy.cuda.is_available = lambda: False
    assert "GPU" in baselines.get(name).available(p)
    whole = Problem("spmv", p.pattern, dtype=np.dtype(np.int32), target="cuda")
    assert "int32" in baselines.get(name).available(whole)
