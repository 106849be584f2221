"""A kernel's source as tokens with their places, its statements and declarations: what rewrites find their way by.

Only as much is read as a rewrite needs. What is not understood (a conditional line where a statement should begin) is
`Unclear`, and the rewrite leaves that place alone.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sparsegen.train.idioms import NAMES

_TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*|/\*.*?\*/) | (?P<line>\#(?:[^\n\\]|\\.)*) | (?P<name>[A-Za-z_]\w*)
    | (?P<number>\.?[0-9](?:[eE][+-]|[\w.])*) | (?P<string>"[^"\n]*")
    | (?P<mark><<=|>>=|->|::|\+\+|--|&&|\|\||==|!=|<=|>=|<<|>>|[-+*/%&|^]=|[^\s\w])""",
    re.VERBOSE | re.DOTALL,
)
WORDS = re.compile(r"[A-Za-z_]\w*")
_OPENS = {"(": ")", "[": "]", "{": "}"}
INTEGERS = (
    "int",
    "int32_t",
    "int64_t",
    "long",
    "long long",
    "INDEX",
    "OFFSET",
    "unsigned",
    "uint32_t",
    "LOCAL",
    "bool",
)
REALS = ("ACC", "VALUE", "float", "double")
TYPES = frozenset((*INTEGERS, *REALS, "STORED", "vector", "lanes", "auto"))
CHANGES = frozenset(("=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>=", "++", "--"))


class Unclear(Exception):
    """The source is not simple enough here."""


@dataclass(frozen=True)
class Token:
    text: str
    kind: str  # line (of the preprocessor), name, number, string or mark
    start: int
    end: int


@dataclass(frozen=True)
class Declaration:
    """Tokens from first up to past, the semicolon included. names: each with the tokens of its initialiser, or none."""

    first: int
    past: int
    type: str
    const: bool
    pointer: bool
    names: tuple[tuple[str, int, int], ...]
    plain: bool  # no array, nothing shared, no constexpr


