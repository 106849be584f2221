"""A kernel's call on arrays that lie on the GPU: where x is, y stays, in the order of x's stream, with no copy.

What no kernel on the GPU computes (another dtype of A than the kernels have, a sum that is not finite where a kernel
cannot bear it) is computed on the host and copied back: right, and slow.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from sparsegen import device_arrays, gpu, operands
from sparsegen.device_arrays import Seen
from sparsegen.errors import SparsegenTypeError, SparsegenValueError


def call(kernel: Any, x: Any, there: Seen, out: Any, alpha, beta) -> Any:
    """alpha A x + beta out, for what `device_arrays.seen` has found of x. Raises SparsegenTypeError and -ValueError."""
    direct = kernel._vector
    plain = type(alpha) in (int, float) and type(beta) in (int, float) and (beta == 0 or out is not None)
    if direct is not None and plain:
        plan, x_shape, y_shape, dtype = direct
        step = (dtype.itemsize,)
        if there.shape == x_shape and there.dtype == dtype and there.strides == step:
            y = device_arrays.like(x, y_shape, dtype, "C", plan.device) if out is None else out
            found = device_arrays.seen(y)
            ordinals = None, plan.device.ordinal
            if (
                found is not None and found.shape == y_shape and found.dtype == dtype and found.strides == step
                and there.ordinal in ordinals and found.ordinal in ordinals and not _overlap(there, found)
            ):  # fmt: skip
                plan.direct(there.address, found.address, alpha, beta, there.stream)
                return y
    if kernel.problem.target != "cuda":
        raise SparsegenTypeError(f"x lies on a GPU and the kernel is for the {kernel.problem.target}; compile for cuda")
    device = gpu.get(kernel.problem.ordinal)
    alpha, beta = operands.scalar("alpha", alpha), operands.scalar("beta", beta)
    if isinstance(alpha, complex) or isinstance(beta, complex):
        raise SparsegenTypeError("a complex factor for arrays on the GPU; expected a real one")
    m, n = kernel.shape
    if len(there.shape) not in (1, 2) or there.shape[0] != n:
        raise SparsegenValueError(f"x has shape {there.shape}; A is {m} x {n}, so ({n},) or ({n}, k) is expected")
    if there.dtype != kernel.dtype:
        raise SparsegenTypeError(f"x is {there.dtype} on the GPU; expected {kernel.dtype}: convert it there")
    _same_gpu("x", there, device)
    order = there.order()
    if order is None:
        x = device_arrays.without_gaps(x)
        there = device_arrays.seen(x) or there
        order = there.order() or "C"
    shape = (m, *there.shape[1:])
    y = out
    if out is None:
        if beta != 0:
            raise SparsegenValueError(f"beta = {beta} without out; expected out, the y that beta multiplies")
        y = device_arrays.like(x, shape, there.dtype, order, device)
    found = device_arrays.seen(y)
    if found is None or found.shape != shape or found.dtype != there.dtype or found.order() is None:
        got = f"a {type(y).__name__}" if found is None else f"{found.dtype} {found.shape}"
        raise SparsegenValueError(f"out is {got}; expected {there.dtype} {shape} on the GPU, without gaps")
    _same_gpu("out", found, device)
    if _overlap(there, found):
        raise SparsegenValueError("x and out share memory; expected arrays apart")
    if _launched(kernel, there, found, float(alpha), float(beta)):
        return y
    library = kernel._whole if kernel._binding is None and kernel.baseline != "scipy" else None
    if library is not None and (alpha, beta) == (1, 0) and there.shape == kernel._whole_shape:
        product = library(x, y)
        if product is not y:
            _copy(product, found, device)
        return y
    return _through_host(kernel, x, y, found, alpha, beta, device)


def graph(kernel: Any, x: Any, out: Any, alpha: float, beta: float) -> Callable:
    """See Kernel.graph."""
    if kernel.problem.target != "cuda" or kernel._binding is None:
        raise SparsegenValueError("a graph is of a kernel on a GPU; this is none, or a library serves")
    there, found = device_arrays.seen(x), device_arrays.seen(out)
    if there is None or found is None:
        raise SparsegenTypeError("a graph is of arrays on the GPU; x or out is none")
    kernel(x, out=out, beta=0)  # everything it needs is made before it is captured
    plan, shaped = _plan(kernel, there, found)
    if plan is None:
        raise SparsegenValueError("no kernel takes arrays of this shape and layout")
    return plan.graph(*shaped, alpha, beta)


def _plan(kernel: Any, there: Seen, found: Seen) -> tuple[Any, tuple[Seen, Seen]]:
    """The plan for operands of a shape and a layout, None where there is none; and they as it takes them."""
    problem, binding = kernel.problem, kernel._binding
    if binding is None or kernel.dtype != problem.dtype or not all(there.shape) or not all(found.shape):
        return None, (there, found)
    k = there.shape[1] if len(there.shape) == 2 else 1
    if problem.op == "spmv":
        if k != 1:
            return None, (there, found)
        plan = binding.plan(1, problem.layout_b, problem.layout_c)
        return plan, (_reshaped(there, there.shape[:1]), _reshaped(found, found.shape[:1]))
    rows = {"C": "row", "F": "column"}
    shaped = _reshaped(there, (there.shape[0], k)), _reshaped(found, (found.shape[0], k))
    return binding.plan(k, *(rows[each.order() or "C"] for each in shaped)), shaped


def _launched(kernel: Any, there: Seen, found: Seen, alpha: float, beta: float) -> bool:
    """Whether the kernel computed it."""
    binding = kernel._binding
    if binding is None or (binding.checks_finite and beta != 0):  # out could be lost
        return False
    plan, shaped = _plan(kernel, there, found)
    return plan is not None and plan(*shaped, alpha, beta, stream=there.stream) == 0


def _reshaped(array: Seen, shape: tuple[int, ...]) -> Seen:
    order = array.order() or "C"
    return array._replace(shape=shape, strides=device_arrays.packed_strides(shape, array.dtype.itemsize, order))


def _through_host(kernel: Any, x, y, found: Seen, alpha, beta, device: gpu.Device):
    x_host = device_arrays.host(x, device)
    order = found.order() or "C"
    y_host = device_arrays.host(y, device) if beta != 0 else np.empty(found.shape, found.dtype, order=order)
    _put(kernel._call(x_host, y_host, alpha, beta), found, device)
    return y


def _put(array: np.ndarray, found: Seen, device: gpu.Device) -> None:
    """Copy an array to where another lies on the GPU, of the same shape, dtype and order."""
    if not array.nbytes:
        return
    array = np.asarray(array, found.dtype, order=found.order() or "C")
    entered = device.enter()
    try:
        gpu.ask(gpu.driver().cuStreamSynchronize(found.stream))
        gpu.ask(gpu.driver().cuMemcpyHtoD(found.address, array.ctypes.data, array.nbytes))
    finally:
        device.leave(entered)


def _copy(product: Any, found: Seen, device: gpu.Device) -> None:
    """A library's own result to where y lies."""
    source = device_arrays.seen(product)
    if source is None or source.order() != found.order():
        _put(device_arrays.host(product, device), found, device)
        return
    entered = device.enter()
    try:
        size = int(np.prod(found.shape)) * found.dtype.itemsize
        if size:
            gpu.ask(gpu.driver().cuMemcpyDtoDAsync(found.address, source.address, size, source.stream))
    finally:
        device.leave(entered)


def _overlap(one: Seen, other: Seen) -> bool:
    first, second = (each.address + math.prod(each.shape) * each.dtype.itemsize for each in (one, other))
    return one.address < second and other.address < first


def _same_gpu(name: str, array: Seen, device: gpu.Device) -> None:
    if array.ordinal not in (None, device.ordinal):
        raise SparsegenValueError(f"{name} is on GPU {array.ordinal}; the kernel is on GPU {device.ordinal}")
