"""What users did on their first day with the package, and it did not expect."""

from __future__ import annotations

import os
import socket
import stat
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

import sparsegen
from sparsegen import SparsegenError, SparsegenTypeError, SparsegenValueError, gallery, templates, worker
from sparsegen.__main__ import main
from sparsegen.candidate import instances
from sparsegen.kernel import Kernel
from sparsegen.paths import PACKAGE
from sparsegen.problem import Facts, Pattern, Problem
from sparsegen.targets import cpu

A = gallery.small()["uniform"]
compiled = pytest.mark.skipif(cpu.available() is not None, reason="no compiler")


def kernel_of(matrix: sp.csr_array, template: str, facts: Facts = Facts(), **params) -> Kernel:  # noqa: B008
    """A Kernel of one template, without a search."""
    chosen = next(instances(templates.get(template)))
    chosen = replace(chosen, params={**chosen.params, **params})
    report = {"baselines": {}, "facts": [], "measured_us": None, "notes": [], "candidates": []}
    return Kernel(matrix, Problem("spmv", Pattern.of(matrix), facts), chosen, "scipy", report)


def test_a_link_stays_a_link_and_a_device_a_device(tmp_path):
    kernel = sparsegen.compile(A, budget=0.0)
    target, link = tmp_path / "target.sgk", tmp_path / "link.sgk"
    target.write_bytes(b"old")
    link.symlink_to(target)
    kernel.save(link)
    assert link.is_symlink()
    assert np.array_equal(sparsegen.load(target) @ np.ones(A.shape[1]), A @ np.ones(A.shape[1]))
    with pytest.raises(SparsegenValueError, match="no regular file"):
        kernel.save("/dev/null")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    with pytest.raises(SparsegenValueError, match="no regular file"):
        kernel.save(tmp_path)


def test_a_saved_file_can_be_read_as_far_as_the_umask_says(tmp_path):
    old = os.umask(0o027)
    try:
        sparsegen.compile(A, budget=0.0).save(tmp_path / "K.sgk")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "K.sgk").stat().st_mode) == 0o640


def test_one_matrix_is_not_a_list_of_matrices():
    for one in (A, A.toarray(), "A.mtx"):
        with pytest.raises(SparsegenTypeError, match="expected a list of matrices"):
            sparsegen.compile_many(one)


@compiled
def test_the_report_tells_the_facts_of_the_values_it_has():
    constant = A.copy()
    constant.data[:] = 2.5
    kernel = kernel_of(constant, "csr_scalar", Facts(constant=True, exact_f32=True), values="constant")
    fresh = np.random.default_rng(7).standard_normal(A.nnz)
    kernel.update_values(fresh)
    assert kernel.report()["facts"] == []
    assert any("break the fact" in note for note in kernel.report()["notes"])
    kernel.update_values(fresh * 2)
    assert kernel.report()["facts"] == []
    assert not any("break the fact" in note for note in kernel.report()["notes"])  # this update broke nothing
    assert "break the fact" not in str(kernel.report())


@compiled
def test_a_kernel_that_cannot_bear_a_nan_returns_after_it():
    stencil = gallery.stencil2d(23, 19, seed=7)
    kernel = kernel_of(stencil, "dia_chunk")
    x, bad = np.random.default_rng(8).standard_normal(stencil.shape[1]), stencil.data.copy()
    bad[5] = np.nan
    kernel.update_values(bad)
    assert kernel.candidate is None
    assert np.isnan(kernel @ x).sum() == 1
    kernel.update_values(stencil.data * 3)
    assert kernel.candidate is not None
    np.testing.assert_allclose(kernel @ x, 3 * (stencil @ x), rtol=1e-12, atol=1e-12)
    assert "cannot bear" not in kernel.explain()


def test_cuda_files_are_judged_without_a_gpu(capsys):
    from sparsegen import nvrtc

    if nvrtc.available():
        pytest.skip("no NVRTC")
    root = PACKAGE.parent
    file, matrix = root / "cuda_templates/spmv/csr_scalar.cu", root / "matrices/tiny/graph.mtx"
    assert main(["evaluate", str(file), str(matrix), "--arch", "sm_90"]) == 0
    assert "COMPILED" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("option", "value"),
    [("deterministic", "yes"), ("cache", "a"), ("budget", float("inf")), ("device", -1), ("budget", float("nan"))],
)
def test_wrong_option_values(option, value):
    with pytest.raises(SparsegenError, match=option):
        sparsegen.compile(A, **{option: value})


def test_a_device_of_the_cpu():
    with pytest.raises(SparsegenValueError, match="device"):
        sparsegen.compile(A, target="cpu", device=1, budget=0.0)


def test_a_bad_cache_limit_is_told_before_the_search(monkeypatch):
    monkeypatch.setenv("SPARSEGEN_CACHE_BYTES", "plenty")
    monkeypatch.setattr(sparsegen.engine, "search", lambda *a, **k: pytest.fail("searched first"))
    with pytest.raises(SparsegenValueError, match="SPARSEGEN_CACHE_BYTES"):
        sparsegen.compile(A)


def test_a_big_endian_dtype_means_the_native_one():
    kernel = sparsegen.compile(A, dtype=">f4", budget=0.0)
    assert kernel.dtype == np.float32
    assert kernel.dtype.isnative


def test_an_empty_path_names_no_matrix():
    with pytest.raises(SparsegenValueError, match="path is empty"):
        sparsegen.compile("")


def test_pydata_dictionaries_of_keys():
    sparse = pytest.importorskip("sparse")
    found = sparsegen.inputs.as_csr(sparse.DOK(A.toarray()))
    assert (found != A).nnz == 0


def test_torch_tensors_without_data():
    torch = pytest.importorskip("torch")
    with pytest.raises(SparsegenError):
        sparsegen.inputs.as_csr(torch.empty((3, 4), device="meta"))


def test_damaged_files_are_not_called_safe_to_unpickle(tmp_path):
    file = tmp_path / "a.sgk"
    file.write_text("%%MatrixMarket matrix coordinate real general\n1 1 0\n")
    with pytest.raises(SparsegenValueError) as failure:
        sparsegen.load(file)
    assert "pickle" not in str(failure.value)
    assert "save()" in str(failure.value)


def test_a_huge_alpha_is_named_in_short():
    kernel = sparsegen.compile(A, budget=0.0)
    with pytest.raises(SparsegenValueError) as failure:
        kernel(np.ones(A.shape[1]), alpha=10**400)
    assert len(str(failure.value)) < 200


def test_workers_leave_nothing_in_shared_memory():
    """Intel's OpenMP registers itself in a file that a process which is ended cannot remove."""
    folder = Path("/dev/shm")
    if not folder.is_dir():
        pytest.skip("no shared memory to look at")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        child = os.fork()
        if child == 0:
            os._exit(3)
        left = folder / f"__KMP_REGISTERED_LIB_{child}_0"
        left.write_bytes(b"registered")
        assert worker._watch(child, ours) == 3
    assert not left.exists()


def test_what_the_screen_refuses_is_not_cross_compiled(monkeypatch):
    from sparsegen import nvrtc
    from sparsegen.targets import cuda

    if nvrtc.available():
        pytest.skip("no NVRTC")
    monkeypatch.setattr(cuda, "screen", lambda candidate: "not today")
    monkeypatch.setattr(cuda, "compile", lambda *arguments: pytest.fail("it was compiled"))
    with pytest.raises(SparsegenValueError, match="not today"):
        sparsegen.compile(A, target="cuda", arch="sm_90")
