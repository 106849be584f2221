"""What a run cost, as the executor counts it: per block, per instruction, and in all."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparsegen.errors import SparsegenValueError

MOST_BLOCKS = 1 << 20
# requests: of a warp to global memory; sectors of 32 and lines of 128 bytes; misses in sectors; shared_waves: turns of
# shared memory, of which bank_conflicts were more than needed; atomic_conflicts: lanes that waited for another's
# atomic on the same word; the longest warp in instructions, in loads, and its path in cycles, were it alone (see
# _scoreboard.h); atomic_turns: those that atomics take at lines of the L2.
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
            "longest_path",
            "atomic_turns",
        ]
    ]
)
INSTRUCTION = np.dtype([(name, "u8") for name in ["executions", "lanes", "sectors", "l1_misses", "conflicts"]])
_LONGEST = ("longest_warp", "longest_loads", "longest_path")


@dataclass(frozen=True)
class Device:
    """Whose caches are modelled, by default an A100. Block b runs on multiprocessor b modulo their number."""

    multiprocessors: int = 108
    l1_bytes: int = 128 << 10
    l2_bytes: int = 40 << 20
    l1_cycles: int = 34  # until a load is answered: from the L1, the L2, the memory
    l2_cycles: int = 210
    memory_cycles: int = 466

    def __post_init__(self) -> None:
        sizes = (("multiprocessors", 1 << 10), ("l1_bytes", 1 << 24), ("l2_bytes", 1 << 30))
        for name, most in (*sizes, *((f"{level}_cycles", 1 << 20) for level in ("l1", "l2", "memory"))):
            if not 1 <= getattr(self, name) <= most:
                raise SparsegenValueError(f"{name} = {getattr(self, name)}; expected 1 to {most}")


@dataclass(frozen=True, eq=False)
class Counters:
    """blocks: an array of BLOCK, of those that ran; instructions: of INSTRUCTION, with their PTX and source lines.

    hottest: the turns that atomics took at one line of the L2; grid: how many blocks the launch has.
    """

    blocks: np.ndarray
    instructions: np.ndarray
    texts: tuple[str, ...]
    lines: np.ndarray
    hottest: int = 0
    grid: int = 0

    def total(self) -> dict[str, int]:
        """Sums over the blocks; of the longest warp, the longest."""
        return {
            name: int(self.blocks[name].max() if name in _LONGEST else self.blocks[name].sum())
            for name in BLOCK.names or ()
        }
