"""A compiled kernel against an exact product: every matrix, every kind of operand, every template's special values."""

from __future__ import annotations

import copy
import functools
import itertools
import pickle
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as spla
from support import BUDGET, checksum, kernel_of, problem_of, right, template, together

import sparsegen
from sparsegen import gallery, templates
from sparsegen.binding import CertificateError
from sparsegen.candidate import instances
from sparsegen.errors import SparsegenError, SparsegenTypeError, SparsegenValueError

MATRICES = {**gallery.small(), **gallery.tiny()}
REAL = [np.bool_, np.int8, np.uint8, np.int16, np.int32, np.int64, np.uint64, np.float16, np.float32, np.float64]
DTYPES = [*REAL, np.complex64, np.complex128]
# one instance for each template and each way of storing values, with a matrix of the gallery that it can hold
SPECIAL = [
    ("csr_scalar", {"values": "full"}, "powerlaw"),
    ("csr_vector", {"values": "full"}, "uniform"),
    ("coo_runs", {"values": "full"}, "empty_rows"),
    ("ell_vector", {"values": "full"}, "banded_gaps"),
    ("sell_slice", {"values": "full", "SIGMA": 1}, "row_lengths"),
    ("sell_slice", {"values": "f32", "SIGMA": 256}, "stencil2d"),
    ("sell_slice", {"values": "constant", "SIGMA": 1}, "same_values"),
    ("csr_vector", {"values": "constant"}, "one_value"),
    ("dia_chunk", {"values": "full", "CHUNK": 16}, "stencil2d_variable"),
    ("dia_chunk", {"values": "f32", "CHUNK": 64}, "stencil3d"),
    ("bsr_row", {"values": "full", "R": 3, "S": 3}, "block_3x3"),
    ("bsell_slice", {"values": "full", "R": 3, "S": 3}, "block_3x3"),
    ("dense_rows_slice", {"values": "full"}, "long_rows"),
]


def matrix(name: str) -> sp.csr_array:
    if name == "long_rows":  # rows that are dense by the composite's rule
        return gallery.dense_row(1031, 611)
    if name == "same_values":
        A = gallery.uniform(503, 497, 5003)
        A.data[:] = 0.1
        return A
    return MATRICES[name]


@functools.cache
def special(number: int) -> tuple[sparsegen.Kernel, sp.csr_array]:
    name, params, where = SPECIAL[number]
    A = matrix(where)
    return kernel_of(A, template(name, **params)), A


@functools.cache
def compiled(name: str, **options) -> sparsegen.Kernel:
    return sparsegen.compile(MATRICES[name], **{"budget": BUDGET, **options})


def vector(n: int, *more: int, seed: int = 20261) -> np.ndarray:
    return np.random.default_rng([seed, n, *more]).standard_normal((n, *more))


@pytest.mark.parametrize("name", MATRICES)
def test_every_matrix_with_every_layout_of_x(name):
    A = MATRICES[name]
    before = checksum(A)
    kernel = compiled(name)
    m, n = A.shape
    x = vector(n)
    wide = vector(n, 3)
    long, reverse = np.repeat(x, 2), x[::-1].copy()
    right(kernel @ x, A, x)
    for same in (long[::2], reverse[::-1], x.astype(">f8"), x.tolist() if n else x, memoryview(x) if n else x):
        np.testing.assert_array_equal(kernel @ same, kernel @ x)
        np.testing.assert_array_equal(kernel(same), kernel @ x)
    for X in (x[:, None], np.asfortranarray(wide), wide, wide[:, ::2], np.repeat(wide, 2, 0)[::2], wide[::-1]):
        right(kernel @ X, A, X)
        assert (kernel @ X).shape == (m, X.shape[1])
    flat = np.broadcast_to(np.array([0.75]), (n,))
    right(kernel @ flat, A, flat)
    right(kernel @ np.broadcast_to(x[:, None], (n, 2)), A, np.stack([x, x], 1))
    assert (kernel @ np.zeros((n, 0))).shape == (m, 0)
    assert checksum(A) == before
    np.testing.assert_array_equal(x, vector(n))


