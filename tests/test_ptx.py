"""The door of the executor: what a launch takes, what it refuses and how, budgets, counters, threads, memory."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from sparsegen import ptx
from sparsegen.errors import SparsegenTypeError, SparsegenValueError
from sparsegen.ptx import counters, forms, table
from sparsegen.screen import assembly

pytestmark = pytest.mark.skipif(ptx.available() is not None, reason=str(ptx.available()))

ROOT = Path(__file__).resolve().parent.parent
VECTOR = (Path(__file__).parent / "kernels" / "good" / "csr_vector.cu").read_text()
SCALE = """extern "C" __global__ void scale(int n, float a, const float* x, float* y) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i];
}
"""
ENDLESS = 'extern "C" __global__ void f(volatile int* p) { while (p[0] == 0) p[1] = 0; }'


def scale(n=205, a=2.5, x=None, y=None, **details) -> tuple[ptx.Outcome, np.ndarray]:
    x = np.arange(205, dtype=np.float32) if x is None else x
    y = np.zeros(205, np.float32) if y is None else y
    details = {"grid": 3, "block": 96, "args": [n, a, x, y], "writable": [3], **details}
    return ptx.launch(SCALE, "scale", **details), y


def test_a_launch():
    outcome, y = scale()
    assert outcome.ok and outcome.kind == "ok" and outcome.line == 0 and outcome.counters is None
    np.testing.assert_array_equal(y, 2.5 * np.arange(205, dtype=np.float32))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_120"])
def test_architectures(arch):
    outcome, y = scale(arch=arch, grid=(3, 1), block=(96, 1, 1))
    assert outcome.ok and y[204] == 510


def test_scalars_of_every_kind():
    source = """extern "C" __global__ void f(bool a, char b, unsigned short c, int d, long long e, float g, double h,
                                        double* y) {
        y[0] = a; y[1] = b; y[2] = c; y[3] = d; y[4] = e; y[5] = g; y[6] = h;
    }"""
    y = np.zeros(7)
    args = [np.True_, -7, np.uint16(65535), np.int32(-5), 2**40, np.float64(0.25), 3, y]
    assert ptx.launch(source, "f", 1, 1, args, [7]).ok
    np.testing.assert_array_equal(y, [1, -7, 65535, -5, 2**40, 0.25, 3])


@pytest.mark.parametrize(
    ("details", "told"),
    [
        ({"grid": 0}, "grid"), ({"grid": (1, 2, 3, 4)}, "grid"), ({"grid": 2**31}, "grid"), ({"grid": "3"}, "grid"),
        ({"block": 1025}, "block"), ({"block": (32, 33, 1)}, "1056 threads"), ({"block": 1.5j}, "block"),
        ({"args": [1, 2.0]}, "takes 4"), ({"args": [1, 2.0, np.ones(3), 5.0]}, "position 3"),
        ({"args": [2**40, 2.0, np.ones(3), np.ones(3)]}, "does not fit"),
        ({"args": ["one", 2.0, np.ones(3), np.ones(3)]}, "str"), ({"args": [1.5, 2.0, np.ones(3), np.ones(3)]}, "1.5"),
        ({"args": [np.ones(3), 2.0, np.ones(3), np.ones(3)]}, "args[0]"),
        ({"args": [1, 2.0, np.ones(9)[::2], np.ones(3)]}, "ascontiguousarray"),
        ({"args": [1, 2.0, np.array([None]), np.ones(3)]}, "ascontiguousarray"),
        ({"writable": [4]}, "position 4"), ({"writable": [0]}, "position 0"),
        ({"uninitialised": [2]}, "uninitialised"),
        ({"shared_bytes": 1 << 20}, "shared_bytes"), ({"shared_bytes": -1}, "shared_bytes"),
        ({"arch": "ampere"}, "arch"), ({"budget": -1}, "budget"),
    ],
)  # fmt: skip
def test_mistakes_in_the_call(details, told):
    with pytest.raises((SparsegenValueError, SparsegenTypeError)) as caught:
        scale(**details)
    assert told in str(caught.value) and "\n" not in str(caught.value)


def test_arrays_that_may_not_be_written():
    frozen = np.zeros(205, np.float32)
    frozen.flags.writeable = False
    with pytest.raises(SparsegenValueError, match="read-only"):
        scale(y=frozen)
    both = np.zeros(400, np.float32)
    with pytest.raises(SparsegenValueError, match="shares memory"):
        scale(x=both[:205], y=both[190:395])
    with pytest.raises(SparsegenTypeError, match="source"):
        ptx.launch(b"", "f", 1, 1, [])  # type: ignore[arg-type]


def test_sources_that_do_not_compile_are_an_outcome():
    outcome = ptx.launch('extern "C" __global__ void f() {\n  int a = b;\n}', "f", 1, 1, [])
    assert outcome.kind == "refused" and outcome.line == 2 and "undefined" in outcome.message
    outcome = ptx.launch('#include "/etc/passwd"\n', "f", 1, 1, [])
    assert outcome.kind == "refused" and outcome.line == 1 and "root" not in outcome.message
    assert scale(n=3)[0].ok, "the compiler is there again"
    assert ptx.launch(SCALE, "other", 1, 1, []).kind == "unsupported"


def test_lines_are_those_of_the_source_inside_functions_and_headers():
    source = """#include <cuda_fp16.h>
