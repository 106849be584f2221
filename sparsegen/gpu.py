"""NVIDIA GPUs through their driver: which there are, contexts, memory, errors in words, clocks as they stand.

The driver is loaded when first asked for; without one everything but running works. Contexts are the primary ones,
which CuPy, PyTorch and the CUDA runtime use as well. Clocks are read, never set.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from typing import Any

import numpy as np

from sparsegen.errors import SparsegenError, SparsegenValueError

GUARD = 256  # bytes before and behind a guarded buffer; a multiple of what a vector load is aligned to
NOT_READY = 600  # the driver's word for an event that is still to come
FAULTS = {  # what ends a context: nothing more can be done in it, or in this process
    700: "illegal address", 702: "timeout", 710: "trap", 714: "illegal instruction", 715: "illegal instruction",
    716: "misaligned", 717: "illegal address", 718: "illegal address", 719: "launch failed",
}  # fmt: skip
OLD_DRIVER = (200, 209, 222)  # an image, or PTX, that this driver does not know
SAYS = {
    34: "what is installed is a stub of the driver: install NVIDIA's driver",
    46: "the GPU is taken: another process has it for itself (nvidia-smi shows the compute mode), or it is not ready",
    100: "no CUDA device answers here: check nvidia-smi, and CUDA_VISIBLE_DEVICES",
    201: "the CUDA context is gone; start the process again",
    701: "a block asks for more registers or shared memory than this GPU has",
    802: "the GPU's system is not ready yet (the fabric manager may not run): try again later",
    803: "the driver in memory and the one installed differ: restart the machine after the update",
    804: "this GPU is not for a driver with compatibility packages: install the driver proper",
    999: "the driver gives no reason; a restart of the machine often helps",
}


class GPUError(SparsegenError):
    """The driver refused. fault: "memory", one of FAULTS, after which the process can do no more, or "driver"."""

    def __init__(self, code: int, message: str):
        super().__init__(message)
        self.code, self.fault = code, FAULTS.get(code, "memory" if code == 2 else "driver")

    @property
    def ends(self) -> bool:
        """Whether this process can do nothing more on the GPU."""
        return self.code in FAULTS


class Device:
    """One GPU and its primary context."""

    def __init__(self, ordinal: int, handle: Any):
        cuda = driver()
        kind = cuda.CUdevice_attribute

        def attribute(name: str) -> int:
            return int(ask(cuda.cuDeviceGetAttribute(getattr(kind, f"CU_DEVICE_ATTRIBUTE_{name}"), handle)))

        self.ordinal = ordinal
        self.name = ask(cuda.cuDeviceGetName(128, handle)).split(b"\0")[0].decode()
        self.capability = attribute("COMPUTE_CAPABILITY_MAJOR"), attribute("COMPUTE_CAPABILITY_MINOR")
        self.arch = f"sm_{self.capability[0]}{self.capability[1]}"
        self.multiprocessors = attribute("MULTIPROCESSOR_COUNT")
        self.l2_bytes = attribute("L2_CACHE_SIZE")
        self.block_shared_bytes = attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
        self.bus = ask(cuda.cuDeviceGetPCIBusId(32, handle)).split(b"\0")[0].decode()
        version, bound = int(ask(cuda.cuDriverGetVersion())), int(getattr(cuda, "CUDA_VERSION", 0))
        self.driver = f"{version // 1000}.{version % 1000 // 10}"  # the newest CUDA it takes
        if version // 1000 < bound // 1000:
            got = f"the driver of {self.name} takes CUDA {self.driver}, and cuda-bindings is for CUDA {bound // 1000}"
            raise SparsegenError(f"{got}: update the driver, or pip install 'sparsegen[cuda12]'")
        self.context = ask(cuda.cuDevicePrimaryCtxRetain(handle))
        self._context = int(self.context)

    def enter(self) -> bool:
        """Make the context that of this thread; whether another one waits below it, for `leave`."""
        cuda = driver()
        now = int(ask(cuda.cuCtxGetCurrent()))
        if now == self._context:
            return False
        if not now:
            ask(cuda.cuCtxSetCurrent(self.context))
            return False
        ask(cuda.cuCtxPushCurrent(self.context))
        return True

    def leave(self, entered: bool) -> None:
        """Give this thread back the context it had."""
        if entered:
            ask(driver().cuCtxPopCurrent())

    def free_bytes(self) -> tuple[int, int]:
        """Bytes free, and in all."""
        entered = self.enter()
        try:
            free, total = ask(driver().cuMemGetInfo())
        finally:
            self.leave(entered)
        return int(free), int(total)

    def __str__(self) -> str:
        return f"{self.name} {self.arch} driver {self.driver}"


class Buffer:
    """Memory on a GPU, freed with the object. guarded: between bytes of 0xFF, which `intact` looks at."""

    def __init__(self, device: Device, nbytes: int, host: np.ndarray | None = None, guarded: bool = False):
        self.device, self.nbytes, self._guard, self._base = device, nbytes, GUARD if guarded else 0, 0
        cuda, entered = driver(), device.enter()
        try:
            try:
                self._base = int(ask(cuda.cuMemAlloc(max(nbytes, 16) + 2 * self._guard)))
            except GPUError as error:
                if error.code != 2:
                    raise
                free, total = device.free_bytes()
                got = f"the GPU is out of memory: {nbytes / 1e6:.4g} MB asked for, {free / 1e6:.4g} of "
                raise GPUError(2, f"{got}{total / 1e6:.4g} MB free; close what else uses it") from None
            self.address = self._base + self._guard
            if guarded:
                ask(cuda.cuMemsetD8Async(self._base, 255, self._guard, 0))
                ask(cuda.cuMemsetD8Async(self.address + nbytes, 255, self._guard, 0))
            if host is not None:
                self.write(host)
        finally:
            device.leave(entered)

    def write(self, host: np.ndarray) -> None:
        """Copy an array here, in the order it has in memory."""
        array = host if host.flags.forc else np.ascontiguousarray(host)
        if array.nbytes > self.nbytes:
            raise SparsegenValueError(f"{array.nbytes} bytes for a buffer of {self.nbytes}")
        if array.nbytes:
            self._within(lambda: ask(driver().cuMemcpyHtoD(self.address, array.ctypes.data, array.nbytes)))

    def read(self, into: np.ndarray, start: int = 0) -> np.ndarray:
        """Fill a contiguous array from here, once all that was begun is done."""
        if into.nbytes:
            self._within(lambda: ask(driver().cuMemcpyDtoH(into.ctypes.data, self.address + start, into.nbytes)))
        return into

    def move(self, to: int, source: int, nbytes: int) -> None:
        """Copy bytes from one place here to another, apart from it, in the order of the default stream."""
        at = self.address
        self._within(lambda: ask(driver().cuMemcpyDtoDAsync(at + to, at + source, nbytes, 0)))

    def intact(self) -> bool:
        """Whether no guard byte has changed."""
        if not self._guard:
            return True
        before, behind = np.empty(self._guard, np.uint8), np.empty(self._guard, np.uint8)
        self.read(before, -self._guard), self.read(behind, self.nbytes)
        return bool((before == 255).all() and (behind == 255).all())

    def _within(self, call) -> None:
        entered = self.device.enter()
        try:
            call()
        finally:
            self.device.leave(entered)

    def __del__(self):
        if getattr(self, "_base", 0) and not sys.is_finalizing():
            with contextlib.suppress(SparsegenError):  # a context that has ended took its memory with it
                self._within(lambda: driver().cuMemFree(self._base))


def upload(device: Device, array: np.ndarray, guarded: bool = False) -> Buffer:
    """A copy on the device, in the order the array has."""
    return Buffer(device, array.nbytes, array, guarded)


@functools.cache
def driver() -> Any:
    """The bindings of the driver."""
    from cuda.bindings import driver

    return driver


@functools.cache
def _count() -> int:
    """GPUs that may be used. Raises SparsegenError when there is none, or no driver."""
    try:
        cuda = driver()
        ask(cuda.cuInit(0))
        count = int(ask(cuda.cuDeviceGetCount()))
    except GPUError:
        raise
    except Exception as error:  # ImportError without the package, the loader's own kinds without a driver
        missing = "cuda-bindings is missing: pip install sparsegen[cuda]" if isinstance(error, ImportError) else ""
        raise SparsegenError(missing or "no NVIDIA driver is here, so kernels can be compiled but not run") from None
    if not count:
        raise GPUError(100, SAYS[100])
    return count


def chosen(ordinal: int | None = None) -> int:
    """The number of the GPU to use: the one asked for, else the current one of this thread, else the first.

    Raises SparsegenError when there is none, SparsegenValueError when there are not so many.
    """
    count = _count()
    if ordinal is None:
        now = int(ask(driver().cuCtxGetCurrent()))
        return int(ask(driver().cuCtxGetDevice())) if now else 0
    if not 0 <= ordinal < count:
        raise SparsegenValueError(f"device = {ordinal}; there are {count} GPU(s), numbered from 0")
    return ordinal


@functools.cache
def get(ordinal: int = 0) -> Device:
    """A GPU by its number. Raises SparsegenError when it cannot be used."""
    chosen(ordinal)
    try:
        return Device(ordinal, ask(driver().cuDeviceGet(ordinal)))
    except SparsegenError:
        raise
    except Exception as error:  # a function that an older driver does not have
        raise SparsegenError(f"the NVIDIA driver is too old for cuda-bindings ({error}): update it") from None


def forget() -> None:
    """Look at the machine anew when next asked."""
    _count.cache_clear()
    get.cache_clear()


def ask(answer: tuple) -> Any:
    """The result of a driver's call; GPUError if it failed."""
    code, *result = answer
    if number := int(code):
        name = getattr(code, "name", number)
        if number in FAULTS:
            message = f"the kernel ended its context ({name}): {FAULTS[number]}"
        elif number in OLD_DRIVER:
            message = f"the driver does not take this machine code ({name}): update it, or install NVRTC of its version"
        else:
            message = f"the CUDA driver answers {name}" + (f": {SAYS[number]}" if number in SAYS else "")
        raise GPUError(number, message)
    return result[0] if len(result) == 1 else tuple(result) if result else None