class Source:
    """A source, its tokens and the functions' bodies among them."""

    def __init__(self, text: str):
        self.text = text
        self.tokens = [
            Token(found.group(), str(found.lastgroup), *found.span())
            for found in _TOKEN.finditer(text)
            if found.lastgroup != "space"
        ]

    @cached_property
    def bodies(self) -> list[tuple[int, int]]:
        """(first, past) of the tokens inside the braces of each function."""
        found, i = [], 0
        while i < len(self.tokens):
            if self[i] in ("{", "("):
                close = self.close(i)
                if self[i] == "{" and i and self[i - 1] == ")":
                    found.append((i + 1, close))
                i = close
            i += 1
        return found

    def __getitem__(self, i: int) -> str:
        return self.tokens[i].text if 0 <= i < len(self.tokens) else ""

    def close(self, i: int) -> int:
        """The bracket that closes the one at i."""
        opening, closing, depth = self[i], _OPENS[self[i]], 0
        for j in range(i, len(self.tokens)):
            depth += (self[j] == opening) - (self[j] == closing)
            if depth == 0:
                return j
        raise Unclear

    def past(self, i: int) -> int:
        """The token after the statement that begins at i."""
        text = self[i]
        if text.startswith("#pragma"):
            return self.past(i + 1)
        if text == "{":
            return self.close(i) + 1
        if text in ("for", "while"):
            return self.past(self.close(i + 1) + 1)
        if text == "if":
            after = self.past(self.close(i + 1) + 1)
            return self.past(after + 1) if self[after] == "else" else after
        if text == "do":
            return self.close(self.past(i + 1) + 1) + 2
        while self[i] != ";":
            if self[i] in _OPENS:
                i = self.close(i)
            elif self[i] in ("}", "") or self[i].startswith("#"):
                raise Unclear
            i += 1
        return i + 1

    def statements(self) -> Iterator[int]:
        """Where statements without a body of their own begin, inside functions."""
        for first, past in self.bodies:
            for i in range(first, past):
                if self.begins(i) and self[i] not in ("{", "}", ";", "if", "for", "while", "do", "else", "return"):
                    yield i

    def begins(self, i: int) -> bool:
        """Whether a statement begins at i."""
        if self.tokens[i].kind not in ("name", "mark") or self[i] in (")", "]", "else"):
            return False
        before = self[i - 1]
        if before.startswith("#"):
            return not before.startswith("#define") and self[i - 1 - (before[:7] == "#pragma")] != ","
        if before in ("{", "}", "else", "do"):
            return self[i] not in (";", ",", ")") and not (before == "{" and self[i - 2] == "=")
        if before == ";":
            return not self._in_head(i)
        return before == ")" and self._after_head(i - 1)

    def open_of(self, i: int) -> int:
        """The bracket that the one at i closes."""
        depth = 0
        for j in range(i, -1, -1):
            depth += (self[j] == ")") - (self[j] == "(")
            if depth == 0:
                return j
        raise Unclear

    def _after_head(self, i: int) -> bool:
        return self[self.open_of(i) - 1] in ("if", "for", "while") or self[self.open_of(i) - 1] == "constexpr"

    def _in_head(self, i: int) -> bool:
        """Whether the semicolon before i stands between the brackets of a for."""
        depth = 0
        for j in range(i - 1, -1, -1):
            if self[j] in ("{", "}"):
                return False
            depth += (self[j] == ")") - (self[j] == "(")
            if depth < 0:
                return self[j - 1] == "for"
        return False

    def braced(self, i: int) -> bool:
        """Whether the statement at i stands among others, so that one more may stand before it."""
        before = i - 1
        while self[before].startswith("#pragma"):
            before -= 1
        return self[before] in ("{", "}", ";") and not self[before].startswith("#")

    def declaration(self, i: int) -> Declaration | None:
        """The declaration that begins at i, of a statement or in the head of a for."""
        first, words = i, set()
        while self[i] in ("const", "constexpr", "__shared__"):
            words.add(self[i])
            i += 1
        if self[i] not in TYPES:
            return None
        start = i
        while self[i] in TYPES:
            i += 1
        type_ = " ".join(self[j] for j in range(start, i))
        pointer = self[i] == "*"
        i += pointer
        names, plain = [], not words & {"constexpr", "__shared__"}
        while self.tokens[i].kind == "name":
            name, i = self[i], i + 1
            while self[i] == "[":
                plain, i = False, self.close(i) + 1
            start = i + 1 if self[i] == "=" else i
            while self[i] not in (",", ";"):
                i = self.close(i) + 1 if self[i] in _OPENS else i + 1
                if i >= len(self.tokens):
                    return None
            names.append((name, start, i))
            if self[i] == ";":
                const = "const" in words
                return Declaration(first, i + 1, type_, const, pointer, tuple(names), plain)
            i += 1
        return None

    def declarations(self) -> Iterator[Declaration]:
        """All inside functions, those in the heads of for loops among them."""
        for first, past in self.bodies:
            for i in range(first, past):
                head = self[i - 1] == "(" and self[i - 2] == "for"
                if (head or self.begins(i)) and (found := self.declaration(i)):
                    yield found

    def loops(self, word: str = "for") -> Iterator[int]:
        return (i for first, past in self.bodies for i in range(first, past) if self[i] == word and self.begins(i))

    def head(self, i: int) -> tuple[str, str, str, int]:
        """The three texts in the head of the for at i, and the token after its closing bracket."""
        close = self.close(i + 1)
        cuts = [i + 1]
        j = i + 2
        while j < close:
            if self[j] == ";":
                cuts.append(j)
            j = self.close(j) + 1 if self[j] in _OPENS else j + 1
        cuts.append(close)
        if len(cuts) != 4:
            raise Unclear
        first, second, third = (self.slice(a + 1, b) for a, b in itertools.pairwise(cuts))
        return first, second, third, close + 1

    def slice(self, first: int, past: int) -> str:
        """The text of some tokens, with what lies between them."""
        return self.text[self.tokens[first].start : self.tokens[past - 1].end] if past > first else ""

    def names(self, first: int, past: int) -> set[str]:
        return {self[i] for i in range(first, past) if self.tokens[i].kind == "name"}

    def changed(self, name: str) -> bool:
        """Whether anything is assigned to name after its declaration, or its address may be taken."""
        declared = {token for each in self.declarations() for token in self._name_places(each)}
        for i, token in enumerate(self.tokens):
            if token.text == name and i not in declared:
                after = i + 1
                while self[after] == "[":
                    after = self.close(after) + 1
                if self[after] in CHANGES or self[i - 1] in ("++", "--", "&"):
                    return True
        return False

    def _name_places(self, each: Declaration) -> list[int]:
        return [i for i in range(each.first, each.past) if self[i] in {name for name, _, _ in each.names}]

    def edited(self, edits: Sequence[tuple[int, int, str]]) -> str:
        """The text with tokens first ... past - 1 replaced, for each edit (first, past, text); none overlap."""
        text, pieces, at = self.text, [], 0
        for first, past, new in sorted(edits):
            start = self.tokens[first].start if first < len(self.tokens) else len(text)
            pieces += [text[at:start], new]
            at = self.tokens[past - 1].end if past > first else start
        return "".join([*pieces, text[at:]])


