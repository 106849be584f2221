"""What users of sparse libraries reported, row by row of the list the project keeps, each the whole kind.

The numbers are the rows'. Speed is reported by experiments, not asserted here.
"""

from __future__ import annotations

import functools
import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp
from support import BUDGET, checksum, kernel_of, right, template, together, user_kernel

import sparsegen
from sparsegen import baselines, checks, engine, evaluate, fence, gallery
from sparsegen.errors import SparsegenError, SparsegenTypeError, SparsegenValueError
from sparsegen.problem import Pattern, Problem
from sparsegen.verdict import Level

RNG = np.random.default_rng(20287)


def ones(A) -> np.ndarray:
    return np.random.default_rng(20288).standard_normal(A.shape[1])


@functools.cache
def quick(seed: int = 0) -> tuple[sparsegen.Kernel, sp.csr_array]:
    A = gallery.uniform(499, 487, 6113)
    return kernel_of(A, template("sell_slice")), A


# ---- index width and overflow


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (np.int32, np.int64),
        (np.int64, np.int32),
        (np.int64, np.int64),
        (np.uint8, np.uint64),
        (np.int16, np.uint32),
        ("<i8", ">i4"),
    ],
)
def test_2_4_8_index_types_of_any_width_and_mixed(first, second):
    A = gallery.uniform(97, 83, 701)
    rows = A.tocoo()
    mixed = sp.csr_array(A.shape)
    mixed.data, mixed.indices, mixed.indptr = A.data, A.indices.astype(second), A.indptr.astype(np.int64)
    triplets = sp.coo_array(A.shape)
    triplets.data, triplets.coords = rows.data, (rows.row.astype(first), rows.col.astype(second))
    for given in (mixed, triplets):
        before = checksum(given)
        kernel = sparsegen.compile(given, budget=BUDGET, threads=1)
        right(kernel @ ones(A), A, ones(A))
        assert checksum(given) == before


def test_2_an_index_that_does_not_fit_is_not_truncated():
    for column in (2**31, 2**32, 2**32 + 1, 2**40):
        bad = sp.coo_array((3, 5))
        bad.data, bad.coords = np.ones(1), (np.array([0]), np.array([column]))
        with pytest.raises(SparsegenValueError, match=str(column)):
            sparsegen.compile(bad)
    wide = sp.coo_array((np.array([2.0, 3.0]), (np.array([0, 2]), np.array([0, 2**33]))), shape=(3, 2**33 + 1))
    assert Pattern.of(sparsegen.inputs.as_csr(wide)).indices.dtype == np.int64


def test_5_6_7_positions_beyond_2_31_are_64_bits_wide():
    """On a pattern that exists in its shape and its number of entries alone."""
    virtual = Pattern((3, 3), np.zeros(4, np.int64), np.broadcast_to(np.int32(0), 2**31 + 8))
    problem = Problem("spmv", virtual)
    assert problem.offset_dtype == np.int64
    from sparsegen import composite, prelude

    chosen = user_kernel()
    text = prelude.macros(chosen, problem, composite.literals(chosen, problem))
    assert text["OFFSET"] == "int64_t"
    assert text["INDEX"] == "int32_t"
    wide = sparsegen.templates.get("csr_row", "spmm", "cuda").source
    assert "int64_t" in wide or "B_AT" in wide  # row * ldb is computed in 64 bits


# ---- malformed, duplicate, unsorted


def damaged():
    A = gallery.uniform(13, 11, 41)
    B = A.copy()
    B.indices[3] = 11
    yield "column", B
    B = A.copy()
    B.indices[0] = -1
    yield "negative column", B
    B = A.copy()
    B.indptr = B.indptr.copy()
    B.indptr[-1] = 100
    yield "end", B
    B = A.copy()
    B.indptr = B.indptr[::-1].copy()
    yield "decreasing", B
    B = A.copy()
    B.data = B.data[:-1]
    yield "data", B
    B = A.tocoo()
    B.coords = (B.coords[0] + 100, B.coords[1])
    yield "row", B
    B = A.tocsc()
    B.indices[2] = 13
    yield "csc", B


@pytest.mark.parametrize(("name", "A"), list(damaged()), ids=lambda each: each if isinstance(each, str) else "")
def test_12_13_malformed_matrices_are_refused(name, A):
    with pytest.raises(SparsegenValueError):
        sparsegen.compile(A)


