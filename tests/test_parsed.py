"""The store of parsed matrices: the same matrix again, whatever happens to its files."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp

from sparsegen import gallery, inputs, matrices, parsed
from sparsegen.errors import SparsegenError, SparsegenValueError
from sparsegen.readers import binsparse

h5py = pytest.importorskip("h5py")


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARSEGEN_HOME", str(tmp_path / "home"))


@pytest.fixture
def source(tmp_path):
    file = tmp_path / "grid.mtx"
    scipy.io.mmwrite(file, gallery.stencil2d(23, 17, variable=True))
    return file


def same(A, B) -> None:
    assert A.format == B.format and A.shape == B.shape and A.dtype == B.dtype and A.has_canonical_format
    names = ("indptr", "indices", "data") if A.format == "csr" else ("row", "col", "data")
    for name in names:
        mine, other = getattr(A, name), getattr(B, name)
        assert mine.dtype == other.dtype
        np.testing.assert_array_equal(mine, other)


def never(*_):
    pytest.fail("parsed again")


def stored(tmp_path, A, name="stored.npz"):
    """A as the store gives it back the second time."""
    file = tmp_path / name
    sp.save_npz(file, A)
    parsed.load(file)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matrices, "load", never)
        return parsed.load(file)


def test_it_is_parsed_once(source, monkeypatch):
    first = parsed.load(source)
    same(first, matrices.load(source))
    monkeypatch.setattr(matrices, "load", never)
    again = parsed.load(source)
    same(again, first)
    again.data[:] = 0.0  # the arrays are the caller's own
    same(parsed.load(source), first)


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint16", "int64", "float16", "float32", "float64", "complex64", "complex128"]
)
def test_every_dtype_comes_back(tmp_path, dtype):
    A = gallery.uniform(37, 53, 211, seed=7)
    A = sp.csr_array((np.round(A.data * 3).astype(dtype), A.indices, A.indptr), shape=A.shape)
    if dtype == "float16":
        file = tmp_path / "half.npz"  # scipy's own files hold it, its arithmetic does not
        np.savez(
            file, format=b"csr", shape=A.shape, data=A.data, indices=A.indices, indptr=A.indptr, _is_array=True
        )  # fmt: skip
        parsed.load(file)
        same(parsed.load(file), matrices.load(file))
    else:
        same(stored(tmp_path, A), A)


@pytest.mark.parametrize("name", sorted(gallery.tiny()))
def test_the_edge_cases_come_back(tmp_path, name):
    A = gallery.tiny()[name]
    same(stored(tmp_path, A), A)


def test_more_rows_than_can_be_pointed_at(tmp_path):
    file = tmp_path / "tall.mtx"
    file.write_text("%%MatrixMarket matrix coordinate real general\n90000000 7 3\n5 2 1.5\n88000000 7 2\n3 1 4\n")
    first = parsed.load(file)
    assert first.format == "coo"
    second = parsed.load(file)
    assert second.format == "coo" and second.shape == (90_000_000, 7)
    assert sorted(zip(second.row, second.col, second.data, strict=True)) == [(2, 0, 4), (4, 1, 1.5), (87999999, 6, 2)]
    with h5py.File(parsed.place(file)) as kept:
        assert list(kept["indices_0"]) == [2, 4, 87999999]


def test_other_programs_can_read_it(source):
    A = parsed.load(source)
    with h5py.File(parsed.place(source)) as file:
        about = json.loads(file.attrs["binsparse"])["binsparse"]
        assert about["version"] == "0.1.0" and about["format"] == "CSR"
        assert about["shape"] == list(A.shape) and about["number_of_stored_values"] == A.nnz
        assert about["data_types"] == {"pointers_to_1": "int32", "indices_1": "int32", "values": "float64"}
        for name, array in (("pointers_to_1", A.indptr), ("indices_1", A.indices), ("values", A.data)):
            np.testing.assert_array_equal(file[name][()], array)
    same(matrices.load(parsed.place(source)), A)  # and the file is a matrix file


def damaged(raw: bytes, how: str) -> bytes:
    middle = len(raw) // 2
    return {
        "cut short": raw[:middle], "empty": b"", "a byte": raw[:middle] + bytes([raw[middle] ^ 1]) + raw[middle + 1 :],
        "its head": b"\0" * 64 + raw[64:], "its check": raw[:-1] + bytes([raw[-1] ^ 128]),
        "swapped": raw[:-80] + raw[-72:-64] + raw[-80:-72] + raw[-64:], "longer": raw + b"\0",
        "another file": np.random.default_rng(7013).bytes(len(raw)),
    }[how]  # fmt: skip


@pytest.mark.parametrize(
    "how", ["cut short", "empty", "a byte", "its head", "its check", "swapped", "longer", "another file"]
)
def test_a_damaged_entry_is_made_anew(source, how, monkeypatch):
    A = parsed.load(source)
    kept = parsed.place(source)
    whole = kept.read_bytes()
    assert damaged(whole, how) != whole
    kept.write_bytes(damaged(whole, how))
    same(parsed.load(source), A)
    monkeypatch.setattr(matrices, "load", never)
    same(parsed.load(source), A)


def test_a_source_that_changed_is_read_anew(source):
    parsed.load(source)
    status = source.stat()
    text = source.read_text()
    line = text.splitlines()[-1]
    head, value = line.rsplit(" ", 1)
    changed = value[:-1] + ("3" if value[-1] != "3" else "5")
    source.write_text(text[: -len(line) - 1] + f"{head} {changed}\n")
    os.utime(source, ns=(status.st_atime_ns, status.st_mtime_ns))  # the size and the time of writing are the same
    assert source.stat().st_size == status.st_size
    same(parsed.load(source), matrices.load(source))


def test_two_sources_of_one_name(tmp_path):
    for number, folder in enumerate(("one", "two"), 5):
        (tmp_path / folder).mkdir()
        scipy.io.mmwrite(tmp_path / folder / "A.mtx", gallery.uniform(11, 13, 29, seed=number))
    first, second = (parsed.load(tmp_path / folder / "A.mtx") for folder in ("one", "two"))
    assert (first != second).nnz
    same(parsed.load(tmp_path / "one" / "A.mtx"), first)


def test_errors_are_those_of_the_reader(tmp_path):
    with pytest.raises(SparsegenValueError, match="no such file"):
        parsed.load(tmp_path / "absent.mtx")
    wrong = tmp_path / "wrong.mtx"
    wrong.write_text("%%MatrixMarket matrix coordinate real general\n3 3 1\n7 1 2.5\n")
    with pytest.raises(SparsegenValueError, match="line 3"):
        parsed.load(wrong)
    assert not parsed.place(wrong).exists()


FULL = """
import resource, signal, sys
from sparsegen import parsed
from sparsegen.errors import SparsegenError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    parsed.load(sys.argv[1])
except SparsegenError as error:
    print(error)
