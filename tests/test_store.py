"""Saved kernels: what comes back, and what anything else than a saved kernel becomes."""

from __future__ import annotations

import io
import json
import os
import random

import numpy as np
import pytest
from support import kernel_of, right, template

import sparsegen
from sparsegen import gallery, judge, store
from sparsegen.errors import SparsegenError, SparsegenValueError
from sparsegen.screen import cpp
from sparsegen.targets import cpu

SMALL = gallery.small()


def kernel(name="stencil2d", file="dia_chunk", **options):
    A = SMALL[name]
    return kernel_of(A, template(file, **options)), A


def rewritten(blob: bytes, **changes) -> bytes:
    """A saved kernel whose `about`, or whose arrays, somebody changed."""
    with np.load(io.BytesIO(blob)) as file:
        arrays = {name: file[name] for name in file.files}
    about = json.loads(arrays.pop("about").tobytes())
    for name, value in changes.items():
        if name in arrays:
            arrays[name] = value
        else:
            about[name] = value
    out = io.BytesIO()
    np.savez(out, about=np.frombuffer(json.dumps(about).encode(), np.uint8), **arrays)
    return out.getvalue()


@pytest.mark.parametrize(
    ("name", "file"),
    [("stencil2d", "dia_chunk"), ("powerlaw", "csr_scalar"), ("row_lengths", "sell_slice"), ("block_3x3", "bsr_row")],
)
def test_round_trip(name, file, tmp_path):
    options = {"R": 3, "S": 3} if file == "bsr_row" else {"SIGMA": 256} if file == "sell_slice" else {}
    saved, A = kernel(name, file, **options)
    path = tmp_path / "kernel.sgk"
    saved.save(path)
    loaded = sparsegen.load(path)
    x = np.random.default_rng(20282).standard_normal(A.shape[1])
    np.testing.assert_array_equal(loaded @ x, saved @ x)
    assert loaded.source == saved.source
    assert dict(loaded.report()) == dict(saved.report())
    assert loaded.problem.key == saved.problem.key
    assert loaded.options == saved.options
    assert os.listdir(tmp_path) == ["kernel.sgk"]
    loaded.update_values(2 * A.data)
    right(loaded @ x, 2 * A, x)
    loaded.save(str(path))
    right(sparsegen.load(str(path)) @ x, 2 * A, x)


def test_compiled_kernels_of_every_dtype_come_back(tmp_path):
    for dtype in (np.bool_, np.int32, np.float16, np.float32, np.float64, np.complex128):
        A = SMALL["uniform"].copy()
        A.data = A.data.astype(dtype)
        saved = sparsegen.compile(A, budget=0.3, facts=None, dtype=np.dtype(dtype))
        saved.save(tmp_path / "k")
        loaded = sparsegen.load(tmp_path / "k")
        x = np.ones(A.shape[1], dtype)
        np.testing.assert_array_equal(loaded @ x, saved @ x)
        assert (loaded @ x).dtype == dtype
        assert loaded.options["facts"] is None
        z = np.ones(A.shape[0], dtype)
        np.testing.assert_allclose((loaded.T @ z).astype(complex), (saved.T @ z).astype(complex), rtol=1e-3, atol=1e-2)


def test_baselines_and_declared_facts_come_back(tmp_path):
    A = SMALL["one_value"]
    saved = sparsegen.compile(A, budget=0.0, facts=sparsegen.Facts(constant=True))
    saved.save(tmp_path / "k")
    loaded = sparsegen.load(tmp_path / "k")
    assert loaded.candidate is None
    assert loaded.source is None
    assert loaded.problem.facts == sparsegen.Facts(constant=True)
    assert loaded.options["facts"] == sparsegen.Facts(constant=True)
    other = store.loads(rewritten(store.dumps(saved), baseline="cupy"))
    assert other.baseline == "scipy"
    assert any("scipy serves" in note for note in other.report()["notes"])