@pytest.mark.filterwarnings("ignore:Constructing a DIA matrix")
@pytest.mark.parametrize("form", ["csr", "csc", "coo", "bsr", "dia", "lil", "dok"])
def test_9_11_25_48_duplicates_disorder_and_zeros(form):
    """Duplicates are summed, stored zeros kept, the caller's arrays left as they were."""
    m, n = 59, 61
    rows, columns = RNG.integers(0, m, 900), RNG.integers(0, n, 900)
    data = RNG.standard_normal(900)
    data[::5] = 0
    given = sp.coo_array((data, (rows, columns)), shape=(m, n))
    summed = np.zeros((m, n))
    np.add.at(summed, (rows, columns), data)
    if form == "csr":  # unsorted rows with duplicates
        order = np.argsort(rows, kind="stable")
        indptr = np.concatenate(([0], np.cumsum(np.bincount(rows, minlength=m))))
        given = sp.csr_array((data[order], columns[order], indptr), shape=(m, n))
        assert not given.has_canonical_format
    elif form != "coo":
        given = given.asformat(form)
    before, x = checksum(given), RNG.standard_normal(n)
    kernel = sparsegen.compile(given, budget=BUDGET, threads=1)
    np.testing.assert_allclose(kernel @ x, summed @ x, atol=1e-12)
    assert checksum(given) == before
    if form in ("csr", "coo"):
        assert kernel.nnz == len(set(zip(rows.tolist(), columns.tolist(), strict=True)))


# ---- shapes and layout


@pytest.mark.parametrize("shape", [(0, 0), (0, 7), (7, 0), (1, 1), (1, 37), (37, 1), (5, 3)])
@pytest.mark.parametrize("op", ["spmv", "spmm"])
def test_15_16_shapes_without_entries(shape, op):
    m, n = shape
    kernel = sparsegen.compile(sp.csr_array(shape), op=op, k=3 if op == "spmm" else None, budget=BUDGET)
    assert (kernel @ np.ones(n)).tolist() == [0] * m
    assert (kernel @ np.ones((n, 3))).shape == (m, 3)
    assert (kernel @ np.ones((n, 0))).shape == (m, 0)
    assert (kernel.T @ np.ones(m)).tolist() == [0] * n
    assert (np.ones(m) @ kernel).tolist() == [0] * n
    assert kernel(np.ones(n), out=np.full(m, np.nan)).tolist() == [0] * m
    assert kernel(np.ones(n), out=np.ones(m), beta=2).tolist() == [2] * m
    kernel.update_values(np.empty(0))
    assert str(kernel.report())
    assert kernel.explain()


@pytest.mark.parametrize("name", ["one_row", "one_column", "one_by_one", "single_entry"])
def test_15_one_of_everything(name):
    A = gallery.tiny()[name]
    kernel = sparsegen.compile(A, budget=BUDGET)
    right(kernel @ ones(A), A, ones(A))
    flat = sparsegen.compile(sp.coo_array(A.toarray()[0]), budget=BUDGET)  # a 1-D sparse array is one row
    right(flat @ ones(A), A[:1], ones(A))


def test_18_20_22_dense_operands_as_they_lie():
    kernel, A = quick()
    n = A.shape[1]
    big = np.random.default_rng(20289).standard_normal((2 * n, 12))
    for X in (big[:n, :4], big[::2, ::3], big[n - 1 :: -1, :5], np.asfortranarray(big[:n]), big[:n].T.copy().T,
              np.broadcast_to(big[:n, :1], (n, 4)), big[:n, 3:4], big[:n, 11:5:-2]):  # fmt: skip
        before = X.copy()
        right(kernel @ X, A, X)
        np.testing.assert_array_equal(X, before)


@pytest.mark.parametrize("order", ["C", "F"])
def test_18_a_fortran_operand_is_not_copied(order):
    A = gallery.uniform(311, 20_011, 3001)
    kernel = kernel_of(A, next(iter_spmm()), k=16, facts=None)
    X = np.random.default_rng(20290).standard_normal((20_011, 16)).copy(order=order)
    out = np.empty((311, 16), order=order)
    kernel(X, out=out)
    tracemalloc.start()
    kernel(X, out=out)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < X.nbytes / 10
    right(out, A, X)


