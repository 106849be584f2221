"""The call path: what a Plan refuses, that threads compute the same, and that it survives fork and threads."""

from __future__ import annotations

import ctypes
import mmap
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.sparse as sp

from sparsegen import composite, templates, values
from sparsegen.arena import GUARD, Arena
from sparsegen.candidate import instances
from sparsegen.problem import Pattern, Problem
from sparsegen.targets import cpu

pytestmark = pytest.mark.skipif(cpu.available() is not None, reason="no compiler")


def bound(A: sp.csr_array, threads: int, op: str = "spmv", name: str = "csr_scalar", params=None, **details):
    problem = Problem(op, Pattern.of(A), dtype=A.dtype, threads=threads, **details)
    wanted = (params or {}).items()
    chosen = next(each for each in instances(templates.get(name, op)) if wanted <= each.params.items())
    packs = composite.pack(chosen, problem)
    library = cpu.load(cpu.build(cpu.unit(chosen, problem, packs)))
    arenas = [Arena({**each.arrays, "data": values.encode("full", A.data, each, A.dtype)}) for each in packs]
    plan = cpu.bind(library, chosen, problem, packs, [each.arrays for each in arenas], threads)
    return plan, arenas  # the caller keeps the arrays alive


@pytest.fixture(scope="module")
def A() -> sp.csr_array:
    return sp.random_array((1003, 997), density=0.03, rng=np.random.default_rng(17), dtype=np.float64).tocsr()


@pytest.fixture(scope="module")
def x(A) -> np.ndarray:
    return np.random.default_rng(18).standard_normal(A.shape[1])


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_any_number_of_threads_gives_the_same_bits(A, x, threads):
    plan, _arenas = bound(A, threads)
    alone, _alone = bound(A, 1)
    y, expected = np.full(A.shape[0], np.nan), np.empty(A.shape[0])
    assert alone.run(x, expected, 1.0, 0.0) == 0
    for _ in range(50):
        y[...] = np.nan
        assert plan.run(x, y, 1.0, 0.0) == 0
        assert np.array_equal(y, expected)
    np.testing.assert_allclose(expected, A @ x, rtol=1e-12, atol=1e-12)


def test_operands_that_do_not_fit_are_refused_untouched(A, x):
    plan, _arenas = bound(A, 2)
    y = np.full(A.shape[0], 7.0)
    frozen = y.copy()
    frozen.flags.writeable = False
    unaligned = np.frombuffer(bytearray(8 * len(x) + 1), np.uint8)[1:].view(np.float64)
    both = np.ones(len(x) + len(y))
    refused = [
        (x[:-1], y), (x, y[:-1]), (x.astype(np.float32), y), (x, y.astype(np.float32)), (x[::-1], y),
        (x.reshape(-1, 1), y),
        (x.astype(">f8"), y), (x.astype(np.int64), y), (list(x), y), (None, y), (x, None), (x, frozen), (unaligned, y),
        (both[: len(x)], both[: len(y)]), (both[: len(x)], both[5 : 5 + len(y)]),
    ]  # fmt: skip
    for first, second in refused:
        assert plan.run(first, second, 1.0, 0.0) == -1
    assert (y == 7.0).all()
    for wrong in ((x, y), (x, y, 1.0), (x, y, "one", 0.0), (x, y, 1.0, 1j)):
        with pytest.raises(TypeError):
            plan.run(*wrong)


def test_alpha_and_beta(A, x):
    plan, _arenas = bound(A, 2)
    y0 = np.random.default_rng(19).standard_normal(A.shape[0])
    y = y0.copy()
    assert plan.run(x, y, -1.5, 0.25) == 0
    np.testing.assert_allclose(y, -1.5 * (A @ x) + 0.25 * y0, rtol=1e-11, atol=1e-11)
    y[...] = np.nan
    assert plan.run(x, y, 2, 0) == 0
    np.testing.assert_allclose(y, 2 * (A @ x), rtol=1e-11, atol=1e-11)


def test_sixteen_threads_share_one_plan(A, x):
    plan, _arenas = bound(A, 2)
    expected = np.empty(A.shape[0])
    plan.run(x, expected, 1.0, 0.0)

    def many(_):
        y = np.empty(A.shape[0])
        return all(plan.run(x, y, 1.0, 0.0) == 0 and np.array_equal(y, expected) for _ in range(100))

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(many, range(16)))


