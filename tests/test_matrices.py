"""Every format read right, every kind of odd file read right or refused with one error that names it."""

from __future__ import annotations

import bz2
import gzip
import io
import os
import re
import sys
import tarfile
import tracemalloc
from pathlib import Path

import h5py
import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp

from sparsegen import gallery, matrices, paths
from sparsegen.errors import SparsegenTypeError, SparsegenValueError
from sparsegen.readers import container, matrix_market

REAL = "%%MatrixMarket matrix coordinate real general\n"


@pytest.fixture
def load(tmp_path: Path):
    """load(text, name): the matrix of a file with that content."""

    def load(content: str | bytes, name: str = "case.mtx"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode("latin-1"))
        return matrices.load(path)

    return load


def dense(A) -> list:
    assert A.format == "csr" and A.has_canonical_format
    fresh = sp.csr_array((A.data, A.indices, A.indptr), shape=A.shape)
    assert fresh.has_canonical_format
    return A.toarray().tolist()


# ---------------------------------------------------------------- Matrix Market, read


@pytest.mark.parametrize("way", ["fast", "careful", "scipy"])
@pytest.mark.parametrize(
    ("head", "body", "expected"),
    [
        ("coordinate real general", "2 3 2\n2 3 1.5\n1 1 -2e-1\n", [[-0.2, 0, 0], [0, 0, 1.5]]),
        ("coordinate integer general", "2 2 2\n2 1 9007199254740993\n1 1 -4\n", [[-4, 0], [9007199254740993, 0]]),
        ("coordinate pattern general", "2 2 1\n2 1\n", [[0, 0], [1.0, 0]]),
        ("coordinate complex general", "1 2 2\n1 2 3 -4\n1 1 .5 0\n", [[0.5, 3 - 4j]]),
        ("coordinate real symmetric", "2 2 2\n1 1 7\n2 1 5\n", [[7, 5], [5, 0]]),
        ("coordinate real symmetric", "2 2 2\n1 1 7\n1 2 5\n", [[7, 5], [5, 0]]),
        ("coordinate pattern symmetric", "2 2 1\n2 1\n", [[0, 1], [1, 0]]),
        ("coordinate integer skew-symmetric", "2 2 1\n2 1 5\n", [[0, -5], [5, 0]]),
        ("coordinate complex skew-symmetric", "2 2 1\n2 1 5 1\n", [[0, -5 - 1j], [5 + 1j, 0]]),
        ("coordinate complex symmetric", "2 2 1\n2 1 5 1\n", [[0, 5 + 1j], [5 + 1j, 0]]),
        ("coordinate complex hermitian", "2 2 2\n2 1 5 1\n1 1 3 0\n", [[3, 5 - 1j], [5 + 1j, 0]]),
        ("coordinate real hermitian", "2 2 1\n2 1 5\n", [[0, 5], [5, 0]]),
        ("array real general", "2 3\n1\n2\n3\n4\n5\n6\n", [[1, 3, 5], [2, 4, 6]]),
        ("array integer general", "1 2\n3\n4\n", [[3, 4]]),
        ("array complex general", "1 2\n1 2\n3 4\n", [[1 + 2j, 3 + 4j]]),
        ("array real symmetric", "3 3\n1\n2\n3\n4\n5\n6\n", [[1, 2, 3], [2, 4, 5], [3, 5, 6]]),
        ("array real skew-symmetric", "3 3\n1\n2\n3\n", [[0, -1, -2], [1, 0, -3], [2, 3, 0]]),
        ("array complex hermitian", "2 2\n1 0\n2 3\n4 0\n", [[1, 2 - 3j], [2 + 3j, 4]]),
    ],
)
def test_fields_and_symmetries(load, monkeypatch, way, head, body, expected) -> None:
    if way == "careful":
        monkeypatch.setattr(matrix_market, "_fast", lambda raw, header: None)
    elif way == "scipy":
        monkeypatch.setitem(sys.modules, "fast_matrix_market", None)
    A = load(f"%%MatrixMarket matrix {head}\n% a comment\n{body}")
    assert dense(A) == expected
    kind = {"integer": np.int64, "complex": np.complex128}.get(head.split()[1], np.float64)
    assert A.dtype == kind and A.indices.dtype == np.int32


