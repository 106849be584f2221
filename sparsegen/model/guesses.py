"""What the model may be about to write below a header: the bodies of templates that have one like it.

A guess is read by the decoder at once, and taken as far as the model would have written the same token by token
(speculative decoding with exact acceptance, Leviathan et al. 2023): it makes writing faster and changes no text.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence

from sparsegen import candidate, templates
from sparsegen.model.tokenizer import END, written

Guesses = Callable[[str], Sequence[Sequence[int]]]  # a header -> tokens of whole texts that begin with it


def none(header: str) -> Sequence[Sequence[int]]:
    return ()


def of(language: str, op: str, tokenizer) -> Guesses:
    """The guesses for kernels of an operation."""

    def guesses(header: str) -> list[list[int]]:
        bodies = _bodies(language, op).get(_kind(header), {})
        return [[*tokenizer.encode(header + body), END] for body in bodies]

    return guesses


@functools.cache  # a folder is read once
def _bodies(language: str, op: str) -> dict[str, dict[str, None]]:
    """The bodies of template instances by the kind of their header."""
    found: dict[str, dict[str, None]] = {}
    for file in templates.load(language):
        for each in candidate.instances(file) if file.op == op else ():
            header, end, body = written(each).partition("*/")
            found.setdefault(_kind(header), {})[end + body] = None
    return found


def _kind(header: str) -> str:
    """A header without its numbers: what they are, a body seldom depends on."""
    return re.sub(r"\d+", "#", header)
