"""The synthetic matrices have the structure that their names promise, for every size."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from sparsegen import gallery
from sparsegen.errors import SparsegenValueError

size = st.integers(0, 23)
side = st.integers(1, 9)
seed = st.integers(2, 10**6).filter(lambda s: s != 42)


def check(A: sp.csr_array, shape: tuple[int, int]) -> None:
    """`A` is canonical CSR of float64 and int32, told from its arrays and not from its flags."""
    assert A.format == "csr" and A.shape == shape and A.dtype == np.float64
    assert A.indptr.dtype == A.indices.dtype == np.int32 and len(A.indptr) == shape[0] + 1
    fresh = sp.csr_array((A.data, A.indices, A.indptr), shape=shape)
    fresh.check_format(full_check=True)
    assert fresh.has_canonical_format and np.isfinite(A.data).all()


def laplacian(n: int) -> np.ndarray:
    return 2 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1)


@given(side, side)
def test_stencil2d_is_the_kronecker_sum(nx, ny) -> None:
    A = gallery.stencil2d(nx, ny)
    check(A, (nx * ny, nx * ny))
    expected = np.kron(laplacian(nx), np.eye(ny)) + np.kron(np.eye(nx), laplacian(ny))
    np.testing.assert_array_equal(A.toarray(), expected)


@given(side, side, side)
def test_stencil3d_is_the_kronecker_sum(nx, ny, nz) -> None:
    A = gallery.stencil3d(nx, ny, nz)
    check(A, (nx * ny * nz, nx * ny * nz))
    plane = np.kron(laplacian(nx), np.eye(ny)) + np.kron(np.eye(nx), laplacian(ny))
    expected = np.kron(plane, np.eye(nz)) + np.kron(np.eye(nx * ny), laplacian(nz))
    np.testing.assert_array_equal(A.toarray(), expected)


@given(st.sampled_from([(2, 5), (2, 9), (3, 7), (3, 27)]), side, side, seed)
def test_variable_stencils_are_symmetric_positive_definite(kind, a, b, seed) -> None:
    dimensions, points = kind
    make = gallery.stencil2d if dimensions == 2 else gallery.stencil3d
    sizes = (a, b, 3)[:dimensions]
    A, constant = make(*sizes, points=points, variable=True, seed=seed), make(*sizes, points=points)
    check(A, (np.prod(sizes),) * 2)
    np.testing.assert_array_equal(A.indices, constant.indices)
    dense = A.toarray()
    np.testing.assert_array_equal(dense, dense.T)
    assert np.linalg.eigvalsh(dense)[0] > 0
    assert (np.diag(constant.toarray()) == points - 1).all() and np.diff(constant.indptr).max() <= points


def test_a_stencil_of_other_points_is_refused() -> None:
    with pytest.raises(SparsegenValueError, match="5 or 9"):
        gallery.stencil2d(3, 3, points=7)
    with pytest.raises(SparsegenValueError, match="7 or 27"):
        gallery.stencil3d(3, 3, 3, points=5)


@given(size, size, st.lists(st.integers(-30, 30), unique=True, max_size=6), seed)
def test_banded(m, n, offsets, seed) -> None:
    A = gallery.banded(m, n, offsets, seed=seed)
    check(A, (m, n))
    B = A.tocoo()
    assert set((B.col - B.row).tolist()) <= set(offsets)
    assert A.nnz == sum(np.eye(m, n, k).sum() for k in offsets)
    half = gallery.banded(m, n, offsets, density=0.5, seed=seed)
    check(half, (m, n))
    assert half.nnz <= A.nnz


@given(size, size, st.integers(1, 5), st.integers(1, 5), st.integers(0, 4), seed)
def test_block(block_rows, block_columns, r, c, per_row, seed) -> None:
    A = gallery.block(block_rows, block_columns, r, c, per_row, seed)
    check(A, (block_rows * r, block_columns * c))
    filled = (A.toarray() != 0).reshape(block_rows, r, block_columns, c).sum(axis=(1, 3))
    assert set(np.unique(filled).tolist()) <= {0, r * c}
    counts = (filled > 0).sum(axis=1)
    assert (counts <= per_row).all() and (not per_row or not block_columns or (counts >= 1).all())


@given(size, size, st.floats(0, 1), seed)
def test_uniform_has_exactly_nnz(m, n, share, seed) -> None:
    nnz = int(share * m * n)
    A = gallery.uniform(m, n, nnz, seed)
    check(A, (m, n))
    assert A.nnz == nnz
    with pytest.raises(SparsegenValueError, match="do not fit"):
        gallery.uniform(m, n, m * n + 1, seed)


def test_uniform_at_large() -> None:
    A = gallery.uniform(5003, 4001, 20011)
    check(A, (5003, 4001))
    assert A.nnz == 20011 and 0 < np.diff(A.indptr).max() < 25


@given(st.integers(1, 60), st.integers(1, 60), st.integers(0, 200), seed)
def test_powerlaw(m, n, nnz, seed) -> None:
    A = gallery.powerlaw(m, n, nnz, seed=seed)
    check(A, (m, n))
    assert (A.nnz > 0) == (nnz > 0) and A.nnz <= nnz


def test_powerlaw_is_skewed() -> None:
    A = gallery.powerlaw(4093, 4093, 30011)
    assert np.diff(A.indptr).max() > 20 * A.nnz / 4093
    assert (np.diff(A.indptr) == 0).mean() > 0.1
    for skew in ((0.5, 0.5, 0.5, -0.5), (0.1, 0.1, 0.1, 0.1), (0.0, 0.5, 0.25, 0.25)):
        with pytest.raises(SparsegenValueError, match="four probabilities"):
            gallery.powerlaw(9, 9, 9, skew)
    with pytest.raises(SparsegenValueError, match="do not fit"):
        gallery.powerlaw(0, 9, 9)


@given(st.integers(0, 40).flatmap(lambda n: st.tuples(st.just(n), st.lists(st.integers(0, n), max_size=25))), seed)
def test_rows_have_the_given_lengths(case, seed) -> None:
    n, lengths = case
    A = gallery.rows(lengths, n, seed)
    check(A, (len(lengths), n))
    assert np.diff(A.indptr).tolist() == lengths
    for wrong in ([n + 1], [-1]):
        with pytest.raises(SparsegenValueError, match="row lengths"):
            gallery.rows(wrong, n)


@given(st.integers(0, 30), size, st.integers(0, 3), seed)
def test_dense_row(m, n, full, seed) -> None:
    if full > m:
        with pytest.raises(SparsegenValueError, match="do not fit"):
            gallery.dense_row(m, n, full)
        return
    A = gallery.dense_row(m, n, full, 2, seed)
    check(A, (m, n))
    lengths = np.diff(A.indptr)
    assert (lengths == n).sum() == (full if n > 2 else m)
    assert sorted(lengths.tolist()) == [min(2, n)] * (m - full) + [n] * full


@given(size, st.integers(0, 4), seed)
def test_arrow(n, width, seed) -> None:
    A = gallery.arrow(n, width, seed)
    check(A, (n, n))
    border = np.arange(n) >= n - width
    np.testing.assert_array_equal(A.toarray() != 0, np.eye(n, dtype=bool) | border[:, None] | border[None, :])


@given(st.integers(3, 30), st.integers(0, 40), seed)
def test_bipartite(m, n, seed) -> None:
    A = gallery.bipartite(m, n, seed=seed)
    check(A, (m, n + m))
    dense = A.toarray()
    np.testing.assert_array_equal(dense[:, n:], np.eye(m))
    assert (dense[:2, :n] >= 1).all() and set(np.unique(dense[2:, :n]).tolist()) <= {-1.0, 0.0, 1.0}
    with pytest.raises(SparsegenValueError, match="do not fit a column"):
        gallery.bipartite(1, n)


@given(st.integers(0, 300), st.floats(0, 4), seed)
def test_road(n, degree, seed) -> None:
    A = gallery.road(n, degree, seed)
    check(A, (n, n))
    dense = A.toarray()
    np.testing.assert_array_equal(dense, dense.T)
    assert (np.diff(A.indptr) <= 4).all() and (A.data > 0).all() and not dense.diagonal().any()
    wide = max(int(n**0.5), 1)
    streets = sum((i % wide < wide - 1 and i + 1 < n) + (i + wide < n) for i in range(n))
    assert A.nnz == 2 * min(round(degree * n / 2), streets)
    B = A.tocoo()
    assert not B.nnz or np.abs(B.row - B.col).max() <= wide


def test_road_at_large() -> None:
    A = gallery.road(10_007)
    assert abs(A.nnz / 10_007 - 2.6) < 0.01 and set(np.diff(A.indptr).tolist()) == {0, 1, 2, 3, 4}
    with pytest.raises(SparsegenValueError, match="0 to 4"):
        gallery.road(9, degree=5)


@given(st.integers(2, 200), st.floats(0, 6), st.integers(0, 2), seed)
def test_circuit(n, degree, rails, seed) -> None:
    A = gallery.circuit(n, degree, rails, seed)
    check(A, (n, n))
    dense = A.toarray()
    np.testing.assert_array_equal(dense, dense.T)
    beside = np.abs(dense).sum(axis=1) - dense.diagonal()
    assert (dense.diagonal() > beside).all()
    assert (dense[~np.eye(n, dtype=bool)] <= 0).all()
    assert A.nnz <= n + 2 * round(degree * n / 2) + 2 * rails * n


def test_circuit_at_large() -> None:
    A = gallery.circuit(8009, degree=3.0, rails=2)
    lengths = np.diff(A.indptr)
    assert sorted(lengths)[-2] > 0.1 * 8009 > 50 > sorted(lengths)[-3]
    assert abs((A.nnz - 2 * lengths[lengths > 500].sum()) / 8009 - 4.0) < 0.2  # the diagonal, and three beside it
    B = A.tocoo()
    assert np.median(np.abs(B.row - B.col)[(B.row != B.col) & (lengths[B.row] < 500) & (lengths[B.col] < 500)]) < 30
    for wrong in ((3, 1.0, 5), (9, -1.0, 0), (1, 2.0, 0)):
        with pytest.raises(SparsegenValueError, match="a circuit of"):
            gallery.circuit(*wrong)


@given(size, size, st.floats(0, 1), seed)
def test_pruned(m, n, density, seed) -> None:
    A = gallery.pruned(m, n, density, seed)
    check(A, (m, n))
    assert A.nnz == round(density * m * n)
    B = gallery.pruned(m, n, 1.0, seed)
    left_out = B.toarray()[A.toarray() == 0]
    if A.nnz and left_out.size:
        assert np.abs(A.data).min() >= np.abs(left_out).max()
        np.testing.assert_array_equal(A.toarray()[A.toarray() != 0], B.toarray()[A.toarray() != 0])
    with pytest.raises(SparsegenValueError, match="density"):
        gallery.pruned(m, n, 1.5)


def test_pruned_rows_are_uneven() -> None:
    lengths = np.diff(gallery.pruned(251, 509, 0.1).indptr)
    assert lengths.std() > 2 * np.diff(gallery.uniform(251, 509, lengths.sum()).indptr).std()


@given(size, st.integers(0, 9), st.integers(0, 4), seed)
def test_runs(m, length, per_row, seed) -> None:
    A = gallery.runs(m, length, per_row, seed)
    check(A, (m, m))
    assert A.nnz <= m * per_row * length
    if m > length:
        for row in A.toarray() != 0:
            starts = np.flatnonzero(np.diff(row.astype(int), prepend=0) == 1)
            ends = np.flatnonzero(np.diff(row.astype(int), append=0) == -1)
            assert len(starts) <= per_row and (ends - starts + 1 >= length).all()


@given(size, size, st.floats(0, 1), seed)
def test_permuted(m, n, share, seed) -> None:
    A = gallery.uniform(m, n, int(share * m * n), seed)
    B = gallery.permuted(A, seed)
    check(B, (m, n))
    assert sorted(A.data.tolist()) == sorted(B.data.tolist())
    for axis in (0, 1):
        assert sorted((A.toarray() != 0).sum(axis=axis)) == sorted((B.toarray() != 0).sum(axis=axis))


def test_seeds() -> None:
    first, again, other = (gallery.uniform(31, 37, 211, seed) for seed in (5, 5, 6))
    assert (first != again).nnz == 0 and (first != other).nnz > 0
    makers = (gallery.circuit, gallery.powerlaw, gallery.pruned, gallery.road, gallery.runs, gallery.uniform)
    for make in makers:
        assert inspect.signature(make).parameters["seed"].default == gallery.SEED


@pytest.mark.parametrize(
    "make", [gallery.uniform, gallery.powerlaw, gallery.dense_row, gallery.bipartite, gallery.runs]
)
def test_negative_sizes_are_refused(make) -> None:
    with pytest.raises(SparsegenValueError, match="negative size"):
        make(-1, 5, 3)


def test_small_covers_every_class_at_awkward_sizes() -> None:
    matrices = gallery.small()
    assert 18 <= len(matrices) <= 25
    for name, A in matrices.items():
        check(A, A.shape)
        assert 20 <= max(A.shape) <= 3000 and all(extent % 4 for extent in A.shape), name
        assert A.nnz, name
    lengths = {name: np.diff(A.indptr) for name, A in matrices.items()}
    assert (lengths["empty_rows"] == 0).mean() > 0.5
    assert lengths["dense_row"].max() == matrices["dense_row"].shape[1] > 10 * np.median(lengths["dense_row"])
    assert len(set(lengths["row_lengths"].tolist())) > 20
    assert lengths["powerlaw"].max() > 10 * lengths["powerlaw"].mean()
    assert any(A.shape[0] < A.shape[1] for A in matrices.values())
    assert any(A.shape[0] > A.shape[1] for A in matrices.values())
    assert matrices["dense"].nnz == np.prod(matrices["dense"].shape)
    assert len(set(matrices["stencil2d"].data.tolist())) == 2 and len(set(matrices["one_value"].data.tolist())) == 1


def test_tiny_has_every_edge_case() -> None:
    matrices = gallery.tiny()
    for A in matrices.values():
        check(A, A.shape)
    shapes = {A.shape for A in matrices.values()}
    assert {(0, 0), (1, 1)} <= shapes
    for m, n in ((0, 1), (1, 0)):
        assert any((s[0] == 0) == (m == 0) and (s[1] == 0) == (n == 0) for s in shapes)
    assert any(A.nnz == 0 and min(A.shape) for A in matrices.values()) and any(A.nnz == 1 for A in matrices.values())
    assert any(A.shape[0] == 1 < A.shape[1] for A in matrices.values())
    assert any(A.shape[1] == 1 < A.shape[0] for A in matrices.values())