@pytest.mark.parametrize("number", range(len(SPECIAL)))
def test_out_alpha_beta(number):
    kernel, A = special(number)
    m, n = A.shape
    x, y0 = vector(n), vector(m, seed=20262)
    for alpha, beta in (
        (1, 0),
        (2.5, 0),
        (1, 1),
        (-0.75, 0.5),
        (0, 2),
        (0.0, 0),
        (3, -1),
        (np.float64(2), np.float32(0.5)),
    ):
        for out in (y0.copy(), np.repeat(y0, 2)[::2], y0[::-1].copy()[::-1], y0[:, None].copy()):
            given = x if out.ndim == 1 else x[:, None]
            start = out.copy()
            assert kernel(given, out, alpha, beta) is out
            right(out, A, given, float(alpha), float(beta), start)
    poisoned = np.full(m, np.nan)
    assert kernel(x, out=poisoned, beta=0) is poisoned
    right(poisoned, A, x)
    gap = np.full(2 * m, 7.0)
    kernel(x, out=gap[::2])
    right(gap[::2], A, x)
    assert (gap[1::2] == 7).all()


@pytest.mark.parametrize("number", range(len(SPECIAL)))
def test_nan_and_infinity_in_x_spread_through_stored_entries_alone(number):
    kernel, A = special(number)
    n = A.shape[1]
    A = A.copy()
    if not kernel.problem.facts.constant:
        A.data[::7] = 0.0  # stored zeros: 0 times infinity is NaN
        kernel.update_values(A.data)
        assert kernel.candidate is not None
    rng = np.random.default_rng(20263)
    for bad in (np.inf, -np.inf, np.nan):
        for where in rng.integers(0, n, 6):
            x = vector(n)
            x[where] = bad
            right(kernel @ x, A, x)
            y0 = vector(A.shape[0])
            out = y0.copy()
            right(kernel(x, out, -1.5, 0.5), A, x, -1.5, 0.5, y0)
    everywhere = np.full(n, np.inf)
    right(kernel @ everywhere, A, everywhere)
    x = vector(n)
    right(kernel @ x, A, x)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("name", ["powerlaw", "stencil2d", "block_3x3", "one_value"])