def test_the_fast_way_is_taken_by_plain_files(load, monkeypatch) -> None:
    monkeypatch.setattr(matrix_market, "_careful", None)
    for body in (
        "3 3 2\n1 1 1\n3 2 -1.5E+01",
        "3 3 2\r\n1\t1\t.5e3\r\n\r\n 3 2 nan \r\n",
        "3 3 2\n1 1 1D2\n3 2 -INF\n",
    ):
        assert load(REAL + body).nnz == 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (REAL.upper().replace("%%MATRIXMARKET", "%%matrixmarket") + "1 1 1\n1 1 3\n", [[3]]),
        ("\n\n" + REAL + "1 1 1\n1 1 3\n", [[3]]),
        ("\xef\xbb\xbf" + REAL + "1 1 1\n1 1 3\n", [[3]]),
        ("   " + REAL + "\n% c\n\n  1\t1   1  \n  1\t 1   3  ", [[3]]),
        ((REAL + "% c\n1 1 1\n1 1 3\n").replace("\n", "\r\n"), [[3]]),
        ((REAL + "% c\n1 1 1\n1 1 3\n").replace("\n", "\r"), [[3]]),
        (REAL + "2 1 2\n% in between\n1 1 3\n\n\n% again\n2 1 4 % and here\n%", [[3], [4]]),
        (REAL + "1 1 1\n1 1 1.5D+02\n", [[150]]),
        (REAL + "1 1 1\n1 1 1.5d2\n", [[150]]),
        (REAL + "1 1 1\n+1 01 +3\n", [[3]]),
        (REAL + "1 1 1\n1 1 3.\n", [[3]]),
        (REAL + "1 1 3\n1 1 1\n1 1 1e0\n1 1 .5\n", [[2.5]]),
        (REAL + "1 2 2\n1 1 0\n1 2 1e-400\n", [[0, 0]]),
        (REAL + "1 2 2\n1 1 -Infinity\n1 2 +inf\n", [[-np.inf, np.inf]]),
        ("%%MatrixMarket vector coordinate real general\n3 1\n2 5\n", [[0], [5], [0]]),
        ("%%MatrixMarket vector array integer general\n2\n2\n5\n", [[2], [5]]),
        ("%MatrixMarket matrix coordinate double general\n1 1 1\n1 1 3\n", [[3]]),
    ],
)
def test_odd_but_clear(load, text, expected) -> None:
    assert dense(load(text)) == expected


def test_nan_and_stored_zeros_are_kept(load) -> None:
    A = load(REAL + "1 4 4\n1 1 nan\n1 2 0\n1 3 -0.0\n1 4 NaN\n")
    assert A.nnz == 4 and np.isnan(A.data[[0, 3]]).all() and A.data[1:3].tolist() == [0, 0]
    assert load("%%MatrixMarket matrix array real general\n2 2\n0\n1\n0\n0\n").nnz == 4


@pytest.mark.parametrize(
    "text",
    ["1 1 1\n1 1 1e310\n", "1 1 1\n1 1 -1" + "0" * 400 + "\n", "1 1 1\n1 1 1E+9999"],
    ids=["e", "digits", "huge"],
)
def test_beyond_double_range_is_infinite_with_a_warning(load, text) -> None:
    with pytest.warns(UserWarning, match=r"case.mtx: 1 values are beyond .* line 3"):
        A = load(REAL + text)
    assert np.isinf(A.data).all()


def test_further_numbers_are_left_out_with_a_warning(load) -> None:
    with pytest.warns(UserWarning, match=r"2 lines have more than 3 numbers \(first: line 4\)"):
        A = load(REAL + "2 2 3\n1 1 1\n1 2 2 9\n2 2 3 9 9\n")
    assert dense(A) == [[1, 2], [0, 3]]
    with pytest.warns(UserWarning, match="more than 2 numbers"):
        A = load("%%MatrixMarket matrix coordinate pattern general\n2 2 1\n2 1 7.5\n")
    assert dense(A) == [[0, 0], [1, 0]]


def test_a_hermitian_diagonal_that_is_not_real_is_warned_of(load) -> None:
    with pytest.warns(UserWarning, match="diagonal is not real"):
        load("%%MatrixMarket matrix coordinate complex hermitian\n1 1 1\n1 1 2 3\n")


def test_zero_sizes(load) -> None:
    for shape in ((0, 0), (0, 5), (5, 0)):
        assert load(REAL + f"{shape[0]} {shape[1]} 0\n").shape == shape
        assert load(f"%%MatrixMarket matrix array real general\n{shape[0]} {shape[1]}\n").shape == shape


def test_hypersparse_keeps_64_bit_triplets(load) -> None:
    size = 2**40
    A = load(REAL + f"{size} {size} 3\n{size - 1} {size} 2\n1 1 1\n1 1 5\n")
    assert A.format == "coo" and A.shape == (size, size) and A.has_canonical_format
    assert A.row.dtype == A.col.dtype == np.int64
    assert list(zip(A.row.tolist(), A.col.tolist(), A.data.tolist(), strict=True)) == [
        (0, 0, 6.0), (size - 2, size - 1, 2.0),
    ]  # fmt: skip
    wide = load(REAL + f"3 {size} 1\n3 {size} 2\n")
    assert wide.format == "csr" and wide.indices.dtype == np.int64 and wide.indices.tolist() == [size - 1]


# ---------------------------------------------------------------- Matrix Market, refused

