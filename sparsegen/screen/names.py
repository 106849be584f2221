"""What a C++ kernel finds defined before its first line: types, functions, macros and integers, read from the prelude.

Also the variants of a source: its tokens for every value that a tune list or the machine may give its conditions.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from sparsegen import formats, prelude
from sparsegen.candidate import Candidate, instances
from sparsegen.problem import Pattern, Problem
from sparsegen.screen.tokens import Directive, Refused, Token, fold, live, refusal, tokenize, words

MOST_VARIANTS = 256
LANES = (2, 4, 8, 16)
FLAGS = ("CONSTANT_VALUES", "CHECK_FINITE", "B_BY_ROW", "C_BY_ROW")
_DEFINE = re.compile(r"\s*(\w+)(\(([^)]*)\))?(.*)", re.DOTALL)

Guards = tuple[tuple[tuple[Token, ...], bool], ...]


@dataclass(frozen=True)
class Type:
    """Of an expression. levels: how often it can be dereferenced. bounds: of an integer constant."""

    name: str
    levels: int = 0
    const: bool = False
    vector: bool = False
    element: bool = False  # in memory: its address may be taken
    bounds: tuple[int, int] | None = None


def bounds_of(operator: str, left: tuple[int, int] | None, right: tuple[int, int] | None) -> tuple[int, int] | None:
    """Bounds of an integer constant; None for what is not simple arithmetic within 31 bits."""
    if left is None or right is None or (operator == "/" and right[0] <= 0):
        return None
    compute = {
        "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": lambda a, b: int(a / b),
    }.get(operator)  # fmt: skip
    if compute is None:
        return None
    corners = [compute(a, b) for a in left for b in right]
    return (min(corners), max(corners)) if max(map(abs, corners)) < 2**31 else None


@dataclass(frozen=True)
class Function:
    result: Type
    params: tuple[tuple[str, bool], ...]  # name, whether a pointer


@dataclass(frozen=True)
class Definition:
    """One #define. guards: the conditions it stands under, and what each must be."""

    params: tuple[str, ...] | None
    body: tuple[Token, ...]
    guards: Guards = ()


@dataclass
class Names:
    types: dict[str, bool] = field(default_factory=dict)  # name -> whether a vector
    functions: dict[str, Function] = field(default_factory=dict)
    macros: dict[str, list[Definition]] = field(default_factory=dict)
    integers: dict[str, tuple[int, ...]] = field(default_factory=dict)  # every value each may have
    baked: frozenset[str] = frozenset()

    def __contains__(self, name: object) -> bool:
        return any(name in table for table in (self.types, self.functions, self.macros, self.integers, self.baked))


def of(candidate: Candidate) -> Names:
    """The names defined for a candidate; a template's stand for all its instances."""
    one = next(instances(candidate))
    index = np.zeros(2, np.int32)
    problem = Problem(candidate.op, Pattern((1, 1), index, index[:0]))
    modules = [formats.get(part.format) for part in candidate.parts]
    packs = [formats.Packed({}, 0, 0, baked=dict.fromkeys(module.BAKED, "0")) for module in modules]
    baked = frozenset(name for module in modules for name in module.BAKED)
    names = Names(baked=baked)
    for name, value in prelude.macros(one, problem, packs).items():
        if value.isdigit() and name not in baked:
            names.integers[name] = (int(value),)
        elif re.fullmatch(r"[A-Za-z_]\w*", value):
            names.types[name] = False
        elif name not in baked:
            names.macros[name] = [Definition(None, _body(value))]
    names.integers |= {"LANES": LANES} | dict.fromkeys(FLAGS, (0, 1))
    for name, values in candidate.tune.items():
        if name != "values":
            names.integers[name] = tuple(sorted({int(value) for value in values}))
    return _scan(prelude.text(candidate.language), names)


@functools.lru_cache(maxsize=4096)  # most are the prelude's, the same for every candidate
def _body(text: str) -> tuple[Token, ...]:
    return tuple(item for item in tokenize(text, ours=True) if isinstance(item, Token))


@functools.cache
def _items(text: str) -> tuple[Token | Directive, ...]:
    return tuple(tokenize(text, ours=True))


def _scan(text: str, names: Names) -> Names:
    """Add what the prelude defines, in whichever branch of its conditions."""
    code: list[Token] = []
    levels: list[list[tuple[tuple[Token, ...], bool]]] = []
    for item in _items(text):
        if isinstance(item, Token):
            code.append(item)
        elif item.word == "define":
            name, bracket, params, body = _DEFINE.fullmatch(item.rest).groups()  # type: ignore[union-attr]
            if name in names.integers:
                raise Refused(f"the parameter {name} has the name of a macro of the prelude")
            listed = tuple(each.strip() for each in params.split(",") if each.strip()) if bracket else None
            guards = tuple(guard for level in levels for guard in level)
            names.macros.setdefault(name, []).append(Definition(listed, _body(body), guards))
        elif item.word in ("if", "ifdef", "ifndef"):
            levels.append([(tuple(words(item, ours=True)), True)])
        elif item.word in ("elif", "else"):
            levels[-1][-1] = (levels[-1][-1][0], False)
            if item.word == "elif":
                levels[-1].append((tuple(words(item, ours=True)), True))
        elif item.word == "endif":
            levels.pop()
    for statement in _statements(code):
        _declare(statement, names)
    for definitions in names.macros.values():
        definitions[:] = [each for each in definitions if _possible(each, names)]
    names.macros = {name: definitions for name, definitions in names.macros.items() if definitions}
    return names


def _possible(definition: Definition, names: Names) -> bool:
    tokens = itertools.chain(*(guard for guard, _ in definition.guards))
    return any(_stand(names, known, definition.guards) for known in _combinations(tokens, names))


