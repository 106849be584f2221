"""sparsegen: give it a sparse matrix, get a verified kernel made for it.

    kernel = sparsegen.compile(A)
    y = kernel @ x
"""

from __future__ import annotations

from sparsegen.artifact import Artifact
from sparsegen.engine import compile, compile_many, matmul
from sparsegen.errors import SparsegenError, SparsegenTypeError, SparsegenValueError
from sparsegen.kernel import Kernel
from sparsegen.problem import Facts, Pattern, Problem
from sparsegen.store import load

__version__ = "0.1.0"
__all__ = [
    "Artifact", "Facts", "Kernel", "Pattern", "Problem", "SparsegenError", "SparsegenTypeError", "SparsegenValueError",
    "compile", "compile_many", "load", "matmul",
]  # fmt: skip
