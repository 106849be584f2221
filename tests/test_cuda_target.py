"""The CUDA target on a GPU that is none (fake_gpu.py): launches execute in the emulator, from what lies in memory."""

from __future__ import annotations

import ctypes
import gc
import threading
from types import SimpleNamespace

import fake_gpu
import numpy as np
import pytest
import scipy.sparse as sp
from fake_gpu import on_device

from sparsegen import candidate, composite, device_arrays, gpu, paths, ptx, values
from sparsegen.errors import SparsegenError, SparsegenTypeError, SparsegenValueError
from sparsegen.problem import Facts, Pattern, Problem
from sparsegen.targets import cuda

pytestmark = pytest.mark.skipif(ptx.available() is not None, reason=f"{ptx.available()}")


@pytest.fixture
def driver(monkeypatch):
    yield fake_gpu.install(put=monkeypatch.setattr)
    gc.collect()
    monkeypatch.undo()
    fake_gpu.remove()


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


def planned(case, A, dtype, image=None, **options) -> cuda.Plan:
    facts = Facts(constant=case.encoding == "constant")
    problem = Problem(case.op, Pattern.of(A), facts, np.dtype(dtype), target="cuda", **options)
    packs = composite.pack(case, problem)
    data = [values.encode(case.encoding, A.data.astype(dtype), packed, problem.dtype) for packed in packs]
    image = image or cuda.load(cuda.build(cuda.unit(case, problem, packs)))
    return cuda.bind(image, case, problem, packs, [{"data": each} for each in data])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["csr_scalar", "csr_vector", "csr_merge", "coo_atomic", "ell_thread", "sell_thread"])
def test_products(driver, name, dtype):
    A = matrix(703, 97)
    plan = planned(template("spmv", name), A, dtype)
    rng = np.random.default_rng(20262)
    x, y = rng.standard_normal(97).astype(dtype), np.full(703, np.nan, dtype)
    near = dict(rtol=1e-4, atol=1e-4) if dtype == "float32" else dict(rtol=1e-12, atol=1e-13)
    assert plan(x, y) == 0
    np.testing.assert_allclose(y, A.astype(dtype) @ x, **near)
    for alpha, beta in ((1.5, -0.25), (2.0, 1.0), (-1.0, 0.0)):
        before = y.copy()
        assert plan(x, y, alpha, beta) == 0
        np.testing.assert_allclose(y, alpha * (A.astype(dtype) @ x) + beta * before, **near)
    assert plan.intact() and plan.unchanged()


def test_one_launch_with_its_numbers(driver):
    plan = planned(template("spmv", "csr_scalar"), matrix(), "float64")
    plan(np.ones(41), np.ones(37))
    assert driver.launches == [("spmv", 1, 64, 0, 0)]


@pytest.mark.parametrize("layouts", [("row", "row"), ("column", "row"), ("row", "column"), ("column", "column")])
def test_leading_dimensions_follow_the_layouts(driver, layouts):
    case, A = template("spmm", "csr_row", BLOCK=128), matrix()
    plan = planned(case, A, "float64", k=5, layout_b=layouts[0], layout_c=layouts[1])
    orders = [{"row": "C", "column": "F"}[layout] for layout in layouts]
    B = np.asarray(np.random.default_rng(20263).standard_normal((41, 5)), order=orders[0])
    C = np.full((37, 5), np.nan, order=orders[1])
    plan(B, C)
    np.testing.assert_allclose(C, A @ B)
    there = on_device(B), on_device(C)
    plan(*there)
    np.testing.assert_allclose(there[1].get(), A @ B)
    wrong = np.asarray(B, order="F" if orders[0] == "C" else "C")
    with pytest.raises(SparsegenValueError, match="strides"):
        plan(wrong, C)


