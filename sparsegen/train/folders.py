"""Kernels out of a user's folders: CUDA and C++ files cut into functions, spelled as the generator spells its own.

What is read is text to learn from and is never compiled or run.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

from sparsegen.errors import SparsegenValueError
from sparsegen.model.tokenizer import spelled
from sparsegen.train.source import Source, Unclear

SUFFIXES = (".cu", ".cuh", ".cpp", ".h")
MOST_BYTES = 1 << 16
LEAST, MOST = 40, 3000  # characters of one text


def texts(folder: str | os.PathLike, most: int = MOST) -> Iterator[str]:
    """Every different function, or run of short ones, of at most `most` characters, file after file by name.

    Files over 64 KiB, empty, binary or not UTF-8 are left out, links are not followed, longer functions are dropped.
    Raises SparsegenValueError when the folder is none.
    """
    path = Path(folder)
    if not path.is_dir():
        raise SparsegenValueError(f"{folder} is no folder; name one with {', '.join(SUFFIXES)} files")
    seen: set[bytes] = set()
    for file in sorted(each for each in path.rglob("*") if each.suffix in SUFFIXES):
        for piece in pieces(read(file), most):
            key = hashlib.blake2b(" ".join(piece.split()).encode(), digest_size=16).digest()
            if key not in seen:
                seen.add(key)
                yield piece


def read(file: Path) -> str:
    """The text of a file, or nothing where it is not to be learned from."""
    try:
        if file.is_symlink() or not file.is_file() or file.stat().st_size > MOST_BYTES:
            return ""
        text = file.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
    odd = any(ord(letter) < 32 and letter not in "\t\n\r\f" for letter in text)
    return "" if odd else text.replace("\r\n", "\n").replace("\r", "\n")


def pieces(text: str, most: int = MOST) -> Iterator[str]:
    """A file cut at the ends of its functions into pieces as long as `most` allows, without comments."""
    bare = spelled(text)
    held = ""
    for part in _parts(bare):
        if held and len(held) + len(part) + 1 > most:
            yield from _worth(held, most)
            held = ""
        held = f"{held}\n{part}" if held else part
    yield from _worth(held, most)


def _worth(piece: str, most: int) -> Iterator[str]:
    if LEAST <= len(piece) <= most and "(" in piece and "{" in piece:
        yield piece + "\n"


def _parts(text: str) -> list[str]:
    """Lines up to the end of each top-level body; one that namespaces or unbalanced brackets hide is not cut."""
    source = Source(text)
    ends, i = [], 0
    try:
        while i < len(source.tokens):
            if source[i] in ("{", "("):
                inner = i > 1 and (source[i - 2] == "namespace" or source[i - 1] in ("namespace", '"C"'))
                close = source.close(i)
                if source[i] == "{" and inner:
                    i += 1
                    continue
                if source[i] == "{" and source[close + 1] != ";":
                    ends.append(source.tokens[close].end)
                i = close
            i += 1
    except Unclear:
        pass
    cuts = [0, *ends, len(text)]
    parts = (text[a:b].strip("\n") for a, b in itertools.pairwise(cuts))
    return [part for part in parts if part.strip()]
