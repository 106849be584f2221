"""Our own kernel generator: one file per kind of kernel, and the folder is the registry.

A kind is a module with `write(pen) -> str`: a whole C++ or CUDA file, about two thirds of them in the dialect of our
kernel files (header, prelude, a range of work items), the rest as anyone would write them. Every one compiles.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from dataclasses import dataclass
from types import ModuleType

import numpy as np

from sparsegen.errors import SparsegenValueError
from sparsegen.model import encoder
from sparsegen.train.idioms import Pen

LANGUAGES = ("cpp", "cuda")


@dataclass(frozen=True)
class Text:
    """One kernel to learn from. words: of the encoder's CONDITIONS, such as "kind:map"; a kind without one is other."""

    language: str
    text: str
    words: tuple[str, ...] = ()


@functools.cache  # a folder is read once
def names() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def get(name: str) -> ModuleType:
    if name not in names():
        raise SparsegenValueError(f"unknown kind of kernel {name!r}; the kinds are {', '.join(names())}")
    return importlib.import_module(f"{__name__}.{name}")


def write(language: str, rng: np.random.Generator, kind: str | None = None) -> Text:
    """A kernel in "cpp" or "cuda", of this kind or of one that is drawn. Raises SparsegenValueError for others."""
    if language not in LANGUAGES:
        raise SparsegenValueError(f"language is {language!r}; kernels are written in {' and '.join(LANGUAGES)}")
    chosen = kind if kind is not None else names()[int(rng.integers(len(names())))]
    word = f"kind:{chosen}" if f"kind:{chosen}" in encoder.CONDITIONS else "kind:other"
    return Text(language, get(chosen).write(Pen(language, rng)), ("task:pretrain", word))