REFUSED = [
    ("", r"empty"),
    (" \n\n ", r"empty"),
    ("1 1 1\n1 1 3\n", r"line 1: got '1 1 1'; expected a %%MatrixMarket banner"),
    ("% comment\n1 1 1\n1 1 3\n", r"line 1.*banner"),
    ("%%MatrixMarket\n1 1 1\n", r"line 1.*0 words"),
    ("%%MatrixMarket matrix coordinate real\n1 1 1\n1 1 3\n", r"line 1.*3 words"),
    ("%%MatrixMarket matrix coordinate real general extra\n1 1 1\n1 1 3\n", r"line 1.*5 words"),
    (
        "%%MatrixMarket tensor coordinate real general\n1 1 1\n1 1 3\n",
        r"'tensor' in the banner; expected one of matrix",
    ),
    ("%%MatrixMarket matrix table real general\n1 1 1\n1 1 3\n", r"'table'"),
    ("%%MatrixMarket matrix coordinate quaternion general\n1 1 1\n1 1 3\n", r"'quaternion'"),
    ("%%MatrixMarket matrix coordinate real lower\n1 1 1\n1 1 3\n", r"'lower'"),
    ("%%MatrixMarket matrix array pattern general\n1 1\n", r"pattern has no values"),
    ("%%MatrixMarket matrix coordinate pattern skew-symmetric\n2 2 1\n2 1\n", r"pattern has no values"),
    ("%%MatrixMarket vector coordinate real symmetric\n2 1\n2 1\n", r"vector cannot be symmetric"),
    (REAL, r"line 1: the file ends before its size line \(rows, columns, entries\)"),
    (REAL + "% only\n% comments\n", r"ends before its size line"),
    (REAL + "2 2\n1 1 3\n", r"line 2: size line '2 2'; expected 3 integers"),
    (REAL + "2 2 1 9\n1 1 3\n", r"expected 3 integers"),
    (REAL + "2 2.5 1\n1 1 3\n", r"expected 3 integers"),
    (REAL + "-2 2 1\n1 1 3\n", r"from 0 to 2\^63"),
    (REAL + "2 2 -1\n", r"from 0 to 2\^63"),
    (REAL + "9223372036854775808 1 1\n1 1 1\n", r"from 0 to 2\^63"),
    (REAL + "1" * 5000 + " 1 1\n1 1 1\n", r"from 0 to 2\^63"),
    (REAL + "3 3 2\n1 1 3\n", r"line 3: the file ends after 1 of the 2 entries"),
    (REAL + "3 3 1000000000000000000\n1 1 3\n", r"after 1 of the 1000000000000000000 entries"),
    (REAL + "3 3 1\n1 1 3\n2 2 3\n", r"line 4: more lines than the 1 entries"),
    (REAL + "3 3 0\n1 1 3\n", r"line 3: more lines than the 0 entries"),
    (REAL + "3 3 2\n0 1 3\n1 1 3\n", r"line 3: row index '0'; expected 1 to 3 \(indices count from 1\)"),
    (REAL + "3 3 2\n1 1 3\n1 0 3\n", r"line 4: column index '0'"),
    (REAL + "3 3 1\n4 1 3\n", r"line 3: row index '4'; expected 1 to 3"),
    (REAL + "3 3 1\n1 4 3\n", r"line 3: column index '4'; expected 1 to 3"),
    (REAL + "3 3 1\n-1 1 3\n", r"line 3: row index '-1'"),
    (REAL + "3 3 1\n19223372036854775808 1 3\n", r"line 3: row index"),
    (REAL + "3 3 1\n" + "9" * 6000 + " 1 3\n", r"line 3: row index"),
    (REAL + "3 3 1\n1.0 1 3\n", r"line 3: row index '1.0'; expected an integer"),
    (REAL + "3 3 1\n1,1,3\n", r"line 3: '1,1,3' has 1 numbers; a real entry has 3"),
    (REAL + "3 3 1\n1 1\n", r"line 3: '1 1' has 2 numbers; a real entry has 3"),
    (REAL + "3 3 1\n1 1 x\n", r"line 3: value 'x'; expected a real number"),
    (REAL + "3 3 1\n1 1 1,5\n", r"value '1,5'"),
    (REAL + "3 3 1\n1 1 1.2.3", r"value '1.2.3'"),
    (REAL + "3 3 1\n1 1 1e\n", r"value '1e'"),
    (REAL + "3 3 1\n1 1 1e5e3\n", r"value '1e5e3'"),
    (REAL + "3 3 1\n1 1 1e5.3\n", r"value '1e5.3'"),
    (REAL + "3 3 1\n1 1 1e-.3\n", r"value '1e-.3'"),
    (REAL + "3 3 1\n1 1 5-3\n", r"value '5-3'"),
    (REAL + "3 3 1\n1 1 --5\n", r"value '--5'"),
    (REAL + "3 3 1\n1 1 .\n", r"value '\.'"),
    (REAL + "3 3 1\n1 1 -.e5\n", r"value '-\.e5'"),
    (REAL + "3 3 1\n1 1 12abc\n", r"value '12abc'"),
    (REAL + "3 3 1\n1 1 1nan\n", r"value '1nan'"),
    (REAL + "3 3 1\n1 1 0x10\n", r"value '0x10'"),
    (REAL + "3 3 1\n1 1 1_000\n", r"value '1_000'"),
    (REAL + "3 3 1\n1 1 (1,2)\n", r"value '\(1,2\)'"),
    (REAL + "3 3 1\n1 1 5\0\n", r"line 3"),
    (REAL + "3 3 1\n\0\0\0\0\n", r"line 3"),
    (REAL + "3 3 1\n1 1 \xff\xfe\n", r"line 3"),
    (
        "%%MatrixMarket matrix coordinate integer general\n1 1 1\n1 1 1.5\n",
        r"value '1.5'; the banner promises integers",
    ),
    ("%%MatrixMarket matrix coordinate integer general\n1 1 1\n1 1 1e3\n", r"promises integers"),
    ("%%MatrixMarket matrix coordinate integer general\n1 1 1\n1 1 nan\n", r"promises integers"),
    ("%%MatrixMarket matrix coordinate integer general\n1 1 1\n1 1 9223372036854775808\n", r"does not fit 64 bits"),
    ("%%MatrixMarket matrix coordinate complex general\n1 1 1\n1 1 1.5\n", r"has 3 numbers; a complex entry has 4"),
    ("%%MatrixMarket matrix coordinate real symmetric\n2 3 1\n1 1 1\n", r"line 2: a symmetric matrix must be square"),
    (
        "%%MatrixMarket matrix coordinate real symmetric\n2 2 2\n2 1 1\n1 2 1\n",
        r"entries \(2, 1\) and \(1, 2\) are both",
    ),
    ("%%MatrixMarket matrix coordinate real skew-symmetric\n2 2 1\n2 2 4\n", r"zero diagonal; this one stores 4"),
    (
        "%%MatrixMarket matrix coordinate integer skew-symmetric\n2 2 1\n2 1 -9223372036854775808\n",
        r"negatives do not fit int64",
    ),
    ("%%MatrixMarket matrix array real general\n2 2\n1\n2\n3\n", r"after 3 of the 4 entries"),
    ("%%MatrixMarket matrix array real general\n2 2\n1\n2\n3\n4\n5\n", r"line 7: more lines than the 4"),
    ("%%MatrixMarket matrix array real general\n2 2\n1 2\n3 4\n", r"after 2 of the 4 entries"),
    ("%%MatrixMarket matrix array real general\n1000000000 1000000000\n1\n", r"after 1 of the 1000000000000000000"),
    ("<!DOCTYPE html>\n<html><body>404</body></html>", r"a web page, not a matrix"),
    ("\x89PNG\r\n\x1a\n\0\0\0\rIHDR", r"line 1: got"),
]