@dataclass(frozen=True)
class Kernel:
    """What a rewrite must know: the language, names it may not touch or take, the parameters that are integers."""

    cuda: bool
    kept: frozenset[str]
    taken: frozenset[str]
    params: dict[str, int]
    rng: np.random.Generator

    def pick(self, options: Sequence):
        return options[int(self.rng.integers(len(options)))]

    def some(self, options: Sequence, share: float = 0.5) -> list:
        """At least one of the options, each of the others with this chance."""
        sure = int(self.rng.integers(len(options)))
        return [each for i, each in enumerate(options) if i == sure or self.rng.random() < share]

    def fresh(self, role: str, source: Source) -> str:
        used = self.taken | set(WORDS.findall(source.text))
        pool = [name for name in NAMES.get(role, "").split() if name not in used and name != "l"]
        if pool:
            return self.pick(pool)
        return next(name for i in range(99) for name in [f"{NAMES[role].split()[0]}{i}"] if name not in used)


def tidy(text: str) -> str:
    """Lines indented by the braces and heads they stand in, braces behind their heads, directives at the margin."""
    lines: list[str] = []
    blocks: list[int] = []  # the level of the line that opened each
    conditions: list[int] = []
    heads: dict[int, int] = {}
    hanging = 0  # heads without braces right before a line; `conditions` as it was at each #if, `heads` at the last if
    for bare in filter(None, (line.strip() for line in text.split("\n"))):
        if bare.startswith("#"):
            conditions += [hanging] if bare.startswith("#if") else []
            if bare.startswith(("#el", "#endif")) and conditions:
                hanging = conditions[-1] if bare.startswith("#el") else hanging
                conditions = conditions[:-1] if bare.startswith("#endif") else conditions
            lines.append(bare)
            continue
        code = re.sub(r"//.*|/\*.*?\*/", "", bare).strip()
        if bare == "{" and hanging and lines and lines[-1][-1] in ")eo":
            lines[-1] += " {"
            blocks.append((len(lines[-1]) - len(lines[-1].lstrip())) // 4)
            hanging = 0
            continue
        if code.startswith("else"):
            hanging = heads.get(len(blocks), 0)
        level = blocks.pop() if code.startswith("}") and blocks else (blocks[-1] + 1 if blocks else 0) + hanging
        lines.append("    " * level + bare)
        if code.startswith("if") or "else if" in code:
            heads[len(blocks)] = hanging if not code.startswith("}") else 0
        opened = code.count("{") - code.count("}") + code.startswith("}")
        blocks += [level] * max(opened, 0)
        for _ in range(-opened):
            blocks[-1:] = []
        open_head = re.match(r"(\}\s*)?(else\b|for\b|if\b|while\b|do\b)", code) and code[-1] not in "{;}"
        hanging = hanging + 1 if open_head else hanging if not code else 0
    return "\n".join(lines)
