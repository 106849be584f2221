"""PyTorch: sparse_csr_tensor @ tensor, with 32-bit indices where they fit, which is what its MKL takes as it is.

Used only when the user has imported torch: importing it costs seconds.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable

import numpy as np
import scipy.sparse as sp

from sparsegen.problem import Problem

ABOUT = "PyTorch sparse_csr_tensor @ tensor on the CPU"


def available(problem: Problem) -> str | None:
    if problem.target != "cpu":
        return "this baseline of torch is for the CPU"
    if "torch" not in sys.modules:
        return "torch is not imported: import torch before compiling to compare with it"
    if problem.dtype not in (np.float32, np.float64):
        return f"torch is called for float32 and float64 only, not {problem.dtype}"
    return None


def prepare(A: sp.csr_array, problem: Problem) -> Callable:
    import torch

    threads = problem.threads
    index = np.int32 if max(*A.shape, A.nnz) < 2**31 else np.int64
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "in beta state", and arrays that are read-only
        indptr, indices, data = (
            torch.from_numpy(np.ascontiguousarray(array, dtype))
            for array, dtype in ((A.indptr, index), (A.indices, index), (A.data, problem.dtype))
        )
        matrix = torch.sparse_csr_tensor(indptr, indices, data, size=A.shape)

    def call(x: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        if not x.flags.writeable:
            x = x.copy("K")  # torch warns of a read-only array
        before = torch.get_num_threads()
        if before == threads:
            return (matrix @ torch.from_numpy(x)).numpy()
        torch.set_num_threads(threads)  # of the whole process: put back
        try:
            return (matrix @ torch.from_numpy(x)).numpy()
        finally:
            torch.set_num_threads(before)

    return call
