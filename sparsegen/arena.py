"""Aligned memory for packed arrays, with guard bands around each.

All bytes of a guard are 0xFF: a NaN to a kernel that reads values there, -1 to one that reads indices, and not 0xFF any
more after one that writes there. Beyond the guards of a fenced arena lies memory that nothing may touch: what strays
past a guard would else end in the arena that happens to be next, unseen.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Mapping

import numpy as np

ALIGN = 64  # a cache line and the widest vector
GUARD = 256
HUGE = 1 << 21
FENCE = 1 << 20  # before and behind; of addresses, not of memory


class Arena:
    """Arrays copied into one anonymous mapping, each aligned to 64 bytes between two guards.

    arrays: name -> the copy, writable, of the same dtype and shape. fenced: for code that is not verified yet.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray], fenced: bool = False):
        fence = FENCE if fenced and sys.platform != "win32" else 0
        starts, end = {}, fence + GUARD
        for name, array in arrays.items():
            starts[name] = end
            end += -(-array.nbytes // ALIGN) * ALIGN + GUARD
        size = -(-end // mmap.PAGESIZE) * mmap.PAGESIZE + fence
        self._memory = mmap.mmap(-1, size)
        if end >= HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
            self._memory.madvise(mmap.MADV_HUGEPAGE)
        self._bytes = np.frombuffer(self._memory, np.uint8)
        if fence:
            _forbid(self._bytes[:fence])
            _forbid(self._bytes[size - fence :])
        self._guards = []
        self.arrays: dict[str, np.ndarray] = {}
        last = fence
        for name, array in arrays.items():
            start, stop = starts[name], starts[name] + array.nbytes
            self._guards.append(slice(last, start))
            self.arrays[name] = self._bytes[start:stop].view(array.dtype).reshape(array.shape)
            self.arrays[name][...] = array
            last = stop
        self._guards.append(slice(last, size - fence))
        self.guard()

    def guard(self) -> None:
        """Draw the guards anew, so that `intact` speaks of what runs from here on."""
        for guard in self._guards:
            self._bytes[guard] = 0xFF

    def intact(self) -> bool:
        """Whether no guard byte has changed."""
        return all((self._bytes[guard] == 0xFF).all() for guard in self._guards)


def _forbid(pages: np.ndarray) -> None:
    """Whole pages end a process that reads or writes them. Where the system refuses, the guards alone stand."""
    protect = ctypes.CDLL(None).mprotect
    protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    protect(pages.ctypes.data, pages.nbytes, 0)