def test_a_forked_child_has_threads_of_its_own(A, x):
    plan, _arenas = bound(A, 3)
    expected, y = np.empty(A.shape[0]), np.empty(A.shape[0])
    plan.run(x, expected, 1.0, 0.0)
    for _ in range(3):
        child = os.fork()
        if child == 0:
            good = all(plan.run(x, y, 1.0, 0.0) == 0 and np.array_equal(y, expected) for _ in range(20))
            os._exit(0 if good else 3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert plan.run(x, y, 1.0, 0.0) == 0


def test_a_plan_keeps_its_arrays_alive(A, x):
    plan, arenas = bound(A, 1)
    del arenas
    filler = [np.random.default_rng(5).random(len(A.data)) for _ in range(8)]
    y = np.empty(A.shape[0])
    assert plan.run(x, y, 1.0, 0.0) == 0
    np.testing.assert_allclose(y, A @ x, rtol=1e-12, atol=1e-12)
    assert len(filler) == 8


def test_a_guard_shows_a_write_beside_an_array():
    arena = Arena({"a": np.arange(37.0), "b": np.arange(11, dtype=np.int32)})
    assert arena.intact()
    for name in ("a", "b"):
        array = arena.arrays[name]
        assert array.ctypes.data % 64 == 0
        beside = np.frombuffer(arena._bytes, np.uint8)
        start = array.ctypes.data - arena._bytes.ctypes.data
        for position in (start - 1, start + array.nbytes, start - GUARD):
            beside[position] = 0
            assert not arena.intact()
            beside[position] = 0xFF
    assert arena.intact()
    assert np.array_equal(arena.arrays["a"], np.arange(37.0))


def test_arrays_that_say_their_order_though_it_is_native_are_used_as_they_stand(A, x, tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        said = file.create_dataset("x", data=x).dtype
    arrays = x.view(said), np.empty(A.shape[0], said)
    assert {memoryview(each).format for each in arrays} == {"<d"}, "a dtype of HDF5 is no longer what this is about"
    plan, _arenas = bound(A, 1)
    assert plan.run(*arrays, 1.0, 0.0) == 0
    np.testing.assert_allclose(arrays[1], A @ x, rtol=1e-12, atol=1e-12)
    assert plan.run(x.astype(">f8"), np.empty(A.shape[0]), 1.0, 0.0) == -1


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("k", [1, 2, 7, 16])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_columns_are_turned_into_rows_for_kernels_that_want_them(A, threads, k, dtype):
    A = A.astype(dtype)
    plan, _arenas = bound(A, threads, "spmm", "csr_ahead", {"TURN_B": 1}, k=k, layout_b="column", layout_c="column")
    rows, _others = bound(A, 1, "spmm", "csr_ahead", {"TURN_B": 1}, k=k, layout_c="column")
    rng = np.random.default_rng(20)
    for _ in range(3):  # the memory of the copy is used again
        B = np.asfortranarray(rng.standard_normal((A.shape[1], k)), dtype)
        C, expected = np.full((2, k, A.shape[0]), np.nan, dtype)
        before = B.copy(order="K")
        assert plan.run(B, C.T, 1.0, 0.0) == 0 and np.array_equal(B, before)
        assert rows.run(np.ascontiguousarray(B), expected.T, 1.0, 0.0) == 0
        assert np.array_equal(C, expected)
        np.testing.assert_allclose(C.T, A @ B, rtol=3e-5 if dtype == np.float32 else 1e-11, atol=1e-4)
    if k > 1:
        assert plan.run(np.ascontiguousarray(B), C.T, 1.0, 0.0) == -1 and np.array_equal(C, expected)


def test_calls_at_once_turn_each_their_own(A):
    plan, _arenas = bound(A, 1, "spmm", "csr_ahead", {"TURN_B": 1}, k=5, layout_b="column")
    Bs = [np.asfortranarray(np.random.default_rng(30 + i).standard_normal((A.shape[1], 5))) for i in range(6)]

    def call(B: np.ndarray) -> float:
        C, worst = np.empty((A.shape[0], 5)), 0.0
        for _ in range(40):
            assert plan.run(B, C, 1.0, 0.0) == 0
            worst = max(worst, float(np.abs(C - A @ B).max()))
        return worst

    with ThreadPoolExecutor(6) as pool:
        assert max(pool.map(call, Bs)) < 1e-11


@pytest.mark.parametrize("name, params", [("csr_ahead", {}), ("csr_row", {}), ("strip_row", {}), ("strip_narrow", {})])
def test_the_last_rows_of_B_are_read_to_their_end_only(A, name, params):
    """Rows that are shorter than a vector are read into the next one, which the last has not: behind it is a wall."""
    whole = sp.csr_array(A[:, ::-1][:64])  # with entries in the last columns
    whole.sort_indices()
    for k in (1, 3, 5, 11):
        plan, _arenas = bound(whole, 1, "spmm", name, params, k=k)
        B = np.random.default_rng(21).standard_normal((whole.shape[1], k))
        child = os.fork()
        if child == 0:
            pages = -(-B.nbytes // mmap.PAGESIZE)
            memory = np.frombuffer(mmap.mmap(-1, (pages + 1) * mmap.PAGESIZE), np.uint8)
            wall = memory.ctypes.data + pages * mmap.PAGESIZE
            protect = ctypes.CDLL(None).mprotect
            protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
            status = protect(wall, mmap.PAGESIZE, 0)
            end = pages * mmap.PAGESIZE
            close = memory[end - B.nbytes : end].view(np.float64).reshape(B.shape)
            close[...] = B
            C = np.full((whole.shape[0], k), np.nan)
            status |= plan.run(close, C, 1.0, 0.0)
            os._exit(0 if status == 0 and np.abs(C - whole @ B).max() < 1e-11 else 1)
        assert os.waitpid(child, 0)[1] == 0, (name, k)