def test_nan_and_infinity_in_A(name, bad):
    A = MATRICES[name].copy()
    A.data[A.nnz // 2] = bad
    kernel = sparsegen.compile(A, budget=BUDGET, threads=1)
    x = vector(A.shape[1])
    right(kernel @ x, A, x)
    right(kernel.T @ vector(A.shape[0]), A.T.tocsr(), vector(A.shape[0]))


def test_special_values_of_the_scalars():
    A = MATRICES["stencil2d"]
    kernel, x = compiled("stencil2d"), vector(A.shape[1])
    assert np.isnan(kernel(x, alpha=np.nan)).all()
    assert np.isnan(kernel(x, out=np.ones(A.shape[0]), beta=np.nan)).all()
    assert np.isinf(kernel(x, out=np.ones(A.shape[0]), beta=np.inf)).all()
    huge = A.copy()
    huge.data[:] = 1e300
    overflow = kernel_of(huge, template("dia_chunk", values="full"), facts=None)
    np.testing.assert_array_equal(overflow @ np.full(A.shape[1], 1e300), np.full(A.shape[0], np.inf))


@pytest.mark.parametrize("single", ["csr_vector", "dia_chunk", "sell_slice"])
def test_single_precision(single):
    A = MATRICES["stencil2d_variable"].astype(np.float32)
    kernel = kernel_of(A, template(single, values="full"))
    x = vector(A.shape[1]).astype(np.float32)
    assert (kernel @ x).dtype == np.float32
    right(kernel @ x, A, x)
    out = np.full(A.shape[0], np.nan, np.float32)
    right(kernel(x, out=out, alpha=np.float64(0.1)), A, x, float(np.float32(0.1)))
    right(kernel @ x.astype(np.float64), A, x.astype(np.float64))  # a double x is not rounded


@pytest.mark.parametrize("dtype", DTYPES)
def test_result_types_are_numpy_s(dtype):
    rng = np.random.default_rng(20264)
    A = sp.random_array((23, 19), density=0.3, rng=rng, format="csr")
    A.data = (10 * A.data).astype(dtype)
    if np.dtype(dtype).kind == "c":
        A.data += (1j * rng.standard_normal(A.nnz)).astype(dtype)
    kernel = sparsegen.compile(A, budget=BUDGET)
    served = dtype in (np.float16, np.float32, np.float64)
    assert served or kernel.candidate is None
    assert served or any("no kernels for" in note for note in kernel.report()["notes"])
    for other in DTYPES:
        for shape in ((19,), (19, 1), (19, 3)):
            x = (5 * rng.standard_normal(shape)).astype(np.float32).astype(other) if np.dtype(other).kind != "u" else (
                rng.integers(0, 9, shape).astype(other)
            )  # fmt: skip
            y = kernel @ x
            assert y.dtype == np.result_type(dtype, other), (dtype, other)
            right(y, A, x)
            out = np.empty(y.shape, y.dtype)
            assert kernel(x, out=out) is out
            np.testing.assert_array_equal(out, y)
            if y.dtype != np.int16:
                with pytest.raises(SparsegenValueError, match="out is int16"):
                    kernel(x, out=np.empty(y.shape, np.int16))


def test_scalars_promote_as_numpy_numbers_do():
    A = sp.csr_array(np.array([[2, 0, 1], [0, 3, 0]]))
    kernel, x = sparsegen.compile(A, budget=0.0), np.array([1, 2, 3])
    assert (kernel(x)).dtype == np.int64
    half = kernel(x, alpha=0.5)
    assert half.dtype == np.float64
    np.testing.assert_array_equal(half, [2.5, 3.0])
    assert kernel(x, alpha=2, out=np.array([1, 1]), beta=3).tolist() == [13, 15]
    assert kernel(x, alpha=1j).tolist() == [5j, 6j]
    with pytest.raises(SparsegenValueError, match="out is int64"):
        kernel(x, out=np.zeros(2, np.int64), alpha=0.5)
    small = sparsegen.compile(A.astype(np.int8), budget=0.0)
    with pytest.raises(SparsegenValueError, match="300"):
        small(x.astype(np.int8), alpha=300)
    real = compiled("stencil2d")
    ones = np.ones(real.shape[1])
    np.testing.assert_allclose(real(ones, alpha=1j), 1j * (real @ ones))
    np.testing.assert_allclose(real(ones, alpha=np.complex128(2j)), 2j * (real @ ones))
    with pytest.raises(SparsegenValueError, match="out is float64"):
        real(ones, out=np.zeros(real.shape[0]), alpha=np.complex128(2j))
    with pytest.raises(SparsegenValueError, match="factor"):
        real(ones, out=np.zeros(real.shape[0]), alpha=10**400)


def test_half_precision_is_rounded_once():
    A = MATRICES["uniform"].copy()
    kernel = sparsegen.compile(A, budget=BUDGET, dtype=np.float16)
    A.data = A.data.astype(np.float16)
    x = vector(A.shape[1]).astype(np.float16)
    y = kernel @ x
    assert y.dtype == kernel.dtype == np.float16
    dense = sp.csr_array((A.data.astype(np.float64), A.indices, A.indptr), shape=A.shape).toarray()
    exact = dense @ x.astype(np.float64)
    spacing = np.abs(np.spacing(exact.astype(np.float16))).astype(np.float64)
    assert (np.abs(y - exact) <= 0.5 * spacing + 2e-6 * np.abs(dense).dot(np.abs(x).astype(np.float64))).all()
    out, y0 = np.ones(A.shape[0], np.float16), np.ones(A.shape[0], np.float16)
    right(kernel(x, out, 0.5, 0.25), A, x, 0.5, 0.25, y0)
    z = vector(A.shape[0]).astype(np.float16)
    assert (kernel.T @ z).dtype == np.float16
    np.testing.assert_allclose(kernel.T @ z, dense.T @ z.astype(np.float64), atol=0.05)


def test_x_and_out_may_overlap():
    A = MATRICES["stencil3d"]
    for kernel in (compiled("stencil3d"), kernel_of(A, template("csr_scalar")), sparsegen.compile(A, budget=0.0)):
        x = vector(A.shape[1])
        wanted = kernel @ x
        same = x.copy()
        assert kernel(same, out=same) is same
        np.testing.assert_allclose(same, wanted, rtol=1e-12, atol=1e-12)
        base = np.zeros(len(x) + 5)
        base[:-5] = x
        kernel(base[:-5], out=base[5:])
        np.testing.assert_allclose(base[5:], wanted, rtol=1e-12, atol=1e-12)
        mirrored = x.copy()
        kernel(mirrored[::-1], out=mirrored)
        np.testing.assert_allclose(mirrored, kernel @ x[::-1], rtol=1e-12, atol=1e-12)
        added = x.copy()
        kernel(added, out=added, beta=1)
        np.testing.assert_allclose(added, wanted + x, rtol=1e-12, atol=1e-12)


@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_x_that_is_read_only_or_lies_crooked():
    A, kernel = MATRICES["uniform"], compiled("uniform")
    x = vector(A.shape[1])
    frozen = x.copy()
    frozen.flags.writeable = False
    np.testing.assert_array_equal(kernel @ frozen, kernel @ x)
    raw = np.zeros(x.nbytes + 3, np.uint8)
    crooked = raw[3:].view(np.float64)
    crooked[:] = x
    right(kernel @ crooked, A, x)
    out = np.zeros(8 * A.shape[0] + 3, np.uint8)[3:].view(np.float64)
    right(kernel(x, out=out), A, x)
    assert isinstance(kernel @ np.matrix(x).T, np.ndarray)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda k, n: k @ np.zeros(n + 1), SparsegenValueError, f"({19 * 23 + 1},)"),
        (lambda k, n: k @ np.zeros((n - 1, 2)), SparsegenValueError, "is expected"),
        (lambda k, n: k @ np.zeros((n, 2, 2)), SparsegenValueError, "is expected"),
        (lambda k, n: k @ 3.0, SparsegenValueError, "shape ()"),
        (lambda k, n: k.matvec(np.zeros((n, 2))), SparsegenValueError, "matvec"),
        (lambda k, n: k.matmat(np.zeros(n)), SparsegenValueError, "matmat"),
        (lambda k, n: k @ sp.eye_array(n), SparsegenTypeError, "sparse"),
        (lambda k, n: k @ np.array(["a"] * n), SparsegenTypeError, "<U1"),
        (lambda k, n: k @ np.array([None] * n), SparsegenTypeError, "object"),
        (lambda k, n: k @ [[1], [1, 2]], SparsegenTypeError, "numpy can read"),
        (lambda k, n: k @ np.ma.masked_less(np.zeros(n), 1), SparsegenTypeError, "masked"),
        (lambda k, n: k @ np.zeros(n, np.longdouble), SparsegenTypeError, "double precision"),
        (lambda k, n: k @ np.zeros(n, "datetime64[s]"), SparsegenTypeError, "datetime64"),
        (lambda k, n: k @ {1: 2}, SparsegenTypeError, "object"),
        (lambda k, n: k(np.zeros(n), out=np.zeros(n + 1)), SparsegenValueError, "out is"),
        (lambda k, n: k(np.zeros(n), out=np.zeros((n, 1))), SparsegenValueError, "out is"),
        (lambda k, n: k(np.zeros(n), out=np.zeros(n, np.float32)), SparsegenValueError, "out is float32"),
        (lambda k, n: k(np.zeros(n), out=np.zeros(n, ">f8")), SparsegenValueError, "out is >f8"),
        (lambda k, n: k(np.zeros(n), out=[0.0] * n), SparsegenTypeError, "list"),
        (lambda k, n: k(np.zeros(n), out=np.broadcast_to(np.zeros(1), n)), SparsegenValueError, "read-only"),
        (lambda k, n: k(np.zeros(n), beta=1), SparsegenValueError, "without out"),
        (lambda k, n: k(np.zeros(n), alpha="2"), SparsegenTypeError, "alpha"),
        (lambda k, n: k(np.zeros(n), alpha=None), SparsegenTypeError, "alpha"),
        (lambda k, n: k(np.zeros(n), alpha=np.ones(1)), SparsegenTypeError, "alpha"),
        (lambda k, n: k(np.zeros(n), out=np.zeros(n), beta=[1]), SparsegenTypeError, "beta"),
        (lambda k, n: np.zeros(n + 2) @ k, SparsegenValueError, "is expected"),
    ],
)  # fmt: skip
def test_wrong_operands_are_one_clear_error(call, error, words):
    kernel = compiled("stencil2d")
    with pytest.raises(error) as raised:
        call(kernel, kernel.shape[1])
    assert isinstance(raised.value, SparsegenError)
    assert words in str(raised.value)
    assert "expected" in str(raised.value)
    with pytest.raises(error):  # and the same where a baseline serves
        call(sparsegen.compile(MATRICES["stencil2d"], budget=0.0), kernel.shape[1])