"""


@pytest.mark.parametrize("room", [0, 700, 9000])
def test_a_full_disk_is_one_error_and_nothing_is_lost(source, tmp_path, room):
    other = tmp_path / "other.mtx"
    scipy.io.mmwrite(other, gallery.uniform(5, 7, 11, seed=7))
    A = parsed.load(other)
    ran = subprocess.run(
        [sys.executable, "-c", FULL, str(source), str(room)], capture_output=True, text=True, timeout=120
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "cannot be stored" in ran.stdout and "SPARSEGEN_HOME" in ran.stdout and ran.stdout.count("\n") == 1
    assert [file.name for file in parsed.place(source).parent.iterdir()] == [parsed.place(other).name]
    same(parsed.load(other), A)
    same(parsed.load(source), matrices.load(source))  # with room again


@pytest.mark.parametrize("array", [1, 2, 3])
def test_a_disk_that_is_full_in_the_middle_of_an_array(source, monkeypatch, array):
    class Full(io.FileIO):
        written = 0

        def write(self, data):
            Full.written += 1
            if Full.written == array:
                super().write(memoryview(data)[:7])
                raise OSError(28, "No space left on device")
            return super().write(data)

    with monkeypatch.context() as patch:
        patch.setattr(binsparse, "open", Full, raising=False)
        with pytest.raises(SparsegenError, match=r"cannot be stored here: No space left on device\. Nothing"):
            parsed.load(source)
    assert Full.written == array
    assert not list(parsed.place(source).parent.iterdir())
    same(parsed.load(source), matrices.load(source))


def test_a_home_that_is_a_file(source, tmp_path, monkeypatch):
    (tmp_path / "taken").write_text("")
    monkeypatch.setenv("SPARSEGEN_HOME", str(tmp_path / "taken"))
    with pytest.raises(SparsegenError, match="SPARSEGEN_HOME"):
        parsed.load(source)


def test_readers_and_writers_at_once(source):
    expected = matrices.load(source)
    failures: list[BaseException] = []
    done = threading.Event()

    def write():
        while not done.is_set():
            parsed._write(parsed.place(source), expected, parsed._stamp(source))

    def read():
        try:
            for _ in range(60):
                same(parsed._read(parsed.place(source), parsed._stamp(source)), expected)
        except BaseException as error:
            failures.append(error)

    parsed.load(source)
    writer = threading.Thread(target=write)
    readers = [threading.Thread(target=read) for _ in range(3)]
    for thread in (writer, *readers):
        thread.start()
    for thread in readers:
        thread.join()
    done.set()
    writer.join()
    assert not failures, failures[0]
    assert len(list(parsed.place(source).parent.iterdir())) == 1


def test_what_is_mapped_has_dtypes_of_this_machine_and_compiles_as_any(source):
    for _ in range(2):
        A = parsed.load(source)
        assert [memoryview(each).format for each in (A.data, A.indices, A.indptr)] == ["d", "i", "i"]
    with h5py.File(parsed.place(source)) as file:
        said = file["values"].dtype
    B = sp.csr_array((A.data.view(said), A.indices, A.indptr), shape=A.shape)
    assert memoryview(B.data).format == "<d" and memoryview(inputs.as_csr(B).data).format == "d"
