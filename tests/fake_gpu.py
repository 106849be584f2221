"""A GPU for tests: the driver, NVML and cuSPARSE as far as sparsegen calls them, on a machine without any.

Memory is the host's. Machine code is PTX in disguise, and a launch executes it in the emulator from the bytes that lie
where the driver would read them, so what a kernel gets is what a GPU would get. Handles are checked as strictly as the
driver does: the context of the thread, addresses, streams, events, and nothing after an illegal address. What only a
GPU can show, its speed and its own rounding, this cannot.
"""

from __future__ import annotations

import ctypes
import itertools
import sys
import threading
import time
from enum import IntEnum
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import scipy.sparse as sp

MAGIC = b"FAKE CUBIN\n"
L2_BYTES = 1 << 20
START = (
    "import sys; sys.path.insert(0, {folder!r}); import fake_gpu; fake_gpu.install({options!r}); "
    "from sparsegen import worker; worker.main(%d)"
)


class Result(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_DEVICE_UNAVAILABLE = 46
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_INVALID_IMAGE = 200
    CUDA_ERROR_INVALID_CONTEXT = 201
    CUDA_ERROR_INVALID_HANDLE = 400
    CUDA_ERROR_NOT_FOUND = 500
    CUDA_ERROR_NOT_READY = 600
    CUDA_ERROR_ILLEGAL_ADDRESS = 700
    CUDA_ERROR_LAUNCH_FAILED = 719


OK = (Result.CUDA_SUCCESS,)


class Handle:
    """As the bindings' objects: made of a number, and int() gives it back."""

    def __init__(self, number: int):
        self.number = number

    def __int__(self) -> int:
        return self.number


class Driver:
    CUdevice_attribute = SimpleNamespace(
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR=75, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR=76,
        CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE=38, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT=16,
        CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN=97,
    )  # fmt: skip
    CUfunction_attribute = SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8)
    CUlimit = SimpleNamespace(CU_LIMIT_PERSISTING_L2_CACHE_SIZE=6)
    CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL=1)

    def __init__(
        self, devices: int = 1, capability: tuple[int, int] = (9, 0), memory: int = 1 << 30, name: str = "Fake H200",
        refuse: str = "", code: int = 100, poison: str = "", late: bool = False,
    ):  # fmt: skip
        """refuse: a function that answers `code`; poison: an entry whose launch ends the context; late: no event is
        still to come when it is asked for."""
        self.devices, self.capability, self.size, self.name = devices, capability, memory, name
        self.refuse, self.code, self.poison, self.late = refuse, code, poison, late
        self.memory: dict[int, ctypes.Array] = {}
        self.launches: list[tuple[str, int, int, int, int]] = []  # entry, grid, block, shared bytes, stream
        self.calls: list[str] = []
        self.modules: dict[int, bytes] = {}
        self.events: dict[int, int] = {}
        self.streams: dict[int, list | None] = {0: None, 1: None, 2: None}  # what a stream has captured
        self.graphs: dict[int, list] = {}
        self.functions: dict[int, tuple[int, str]] = {}
        self.shared: list[tuple[str, int]] = []
        self.ended = 0
        self.local = threading.local()
        self._numbers = itertools.count(0x5000, 16)

    def __getattribute__(self, name):
        found = object.__getattribute__(self, name)
        if not name.startswith("cu"):
            return found
        if name == object.__getattribute__(self, "refuse"):
            code = object.__getattribute__(self, "code")
            return lambda *arguments: (next((each for each in Result if each == code), code),)
        ended = object.__getattribute__(self, "ended")
        if ended and name not in ("cuCtxGetCurrent", "cuCtxSetCurrent", "cuCtxPushCurrent", "cuCtxPopCurrent"):
            return lambda *arguments: (Result(ended),)
        object.__getattribute__(self, "calls").append(name)
        return found

    # ---- devices and contexts

    def cuInit(self, flags):
        return OK

    def cuDeviceGetCount(self):
        return *OK, self.devices

    def cuDeviceGet(self, which):
        return *OK, Handle(which)

    def cuDeviceGetAttribute(self, attribute, device):
        found = {75: self.capability[0], 76: self.capability[1], 38: L2_BYTES, 16: 132, 97: 232448}
        return *OK, found[attribute]

    def cuDeviceGetName(self, length, device):
        return *OK, self.name.encode() + b"\0" * (length - len(self.name))

    def cuDeviceGetPCIBusId(self, length, device):
        return *OK, f"0000:0{int(device)}:00.0".encode() + b"\0" * (length - 12)

    def cuDriverGetVersion(self):
        return *OK, 13020

    def cuDevicePrimaryCtxRetain(self, device):
        return *OK, Handle(0x1000 + int(device))

    def cuCtxGetCurrent(self):
        stack = getattr(self.local, "contexts", [])
        return *OK, Handle(stack[-1] if stack else 0)

    def cuCtxGetDevice(self):
        return *OK, Handle(self._context() - 0x1000)

    def cuCtxSetCurrent(self, context):
        self.local.contexts = [*getattr(self.local, "contexts", [])[:-1], int(context)]
        return OK

    def cuCtxPushCurrent(self, context):
        self.local.contexts = [*getattr(self.local, "contexts", []), int(context)]
        return OK

    def cuCtxPopCurrent(self):
        return *OK, Handle(self.local.contexts.pop())

    def cuCtxSetLimit(self, limit, value):
        assert (limit, value) == (6, 0)
        return OK

    def _context(self) -> int:
        stack = getattr(self.local, "contexts", [])
        assert stack and 0x1000 <= stack[-1] < 0x1000 + self.devices, "no context of a GPU is current in this thread"
        return stack[-1]

    # ---- memory

    def cuMemGetInfo(self):
        return *OK, self.size - sum(len(each) for each in self.memory.values()), self.size

    def cuMemAlloc(self, nbytes):
        self._context()
        assert type(nbytes) is int and nbytes > 0
        if nbytes > self.cuMemGetInfo()[1]:
            return Result.CUDA_ERROR_OUT_OF_MEMORY, None
        block = (ctypes.c_char * (nbytes + 256))()
        base = -(-ctypes.addressof(block) // 256) * 256
        held = (ctypes.c_char * nbytes).from_buffer(block, base - ctypes.addressof(block))
        ctypes.memset(base, 0xAB, nbytes)
        self.memory[base] = held
        return *OK, Handle(base)

    def cuMemFree(self, address):
        self._context()
        del self.memory[int(address)]
        return OK

    def _inside(self, address: int, nbytes: int) -> None:
        held = any(base <= address and address + nbytes <= base + len(m) for base, m in self.memory.items())
        assert held, f"{nbytes} bytes at {address:#x} are not all in one allocation"

    def cuMemcpyHtoD(self, to, source, nbytes):
        self._context()
        self._inside(to, nbytes)
        ctypes.memmove(to, source, nbytes)
        return OK

    def cuMemcpyDtoH(self, to, source, nbytes):
        self._context()
        self._inside(source, nbytes)
        ctypes.memmove(to, source, nbytes)
        return OK

    def cuMemcpyDtoDAsync(self, to, source, nbytes, stream):
        self._stream(stream)
        self._inside(source, nbytes)
        self._inside(to, nbytes)
        ctypes.memmove(to, source, nbytes)
        return OK

    def cuMemsetD8Async(self, address, value, nbytes, stream):
        assert 0 <= value < 256
        self._inside(address, nbytes)
        return self._do(stream, lambda: ctypes.memset(address, value, nbytes))

    def cuMemsetD32Async(self, address, value, count, stream):
        self._inside(address, 4 * count)
        return self._do(stream, lambda: array(address, np.uint32, count).__setitem__(slice(None), value))

    # ---- streams, events, graphs

    def _stream(self, stream) -> int:
        self._context()
        assert int(stream) in self.streams, f"stream {stream} is none"
        return int(stream)

    def _do(self, stream, work):
        captured = self.streams[self._stream(stream)]
        if captured is None:
            work()
        else:
            captured.append(work)
        return OK

    def cuStreamCreate(self, flags):
        self.streams[number := next(self._numbers)] = None
        return *OK, Handle(number)

    def cuStreamDestroy(self, stream):
        del self.streams[self._stream(stream)]
        return OK

    def cuStreamSynchronize(self, stream):
        assert self.streams[self._stream(stream)] is None, "a stream that is captured cannot be waited for"
        return OK

    def cuStreamWaitEvent(self, stream, event, flags):
        assert flags == 0 and int(event) in self.events
        self._stream(stream)
        return OK

    def cuStreamBeginCapture(self, stream, mode):
        assert mode == 1 and self._stream(stream) > 2, "the default stream cannot be captured"
        self.streams[int(stream)] = []
        return OK

    def cuStreamEndCapture(self, stream):
        self.graphs[number := next(self._numbers)] = self.streams[self._stream(stream)] or []
        self.streams[int(stream)] = None
        return *OK, Handle(number)

    def cuGraphInstantiate(self, graph, flags):
        assert flags == 0
        self.graphs[number := next(self._numbers)] = list(self.graphs[int(graph)])
        return *OK, Handle(number)

    def cuGraphDestroy(self, graph):
        del self.graphs[int(graph)]
        return OK

    cuGraphExecDestroy = cuGraphDestroy

    def cuGraphLaunch(self, executable, stream):
        self._stream(stream)
        for work in self.graphs[int(executable)]:
            work()
        return (Result(self.ended),)

    def cuEventCreate(self, flags):
        assert flags in (0, 2)
        self.events[number := next(self._numbers)] = 0
        return *OK, Handle(number)

    def cuEventRecord(self, event, stream):
        self._stream(stream)
        assert int(event) in self.events
        self.events[int(event)] = time.perf_counter_ns()
        return OK

    def cuEventQuery(self, event):
        return OK if self.late else (Result.CUDA_ERROR_NOT_READY,)

    def cuEventSynchronize(self, event):
        assert int(event) in self.events
        return OK

    def cuEventElapsedTime(self, begin, end):
        return *OK, (self.events[int(end)] - self.events[int(begin)]) / 1e6

    def cuEventDestroy(self, event):
        del self.events[int(event)]
        return OK

    # ---- code

    def cuModuleLoadData(self, image):
        self._context()
        assert isinstance(image, bytes)
        if not image.startswith(MAGIC):
            return Result.CUDA_ERROR_INVALID_IMAGE, None
        text = image[len(MAGIC) :].partition(b"\0")[0]  # the cache adds its checksum
        self.modules[number := next(self._numbers)] = text
        return *OK, Handle(number)

    def cuModuleUnload(self, module):
        del self.modules[int(module)]
        return OK

    def cuModuleGetFunction(self, module, name):
        if f".entry {name.decode()}(".encode() not in self.modules[int(module)]:
            return Result.CUDA_ERROR_NOT_FOUND, None
        self.functions[number := next(self._numbers)] = int(module), name.decode()
        return *OK, Handle(number)

    def cuFuncSetAttribute(self, function, attribute, value):
        assert attribute == 8
        self.shared.append((self.functions[int(function)][1], value))
        return OK

    def cuLaunchKernel(self, function, gx, gy, gz, bx, by, bz, shared, stream, addresses, extra):
        assert (gy, gz, by, bz, extra) == (1, 1, 1, 1, 0) and gx > 0 and 0 < bx <= 1024
        module, entry = self.functions[int(function)]
        self.launches.append((entry, gx, bx, shared, int(stream)))
        if entry == self.poison:
            self.ended = 700
            return (Result.CUDA_ERROR_ILLEGAL_ADDRESS,)
        text = self.modules[module].decode()
        arguments = self.arguments(text, entry, addresses)
        self._do(stream, lambda: self._execute(text, entry, gx, bx, arguments, shared))
        return (Result(self.ended),)

    def arguments(self, text: str, entry: str, addresses: int) -> list:
        """As a GPU reads them: each at its own address, as wide as the kernel declares it."""
        from sparsegen import ptx

        found = []
        for turn, (_, _, size, _) in enumerate(ptx._encoded(text, entry).parameters):
            at = int(array(addresses + 8 * turn, np.uint64, 1)[0])
            raw = bytes((ctypes.c_char * size).from_address(at))
            number = int.from_bytes(raw, "little")
            base = next((b for b, m in self.memory.items() if b <= number < b + len(m)), None) if size == 8 else None
            found.append(raw if base is None else array(number, np.uint8, base + len(self.memory[base]) - number))
        return found

    def _execute(self, text: str, entry: str, grid: int, block: int, arguments: list, shared: int) -> None:
        from sparsegen import ptx

        writable = [turn for turn, each in enumerate(arguments) if isinstance(each, np.ndarray)]
        outcome = ptx.execute(text, entry, grid, block, arguments, writable, shared)
        if not outcome.ok:
            self.ended = 700 if outcome.kind == "out of bounds" else 719


def array(address: int, dtype, count: int) -> np.ndarray:
    """What lies at an address, as it is: writing to it writes there."""
    nbytes = np.dtype(dtype).itemsize * count
    return np.frombuffer((ctypes.c_char * nbytes).from_address(address), dtype) if count else np.empty(0, dtype)


class NVML:
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    def __init__(self, slowed: int = 0, processes: int = 2):
        self.slowed, self.processes = slowed, processes

    def nvmlDeviceGetHandleByPciBusId(self, bus):
        assert isinstance(bus, str) and bus.startswith("0000:")
        return "handle"

    def nvmlDeviceGetClockInfo(self, handle, kind):
        return {1: 1980, 2: 3201}[kind]

    def nvmlDeviceGetMaxClockInfo(self, handle, kind):
        return 1980

    def nvmlDeviceGetTemperature(self, handle, sensor):
        return 41

    def nvmlDeviceGetPowerUsage(self, handle):
        raise RuntimeError("Not Supported")

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        return [object()] * self.processes

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle):
        return self.slowed


