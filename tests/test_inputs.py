"""Anything a user calls a matrix becomes the same canonical CSR, untouched itself; anything malformed is refused."""

from __future__ import annotations

import builtins
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from sparsegen import canonical, gallery
from sparsegen.errors import SparsegenError, SparsegenTypeError, SparsegenValueError
from sparsegen.inputs import as_csr

FORMATS = ["csr", "csc", "coo", "bsr", "dia", "dok", "lil"]
DTYPES = ["?", "b", "B", "h", "H", "i", "I", "q", "Q", "f", "d", "F", "D"]


def check(A: sp.csr_array, shape: tuple[int, int] | None = None) -> sp.csr_array:
    """`A` is canonical, told from its arrays and not from its flags."""
    assert type(A) is sp.csr_array
    assert shape is None or A.shape == shape
    assert A.indptr.dtype == A.indices.dtype and A.indptr.dtype in (np.int32, np.int64)
    assert A.data.dtype.isnative and A.indices.dtype.isnative
    data = A.data.astype(np.float32) if A.dtype == np.float16 else A.data
    fresh = sp.csr_array((data, A.indices, A.indptr), shape=A.shape)
    fresh.check_format(full_check=True)
    assert fresh.has_canonical_format and A.has_canonical_format
    return A


def messy(dtype="d", index=np.int32) -> sp.csr_array:
    """Unsorted, with duplicates and a stored zero, and flags that lie about it."""
    indptr = np.array([0, 3, 3, 7, 8], index)
    indices = np.array([4, 0, 4, 2, 1, 2, 0, 3], index)
    A = sp.csr_array((np.array([1, 2, 3, 4, 0, 5, 6, 7]).astype(dtype), indices, indptr), shape=(4, 5))
    A.has_canonical_format = True
    A.has_sorted_indices = True
    return A


MESSY = [[2, 0, 0, 0, 4], [0, 0, 0, 0, 0], [6, 0, 9, 0, 0], [0, 0, 0, 7, 0]]


# ---------------------------------------------------------------- scipy


@pytest.mark.filterwarnings("ignore:Constructing a DIA")
@pytest.mark.parametrize("kind", ["array", "matrix"])
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", sorted(gallery.small()) + sorted(gallery.tiny()))
def test_every_format(name, form, kind) -> None:
    A = (gallery.small() | gallery.tiny())[name]
    if 0 in A.shape and form == "dia":
        pytest.skip("scipy makes no such array")
    B = getattr(sp, f"{form}_{kind}")(A)
    C = check(as_csr(B), A.shape)
    np.testing.assert_array_equal(C.indptr, A.indptr)
    np.testing.assert_array_equal(C.toarray(), A.toarray())
    assert C.dtype == np.float64


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "bsr", "lil"])
@pytest.mark.parametrize("dtype", [*DTYPES, "e"])
def test_dtypes_are_kept(dtype, form) -> None:
    A = gallery.uniform(13, 11, 37)
    data = (np.abs(A.data) * 3).astype(dtype)
    if dtype == "e":
        if form in ("bsr", "lil"):
            pytest.skip("scipy makes no such array")
        B = A.asformat(form)
        B.data = np.abs(B.data).astype("e")
        data = np.abs(A.data).astype("e")
    else:
        B = sp.csr_array((data, A.indices, A.indptr), shape=A.shape).asformat(form)
    C = check(as_csr(B), (13, 11))
    assert C.dtype == dtype
    expected = np.zeros(A.shape, dtype)
    expected[np.repeat(np.arange(13), np.diff(A.indptr)), A.indices] = data
    np.testing.assert_array_equal(C.astype("d" if dtype == "e" else dtype).toarray(), expected)


@pytest.mark.parametrize("dtype", [*DTYPES, "e"])
def test_messy_arrays_are_canonicalised_and_left_alone(dtype) -> None:
    A = messy(dtype)
    before = [array.copy() for array in (A.indptr, A.indices, A.data)]
    for array in (A.indptr, A.indices, A.data):
        array.flags.writeable = False
    B = check(as_csr(A), (4, 5))
    assert B.nnz == 6 and B.dtype == dtype
    expected = np.array(MESSY, dtype) if dtype == "?" else np.array(MESSY).astype(dtype)
    dense = np.zeros((4, 5), dtype)
    dense[np.repeat(np.arange(4), np.diff(B.indptr)), B.indices] = B.data
    np.testing.assert_array_equal(dense, expected)
    for array, old in zip((A.indptr, A.indices, A.data), before, strict=True):
        np.testing.assert_array_equal(array, old)
    assert A.has_canonical_format  # the lie is the caller's, and stays


