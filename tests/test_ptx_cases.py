"""Small kernels, one fault each: the outcome has the kind that the file's name says, on the line marked `<- here`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy_executor
import pytest
import scipy.sparse as sp

from sparsegen import ptx

pytestmark = pytest.mark.skipif(ptx.available() is not None, reason=str(ptx.available()))

KERNELS = Path(__file__).parent / "kernels"
OWN = sorted((KERNELS / "ptx").glob("*__*.cu"))
N = 205  # of 288 threads


def run(path: Path, **details) -> tuple[ptx.Outcome, np.ndarray, np.ndarray]:
    given = np.random.default_rng(51783).permutation(N).astype(np.int32)
    out = np.zeros(N, np.float32)
    fresh = [2] if path.stem == "uninitialised_read__output" else []
    outcome = ptx.launch(
        path.read_text(), "f", 3, 96, [N, given, out], writable=[2], shared_bytes=384, uninitialised=fresh, **details
    )
    return outcome, given, out


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.stem)
def test_kinds_and_lines(path):
    outcome, _, _ = run(path)
    kind = path.stem.split("__")[0].replace("_", " ").replace("read only", "read-only")
    assert outcome.kind == kind, outcome.message
    assert outcome.ok == (kind == "ok")
    assert outcome.message and "\n" not in outcome.message.strip()[:60] and "/" not in outcome.message.split(":")[0]
    marked = [k for k, line in enumerate(path.read_text().splitlines(), 1) if line.endswith("// <- here")]
    if marked:
        assert outcome.line == marked[0], outcome.message
    if kind not in ("ok", "unsupported", "refused"):
        assert outcome.line and 0 <= outcome.block < 3 and 0 <= outcome.thread < 96
        assert f"(line {outcome.line})" in outcome.message
    if kind in ("out of bounds", "misaligned", "read-only store", "uninitialised read", "race"):
        assert outcome.offset is not None and (outcome.buffer or "no argument") in outcome.message
    again, _, _ = run(path)
    assert again.message == outcome.message, "not deterministic"


@pytest.mark.parametrize("path", [each for each in OWN if each.stem.startswith("ok__")], ids=lambda path: path.stem)
def test_what_correct_kernels_compute(path):
    outcome, given, out = run(path, counters=True)
    assert outcome.ok, outcome.message
    i = np.arange(N)
    block, thread = i // 96, i % 96
    expected = {
        "bytes": lambda: np.concatenate([(i + k) % 256 for k in range(4)]).astype(np.uint8).view(np.float32),
        "same_value": lambda: np.where(i == 7, 1.0, 0.0),
        "early_return": lambda: np.where(i // 8 < N // 8, np.add.reduceat(given, np.arange(0, N, 8))[i // 8], np.nan),
        "warp_barriers_apart": lambda: np.where(thread >= 0, 96 * block + (thread ^ 16), 0),
        "last_block": lambda: np.where(i == 0, 6, np.where(i <= 3, i, 0)),
        "compare_and_swap": lambda: np.where(i == 0, N - 1, 0),
        "work_queue": lambda: 2 * given,
    }[path.stem.removeprefix("ok__")]()
    got = out.view(np.uint8) if path.stem == "ok__bytes" else out
    wanted = expected.view(np.uint8) if path.stem == "ok__bytes" else expected.astype(np.float32)
    known = ~np.isnan(expected) if path.stem != "ok__bytes" else slice(None)
    np.testing.assert_array_equal(got[known], wanted[known])


def matrix(m: int = 83) -> tuple[sp.csr_array, np.ndarray]:
    rng = np.random.default_rng(7013)
    A = sp.random_array((m, m), density=0.1, rng=rng).astype(np.float32).tocsr()
    A.data = rng.standard_normal(A.nnz).astype(np.float32)
    return A, rng.standard_normal(m).astype(np.float32)


def launches(m: int = 83) -> dict[str, tuple]:
    """Of the kernels that several cases share: grid, block, args without y, shared bytes."""
    A, x = matrix(m)
    indptr, indices, C = A.indptr.astype(np.int32), A.indices.astype(np.int32), A.tocoo()
    rows, columns = C.row.astype(np.int32), C.col.astype(np.int32)
    wide = [each.astype(np.float64) for each in (A.data, x)]
    return {
        "csr_vector": (-(-m // 8), 256, [m, indptr, indices, A.data, x], 0),
        "merge_path": (-(-(m + A.nnz) // 896), 128, [m, A.nnz, indptr, indices, A.data, x], 0),
        "coo_segscan": (3, 64, [A.nnz, rows, columns, A.data, x], 0),
        "coo_atomic": (3, 64, [A.nnz, rows, columns, *wide], 0),
        "spmm_vec4": (-(-m // 4), (32, 4), [m, 36, indptr, indices, A.data, dense(m)], 1024),
        "spmm_vec4_buggy": (-(-m // 4), (32, 4), [m, 36, indptr, indices, A.data, dense(m)], 1024),
    }


def dense(m: int) -> np.ndarray:
    return np.random.default_rng(17).standard_normal((m, 36)).astype(np.float32)


def product(name: str) -> tuple[np.ndarray, np.ndarray, float]:
    """y before, A x, and how far sums may be off."""
    A, x = matrix()
    B = dense(A.shape[0]) if name.startswith("spmm") else x
    dtype = np.float64 if name == "coo_atomic" else np.float32
    exact = A.astype(np.float64) @ B.astype(np.float64)
    return np.zeros(exact.shape, dtype), exact, 3e-5


@pytest.mark.parametrize("path", sorted((KERNELS / "good").glob("*.cu")), ids=lambda path: path.stem)
def test_good_kernels_agree_with_numpy(path):
    """With A x, and bit for bit with an executor on NumPy where no atomic chooses the order."""
    if path.stem == "half_spmv":
        pytest.skip("has a test of its own")
    name = path.stem.split("__")[-1]
    grid, block, args, shared = launches()[name]
    y, exact, error = product(name)
    other = y.copy()
    entry = "spmm" if name.startswith("spmm") else "spmv"
    outcome = ptx.launch(path.read_text(), entry, grid, block, [*args, y], [len(args)], shared)
    assert outcome.ok, outcome.message
    np.testing.assert_allclose(y, exact, atol=error)
    text = ptx.compile(path.read_text(), "sm_80")
    numpy_executor.execute(text, entry, grid, block, [*args, other], [len(args)], shared)
    if "atomicAdd" in path.read_text():
        np.testing.assert_allclose(y, other, atol=error)
    else:
        np.testing.assert_array_equal(y, other)


def test_half_precision_agrees_with_numpy():
    path = KERNELS / "good" / "half_spmv.cu"
    rng = np.random.default_rng(90210)
    lengths = 2 * rng.integers(0, 6, 61)
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    indices = rng.integers(0, 61, indptr[-1]).astype(np.int32)
    data, x = rng.standard_normal(indptr[-1]).astype(np.float16), rng.standard_normal(61).astype(np.float16)
    y, brain = np.zeros(61, np.float32), np.zeros(61, np.uint16)
    args = [61, indptr, indices, data, x]
    outcome = ptx.launch(path.read_text(), "spmv", 2, 32, [*args, y, brain], [5, 6], uninitialised=[5, 6])
    assert outcome.ok, outcome.message
    exact = sp.csr_array((data.astype(np.float64), indices, indptr), shape=(61, 61)) @ x.astype(np.float64)
    np.testing.assert_allclose(y, exact, atol=1e-5)
    raw = y.view(np.uint32).astype(np.uint64)
    np.testing.assert_array_equal(brain, (raw + 0x7FFF + (raw >> 16 & 1)) >> 16)
    again, brain_again = np.zeros_like(y), np.zeros_like(brain)
    text = ptx.compile(path.read_text(), "sm_80")
    numpy_executor.execute(text, "spmv", 2, 32, [*args, again, brain_again], [5, 6])
    np.testing.assert_array_equal(y, again)
    np.testing.assert_array_equal(brain, brain_again)


FAULTS = {
    "assert_printf": {"unsupported"}, "malloc": {"unsupported"}, "recursion": {"unsupported"}, "syscall": {"refused"},
    "bar_div": {"barrier fault", "race"}, "coo_noatomic": {"race"}, "inf_loop": {"budget exceeded"},
    "spinlock": {"budget exceeded"}, "nosync1": {"race"}, "nosyncwarp": {"race"}, "smem_oob": {"race", "out of bounds"},
    "oob_loop": {"out of bounds"}, "oob_row": {"out of bounds"}, "oob_wild": {"out of bounds"}, "trap": {"trap", "ok"},
    "write_input": {"read-only store"}, "spmm_vec4_buggy": {"divergent warp operation"},
}  # fmt: skip


@pytest.mark.parametrize("path", sorted((KERNELS / "faulty").glob("*.cu")), ids=lambda path: path.stem)
def test_faulty_kernels_are_found(path):
    fault, name = path.stem.split("__")[0], path.stem.split("__")[-1]
    m = 517  # one of them has a trap for row 500
    grid, block, args, shared = launches(m)[name]
    rows = (m, 36) if name.startswith("spmm") else (m,)
    y = np.full(
        rows, 0.0 if "path" in name or "coo" in name else np.nan, np.float64 if name == "coo_atomic" else np.float32
    )
    entry = "spmm" if name.startswith("spmm") else "spmv"
    outcome = ptx.launch(path.read_text(), entry, grid, block, [*args, y], [len(args)], shared)
    if fault in ("null", "shfl_div"):  # the compiler drops the store; a lane that is gone gives poison
        assert not outcome.ok or np.isnan(y).any()
        return
    assert outcome.kind in FAULTS[fault], outcome.message
    assert outcome.kind == "trap" if fault == "trap" else not outcome.ok


@pytest.mark.parametrize("path", sorted((KERNELS / "hostile").glob("*.cu")), ids=lambda path: path.stem)
def test_hostile_sources_are_refused_and_say_nothing_of_the_host(path):
    source = path.read_bytes().decode()
    args = [] if "f()" in source.replace(" ", "") or "f(void)" in source else [np.zeros(8, np.int32)]
    outcome = ptx.launch(source, "f", 1, 32, args, [0] if args else [])
    harmless = ("rawstr", "kept_state", "declared_by_include", "host_function", "function_template_rec")
    if not path.stem.startswith(harmless):
        assert outcome.kind == "refused", outcome.message
    assert "root:" not in outcome.message and len(outcome.message) < 5000


def test_block_sparse_products_on_tensor_cores():
    """Asynchronous copies, matrices from shared memory and matrix products in one kernel; a wait left out is found."""
    source = (KERNELS / "ptx" / "tensor_cores.cu").read_text()
    rng = np.random.default_rng(17)
    there = rng.random((5, 7)) < 0.5
    indptr = np.concatenate([[0], np.cumsum(there.sum(axis=1))]).astype(np.int32)
    indices = np.nonzero(there)[1].astype(np.int32)
    data = rng.standard_normal((len(indices), 16, 16)).astype(np.float16)
    B = rng.standard_normal((7 * 16, 8)).astype(np.float16)
    C = np.full((5 * 16, 8), np.nan, np.float32)
    args = [5, indptr, indices, data, B, C]
    outcome = ptx.launch(source, "spmm", 5, 32, args, [5], uninitialised=[5])
    assert outcome.ok, outcome.message
    exact = sp.bsr_array((data.astype(np.float64), indices, indptr), shape=(80, 112)) @ B.astype(np.float64)
    np.testing.assert_allclose(C, exact, atol=1e-5)
    for line, kind in (('asm volatile("cp.async.wait_group 0;\\n");', "uninitialised read"), ("__syncwarp();", "race")):
        assert line in source
        assert ptx.launch(source.replace(line, ""), "spmm", 5, 32, args, [5]).kind == kind