class CuSparse:
    """The functions of libcusparse that the baseline calls, with ctypes arguments as the library gets them."""

    def __init__(self, refused: tuple[int, ...] = ()):
        self.refused, self.live, self.made, self._numbers = refused, {}, [], itertools.count(0x7000, 16)
        self.algorithms: list[tuple[str, int]] = []

    def _new(self, where, kind: str, *about) -> int:
        where._obj.value = next(self._numbers)
        self.live[where._obj.value] = (kind, [plain(each) for each in about])
        self.made.append(kind)
        return 0

    def _gone(self, descriptor) -> int:
        del self.live[descriptor.value]
        return 0

    def __getattr__(self, name):
        if name.startswith("cusparseCreate"):
            return lambda where, *about: self._new(where, name.removeprefix("cusparseCreate") or "handle", *about)
        if name.startswith("cusparseDestroy"):
            return self._gone
        raise AttributeError(name)

    def cusparseGetErrorString(self, status):
        return b"operation not supported"

    def cusparseSetStream(self, handle, stream):
        assert self.live[handle.value][0] == "handle"
        return 0

    def cusparseDnVecSetValues(self, vector, address):
        self.live[vector.value][1][1] = address.value
        return 0

    def cusparseDnMatSetValues(self, matrix, address):
        self.live[matrix.value][1][3] = address.value
        return 0

    def cusparseSpMV_bufferSize(self, *arguments):
        arguments[-1]._obj.value = 12
        return 10 if arguments[-2].value in self.refused else 0

    cusparseSpMM_bufferSize = cusparseSpMV_bufferSize

    def cusparseSpMV_preprocess(self, *arguments):
        array(arguments[-1].value, np.uint8, 12)[:] = 9
        return 0

    cusparseSpMM_preprocess = cusparseSpMV_preprocess

    def cusparseSpMV(self, handle, op, alpha, matrix, x, beta, y, kind, algorithm, workspace):
        A, dtype = self._product("v", op, alpha, matrix, beta, kind, algorithm, workspace)
        (n, x_at, x_kind), (m, y_at, y_kind) = self.live[x.value][1], self.live[y.value][1]
        assert x_kind == y_kind == kind.value and A.shape == (m, n)
        array(y_at, dtype, m)[:] = A @ array(x_at, dtype, n)
        return 0

    def cusparseSpMM(self, handle, op_a, op_b, alpha, matrix, B, beta, C, kind, algorithm, workspace):
        A, dtype = self._product("m", op_a, alpha, matrix, beta, kind, algorithm, workspace)
        assert op_b.value == 0
        views = []
        for rows, columns, leading, at, real, order in (self.live[B.value][1], self.live[C.value][1]):
            assert leading == (columns if order == 2 else rows) and real == kind.value
            views.append(array(at, dtype, rows * columns).reshape((rows, columns), order="C" if order == 2 else "F"))
        views[1][:] = A @ views[0]
        return 0

    def _product(self, kind_of, op, alpha, matrix, beta, kind, algorithm, workspace):
        dtype = {0: np.float32, 1: np.float64}[kind.value]
        assert op.value == 0 and array(alpha.value, dtype, 1)[0] == 1 and array(beta.value, dtype, 1)[0] == 0
        assert array(workspace.value, np.uint8, 12).sum() == 12 * 9, "not preprocessed"
        format_of, about = self.live[matrix.value]
        self.algorithms.append((kind_of, algorithm.value))
        fits = {
            "v": {"Csr": (0, 2, 3), "Coo": (1, 4), "SlicedEll": (5,), "Bsr": (6,)}, "m": {"Csr": (0, 4, 6, 12)}
        }[kind_of]  # fmt: skip
        assert algorithm.value in fits[format_of]
        return getattr(self, f"_{format_of}")(dtype, *about), dtype

    def _Csr(self, dtype, m, n, nnz, indptr, indices, data, offsets, columns, base, real):
        kinds = {2: np.int32, 3: np.int64}
        parts = array(data, dtype, nnz), array(indices, kinds[columns], nnz), array(indptr, kinds[offsets], m + 1)
        return sp.csr_array(parts, (m, n))

    def _Coo(self, dtype, m, n, nnz, rows, columns, data, index, base, real):
        kind = {2: np.int32, 3: np.int64}[index]
        return sp.coo_array((array(data, dtype, nnz), (array(rows, kind, nnz), array(columns, kind, nnz))), (m, n))

    def _SlicedEll(self, dtype, m, n, nnz, stored, rows_of_slice, offsets, columns, data, kind, index, base, real):
        starts = array(offsets, np.int32, -(-m // rows_of_slice) + 1)
        A, found = sp.lil_array((m, n), dtype=dtype), 0
        indices, values = array(columns, np.int32, stored), array(data, dtype, stored)
        for number, (start, end) in enumerate(itertools.pairwise(starts)):
            for place in range(start, end):
                row, column = number * rows_of_slice + (place - start) % rows_of_slice, indices[place]
                if column >= 0:
                    A[row, column], found = values[place], found + 1
        assert found == nnz
        return A.tocsr()

    def _Bsr(self, dtype, rows, columns, blocks, r, c, indptr, indices, data, kind, index, base, real, order):
        assert order == 2
        parts = array(data, dtype, blocks * r * c).reshape(blocks, r, c), array(indices, np.int32, blocks)
        return sp.bsr_array((*parts, array(indptr, np.int32, rows + 1)), (rows * r, columns * c))


def plain(argument):
    return argument.value if hasattr(argument, "value") else argument


def on_device(host: np.ndarray, stream: int | None = None):
    """A copy of an array on the GPU, in its order; stream: what made it was begun in, None asks nobody to wait."""
    from sparsegen import device_arrays, gpu

    made = device_arrays.DeviceArray(gpu.get(0), host.shape, host.dtype, "C" if host.flags.c_contiguous else "F")
    made.set(host)
    made.stream = stream
    return made


def install(options: dict | None = None, put=setattr, cusparse: CuSparse | None = None) -> Driver:
    """Make the package see a GPU in this process and in the workers it starts. put: pytest's monkeypatch.setattr."""
    from sparsegen import fence, gpu, nvrtc
    from sparsegen.baselines import cusparse as baseline

    options = dict(options or {})
    slowed, library = options.pop("slowed", 0), options.pop("library", True)
    fake, nvml, compiled = Driver(**options), NVML(slowed), nvrtc.compile
    options |= {"slowed": slowed, "library": library}

    def compile(source, arch, *, kind="cubin", options=(), **limits):
        image = compiled(source, arch, kind=kind, options=options, **limits)
        if kind != "cubin":
            return image
        text = compiled(source, arch, kind="ptx", options=["-lineinfo", *options], **limits)
        return nvrtc.Image(MAGIC + text.data + b"\0", image.log, image.resources)

    gpu.forget()
    put(gpu, "driver", lambda: fake)
    put(gpu, "_nvml", lambda: nvml)
    put(nvrtc, "compile", compile)
    found = cusparse or (CuSparse() if library else "it was taken away")
    put(baseline, "library", lambda: found)
    folder = str(Path(__file__).resolve().parent)
    put(fence, "START", START.format(folder=folder, options=options))
    fence._template.stop()
    return fake


def remove() -> None:
    """After the patches were taken back: nothing of the fake is remembered."""
    from sparsegen import fence, gpu

    gpu.forget()
    fence._template.stop()


if __name__ == "__main__":  # python tests/fake_gpu.py SCRIPT ARGUMENTS: a script that finds this GPU
    import runpy

    sys.argv = sys.argv[1:]
    root = str(Path(__file__).resolve().parent.parent)
    sys.path[:0] = [root, str(Path(sys.argv[0]).resolve().parent)]
    sys.modules["fake_gpu"] = sys.modules["__main__"]
    install()
    runpy.run_path(sys.argv[0], run_name="__main__")