def test_messy_columns_blocks_and_triplets() -> None:
    transposed = sp.csc_array((messy().data, messy().indices, messy().indptr), shape=(5, 4))
    transposed.has_canonical_format = transposed.has_sorted_indices = True
    np.testing.assert_array_equal(check(as_csr(transposed)).toarray(), np.array(MESSY).T)
    blocks = sp.bsr_array((np.arange(48.0).reshape(8, 2, 3), messy().indices, messy().indptr), shape=(8, 15))
    expected = np.zeros((8, 15))
    for row in range(4):
        for p in range(blocks.indptr[row], blocks.indptr[row + 1]):
            column = blocks.indices[p]
            expected[2 * row : 2 * row + 2, 3 * column : 3 * column + 3] += blocks.data[p]
    np.testing.assert_array_equal(check(as_csr(blocks)).toarray(), expected)
    rows, columns = np.array([3, 0, 3, 0]), np.array([1, 2, 1, 0])
    triplets = sp.coo_array((np.array([1.0, 2, 4, 0]), (rows, columns)), shape=(5, 3))
    triplets.has_canonical_format = True
    B = check(as_csr(triplets), (5, 3))
    assert B.nnz == 3 and B[3, 1] == 5 and triplets.nnz == 4 and rows.tolist() == [3, 0, 3, 0]


@given(st.data())
def test_any_triplets(data) -> None:
    m, n = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9))
    entries = data.draw(
        st.lists(st.tuples(st.integers(0, m - 1), st.integers(0, n - 1), st.integers(-9, 9)), max_size=60)
    )
    rows, columns, values = (np.array([entry[i] for entry in entries], dtype=np.int64) for i in range(3))
    expected = np.zeros((m, n), np.int64)
    np.add.at(expected, (rows, columns), values)
    A = sp.coo_array((values, (rows, columns)), shape=(m, n))
    B = check(as_csr(A), (m, n))
    assert B.nnz == len(set(zip(rows.tolist(), columns.tolist(), strict=True)))
    np.testing.assert_array_equal(B.toarray(), expected)
    order = np.argsort(rows, kind="stable")
    indptr = np.concatenate(([0], np.cumsum(np.bincount(rows, minlength=m))))
    C = check(as_csr(sp.csr_array((values[order], columns[order], indptr), shape=(m, n))), (m, n))
    np.testing.assert_array_equal(C.indices, B.indices)
    np.testing.assert_array_equal(C.data, B.data)


def test_duplicates_that_wrap_or_overflow() -> None:
    for dtype, value, total in (
        ("b", 100, -56),
        ("B", 200, 144),
        ("?", True, True),
        ("e", 60000, np.inf),
        ("f", 3e38, np.inf),
    ):
        A = sp.csr_array((np.ones(2), [0, 0], [0, 2]), shape=(1, 1))
        A.data = np.full(2, value, dtype)
        assert check(as_csr(A)).data.tolist() == [total]


def test_nan_and_stored_zeros_survive() -> None:
    A = sp.csr_array((np.array([np.nan, 0.0, -0.0, np.inf]), [0, 1, 2, 3], [0, 4]), shape=(1, 4))
    B = check(as_csr(A))
    np.testing.assert_array_equal(B.data, A.data)
    assert np.signbit(B.data[2])
    assert as_csr(A.tocsc()).nnz == as_csr(A.tocoo()).nnz == 4


def test_canonical_arrays_are_shared() -> None:
    A = gallery.uniform(51, 43, 333)
    for dtype in (np.float32, np.float64, np.complex64):
        B = A.astype(dtype)
        C = check(as_csr(B))
        assert np.shares_memory(C.data, B.data) and np.shares_memory(C.indices, B.indices)
        assert np.shares_memory(C.indptr, B.indptr) and C is not B


