"""An encoded kernel, as the executor takes it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparsegen.ptx.parse import Variable

OPERANDS = 16
INSTRUCTION = np.dtype(
    [
        ("op", "u4"), ("guard", "i4"), ("operand", "i4", OPERANDS), ("immediate", "i8"), ("negated", "u1"),
        ("size", "u1"), ("count", "u1"), ("space", "u1"), ("mode", "u1"), ("type", "u1"), ("width", "u1"),
        ("flags", "u1"),
    ]
)  # fmt: skip
UNIT = 64  # bytes
SPECIALS = [
    "%tid.x",
    "%tid.y",
    "%tid.z",
    "%ctaid.x",
    "%ctaid.y",
    "%ctaid.z",
    "%ntid.x",
    "%ntid.y",
    "%ntid.z",
    "%nctaid.x",
    "%nctaid.y",
    "%nctaid.z",
    "%laneid",
    "%warpid",
    "%nwarpid",
    "%lanemask_eq",
    "%lanemask_lt",
    "%lanemask_le",
    "%lanemask_gt",
    "%lanemask_ge",
    "%dynamic_smem_size",
    "%total_smem_size",
]


@dataclass(frozen=True)
class Program:
    """A kernel, encoded. Module variables are the first buffers, addressed 1, 2, ...; arrays of a launch follow."""

    name: str
    code: np.ndarray  # of INSTRUCTION; the last one ends the thread
    lines: np.ndarray  # of the source, for each
    texts: tuple[str, ...]
    tables: np.ndarray
    constants: np.ndarray  # (register, bytes, bits) each
    predicate_constants: np.ndarray
    specials: np.ndarray
    parameters: tuple[tuple[str, int, int, str], ...]  # name, offset, bytes, type
    most_threads: int | None
    variables: tuple[Variable, ...]
    frame_units: int
    predicates: int
    static_shared: int
    dynamic: bool
    local_bytes: int
    shared_shift: int
    global_shift: int
    fences: bool
    barriers: int
    warp_barriers: int
