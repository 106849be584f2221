"""Operations, one module each; the folder is the registry. An operation's module holds

    OPERANDS   name -> C type of what a kernel receives after A's arrays, in order; the result last
    OUTPUT     the name of the result
    SIZES      integer arguments of its own after m, n, nnz
    shapes(problem) -> (input shape, output shape)
    make(problem, rng, integer) -> x                     an input within the problem's dtype
    reference(A, x) -> y                                 A @ x in float64
    bound(A, x, dtype, alpha, beta, y0) -> y-shaped      what a correct kernel may differ by, componentwise
    flops(problem) -> int
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType

import numpy as np
import scipy.sparse as sp

from sparsegen.errors import SparsegenValueError

PART = 1 << 15  # numbers


@functools.cache  # a folder is read once
def names() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def get(name: str) -> ModuleType:
    if name not in names():
        raise SparsegenValueError(f"unknown op {name!r}; the ops are {', '.join(names())}")
    return importlib.import_module(f"{__name__}.{name}")


def with_data(A: sp.csr_array, data: np.ndarray) -> sp.csr_array:
    """The pattern of A with other values; its index arrays are shared, which are copied by scipy's astype and abs."""
    return sp.csr_array((data, A.indices, A.indptr), shape=A.shape)


def signed(rng: np.random.Generator, shape: int | tuple[int, ...]) -> np.ndarray:
    """Random integers from -7 to 7, none of them 0: sums of very long rows stay small, and every entry shows."""
    return rng.integers(1, 8, shape) * rng.choice((-1, 1), shape)


def componentwise_bound(lengths, magnitude, exact, dtype, beta_magnitude=0.0):
    """What y may differ from the reference by, componentwise (Higham 2002, section 3.1).

    lengths: entries of each row; magnitude: |alpha| |A| |x| in float64; exact: the reference. The accumulator has the
    precision of dtype. gamma is taken with eps, twice the unit roundoff: the second half pays for the reference's own
    rounding, which matters in float64 only. What may be lost to underflow is taken as the smallest normal number, since
    a subnormal bound would make every comparison slow.
    """
    info = np.finfo(dtype)
    each = np.arange(int(lengths.max(initial=0)) + 1) + 3.0  # by length: rows are many, lengths few
    steps = each * float(info.eps)
    gamma, underflow = steps / (1 - np.minimum(steps, 0.5)), each * float(info.tiny)
    beta_magnitude = np.broadcast_to(beta_magnitude, exact.shape)
    bound = np.abs(exact)
    bound *= float(info.eps)
    for rows in parts(exact):
        length = lengths[rows]
        bound[rows] += gamma[length] * (magnitude[rows] + beta_magnitude[rows]) + underflow[length]
    return bound


def parts(array: np.ndarray) -> Iterator[slice]:
    """Its rows, a few at a time: what is computed of them stays in a cache, and no memory is asked for."""
    step = max(PART * len(array) // max(array.size, 1), 1)
    return (slice(row, row + step) for row in range(0, len(array), step))
