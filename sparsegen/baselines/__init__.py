"""What a user would have called instead: one file per library, `available(problem)` and `prepare(A, problem)`.

`available(problem)` is None when the library can be used, else one sentence saying why not. `prepare(A, problem)`
does what a user does once (handles, conversion, analysis) and returns `call(x, out=None) -> y`, the product A @ x of
one x of `problem.dtype`: (n,), or (n, k) stored as `problem.layout_b` says. A library that writes into a given y
writes into `out` and returns it; the others return a new array. A must not change while `call` is in use.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
import sys
from types import ModuleType

from sparsegen.errors import SparsegenValueError


@functools.cache  # a folder is read once
def names() -> tuple[str, ...]:
    """The baselines there are, sorted: the files of this folder."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def get(name: str) -> ModuleType:
    """The baseline `name`. Raises SparsegenValueError when there is no such file."""
    if name not in names():
        raise SparsegenValueError(f"no baseline {name!r}; there are {', '.join(names())}")
    return importlib.import_module(f"{__name__}.{name}")


def imported() -> tuple[str, ...]:
    """Of the libraries that count only where the user has imported them, those that are: a worker imports them too."""
    return tuple(name for name in ("torch", "cupy") if name in sys.modules)