def iter_spmm():
    from sparsegen import candidate, templates

    return (each for file in templates.load("cpp") if file.op == "spmm" and file.format == "csr"
            for each in candidate.instances(file))  # fmt: skip


def test_23_transposed_products_take_no_dense_detour():
    A = gallery.uniform(20_011, 19_997, 30_011)
    kernel = sparsegen.compile(A, budget=0.0)
    z = np.ones(A.shape[0])
    kernel.T @ z
    tracemalloc.start()
    right(kernel.rmatvec(z), A.T.tocsr(), z)
    z @ kernel
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100 * 8 * max(A.shape)


# ---- NaN, infinity, beta


def test_24_structural_zeros_do_not_propagate():
    kernel, A = quick()
    absent = np.flatnonzero(np.diff(A.tocsc().indptr) == 0)
    x = ones(A)
    x[A.indices[0]] = np.nan
    y = kernel @ x
    touched = np.unique(A.nonzero()[0][A.nonzero()[1] == A.indices[0]])
    assert np.isnan(y[touched]).all()
    assert np.isfinite(np.delete(y, touched)).all()
    assert len(absent) == 0 or np.isfinite(kernel @ np.where(np.isin(np.arange(len(x)), absent), np.inf, 1.0)).all()


def test_26_beta_zero_overwrites():
    kernel, A = quick()
    for poison in (np.nan, np.inf, -np.inf):
        for beta in (0, 0.0, -0.0, False, np.float64(0)):
            out = np.full(A.shape[0], poison)
            right(kernel(ones(A), out=out, beta=beta), A, ones(A))


# ---- dtypes


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64, np.uint64, np.bool_])
def test_33_34_integers_are_exact_and_wrap_as_numpy_s(dtype):
    dense = RNG.integers(0, 2 if dtype == np.bool_ else 120, (31, 37)).astype(dtype)
    dense[RNG.random(dense.shape) < 0.7] = 0
    kernel = sparsegen.compile(sp.csr_array(dense), budget=BUDGET)
    x = RNG.integers(0, 2 if dtype == np.bool_ else 120, 37).astype(dtype)
    assert (kernel @ x).dtype == dtype
    np.testing.assert_array_equal(kernel @ x, dense @ x)
    large = np.full(37, 2**53 + 1, np.int64)
    if dtype == np.int64:
        np.testing.assert_array_equal(kernel @ large, dense @ large)
    assert any("no kernels" in note for note in kernel.report()["notes"])


def test_35_adjoints():
    A = gallery.uniform(43, 37, 307).astype(np.complex128)
    A.data = A.data * (1 + 2j) + 1j
    kernel = sparsegen.compile(A, budget=BUDGET)
    z = RNG.standard_normal(43) + 1j * RNG.standard_normal(43)
    dense = A.toarray()
    np.testing.assert_allclose(kernel.H @ z, dense.conj().T @ z)
    np.testing.assert_allclose(kernel.T @ z, dense.T @ z)
    np.testing.assert_allclose(kernel.T.H @ z[:37], dense.conj() @ z[:37])
    np.testing.assert_allclose(kernel.H.T @ z[:37], dense.conj() @ z[:37])


def test_37_out_alpha_and_beta_are_honoured():
    kernel, A = quick()
    y0 = np.random.default_rng(20291).standard_normal(A.shape[0])
    for alpha in (0, 1, -1, 0.3, 2):
        for beta in (0, 1, -1, 0.7):
            out = y0.copy()
            assert kernel(ones(A), out, alpha, beta) is out
            right(out, A, ones(A), alpha, beta, y0)
    for bad in (np.empty(3), np.empty(A.shape[0], np.float32), np.empty(A.shape[0], int), np.empty((A.shape[0], 1))):
        with pytest.raises(SparsegenValueError):
            kernel(ones(A), out=bad)


# ---- determinism, threads


def test_38_39_equal_bits():
    A = gallery.powerlaw(1021, 1021, 8009)
    kernel = sparsegen.compile(A, deterministic=True, threads=2, budget=BUDGET)
    first = kernel @ ones(A)
    assert all(np.array_equal(kernel @ ones(A), first) for _ in range(100))