@pytest.mark.filterwarnings("ignore:.*more than . numbers")
@pytest.mark.parametrize(("text", "message"), REFUSED, ids=range(len(REFUSED)))
def test_refused_with_one_clear_error(load, text, message) -> None:
    with pytest.raises(SparsegenValueError, match=message) as error:
        load(text)
    assert "case.mtx" in str(error.value) and "\n" not in str(error.value) and len(str(error.value)) < 400


def test_an_impossible_promise_allocates_nothing(load) -> None:
    tracemalloc.start()
    for head in (REAL + "999999999999999999 999999999999999999 999999999999999999\n", REAL + "9 9 99999999999\n"):
        with pytest.raises(SparsegenValueError):
            load(head + "1 1 3\n")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 22


def test_the_audit_accepts_numbers_and_nothing_else() -> None:
    """All tokens of up to five characters of the alphabet, against the grammar written as an expression."""
    alphabet = "1+.e"
    tokens = [""]
    header = matrix_market.Header(False, "array", "real", "general", (1, 1), 1, 0, 1)
    for _ in range(6):
        tokens = [token + letter for token in tokens for letter in alphabet]
        for token in tokens:
            for text in (token, f" {token}\r\n", f"\n\n{token}"):
                number = matrix_market.REAL.fullmatch(token.encode()) is not None
                assert matrix_market._audit(text.encode(), header) == number, text


def test_the_audit_sees_across_chunks(load, monkeypatch) -> None:
    monkeypatch.setattr(matrix_market, "CHUNK", 3)
    monkeypatch.setattr(matrix_market, "_careful", None)
    body = "".join(f"{i + 1} {7 - i} {i * 1.25 - 3:.3e}\n" for i in range(7))
    A = load(REAL + "7 7 7\n" + body)
    assert A.nnz == 7 and A[0, 6] == -3 and A[6, 0] == 4.5
    header = matrix_market.Header(False, "array", "real", "general", (2, 1), 2, 0, 1)
    for text in (b"1234.5678\n9.87.65", b"1\n 2 3\n"):
        assert not matrix_market._audit(text, header)


def test_fast_and_careful_agree(tmp_path, monkeypatch) -> None:
    A = gallery.powerlaw(211, 197, 1709)
    A.data *= 10.0 ** np.random.default_rng(5).integers(-300, 300, A.nnz)
    scipy.io.mmwrite(tmp_path / "a.mtx", A, precision=17)
    fast = matrices.load(tmp_path / "a.mtx")
    monkeypatch.setattr(matrix_market, "_fast", lambda raw, header: None)
    careful = matrices.load(tmp_path / "a.mtx")
    for B in (fast, careful):
        np.testing.assert_array_equal(B.indptr, A.indptr)
        np.testing.assert_array_equal(B.indices, A.indices)
        np.testing.assert_array_equal(B.data, A.data)


# ---------------------------------------------------------------- containers


def compressed(text: bytes) -> dict[str, bytes]:
    return {"a.mtx.gz": gzip.compress(text), "a.mtx.bz2": bz2.compress(text)}