@pytest.mark.parametrize("index", ["i8", "u4", "i2", ">i4", ">i8", "u8"])
def test_index_dtypes(index) -> None:
    A = gallery.uniform(51, 43, 333)
    for indptr_type, indices_type in ((index, index), (index, "i4"), ("i4", index)):
        B = A.copy()
        B.indptr, B.indices = A.indptr.astype(indptr_type), A.indices.astype(indices_type)
        C = check(as_csr(B))
        assert C.indices.dtype == np.int32 and np.shares_memory(C.data, B.data)
        assert (C != A).nnz == 0 and B.indices.dtype == indices_type


def test_big_endian_values_and_strided_arrays() -> None:
    A = gallery.uniform(51, 43, 333)
    B = A.copy()
    B.data = np.repeat(A.data.astype(">f8"), 2)[::2]
    B.indices = np.repeat(A.indices, 3)[::3]
    C = check(as_csr(B))
    np.testing.assert_array_equal(C.toarray(), A.toarray())


def test_64_bit_columns_are_kept() -> None:
    size = 2**40
    A = sp.csr_array((np.ones(3), np.array([size - 1, 5, 5]), np.array([0, 1, 3])), shape=(2, size))
    B = check(as_csr(A), (2, size))
    assert B.indices.dtype == np.int64 and B.indices.tolist() == [size - 1, 5] and B.data.tolist() == [1, 2]
    edge = sp.coo_array((np.ones(2), ([0, 1], [2**31 - 1, 2**31])), shape=(2, 2**31 + 1))
    assert check(as_csr(edge)).indices.tolist() == [2**31 - 1, 2**31]


def test_more_rows_than_can_be_pointed_at() -> None:
    A = sp.coo_array((np.ones(2), ([0, 2**40], [3, 4])), shape=(2**40 + 1, 9))
    with pytest.raises(SparsegenValueError, match=r"row pointers alone .* GiB; drop the empty rows"):
        as_csr(A)
    A = sp.csc_array((np.ones(2), np.array([0, 2**40]), np.array([0, 1, 2])), shape=(2**40 + 1, 2))
    with pytest.raises(SparsegenValueError, match=r"row pointers alone"):
        as_csr(A)


def test_spare_capacity_is_cut_off() -> None:
    A = gallery.uniform(21, 23, 97)
    B = A.copy()
    B.data, B.indices = np.append(A.data, [9.0, 9]), np.append(A.indices, [999, -5]).astype(np.int32)
    C = check(as_csr(B))
    assert C.nnz == 97 and (C != A).nnz == 0


@pytest.mark.parametrize("form", ["coo", "csr", "dok"])
def test_one_dimension_is_one_row(form) -> None:
    try:
        A = getattr(sp, f"{form}_array")(np.array([0.0, 3, 0, 0, 5]))
    except ValueError:
        pytest.skip("this scipy has no such 1-D array")
    np.testing.assert_array_equal(check(as_csr(A), (1, 5)).toarray(), [[0, 3, 0, 0, 5]])


# ---------------------------------------------------------------- hand-made and wrong