def test_42_no_silent_zeros():
    A = gallery.uniform(499, 487, 6113)
    problem = engine.problem_of(A, threads=1)
    silent = user_kernel("for (int64_t row = begin; row < end; ++row) y[row] = 0;")
    with fence.session(problem, A) as session:
        verdict = evaluate.evaluate(silent, problem, session, checks.References(problem), "silent")
    assert verdict.level < Level.CORRECT
    assert verdict.fault == "wrong"


def test_43_sixteen_threads_and_one_kernel():
    kernel, A = quick()
    wanted = kernel @ ones(A)

    def run(number: int) -> None:
        for _ in range(100):
            np.testing.assert_array_equal(kernel @ ones(A), wanted)

    together(16, run)


def test_45_54_a_choice_is_kept():
    """Every later process and rank gets the kernel that was chosen, whatever it would measure itself."""
    A = gallery.stencil2d(29, 31)
    first = sparsegen.compile(A, budget=BUDGET, threads=1)
    for _ in range(3):
        again = sparsegen.compile(A, budget=BUDGET, threads=1, max_candidates=1, seed=20292)
        assert again.report()["cached"]
        assert (again.source, again.baseline) == (first.source, first.baseline)


# ---- memory, first call, caches


def test_46_the_second_call_does_no_setup():
    kernel, A = quick()
    x, y = ones(A), np.empty(A.shape[0])
    kernel(x, out=y)
    tracemalloc.start()
    for _ in range(50):
        kernel(x, out=y)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4096


def test_48_no_leak_over_many_kernels():
    A = gallery.uniform(2003, 1999, 20_011)

    def resident() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096

    for _ in range(3):
        kernel_of(A, template("sell_slice")) @ ones(A)
    before = resident()
    for _ in range(60):
        kernel = kernel_of(A, template("sell_slice"))
        kernel.update_values(A.data)
        kernel @ ones(A)
    assert resident() - before < 20 * (A.data.nbytes + A.indices.nbytes)


def test_51_52_binaries_are_keyed_by_what_is_compiled():
    from sparsegen import cache

    chosen, A = user_kernel(), gallery.uniform(97, 83, 701)
    problem = engine.problem_of(A)
    paths = {evaluate.compile(chosen, problem).path for _ in range(3)}
    assert len(paths) == 1
    other = engine.problem_of(A.astype(np.float32))
    assert evaluate.compile(chosen, other).path not in paths
    path = paths.pop()
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])  # as a rename on a network disk may leave it
    again = evaluate.compile(chosen, problem).path
    assert again.read_bytes()[: len(whole) // 2] == whole[: len(whole) // 2]
    assert len(again.read_bytes()) == len(whole)
    assert cache.info()["writable"]


# ---- speed: the rules, not the times


def test_1_55_56_59_60_what_a_kernel_must_beat():
    """scipy always, MKL with and without analysis, each prepared once and not on every call."""
    A = gallery.uniform(499, 487, 6113)
    problem = engine.problem_of(A, threads=2)
    assert {"scipy", "mkl", "mkl_noopt", "torch", "numba", "cupy", "cusparse"} <= set(baselines.names())
    for name in baselines.names():
        module = baselines.get(name)
        if module.available(problem) is None:
            call = module.prepare(A, problem)
            for _ in range(3):
                right(call(ones(A)), A, ones(A))


def test_58_61_long_rows():
    for A in (gallery.dense_row(2003, 1999), gallery.powerlaw(2003, 2003, 20_011), gallery.arrow(401, width=3)):
        kernel = sparsegen.compile(A, budget=BUDGET, threads=2)
        right(kernel @ ones(A), A, ones(A))
        right(kernel.T @ np.ones(A.shape[0]), A.T.tocsr(), np.ones(A.shape[0]))


def test_a_mistake_is_always_ours_to_name():
    kernel, A = quick()
    for call in (
        lambda: kernel @ np.ones(3),
        lambda: sparsegen.compile(A, op="?"),
        lambda: kernel.update_values([1.0]),
    ):
        with pytest.raises(SparsegenError) as raised:
            call()
        assert isinstance(raised.value, (ValueError, TypeError))
        assert len(str(raised.value).splitlines()) == 1
    with pytest.raises(SparsegenTypeError):
        kernel @ "x"
