"""scipy.sparse: one thread, every dtype. The one baseline that is always there."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.sparse as sp

from sparsegen.problem import Problem

ABOUT = "scipy.sparse csr_array @ x, one thread"


def available(problem: Problem) -> str | None:
    return None


def prepare(A: sp.csr_array, problem: Problem) -> Callable:
    def call(x: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        return A @ x

    return call