# What the machine is doing, read through NVML.

SLOWED = {  # bits of the reasons why clocks are below what was asked for, of NVML
    0x04: "power cap", 0x08: "hardware slowdown", 0x20: "thermal, by software", 0x40: "thermal, by hardware",
    0x80: "power brake",
}  # fmt: skip


@functools.cache
def _nvml() -> Any:
    try:
        import pynvml

        pynvml.nvmlInit()
        return pynvml
    except Exception:  # no package, no library: nothing is read
        return None


def state(device: Device) -> dict:
    """Clocks, temperature, power and what slows the GPU down now, and how many processes use it; as far as NVML says.

    An empty dict without NVML (pip install nvidia-ml-py).
    """
    nvml, found = _nvml(), {}
    if nvml is None:
        return {}

    def put(name: str, read) -> None:
        with contextlib.suppress(Exception):  # not supported by this GPU, or not allowed here
            found[name] = read()

    try:
        handle = nvml.nvmlDeviceGetHandleByPciBusId(device.bus)
    except Exception:
        return {}
    put("sm_mhz", lambda: int(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)))
    put("memory_mhz", lambda: int(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)))
    put("most_sm_mhz", lambda: int(nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)))
    put("temperature_c", lambda: int(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)))
    put("power_w", lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1e3)
    put("processes", lambda: len(nvml.nvmlDeviceGetComputeRunningProcesses(handle)))
    reasons = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
    reasons = reasons or nvml.nvmlDeviceGetCurrentClocksThrottleReasons
    put("slowed_by", lambda: [name for bit, name in SLOWED.items() if int(reasons(handle)) & bit])
    return found


OWN_PROCESSES = 2  # this one and its worker


def notes(before: dict, after: dict) -> list[str]:
    """What bears on times taken between two states: throttling, and other users of the GPU."""
    found = []
    slowed = sorted({*before.get("slowed_by", []), *after.get("slowed_by", [])})
    if slowed:
        found.append(f"the GPU was slowed down while it was timed: {', '.join(slowed)}")
    others = max(before.get("processes", 0), after.get("processes", 0)) - OWN_PROCESSES
    if others > 0:
        found.append(f"{others} other process(es) used the GPU while it was timed")
    return found