def broken(**changes) -> sp.csr_array:
    """The 4 x 5 matrix with some of its arrays replaced behind scipy's back."""
    A = messy()
    for name, value in changes.items():
        setattr(A, name, value)
    return A


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"indptr": np.array([0, 3, 3, 7], np.int32)}, ValueError, "indptr has 4 elements; 4 rows need 5"),
        ({"indptr": np.array([0, 3, 3, 7, 8, 8], np.int32)}, ValueError, "indptr has 6 elements"),
        ({"indptr": np.empty(0, np.int32)}, ValueError, "indptr has 0 elements"),
        ({"indptr": np.array([1, 3, 3, 7, 8])}, ValueError, r"indptr\[0\] is 1; it must be 0"),
        ({"indptr": np.array([-1, 3, 3, 7, 8])}, ValueError, r"indptr\[0\] is -1"),
        ({"indptr": np.array([0, 3, 2, 7, 8])}, ValueError, r"decreases at row 1: indptr\[1\] = 3, indptr\[2\] = 2"),
        ({"indptr": np.array([0, 3, -(2**62), 7, 8])}, ValueError, "decreases at row 1"),
        ({"indptr": np.array([0, 3, 3, 7, 9])}, ValueError, "indptr ends at 9 but indices has only 8"),
        ({"indptr": np.array([0, 3, 3, 7, 2**62])}, ValueError, "indptr ends at 4611686018427387904"),
        ({"indptr": np.array([0, 3, 3, 7, 2**63], np.uint64)}, ValueError, "indptr holds 9223372036854775808, beyond"),
        ({"indptr": np.array([[0, 3, 3, 7, 8]])}, ValueError, "indptr has 2 dimensions"),
        ({"indptr": np.array([0, 3, 3, 7, 8.0])}, TypeError, "indptr is of dtype float64"),
        ({"indptr": None}, ValueError, "indptr has 0 dimensions"),
        ({"data": np.ones(7)}, ValueError, "indptr ends at 8 but data has only 7"),
        ({"data": np.ones(9)}, ValueError, "indices has 8 elements and data 9"),
        ({"indices": np.array([4, 0, 5, 2, 1, 2, 0, 3])}, ValueError, r"indices\[2\] = 5 in row 0: outside 0\.\.4"),
        ({"indices": np.array([4, 0, 4, 2, 1, 2, 0, -1])}, ValueError, r"indices\[7\] = -1 in row 3"),
        ({"indices": np.array([4, 0, 4, 2**31 + 1, 1, 2, 0, 3])}, ValueError, r"indices\[3\] = 2147483649 in row 2"),
        ({"indices": np.array([4, 0, 4, 2**63 + 1, 1, 2, 0, 3], np.uint64)}, ValueError, "indices holds"),
        ({"indices": np.array([4, 0, np.nan, 2, 1, 2, 0, 3])}, TypeError, "indices is of dtype float64"),
        ({"indices": np.array([1] * 8, bool)}, TypeError, "indices is of dtype bool"),
        ({"indices": np.array(list("abcdefgh"))}, TypeError, "indices is of dtype <U1"),
        ({"data": np.array([None] * 8)}, TypeError, "values of dtype object"),
        ({"data": np.array(["1"] * 8)}, TypeError, "values of dtype <U1"),
        ({"data": np.ones(8, "M8[s]")}, TypeError, "values of dtype datetime64"),
        ({"data": np.ones(8, np.longdouble)}, TypeError, r"extended precision.*A\.astype\(numpy\.float64\)"),
        ({"data": np.ones(8, np.clongdouble)}, TypeError, "extended precision"),
        ({"data": np.zeros(8, [("a", "f4")])}, TypeError, "values of dtype"),
        ({"data": np.ones((8, 2))}, ValueError, "data has 2 dimensions"),
    ],
)
def test_malformed_csr_is_refused(changes, kind, message) -> None:
    with pytest.raises(kind, match=message) as error:
        as_csr(broken(**changes))
    assert isinstance(error.value, SparsegenError) and "\n" not in str(error.value)


def test_the_first_bad_entry_is_found_in_any_chunk(monkeypatch) -> None:
    monkeypatch.setattr(canonical, "CHUNK", 7)
    A = gallery.uniform(51, 43, 333)
    for at in (0, 6, 7, 150, 332):
        B = A.copy()
        B.indices = A.indices.copy()
        B.indices[[at, -1]] = 43
        row = np.searchsorted(A.indptr, at, side="right") - 1
        with pytest.raises(SparsegenValueError, match=rf"indices\[{at}\] = 43 in row {row}"):
            as_csr(B)
    for row in (0, 6, 7, 40):
        B = A.copy()
        B.indptr = A.indptr.copy()
        B.indptr[row + 1 :] += 1
        B.indptr[row + 2 :] -= 1000
        with pytest.raises(SparsegenValueError, match=f"decreases at row {row + 1}"):
            as_csr(B)


def test_a_column_where_there_is_none() -> None:
    A = sp.csr_array((3, 0))
    A.indices, A.data, A.indptr = np.array([0]), np.array([1.0]), np.array([0, 1, 1, 1])
    with pytest.raises(SparsegenValueError, match="that has no columns"):
        as_csr(A)


