"""Memory, atomics, and what lanes do together, in every form and type, held to NumPy and to the oracle."""

from __future__ import annotations

import itertools

import numpy as np
import ptx_oracle
import pytest

from sparsegen import ptx
from sparsegen.ptx import memory, parse

pytestmark = pytest.mark.skipif(ptx.available() is not None, reason=str(ptx.available()))

N = 77  # threads: two warps and a part of one
HALVES = ("f16", "bf16", "f16x2", "bf16x2")


def unit(body: str, arrays: int, declared: str = "") -> str:
    """A kernel of `arrays` pointers arg_0, ...; %rd0 is the thread, %b0 to %b3 its bits in four widths."""
    parameters = ", ".join(f".param .u64 arg_{k}" for k in range(arrays))
    return f""".version 8.6
.target sm_90
.address_size 64
{declared}
.visible .entry one({parameters})
{{
.reg .pred %p<9>;
.reg .b16 %h<19>;
.reg .b32 %r<29>;
.reg .b64 %rd<29>;
mov.u32 %r0, %tid.x;
cvt.u64.u32 %rd0, %r0;
{body}
ret;
}}
"""


def run(body: str, arrays: list[np.ndarray], declared: str = "", block: int = N, shared: int = 0) -> None:
    text = unit(body, len(arrays), declared)
    outcome = ptx.execute(text, "one", 1, block, arrays, range(len(arrays)), shared)
    assert outcome.ok, f"{outcome.message}\n{body}"


def at(k: int, size: int, to: str) -> str:
    """The address of this thread's element of array k."""
    return f"ld.param.u64 {to}, [arg_{k}];\nmad.lo.u64 {to}, %rd0, {size}, {to};\n"


