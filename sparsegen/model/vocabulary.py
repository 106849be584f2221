"""The words that the source under a header may use before it declares any of its own."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

from sparsegen import prelude
from sparsegen.candidate import Candidate, Part
from sparsegen.screen import names, words


def may_name(word: str) -> bool:
    """Whether a kernel may call a function or variable of its own so."""
    plain = word not in words.FOREIGN and word not in words.KEYWORDS and word != "status"
    return plain and "__" not in word and word[0] != "_" and word[-1] != "_" and not word.startswith("door")


@dataclass(frozen=True)
class Vocabulary:
    language: str
    words: frozenset[str]
    prefixes: frozenset[str]
    types: frozenset[str]
    taken: frozenset[str]  # that nothing else may be called
    brings: dict[str, frozenset[str]]  # macros of parameters -> what they declare
    spelled: dict[str, tuple[str, ...]]  # macros -> their tokens
    heads: dict[str, tuple[str, ...]]  # entries -> the tokens of their parameters

    @staticmethod
    def of(header: Candidate, deterministic: bool) -> Vocabulary:
        """That of a file without its source. Raises screen.tokens.Refused for a parameter named like a macro."""
        heads = {}
        for part, launch in prelude.entries(header):
            listed = prelude.arguments(header, part)
            if header.language == "cpp":
                listed = [*listed, ("begin", "int64_t"), ("end", "int64_t")]
            text = ", ".join(f"{kind} {name}" for name, kind in listed)
            heads[launch.entry] = tuple(re.findall(r"\w+|\*|,", text))
        known = bare(
            header.language, header.op, tuple(part.format for part in header.parts),
            tuple(name for name in header.params if name != "values"), tuple(header.scratch.items()), deterministic,
        )  # fmt: skip
        return replace(known, heads=heads)


@lru_cache(maxsize=512)
def bare(
    language: str,
    op: str,
    formats: tuple[str, ...],
    params: tuple[str, ...],
    scratch: tuple[tuple[str, tuple[str, str]], ...],
    deterministic: bool,
) -> Vocabulary:
    """That of a file without its launches either."""
    parts = tuple(Part("all", each, ()) for each in formats)
    found = names.of(Candidate(language, op, parts, "", dict.fromkeys(params, 8), scratch=dict(scratch)))
    spelled = {
        name: tuple(token.text for token in definitions[0].body)
        for name, definitions in found.macros.items()
        if definitions[0].params is None
    }
    lists = {name for name in spelled if name in ("SIZES", "EPILOGUE") or name.endswith("_ARRAYS")}
    bodies = (each.body for definitions in found.macros.values() for each in definitions)
    inner = {"l"} & {token.text for body in bodies for token in body}  # the lane that STORE_EACH counts
    taken = (set(found.macros) - lists) | set(found.functions) | set(found.integers)
    known = taken | lists | set(found.types) | found.baked | inner | words.KEYWORDS
    types = set(found.types) | words.ARITHMETIC | {"auto"}
    if language == "cuda":
        known |= words.CUDA
        types |= words.CUDA_TYPES
    if deterministic:
        known -= {"ATOMIC_ADD", "ATOMIC_ADD_C", "atomicAdd"}
    prefixes = {word[:end] for word in known for end in range(1, len(word) + 1)}
    brings = {name: frozenset(declared(spell([name], spelled))) for name in lists}
    return Vocabulary(
        language, frozenset(known), frozenset(prefixes), frozenset(types), frozenset(taken), brings, spelled, {}
    )


def spell(texts: list[str], spelled: dict[str, tuple[str, ...]]) -> list[str]:
    """Tokens with the macros among them replaced, as far as they are lists of parameters."""
    found: list[str] = []
    for text in texts:
        found += spell(list(spelled[text]), spelled) if text in spelled and text not in ("ACC", "INDEX") else [text]
    return found


def declared(texts: list[str]) -> list[str]:
    """The names in a list of parameters: the word before each comma, and the last."""
    marked = [*texts, ","]
    return [text for text, after in pairwise(marked) if after == "," and re.fullmatch(r"\w+", text)]