@pytest.mark.parametrize("suffix", ["gz", "bz2"])
def test_compressed(load, suffix) -> None:
    text = (REAL + "37 29 1\n31 17 2.5\n").encode() + b"% filler\n" * 9001
    packed = compressed(text)[f"a.mtx.{suffix}"]
    assert load(packed, f"a.mtx.{suffix}")[30, 16] == 2.5
    assert load(packed, "named_plain.mtx")[30, 16] == 2.5
    assert load(text, f"plain.mtx.{suffix}")[30, 16] == 2.5
    half = len(text) // 2
    two = compressed(text[:half])[f"a.mtx.{suffix}"] + compressed(text[half:])[f"a.mtx.{suffix}"]
    assert load(two, f"two.mtx.{suffix}")[30, 16] == 2.5
    for cut in (3, 11, len(packed) // 2, len(packed) - 1):
        with pytest.raises(SparsegenValueError, match=r"cut\.mtx.*(truncated|damaged)"):
            load(packed[:cut], f"cut.mtx.{suffix}")
    with pytest.raises(SparsegenValueError, match="damaged"):
        load(packed[:-9] + bytes(b ^ 255 for b in packed[-9:]), f"a.mtx.{suffix}")
    with pytest.raises(SparsegenValueError, match="something else"):
        load(packed + b"garbage", f"a.mtx.{suffix}")


def test_bombs(load, monkeypatch) -> None:
    with pytest.raises(SparsegenValueError, match="beyond what its size line"):
        load(gzip.compress((REAL + "1 1 1\n1 1 1\n").encode() + b" " * (1 << 26)), "bomb.mtx.gz")
    with pytest.raises(SparsegenValueError, match="no kind of matrix"):
        load(gzip.compress(b"\0" * (1 << 24)), "bomb.mtx.gz")
    monkeypatch.setattr(container, "ALWAYS", 1 << 20)
    for name, packed in compressed(b" " * (1 << 25)).items():
        with pytest.raises(SparsegenValueError, match="200-fold"):
            load(packed, name)


def archive(members: dict[str, bytes], mode: str = "w:gz") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as tar:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def test_archives(load, tmp_path) -> None:
    text, other = (REAL + "3 3 1\n2 2 7\n").encode(), (REAL + "1 1 1\n1 1 1\n").encode()
    assert load(archive({"arc/arc.mtx": text}), "arc.tar.gz")[1, 1] == 7
    assert load(archive({"arc/arc_b.mtx": other, "arc/arc.mtx": text}), "other_name.tar.gz")[1, 1] == 7
    assert load(archive({"arc.mtx": text, "arc_x.mtx": other}, "w"), "arc.tar")[1, 1] == 7
    assert load(archive({"../../arc.mtx": text, "readme.txt": b"hello"}), "arc.tgz")[1, 1] == 7
    assert sorted(os.listdir(tmp_path)) == ["arc.tar", "arc.tar.gz", "arc.tgz", "other_name.tar.gz"]
    with pytest.raises(SparsegenValueError, match="expected one matrix file in the archive; it holds readme"):
        load(archive({"readme.txt": b"hello"}), "arc.tar.gz")
    with pytest.raises(SparsegenValueError, match="expected one matrix file"):
        load(archive({"one.mtx": text, "two.mtx": text}), "arc.tar.gz")
    with pytest.raises(SparsegenValueError, match=r"damaged|expected one"):
        load(archive({"arc/arc.mtx": text * 999}, "w")[:900], "arc.tar")
    entry = tarfile.TarInfo("arc.mtx")
    entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/passwd"
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        tar.addfile(entry)
    with pytest.raises(SparsegenValueError, match="expected one matrix file"):
        load(out.getvalue(), "arc.tar")


def test_what_is_not_a_file(tmp_path) -> None:
    with pytest.raises(SparsegenValueError, match=r"absent\.mtx: no such file"):
        matrices.load(tmp_path / "absent.mtx")
    with pytest.raises(SparsegenValueError, match="a folder"):
        matrices.load(tmp_path)
    with pytest.raises(SparsegenValueError, match="not a regular file"):
        matrices.load("/dev/zero")
    with pytest.raises(SparsegenValueError, match=r"no such file|cannot be read"):
        matrices.load(str(tmp_path / "a\0b.mtx"))
    with pytest.raises(SparsegenTypeError, match="path of type int"):
        matrices.load(3)
    (tmp_path / "a.xyz").write_text("hello")
    with pytest.raises(SparsegenValueError, match=r"a\.xyz: no matrix file that can be recognised; expected \.mtx"):
        matrices.load(tmp_path / "a.xyz")
    (tmp_path / "a.txt").write_text(REAL + "1 1 1\n1 1 3\n")
    assert matrices.load(str(tmp_path / "a.txt"))[0, 0] == 3


# ---------------------------------------------------------------- the other formats


def cards(numbers: list, per_line: int, text: str) -> list[str]:
    fields = [text.format(number) for number in numbers]
    return ["".join(fields[i : i + per_line]) for i in range(0, len(fields), per_line)]


def boeing(A: sp.csc_array, kind: str, real: str = "{:20.12E}", code: str = "(4E20.12)", hb: bool = True) -> str:
    """The text of a Harwell-Boeing (or Rutherford-Boeing) file."""
    values: list = [] if kind[0] in "Pp" else A.data.tolist()
    if kind[0] in "Cc":
        values = [part for value in A.data.tolist() for part in (value.real, value.imag)]
    pointers = cards((A.indptr + 1).tolist(), 16, "{:5d}")
    rows, data = cards((A.indices + 1).tolist(), 16, "{:5d}"), cards(values, 4, real)
    counts = [len(pointers) + len(rows) + len(data), len(pointers), len(rows), len(data)] + [0] * hb
    return "\n".join(
        [
            f"{'title':72}{'key':8}",
            "".join(f"{count:14d}" for count in counts),
            f"{kind}{'':11}{A.shape[0]:14d}{A.shape[1]:14d}{A.nnz:14d}{0:14d}",
            f"{'(16I5)':16}{'(16I5)':16}{code:20}",
            *pointers, *rows, *data, "",
        ]
    )  # fmt: skip


@pytest.mark.parametrize("hb", [True, False])
@pytest.mark.parametrize("name", ["RUA.rua", "rra.rra", "PUA.pua", "CUA.cua", "IUA.iua", "rua.rb", "RUA.hb"])
def test_harwell_boeing_general(load, name, hb) -> None:
    kind = name[:3]
    A = gallery.uniform(37, 23, 211).tocsc()
    real, code = "{:20.12E}", "(4E20.12)"
    if kind[0] in "Ii":
        A = sp.csc_array((np.arange(211) - 99, A.indices, A.indptr), shape=A.shape)
        real, code = "{:20d}", "(4I20)"
    elif kind[0] in "Cc":
        A = A + 1j * gallery.uniform(37, 23, 211).tocsc()
    B = load(boeing(A, kind, real, code, hb), name)
    expected = A != 0 if kind[0] in "Pp" else A
    np.testing.assert_allclose(B.toarray(), expected.toarray().astype(B.dtype), rtol=1e-12)
    assert B.dtype == {"I": np.int64, "C": np.complex128}.get(kind[0].upper(), np.float64)


@pytest.mark.parametrize(("kind", "sign"), [("RSA", 1), ("PSA", 1), ("CSA", 1), ("RZA", -1), ("CHA", 0)])
def test_harwell_boeing_symmetric(load, kind, sign) -> None:
    A = sp.csc_array(sp.tril(gallery.uniform(29, 29, 97), -1))
    if kind[0] == "C":
        A = A * (1 + 0.5j)
    if kind[0] == "P":
        A.data[:] = 1
    full = A.toarray() + (A.toarray().conj().T if sign == 0 else sign * A.toarray().T)
    np.testing.assert_allclose(load(boeing(A, kind), f"a.{kind.lower()}").toarray(), full, rtol=1e-12)


def test_harwell_boeing_as_scipy_writes_it(tmp_path) -> None:
    A = gallery.banded(41, 41, (-3, 0, 5)).tocsc()
    scipy.io.hb_write(tmp_path / "a.rua", A)
    np.testing.assert_allclose(matrices.load(tmp_path / "a.rua").toarray(), A.toarray(), rtol=1e-15)


def test_fortran_reals(load) -> None:
    A = sp.csc_array(np.array([[1.0, 2, 3, 4, 5]]))
    text = boeing(A, "RUA").split("\n")
    at = text.index(next(line for line in text if "E+00" in line))
    for cells, code, expected in (
        (["1.5D+01", "-2.5d-1", "3.25-100", ".5E2", "0"], "(4D20.12)", [15, -0.25, 3.25e-100, 50, 0]),
        (["1.5", "nan", "-Inf", "+4.", "1E3"], "(1P,4E20.12)", None),
        (["1.5E0", "nan", "-Inf", "+4.E0", "1E3"], "(1P,4E20.12)", [1.5, np.nan, -np.inf, 4, 1000]),
        (["12", "1.", "1.", "1.", "1."], "(4F20.1)", None),
        (["1.5E", "1.", "1.", "1.", "1."], "(4F20.1)", None),
        (["", "1.", "1.", "1.", "1."], "(4F20.1)", None),
        (["1_0.0", "1.", "1.", "1.", "1."], "(4F20.1)", None),
    ):
        case = [*text[:3], f"{'(16I5)':16}{'(16I5)':16}{code:20}", *text[4:at], *cards(cells, 4, "{:>20}"), ""]
        if expected is None:
            with pytest.raises(SparsegenValueError, match=rf"line {at + 1}: .* in field 1; expected a value"):
                load("\n".join(case), "a.rua")
        else:
            np.testing.assert_array_equal(load("\n".join(case), "a.rua").data, expected)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda lines: lines[:2], "ends inside its header"),
        (lambda lines: [*lines[:1], "  nonsense", *lines[2:]], "line 2"),
        (lambda lines: [*lines[:2], "XUA" + lines[2][3:], *lines[3:]], "line 3: matrix type 'XUA'"),
        (lambda lines: [*lines[:2], "RUE" + lines[2][3:], *lines[3:]], "unassembled"),
        (lambda lines: [*lines[:2], "RUA  12", *lines[3:]], "line 3"),
        (lambda lines: [*lines[:3], "(free)", *lines[4:]], "line 4: format"),
        (lambda lines: [*lines[:3], f"{'(16I5)':16}{'(16I5)':16}(A20)", *lines[4:]], "line 4: format"),
        (lambda lines: [*lines[:3], f"{'(4E20.12)':16}{'(16I5)':16}(4E20.12)", *lines[4:]], "one of integers"),
        (lambda lines: [*lines[:3], f"{'(16I5)':16}{'(16I0)':16}(4E20.12)", *lines[4:]], "line 4: format"),
        (lambda lines: [*lines[:3], f"{'(16I5)':16}{'(8I10)':16}(4E20.12)", *lines[4:]], "line 2: .* take"),
        (lambda lines: lines[:9], "ends within the"),
        (lambda lines: [*lines[:4], "    x" + lines[4][5:], *lines[5:]], "line 5: 'x' in field 1"),
        (lambda lines: [*lines[:4], "    0" + lines[4][5:], *lines[5:]], r"indptr\[0\] is -1"),
        (lambda lines: [*lines[:6], "  999" + lines[6][5:], *lines[7:]], r"indices\[0\] = 998 in column 0"),
        (lambda lines: [*lines[:6], "    0" + lines[6][5:], *lines[7:]], r"indices\[0\] = -1 in column 0"),
    ],
)
def test_harwell_boeing_refused(load, edit, message) -> None:
    lines = boeing(gallery.uniform(37, 23, 211).tocsc(), "RUA").split("\n")
    assert load("\n".join(lines), "a.rua").nnz == 211
    with pytest.raises(SparsegenValueError, match=message) as error:
        load("\n".join(edit(lines)), "a.rua")
    assert "a.rua" in str(error.value)


