"""NVIDIA GPUs: kernels compiled by NVRTC, loaded and launched through the driver (gpu.py).

A plan's x and y are NumPy arrays, which are copied for every call, or arrays on the device, which stay there and are
taken in the order of their stream. Arguments and memory are made once: a call queues its launches, and nothing else.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sparsegen import cache, device_arrays, gpu, nvrtc, ops, prelude
from sparsegen.candidate import Candidate, evaluate
from sparsegen.errors import SparsegenError, SparsegenTypeError, SparsegenValueError
from sparsegen.formats import Packed
from sparsegen.nvrtc import CompileFailure as CompileFailure
from sparsegen.nvrtc import archs as archs
from sparsegen.nvrtc import flags as flags
from sparsegen.problem import Problem
from sparsegen.screen import cuda as cuda_screen

LANGUAGE = "cuda"
COPIES = True  # bind copies the arrays: new values want a new plan
MOST_GRID, MOST_BLOCK = 2**31 - 1, 1024
STATIC_SHARED = 48 << 10  # more shared memory than this has to be asked for
OLDER = "pip install 'sparsegen[cuda12]' in place of sparsegen[cuda]"
SCALE = """
extern "C" __global__ void sparsegen_scale(VALUE* y, long long count, VALUE beta) {
    const long long i = blockIdx.x * 256LL + threadIdx.x;
    if (i < count) y[i] *= beta;
}
"""


def available(ordinal: int | None = None) -> str | None:
    """None when kernels can be compiled and run here; else one sentence why not and what to do."""
    try:
        gpu.get(gpu.chosen(ordinal))
    except SparsegenError as error:
        return str(error)
    if reason := nvrtc.available():
        return reason
    try:
        resolve(None, gpu.chosen(ordinal))
    except SparsegenError as error:
        return str(error)
    return None


def device(ordinal: int | None = None) -> str:
    """What a measured choice is for: the GPU and its driver."""
    return str(gpu.get(gpu.chosen(ordinal)))


def resolve(arch: str | None, ordinal: int = 0) -> str:
    """The architecture to compile for: `arch`, checked, or that of a GPU here."""
    known = archs()
    if arch is not None:
        if arch not in known:
            raise SparsegenValueError(f"arch = {arch!r}; NVRTC {nvrtc.version()} compiles for {', '.join(known)}")
        return arch
    found = gpu.get(ordinal)
    fitting = [each for each in known if runs(each, found.arch)]
    if not fitting:
        newer = found.capability > _capability(known[-1])
        what = "install a newer one: pip install --upgrade nvidia-cuda-nvrtc" if newer else OLDER
        raise SparsegenError(f"NVRTC {nvrtc.version()} does not compile for {found.name} ({found.arch}); {what}")
    return max(fitting, key=_capability)


def runs(compiled_for: str, own: str) -> bool:
    """Whether a GPU of architecture `own` executes machine code for another: of its major version, and none newer."""
    if not compiled_for[-1].isdigit():  # sm_90a and its like are for that very architecture
        return compiled_for[:-1] == own
    (major, minor), (own_major, own_minor) = _capability(compiled_for), _capability(own)
    return major == own_major and minor <= own_minor


def within(oldest: str, arch: str) -> bool:
    """Whether an architecture is no older than another."""
    return _capability(oldest) <= _capability(arch)


def _capability(arch: str) -> tuple[int, int]:
    digits = arch.removeprefix("sm_").rstrip("af")
    return int(digits[:-1]), int(digits[-1])


def compile(source_text: str, arch: str) -> bytes:
    """The CUBIN of a translation unit. Raises nvrtc.CompileFailure with the lines about the kernel."""
    return nvrtc.compile(source_text, arch).data


def screen(candidate: Candidate) -> str | None:
    """One sentence why the source must not be compiled, or None."""
    return cuda_screen.check(candidate.source)


def unit(candidate: Candidate, problem: Problem, packs: Sequence[Packed]) -> str:
    """The translation unit of a candidate; one that accumulates gets a kernel beside it that multiplies y by beta."""
    return prelude.assemble(candidate, problem, packs, {}) + (SCALE if candidate.zero else "")


def build(text: str, ordinal: int = 0) -> Path:
    """The CUBIN of a translation unit for a GPU here, from the cache or compiled into it. Raises CompileFailure."""
    arch = resolve(None, ordinal)
    key = hashlib.blake2b("\0".join([nvrtc.version(), *flags(arch), "kept", text]).encode(), digest_size=20).hexdigest()

    return cache.binary_path(key, lambda path: keep(path, compile(text, arch)))


def keep(path: Path, image: bytes) -> None:
    """Write machine code as `load` reads it: its length comes first, for the cache adds a checksum behind it."""
    path.write_bytes(len(image).to_bytes(8, "little") + image)


def load(path: Path) -> bytes:
    """The image that `bind` takes."""
    blob = Path(path).read_bytes()
    return blob[8 : 8 + int.from_bytes(blob[:8], "little")]


def bind(
    image: bytes,
    candidate: Candidate,
    problem: Problem,
    packs: Sequence[Packed],
    arrays: Sequence[Mapping[str, np.ndarray]],
    threads: int = 1,
) -> Plan:
    """A kernel on the device, ready to run; `arrays` holds for each part those of its format, data included."""
    return Plan(image, candidate, packs, [own["data"] for own in arrays], problem)


@dataclass
class _Launch:
    function: Any
    grid: int
    block: int
    shared_bytes: int
    words: np.ndarray  # one of 8 bytes for each argument
    places: Mapping[str, int]  # which word is x, y, alpha, beta
    later: bool = False  # y has its beta already

    def __post_init__(self):
        self._kept = self.words.ctypes.data + 8 * np.arange(len(self.words), dtype=np.uint64)
        self.addresses = int(self._kept.ctypes.data)


class Plan:
    """plan(x, y, alpha, beta) -> status: y = alpha A x + beta y; status 1 if a sum was not finite (see the prelude).

    Made of an image, its candidate, what `composite.pack` gave, the values of each part's slots, and the problem.
    Raises SparsegenValueError for a launch that no GPU can make. Any thread may call. y on the device is final once
    the stream has got there; a kernel that reports a status is waited for.
    """

    def __init__(self, image: bytes, candidate: Candidate, packs, data_arrays, problem: Problem):
        self.driver, self.problem, self.device = gpu.driver(), problem, gpu.get(problem.ordinal)
        self.checks, self.zero = prelude.checks_finite(candidate), bool(candidate.zero)
        self.input, self.output = ops.get(candidate.op).OPERANDS
        self.shapes = ops.get(candidate.op).shapes(problem)
        self.count, self.lock = int(np.prod(self.shapes[1])), threading.Lock()
        self.launches: list[_Launch] = []
        self._staged: tuple[gpu.Buffer, gpu.Buffer] | None = None
        self._ended: tuple[Any, int] | None = None  # an event after the last call, and its stream
        entered = self.device.enter()
        try:
            self._load(image, candidate, packs, data_arrays)
        finally:
            self.device.leave(entered)

    def _load(self, image: bytes, candidate: Candidate, packs, data_arrays) -> None:
        problem, ask = self.problem, gpu.ask
        self.modules = [module := ask(self.driver.cuModuleLoadData(image))]
        self.buffers = {"status": gpu.upload(self.device, np.zeros(1, np.uint32))}
        if self.zero:
            function = ask(self.driver.cuModuleGetFunction(module, b"sparsegen_scale"))
            words = np.array([0, self.count, 0], np.int64)
            self.scale = _Launch(function, -(-self.count // 256), 256, 0, words, {self.output: 0, "beta": 2})
        for name, (dtype, count) in prelude.scratch(candidate, problem, packs).items():
            self.buffers[name] = gpu.Buffer(self.device, count * dtype.itemsize, guarded=True)
        self.stored: dict[str, np.ndarray] = {}
        for turn, (part, packed, data) in enumerate(zip(candidate.parts, packs, data_arrays, strict=True)):
            sizes, names = prelude.sizes(problem, packed), prelude.names(candidate, part, problem, packed)
            own = {f"{name} {turn}": array for name, array in {**packed.arrays, "data": data}.items()}
            self.stored |= own
            self.buffers |= {name: gpu.upload(self.device, array, guarded=True) for name, array in own.items()}
            fixed = sizes | {name.removesuffix(f" {turn}"): each.address for name, each in self.buffers.items()}
            arguments = [name for name, _ in prelude.arguments(candidate, part)]
            for launch in part.launches:
                self._add(module, launch, arguments, fixed, names, later=self.zero or turn > 0)
        self.shares = self.checks or bool(candidate.scratch)  # two calls at a time would meet in the same memory

    def __call__(self, x, y, alpha: float = 1.0, beta: float = 0.0, stream: int = 0) -> int:
        """x: (n,) or (n, k), y: (m,) or (m, k), in the problem's dtype and layouts; y is overwritten.

        stream: of operands on the device; those on the host are copied in the default one.
        """
        problem, device = self.problem, self.device
        if isinstance(x, np.ndarray) != isinstance(y, np.ndarray):
            raise SparsegenTypeError("one of x and y is a NumPy array; expected both on the host or both on the device")
        x_at = _address(self.input, x, self.shapes[0], problem.dtype, problem.layout_b)
        y_at = _address(self.output, y, self.shapes[1], problem.dtype, problem.layout_c)
        if not isinstance(x, np.ndarray):
            return self.direct(x_at, y_at, alpha, beta, stream)
        with self.lock:
            entered = device.enter()
            try:
                if self._staged is None:
                    self._staged = gpu.Buffer(device, x.nbytes), gpu.Buffer(device, y.nbytes)
                staged_x, staged_y = self._staged
                staged_x.write(x)
                if beta != 0:
                    staged_y.write(y)
                status = self.queue(staged_x.address, staged_y.address, alpha, beta, 0)
                gpu.ask(self.driver.cuStreamSynchronize(0))
                staged_y.read(y)
                return status
            finally:
                device.leave(entered)

    run = __call__

    def direct(self, x_at: int, y_at: int, alpha: float, beta: float, stream: int) -> int:
        """A call on addresses of the device where operands lie that were looked at; the status."""
        with self.lock:
            entered = self.device.enter()
            try:
                return self.queue(x_at, y_at, alpha, beta, stream)
            finally:
                self.device.leave(entered)

    def queue(self, x_at: int, y_at: int, alpha: float, beta: float, stream: int) -> int:
        """Queue the launches of one call on addresses of the device, whose context is current; the status."""
        driver = self.driver
        if self.shares and (ended := self._ended) is not None and ended[1] != stream:
            gpu.ask(driver.cuStreamWaitEvent(stream, ended[0], 0))
        if self.checks:
            gpu.ask(driver.cuMemsetD32Async(self.buffers["status"].address, 0, 1, stream))
        if self.zero and self.count and beta == 0:
            gpu.ask(driver.cuMemsetD8Async(y_at, 0, self.count * self.problem.dtype.itemsize, stream))
        elif self.zero and self.count and beta != 1:
            self._launch(self.scale, x_at, y_at, alpha, beta, stream)
        for launch in self.launches:
            self._launch(launch, x_at, y_at, alpha, 1.0 if launch.later else beta, stream)
        if self.shares:
            event = self._ended[0] if self._ended else gpu.ask(driver.cuEventCreate(2))  # without a time
            self._ended = event, stream
            gpu.ask(driver.cuEventRecord(event, stream))
        if not self.checks:
            return 0
        gpu.ask(driver.cuStreamSynchronize(stream))
        return int(self.buffers["status"].read(np.zeros(1, np.uint32))[0])

    def graph(self, x, y, alpha: float = 1.0, beta: float = 0.0) -> Graph:
        """The launches of a call on these very arrays of the device as one CUDA graph, which starts them faster.

        Raises SparsegenValueError for a kernel whose status has to be waited for.
        """
        if self.checks:
            raise SparsegenValueError("this kernel reports a status, which a graph cannot; call it as it is")
        problem = self.problem
        if isinstance(x, np.ndarray) or isinstance(y, np.ndarray):
            raise SparsegenTypeError("a graph is of arrays on the device; x or y is a NumPy array")
        x_at = _address(self.input, x, self.shapes[0], problem.dtype, problem.layout_b)
        y_at = _address(self.output, y, self.shapes[1], problem.dtype, problem.layout_c)
        with self.lock:
            entered = self.device.enter()
            try:
                return Graph(self, (x, y), (x_at, y_at, alpha, beta))
            finally:
                self.device.leave(entered)

    def intact(self) -> bool:
        """Whether nothing was written around the arrays of A and the scratch memory."""
        return all(each.intact() for each in self.buffers.values())

    def unchanged(self) -> bool:
        """Whether the arrays of A are what they were."""
        return all(
            self.buffers[name].read(np.empty(array.nbytes, np.uint8)).tobytes() == array.tobytes(order="A")
            for name, array in self.stored.items()
        )

    def __del__(self):
        for module in getattr(self, "modules", []):
            self.driver.cuModuleUnload(module)
        if ended := getattr(self, "_ended", None):
            self.driver.cuEventDestroy(ended[0])

    def _launch(self, launch: _Launch, x_at: int, y_at: int, alpha: float, beta: float, stream: int) -> None:
        words, places = launch.words, launch.places
        real, width = words.view(self.problem.dtype), 8 // self.problem.dtype.itemsize
        if self.input in places:
            words[places[self.input]] = x_at
        words[places[self.output]] = y_at
        if "alpha" in places:
            real[width * places["alpha"]] = alpha
        if "beta" in places:
            real[width * places["beta"]] = beta
        answer = self.driver.cuLaunchKernel(
            launch.function, launch.grid, 1, 1, launch.block, 1, 1, launch.shared_bytes, stream, launch.addresses, 0
        )
        gpu.ask(answer)

    def _add(self, module, launch, arguments: list[str], fixed: dict, names: dict, later: bool) -> None:
        grid, block = evaluate(launch.grid, names), evaluate(launch.block, names)
        shared = evaluate(launch.shared_bytes, names)
        if grid > MOST_GRID or not 0 < block <= MOST_BLOCK:
            got = f"{launch.entry} has grid {grid} and block {block}"
            raise SparsegenValueError(f"{got}; a GPU takes grids to {MOST_GRID} and blocks from 1 to {MOST_BLOCK}")
        if shared > self.device.block_shared_bytes:
            got = f"{launch.entry} asks for {shared} bytes of shared memory"
            raise SparsegenValueError(f"{got}; a block on {self.device.name} has {self.device.block_shared_bytes}")
        function = gpu.ask(self.driver.cuModuleGetFunction(module, launch.entry.encode()))
        if shared > STATIC_SHARED:
            limit = self.driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            gpu.ask(self.driver.cuFuncSetAttribute(function, limit, shared))
        words = np.array([fixed.get(name, 0) for name in arguments], np.int64)
        places = {name: arguments.index(name) for name in (self.input, self.output, "alpha", "beta")}
        if grid:  # else there is nothing to do: no rows, say
            self.launches.append(_Launch(function, grid, block, shared, words, places, later))


class Graph:
    """graph(stream=0) starts the captured launches; x and y are those it was made of, and are kept."""

    def __init__(self, plan: Plan, operands: tuple, arguments: tuple[int, int, float, float]):
        self.plan, self.operands, self.driver = plan, operands, plan.driver
        driver, ask = plan.driver, gpu.ask
        stream = ask(driver.cuStreamCreate(1))  # none that waits for the default one, which cannot be captured
        try:
            mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
            shares, plan.shares = plan.shares, False  # an event of before has no place in a graph
            ask(driver.cuStreamBeginCapture(stream, mode))
            try:
                plan.queue(*arguments, int(stream))
            finally:
                plan.shares = shares
                graph = ask(driver.cuStreamEndCapture(stream))
            try:
                self.executable = ask(driver.cuGraphInstantiate(graph, 0))
            finally:
                driver.cuGraphDestroy(graph)
        finally:
            driver.cuStreamDestroy(stream)

    def __call__(self, stream: int = 0) -> None:
        entered = self.plan.device.enter()
        try:
            gpu.ask(self.driver.cuGraphLaunch(self.executable, stream))
        finally:
            self.plan.device.leave(entered)

    def __del__(self):
        if hasattr(self, "executable"):
            self.driver.cuGraphExecDestroy(self.executable)


def _address(name: str, array: Any, shape: tuple[int, ...], dtype: np.dtype, layout: str) -> int:
    """Where an operand lies, on the host or the device, after a look at its shape, dtype and strides."""
    found: Any
    if isinstance(array, np.ndarray):
        found = device_arrays.Seen(array.ctypes.data, array.shape, array.dtype, array.strides, 0, None, None)
    else:
        found = array if isinstance(array, device_arrays.Seen) else device_arrays.seen(array)
    if found is None:
        raise SparsegenTypeError(f"{name} is a {type(array).__name__}; expected a NumPy array or one on the device")
    if found.shape != shape or found.dtype != dtype:
        got = f"{found.shape} of {found.dtype}"
        raise SparsegenValueError(f"{name} is {got}; expected {shape} of {dtype}")
    order = "C" if layout == "row" or len(shape) == 1 else "F"
    wanted = device_arrays.packed_strides(shape, dtype.itemsize, order)
    if any(got != step for got, step, count in zip(found.strides, wanted, shape, strict=True) if count > 1):
        raise SparsegenValueError(f"{name} has strides {found.strides}; expected {wanted} (layout {layout!r})")
    return found.address
