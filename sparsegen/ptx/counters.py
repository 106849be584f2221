"""What a run cost, as the executor counts it: per block, per instruction, and in all."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparsegen.errors import SparsegenValueError

MOST_BLOCKS = 1 << 20
# requests: of a warp to global memory; sectors of 32 and lines of 128 bytes; misses in sectors; shared_waves: turns of
# shared memory, of which bank_conflicts were more than needed; atomic_conflicts: lanes that waited for another's
# atomic on the same word; the longest warp in instructions, and in loads.
BLOCK = np.dtype(
    [
        (name, "u8")
        for name in [
            "instructions",
            "lanes",
            "requests",
            "sectors",
            "lines",
            "bytes",
            "l1_misses",
            "l2_misses",
            "shared_waves",
            "bank_conflicts",
            "atomics",
            "atomic_conflicts",
            "divergent_branches",
            "barriers",
            "longest_warp",
            "longest_loads",
        ]
    ]
)
INSTRUCTION = np.dtype([(name, "u8") for name in ["executions", "lanes", "sectors", "l1_misses", "conflicts"]])
_LONGEST = ("longest_warp", "longest_loads")


@dataclass(frozen=True)
class Device:
    """Whose caches are modelled, by default an A100. Block b runs on multiprocessor b modulo their number."""

    multiprocessors: int = 108
    l1_bytes: int = 128 << 10
    l2_bytes: int = 40 << 20

    def __post_init__(self) -> None:
        for name, most in (("multiprocessors", 1 << 10), ("l1_bytes", 1 << 24), ("l2_bytes", 1 << 30)):
            if not 1 <= getattr(self, name) <= most:
                raise SparsegenValueError(f"{name} = {getattr(self, name)}; expected 1 to {most}")


@dataclass(frozen=True, eq=False)
class Counters:
    """blocks: an array of BLOCK; instructions: of INSTRUCTION, with the PTX and the source line of each."""

    blocks: np.ndarray
    instructions: np.ndarray
    texts: tuple[str, ...]
    lines: np.ndarray

    def total(self) -> dict[str, int]:
        """Sums over the blocks; of the longest warp, the longest."""
        return {
            name: int(self.blocks[name].max() if name in _LONGEST else self.blocks[name].sum())
            for name in BLOCK.names or ()
        }
