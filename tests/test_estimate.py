"""The estimate: each part against numbers worked out by hand, and what it must say of kernels whose order is known."""

from __future__ import annotations

import dataclasses
import importlib
import json

import numpy as np
import pytest
import scipy.sparse as sp

from sparsegen import candidate, composite, engine, gallery, paths, ptx, values
from sparsegen.errors import SparsegenTypeError, SparsegenValueError
from sparsegen.ptx import counters as counting
from sparsegen.ptx import estimate, gpus
from sparsegen.targets import emulator

needs_executor = pytest.mark.skipif(emulator.available() is not None, reason=str(emulator.available()))
A100 = gpus.get("A100")
PLAIN = {"registers": 32, "shared_bytes": 0}
WARM = counting.Device(memory_cycles=counting.Device.l2_cycles)


def counted(count: int, grid: int = 0, hottest: int = 0, texts: tuple[str, ...] = ("add.s32 a, b, c",), **fields):
    """Counters of so many equal blocks."""
    blocks = np.zeros(count, counting.BLOCK)
    for name, value in {"instructions": 400, "lines": 100, "longest_path": 1000, **fields}.items():
        blocks[name] = value
    lines = np.zeros(len(texts), counting.INSTRUCTION)
    lines["executions"] = blocks["instructions"].sum() // len(texts)
    return counting.Counters(blocks, lines, texts, np.zeros(len(texts), np.int32), hottest, grid or count)


# ---- GPUs


def test_gpus_are_described_with_their_sources():
    assert gpus.names() == ("A100", "H100", "H200", "L40S", "RTX4090", "RTX5090")
    for name in gpus.names():
        gpu = gpus.get(name)
        assert len(gpu.source) > 20 and gpu.arch.startswith("sm_")
        assert gpu.block_shared_bytes == gpu.shared_bytes - gpus.RESERVED < gpu.l1_bytes
        assert gpu.memory_gb_per_s < gpu.l2_gb_per_s and gpu.memory_cycles > counting.Device.l2_cycles
    assert gpus.get("rtx 4090") is gpus.get("NVIDIA RTX-4090")
    with pytest.raises(SparsegenValueError, match="A100"):
        gpus.get("A1000")
    with pytest.raises(SparsegenTypeError, match="name of a GPU"):
        gpus.get(3)


@pytest.mark.parametrize(
    ("name", "block", "registers", "shared", "blocks", "share", "limit"),
    [
        ("A100", 256, 32, 0, 8, 1.0, "threads"),  # 2048 / 256
        ("A100", 256, 40, 0, 6, 0.75, "registers"),  # 65536 / 1280 = 51 warps, in fours 48, of 8 each
        ("A100", 256, 33, 0, 6, 0.75, "registers"),  # 1056 registers of a warp take 1280
        ("A100", 64, 16, 0, 32, 1.0, "threads"),
        ("A100", 32, 16, 0, 32, 0.5, "blocks"),
        ("A100", 128, 32, 40 << 10, 4, 0.25, "shared memory"),  # 164 / (40 + 1)
        ("RTX4090", 256, 32, 20_000, 4, 2 / 3, "shared memory"),  # 102400 / 21024
        ("H200", 1024, 64, 0, 1, 0.5, "registers"),
        ("A100", 33, 255, 0, 4, 0.125, "registers"),  # 8192 of a warp: 8 warps, of 2 each
    ],
)
def test_occupancy(name, block, registers, shared, blocks, share, limit):
    found = gpus.occupancy(gpus.get(name), block, registers, shared)
    assert (found.blocks, found.limit) == (blocks, limit) and found.share == pytest.approx(share)


def test_a_block_that_fits_nowhere():
    with pytest.raises(SparsegenValueError, match="RTX4090"):
        gpus.occupancy(gpus.get("RTX4090"), 128, 32, 120 << 10)
    with pytest.raises(SparsegenValueError, match="registers"):
        gpus.occupancy(A100, 1024, 96, 0)


