from typing import Any

import numpy as np

def run(
    code: np.ndarray,
    tables: np.ndarray,
    constants: np.ndarray,
    predicates: np.ndarray,
    specials: np.ndarray,
    parameters: bytes,
    setup: np.ndarray,
    buffers: list[Any],
    block_counters: np.ndarray | None,
    line_counters: np.ndarray | None,
    /,
) -> tuple[int, ...]: ...
