"""The CUDA target without a GPU: a driver that keeps memory on the host and computes what it is asked to launch."""

from __future__ import annotations

import ctypes
import inspect
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp

from sparsegen import candidate, composite, nvrtc, paths, prelude, values
from sparsegen.errors import SparsegenError, SparsegenTypeError, SparsegenValueError
from sparsegen.problem import Facts, Pattern, Problem
from sparsegen.targets import cuda

L2_BYTES = 1 << 12


class Driver:
    """Memory is the host's, an image is a dict of entry -> function(grid, block, shared, words, memory)."""

    CUdevice_attribute = SimpleNamespace(
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR=1,
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR=2,
        CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE=3,
    )
    CUfunction_attribute = SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8)

    def __init__(self):
        self.memory: dict[int, ctypes.Array] = {}
        self.freed: list[int] = []
        self.launches: list[tuple] = []
        self.unloaded: list[object] = []
        self.attributes: list[tuple] = []
        self.fails: set[str] = set()
        self.events_ms = 1e-3
        self.flushed = 0

    def cuInit(self, flags):
        return (100,) if "cuInit" in self.fails else (0,)

    def cuDeviceGet(self, which):
        return 0, which

    def cuDeviceGetAttribute(self, attribute, which):
        return 0, {1: 9, 2: 0, 3: L2_BYTES}[attribute]

    def cuDeviceGetName(self, length, which):
        return 0, b"Fake GPU" + b"\0" * (length - 8)

    def cuDriverGetVersion(self):
        return 0, 13020

    def cuDevicePrimaryCtxRetain(self, which):
        return 0, "context"

    def cuCtxSetCurrent(self, context):
        assert context == "context"
        return (0,)

    def cuMemAlloc(self, nbytes):
        assert nbytes > 0
        if nbytes > 1 << 30:
            return 2, None
        block = ctypes.create_string_buffer(b"\xff" * nbytes, nbytes)
        self.memory[ctypes.addressof(block)] = block
        return 0, ctypes.addressof(block)

    def cuMemFree(self, address):
        self.freed.append(address)
        del self.memory[address]
        return (0,)

    def _inside(self, address, nbytes):
        assert any(base <= address and address + nbytes <= base + len(m) for base, m in self.memory.items())

    def cuMemcpyHtoD(self, to, source, nbytes):
        self._inside(to, nbytes)
        ctypes.memmove(to, source, nbytes)
        return (0,)

    def cuMemcpyDtoH(self, to, source, nbytes):
        self._inside(source, nbytes)
        ctypes.memmove(to, source, nbytes)
        return (0,)

    def cuMemsetD8Async(self, address, value, nbytes, stream):
        self._inside(address, nbytes)
        self.flushed += nbytes == 2 * L2_BYTES
        ctypes.memset(address, value, nbytes)
        return (0,)

    def cuMemsetD32Async(self, address, value, count, stream):
        self._inside(address, 4 * count)
        np.ctypeslib.as_array((ctypes.c_uint32 * count).from_address(address))[:] = value
        return (0,)

    def cuModuleLoadData(self, image):
        return 0, image

    def cuModuleUnload(self, module):
        self.unloaded.append(module)
        return (0,)

    def cuModuleGetFunction(self, module, name):
        return 0, name.decode()

    def cuFuncSetAttribute(self, function, attribute, value):
        self.attributes.append((function, attribute, value))
        return (0,)

    def cuLaunchKernel(self, function, gx, gy, gz, bx, by, bz, shared, stream, addresses, extra):
        assert (gy, gz, by, bz, extra) == (1, 1, 1, 1, 0)
        self.launches.append((function, gx, bx, shared, stream))
        if "cuLaunchKernel" in self.fails:
            return (700,)
        self.run(function, addresses)
        return (0,)

    def cuStreamSynchronize(self, stream):
        return (0,)

    def cuCtxSynchronize(self):
        return (0,)

    def cuEventCreate(self, flags):
        return 0, object()

    def cuEventRecord(self, event, stream):
        return (0,)

    def cuEventDestroy(self, event):
        return (0,)

    def cuEventElapsedTime(self, begin, end):
        return 0, self.events_ms

    def run(self, function, addresses):
        """Set by a test that wants launches to compute."""


@pytest.fixture
def driver(monkeypatch):
    fake = Driver()
    monkeypatch.setattr(cuda, "_driver", lambda: fake)
    cuda._device.cache_clear()
    yield fake
    cuda._device.cache_clear()


def array(address: int, dtype, count: int) -> np.ndarray:
    """What lies at an address, as it is: writing to it writes there."""
    nbytes = np.dtype(dtype).itemsize * count
    return np.frombuffer((ctypes.c_char * nbytes).from_address(address), dtype) if count else np.empty(0, dtype)