def test_a_read_only_out_is_refused_untouched():
    A, kernel = MATRICES["uniform"], compiled("uniform")
    out = np.full(A.shape[0], 3.0)
    out.flags.writeable = False
    with pytest.raises(SparsegenValueError, match="read-only"):
        kernel(vector(A.shape[1]), out=out)
    assert (out == 3).all()
    shared = np.lib.stride_tricks.as_strided(np.zeros(1), (A.shape[0],), (0,))
    with pytest.raises(SparsegenValueError, match="share memory"):
        kernel(vector(A.shape[1]), out=shared)


@pytest.mark.parametrize(
    "name", ["uniform_tall", "uniform_wide", "powerlaw", "one_row", "one_column", "no_rows", "no_columns"]
)
def test_transposed_products(name):
    A, kernel = MATRICES[name], compiled(name)
    m, n = A.shape
    z, Z = vector(m, seed=20265), vector(m, 3, seed=20265)
    right(kernel.T @ z, A.T.tocsr(), z)
    for same in (kernel.H @ z, kernel.rmatvec(z), z @ kernel, kernel.adjoint() @ z, kernel.transpose() @ z):
        np.testing.assert_array_equal(same, kernel.T @ z)
    right(kernel.rmatmat(Z), A.T.tocsr(), Z)
    right((Z.T @ kernel).T, A.T.tocsr(), Z)
    assert kernel.T.T is kernel
    assert kernel.T is kernel.T
    assert kernel.T.shape == (n, m)


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_complex_adjoint(dtype):
    A = gallery.uniform(61, 47, 503).astype(dtype)
    A.data += 1j * np.random.default_rng(20266).standard_normal(A.nnz).astype(A.real.dtype)
    kernel = sparsegen.compile(A, budget=BUDGET)
    assert kernel.report()["kernel"] == "baseline scipy"
    z = (vector(61) + 1j * vector(61, seed=20267)).astype(dtype)
    right(kernel.H @ z, A.conj().T.tocsr(), z)
    right(kernel.T @ z, A.T.tocsr(), z)
    right(kernel.rmatvec(z), A.conj().T.tocsr(), z)
    right(z @ kernel, A.T.tocsr(), z)
    assert kernel.H.H is kernel
    assert kernel.H is kernel.H
    assert kernel.T.T is kernel


