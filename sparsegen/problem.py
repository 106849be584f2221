"""What is to be computed: the structure of A, what is known of its values, and the product wanted."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
import scipy.sparse as sp

SINGLE_THREAD_WORK = 20_000  # multiply-adds


@dataclass(frozen=True, eq=False)
class Pattern:
    """The structure of a sparse matrix in canonical CSR (rows ascending, columns sorted, no duplicates).

    shape: (m, n). indptr: (m + 1,) and indices: (nnz,), one integer dtype, int32 or int64.
    Two patterns are equal iff their `key` is: values never enter it.
    """

    shape: tuple[int, int]
    indptr: np.ndarray
    indices: np.ndarray

    @staticmethod
    def of(A: sp.csr_array) -> Pattern:
        return Pattern((int(A.shape[0]), int(A.shape[1])), A.indptr, A.indices)

    @property
    def m(self) -> int:
        return self.shape[0]

    @property
    def n(self) -> int:
        return self.shape[1]

    @property
    def nnz(self) -> int:
        return len(self.indices)

    @cached_property
    def lengths(self) -> np.ndarray:
        """Stored entries of each row, (m,), the dtype of `indptr`."""
        return np.diff(self.indptr)

    @cached_property
    def columns(self) -> int:
        """How many columns hold an entry: so many values of x are read at least."""
        if self.n > 8 * self.nnz:  # a flag for every column would be larger than A
            return len(np.unique(self.indices))
        held = np.zeros(self.n, bool)
        held[self.indices] = True
        return int(np.count_nonzero(held))

    @cached_property
    def key(self) -> str:
        """A hash of the shape and the coordinates, the same for int32 and int64 indices."""
        digest = hashlib.blake2b(repr(self.shape).encode(), digest_size=16)
        for array in (self.indptr, self.indices):
            digest.update(np.ascontiguousarray(array, dtype=np.int32 if self._narrow else np.int64).data)
        return digest.hexdigest()

    @property
    def _narrow(self) -> bool:
        return max(self.n, self.nnz) < 2**31

    @cached_property
    def diagonals(self) -> tuple[np.ndarray, np.ndarray]:
        """Offsets (column minus row) of the non-empty diagonals, ascending, and the entries of each."""
        if self.nnz == 0:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        if self.m + self.n > 8 * self.nnz:  # a counter for every diagonal would be larger than A
            offsets = self.indices - np.repeat(np.arange(self.m, dtype=np.int64), self.lengths)
            return np.unique(offsets, return_counts=True)
        counts = np.zeros(self.m + self.n - 1, np.int64)
        step = max((1 << 18) * self.m // self.nnz, 1)  # rows at a time: all offsets at once would double the memory
        for row in range(0, self.m, step):
            stop = min(row + step, self.m)
            span = slice(int(self.indptr[row]), int(self.indptr[stop]))
            rows = np.repeat(np.arange(row, stop, dtype=np.int64), self.lengths[row:stop])
            offsets = self.indices[span] - rows
            low = int(offsets.min(initial=0))
            found = np.bincount(offsets - low)
            counts[low + self.m - 1 : low + self.m - 1 + len(found)] += found
        present = np.flatnonzero(counts)
        return present - (self.m - 1), counts[present]


@dataclass(frozen=True)
class Facts:
    """What a kernel may assume of the values, beyond the pattern. All false: values are opaque.

    constant:  every stored value is the same finite number.
    exact_f32: every stored float64 is a float32 exactly.
    """

    constant: bool = False
    exact_f32: bool = False

    @staticmethod
    def of(data: np.ndarray) -> Facts:
        """The facts that hold of `data` (1-D, any real dtype)."""
        if data.size == 0 or data.dtype.kind != "f":
            return Facts()
        first = data[0]
        constant = bool(np.isfinite(first)) and not (data[: 1 << 12] != first).any() and not (data != first).any()
        return Facts(constant=constant, exact_f32=data.dtype == np.float64 and _exact_f32(data))

    def broken_by(self, data: np.ndarray) -> tuple[str, ...]:
        """The names of the facts declared here that do not hold of `data`."""
        if data.size == 0:
            return ()
        holds = Facts.of(data)
        return tuple(name for name in ("constant", "exact_f32") if getattr(self, name) and not getattr(holds, name))

    def draw(self, rng: np.random.Generator, size: int, dtype, integer: bool = False) -> np.ndarray:
        """Random values of `dtype` within these facts: signed, or small positive integers.

        The integers are small enough that sums over any real row stay exact in float64 and, for rows under
        200,000 entries, in float32.
        """
        count = min(size, 1) if self.constant else size
        if integer:
            drawn = rng.integers(1, 8, count, dtype=np.int8).astype(dtype)
        else:
            narrow = self.exact_f32 or dtype == np.float32
            drawn = rng.random(count, dtype=np.float32 if narrow else np.float64)
            drawn -= 0.5
            drawn = drawn.astype(dtype, copy=False)
        return np.full(size, drawn[0], dtype) if self.constant and size else drawn


def _exact_f32(data: np.ndarray) -> bool:
    for part in (data[: 1 << 12], data):  # most matrices are refused by the first few thousand values
        with np.errstate(over="ignore", invalid="ignore"):
            narrow = part.astype(np.float32)
        same = (narrow == part) & (np.isfinite(part))
        # a subnormal float32 may be flushed by the vector unit that widens it
        if not (same & ((np.abs(narrow) >= np.finfo(np.float32).tiny) | (narrow == 0))).all():
            return False
    return True


@dataclass(frozen=True, eq=False)
class Problem:
    """One product to compile: op "spmv" (y = alpha A x + beta y) or "spmm" (C = alpha A B + beta C, k columns).

    dtype is that of the values, x and y alike: float32 or float64. layout_b and layout_c say whether B and C are
    stored by rows ("row") or by columns ("column"). threads is the number every arm may use. target is "cpu" or
    "cuda", device the name of the machine or GPU the times are for.
    """

    op: str
    pattern: Pattern
    facts: Facts = field(default_factory=Facts)
    dtype: np.dtype = field(default_factory=lambda: np.dtype(np.float64))
    k: int = 1
    layout_b: str = "row"
    layout_c: str = "row"
    threads: int = 1
    deterministic: bool = False
    target: str = "cpu"
    device: str = ""

    @property
    def index_dtype(self) -> np.dtype:
        """Of column indices and row numbers: int32 while they fit."""
        return np.dtype(np.int32 if max(self.pattern.shape) < 2**31 else np.int64)

    @property
    def offset_dtype(self) -> np.dtype:
        """Of positions in the stored arrays, padding included with room to spare: int32 while they fit."""
        return np.dtype(np.int32 if self.pattern.nnz < 2**28 else np.int64)

    @property
    def order_b(self) -> Literal["C", "F"]:
        """numpy's name for the order of x or B."""
        return "C" if self.op == "spmv" or self.layout_b == "row" else "F"

    @property
    def order_c(self) -> Literal["C", "F"]:
        """numpy's name for the order of y or C."""
        return "C" if self.op == "spmv" or self.layout_c == "row" else "F"

    @property
    def useful_threads(self) -> int:
        """The threads allowed, or one where the product is too small for a second to help, a library's included."""
        return self.threads if self.pattern.nnz * self.k >= SINGLE_THREAD_WORK else 1

    @property
    def key(self) -> tuple:
        """What a choice depends on, the device apart."""
        return (
            self.op, self.pattern.key, self.facts, self.dtype.name, self.k, self.layout_b, self.layout_c,
            self.threads, self.deterministic, self.target,
        )  # fmt: skip