def test_launches_run_in_order_with_one_scratch(driver):
    A = matrix(703, 41)
    plan = planned(template("spmv", "csr_merge", BLOCK=128, ITEMS=7), A, "float32")
    tiles = -(-(703 + A.nnz) // (128 * 7))
    held = len(driver.memory)
    x, y = on_device(np.ones(41, "f4")), on_device(np.ones(703, "f4"))
    for _ in range(2):
        plan(x, y)
    expected = [("merge", tiles, 128, 0, 0), ("add_carries", -(-tiles * 32 // 128), 128, 0, 0)]
    assert driver.launches == expected * 2
    assert len(driver.memory) == held + 2  # nothing is allocated by a call


def test_scratch_is_not_shared_by_calls_that_overlap(driver):
    plan = planned(template("spmv", "csr_merge"), matrix(703, 41), "float32")
    x, y = on_device(np.ones(41, "f4")), on_device(np.ones(703, "f4"))
    stream = driver.cuStreamCreate(0)[1]
    waited = []
    for turn in (0, 0, int(stream), int(stream), 0):
        driver.calls.clear()
        plan(x, y, stream=turn)
        waited.append("cuStreamWaitEvent" in driver.calls)
        assert "cuEventRecord" in driver.calls
    assert waited == [False, False, True, False, True]


def test_a_call_makes_nothing_anew(driver):
    plan = planned(template("spmv", "csr_vector"), matrix(), "float64")
    x, y = np.ones(41), np.ones(37)
    plan(x, y)
    there = on_device(x), on_device(y)
    driver.calls.clear()
    plan(*there)
    assert driver.calls == ["cuCtxGetCurrent", "cuLaunchKernel"]
    driver.calls.clear()
    plan(x, y)
    assert not {"cuMemAlloc", "cuMemFree", "cuModuleLoadData"} & set(driver.calls)


def test_later_parts_of_a_composite_accumulate(driver):
    A = sp.csr_array(sp.vstack([sp.eye_array(67, 601), np.ones((1, 601))]))
    plan = planned(template("spmv", "dense_rows"), A, "float64")
    y = np.arange(68.0)
    plan(np.ones(601), y, 1.0, 0.5)
    np.testing.assert_allclose(y, A @ np.ones(601) + 0.5 * np.arange(68.0))
    assert [entry for entry, *_ in driver.launches] == ["rest", "dense"]


def test_status_is_cleared_and_returned(driver):
    A = matrix()
    A.data[:] = 3
    plan = planned(template("spmv", "csr_scalar", values="constant"), A, "float64")
    assert plan.checks
    x = np.ones(41)
    x[A.indices[0]] = np.inf
    assert plan(x, np.ones(37)) == 1
    y = np.ones(37)
    assert plan(np.ones(41), y) == 0
    np.testing.assert_allclose(y, A @ np.ones(41))


def test_arrays_on_the_device_stay_there(driver):
    A = matrix()
    plan = planned(template("spmv", "csr_scalar"), A, "float64")
    x, stream = np.random.default_rng(20264).standard_normal(41), int(driver.cuStreamCreate(0)[1])
    there = on_device(x), on_device(np.zeros(37))
    plan(*there, stream=stream)
    assert driver.launches[0][-1] == stream
    np.testing.assert_allclose(there[1].get(), A @ x)
    with pytest.raises(SparsegenTypeError, match="both on the host"):
        plan(there[0], np.zeros(37))


def test_operands_are_looked_at(driver):
    plan = planned(template("spmv", "csr_scalar"), matrix(), "float64")
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
        ('block = "BLOCK"', 'block = "BLOCK"\nshared_bytes = "BLOCK * 4000"', "256000 bytes of shared"),
    ]:
        with pytest.raises(SparsegenValueError, match=told):
            planned(candidate.parse(text.replace(old, new), name="csr_x"), A, "float32")
    shared = text.replace('block = "BLOCK"', 'block = "BLOCK"\nshared_bytes = "BLOCK * 1000"')
    plan = planned(candidate.parse(shared, name="csr_x"), A, "float32")
    plan(np.ones(41, "f4"), np.ones(37, "f4"))
    assert driver.launches == [("spmv", 1, 64, 64000, 0)] and driver.shared == [("spmv", 64000)]


def test_nothing_to_do_launches_nothing(driver):
    plan = planned(template("spmv", "csr_scalar"), sp.csr_array((0, 5)), "float64")
    assert plan(np.ones(5), np.empty(0)) == 0 and driver.launches == []


def test_memory_and_modules_are_given_back(driver):
    plan = planned(template("spmv", "csr_merge"), matrix(), "float64")
    x, y = on_device(np.ones(41)), on_device(np.ones(37))
    graph = plan.graph(x, y)
    plan(np.ones(41), np.ones(37))
    del plan, graph, x, y
    gc.collect()
    assert (driver.memory, driver.modules, driver.events, driver.graphs) == ({}, {}, {}, {})
    assert set(driver.streams) == {0, 1, 2}


def test_a_graph_is_the_call(driver):
    A = matrix(703, 41)
    for name in ("csr_vector", "csr_merge", "coo_atomic"):
        plan = planned(template("spmv", name), A, "float64")
        x, y = on_device(np.ones(41)), on_device(np.full(703, 2.0))
        graph = plan.graph(x, y, 2.0, 0.5)
        np.testing.assert_array_equal(y.get(), 2.0)  # captured, not run
        x.set(np.arange(41.0))
        launched = len(driver.launches)
        graph()
        np.testing.assert_allclose(y.get(), 2.0 * (A @ np.arange(41.0)) + 1.0)
        assert len(driver.launches) == launched
    A.data[:] = 3
    with pytest.raises(SparsegenValueError, match="status"):
        planned(template("spmv", "csr_scalar", values="constant"), A, "float64").graph(x, y)


def test_many_threads_at_once(driver):
    A = matrix(211, 97)
    plan = planned(template("spmv", "csr_merge"), A, "float64")
    wrong = []

    def work(seed):
        x = np.random.default_rng(seed).standard_normal(97)
        y = np.empty(211)
        for _ in range(3):
            plan(x, y)
            wrong.extend([seed] if not np.allclose(y, A @ x) else [])

    threads = [threading.Thread(target=work, args=(20270 + turn,)) for turn in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_the_context_of_another_library_comes_back(driver):
    driver.devices = 2
    gpu.forget()
    plan = planned(template("spmv", "csr_scalar"), matrix(), "float64", ordinal=1)
    driver.cuCtxSetCurrent(fake_gpu.Handle(0x1000))
    plan(np.ones(41), y := np.ones(37))
    np.testing.assert_allclose(y, matrix() @ np.ones(41))
    assert int(driver.cuCtxGetCurrent()[1]) == 0x1000
    assert plan.device.ordinal == 1 and gpu.chosen() == 0


def test_writes_beside_an_array_are_seen(driver):
    text = candidate.text(template("spmv", "csr_merge")).replace("carry[", "carry[1 + ")
    try:
        plan = planned(candidate.parse(text, name="csr_x"), matrix(), "float64")
    except cuda.CompileFailure:
        pytest.skip("the template is written otherwise now")
    plan(np.ones(41), np.ones(37))
    assert not plan.intact()


@pytest.mark.parametrize("poison", ["spmv"])
def test_a_fault_is_named_and_ends_the_context(driver, poison):
    plan = planned(template("spmv", "csr_scalar"), matrix(), "float64")
    driver.poison = poison
    with pytest.raises(gpu.GPUError, match="illegal address") as caught:
        plan(np.ones(41), np.ones(37))
    assert caught.value.ends and caught.value.fault == "illegal address"
    with pytest.raises(gpu.GPUError):
        plan(np.ones(41), np.ones(37))


def test_machine_code_that_the_driver_does_not_take(driver):
    with pytest.raises(gpu.GPUError, match="update it") as caught:
        planned(template("spmv", "csr_scalar"), matrix(), "float64", image=b"\x7fELF of tomorrow")
    assert not caught.value.ends


def test_out_of_memory_says_how_much(driver):
    driver.size = 1 << 12
    with pytest.raises(gpu.GPUError, match=r"out of memory: 1 MB asked for, 0\.004096 of") as caught:
        gpu.Buffer(gpu.get(0), 1_000_000)
    assert caught.value.fault == "memory" and not caught.value.ends


@pytest.mark.parametrize("refuse, code, told", [
    ("cuInit", 100, "no CUDA device"), ("cuDevicePrimaryCtxRetain", 46, "another process"),
    ("cuInit", 803, "restart the machine"), ("cuDevicePrimaryCtxRetain", 2, "OUT_OF_MEMORY"),
    ("cuDeviceGetCount", 999, "restart"),
])  # fmt: skip
def test_a_machine_that_will_not(driver, refuse, code, told):
    driver.refuse, driver.code = refuse, code
    assert told in str(cuda.available())
    with pytest.raises(SparsegenError, match=told) as caught:
        cuda.device()
    assert "\n" not in str(caught.value)


def test_no_driver_no_device_no_such_device(driver, monkeypatch):
    with pytest.raises(SparsegenValueError, match=r"device = 3; there are 1 GPU"):
        cuda.device(3)
    driver.devices = 0
    gpu.forget()
    assert "nvidia-smi" in str(cuda.available())

    def missing():
        raise RuntimeError("libcuda.so: cannot open\nat some place")

    monkeypatch.setattr(gpu, "driver", missing)
    with pytest.raises(SparsegenError, match="no NVIDIA driver") as caught:
        cuda.device()
    assert "\n" not in str(caught.value)


def test_device_and_archs(driver):
    assert cuda.device() == "Fake H200 sm_90 driver 13.2"
    assert cuda.available() is None
    assert cuda.resolve(None) == "sm_90" and cuda.resolve("sm_80") == "sm_80"
    assert cuda.flags("sm_80")[0] == "-arch=sm_80"
    with pytest.raises(SparsegenValueError, match="sm_1"):
        cuda.resolve("sm_1")


@pytest.mark.parametrize("capability, told", [((7, 0), "cuda12"), ((3, 5), "cuda12"), ((99, 0), "upgrade")])
def test_gpus_out_of_reach_say_what_to_install(driver, capability, told):
    driver.capability = capability
    if f"sm_{capability[0]}{capability[1]}" in cuda.archs():
        pytest.skip("this NVRTC compiles for it")
    assert told in str(cuda.available())


@pytest.mark.parametrize("compiled, own, fits", [
    ("sm_80", "sm_80", True), ("sm_80", "sm_86", True), ("sm_86", "sm_80", False), ("sm_80", "sm_90", False),
    ("sm_90a", "sm_90", True), ("sm_90a", "sm_100", False), ("sm_100", "sm_103", True), ("sm_100", "sm_120", False),
])  # fmt: skip
def test_which_code_runs_where(compiled, own, fits):
    assert cuda.runs(compiled, own) is fits


def capsule(array: np.ndarray, address: int):
    """What a library's __dlpack__ hands over: a PyCapsule named dltensor over a DLManagedTensor."""
    tensor = device_arrays._Tensor()
    shape = (ctypes.c_int64 * array.ndim)(*array.shape)
    strides = (ctypes.c_int64 * array.ndim)(*(step // array.itemsize for step in array.strides))
    tensor.data, tensor.device_type, tensor.device_id, tensor.ndim = address, 2, 0, array.ndim
    tensor.code, tensor.bits, tensor.lanes = 2, 8 * array.itemsize, 1
    tensor.shape, tensor.strides, tensor.byte_offset = shape, strides, 0
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return new(ctypes.addressof(tensor), b"dltensor", None), (tensor, shape, strides)


def test_arrays_of_others(driver):
    data = np.arange(12.0).reshape(3, 4)
    mine = on_device(data)
    interface = SimpleNamespace(__cuda_array_interface__=mine.__cuda_array_interface__ | {"stream": 5})
    found = device_arrays.seen(interface)
    assert (found.address, found.shape, found.stream) == (mine.buffer.address, (3, 4), 5) and found.order() == "C"
    made, kept = capsule(data[:, ::2], mine.buffer.address)
    other = SimpleNamespace(__dlpack_device__=lambda: (2, 0), __dlpack__=lambda stream: made)
    found = device_arrays.seen(other)
    assert (found.shape, found.dtype, found.strides) == ((3, 2), np.float64, (32, 16)) and found.order() is None
    assert device_arrays.seen(SimpleNamespace(__dlpack_device__=lambda: (1, 0))) is None
    assert device_arrays.seen([1.0]) is None and device_arrays.seen(data) is None
    columns = on_device(np.asfortranarray(data))
    assert device_arrays.seen(columns).order() == "F"
    np.testing.assert_array_equal(device_arrays.host(columns, gpu.get(0)), data)
    with pytest.raises(SparsegenValueError, match="gaps"):
        device_arrays.host(other, gpu.get(0))
    del kept


def test_what_the_machine_was_doing(driver, monkeypatch):
    state = gpu.state(gpu.get(0))
    assert state == {
        "sm_mhz": 1980, "memory_mhz": 3201, "most_sm_mhz": 1980, "temperature_c": 41, "processes": 2, "slowed_by": []
    }  # fmt: skip
    assert gpu.notes(state, state) == []
    nvml = fake_gpu.NVML(slowed=0x44, processes=4)
    monkeypatch.setattr(gpu, "_nvml", lambda: nvml)
    said = gpu.notes(state, gpu.state(gpu.get(0)))
    assert len(said) == 2 and "power cap, thermal, by hardware" in said[0] and "2 other" in said[1]
    monkeypatch.setattr(gpu, "_nvml", lambda: None)
    assert gpu.state(gpu.get(0)) == {} and gpu.notes({}, {}) == []