def test_an_artifact_comes_back(tmp_path):
    saved = sparsegen.compile(SMALL["powerlaw"], target="cuda", arch="sm_90")
    assert isinstance(saved, sparsegen.Artifact)
    saved.save(tmp_path / "a")
    loaded = sparsegen.load(tmp_path / "a")
    assert isinstance(loaded, sparsegen.Artifact)
    assert loaded.image == saved.image
    assert loaded.source == saved.source
    assert loaded.arch == saved.arch == "sm_90"
    assert "nothing has run" in str(loaded.report())
    assert "Nothing has run" in loaded.explain() or "nothing has run" in loaded.explain()
    for call in (lambda: loaded @ np.ones(3), lambda: loaded(np.ones(3)), lambda: loaded.matvec(1)):
        with pytest.raises(SparsegenError, match="nothing has run"):
            call()


def test_every_truncation_and_most_flips_are_one_error(tmp_path):
    saved, _ = kernel()
    blob = store.dumps(saved)
    for length in [0, 1, 2, 3, 10, 100, len(blob) // 3, len(blob) // 2, len(blob) - 30, len(blob) - 1]:
        with pytest.raises(SparsegenValueError, match=r"expected what save\(\) wrote"):
            store.loads(blob[:length])
    rng = random.Random(20283)
    x = np.ones(saved.shape[1])
    for _ in range(300):
        damaged = bytearray(blob)
        for _ in range(rng.choice((1, 1, 8))):
            damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        try:
            loaded = store.loads(bytes(damaged))
        except SparsegenError:
            continue
        np.testing.assert_array_equal(loaded @ x, saved @ x)  # a byte that carries nothing


@pytest.mark.parametrize(
    "content", [b"", b"no archive", b"PK\x03\x04", b"%%MatrixMarket matrix\n", bytes(range(256)) * 20]
)
def test_other_files(content, tmp_path):
    path = tmp_path / "other"
    path.write_bytes(content)
    with pytest.raises(SparsegenValueError, match="other"):
        sparsegen.load(path)


def test_other_archives(tmp_path):
    for name, arrays in (
        ("a", {"x": np.ones(3)}),
        ("b", {"about": np.ones(3)}),
        ("c", {"about": np.zeros(0, np.uint8)}),
    ):
        np.savez(tmp_path / f"{name}.npz", **arrays)
        with pytest.raises(SparsegenValueError, match="is no saved kernel"):
            sparsegen.load(tmp_path / f"{name}.npz")
    np.save(tmp_path / "d.npy", np.ones(3))
    with pytest.raises(SparsegenValueError, match="is no saved kernel"):
        sparsegen.load(tmp_path / "d.npy")
    hidden = np.array([lambda: None], dtype=object)
    with pytest.raises(Exception):  # noqa: B017 - numpy's own: lambdas are not pickled
        np.savez(tmp_path / "e.npz", about=hidden)


def test_paths_that_cannot_be_used(tmp_path):
    saved, _ = kernel()
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "nothing", tmp_path, tmp_path / "pipe", "/dev/zero"):
        with pytest.raises(SparsegenValueError, match=r"cannot read|no regular file"):
            sparsegen.load(path)
        with pytest.raises(SparsegenValueError, match=r"cannot read|no regular file"):
            next(judge.instances(str(path), str(path)))
    (tmp_path / "pipe").unlink()
    with pytest.raises(SparsegenValueError, match="cannot write"):
        saved.save(tmp_path / "no folder" / "k")
    (tmp_path / "folder").mkdir()
    with pytest.raises(SparsegenValueError, match="cannot write"):
        saved.save(tmp_path / "folder")
    assert sorted(os.listdir(tmp_path)) == ["folder"]