def _statements(code: list[Token]) -> Iterator[list[Token]]:
    """Split at every ; and after every body outside brackets."""
    statement: list[Token] = []
    depth = 0
    for position, token in enumerate(code):
        statement.append(token)
        depth += (token.text in "([{") - (token.text in ")]}") if token.kind == "op" else 0
        following = code[position + 1].text if position + 1 < len(code) else ""
        if depth == 0 and (token.text == ";" or (token.text == "}" and following != ";")):
            yield statement
            statement = []


def _declare(statement: list[Token], names: Names) -> None:
    tokens = _outside(statement)
    texts = [token.text for token in tokens]
    words_ = [token.text for token in tokens if token.kind == "name"]
    if texts[:1] == ["typedef"]:
        every = {token.text for token in statement}
        names.types[words_[-1]] = "vector_size" in every or any(names.types.get(each) for each in every)
    elif "(" in texts and "{" in texts and "struct" not in texts:
        head = texts[: texts.index("(")]
        result = [text for text in head[:-1] if re.match(r"\w", text)][-1]
        inner = statement[next(i for i, token in enumerate(statement) if token is tokens[len(head)]) + 1 :]
        names.functions[head[-1]] = Function(
            Type(result, int("*" in head), const="const" in head, vector=names.types.get(result, False)), _params(inner)
        )


def _outside(statement: list[Token]) -> list[Token]:
    """Tokens outside brackets, with the opening ones; attributes and template heads dropped."""
    kept: list[Token] = []
    depth = 0
    start = 0
    if statement[0].text == "template":
        start = next(i for i, token in enumerate(statement) if token.text == ">") + 1
    for token in statement[start:]:
        if depth == 0 and not (kept and kept[-1].text == "__attribute__" and token.text == "("):
            kept.append(token)
        elif depth == 0:
            kept.pop()
        depth += (token.text in "([{") - (token.text in ")]}") if token.kind == "op" else 0
    return kept


def _params(tokens: list[Token]) -> tuple[tuple[str, bool], ...]:
    """Names and pointerness of parameters, from after ( to its )."""
    params: list[tuple[str, bool]] = []
    current: list[Token] = []
    depth = 0
    for token in tokens:
        depth += (token.text in "([{") - (token.text in ")]}") if token.kind == "op" else 0
        if depth < 0 or (token.text == "," and depth == 0):
            if current:
                names = [each.text for each in current if each.kind == "name"]
                params.append((names[-1], any(each.text in ("*", "[") for each in current)))
            current = []
            if depth < 0:
                break
        else:
            current.append(token)
    return tuple(params)


class _Unknown(Exception):
    """A name of a condition has no value when a kernel is read."""


def variants(source: str, names: Names) -> Iterator[list[Token]]:
    """The tokens of a source, once for every combination of the values that its conditions depend on."""
    items = tokenize(source)
    conditions = [words(item) for item in items if isinstance(item, Directive) and item.word in ("if", "elif")]
    seen = set()
    for known in _combinations(itertools.chain(*conditions), names):
        tokens = live(items, functools.partial(_holds, names, known))
        if (key := tuple((token.text, token.line) for token in tokens)) not in seen:
            seen.add(key)
            yield tokens


def _combinations(tokens: Iterable[Token], names: Names) -> Iterator[dict[str, int]]:
    """Every choice of the integers that tokens depend on, through macros and their guards."""
    found: set[str] = set()
    waiting = {token.text for token in tokens if token.kind == "name"}
    while waiting:
        name = waiting.pop()
        found.add(name)
        for definition in names.macros.get(name, ()):
            parts = itertools.chain(definition.body, *(guard for guard, _ in definition.guards))
            waiting |= {token.text for token in parts if token.kind == "name"} - found
    used = sorted(found & set(names.integers))
    if math.prod(len(names.integers[name]) for name in used) > MOST_VARIANTS:
        raise Refused(f"the #if lines depend on more than {MOST_VARIANTS} combinations of {', '.join(used)}")
    for chosen in itertools.product(*(names.integers[name] for name in used)):
        yield dict(zip(used, chosen, strict=True))


def _holds(names: Names, known: dict[str, int], condition: list[Token]) -> bool:
    """The truth of a condition of the kernel; every name in it must be known."""
    try:
        return bool(fold(condition, functools.partial(_lookup, names, known), functools.partial(_defined, names)))
    except _Unknown as unknown:
        raise refusal(condition[0].line, str(unknown), "is not known when a kernel is read") from None


def _stand(names: Names, known: dict[str, int], guards: Guards) -> bool:
    """Whether every condition of the prelude around a definition holds; what is not known is taken to."""

    def lookup(token: Token) -> int:
        undefined = token.text not in names and not token.text.startswith("_")
        return 0 if undefined else _lookup(names, known, token)

    def defined(name: str) -> bool:
        return name in names if not name.startswith("_") else _defined(names, name)

    for condition, wanted in guards:
        try:
            if bool(fold(list(condition), lookup, defined)) != wanted:
                return False
        except (_Unknown, Refused):
            continue
    return True


def _lookup(names: Names, known: dict[str, int], token: Token) -> int:
    if token.text in known:
        return known[token.text]
    bodies = [each.body for each in names.macros.get(token.text, ()) if _stand(names, known, each.guards)]
    if len(bodies) != 1 or not bodies[0]:
        raise _Unknown(token.text)
    return fold(list(bodies[0]), functools.partial(_lookup, names, known), functools.partial(_defined, names))


def _defined(names: Names, name: str) -> bool:
    if name not in names.integers and name not in names.types:
        raise _Unknown(name)
    return True
