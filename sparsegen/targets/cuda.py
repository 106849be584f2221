"""NVIDIA GPUs: kernels compiled by NVRTC, loaded and launched through the driver.

The driver is loaded when first asked for; without one everything here but running works. x and y are NumPy arrays,
which are copied for every call, or arrays on the device that have `__cuda_array_interface__`; those stay where they
are and are taken in the order of `Plan.stream`.

Not covered: more than one device, and other libraries' idea of the current stream.
"""

from __future__ import annotations

import functools
import hashlib
import time as clock
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sparsegen import cache, nvrtc, ops, prelude
from sparsegen.candidate import Candidate, evaluate
from sparsegen.errors import SparsegenError, SparsegenTypeError, SparsegenValueError
from sparsegen.formats import Packed
from sparsegen.nvrtc import CompileFailure as CompileFailure
from sparsegen.nvrtc import archs as archs
from sparsegen.nvrtc import flags as flags
from sparsegen.problem import Problem
from sparsegen.screen import cuda as cuda_screen
from sparsegen.verdict import Timing

LANGUAGE = "cuda"
COPIES = True  # bind copies the arrays: new values want a new plan
MOST_GRID, MOST_BLOCK = 2**31 - 1, 1024
STATIC_SHARED = 48 << 10  # more shared memory than this has to be asked for
SCALE = """extern "C" __global__ void scale(VALUE* y, long long count, VALUE beta) {
    const long long i = blockIdx.x * 256LL + threadIdx.x;
    if (i < count) y[i] *= beta;
}
"""


class Device(NamedTuple):
    name: str
    arch: str
    driver: str  # the newest CUDA it takes
    l2_bytes: int
    context: object


def available() -> str | None:
    """None when kernels can be compiled and run here; else one sentence why not and what to do."""
    try:
        _device()
    except SparsegenError as error:
        return str(error)
    return nvrtc.available()


def device() -> str:
    """What a measured choice is for: the GPU and its driver."""
    found = _device()
    return f"{found.name} {found.arch} driver {found.driver}"


def resolve(arch: str | None) -> str:
    """The architecture to compile for: `arch`, checked, or that of the GPU here."""
    known = archs()
    if arch is not None:
        if arch not in known:
            raise SparsegenValueError(f"arch = {arch!r}; NVRTC {nvrtc.version()} compiles for {', '.join(known)}")
        return arch
    own = _device().arch
    # code for a smaller minor version of the same major one runs too
    older = [each for each in known if each[:-1] == own[:-1] and each[-1] <= own[-1]]
    if not older:
        raise SparsegenError(f"NVRTC {nvrtc.version()} does not compile for this GPU ({own}): install a newer NVRTC")
    return max(older)


def compile(source_text: str, arch: str) -> bytes:
    """The CUBIN of a translation unit. Raises nvrtc.CompileFailure with the lines about the kernel."""
    return nvrtc.compile(source_text, arch).data


class Buffer:
    """Memory on the device, freed with the object."""

    def __init__(self, nbytes: int, host: np.ndarray | None = None):
        self.nbytes, self.driver = nbytes, _driver()
        self.address = int(_ask(self.driver.cuMemAlloc(max(nbytes, 16))))
        if host is not None and nbytes:
            _ask(self.driver.cuMemcpyHtoD(self.address, host.ctypes.data, nbytes))

    def __del__(self):
        if getattr(self, "address", 0):
            self.driver.cuMemFree(self.address)


def upload(array: np.ndarray) -> Buffer:
    """A copy on the device, in the order the array has."""
    return Buffer(array.nbytes, array if array.flags.forc else np.ascontiguousarray(array))


def screen(candidate: Candidate) -> str | None:
    """One sentence why the source must not be compiled, or None."""
    return cuda_screen.check(candidate.source)


def unit(candidate: Candidate, problem: Problem, packs: Sequence[Packed]) -> str:
    """The translation unit of a candidate."""
    return prelude.assemble(candidate, problem, packs, {})


def build(text: str) -> Path:
    """The CUBIN of a translation unit for the GPU here, from the cache or compiled into it. Raises CompileFailure."""
    arch = resolve(None)
    key = hashlib.blake2b("\0".join([nvrtc.version(), *flags(arch), text]).encode(), digest_size=20).hexdigest()

    def write(path: Path) -> None:
        path.write_bytes(compile(text, arch))

    return cache.binary_path(key, write)