def test_the_caches_of_a_launch():
    found = estimate.device(A100, PLAIN, 256, 0, 10 << 20)
    assert found.l1_bytes == A100.l1_bytes - 8 * gpus.RESERVED and found.memory_cycles == found.l2_cycles
    assert estimate.device(A100, PLAIN, 256, 0, 41 << 20).memory_cycles == A100.memory_cycles
    staged = estimate.device(A100, {"registers": 32, "shared_bytes": 8 << 10}, 256, 12 << 10, 0)
    assert staged.l1_bytes == A100.l1_bytes - 7 * (21 << 10)  # 164 / 21 blocks


# ---- parts


def test_parts_by_hand():
    """108 equal blocks: one on each multiprocessor of the A100, at 1.41 GHz."""
    counters = counted(
        108, lines=1000, shared_waves=50, atomic_conflicts=7, l1_misses=10_000, l2_misses=9_000, instructions=4000
    )
    found = estimate.launch(A100, counters, PLAIN, 256)
    assert found.parts["launch"] == estimate.FIRST_LAUNCH_US
    assert found.parts["issue"] == pytest.approx(4000 / 4 / 1410)
    assert found.parts["load_store"] == pytest.approx((1.9 * 1000 + 50 + 2 * 7) / 1410)
    assert found.parts["latency"] == pytest.approx(1000 / 1410)
    assert found.parts["l2"] == pytest.approx(108 * 10_000 * 32 / 4000e9 * 1e6)
    assert found.parts["memory"] == found.parts["f64"] == found.parts["atomics"] == 0  # 31.1 MB fit in 41.9
    rest = sorted(value for name, value in found.parts.items() if name != "launch")
    assert found.estimated_us == pytest.approx(5.5 + rest[-1] + estimate.REST * sum(rest[:-1]))
    assert found.binds == "l2" and found.imbalance == pytest.approx(1) and found.label == "estimated, uncalibrated"
    assert (found.occupancy, found.occupancy_limit, found.blocks) == (1.0, "threads", 108)
    assert estimate.launch(A100, counters, PLAIN, 256, first=False).parts["launch"] == estimate.NEXT_LAUNCH_US