def test_it_is_a_linear_operator():
    A, kernel = MATRICES["stencil2d_variable"], compiled("stencil2d_variable")
    x, X = vector(A.shape[1]), vector(A.shape[1], 3)
    assert spla.aslinearoperator(kernel) is kernel
    assert isinstance(kernel, spla.LinearOperator)
    right(kernel.matvec(x), A, x)
    right(kernel.matvec(x[:, None]), A, x[:, None])
    right(kernel.matmat(X), A, X)
    right(kernel.dot(x), A, x)
    right(kernel * x, A, x)
    y = kernel @ x
    np.testing.assert_allclose((2 * kernel) @ x, 2 * y)
    np.testing.assert_allclose((kernel + kernel) @ x, 2 * y)
    np.testing.assert_allclose((kernel - 2 * kernel) @ x, -y)
    np.testing.assert_allclose((-kernel) @ x, -y)
    np.testing.assert_allclose((kernel @ kernel) @ x, kernel @ y)
    np.testing.assert_allclose((kernel * kernel) @ x, kernel @ y)
    np.testing.assert_allclose((kernel**2) @ x, kernel @ y)
    np.testing.assert_allclose((kernel @ spla.aslinearoperator(A)) @ x, kernel @ (A @ x))
    np.testing.assert_allclose((spla.aslinearoperator(A) @ kernel) @ x, A @ y)
    np.testing.assert_allclose((2 * kernel).H @ x, 2 * (kernel.T @ x))
    right(kernel.matvec(x, out=np.empty(len(y)), alpha=2), A, x, 2.0)


def test_solvers_of_scipy():
    A, kernel = MATRICES["stencil2d_variable"], compiled("stencil2d_variable")
    b = vector(A.shape[0])
    solved, info = spla.cg(kernel, b, rtol=1e-10)
    assert info == 0
    np.testing.assert_allclose(A @ solved, b, atol=1e-6)
    solved, info = spla.gmres(kernel, b, rtol=1e-10, restart=60)
    assert info == 0
    np.testing.assert_allclose(A @ solved, b, atol=1e-6)
    start = np.ones(A.shape[0])
    np.testing.assert_allclose(
        spla.eigsh(kernel, k=3, v0=start, return_eigenvectors=False),
        spla.eigsh(A, k=3, v0=start, return_eigenvectors=False),
    )
    B, other = MATRICES["uniform"], compiled("uniform")
    values = spla.svds(other, k=3, v0=np.ones(min(B.shape)), return_singular_vectors=False)
    np.testing.assert_allclose(np.sort(values), np.linalg.svd(B.toarray(), compute_uv=False)[2::-1], rtol=1e-7)


# ---- new values


