"""Arrays on a GPU: those of CuPy, PyTorch and others as they are, and one of our own where nobody else's is at hand.

Read by `__cuda_array_interface__` (version 3: https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html)
or DLPack (https://dmlc.github.io/dlpack/latest/). A library is used only when its own array came in.
"""

from __future__ import annotations

import ctypes
import math
import sys
from typing import Any, Literal, NamedTuple

import numpy as np

from sparsegen import gpu
from sparsegen.errors import SparsegenTypeError, SparsegenValueError

LEGACY_STREAM = 1  # of the array interface: the default stream, where 0 is not allowed
CUDA_KINDS = (2, 13)  # device types of DLPack: CUDA, CUDA managed


class Seen(NamedTuple):
    """Where an array lies and how. stream: where what made it was begun; ordinal: of its GPU, None where unknown."""

    address: int
    shape: tuple[int, ...]
    dtype: np.dtype
    strides: tuple[int, ...]  # in bytes
    stream: int
    ordinal: int | None
    owner: object  # kept while the address is used

    def order(self) -> Literal["C", "F"] | None:
        """"C" or "F" for an array without gaps, "C" for one that is both; else None."""
        if len(self.shape) == 1:
            return "C" if self.strides[0] == self.dtype.itemsize or self.shape[0] < 2 else None
        names: tuple[Literal["C", "F"], ...] = ("C", "F")
        for name in names:
            wanted = packed_strides(self.shape, self.dtype.itemsize, name)
            if all(a == b for a, b, size in zip(self.strides, wanted, self.shape, strict=True) if size > 1):
                return name
        return None


class DeviceArray:
    """An array on a GPU, in order "C" or "F". `get()` is a NumPy copy, `set(array)` fills it."""

    def __init__(self, device: gpu.Device, shape: tuple[int, ...], dtype, order: str = "C", guarded: bool = False):
        self.device, self.shape, self.dtype, self.order = device, tuple(shape), np.dtype(dtype), order
        self.stream: int | None = LEGACY_STREAM  # of the interface: None asks nobody to wait
        self.strides = packed_strides(self.shape, self.dtype.itemsize, order)
        self.buffer = gpu.Buffer(device, math.prod(self.shape) * self.dtype.itemsize, guarded=guarded)

    @property
    def __cuda_array_interface__(self) -> dict:
        return {
            "shape": self.shape, "typestr": self.dtype.str, "data": (self.buffer.address, False), "version": 3,
            "strides": None if self.order == "C" else self.strides, "stream": self.stream,
        }  # fmt: skip

    def get(self) -> np.ndarray:
        return self.buffer.read(np.empty(self.shape, self.dtype, order=self.order))  # type: ignore[call-overload]

    def set(self, array: np.ndarray) -> None:
        if array.shape != self.shape:
            raise SparsegenValueError(f"an array of shape {array.shape} for one of {self.shape} on the GPU")
        self.buffer.write(np.asarray(array, self.dtype, order=self.order))  # type: ignore[call-overload]

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        if copy is False:
            raise ValueError("an array on a GPU cannot be read without a copy")
        return self.get() if dtype is None else self.get().astype(dtype)

    def __repr__(self) -> str:
        return f"<array on GPU {self.device.ordinal}: {self.dtype} {self.shape}>"


