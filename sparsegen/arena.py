"""Aligned memory for packed arrays, with guard bands around each.

All bytes of a guard are 0xFF: a NaN to a kernel that reads values there, -1 to one that reads indices, and not 0xFF any
more after one that writes there.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping

import numpy as np

ALIGN = 64  # a cache line and the widest vector
GUARD = 256
HUGE = 1 << 21


class Arena:
    """Arrays copied into one anonymous mapping, each aligned to 64 bytes between two guards.

    arrays: name -> the copy, writable, of the same dtype and shape.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray]):
        starts, end = {}, GUARD
        for name, array in arrays.items():
            starts[name] = end
            end += -(-array.nbytes // ALIGN) * ALIGN + GUARD
        self._memory = mmap.mmap(-1, max(end, mmap.PAGESIZE))
        if end >= HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
            self._memory.madvise(mmap.MADV_HUGEPAGE)
        self._bytes = np.frombuffer(self._memory, np.uint8)
        self._guards = []
        self.arrays: dict[str, np.ndarray] = {}
        last = 0
        for name, array in arrays.items():
            start, stop = starts[name], starts[name] + array.nbytes
            self._guards.append(slice(last, start))
            self.arrays[name] = self._bytes[start:stop].view(array.dtype).reshape(array.shape)
            self.arrays[name][...] = array
            last = stop
        self._guards.append(slice(last, end))
        self.guard()

    def guard(self) -> None:
        """Draw the guards anew, so that `intact` speaks of what runs from here on."""
        for guard in self._guards:
            self._bytes[guard] = 0xFF

    def intact(self) -> bool:
        """Whether no guard byte has changed."""
        return all((self._bytes[guard] == 0xFF).all() for guard in self._guards)
