"""Inline PTX in foreign CUDA sources: single instructions on registers are let through, directives are not.

A directive could include a file of the host or declare state; an instruction that the PTX executor does not know is
refused there, by name.
"""

from __future__ import annotations

import re

INSTRUCTIONS = frozenset(
    [
        "abs",
        "activemask",
        "add",
        "and",
        "atom",
        "bar",
        "barrier",
        "bfe",
        "bfi",
        "bfind",
        "brev",
        "clz",
        "cnot",
        "copysign",
        "cos",
        "cp",
        "cvt",
        "cvta",
        "div",
        "dp4a",
        "ex2",
        "fence",
        "fma",
        "isspacep",
        "ld",
        "ldmatrix",
        "ldu",
        "lg2",
        "lop3",
        "mad",
        "match",
        "max",
        "membar",
        "min",
        "mma",
        "mov",
        "mul",
        "nanosleep",
        "neg",
        "not",
        "or",
        "popc",
        "prefetch",
        "prefetchu",
        "prmt",
        "rcp",
        "red",
        "redux",
        "rem",
        "rsqrt",
        "sad",
        "selp",
        "set",
        "setp",
        "shf",
        "shfl",
        "shl",
        "shr",
        "sin",
        "sqrt",
        "st",
        "sub",
        "tanh",
        "testp",
        "trap",
        "vote",
        "xor",
    ]
)
_STATEMENT = re.compile(
    r"(?:@!?[%\w]+\s+)?([a-z][a-z0-9]*)((?:\.|::)[A-Za-z0-9_]+)*(?:\s+[%\w\s,{}\[\]+|!:-]*)?", re.ASCII
)
_DECLARATION = re.compile(r"\.reg\s+\.[a-z]+\d+(?:x2)?\s+[\w\s,%]+|\.reg\s+\.pred\s+[\w\s,%]+", re.ASCII)


def check(literal: str) -> str | None:
    """Why the text of an asm statement, as it stands between its quotes, is not let through, or None."""
    text = re.sub(r"\\[nt]", " ", literal)
    if "\\" in text or '"' in text:
        return "an escape in assembly"
    for part in text.split(";"):
        statement = part.lstrip("{} ").rstrip()  # of scopes; a vector does not begin a statement
        found = _STATEMENT.fullmatch(statement)
        if statement and not _DECLARATION.fullmatch(statement) and (not found or found[1] not in INSTRUCTIONS):
            return f"{statement[:40]!r} in assembly"
    return None