def load(path: Path) -> bytes:
    """The image that `bind` takes."""
    return Path(path).read_bytes()


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
    function: object
    grid: int
    block: int
    shared_bytes: int
    words: np.ndarray  # one of 8 bytes for each argument
    places: Mapping[str, int]  # which word is x, y, alpha, beta
    later: bool = False  # y has its beta already

    def __post_init__(self):
        self.addresses = self.words.ctypes.data + 8 * np.arange(len(self.words), dtype=np.uint64)


class Plan:
    """plan(x, y, alpha, beta) -> status: y = alpha A x + beta y; status 1 if a sum was not finite (see the prelude).

    Made of an image, its candidate, what `composite.pack` gave, the values of each part's slots, and the problem.
    Raises SparsegenValueError for a launch that no GPU can make. One call at a time. y on the device is final once
    `stream` has got there; a kernel that reports a status is waited for.
    """

    def __init__(self, image: bytes, candidate: Candidate, packs, data_arrays, problem: Problem):
        self.driver, self.problem, self.stream, self.context = _driver(), problem, 0, _device().context
        self.checks, self.zero = prelude.checks_finite(candidate), bool(candidate.zero)
        self.input, self.output = ops.get(candidate.op).OPERANDS
        self.shapes = ops.get(candidate.op).shapes(problem)
        self.module = _ask(self.driver.cuModuleLoadData(image))
        self.buffers = {"status": upload(np.zeros(1, np.uint32))}
        self.launches: list[_Launch] = []
        if self.zero:
            source = f"#define VALUE {prelude.C_TYPE[problem.dtype.name]}\n{SCALE}"
            self.scale_module = _ask(self.driver.cuModuleLoadData(compile(source, resolve(None))))
            function = _ask(self.driver.cuModuleGetFunction(self.scale_module, b"scale"))
            count = int(np.prod(self.shapes[1]))
            words = np.array([0, count, 0], np.int64)
            self.scale = _Launch(function, -(-count // 256), 256, 0, words, {self.output: 0, "beta": 2})
        params = {name: value for name, value in candidate.params.items() if isinstance(value, int)}
        bytes_of = {"INDEX": problem.index_dtype.itemsize, "OFFSET": problem.offset_dtype.itemsize}
        bytes_of |= dict.fromkeys(("ACC", "VALUE"), problem.dtype.itemsize)
        for turn, (part, packed, data) in enumerate(zip(candidate.parts, packs, data_arrays, strict=True)):
            sizes = self._sizes(packed)
            names = {**sizes, **candidate.format_params(part), **params}
            for name, (kind, items) in candidate.scratch.items():
                if name not in self.buffers:
                    self.buffers[name] = Buffer(evaluate(items, names) * bytes_of[kind])
            arrays = {f"{name} {turn}": upload(array) for name, array in {**packed.arrays, "data": data}.items()}
            self.buffers |= arrays
            fixed = sizes | {name.removesuffix(f" {turn}"): each.address for name, each in self.buffers.items()}
            arguments = [name for name, _ in prelude.arguments(candidate, part)]
            for launch in part.launches:
                self._add(launch, arguments, fixed, names, later=self.zero or turn > 0)

    def __call__(self, x, y, alpha: float = 1.0, beta: float = 0.0) -> int:
        """x: (n,) or (n, k), y: (m,) or (m, k), in the problem's dtype and layouts; y is overwritten."""
        _ask(self.driver.cuCtxSetCurrent(self.context))  # of this thread
        x_at, y_at, staged = self._operands(x, y)
        if self.checks:
            _ask(self.driver.cuMemsetD32Async(self.buffers["status"].address, 0, 1, self.stream))
        size = int(np.prod(self.shapes[1]))
        if self.zero and size and beta == 0:
            _ask(self.driver.cuMemsetD8Async(y_at, 0, size * self.problem.dtype.itemsize, self.stream))
        elif self.zero and size and beta != 1:
            self._run(self.scale, {self.output: y_at, "beta": beta})
        for launch in self.launches:
            given = {self.input: x_at, self.output: y_at, "alpha": alpha, "beta": 1.0 if launch.later else beta}
            self._run(launch, given)
        status = np.zeros(1, np.uint32)
        if staged is not None or self.checks:
            _ask(self.driver.cuStreamSynchronize(self.stream))
        if staged is not None and y.nbytes:
            _ask(self.driver.cuMemcpyDtoH(y.ctypes.data, staged[1].address, y.nbytes))
        if self.checks:
            _ask(self.driver.cuMemcpyDtoH(status.ctypes.data, self.buffers["status"].address, 4))
        return int(status[0])

    def __del__(self):
        for module in (getattr(self, "module", None), getattr(self, "scale_module", None)):
            if module is not None:
                self.driver.cuModuleUnload(module)

    run = __call__

    def _run(self, launch: _Launch, given: Mapping[str, float]) -> None:
        real, width = launch.words.view(self.problem.dtype), 8 // self.problem.dtype.itemsize
        for name, place in launch.places.items():
            if name in ("alpha", "beta"):
                real[width * place] = given[name]
            else:
                launch.words[place] = given[name]
        answer = self.driver.cuLaunchKernel(
            launch.function, launch.grid, 1, 1, launch.block, 1, 1, launch.shared_bytes, self.stream,
            launch.addresses.ctypes.data, 0,
        )  # fmt: skip
        _ask(answer)

    def _operands(self, x, y) -> tuple[int, int, tuple[Buffer, Buffer] | None]:
        if isinstance(x, np.ndarray) != isinstance(y, np.ndarray):
            raise SparsegenTypeError("one of x and y is a NumPy array; expected both on the host or both on the device")
        problem = self.problem
        x_at = _address(self.input, x, self.shapes[0], problem.dtype, problem.layout_b)
        y_at = _address(self.output, y, self.shapes[1], problem.dtype, problem.layout_c)
        if not isinstance(x, np.ndarray):
            return x_at, y_at, None
        staged = upload(x), upload(y)
        return staged[0].address, staged[1].address, staged

    def _add(self, launch, arguments: list[str], fixed: dict, names: dict, later: bool) -> None:
        grid, block = evaluate(launch.grid, names), evaluate(launch.block, names)
        shared = evaluate(launch.shared_bytes, names)
        if grid > MOST_GRID or not 0 < block <= MOST_BLOCK:
            got = f"{launch.entry} has grid {grid} and block {block}"
            raise SparsegenValueError(f"{got}; a GPU takes grids to {MOST_GRID} and blocks from 1 to {MOST_BLOCK}")
        function = _ask(self.driver.cuModuleGetFunction(self.module, launch.entry.encode()))
        if shared > STATIC_SHARED:
            limit = self.driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            _ask(self.driver.cuFuncSetAttribute(function, limit, shared))
        words = np.array([fixed.get(name, 0) for name in arguments], np.int64)
        places = {name: arguments.index(name) for name in (self.input, self.output, "alpha", "beta")}
        if grid:  # else there is nothing to do: no rows, say
            self.launches.append(_Launch(function, grid, block, shared, words, places, later))

    def _sizes(self, packed: Packed) -> dict[str, int]:
        pattern, k = self.problem.pattern, self.problem.k
        ldb = k if self.problem.layout_b == "row" else pattern.n
        ldc = k if self.problem.layout_c == "row" else pattern.m
        known = {"m": pattern.m, "n": pattern.n, "nnz": packed.nnz, "k": k, "ldb": ldb, "ldc": ldc}
        return known | packed.sizes




def time(
    plan: Plan, inputs: Sequence, y, alpha: float = 1.0, beta: float = 0.0, *, repeats: int = 20, seed: int,
    cold: bool = False, burst_us: float = 1000.0,
) -> Timing:  # fmt: skip
    """Time of one call by CUDA events, over arrays on the device: each burst takes one of `inputs` by chance.

    cold: one call a burst, after twice the L2 cache has been written over; else calls for `burst_us` after one to five
    that are not timed. The host's clock, which sees the work begin and end, must not be ahead of the events'.
    """
    driver, rng = plan.driver, np.random.default_rng(seed)
    begin, end = (_ask(driver.cuEventCreate(0)) for _ in range(2))
    flush = Buffer(2 * _device().l2_bytes) if cold else None

    def burst(calls: int) -> float:
        x = inputs[int(rng.integers(len(inputs)))]
        for _ in range(int(rng.integers(1, 6))):
            plan(x, y, alpha, beta)
        if flush is not None:
            _ask(driver.cuMemsetD8Async(flush.address, int(rng.integers(256)), flush.nbytes, plan.stream))
        _ask(driver.cuCtxSynchronize())
        begun = clock.perf_counter_ns()
        _ask(driver.cuEventRecord(begin, plan.stream))
        for _ in range(calls):
            plan(x, y, alpha, beta)
        _ask(driver.cuEventRecord(end, plan.stream))
        _ask(driver.cuCtxSynchronize())
        host_ns = clock.perf_counter_ns() - begun
        elapsed_ns = 1e6 * _ask(driver.cuEventElapsedTime(begin, end))
        if elapsed_ns > 1.01 * host_ns + 2000:
            raise SparsegenError(f"CUDA events say {elapsed_ns:.0f} ns, the host's clock {host_ns} ns: no time is kept")
        return elapsed_ns / calls

    try:
        calls = 1 if cold else int(np.clip(1e3 * burst_us / max(burst(3), 1.0), 1, 10_000))
        return Timing.of([burst(calls) for _ in range(repeats)], device())
    finally:
        for event in (begin, end):
            driver.cuEventDestroy(event)


def _address(name: str, array, shape: tuple[int, ...], dtype: np.dtype, layout: str) -> int:
    """Where an operand lies, on the host or the device, after a look at its shape, dtype and strides."""
    if not hasattr(array, "__cuda_array_interface__") and not isinstance(array, np.ndarray):
        raise SparsegenTypeError(f"{name} is a {type(array).__name__}; expected a NumPy array or one on the device")
    seen = array.__array_interface__ if isinstance(array, np.ndarray) else array.__cuda_array_interface__
    if tuple(seen["shape"]) != shape or np.dtype(seen["typestr"]) != dtype:
        got = f"{tuple(seen['shape'])} of {np.dtype(seen['typestr'])}"
        raise SparsegenValueError(f"{name} is {got}; expected {shape} of {dtype}")
    by_row = tuple(dtype.itemsize * int(np.prod(shape[axis + 1 :])) for axis in range(len(shape)))
    by_column = tuple(dtype.itemsize * int(np.prod(shape[:axis])) for axis in range(len(shape)))
    strides, wanted = seen.get("strides") or by_row, by_row if layout == "row" or len(shape) == 1 else by_column
    if any(got != step for got, step, count in zip(strides, wanted, shape, strict=True) if count > 1):
        raise SparsegenValueError(f"{name} has strides {tuple(strides)}; expected {wanted} (layout {layout!r})")
    return int(seen["data"][0])


@functools.cache
def _driver():
    from cuda.bindings import driver

    return driver


@functools.cache
def _device() -> Device:
    """The first GPU, its context made current. Raises SparsegenError when there is none."""
    try:
        driver = _driver()
        _ask(driver.cuInit(0))
        found = _ask(driver.cuDeviceGet(0))
    except SparsegenError:
        raise SparsegenError("no CUDA device answers here: check nvidia-smi") from None
    except Exception as error:  # ImportError without the package, the loader's own kinds without a driver
        missing = "cuda-bindings is missing: pip install sparsegen[cuda]" if isinstance(error, ImportError) else ""
        raise SparsegenError(missing or "no NVIDIA driver is here, so kernels can be compiled but not run") from None
    kind = driver.CUdevice_attribute
    major = _ask(driver.cuDeviceGetAttribute(kind.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, found))
    minor = _ask(driver.cuDeviceGetAttribute(kind.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, found))
    l2_bytes = _ask(driver.cuDeviceGetAttribute(kind.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, found))
    name = _ask(driver.cuDeviceGetName(128, found)).split(b"\0")[0].decode()
    version = _ask(driver.cuDriverGetVersion())
    context = _ask(driver.cuDevicePrimaryCtxRetain(found))
    _ask(driver.cuCtxSetCurrent(context))
    return Device(name, f"sm_{major}{minor}", f"{version // 1000}.{version % 1000 // 10}", int(l2_bytes), context)


def _ask(answer):
    """The result of a driver's call; SparsegenError if it failed."""
    code, *result = answer
    if int(code):
        raise SparsegenError(f"the CUDA driver answers {getattr(code, 'name', code)}")
    return result[0] if result else None
