"""PyTorch: sparse_csr_tensor @ tensor, with 32-bit indices where they fit, which is what its MKL takes as it is.

Used only when the user has imported torch: importing it costs seconds. On a GPU x and y are arrays there, in torch's
current stream.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable

import numpy as np
import scipy.sparse as sp

from sparsegen.problem import Problem

ABOUT = "PyTorch sparse_csr_tensor @ tensor, on the CPU or the GPU"


def available(problem: Problem) -> str | None:
    if problem.target == "emulator":
        return "torch runs on CPUs and GPUs"
    if "torch" not in sys.modules:
        return "torch is not imported: import torch before compiling to compare with it"
    if problem.dtype not in (np.float32, np.float64):
        return f"torch is called for float32 and float64 only, not {problem.dtype}"
    if problem.target == "cuda" and not sys.modules["torch"].cuda.is_available():
        return "this torch finds no GPU: install its CUDA build"
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
    if problem.target == "cuda":
        return _on_gpu(matrix.to(f"cuda:{problem.ordinal}"), problem)

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


def _on_gpu(matrix, problem: Problem) -> Callable:
    import torch

    device, by_rows = matrix.device, problem.layout_b == "row"

    def call(x, out=None):
        if isinstance(x, np.ndarray):  # host in, host out
            y = (matrix @ torch.from_numpy(np.array(x)).to(device)).cpu().numpy()
            return np.asarray(y, order="C" if by_rows else "F")
        return matrix @ (x if isinstance(x, torch.Tensor) else torch.as_tensor(x, device=device))

    return call
