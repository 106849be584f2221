"""Where kernels are compiled and run, one module each; the folder is the registry. A target's module holds

    LANGUAGE   of the candidates it takes: "cpp" or "cuda"
    COPIES     whether `bind` copies the arrays, so that new values want a new plan
    available() -> str | None           None when kernels can be compiled and run here; else why not and what to do
    device() -> str                     what a measured choice is for
    screen(candidate) -> str | None     one sentence why its source must not be compiled
    unit(candidate, problem, packs) -> str     the translation unit
    build(unit, ordinal) -> Path        the binary, from the cache or compiled into it; raises CompileFailure; ordinal
                                        says for which GPU, where there are several
    load(path) -> handle
    bind(handle, candidate, problem, packs, arrays, threads) -> plan     plan.run(x, y, alpha, beta) -> status

A plan that watches its kernel raises Fault.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from types import ModuleType

from sparsegen.errors import SparsegenError, SparsegenValueError


class Fault(SparsegenError):
    """What a kernel did that none may, seen as it did it: kind in a few words, and a sentence."""

    def __init__(self, kind: str, message: str):
        super().__init__(message)
        self.kind = kind


@functools.cache  # a folder is read once
def names() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def get(name: str) -> ModuleType:
    if name not in names():
        raise SparsegenValueError(f"unknown target {name!r}; the targets are {', '.join(names())}")
    return importlib.import_module(f"{__name__}.{name}")