@pytest.mark.parametrize("number", range(len(SPECIAL)))
def test_update_values(number):
    kernel, A = special(number)
    kernel = copy.copy(kernel)
    label, x = kernel.candidate.label, vector(A.shape[1])
    new = A.copy()
    new.data = kernel.problem.facts.draw(np.random.default_rng(20268), A.nnz, A.dtype)
    kernel.update_values(new.data)
    right(kernel @ x, new, x)
    assert kernel.candidate.label == label
    kernel.update_values(new.data[:, None].ravel()[::-1].copy()[::-1])
    right(kernel @ x, new, x)
    kernel.update_values(sp.coo_array(-new))
    right(kernel @ x, -new, x)
    broken = A.copy()
    broken.data = vector(A.nnz, seed=20269)
    had = kernel.report()["notes"]
    kernel.update_values(broken.data)
    right(kernel @ x, broken, x)
    assert kernel.candidate.encoding == "full"
    if any(word in label for word in ("f32", "constant")):
        assert any("break the fact" in note for note in kernel.report()["notes"])
        assert kernel.report()["kernel"] == kernel.candidate.label
        assert kernel.report().get("measured_us") is None
    else:
        assert kernel.report()["notes"] == had
    broken.data[A.nnz // 2] = np.nan
    kernel.update_values(broken.data)
    right(kernel @ x, broken, x)
    right(kernel.T @ vector(A.shape[0]), broken.T.tocsr(), vector(A.shape[0]))


def test_facts_that_still_hold_are_kept():
    A = MATRICES["one_value"]
    kernel = kernel_of(A, template("csr_vector", values="f32"))
    kernel.update_values(np.arange(1.0, 1 + A.nnz))
    assert kernel.candidate.encoding == "f32"
    kernel.update_values(np.arange(1.0, 1 + A.nnz) / 3)
    assert kernel.candidate.encoding == "full"
    x = vector(A.shape[1])
    new = A.copy()
    new.data = np.arange(1.0, 1 + A.nnz) / 3
    right(kernel @ x, new, x)
    declared = sparsegen.compile(A, budget=0.0, facts=sparsegen.Facts(constant=True))
    declared.update_values(new.data)
    right(declared.T @ vector(A.shape[0]), new.T.tocsr(), vector(A.shape[0]))


def test_update_values_refuses_what_does_not_fit():
    A, kernel = MATRICES["uniform"], compiled("uniform")
    x = vector(A.shape[1])
    other = gallery.uniform(*A.shape, A.nnz, seed=20270)
    for bad, error, words in (
        (np.zeros(A.nnz + 1), SparsegenValueError, "a value per entry"),
        (np.zeros((A.nnz, 1)), SparsegenValueError, "a value per entry"),
        (3.0, SparsegenValueError, "a value per entry"),
        (other, SparsegenValueError, "another pattern"),
        (A[:-1], SparsegenValueError, "another pattern"),
        (np.zeros(A.nnz, complex), SparsegenTypeError, "complex128"),
        (np.array(["1"] * A.nnz), SparsegenTypeError, "<U1"),
        ([None] * A.nnz, SparsegenTypeError, "object"),
        ([[1], [1, 2]], SparsegenTypeError, "no array"),
    ):
        with pytest.raises(error, match=words):
            kernel.update_values(bad)
    right(kernel @ x, A, x)
    whole = sparsegen.compile(sp.csr_array(np.array([[1, 2], [0, 3]])), budget=0.0)
    with pytest.raises(SparsegenTypeError, match="float64"):
        whole.update_values([1.5, 2.5, 3.5])
    whole.update_values(np.array([4, 5, 6], np.int8))
    assert (whole @ [1, 1]).tolist() == [9, 6]


def test_update_values_leaves_kernels_got_before_alone():
    A = MATRICES["uniform"]
    kernel = kernel_of(A, template("csr_vector"))
    turned, z = kernel.T, vector(A.shape[0])
    new = -2 * A
    data = new.data.copy()
    kernel.update_values(data)
    data[:] = 0  # the kernel has its own
    right(turned @ z, A.T.tocsr(), z)
    right(kernel.T @ z, new.T.tocsr(), z)
    x = vector(A.shape[1])
    right(turned.T @ x, A, x)
    right(kernel @ x, new, x)


def test_a_kernel_that_misses_the_reference_is_not_made():
    A = MATRICES["uniform"]
    lazy = template("csr_scalar", values="full")
    source = lazy.source.replace("p < indptr[row + 1]", "p < indptr[row + 1] - (row == 3)")
    assert source != lazy.source
    from dataclasses import replace

    with pytest.raises(CertificateError, match="misses the reference"):
        kernel_of(A, replace(lazy, source=source))


# ---- threads, copies, the end


@pytest.mark.parametrize("threads", [1, 2])
def test_sixteen_threads_share_a_kernel(threads):
    A = gallery.uniform(3001, 2999, 40009)
    kernel = kernel_of(A, template("sell_slice"), threads=threads)
    inputs = [vector(A.shape[1], seed=20271 + i) for i in range(16)]
    wanted = [kernel @ x for x in inputs]

    def run(number: int) -> None:
        y = np.empty(A.shape[0])
        for _ in range(25):
            np.testing.assert_array_equal(kernel @ inputs[number], wanted[number])
            np.testing.assert_array_equal(kernel(inputs[number], out=y), wanted[number])

    together(16, run)


def test_values_change_while_threads_multiply():
    A = MATRICES["stencil2d"]
    x, factors = vector(A.shape[1]), [1.0, 2.0, -4.0, 0.5]
    kernels = [kernel_of(A, template("dia_chunk", values="full")), sparsegen.compile(A, budget=0.0)]
    for kernel in kernels:
        allowed = [factor * (kernel @ x) for factor in factors]  # exactly: powers of two
        bad = x.copy()
        bad[7] = np.inf

        def run(number: int, kernel=kernel, allowed=allowed, bad=bad) -> None:
            if number == 0:
                for turn in range(40):
                    kernel.update_values(factors[turn % 4] * A.data)
                return
            for _ in range(60):
                y = kernel @ x
                assert any(np.array_equal(y, each) for each in allowed)
                kernel @ bad  # through the exact path

        together(8, run)


def test_transposing_from_many_threads_gives_one_kernel():
    kernel = sparsegen.compile(MATRICES["powerlaw"], budget=0.0)
    assert len({id(each) for each in together(16, lambda _: kernel.T)}) == 1


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy, lambda k: pickle.loads(pickle.dumps(k))])
def test_copies(make):
    for number in (1, 6, 8, 12):
        kernel, A = special(number)
        other = make(kernel)
        x = vector(A.shape[1])
        np.testing.assert_array_equal(other @ x, kernel @ x)
        assert other.source == kernel.source
        assert dict(other.report()) == dict(kernel.report())
        A2 = sp.csr_array((2 * kernel._A.data, A.indices, A.indptr), shape=A.shape)
        other.update_values(A2.data)
        np.testing.assert_allclose(other @ x, 2 * (kernel @ x), rtol=1e-12, atol=1e-12)
        right(kernel @ x, kernel._A, x)
    served = sparsegen.compile(MATRICES["bipartite"].astype(np.complex64), budget=0.0)
    x = vector(served.shape[1]).astype(np.complex64)
    np.testing.assert_array_equal(make(served) @ x, served @ x)