def bits_of(kind: str, rng: np.random.Generator, count: int = N) -> np.ndarray:
    size = parse.BITS[kind] // 8
    if kind in HALVES:
        halves = rng.normal(size=count * (size // 2)).astype(np.float32)
        raw = (
            halves.astype(np.float16).view(np.uint16)
            if kind[0] == "f"
            else (halves.view(np.uint32) >> 16).astype(np.uint16)
        )
        return raw.view(f"u{size}")
    if kind in ("f32", "f64"):
        return rng.normal(size=count).astype(f"f{size}").view(f"u{size}")
    return (
        rng.integers(0, 1 << 63, count, dtype=np.uint64).astype(f"u{size}")
        if size < 8
        else rng.integers(0, 1 << 63, count, dtype=np.uint64) * np.uint64(2)
    )


ATOMICS = [(what, kind) for what, kinds in memory.ATOMIC_TYPES.items() for kind in kinds]


@pytest.mark.parametrize("space", ["global", "shared", "generic"])
@pytest.mark.parametrize(("what", "kind"), ATOMICS)
def test_atomics(what, kind, space):
    """Each thread on a cell of its own: the new value and the old one."""
    rng = np.random.default_rng([51783, *f"{what}{kind}".encode()])
    size, width = parse.BITS[kind] // 8, max(parse.BITS[kind], 16)
    old, b, c = (bits_of(kind, rng) for _ in range(3))
    if what in ("cas", "inc", "dec", "min", "max"):
        old[::2] = b[::2]
    cells, result = old.copy(), np.zeros_like(old)
    names = {16: "%h", 32: "%r", 64: "%rd"}
    x, y, z, o = (f"{names[width]}{k}" for k in (11, 12, 13, 14))
    typed = f"b{width}"
    swap = f", {z}" if what == "cas" else ""
    flushing = ".noftz" if kind in HALVES and what == "add" else ""
    qualifiers = f"{'' if space == 'generic' else f'.{space}'}.{what}{flushing}.{kind}"
    body = at(0, size, "%rd1") + at(1, size, "%rd2") + at(2, size, "%rd3") + at(3, size, "%rd4")
    body += f"ld.global.{typed} {y}, [%rd2];\nld.global.{typed} {z}, [%rd3];\n"
    if space == "shared":
        body += f"mov.u64 %rd5, cells;\nmad.lo.u64 %rd5, %rd0, {size}, %rd5;\nld.global.{typed} {x}, [%rd1];\n"
        body += f"st.shared.{typed} [%rd5], {x};\natom{qualifiers} {o}, [%rd5], {y}{swap};\n"
        body += f"ld.shared.{typed} {x}, [%rd5];\nst.global.{typed} [%rd1], {x};\n"
    else:
        body += f"atom{qualifiers} {o}, [%rd1], {y}{swap};\n"
    run(body + f"st.global.{typed} [%rd4], {o};\n", [cells, b, c, result], ".shared .align 8 .b8 cells[1024];")
    np.testing.assert_array_equal(result, old)
    for k in range(N):
        given = [int(old[k]), int(b[k])]
        wanted = {
            "exch": lambda v: v[1], "cas": lambda v, k=k: int(c[k]) if v[0] == v[1] else v[0],
            "inc": lambda v: 0 if v[0] >= v[1] else v[0] + 1,
            "dec": lambda v: v[1] if v[0] == 0 or v[0] > v[1] else v[0] - 1,
        }.get(what, lambda v: ptx_oracle.expected(f"{what}.{kind}", v))(given)  # fmt: skip
        assert int(cells[k]) == wanted, (what, kind, given)


def test_atomics_of_many_threads_on_one_cell():
    cells, result = np.zeros(1, np.uint32), np.zeros(N, np.uint32)
    body = "ld.param.u64 %rd1, [arg_0];\natom.global.add.u32 %r1, [%rd1], 3;\nred.global.add.u32 [%rd1], 4;\n"
    run(body + at(1, 4, "%rd2") + "st.global.u32 [%rd2], %r1;\n", [cells, result])
    assert cells[0] == 7 * N and len(set(result)) == N


def test_vector_atomics():
    cells, b = np.arange(4 * N, dtype=np.float32), np.arange(4 * N, dtype=np.float32)[::-1].copy()
    body = at(0, 16, "%rd1") + at(1, 16, "%rd2") + "ld.global.v4.b32 {%r1, %r2, %r3, %r4}, [%rd2];\n"
    run(body + "red.global.add.v4.f32 [%rd1], {%r1, %r2, %r3, %r4};\n".replace("add.v4", "v4.add"), [cells, b])
    np.testing.assert_array_equal(cells, 4 * N - 1)


LOADS = [(kind, count) for kind, count in itertools.product(parse.BITS, (1, 2, 4)) if kind not in ("pred", *HALVES)]


@pytest.mark.parametrize(("kind", "count"), LOADS)
def test_loads_and_stores(kind, count):
    """Into every register that is wide enough, extended as the type says; through shared and local memory."""
    rng = np.random.default_rng([90210, *f"{kind}{count}".encode()])
    size = parse.BITS[kind] // 8
    vector = f".v{count}" if count > 1 else ""
    for width, name in ((16, "%h"), (32, "%r"), (64, "%rd")):
        if width < 8 * size:
            continue
        x = bits_of(kind, rng, N * count)
        wide, back = np.zeros(N * count, f"u{width // 8}"), np.zeros_like(x)
        names = [f"{name}{k}" for k in range(11, 11 + count)]
        listed = f"{{{', '.join(names)}}}" if count > 1 else names[0]
        bytes_each = size * count
        body = at(0, bytes_each, "%rd1") + at(1, width // 8 * count, "%rd2") + at(2, bytes_each, "%rd3")
        body += f"ld.global{vector}.{kind} {listed}, [%rd1];\n"
        body += "".join(f"st.global.b{width} [%rd2+{k * width // 8}], {each};\n" for k, each in enumerate(names))
        body += f"mov.u64 %rd4, tile;\nmad.lo.u64 %rd4, %rd0, {bytes_each}, %rd4;\nmov.u64 %rd5, own;\n"
        body += f"st.shared{vector}.{kind} [%rd4], {listed};\nld.shared{vector}.{kind} {listed}, [%rd4];\n"
        body += f"st.local{vector}.{kind} [%rd5+32], {listed};\nld.local{vector}.{kind} {listed}, [%rd5+32];\n"
        body += (
            f"cvta.shared.u64 %rd6, %rd4;\nst{vector}.{kind} [%rd6], {listed};\nld{vector}.{kind} {listed}, [%rd6];\n"
        )
        body += f"st.global{vector}.{kind} [%rd3], {listed};\n"
        text = unit(body, 3, ".shared .align 32 .b8 tile[4096];").replace(
            ".reg .pred", ".local .align 32 .b8 own[64];\n.reg .pred", 1
        )
        outcome = ptx.execute(text, "one", 1, N, [x, wide, back], [1, 2])
        assert outcome.ok, outcome.message
        signed = x.view(f"i{size}").astype(f"i{width // 8}").view(f"u{width // 8}")
        np.testing.assert_array_equal(wide, signed if kind[0] == "s" else x.astype(f"u{width // 8}"))
        np.testing.assert_array_equal(back, x)


SHUFFLES = """extern "C" __global__ void f(const int* by, const double* x, double* out, int* ints) {
    const int i = threadIdx.x;
    ints[i] = __shfl_MODE_sync(MASK, i * 7, by[i], WIDTH);
    out[i] = __shfl_MODE_sync(MASK, x[i], by[i], WIDTH);
}
"""


@pytest.mark.parametrize("width", [2, 8, 32])
@pytest.mark.parametrize("mode", ["up", "down", "xor", "idx"])
def test_shuffles(mode, width):
    rng = np.random.default_rng([7013, width])
    lane = np.arange(64) % 32
    by = rng.integers(0, 32 if mode == "idx" else width, 64).astype(np.int32)
    if mode != "idx":  # distances are one for all
        by[:] = by[0]
    x = rng.standard_normal(64)
    out, ints = np.zeros(64), np.zeros(64, np.int32)
    source = SHUFFLES.replace("MODE", "" if mode == "idx" else mode).replace("__shfl__sync", "__shfl_sync")
    source = source.replace("WIDTH", str(width)).replace("MASK", "0xffffffffu")
    assert ptx.launch(source, "f", 1, 64, [by, x, out, ints], [2, 3]).ok
    first = lane // width * width
    target = {"up": lane - by, "down": lane + by, "xor": lane ^ by, "idx": first + by % width}[mode]
    inside = (target >= first) & (target < first + width) if mode in ("up", "down") else target < first + width
    target = np.where(inside, target, lane) + np.arange(64) // 32 * 32
    np.testing.assert_array_equal(out, x[target])
    np.testing.assert_array_equal(ints, 7 * target)


def test_a_lane_that_takes_no_part_gives_poison():
    source = """extern "C" __global__ void f(float* a, double* b) {
        const int i = threadIdx.x;
        if (i >= 20) return;
        a[i] = __shfl_down_sync(0xffffffffu, float(i), 4);
        b[i] = __shfl_down_sync(0xfffffu, double(i), 4);
    }"""
    a, b = np.zeros(32, np.float32), np.zeros(32)
    assert ptx.launch(source, "f", 1, 32, [a, b], [0, 1]).ok
    np.testing.assert_array_equal(a[:16], np.arange(4, 20))
    np.testing.assert_array_equal(b[:16], np.arange(4, 20))
    assert np.isnan(a[16:20]).all() and np.isnan(b[16:20]).all()


TOGETHER = """extern "C" __global__ void f(const int* x, const long long* wide, unsigned* out) {
    const int i = threadIdx.x;
    if (i % 32 >= LANES) return;
    const unsigned all = ~0u >> (32 - LANES);
    int same;
    unsigned* mine = out + 12 * i;
    mine[0] = __ballot_sync(all, x[i] & 1);
    mine[1] = __any_sync(all, x[i] == 5);
    mine[2] = __all_sync(all, x[i] >= 0);
    mine[3] = __match_any_sync(all, x[i]);
    mine[4] = __match_any_sync(all, wide[i]);
    mine[5] = __match_all_sync(all, x[i] / 100, &same) + same;
    mine[6] = __reduce_add_sync(all, x[i]);
    mine[7] = __reduce_min_sync(all, x[i] - 3);
    mine[8] = __reduce_max_sync(all, unsigned(x[i] - 3));
    mine[9] = __reduce_xor_sync(all, unsigned(x[i]));
    mine[10] = __activemask();
    mine[11] = __popc(__ballot_sync(all, 1));
}
"""


@pytest.mark.parametrize("lanes", [20, 32])
def test_votes_matches_and_reductions(lanes):
    x = np.random.default_rng(51783).integers(0, 9, 64).astype(np.int32)
    wide = x.astype(np.int64) << 33
    out = np.zeros((64, 12), np.uint32)
    outcome = ptx.launch(TOGETHER.replace("LANES", str(lanes)), "f", 1, 64, [x, wide, out], [2])
    assert outcome.ok, outcome.message
    for warp in (0, 1):
        part = x[32 * warp : 32 * warp + lanes].astype(np.int64)
        every = (1 << lanes) - 1
        for k in range(lanes):
            same = sum(1 << j for j in range(lanes) if part[j] == part[k])
            ballot = sum(1 << j for j in range(lanes) if part[j] & 1)
            wanted = [
                ballot, int((part == 5).any()), 1, same, same, every + 1, part.sum(), part.min() - 3,
                (part - 3).astype(np.uint32).max(), np.bitwise_xor.reduce(part), every, lanes,
            ]  # fmt: skip
            np.testing.assert_array_equal(out[32 * warp + k], np.array(wanted).astype(np.uint32))


def test_barriers_that_vote():
    source = """extern "C" __global__ void f(const int* x, int* out) {
        const int i = threadIdx.x;
        out[3 * i] = __syncthreads_count(x[i]);
        out[3 * i + 1] = __syncthreads_and(x[i] >= 0);
        out[3 * i + 2] = __syncthreads_or(x[i] > 7);
    }"""
    x, out = np.arange(N, dtype=np.int32) % 9 % 8, np.zeros((N, 3), np.int32)
    assert ptx.launch(source, "f", 1, N, [x, out], [1]).ok
    np.testing.assert_array_equal(out, np.tile([(x != 0).sum(), 1, 0], (N, 1)))


LANGUAGE = """struct pair { int scale; double shift; };
__constant__ float table[5] = {1.5f, -2.0f, 0.25f};
__device__ int turns[3] = {7, 8};
extern "C" __global__ void f(pair p, int3 sizes, const int* x, double* out, int* where) {
    const int i = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    const int b = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    const int k = b * blockDim.x * blockDim.y * blockDim.z + i;
    double value = 0;
    switch (x[k]) {
        case 0: value = 5; break;
        case 1: value = sqrt(double(k)); break;
        case 2: value = k % 7 * 3; break;
        case 3: for (int j = 0; j < k % 5; ++j) value += j * table[j]; break;
        case 4: value = turns[k % 3]; break;
        case 5: value = k / 3 - 2.5f; break;
        case 6: value = __ldg(x + k / 2); break;
        default: value = -1;
    }
    double own[4];
    for (int j = 0; j < 4; ++j) own[j] = value * j;
    out[k] = own[x[k] & 3] * p.scale + p.shift + sizes.z;
    where[k] = b * 1000 + i;
}
"""


def test_structs_tables_branches_and_three_dimensions():
    grid, block = (2, 3, 2), (4, 3, 5)
    count = 12 * 60
    x = np.random.default_rng(17).integers(0, 9, count).astype(np.int32)
    p = np.array((3, 0.5), np.dtype([("scale", "i4"), ("shift", "f8")], align=True))[()]
    sizes = np.array((1, 2, 40), np.dtype([("x", "i4"), ("y", "i4"), ("z", "i4")]))[()]
    out, where = np.zeros(count), np.zeros(count, np.int32)
    outcome = ptx.launch(LANGUAGE, "f", grid, block, [p, sizes, x, out, where], [3, 4])
    assert outcome.ok, outcome.message
    k = np.arange(count)
    table = np.array([1.5, -2.0, 0.25, 0, 0])
    loops = np.array([sum(j * table[j] for j in range(each)) for each in range(5)])
    value = np.choose(np.minimum(x, 7), [
        np.full(count, 5.0), np.sqrt(k), k % 7 * 3.0, loops[k % 5], np.array([7.0, 8, 0])[k % 3], k // 3 - 2.5,
        x[k // 2].astype(float), np.full(count, -1.0),
    ])  # fmt: skip
    np.testing.assert_array_equal(out, value * (x & 3) * 3 + 0.5 + 40)
    np.testing.assert_array_equal(where, k // 60 * 1000 + k % 60)


@pytest.mark.parametrize("size", [4, 8, 16])
def test_asynchronous_copies(size):
    """Of whole and of partly filled elements, in two groups."""
    source = """extern "C" __global__ void f(const char* x, char* out) {
        __shared__ __align__(16) char tile[2][SIZE * 32];
        const int i = threadIdx.x;
        const unsigned to = (unsigned)__cvta_generic_to_shared(tile[0] + SIZE * i);
        asm volatile("cp.async.ca.shared.global [%0], [%1], SIZE;" :: "r"(to), "l"(x + SIZE * i));
        asm volatile("cp.async.commit_group;");
        asm volatile("cp.async.ca.shared.global [%0], [%1], SIZE, %2;"
                     :: "r"(to + SIZE * 32), "l"(x + SIZE * i), "r"(i % 5));
        asm volatile("cp.async.commit_group;");
        asm volatile("cp.async.wait_group 1;");
        for (int k = 0; k < SIZE; ++k) out[SIZE * i + k] = tile[0][SIZE * i + k];
        asm volatile("cp.async.wait_all;");
        __syncwarp();
        for (int k = 0; k < SIZE; ++k) out[SIZE * (32 + i) + k] = tile[1][SIZE * (31 - i) + k];
    }""".replace("SIZE", str(size))
    x = np.random.default_rng(18).integers(0, 256, 32 * size).astype(np.uint8)
    out = np.zeros((2, 32, size), np.uint8)
    outcome = ptx.launch(source, "f", 1, 32, [x, out], [1])
    assert outcome.ok, outcome.message
    np.testing.assert_array_equal(out[0], x.reshape(32, size))
    taken = np.arange(size) < np.minimum(np.arange(32) % 5, size)[:, None]
    np.testing.assert_array_equal(out[1], np.where(taken, x.reshape(32, size), 0)[::-1])
    late = source.replace('asm volatile("cp.async.wait_group 1;");', "")
    assert ptx.launch(late, "f", 1, 32, [x, out], [1]).kind == "uninitialised read"


MATRIX = """extern "C" __global__ void f(const unsigned* a, const unsigned* b, const unsigned* c, unsigned* d) {
    const int lane = threadIdx.x;
    unsigned A[4], B[2], C[4];
    for (int k = 0; k < NA; ++k) A[k] = a[k * 32 + lane];
    for (int k = 0; k < NB; ++k) B[k] = b[k * 32 + lane];
    for (int k = 0; k < NC; ++k) C[k] = c[k * 32 + lane];
    asm volatile("mma.sync.aligned.SHAPE.row.col.KINDS {LD}, {LA}, {LB}, {LC};" : OUTPUTS : INPUTS);
    for (int k = 0; k < NC; ++k) d[k * 32 + lane] = C[k];
}
"""


def fragments(M: np.ndarray, kind: str, rows_first: bool) -> np.ndarray:
    """A matrix as the registers of 32 lanes hold it, (registers, 32) of u4: rows by lane / 4, columns by lane % 4."""
    per = 1 if kind in ("tf32", "f32") else 2
    raw = {
        "f16": lambda m: m.astype(np.float16).view(np.uint16),
        "bf16": lambda m: (m.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16),
        "tf32": lambda m: m.astype(np.float32).view(np.uint32), "f32": lambda m: m.astype(np.float32).view(np.uint32),
    }[kind](np.ascontiguousarray(M))  # fmt: skip
    g, t = np.arange(32) // 4, np.arange(32) % 4
    found = []
    for j in range(0, M.shape[1], 4 * per):
        for i in range(0, M.shape[0], 8):
            words = raw[i + g, j + per * t].astype(np.uint32)
            if per == 2:
                words |= raw[i + g, j + 2 * t + 1].astype(np.uint32) << 16
            found.append(words)
    return np.array(found)


@pytest.mark.parametrize(
    ("shape", "kind", "half"),
    [("m16n8k8", "f16", False), ("m16n8k16", "f16", False), ("m16n8k8", "f16", True), ("m16n8k16", "f16", True),
     ("m16n8k8", "bf16", False), ("m16n8k16", "bf16", False), ("m16n8k4", "tf32", False), ("m16n8k8", "tf32", False)],
)  # fmt: skip
def test_matrix_products(shape, kind, half):
    rng = np.random.default_rng([19, *shape.encode()])
    depth = int(shape.split("k")[1])
    A, B, C = (rng.integers(-8, 9, size).astype(np.float64) / 4 for size in ((16, depth), (depth, 8), (16, 8)))
    a, b = fragments(A, kind, True), fragments(B.T, kind, True)
    if half:
        c = fragments(C, "f16", True)
    else:  # two columns to a lane, in two registers
        g, t = np.arange(32) // 4, np.arange(32) % 4
        c = np.array([C[g + 8 * (k // 2), 2 * t + k % 2].astype(np.float32).view(np.uint32) for k in range(4)])
    d = np.zeros_like(c)
    kinds = f"{'f16' if half else 'f32'}.{kind}.{kind}.{'f16' if half else 'f32'}"
    counts = {"A": len(a), "B": len(b), "C": len(c)}
    position = itertools.count(counts["C"])
    lists = {name: ", ".join(f"%{next(position)}" for _ in range(counts[name])) for name in "AB"}
    result = ", ".join(f"%{k}" for k in range(counts["C"]))
    source = MATRIX.replace("SHAPE", shape).replace("KINDS", kinds).replace("LD", result).replace("LC", result)
    for name in "AB":
        source = source.replace(f"L{name}", lists[name])
    for name, count in counts.items():
        source = source.replace(f"N{name}", str(count))
    float_operands = '"+f"(*(float*)&C[{k}])' if not half else '"+r"(C[{k}])'
    source = source.replace("OUTPUTS", ", ".join(float_operands.format(k=k) for k in range(counts["C"])))
    inputs = [f'"r"({name}[{k}])' for name in "AB" for k in range(counts[name])]
    outcome = ptx.launch(source.replace("INPUTS", ", ".join(inputs)), "f", 1, 32, [a, b, c, d], [3])
    assert outcome.ok, outcome.message
    exact = A @ B + C  # a few bits each: no rounding but that of half results
    if half:
        np.testing.assert_array_equal(d, fragments(exact, "f16", True))
    else:
        wanted = [exact[g + 8 * (k // 2), 2 * t + k % 2].astype(np.float32).view(np.uint32) for k in range(4)]
        np.testing.assert_array_equal(d, np.array(wanted))


def test_matrix_products_of_doubles():
    rng = np.random.default_rng(20)
    A, B, C = rng.standard_normal((8, 4)), rng.standard_normal((4, 8)), rng.standard_normal((8, 8))
    body = "".join(at(k, 8, f"%rd{k + 1}") + f"ld.global.b64 %rd{k + 11}, [%rd{k + 1}];\n" for k in (0, 1))
    body += at(2, 16, "%rd3") + "ld.global.v2.b64 {%rd13, %rd14}, [%rd3];\n"
    body += "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%rd13, %rd14}, {%rd11}, {%rd12}, {%rd13, %rd14};\n"
    body += "st.global.v2.b64 [%rd3], {%rd13, %rd14};\n"
    result = C.copy()
    run(body, [A.copy(), np.ascontiguousarray(B.T), result], block=32)
    np.testing.assert_allclose(result, A @ B + C, rtol=1e-14)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_matrices_from_shared_memory(count, transposed):
    x = np.arange(count * 64, dtype=np.uint16) * 3
    out = np.zeros((32, count), np.uint32)
    names = ", ".join(f"%r{k}" for k in range(11, 11 + count))
    body = "mov.u64 %rd5, tile;\nmad.lo.u64 %rd6, %rd0, 16, %rd5;\n"
    body += f"setp.ge.u32 %p1, %r0, {8 * count};\n" + at(0, 16, "%rd1")
    body += (
        "@!%p1 ld.global.v4.b32 {%r1, %r2, %r3, %r4}, [%rd1];\n@!%p1 st.shared.v4.b32 [%rd6], {%r1, %r2, %r3, %r4};\n"
    )
    body += (
        "bar.warp.sync -1;\n"
        + f"ldmatrix.sync.aligned.m8n8.x{count}{'.trans' if transposed else ''}.shared.b16 {{{names}}}, [%rd6];\n"
    )
    body += at(1, 4 * count, "%rd2") + "".join(f"st.global.b32 [%rd2+{4 * k}], %r{11 + k};\n" for k in range(count))
    run(body, [x, out], ".shared .align 16 .b8 tile[512];", block=32)
    tiles = x.reshape(count, 8, 8)
    tiles = tiles.transpose(0, 2, 1) if transposed else tiles
    wanted = np.ascontiguousarray(tiles).view(np.uint32).reshape(count, 32).T
    np.testing.assert_array_equal(out, wanted)


@pytest.mark.parametrize("source", ["s32", "u64", "f32", "f64", "f16", "bf16"])
@pytest.mark.parametrize("result", ["u32", "s32", "f32", "f16", "bf16"])
def test_comparisons_as_values(result, source):
    if result in ("f16", "bf16") and result != source:
        pytest.skip("not an instruction")
    rng = np.random.default_rng(51783)
    size, to = parse.BITS[source] // 8, parse.BITS[result] // 8
    a, b, out = bits_of(source, rng), bits_of(source, rng), np.zeros(N, f"u{to}")
    b[::3] = a[::3]
    names = {2: "%h", 4: "%r", 8: "%rd"}
    body = at(0, size, "%rd1") + at(1, size, "%rd2") + at(2, to, "%rd3")
    body += f"ld.global.b{8 * size} {names[size]}11, [%rd1];\nld.global.b{8 * size} {names[size]}12, [%rd2];\n"
    body += f"set.le.{result}.{source} {names[to]}13, {names[size]}11, {names[size]}12;\n"
    run(body + f"st.global.b{8 * to} [%rd3], {names[to]}13;\n", [a, b, out])
    for k in range(N):
        assert out[k] == ptx_oracle.expected(f"set.le.{result}.{source}", [int(a[k]), int(b[k])])


@pytest.mark.parametrize(
    "instruction",
    [
        "add.foo.s32 %r1, %r2, %r3", "add.s32 %r1, %r2, %rd3", "add.s32 %rd1, %rd2, %rd3", "add.s32 %r1, %r2",
        "add.f16 %r1, %r2, %r3", "bfi.b64 %r1, %r2, %r3, %r4, %r5", "mul.wide.s32 %r1, %r2, %r3",
        "add.cc.u32 %r1, %r2, %r3",
        "ld.global.b128 %rd1, [%rd2]", "ld.global.v4.b64 {%rd1, %rd2, %rd3}, [%rd4]", "ld.surface.b32 %r1, [%rd2]",
        "ld.global.b64 %r1, [%rd2]", "st.const.b32 [%rd1], %r2", "st.global.v2.b32 [%rd1], {%r2, %h3}",
        "mov.u32 %tid.x, 1", "mov.u32 %r1, %clock", "mov.u32 %r1, %nothing", "mov.b64 %rd1, {%h1, %h2}",
        "bar.sync 1", "bar.sync 0, 64", "bar.arrive 0, 64", "shfl.down.b32 %r1, %r2, 1, 31", "vote.ballot.b32 %r1, %p1",
        "atom.global.add.s64 %rd1, [%rd2], %rd3", "atom.global.and.u32 %r1, [%rd2], %r3",
        "red.global.cas.b32 [%rd1], %r2, %r3",
        "cvt.sat.u8.s32 %h1, %r2", "cvt.f32.f64 %r1, %rd2", "setp.lt.b32 %p1, %r1, %r2", "setp.lt.s32 %r1, %r1, %r2",
        "selp.b32 %r1, %r2, %r3, %r4", "tex.1d.v4.f32.s32 {%r1, %r2, %r3, %r4}, [t, {%r5}]",
        "vadd.u32.u32.u32 %r1, %r2, %r3",
        "wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32 {%r1}, {%r2}, {%r3}, {%r4}", "cp.async.bulk.commit_group",
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%r1}, {%r2}, {%r3}, {%r4}", "fence.proxy.async",
        "mbarrier.init.shared.b64 [%rd1], 1", "elect.sync %r1|%p1, -1", "griddepcontrol.wait",
        "ld.param.b64 %rd1, [other]",
        "redux.sync.add.f32 %r1, %r2, -1", "match.any.sync.b16 %r1, %h2, -1", "isspacep.const %p1, %rd1",
    ],
)  # fmt: skip
def test_what_is_not_known_is_refused_by_name(instruction):
    outcome = ptx.execute(unit(f".loc 1 41 5\n{instruction};", 1, '.file 1 "/kernel"'), "one", 1, N, [np.zeros(N)], [0])
    assert outcome.kind == "unsupported" and outcome.line == 41
    assert instruction.split()[0] in outcome.message
