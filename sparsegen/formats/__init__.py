"""Storage formats, one module each. The folder is the registry: adding `formats/<name>.py` adds the format.

A format arranges a `Pattern`; it never sees values. Its module holds

    ARRAYS   what a kernel receives after its sizes, in order: name -> C element type. OFFSET, INDEX and STORED (the
             stored values) are macros, so that one source serves all widths. "data" comes last.
    SIZES    integer arguments of its own, before ARRAYS; m, n and nnz are always passed
    PARAMS   parameters and their defaults; a kernel file chooses them under [params] or [tune]
    BAKED    names that become literals in the source
    PADS     "none":   every slot of data is an entry of A
             "masked": there are padding slots, and arrays that let a kernel skip them
             "zero":   padding slots are multiplied as zeros, so that 0 * inf must be caught (see the prelude)
    feasible(pattern, **params) -> str | None     one sentence why not, before anything large is built
    stored(pattern, **params) -> int              slots of data, padding included
    pack(pattern, index, offset, **params) -> Packed
    baked(pattern, **params) -> dict[str, str]    the literals of BAKED, where there are any, without building arrays
    unpack(packed, shape) -> Pattern              what the arrays say, for tests
    cuts(packed, pieces) -> int64 (pieces + 1,)   work items at which to cut for as many threads, balanced by work
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass, field
from types import ModuleType

import numpy as np

from sparsegen.errors import SparsegenValueError


@dataclass(frozen=True)
class Packed:
    """A pattern in some format: arrays (all of ARRAYS but data), sizes, baked literals and the source map.

    source: position in A.data of each slot of data, -1 for padding; None when the slots are A.data in order.
    """

    arrays: dict[str, np.ndarray]
    nnz: int
    slots: int
    sizes: dict[str, int] = field(default_factory=dict)
    baked: dict[str, str] = field(default_factory=dict)
    source: np.ndarray | None = None

    @property
    def nbytes(self) -> int:
        """Of the arrays a kernel reads, data and the source map apart."""
        return sum(array.nbytes for array in self.arrays.values())


def names() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def get(name: str) -> ModuleType:
    if name not in names():
        raise SparsegenValueError(f"unknown format {name!r}; the formats are {', '.join(names())}")
    return importlib.import_module(f"{__name__}.{name}")


def even_cuts(items: int, pieces: int) -> np.ndarray:
    """Cut points of `items` equal work items."""
    return np.linspace(0, items, pieces + 1).astype(np.int64)


def weighted_cuts(cumulative: np.ndarray, pieces: int) -> np.ndarray:
    """Cut points of work items whose cumulative work is `cumulative` (items + 1,); an item itself costs one unit."""
    cost = cumulative.astype(np.int64) + np.arange(len(cumulative))
    cuts = np.searchsorted(cost, np.linspace(cost[0], cost[-1], pieces + 1)).astype(np.int64)
    cuts[0], cuts[-1] = 0, len(cumulative) - 1
    return cuts


def row_of_entry(pattern, dtype=np.int64) -> np.ndarray:
    """Row number of every stored entry, (nnz,)."""
    return np.repeat(np.arange(pattern.m, dtype=dtype), pattern.lengths)


def gather(data: np.ndarray, packed: Packed, dtype) -> np.ndarray:
    """A's values in the slots of `packed`, zeros in its padding: (slots,) of dtype."""
    if packed.source is None:
        return np.ascontiguousarray(data, dtype=dtype)
    out = np.zeros(packed.slots, dtype)
    real = packed.source >= 0
    out[real] = data[packed.source[real]]
    return out