__device__ float inner(const float* x, int i) {
    return x[i + 1];
}
extern "C" __global__ void f(const float* x, const __half2* h, float* y) {
    y[0] = __low2float(h[0]);
    y[1] = inner(x, threadIdx.x);
    y[2] = __low2float(h[threadIdx.x + 7]);
}
"""
    x, h, y = np.zeros(5, np.float32), np.zeros(9, np.uint32), np.zeros(3, np.float32)
    assert ptx.launch(source, "f", 1, 8, [x, h, y], [2]).line == 3
    outcome = ptx.launch(source, "f", 1, 8, [np.zeros(9, np.float32), h, y], [2])
    assert outcome.line == 8 and outcome.buffer == "argument 1" and outcome.offset == 36 and outcome.thread == 2


def test_budgets_are_deterministic():
    p = np.zeros(2, np.int32)
    told = {ptx.launch(ENDLESS, "f", 2, 64, [p], [0], budget=12_345).message for _ in range(3)}
    assert len(told) == 1 and "12345" in told.pop()
    x, y = np.ones(205, np.float32), np.zeros(205, np.float32)
    args = [205, 2.0, x, y]
    needed = next(b for b in range(1, 1000) if ptx.launch(SCALE, "scale", 3, 96, args, [3], budget=b).ok)
    assert int(scale()[0].message.split()[0]) == needed


def test_an_interrupt_ends_a_run():
    code = f"""
import numpy as np, os, signal, threading
from sparsegen import ptx
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
p = np.zeros(2, np.int32)
assert ptx.launch({ENDLESS!r}, "f", 1, 64, [p], [0], budget=1000).kind == "budget exceeded"
threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    ptx.launch({ENDLESS!r}, "f", 1, 64, [p], [0], budget=10**15)
except KeyboardInterrupt:
    print("ended")
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert ran.stdout == "ended\n" and signal.SIGINT and os.getpid(), ran.stderr


def test_other_threads_run_meanwhile_and_launches_at_once_agree():
    turned = threading.Event()
    p = np.zeros(2, np.int32)
    with ThreadPoolExecutor(4) as pool:
        waiting = pool.submit(ptx.launch, ENDLESS, "f", 1, 32, [p], [0], budget=30_000_000)
        turned.set()
        results = list(pool.map(lambda _: scale()[1].sum(), range(20)))
        assert waiting.result().kind == "budget exceeded"
    assert len(set(results)) == 1


def csr(m: int, per: int) -> tuple[list, np.ndarray, np.ndarray]:
    """A matrix of `per` entries a row for the kernel VECTOR: args, y, and what y should be."""
    rng = np.random.default_rng(7013)
    indices = np.sort(rng.integers(0, m, (m, per)).astype(np.int32), axis=1).ravel()
    indptr = np.arange(0, m * per + 1, per, dtype=np.int32)
    data, x = rng.standard_normal(m * per).astype(np.float32), rng.standard_normal(m).astype(np.float32)
    y = np.full(m, np.nan, np.float32)
    exact = sp.csr_array((data.astype(np.float64), indices, indptr), shape=(m, m)) @ x.astype(np.float64)
    return [m, indptr, indices, data, x, y], y, exact


