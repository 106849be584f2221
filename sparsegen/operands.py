"""x, out, alpha and beta as users pass them: checked, and as plain numbers and native numpy arrays."""

from __future__ import annotations

import math
import reprlib
from typing import Literal

import numpy as np
import scipy.sparse as sp

from sparsegen.errors import SparsegenTypeError, SparsegenValueError

try:
    from sparsegen._native import Call
except ImportError:  # installed without a C compiler

    class Call:  # type: ignore[no-redef]
        """(x, out=None, alpha=1, beta=0): the shortest way from a Python call to the native `_plan`, if there is one.
        """

        _plan = None

        def __call__(self, x, out=None, alpha=1, beta=0):
            return self._other(x, out, alpha, beta)

        def _other(self, x, out, alpha, beta):
            raise RuntimeError("a plan that is timed refused its own operands")


def dense(x, shape: tuple[int, int]) -> np.ndarray:
    """x as a native array, (n,) or (n, k), for A of this shape; no copy where it is one. Raises for anything else."""
    if sp.issparse(x):
        raise SparsegenTypeError("x is sparse; expected a dense vector or matrix (x.toarray())")
    if isinstance(x, np.ma.MaskedArray):
        raise SparsegenTypeError("x is a masked array; expected one without a mask (x.filled(0))")
    try:
        x = np.asarray(x)
    except Exception as error:  # whatever an object's own conversion raises
        raise SparsegenTypeError(f"x is a {type(x).__name__}; expected what numpy can read ({error})") from None
    if x.dtype.kind not in "biufc" or x.dtype.itemsize > (16 if x.dtype.kind == "c" else 8):
        raise SparsegenTypeError(f"x is {x.dtype}; expected real or complex numbers of at most double precision")
    m, n = shape
    if x.ndim not in (1, 2) or x.shape[0] != n:
        raise SparsegenValueError(f"x has shape {x.shape}; A is {m} x {n}, so ({n},) or ({n}, k) is expected")
    return x if x.dtype.isnative else x.astype(x.dtype.newbyteorder("="))


def scalar(name: str, value):
    """A Python number; its type bears on the result's as a Python number's does in numpy."""
    if isinstance(value, (np.generic, np.ndarray)) and np.ndim(value) == 0 and np.asarray(value).dtype.kind in "biufc":
        value = value.item()
    if not isinstance(value, (bool, int, float, complex)):
        raise SparsegenTypeError(f"{name} = {reprlib.repr(value)}; expected a number")
    return value


def result_dtype(A, x, alpha, beta) -> np.dtype:
    """numpy's type of alpha * (A @ x) + beta * y for arrays of dtypes A and x; alpha = 1 and beta = 0 are no terms.

    Raises SparsegenValueError for a scalar that this type cannot hold.
    """
    result = np.result_type(A, x)
    terms = [each for each, absent in ((alpha, 1), (beta, 0)) if not (isinstance(each, int) and each == absent)]
    for kind, one in ((complex, 1j), (float, 1.0), (int, 1)):
        if any(type(each) is kind for each in terms):
            result = np.result_type(result, one)
            break
    for each in terms:
        if isinstance(each, int):
            limit = np.iinfo(result) if result.kind in "iu" else np.finfo(np.float64)
            if not math.ceil(limit.min) <= each <= math.floor(limit.max):
                factor = reprlib.repr(each)
                raise SparsegenValueError(f"a factor of {factor} for a {result} result; expected one of its range")
    return result


def output(out, shape: tuple[int, ...], dtype: np.dtype, x: np.ndarray, beta) -> np.ndarray:
    """`out`, checked; without one a new array in x's order. Raises when it cannot take the result as it is."""
    if out is None:
        if beta != 0:
            raise SparsegenValueError(f"beta = {beta} without out; expected out, the y that beta multiplies")
        return np.empty(shape, dtype, order=order(x))
    if not isinstance(out, np.ndarray):
        raise SparsegenTypeError(f"out is a {type(out).__name__}; expected a numpy array")
    if out.shape != shape or out.dtype != dtype or not out.flags.writeable:
        state = "" if out.flags.writeable else ", read-only"
        raise SparsegenValueError(f"out is {out.dtype} {out.shape}{state}; expected a writable {dtype} {shape}")
    if out.size > 1 and 0 in (step for step, size in zip(out.strides, out.shape, strict=True) if size > 1):
        raise SparsegenValueError("out is a broadcast array whose elements share memory; expected one of its own")
    return out


def order(x: np.ndarray) -> Literal["C", "F"]:
    """Of a new array beside x: "F" for a matrix stored by columns, else "C"."""
    return "F" if x.ndim == 2 and x.flags.f_contiguous and not x.flags.c_contiguous else "C"