def test_closing():
    A = MATRICES["stencil2d"]
    x = vector(A.shape[1])
    with kernel_of(A, template("dia_chunk")) as kernel:
        right(kernel @ x, A, x)
    right(kernel @ x, A, x)
    assert kernel.candidate is None
    assert "scipy" in repr(kernel)
    kernel.close()
    kernel.update_values(2 * A.data)
    right(kernel @ x, 2 * A, x)


# ---- columns


USER_SPMM = """/* sparsegen
about = "one row after the other"
op = "spmm"
format = "csr"
[[launch]]
entry = "spmm"
items = "m"
*/
extern "C" void spmm(SIZES, CSR_ARRAYS, const VALUE* B, VALUE* C, EPILOGUE, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
        for (int64_t j = 0; j < k; ++j) {
            ACC sum = 0;
            for (OFFSET p = indptr[row]; p < indptr[row + 1]; ++p)
                sum += VALUE_AT(p) * ACC(B_AT(int64_t(indices[p]), j));
            STORE_C(row, j, sum);
        }
}
"""


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_spmm_of_any_width_and_layout(dtype):
    from sparsegen import candidate

    A = MATRICES["uniform"].astype(dtype)
    kernel = kernel_of(A, candidate.parse(USER_SPMM, name="csr_user"), k=7, threads=2)
    m, n = A.shape
    for k in (7, 1, 2, 9):
        X, C0 = vector(n, k).astype(dtype), vector(m, k, seed=20272).astype(dtype)
        for order_x, order_c in itertools.product("CF", "CF"):
            out = C0.copy(order=order_c)
            assert kernel(X.copy(order=order_x), out, 1.5, -0.5) is out
            right(out, A, X, 1.5, -0.5, C0)
        right(kernel @ X, A, X)
        assert (kernel @ np.asfortranarray(X)).flags.f_contiguous
        by_columns = replace(kernel.problem, k=k, layout_b="column")
        assert kernel._binding._reading(by_columns).turns and not kernel._binding._reading(kernel.problem).turns
        spread = np.repeat(C0, 2, axis=1)[:, ::2]
        right(kernel(X, out=spread), A, X)
        right(kernel @ X[::-1], A, X[::-1])
    x = vector(n).astype(dtype)
    right(kernel @ x, A, x)
    assert (kernel @ np.zeros((n, 0), dtype)).shape == (m, 0)
    square = sp.csr_array(gallery.stencil2d(7, 5).astype(dtype))
    kernel = kernel_of(square, candidate.parse(USER_SPMM, name="csr_user"), k=35)
    X = vector(35, 35).astype(dtype)
    wanted = kernel @ X
    np.testing.assert_array_equal(kernel(X, out=X), wanted)