def arguments(addresses: int, kinds: list[tuple[str, str]], problem: Problem) -> dict:
    """The arguments of a launch, read as a GPU reads them: each at its own address, as wide as its C type."""
    pointers = array(addresses, np.uint64, len(kinds))
    widths = {"int64_t": np.int64, "ACC": problem.dtype}
    return {
        name: array(int(at), widths.get(kind, np.uint64), 1)[0].item()
        for (name, kind), at in zip(kinds, pointers, strict=True)
    }


def template(op: str, name: str, **params) -> candidate.Candidate:
    path = paths.data("cuda_templates") / op / f"{name}.cu"
    found = candidate.parse(path.read_text(), name=name)
    fitting = (
        each for each in candidate.instances(found) if all(each.params[key] == value for key, value in params.items())
    )
    return next(fitting)


def matrix(m=37, n=41, seed=20261) -> sp.csr_array:
    A = sp.random_array((m, n), density=0.2, rng=np.random.default_rng(seed), format="csr")
    A.sort_indices()
    return sp.csr_array(A)


def planned(case, A, dtype, **options):
    facts = Facts(constant=case.encoding == "constant")
    problem = Problem(case.op, Pattern.of(A), facts, np.dtype(dtype), target="cuda", **options)
    packs = composite.pack(case, problem)
    data = [values.encode(case.encoding, A.data.astype(dtype), packed, problem.dtype) for packed in packs]
    return cuda.bind(b"image", case, problem, packs, [{"data": each} for each in data]), problem


def csr_product(case, problem, accumulate=False):
    """What a launch of a CSR entry computes, from nothing but its arguments."""
    part = case.parts[0]

    def run(function, addresses):
        given = arguments(addresses, prelude.arguments(case, part), problem)
        m, n, nnz, k = given["m"], given["n"], given["nnz"], given.get("k", 1)
        at = {name: given[name] for name in ("indptr", "indices", "data")}
        A = sp.csr_array(
            (array(at["data"], problem.dtype, nnz), array(at["indices"], "i4", nnz), array(at["indptr"], "i4", m + 1)),
            shape=(m, n),
        )
        if case.op == "spmv":
            x, y = array(given["x"], problem.dtype, n), array(given["y"], problem.dtype, m)
        else:
            x = strided(given["B"], problem.dtype, (n, k), given["ldb"], problem.layout_b)
            y = strided(given["C"], problem.dtype, (m, k), given["ldc"], problem.layout_c)
        old = 0 if given["beta"] == 0 else given["beta"] * y
        y[...] = given["alpha"] * (A @ x) + old
        assert array(given["status"], np.uint32, 1)[0] == 0 or not prelude.checks_finite(case)

    return run


def strided(address, dtype, shape, leading, layout):
    rows, columns = shape
    if layout == "row":
        return array(address, dtype, rows * leading).reshape(rows, leading)[:, :columns]
    return array(address, dtype, columns * leading).reshape(columns, leading)[:, :rows].T


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_arguments_reach_the_kernel(driver, dtype):
    case, A = template("spmv", "csr_scalar"), matrix()
    plan, problem = planned(case, A, dtype)
    driver.run = csr_product(case, problem)
    rng = np.random.default_rng(20262)
    x, y = rng.standard_normal(41).astype(dtype), np.full(37, np.nan, dtype)
    assert plan(x, y) == 0
    np.testing.assert_allclose(y, A.astype(dtype) @ x, rtol=1e-5)
    before = y.copy()
    assert plan(x, y, 1.5, -0.25) == 0
    np.testing.assert_allclose(y, 1.5 * (A.astype(dtype) @ x) - 0.25 * before, rtol=1e-4, atol=1e-5)
    assert driver.launches == [("spmv", 1, 64, 0, 0)] * 2