@pytest.mark.parametrize(
    "text", ["3, 4, 3\n0 2 2 3\n0 3 1\n", "% a comment\n3 4 3\n\n0 2\n2 3\n0\n3 1", "3,4,3\r\n0 2 2 3\r\n0 3 1\r\n"]
)
def test_smtx(load, text) -> None:
    assert dense(load(text, "a.smtx")) == [[1, 0, 0, 1], [0, 0, 0, 0], [0, 1, 0, 0]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("% nothing\n", "no line 'rows"),
        ("3, 4\n0 1\n", "line 1.*expected 'rows, columns, nonzeros'"),
        ("3, 4, -1\n", "line 1"),
        ("3, 4, x\n", "line 1: b'x'"),
        ("3, 4, 3\n0 2 2 3\n0 3\n", "6 numbers after the size line"),
        ("3, 4, 3\n0 2 2 3\n0 3 1 1\n", "8 numbers"),
        ("3, 4, 3\n0 2 2 4\n0 3 1\n", "last row offset is 4"),
        ("3, 4, 3\n0 2 1 3\n0 3 1\n", "decreases at row 1"),
        ("3, 4, 3\n0 2 2 3\n0 4 1\n", r"indices\[1\] = 4 in row 0"),
        ("3, 4, 3\n0 2 2 3\n0 1.5 1\n", "line 3: b'1.5'"),
        ("1000000000000000000, 4, 3\n0 2 2 3\n0 3 1\n", "7 numbers"),
    ],
)
def test_smtx_refused(load, text, message) -> None:
    with pytest.raises(SparsegenValueError, match=message) as error:
        load(text, "a.smtx")
    assert "a.smtx" in str(error.value)


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "bsr", "dia"])
def test_npz(tmp_path, form) -> None:
    A = gallery.banded(21, 33, (-2, 0, 7)).asformat(form)
    sp.save_npz(tmp_path / "a.npz", A)
    B = matrices.load(tmp_path / "a.npz")
    np.testing.assert_array_equal(B.toarray(), A.toarray())
    raw = (tmp_path / "a.npz").read_bytes()
    for damaged in (raw[: len(raw) // 2], raw[:200], b"PK\3\4 nonsense"):
        (tmp_path / "cut.npz").write_bytes(damaged)
        with pytest.raises(SparsegenValueError, match=r"cut\.npz"):
            matrices.load(tmp_path / "cut.npz")


def test_npz_refused(tmp_path) -> None:
    good = gallery.uniform(11, 13, 31)
    np.savez(
        tmp_path / "bad.npz",
        format=b"csr",
        shape=(11, 13),
        data=good.data,
        indices=good.indices + 99,
        indptr=good.indptr,
    )
    with pytest.raises(SparsegenValueError, match=r"bad\.npz: .*outside 0\.\.12"):
        matrices.load(tmp_path / "bad.npz")
    np.savez(
        tmp_path / "pickled.npz", format=b"csr", shape=(1, 1), data=np.array([{}], object), indices=[0], indptr=[0, 1]
    )
    with pytest.raises(SparsegenValueError, match=r"pickled\.npz"):
        matrices.load(tmp_path / "pickled.npz")
    np.savez(tmp_path / "dense.npz", A=np.eye(3))
    with pytest.raises(SparsegenValueError, match=r"dense\.npz"):
        matrices.load(tmp_path / "dense.npz")


def test_mat_version_5(tmp_path) -> None:
    A = gallery.uniform(31, 27, 101).tocsc()
    zeros = sp.csc_array(([1.0], ([30], [26])), shape=A.shape) if A[30, 26] == 0 else sp.csc_array(A.shape)
    scipy.io.savemat(tmp_path / "p.mat", {"Problem": {"A": A, "name": "x", "Zeros": zeros}})
    B = matrices.load(tmp_path / "p.mat")
    assert B.nnz == A.nnz + zeros.nnz
    np.testing.assert_array_equal(B.toarray(), A.toarray())
    scipy.io.savemat(tmp_path / "one.mat", {"M": A * 1j, "b": np.ones(3)}, do_compression=True)
    np.testing.assert_array_equal(matrices.load(tmp_path / "one.mat").toarray(), A.toarray() * 1j)
    scipy.io.savemat(tmp_path / "two.mat", {"M": A, "N": A})
    with pytest.raises(SparsegenValueError, match=r"two\.mat: expected Problem.A or one sparse variable; got M, N"):
        matrices.load(tmp_path / "two.mat")
    scipy.io.savemat(tmp_path / "dense.mat", {"D": np.eye(3)})
    with pytest.raises(SparsegenValueError, match="none among D"):
        matrices.load(tmp_path / "dense.mat")
    raw = (tmp_path / "p.mat").read_bytes()
    for cut in (100, 200, len(raw) // 2):
        (tmp_path / "cut.mat").write_bytes(raw[:cut])
        with pytest.raises(SparsegenValueError, match=r"cut\.mat"):
            matrices.load(tmp_path / "cut.mat")


def test_mat_version_73(tmp_path) -> None:
    A = gallery.uniform(31, 27, 101).tocsc()

    def write(
        name: str, group: str, data: np.ndarray, indices: np.ndarray = A.indices, kind: bytes = b"double"
    ) -> Path:
        with h5py.File(tmp_path / name, "w", userblock_size=512) as file:
            place = file.create_group(group)
            place.attrs["MATLAB_sparse"], place.attrs["MATLAB_class"] = np.uint64(31), kind
            place["data"], place["ir"] = data, indices.astype(np.uint64)
            place["jc"] = A.indptr.astype(np.uint64)
        with open(tmp_path / name, "r+b") as out:
            out.write(b"MATLAB 7.3 MAT-file".ljust(512))
        return tmp_path / name

    np.testing.assert_array_equal(matrices.load(write("p.mat", "Problem/A", A.data)).toarray(), A.toarray())
    pairs = np.empty(A.nnz, [("real", "f8"), ("imag", "f8")])
    pairs["real"], pairs["imag"] = A.data, -A.data
    np.testing.assert_array_equal(matrices.load(write("c.mat", "M", pairs)).toarray(), A.toarray() * (1 - 1j))
    flags = matrices.load(write("b.mat", "M", np.ones(A.nnz, np.uint8), kind=b"logical"))
    assert flags.dtype == bool and flags.nnz == A.nnz
    with pytest.raises(SparsegenValueError, match=r"bad\.mat: indices\[0\] = \d+ in column 0"):
        matrices.load(write("bad.mat", "M", A.data, A.indices + 50))
    raw = (tmp_path / "p.mat").read_bytes()
    (tmp_path / "cut.mat").write_bytes(raw[: len(raw) // 2])
    with pytest.raises(SparsegenValueError, match=r"cut\.mat: not a readable"):
        matrices.load(tmp_path / "cut.mat")
    with h5py.File(tmp_path / "e.mat", "w") as file:
        place = file.create_group("M")
        place.attrs["MATLAB_sparse"], place["jc"] = np.uint64(5), np.zeros(4, np.uint64)
    assert matrices.load(tmp_path / "e.mat").shape == (5, 3)


@pytest.mark.parametrize("suffix", [".mtx", ".mat", ".rb", ".rua", ".npz", ".smtx", ".mtx.gz", ".mtx.bz2", ".tar.gz"])
def test_rubbish_is_refused(load, suffix) -> None:
    rng = np.random.default_rng(77)
    rubbish = rng.integers(0, 256, 3001, np.uint8).tobytes()
    starts = (
        b"",
        b"%%MatrixMarket matrix coordinate real general\n",
        b"\x1f\x8b\x08",
        b"BZh9",
        b"PK\3\4",
        b"MATLAB 5.0",
        b"\x89HDF\r\n\x1a\n",
    )
    for start in starts:
        with pytest.raises(SparsegenValueError, match=re.escape("rubbish" + suffix)):
            load(start + rubbish, "rubbish" + suffix)


# ---------------------------------------------------------------- facts and collections


def test_info(tmp_path) -> None:
    (tmp_path / "a.mtx").write_text("%%MatrixMarket matrix coordinate integer symmetric\n5 5 3\n1 1 1\n3 2 4\n3 2 5\n")
    assert matrices.info(tmp_path / "a.mtx") == matrices.Info(5, 5, 3, "integer", "symmetric")
    (tmp_path / "a.smtx").write_text("1, 2, 1\n0 1\n1\n")
    assert matrices.info(tmp_path / "a.smtx") == matrices.Info(1, 2, 1, "pattern", "general")


def test_collections(tmp_path) -> None:
    (tmp_path / "mine.txt").write_text("# my matrices\nHB/west0479\n\nlocal.mtx  # beside this file\n")
    (tmp_path / "local.mtx").write_text(REAL + "1 1 1\n1 1 3\n")
    assert matrices.collection(tmp_path / "mine.txt") == ["HB/west0479", str(tmp_path / "local.mtx")]
    with pytest.raises(SparsegenValueError, match=r"neither a file, a folder nor one of the collections: .*smoke"):
        matrices.collection("no_such_collection")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\0\x80")
    with pytest.raises(SparsegenValueError, match="not a list of matrices"):
        matrices.collection(tmp_path / "binary.txt")


def test_the_smoke_collection_loads() -> None:
    files = matrices.collection("smoke")
    shipped = sorted(str(path) for path in (paths.data("matrices") / "tiny").glob("*.mtx"))
    assert sorted(files) == shipped and len(files) >= 5
    assert sum(os.path.getsize(file) for file in files) < 300_000
    for file in files:
        A = matrices.load(file)
        assert A.has_canonical_format and A.nnz and np.isfinite(A.data).all()


def test_the_demo_matrix_is_symmetric_positive_definite() -> None:
    A = matrices.load(paths.data("matrices") / "tiny" / "diffusion2d.mtx")
    assert A.shape[0] == A.shape[1] > 2400 and (A.T.tocsr() != A).nnz == 0
    np.linalg.cholesky(A.toarray())
