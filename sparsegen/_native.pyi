from typing import Any

import numpy as np

class Plan:
    def __init__(
        self,
        launches: list[Any],
        x: tuple[int, int],
        y: tuple[int, int],
        kind: str,
        x_by_row: bool,
        y_by_row: bool,
        clear: bool,
        threads: int,
        release: int,
        keep: Any,
        turn: bool = False,
        /,
    ) -> None: ...
    def run(self, x: np.ndarray, y: np.ndarray, alpha: float, beta: float, /) -> int: ...

def read(buffer: np.ndarray, threads: int, repeats: int, /) -> None: ...

class Call:
    _plan: Plan | None
    def __call__(self, x: Any, out: Any = None, alpha: Any = 1, beta: Any = 0) -> Any: ...