@pytest.mark.parametrize("layouts", [("row", "row"), ("column", "row"), ("row", "column"), ("column", "column")])
def test_leading_dimensions_follow_the_layouts(driver, layouts):
    case, A = template("spmm", "csr_row", BLOCK=128), matrix()
    plan, problem = planned(case, A, "float64", k=5, layout_b=layouts[0], layout_c=layouts[1])
    driver.run = csr_product(case, problem)
    orders = [{"row": "C", "column": "F"}[layout] for layout in layouts]
    B = np.asarray(np.random.default_rng(20263).standard_normal((41, 5)), order=orders[0])
    C = np.full((37, 5), np.nan, order=orders[1])
    plan(B, C)
    np.testing.assert_allclose(C, A @ B)
    assert driver.launches == [("spmm", -(-37 * 5 // 128), 128, 0, 0)]
    wrong = np.asarray(B, order="F" if orders[0] == "C" else "C")
    with pytest.raises(SparsegenValueError, match="strides"):
        plan(wrong, C)


@pytest.mark.skipif(nvrtc.available() is not None, reason="compiles the kernel that scales")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_kernels_that_accumulate_get_beta_applied_first(driver, dtype):
    case, A = template("spmv", "coo_atomic"), matrix()
    plan, problem = planned(case, A, dtype)
    y0 = np.arange(37).astype(dtype) + 2
    seen = []

    def run(function, addresses):
        if function == "scale":
            given = arguments(addresses, [("y", "*"), ("count", "int64_t"), ("beta", "ACC")], problem)
            array(given["y"], dtype, given["count"])[:] *= given["beta"]
            return
        given = arguments(addresses, prelude.arguments(case, case.parts[0]), problem)
        assert given["beta"] == 1.0 and given["alpha"] == 2.0
        seen.append(array(given["y"], dtype, 37).copy())

    driver.run = run
    for beta in (0.0, 1.0, -3.0):
        plan(np.ones(41, dtype), np.full(37, np.nan, dtype) if beta == 0 else y0.copy(), 2.0, beta)
    np.testing.assert_array_equal(seen, [np.zeros(37), y0, -3 * y0])
    assert [entry for entry, *_ in driver.launches] == ["spmv", "spmv", "scale", "spmv"]
    assert driver.launches[2][1:3] == (1, 256)


def test_launches_run_in_order_with_one_scratch(driver):
    case, A = template("spmv", "csr_merge", BLOCK=128, ITEMS=7), matrix(703, 41)
    plan, problem = planned(case, A, "float32")
    tiles = -(-(703 + A.nnz) // (128 * 7))
    scratch = []

    def run(function, addresses):
        given = arguments(addresses, prelude.arguments(case, case.parts[0]), problem)
        scratch.append((given["carry"], given["carry_rows"]))
        driver._inside(given["carry"], 4 * tiles)
        driver._inside(given["carry_rows"], 4 * tiles)

    driver.run = run
    plan(np.ones(41, "f4"), np.ones(703, "f4"))
    plan(np.ones(41, "f4"), np.ones(703, "f4"))
    expected = [("merge", tiles, 128, 0, 0), ("add_carries", -(-tiles * 32 // 128), 128, 0, 0)]
    assert driver.launches == expected * 2
    assert len(set(scratch)) == 1


def test_later_parts_of_a_composite_accumulate(driver):
    A = sp.csr_array(sp.vstack([sp.eye_array(67, 601), np.ones((1, 601))]))
    case = template("spmv", "dense_rows")
    plan, problem = planned(case, A, "float64")
    betas = []

    def run(function, addresses):
        part = case.parts[["rest", "dense"].index(function)]
        given = arguments(addresses, prelude.arguments(case, part), problem)
        betas.append((function, given["nnz"], given["beta"]))
        if function == "dense":
            assert given["stored_rows"] == 1 and array(given["rows"], "i4", 1)[0] == 67

    driver.run = run
    plan(np.ones(601), np.ones(68), 1.0, 0.5)
    assert betas == [("rest", 67, 0.5), ("dense", 601, 1.0)]
    assert driver.launches[1][1] == 1


def test_status_is_cleared_and_returned(driver):
    case = template("spmv", "csr_scalar", values="constant")
    A = matrix()
    A.data[:] = 3
    plan, problem = planned(case, A, "float64")
    raised = [True, False]

    def run(function, addresses):
        given = arguments(addresses, prelude.arguments(case, case.parts[0]), problem)
        status = array(given["status"], np.uint32, 1)
        assert status[0] == 0
        status[0] = raised.pop(0)

    driver.run = run
    assert [plan(np.ones(41), np.ones(37)) for _ in range(2)] == [1, 0]


def test_arrays_on_the_device_stay_there(driver):
    case, A = template("spmv", "csr_scalar"), matrix()
    plan, problem = planned(case, A, "float64")
    driver.run = csr_product(case, problem)
    x, out = np.random.default_rng(20264).standard_normal(41), np.zeros(37)
    buffers = cuda.upload(x), cuda.upload(out)
    held = len(driver.memory)
    on_device = [
        SimpleNamespace(
            __cuda_array_interface__={"shape": (count,), "typestr": "<f8", "data": (each.address, False), "version": 3}
        )
        for each, count in zip(buffers, (41, 37), strict=True)
    ]
    plan.stream = 17
    plan(*on_device)
    assert len(driver.memory) == held and driver.launches[0][-1] == 17
    np.testing.assert_allclose(array(buffers[1].address, "f8", 37), A @ x)
    with pytest.raises(SparsegenTypeError, match="both on the host"):
        plan(on_device[0], out)


def test_operands_are_looked_at(driver):
    plan, _ = planned(template("spmv", "csr_scalar"), matrix(), "float64")
    good_x, good_y = np.ones(41), np.ones(37)
    for x, y, told in [
        (np.ones(40), good_y, r"x is \(40,\)"),
        (good_x.astype("f4"), good_y, "float32"),
        (good_x, np.ones((37, 1)), "y is"),
        (np.ones(82)[::2], good_y, "strides"),
    ]:
        with pytest.raises(SparsegenValueError, match=told):
            plan(x, y)
    with pytest.raises(SparsegenTypeError, match="list"):
        plan([1.0] * 41, [1.0] * 37)
    assert driver.launches == []


def test_limits_of_a_launch(driver):
    A = matrix()
    text = candidate.text(template("spmv", "csr_scalar"))
    for old, new, told in [
        ('block = "BLOCK"', 'block = "BLOCK * 17"', "block 1088"),
        ('block = "BLOCK"', 'block = "0"', "block 0"),
        ('grid = "ceil_div(m, BLOCK)"', 'grid = "m * 1000000000"', "grid 37000000000"),
    ]:
        with pytest.raises(SparsegenValueError, match=told):
            planned(candidate.parse(text.replace(old, new), name="csr_x"), A, "float32")
    shared = text.replace('block = "BLOCK"', 'block = "BLOCK"\nshared_bytes = "BLOCK * 1000"')
    plan, _ = planned(candidate.parse(shared, name="csr_x"), A, "float32")
    plan(np.ones(41, "f4"), np.ones(37, "f4"))
    assert driver.launches == [("spmv", 1, 64, 64000, 0)] and driver.attributes == [("spmv", 8, 64000)]


def test_nothing_to_do_launches_nothing(driver):
    A = sp.csr_array((0, 5))
    plan, _ = planned(template("spmv", "csr_scalar"), A, "float64")
    assert plan(np.ones(5), np.empty(0)) == 0 and driver.launches == []


def test_memory_and_modules_are_given_back(driver):
    plan, _ = planned(template("spmv", "csr_scalar"), matrix(), "float64")
    plan(np.ones(41), np.ones(37))
    del plan
    assert driver.memory == {} and driver.unloaded == [b"image"]


def test_a_failing_launch_is_an_error(driver):
    plan, _ = planned(template("spmv", "csr_scalar"), matrix(), "float64")
    driver.fails.add("cuLaunchKernel")
    with pytest.raises(SparsegenError, match="700"):
        plan(np.ones(41), np.ones(37))


def test_device_and_archs(driver):
    assert cuda.device() == "Fake GPU sm_90 driver 13.2"
    if nvrtc.available() is None:
        assert cuda.available() is None
        assert cuda.resolve(None) == "sm_90" and cuda.resolve("sm_80") == "sm_80"
        assert cuda.flags("sm_80")[0] == "-arch=sm_80"
        with pytest.raises(SparsegenValueError, match="sm_1"):
            cuda.resolve("sm_1")


def test_without_a_device_one_sentence_says_so(driver, monkeypatch):
    driver.fails.add("cuInit")
    if nvrtc.available() is None:
        assert "no CUDA device" in str(cuda.available())

    def missing():
        raise RuntimeError("libcuda.so: cannot open\nat some place")

    monkeypatch.setattr(cuda, "_driver", missing)
    cuda._device.cache_clear()
    with pytest.raises(SparsegenError, match="no NVIDIA driver") as caught:
        cuda.device()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("cold", [False, True])
def test_time(driver, cold):
    plan, _ = planned(template("spmv", "csr_scalar"), matrix(), "float64")
    inputs = [np.ones(41), np.full(41, 2.0)]
    seen = []
    driver.run = lambda function, addresses: seen.append(1)
    driver.events_ms = 1e-3
    timing = cuda.time(plan, inputs, np.ones(37), repeats=7, seed=20265, cold=cold, burst_us=10.0)
    calls = 1 if cold else 30  # the first burst said 1 us for 3 calls
    assert timing.repeats == 7 and timing.device == "Fake GPU sm_90 driver 13.2"
    assert timing.median_us == pytest.approx(1.0 / calls)
    bursts = 7 if cold else 8
    assert calls * 7 + bursts <= len(seen) <= calls * 7 + 5 * bursts + 3
    assert driver.flushed == (7 if cold else 0)


def test_events_ahead_of_the_hosts_clock_give_no_time(driver):
    plan, _ = planned(template("spmv", "csr_scalar"), matrix(), "float64")
    driver.events_ms = 1e6
    with pytest.raises(SparsegenError, match="clock"):
        cuda.time(plan, [np.ones(41)], np.ones(37), repeats=3, seed=20266)


def test_nothing_is_loaded_by_the_import():
    source = inspect.getsource(cuda)
    assert "\nfrom cuda" not in source and "\nimport cuda" not in source