def packed_strides(shape: tuple[int, ...], itemsize: int, order: str) -> tuple[int, ...]:
    """Steps in bytes of an array without gaps."""
    if order == "C":
        return tuple(itemsize * math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    return tuple(itemsize * math.prod(shape[:axis]) for axis in range(len(shape)))


def seen(array: Any) -> Seen | None:
    """What an array on a GPU is; None for everything else."""
    kind = type(array)
    if kind is DeviceArray:
        at, stream = array.buffer.address, array.stream or 0
        return Seen(at, array.shape, array.dtype, array.strides, stream, array.device.ordinal, array)
    root = kind.__module__.partition(".")[0]
    if root == "numpy":
        return None
    if root == "cupy" and "cupy" in sys.modules:
        stream = int(sys.modules["cupy"].cuda.get_current_stream().ptr)
        return Seen(array.data.ptr, array.shape, array.dtype, array.strides, stream, int(array.device.id), array)
    if root == "torch" and hasattr(array, "data_ptr"):
        return _of_torch(array)
    try:
        if hasattr(array, "__cuda_array_interface__"):
            return _of_interface(array)
        where, ordinal = array.__dlpack_device__() if hasattr(array, "__dlpack_device__") else (0, 0)
    except Exception:  # whatever an object's own attributes raise: it is looked at as everything else is
        return None
    return _of_dlpack(array, int(ordinal)) if int(where) in CUDA_KINDS else None


def _of_torch(tensor: Any) -> Seen | None:
    if tensor.device.type != "cuda":
        return None
    torch, name = sys.modules["torch"], str(tensor.dtype).rpartition(".")[2]
    try:
        dtype = np.dtype(name)
    except TypeError:
        raise SparsegenTypeError(f"a tensor of {name}; expected a dtype that numpy has") from None
    steps = tuple(dtype.itemsize * step for step in tensor.stride())
    stream = int(torch.cuda.current_stream(tensor.device).cuda_stream)
    return Seen(int(tensor.data_ptr()), tuple(tensor.shape), dtype, steps, stream, tensor.device.index, tensor)


def _of_interface(array: Any) -> Seen:
    about = array.__cuda_array_interface__
    dtype, shape = np.dtype(about["typestr"]), tuple(int(size) for size in about["shape"])
    steps = about.get("strides") or packed_strides(shape, dtype.itemsize, "C")
    stream = int(about.get("stream") or 0)
    return Seen(int(about["data"][0]), shape, dtype, tuple(int(step) for step in steps), stream, None, array)


class _Tensor(ctypes.Structure):
    """DLTensor."""

    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]  # fmt: skip


DLPACK_KINDS = {0: "i", 1: "u", 2: "f", 5: "c"}


def _of_dlpack(array: Any, ordinal: int) -> Seen:
    """The capsule is not taken over: it is kept, and gives the memory back when it goes."""
    capsule = array.__dlpack__(stream=LEGACY_STREAM)
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    tensor = _Tensor.from_address(pointer(capsule, b"dltensor"))
    if tensor.code not in DLPACK_KINDS or tensor.lanes != 1:
        raise SparsegenTypeError(f"an array of DLPack type code {tensor.code}; expected a dtype that numpy has")
    dtype = np.dtype(f"{DLPACK_KINDS[tensor.code]}{tensor.bits // 8}")
    shape = tuple(tensor.shape[axis] for axis in range(tensor.ndim))
    steps = packed_strides(shape, dtype.itemsize, "C")
    if tensor.strides:
        steps = tuple(dtype.itemsize * tensor.strides[axis] for axis in range(tensor.ndim))
    address = int(tensor.data or 0) + int(tensor.byte_offset)
    return Seen(address, shape, dtype, steps, 0, ordinal, (array, capsule))


def like(array: Any, shape: tuple[int, ...], dtype: np.dtype, order: str, device: gpu.Device) -> Any:
    """A new array on the GPU, of the library that `array` is of where that is CuPy or PyTorch; its values are any."""
    root = type(array).__module__.partition(".")[0]
    if root == "cupy":
        return sys.modules["cupy"].empty(shape, dtype, order=order)
    if root == "torch":
        torch = sys.modules["torch"]
        kind = getattr(torch, dtype.name)
        if order == "F" and len(shape) == 2:
            return torch.empty(shape[::-1], dtype=kind, device=array.device).t()
        return torch.empty(shape, dtype=kind, device=array.device)
    return DeviceArray(device, shape, dtype, order)


def without_gaps(array: Any) -> Any:
    """The array, or its copy in rows where it has gaps and its library can make one. Raises SparsegenValueError."""
    root = type(array).__module__.partition(".")[0]
    if root == "cupy":
        return sys.modules["cupy"].ascontiguousarray(array)
    if root == "torch":
        return array.contiguous()
    raise SparsegenValueError("x has gaps between its elements; expected one without, such as a copy of it")


def host(array: Any, device: gpu.Device) -> np.ndarray:
    """A NumPy copy of an array, wherever it lies, once all that was begun on its stream is done."""
    if isinstance(array, np.ndarray):
        return array
    found = seen(array)
    if found is None:
        return np.asarray(array)
    order = found.order()
    if order is None:
        return host(without_gaps(array), device)
    entered = device.enter()
    try:
        gpu.ask(gpu.driver().cuStreamSynchronize(found.stream))
        into = np.empty(found.shape, found.dtype, order=order)
        if into.nbytes:
            gpu.ask(gpu.driver().cuMemcpyDtoH(into.ctypes.data, found.address, into.nbytes))
    finally:
        device.leave(entered)
    return into
