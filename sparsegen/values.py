"""How the values of A are stored, apart from where: one encoding for all slots of a format's data array.

full:     in the dtype of the problem.
f32:      float32 for float64 problems; needs the fact exact_f32.
constant: one number; needs the fact constant. A kernel sums x alone and STORE multiplies once.
"""

from __future__ import annotations

import numpy as np

from sparsegen import formats
from sparsegen.problem import Problem

NAMES = ("full", "f32", "constant")
FACT = {"f32": "exact_f32", "constant": "constant"}  # what each encoding leans on


def feasible(encoding: str, problem: Problem) -> str | None:
    """One sentence why `encoding` cannot store the values of this problem, or None."""
    if encoding not in NAMES:
        return f"values = {encoding!r}; the encodings are {', '.join(NAMES)}"
    if encoding == "f32" and problem.dtype != np.float64:
        return "values = 'f32' stores float64 matrices only"
    if encoding in FACT and not getattr(problem.facts, FACT[encoding]):
        return f"values = {encoding!r} needs the fact {FACT[encoding]}"
    return None


def stored_dtype(encoding: str, dtype: np.dtype) -> np.dtype:
    return np.dtype(np.float32) if encoding == "f32" else dtype


def encode(encoding: str, data: np.ndarray, packed: formats.Packed, dtype: np.dtype) -> np.ndarray:
    """The data array of a kernel: A's values (nnz,) in the slots of `packed`. New values are one more call."""
    if encoding == "constant":
        return data[:1].astype(dtype) if len(data) else np.ones(1, dtype)
    return formats.gather(data, packed, stored_dtype(encoding, dtype))


def stored_bytes(encoding: str, dtype: np.dtype) -> int:
    """Of one slot."""
    return 0 if encoding == "constant" else stored_dtype(encoding, dtype).itemsize