def test_300_000_entries_with_every_check():
    args, y, exact = csr(20_003, 15)
    outcome = ptx.launch(VECTOR, "spmv", -(-20_003 // 8), 256, args, [5], uninitialised=[5])
    assert outcome.ok, outcome.message
    np.testing.assert_allclose(y, exact, atol=2e-5)


def test_memory_stays_under_three_times_the_operands():
    """In a process of its own, whose peak is its own: shadow is kept for the writable arrays alone."""
    code = """
import resource, sys
sys.path.insert(0, "tests")
import test_ptx
from sparsegen import ptx
args, y, exact = test_ptx.csr(203, 3)
ptx.launch(test_ptx.VECTOR, "spmv", 26, 256, args, [5], uninitialised=[5])
args, y, exact = test_ptx.csr(600_011, 3)
operands = sum(each.nbytes for each in args[1:])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert ptx.launch(test_ptx.VECTOR, "spmv", -(-600_011 // 8), 256, args, [5], uninitialised=[5]).ok
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(operands, 1024 * grown)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=300)
    operands, grown = (int(each) for each in ran.stdout.split())
    assert grown < 2 * operands, ran.stderr
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def test_counters_of_a_known_pattern():
    """32 neighbours of 4 bytes are 4 sectors of one line; a stride of 8 makes 32; one address for all is one."""
    source = """extern "C" __global__ void f(const float* x, float* y, int stride) {
        __shared__ float tile[32 * 33];
        const int i = threadIdx.x;
        tile[i * 32] = x[i * stride];
        __syncthreads();
        y[i] = tile[i * 32];
        if (i < 7) atomicAdd(&y[32 + i % 2], 1.0f);
    }"""
    x, y = np.zeros(256, np.float32), np.zeros(34, np.float32)
    found = {}
    for stride in (0, 1, 8):
        outcome = ptx.launch(source, "f", 3, 32, [x, y, stride], [1], counters=True, budget=10_000)
        assert outcome.kind == "ok" or outcome.kind == "race", outcome.message
        outcome = ptx.launch(source, "f", 1, 32, [x, y, stride], [1], counters=True)
        assert outcome.ok, outcome.message
        found[stride] = outcome.counters.total()
    read = {stride: total["sectors"] - 4 - 1 for stride, total in found.items()}  # beside the store and the atomic
    assert read == {0: 1, 1: 4, 8: 32}
    assert all(total["shared_waves"] == 64 and total["bank_conflicts"] == 62 for total in found.values())
    assert all(total["atomics"] == 7 and total["atomic_conflicts"] == 5 for total in found.values())
    total = found[1]
    assert total["divergent_branches"] <= 1 and total["barriers"] == 1 and total["requests"] == 3
    assert total["instructions"] == total["longest_warp"] and total["bytes"] == 128 + 128 + 28
    assert total["l1_misses"] == 4 + 4 + 1 and total["l2_misses"] == total["l1_misses"]


def test_counters_of_every_instruction_and_block():
    args, _, _ = csr(203, 7)
    outcome = ptx.launch(VECTOR, "spmv", 26, 256, args, [5], counters=True)
    found = outcome.counters
    assert isinstance(found, counters.Counters) and len(found.blocks) == 26
    assert found.instructions["executions"].sum() == found.total()["instructions"]
    assert found.instructions["lanes"].sum() == found.total()["lanes"]
    assert found.instructions["sectors"].sum() == found.total()["sectors"]
    loads = [k for k, text in enumerate(found.texts) if "ld.global" in text]
    assert found.instructions["sectors"][loads].sum() > 0 and set(found.lines[loads]) == {8, 11}
    assert found.blocks["instructions"][-1] < found.blocks["instructions"][0]  # rows 200 to 202, and no more
    again = ptx.launch(VECTOR, "spmv", 26, 256, args, [5], counters=True)
    np.testing.assert_array_equal(again.counters.blocks, found.blocks)
    small = ptx.launch(VECTOR, "spmv", 26, 256, args, [5], counters=counters.Device(2, 1 << 10, 1 << 11)).counters
    assert small.total()["l1_misses"] > found.total()["l1_misses"]
    assert small.total()["sectors"] == found.total()["sectors"]
    with pytest.raises(SparsegenValueError, match="counters"):
        ptx.launch(VECTOR, "spmv", counters.MOST_BLOCKS + 1, 256, args, [5], counters=True)


def test_inline_instructions_are_those_that_are_known():
    roots = {opcode.split(".")[0] for opcode in table.SCALARS} | set(forms.FORMS) | {"set"}
    without = {"bra", "brx", "ret", "exit"}  # the flow is the compiler's
    assert roots - without == assembly.INSTRUCTIONS
    source = 'extern "C" __global__ void f(unsigned* y) { asm volatile("TEXT" : "=r"(y[threadIdx.x])); }'
    y = np.zeros(32, np.uint32)
    assert ptx.launch(source.replace("TEXT", "mov.u32 %0, %%laneid;"), "f", 1, 32, [y], [0]).ok
    np.testing.assert_array_equal(y, np.arange(32))
    outcome = ptx.launch(source.replace("TEXT", "mul.hi.u16 %0, 3, 4;"), "f", 1, 32, [y], [0])
    assert outcome.kind in ("unsupported", "refused") and outcome.message
    for text in (".global .b8 d[4];", "call f;", "mov.u32 %0, 3; .file 1;", "exit;", "bra X;"):
        assert ptx.launch(source.replace("TEXT", text), "f", 1, 32, [y], [0]).kind == "refused"