def test_other_malformed_formats() -> None:
    A = sp.csc_array(gallery.uniform(9, 7, 21))
    A.indices = A.indices + 5
    with pytest.raises(SparsegenValueError, match=r"in column \d+: outside 0\.\.8, the rows"):
        as_csr(A)
    A = sp.csc_array(gallery.uniform(9, 7, 21))
    A.indptr = A.indptr[:-1]
    with pytest.raises(SparsegenValueError, match="7 columns need 8"):
        as_csr(A)
    A = sp.coo_array(gallery.uniform(9, 7, 21))
    A.coords = (A.row, np.full(21, 7))
    with pytest.raises(SparsegenValueError, match=r"entry 0 has column 7, outside 0\.\.6"):
        as_csr(A)
    A.coords = (np.full(21, -1), np.zeros(21, int))
    with pytest.raises(SparsegenValueError, match="entry 0 has row -1"):
        as_csr(A)
    A.coords = (np.zeros(20, int), np.zeros(21, int))
    with pytest.raises(SparsegenValueError, match="arrays of one length: 20 row numbers, 21"):
        as_csr(A)
    A = sp.bsr_array(gallery.block(5, 7, 2, 3), blocksize=(2, 3))
    A.indices = A.indices + 7
    with pytest.raises(SparsegenValueError, match=r"in block row 0: outside 0\.\.6, the block columns"):
        as_csr(A)
    A.data = np.ones((len(A.data), 4, 3))
    with pytest.raises(SparsegenValueError, match="blocks of 4 x 3 do not tile a 10 x 21"):
        as_csr(A)
    A = sp.lil_array(gallery.uniform(9, 7, 21))
    A.rows[4] = [6, 99]
    A.data[4] = [1.0, 2.0]
    with pytest.raises(SparsegenValueError, match="= 99 in row 4"):
        as_csr(A)
    A.rows[4] = [6]
    with pytest.raises(SparsegenValueError, match="row 4 has 1 columns but 2 values"):
        as_csr(A)
    A.rows[4] = [6, "x"]
    with pytest.raises(SparsegenTypeError):
        as_csr(A)
    A = sp.dia_array(gallery.banded(9, 7, (-1, 0, 2)))
    A.offsets = np.array([-1, 0, 0])
    with pytest.raises(SparsegenValueError, match="occurs twice"):
        as_csr(A)
    A.offsets = np.array([-1, 0])
    with pytest.raises(SparsegenValueError, match="3 stored diagonals need as many"):
        as_csr(A)


# ---------------------------------------------------------------- dense, files, foreign objects


@pytest.mark.filterwarnings("ignore:.*is nonzero; a dense product")
def test_dense_arrays() -> None:
    A = gallery.uniform(13, 17, 41).toarray()
    for B in (A, np.asfortranarray(A), A[::-1][::-1], A.tolist(), tuple(map(tuple, A.tolist())), A.astype(">f8")):
        np.testing.assert_array_equal(check(as_csr(B), (13, 17)).toarray(), A)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PendingDeprecationWarning)
        np.testing.assert_array_equal(check(as_csr(np.asmatrix(A))).toarray(), A)
    assert as_csr([[0, 3], [0, 0]]).dtype == np.int64 and as_csr([[False, True]]).dtype == bool
    assert as_csr(np.eye(3, dtype=np.float16)).dtype == np.float16
    np.testing.assert_array_equal(as_csr([0, 3, 0]).toarray(), [[0, 3, 0]])
    assert np.isnan(as_csr(np.array([[0, np.nan, 0, 0, 0]])).data).all()
    for shape in ((0, 0), (0, 5), (5, 0)):
        assert check(as_csr(np.zeros(shape)), shape).nnz == 0


def test_a_full_dense_array_is_warned_of() -> None:
    with pytest.warns(UserWarning, match="50% of this 2 x 2 array is nonzero") as caught:
        as_csr(np.eye(2))
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        as_csr(np.eye(4))