def test_what_does_not_fit_the_l2_comes_from_memory():
    def memory(sectors: int) -> float:
        return estimate.launch(A100, counted(100, l2_misses=sectors // 100), PLAIN, 256).parts["memory"]

    whole = A100.l2_bytes // 32
    assert memory(whole) == 0
    half = 1.5 * whole * 32
    assert memory(int(1.5 * whole)) == pytest.approx(half * 0.5 / (0.9 * 1555e9) * 1e6, rel=1e-3)
    assert memory(3 * whole) == pytest.approx(3 * whole * 32 / (0.9 * 1555e9) * 1e6, rel=1e-3)


def test_float64_is_slow_where_there_are_few_lanes():
    counters = counted(100, texts=("fma.rn.f64 a, b, c, d", "ld.global.f64 a, [b]", "@%p1 add.f64 a, b, c", "ret"))
    found = estimate.launch(gpus.get("L40S"), counters, PLAIN, 256).parts
    assert found["f64"] == pytest.approx(400 / 2 * 16 / 2520)  # 32 lanes by two
    assert estimate.launch(A100, counters, PLAIN, 256).parts["f64"] < found["f64"] / 8


def test_blocks_go_where_there_is_room():
    """One block a multiprocessor at a time: 109 blocks are two rounds on one, and 1 of 109 over the mean."""
    wide = {"registers": 32, "shared_bytes": 100 << 10}
    found = estimate.launch(A100, counted(109), wide, 256)
    assert found.parts["latency"] == pytest.approx(2 * 1000 / 1410)
    assert found.imbalance == pytest.approx(2 * 108 / 109)
    together = estimate.launch(A100, counted(109), PLAIN, 256)  # eight at a time
    assert together.parts["latency"] == pytest.approx(1000 / 1410)
    counters = counted(108 * 8)
    counters.blocks["longest_path"][17] = 50_000
    assert estimate.launch(A100, counters, PLAIN, 256).parts["latency"] == pytest.approx(50_000 / 1410)


def test_launches_are_added():
    one = estimate.launch(A100, counted(108), PLAIN, 256)
    two = estimate.launch(A100, counted(216, instructions=9000), {"registers": 64, "shared_bytes": 0}, 256, first=False)
    both = estimate.joined([one, two], cleared=True)
    assert both.estimated_us == pytest.approx(one.estimated_us + two.estimated_us + estimate.NEXT_LAUNCH_US)
    assert both.parts["issue"] == pytest.approx(one.parts["issue"] + two.parts["issue"])
    assert (both.launches, both.blocks, both.occupancy) == (3, 324, 0.5)
    assert both.counters["instructions"] == 108 * 400 + 216 * 9000 and both.counters["longest_path"] == 1000
    assert set(both.as_dict()) >= {"estimated_us", "parts", "binds", "counters"} and "measured_us" not in both.as_dict()


@pytest.mark.parametrize("gpu", gpus.names())
def test_more_is_never_faster(gpu):
    rng = np.random.default_rng(7013)
    for _ in range(60):
        counters = counted(int(rng.integers(1, 700)))
        for name in counting.BLOCK.names:
            counters.blocks[name] = rng.integers(1, 10 ** rng.integers(1, 6), len(counters.blocks))
        before = estimate.launch(gpus.get(gpu), counters, PLAIN, 128).estimated_us
        for names in (("bytes", "sectors", "lines", "l1_misses", "l2_misses"), ("l2_misses",), ("instructions",),
                      ("atomic_conflicts", "atomic_turns"), ("shared_waves",)):  # fmt: skip
            blocks = counters.blocks.copy()
            for name in names:
                blocks[name] *= 2
            more = dataclasses.replace(counters, blocks=blocks)
            assert estimate.launch(gpus.get(gpu), more, PLAIN, 128).estimated_us >= before - 1e-9, names


def test_some_blocks_stand_for_all():
    assert estimate.stride(1_000_000, 5000, 108) == 1 and estimate.stride(10**9, 100, 108) == 1
    assert estimate.stride(5_000_000, 5000, 108) == 5
    assert estimate.stride(6_000_000, 5000, 108) == 5  # 6 would visit a part of the multiprocessors alone
    full, part = counted(10_800), counted(2_160, grid=10_800)
    whole, some = (estimate.launch(A100, each, PLAIN, 256) for each in (full, part))
    assert (some.blocks, some.blocks_run) == (10_800, 2_160)
    assert some.counters["instructions"] == whole.counters["instructions"]
    for name in ("issue", "load_store"):
        assert some.parts[name] == pytest.approx(whole.parts[name], rel=0.1)


# ---- counters of a run

HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry f(.param .u64 f_0, .param .u64 f_1) {\n"
REGISTERS = ".reg .b64 %rd<9>; .reg .f32 %f<9>; .reg .b32 %r<9>; .reg .pred %p<3>;\n"
BEGIN = "ld.param.u64 %rd1, [f_0]; ld.param.u64 %rd2, [f_1];\n"


def path(body: str, device: counting.Device = WARM) -> int:
    x, y = np.ones(4096, np.float32), np.zeros(4096, np.float32)
    outcome = ptx.execute(HEAD + REGISTERS + BEGIN + body + "\nret;\n}", "f", 1, 1, [x, y], [1], counters=device)
    assert outcome.ok, outcome.message
    return outcome.counters.total()["longest_path"]


@needs_executor
def test_paths_by_hand():
    """%rd1 is ready at 4, so a load goes at 4 and a use of it 210 later; the end of a block takes 4."""
    load, use = "ld.global.f32 %f1, [%rd1];", "add.f32 %f2, %f1, %f1;"
    assert path(load) == 4 + 4  # nothing waits for it
    assert path(load + use) == 4 + 210 + 4
    assert path(load + use + use.replace("%f1", "%f2")) == 4 + 210 + 4 + 4
    assert path(load + use, counting.Device(memory_cycles=470)) == 4 + 470 + 4
    assert path(load + "ld.global.f32 %f3, [%rd1+4];" + "add.f32 %f2, %f1, %f3;") == 4 + 210 + 4  # the second one hits
    apart = load + "ld.global.f32 %f3, [%rd1+512];" + "add.f32 %f2, %f1, %f3;"
    assert path(apart) == 4 + 2 + 210 + 4  # at once, but for the port
    chain = load + "cvt.rzi.u64.f32 %rd3, %f1; add.u64 %rd4, %rd1, %rd3; add.u64 %rd4, %rd4, 1023;"
    assert path(chain + "ld.global.f32 %f3, [%rd4]; add.f32 %f4, %f3, %f3;") == 4 + 210 + 3 * 4 + 210 + 4
    mixed = load + use + "ld.global.f32 %f3, [%rd1+512]; add.f32 %f4, %f3, %f3;"
    assert path(mixed) == 4 + 2 + 210 + 4  # the assembler puts the second load first
    split = load + use + "bra L; L: ld.global.f32 %f3, [%rd1+512]; add.f32 %f4, %f3, %f3;"
    assert path(split) == 4 + 210 + 4 + 210 + 4  # but not across a branch


SOURCE = """extern "C" __global__ void f(const double* x, double* y, int stride, int same) {
    __shared__ float tile[32 * 32];
    tile[threadIdx.x * stride % 1024] = 1;
    __syncthreads();
    y[threadIdx.x] = x[threadIdx.x * stride] + tile[(threadIdx.x ^ 1) * stride % 1024];
    atomicAdd(&y[same ? 64 : 64 + threadIdx.x], 1.0);
}"""


@needs_executor
@pytest.mark.parametrize(
    ("stride", "sectors", "lines", "waves"), [(1, 8, 2, 1), (2, 16, 4, 2), (4, 32, 8, 4), (16, 32, 32, 16)]
)
def test_strides_by_hand(stride, sectors, lines, waves):
    """32 doubles, a stride apart, in sectors of 32 bytes and lines of 128; and as floats in banks of 4 bytes."""
    x, y = np.zeros(32 * 16), np.zeros(128)
    outcome = ptx.launch(SOURCE, "f", 1, 32, [x, y, stride, 0], [1], counters=WARM)
    assert outcome.ok, outcome.message
    total = outcome.counters.total()
    assert total["sectors"] == sectors + 8 + 8 and total["lines"] == lines + 2 + 2  # beside x
    assert total["shared_waves"] == 2 * waves and total["bank_conflicts"] == 2 * (waves - 1)


@needs_executor
def test_atomics_on_one_address_take_turns():
    found = {}
    for same in (0, 1):
        x, y = np.zeros(32 * 16), np.zeros(128)
        outcome = ptx.launch(SOURCE.replace("y[threadIdx.x] =", "double z ="), "f", 50, 32, [x, y, 1, same], [1],
                             counters=WARM)  # fmt: skip
        assert outcome.ok, outcome.message
        found[same] = outcome.counters
    # 32 doubles are two lines: two turns of each for every block, as a double takes two
    assert found[0].total()["atomic_turns"] == 2 * 2 * 50 and found[0].hottest == 2 * 50
    assert found[1].total()["atomic_turns"] == 2 * 32 * 50 == found[1].hottest
    times = [estimate.launch(A100, found[same], PLAIN, 32).parts["atomics"] for same in (0, 1)]
    assert times[1] == pytest.approx(2 * 32 * 50 * estimate.ATOMIC_CYCLES / 1410) and times[0] < times[1] / 10


# ---- kernels


def estimated(A: sp.csr_array, path: str, gpu: gpus.GPU = A100, **wanted) -> estimate.Estimate:
    template = candidate.parse((paths.data("cuda_templates") / "spmv" / path).read_text(), name=path[:-3])
    wanted = {"values": "full", **wanted}
    chosen = next(each for each in candidate.instances(template) if wanted.items() <= each.params.items())
    problem = engine.problem_of(A, target="emulator", facts=None)
    packs = composite.pack(chosen, problem)
    arrays = [{**each.arrays, "data": values.encode("full", A.data, each, A.dtype).copy()} for each in packs]
    text = emulator.unit(chosen, problem, packs)
    plan = emulator.bind(emulator.load(emulator.build(text)), chosen, problem, packs, arrays)
    x, y = np.ones(A.shape[1], A.dtype), np.empty(A.shape[0], A.dtype)
    return plan.estimate(x, y, gpu, emulator.image(text, gpu.arch).resources)


@needs_executor
@pytest.mark.parametrize(("length", "near"), [(3, (2, 4)), (15, (8, 16)), (61, (16, 32))])
def test_lanes_per_row_near_the_length_of_uniform_rows(length, near):
    A = gallery.rows(np.full(120_011 // length, length), 8009, seed=7013)
    times = {lanes: estimated(A, "csr_vector.cu", THREADS_PER_ROW=lanes).estimated_us for lanes in (2, 4, 8, 16, 32)}
    assert min(times, key=times.__getitem__) in near, times


@needs_executor
def test_one_dense_row_ruins_kernels_that_give_rows_to_lanes():
    lengths = np.full(6011, 7)
    even = gallery.rows(lengths, 9001, seed=7013)
    lengths[701] = 8501
    skewed = gallery.rows(lengths, 9001, seed=7013)
    kernels = "csr_scalar.cu", "csr_merge.cu"
    scalar, merge = ([estimated(A, each).estimated_us for A in (even, skewed)] for each in kernels)
    assert scalar[1] > 20 * scalar[0] and merge[1] < 1.5 * merge[0]
    assert merge[1] < scalar[1] / 10
    found = estimated(skewed, "csr_scalar.cu")
    assert found.binds == "latency" and found.imbalance > 3
    assert estimated(skewed, "coo_atomic.cu").binds == "atomics"


@needs_executor
def test_estimates_are_the_same_every_time_and_differ_by_gpu():
    A = gallery.powerlaw(3001, 3001, 30_011, seed=7013)
    first, again = (estimated(A, "csr_vector.cu") for _ in range(2))
    assert first == again
    others = {name: estimated(A, "csr_vector.cu", gpus.get(name)).estimated_us for name in gpus.names()}
    assert others["H100"] == others["H200"]  # in the L2
    assert len(set(others.values())) >= 4 and others["A100"] > others["H100"]


@needs_executor
@pytest.mark.parametrize(
    "path", ["csr_scalar.cu", "csr_vector.cu", "csr_merge.cu", "coo_atomic.cu", "coo_segmented.cu", "sell_thread.cu"]
)
def test_twice_the_bytes_of_values_take_no_less(path):
    for A in (gallery.rows(np.full(4001, 15), 5003, seed=7013), gallery.powerlaw(2003, 2003, 20_011, seed=7013)):
        if path == "sell_thread.cu" and np.diff(A.indptr).max() > 100:
            continue
        single, double = (estimated(A.astype(dtype), path) for dtype in (np.float32, np.float64))
        assert double.counters["bytes"] > 1.2 * single.counters["bytes"]
        assert double.estimated_us >= single.estimated_us


@needs_executor
def test_blocks_of_a_large_matrix_are_sampled(monkeypatch):
    A = gallery.rows(np.full(20_011, 9), 8009, seed=7013)
    whole = estimated(A, "csr_vector.cu", THREADS_PER_ROW=8)
    monkeypatch.setattr(estimate, "MOST_COUNTED", 40_000)
    some = estimated(A, "csr_vector.cu", THREADS_PER_ROW=8)
    assert some.blocks == whole.blocks == whole.blocks_run and some.blocks_run == pytest.approx(whole.blocks / 5, abs=1)
    assert some.estimated_us == pytest.approx(whole.estimated_us, rel=0.15)
    assert some.counters["instructions"] == pytest.approx(whole.counters["instructions"], rel=0.02)
    merge = estimated(A, "csr_merge.cu")  # its second launch reads what every block of the first has left
    assert merge.blocks_run == merge.blocks


@needs_executor
def test_the_table_of_estimates(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(paths.PACKAGE.parent / "experiments"))
    importlib.import_module("estimates").main(["--smoke", "--out", str(tmp_path / "table")])
    found = json.loads((tmp_path / "table.json").read_text())
    assert found["label"] == "estimated, uncalibrated" and len(found["matrices"]) == 2
    for each in found["matrices"].values():
        best = each["templates"]["csr_vector"]
        assert set(best) == {"A100", "H200"} and best["A100"]["estimated_us"] > best["H200"]["estimated_us"] > 5
    text = (tmp_path / "table.md").read_text()
    assert "uncalibrated" in text and text.count("| stencil |") == 2 and text.count("**") == 2 * 4
    assert "measured" not in text