def test_a_changed_kernel_is_screened_before_it_is_compiled(monkeypatch):
    saved, _ = kernel("powerlaw", "csr_scalar")
    blob = store.dumps(saved)
    hostile = saved.source.replace("ACC sum = 0;", 'asm("nop"); ACC sum = 0;', 1)
    assert hostile != saved.source
    with monkeypatch.context() as patch:
        patch.setattr(cpu, "build", lambda text: pytest.fail("compiled before it was screened"))
        with pytest.raises(SparsegenValueError, match="refused by the screen"):
            store.loads(rewritten(blob, kernel=hostile))
    monkeypatch.setattr(cpp, "check", lambda candidate: "not today")
    with pytest.raises(SparsegenValueError, match="not today"):
        store.loads(blob)


def test_a_changed_kernel_is_checked(monkeypatch):
    saved, _ = kernel("powerlaw", "csr_scalar")
    blob = store.dumps(saved)
    wrong = saved.source.replace("p < indptr[row + 1]", "p < indptr[row + 1] - (row == 5)")
    assert wrong != saved.source
    with pytest.raises(SparsegenError, match="misses the reference"):
        store.loads(rewritten(blob, kernel=wrong))
    with pytest.raises(SparsegenValueError, match="does not compile"):
        store.loads(rewritten(blob, kernel=saved.source.replace("ACC sum = 0;", "const ACC sum = 0;")))
    elsewhere, _ = kernel("stencil2d", "dia_chunk")
    with pytest.raises(SparsegenValueError, match="cannot hold its matrix"):
        store.loads(rewritten(blob, kernel=elsewhere.source))


def test_values_and_patterns_that_do_not_fit():
    saved, A = kernel("one_value", "csr_vector", values="constant")
    blob = store.dumps(saved)
    with pytest.raises(SparsegenValueError, match="declares constant"):
        store.loads(rewritten(blob, data=np.arange(A.nnz) / 3))
    for changes in (
        {"indices": A.indices + 1000}, {"indices": -A.indices - 1}, {"indptr": A.indptr[::-1].copy()},
        {"indptr": A.indptr[:-1]},
        {"data": A.data[:-1]}, {"data": A.data.reshape(-1, 1)}, {"data": np.array(["a"] * A.nnz)}, {"shape": [3, 3]},
        {"shape": [-1, 3]}, {"shape": "ab"}, {"shape": [2**62, 2**62]}, {"version": 99}, {"kind": 3, "kernel": "x"},
        {"threads": 10**6}, {"threads": "two"}, {"threads": 0}, {"report": 3}, {"report": None}, {"problem": {}},
        {"options": []}, {"baseline": "nothing", "kernel": None}, {"kernel": "/* sparsegen\n*/"}, {"kernel": 17},
    ):  # fmt: skip
        with pytest.raises(SparsegenError):
            store.loads(rewritten(blob, **changes))


def test_without_a_compiler_a_saved_kernel_is_served_by_scipy(monkeypatch):
    saved, A = kernel()
    blob = store.dumps(saved)
    monkeypatch.setattr(cpu, "available", lambda: "no C++ compiler found")
    loaded = store.loads(blob)
    assert loaded.candidate is None
    assert any("no C++ compiler" in note for note in loaded.report()["notes"])
    assert loaded.report()["kernel"] == "baseline scipy"
    x = np.ones(A.shape[1])
    right(loaded @ x, A, x)


def test_another_machine_is_named(monkeypatch):
    saved, _ = kernel()
    blob = store.dumps(saved)
    monkeypatch.setattr(cpu, "device", lambda: "another machine")
    assert any("not measured here" in note for note in store.loads(blob).report()["notes"])


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    saved, _ = kernel()
    saved.save(tmp_path / "k")
    before = (tmp_path / "k").read_bytes()
    monkeypatch.setattr(
        store.os, "replace", lambda *args: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    with pytest.raises(SparsegenValueError, match="No space"):
        saved.save(tmp_path / "k")
    assert (tmp_path / "k").read_bytes() == before
    assert os.listdir(tmp_path) == ["k"]