@pytest.mark.parametrize(
    ("A", "kind", "message"),
    [
        ([[1, 2], [3]], TypeError, "not a rectangular array"),
        ([["a", "b"]], TypeError, "values of dtype"),
        (np.array([[None, 1]]), TypeError, "values of dtype object"),
        ([[10**30, 1]], TypeError, "values of dtype object"),
        (np.eye(3, dtype=np.longdouble), TypeError, "extended precision"),
        (np.ma.masked_array(np.eye(3), mask=np.eye(3)), TypeError, "masked array"),
        (np.zeros((2, 2, 2)), ValueError, "3 dimensions"),
        (np.float64(3), ValueError, "0 dimensions"),
        (np.array(3.0), ValueError, "0 dimensions"),
        (3, TypeError, "builtins.int is not a matrix; expected a scipy"),
        (None, TypeError, "NoneType"),
        ({}, TypeError, "builtins.dict"),
        (b"a.mtx", TypeError, "builtins.bytes"),
        (sp.linalg.aslinearoperator(np.eye(3)), TypeError, "is not a matrix"),
    ],
)
def test_no_matrix(A, kind, message) -> None:
    with pytest.raises(kind, match=message) as error:
        as_csr(A)
    assert isinstance(error.value, SparsegenError)


def test_paths(tmp_path) -> None:
    path = tmp_path / "a.mtx"
    path.write_text("%%MatrixMarket matrix coordinate real symmetric\n3 3 2\n1 1 4\n3 1 5\n")
    for given_path in (path, str(path)):
        np.testing.assert_array_equal(check(as_csr(given_path)).toarray(), [[4, 0, 5], [0, 0, 0], [5, 0, 0]])
    with pytest.raises(SparsegenValueError, match="no such file"):
        as_csr(tmp_path / "b.mtx")
    path.write_text("%%MatrixMarket matrix coordinate real general\n1099511627776 3 1\n1 1 4\n")
    with pytest.raises(SparsegenValueError, match="row pointers alone"):
        as_csr(path)


class OnGpu:
    """What a cupyx or cupy array shows of itself."""

    def __init__(self, host) -> None:
        self.host, self.shape, self.dtype = host, host.shape, host.dtype

    def get(self):
        if isinstance(self.host, Exception):
            raise self.host
        return self.host


def test_gpu_arrays_are_fetched() -> None:
    np.testing.assert_array_equal(check(as_csr(OnGpu(messy()))).toarray(), MESSY)
    A = gallery.uniform(13, 17, 41)
    np.testing.assert_array_equal(check(as_csr(OnGpu(A.toarray()))).toarray(), A.toarray())
    lost = OnGpu(A)
    lost.host = RuntimeError("device lost")
    with pytest.raises(SparsegenValueError, match="device lost"):
        as_csr(lost)
    with pytest.raises(SparsegenValueError, match=r"indices\[2\] = 5"):
        as_csr(OnGpu(broken(indices=np.array([4, 0, 5, 2, 1, 2, 0, 3]))))


def test_pydata_sparse() -> None:
    sparse = pytest.importorskip("sparse")
    A = gallery.uniform(13, 17, 41)
    for B in (sparse.COO.from_scipy_sparse(A), sparse.GCXS.from_scipy_sparse(A)):
        np.testing.assert_array_equal(check(as_csr(B)).toarray(), A.toarray())
    with pytest.raises(SparsegenValueError, match="3 dimensions"):
        as_csr(sparse.COO(np.zeros((3, 1), int), np.ones(1), shape=(2, 2, 2)))


