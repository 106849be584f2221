"""Where kernels are compiled and run, one module each; the folder is the registry."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from types import ModuleType

from sparsegen.errors import SparsegenValueError


@functools.cache  # a folder is read once
def names() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def get(name: str) -> ModuleType:
    if name not in names():
        raise SparsegenValueError(f"unknown target {name!r}; the targets are {', '.join(names())}")
    return importlib.import_module(f"{__name__}.{name}")