@pytest.mark.parametrize(("right_for", "change"), [
    ("its width", ("C_INDEX(row, j)", "row * 32 + j")),
    ("its width", ("j < k", "j < 32")),
    ("its layout", ("C_INDEX(row, j)", "row * ldc + j")),
])  # fmt: skip
def test_a_kernel_that_is_right_for_what_it_was_searched_for_alone(right_for, change):
    """Of other widths and layouts it would write outside C, here in the user's memory: the baseline computes them."""
    from sparsegen import candidate

    A = MATRICES["uniform"]
    text = USER_SPMM.replace("STORE_C(row, j, sum)", "STORE(C, C_INDEX(row, j), sum)").replace(*change)
    kernel = kernel_of(A, candidate.parse(text, name="csr_user"), k=32)
    for k in (32, 5, 31, 40):
        X = vector(A.shape[1], k)
        for given in (X, np.asfortranarray(X)):
            right(kernel @ given, A, X)
    own = kernel._binding.plan(32, "row", "row")
    assert own is not None
    assert (kernel._binding.plan(5, "row", "row") is None) == (right_for == "its width")
    assert (kernel._binding.plan(32, "column", "column") is None) == change[0].startswith("C_INDEX")


def test_spmm_compiled():
    A = MATRICES["powerlaw"]
    kernel = sparsegen.compile(A, op="spmm", k=5, budget=BUDGET, threads=1)
    for k in (5, 3, 1):
        X = vector(A.shape[1], k)
        right(kernel @ X, A, X)
        right(kernel @ np.asfortranarray(X), A, X)
    right(kernel @ X[:, 0], A, X[:, 0])
    Z = vector(A.shape[0], 5)
    right(kernel.T @ Z, A.T.tocsr(), Z)


@pytest.mark.parametrize("number", range(len(SPECIAL)))
def test_equal_calls_give_equal_bits(number):
    """Which thread takes which rows does not matter."""
    A, (name, params, _) = special(number)[1], SPECIAL[number]
    kernel = kernel_of(A, template(name, **params), threads=2)
    x = vector(A.shape[1])
    first = kernel @ x
    for _ in range(100):
        np.testing.assert_array_equal(kernel @ x, first)


def test_every_template_is_among_these():
    assert {name for name, _, _ in SPECIAL} == {each.name for each in templates.load("cpp") if each.op == "spmv"}


@pytest.mark.parametrize("name", [each.name for each in templates.load("cpp") if each.op == "spmm"])
def test_every_spmm_template(name):
    A, chosen = next(
        (MATRICES[where], each)
        for where in ("powerlaw", "block_3x3", "stencil2d")
        for each in instances(templates.get(name, "spmm"))
        if templates.refusal(each, problem_of(MATRICES[where], "spmm", k=9, facts=None)) is None
    )
    kernel = kernel_of(A, chosen, k=9, threads=2, facts=None)
    m, n = A.shape
    for k in (9, 4, 1, 17):
        for bad in (0.5, np.inf, np.nan):
            X, C0 = vector(n, k), vector(m, k, seed=20273)
            X[n // 3, k // 2] = bad
            for order_x, order_c in itertools.product("CF", "CF"):
                out = C0.copy(order=order_c)
                kernel(X.copy(order=order_x), out, -1.5, 2.0)
                right(out, A, X, -1.5, 2.0, C0)
            first = kernel @ X
            right(first, A, X)
            for _ in range(20):
                np.testing.assert_array_equal(kernel @ X, first)