def test_neither_torch_nor_cupy_is_imported() -> None:
    code = (
        "import sys, numpy as np, scipy.sparse as sp\n"
        "from sparsegen.inputs import as_csr\n"
        "as_csr(np.eye(9)); as_csr(sp.eye_array(9))\n"
        "heavy = {'torch', 'cupy', 'h5py', 'fast_matrix_market', 'sparse'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    root = Path(__file__).resolve().parent.parent
    subprocess.run([sys.executable, "-c", code], check=True, cwd=root)


# ---------------------------------------------------------------- torch


@pytest.fixture(scope="module")
def torch():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch = pytest.importorskip("torch")
        torch.eye(2).to_sparse_csr()  # warns, once a process, that this layout is in beta
    return torch


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", ["csr", "csc", "coo", "bsr", "bsc"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "int64", "bool", "float16", "bfloat16"])
def test_torch_layouts(torch, layout, dtype) -> None:
    A = gallery.block(5, 7, 2, 3)
    if layout in ("bsr", "bsc") and dtype in ("bool", "float16", "bfloat16", "int64", "complex64"):
        dtype = "float32"
    dense = torch.tensor(A.toarray() * 3).to(getattr(torch, dtype))
    blocks = [(2, 3)] if layout in ("bsr", "bsc") else []
    B = dense.to_sparse() if layout == "coo" else getattr(dense, f"to_sparse_{layout}")(*blocks)
    C = check(as_csr(B), A.shape)
    assert C.dtype == ("float32" if dtype == "bfloat16" else dtype)
    expected = dense.float().numpy() if dtype in ("bfloat16", "float16") else dense.numpy()
    np.testing.assert_array_equal(C.astype(np.float32).toarray() if dtype == "float16" else C.toarray(), expected)


@pytest.mark.filterwarnings("ignore:Sparse")
def test_torch_oddities(torch) -> None:
    A = gallery.uniform(13, 17, 41)
    indices = torch.tensor(np.stack([np.r_[A.tocoo().row, 3], np.r_[A.tocoo().col, 5]]))
    values = torch.tensor(np.r_[A.data, 2.5], requires_grad=True)
    uncoalesced = torch.sparse_coo_tensor(indices, values, size=(13, 17), is_coalesced=False)
    expected = A.toarray()
    expected[3, 5] += 2.5
    np.testing.assert_array_equal(check(as_csr(uncoalesced)).toarray(), expected)
    assert not uncoalesced.is_coalesced() and uncoalesced._nnz() == 42
    csr = torch.sparse_csr_tensor(torch.tensor(A.indptr), torch.tensor(A.indices), torch.tensor(A.data), size=A.shape)
    np.testing.assert_array_equal(check(as_csr(csr.requires_grad_())).toarray(), A.toarray())
    conj = torch.tensor(A.toarray() * (1 + 2j)).conj()
    np.testing.assert_array_equal(check(as_csr(conj)).toarray(), A.toarray() * (1 - 2j))
    line = torch.tensor([0.0, 3, 0, 0, 5]).to_sparse()
    np.testing.assert_array_equal(check(as_csr(line), (1, 5)).toarray(), [[0, 3, 0, 0, 5]])
    for shape in ((0, 0), (0, 5), (5, 0)):
        assert check(as_csr(torch.zeros(shape).to_sparse()), shape).nnz == 0
        assert check(as_csr(torch.zeros(shape).to_sparse_csr()), shape).nnz == 0
    with pytest.raises(SparsegenValueError, match="3 dimensions"):
        as_csr(torch.zeros(2, 2, 2).to_sparse())
    with pytest.raises(SparsegenValueError, match="hybrid"):
        as_csr(torch.ones(3, 4).to_sparse(1))
    with pytest.raises(SparsegenTypeError, match="dtype torch"):
        as_csr(torch.zeros(5, 5, dtype=torch.float8_e4m3fn))


@pytest.mark.filterwarnings("ignore:Sparse")
def test_malformed_torch_tensors_are_refused(torch) -> None:
    crow, col, values = torch.tensor([0, 1, 2]), torch.tensor([0, 7]), torch.ones(2)
    bad = torch.sparse_csr_tensor(crow, col, values, size=(2, 3), check_invariants=False)
    with pytest.raises(SparsegenValueError, match=r"indices\[1\] = 7 in row 1: outside 0\.\.2"):
        as_csr(bad)
    bad = torch.sparse_coo_tensor(torch.tensor([[0, 9], [0, 1]]), values, size=(2, 3), check_invariants=False)
    with pytest.raises(SparsegenValueError, match="entry 1 has row 9"):
        as_csr(bad)


def test_the_suite_runs_with_an_import_of_torch_forbidden(monkeypatch) -> None:
    """as_csr of foreign objects asks sys.modules, it does not import."""
    real = builtins.__import__

    def guarded(name, *args, **kwargs):
        assert name.split(".")[0] not in ("torch", "cupy", "cupyx", "sparse"), name
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", guarded)
    assert as_csr(sp.eye_array(9)).nnz == 9 and as_csr(OnGpu(messy())).nnz == 6
