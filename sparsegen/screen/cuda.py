"""What a kernel's source may say, read before any compiler sees it. The C++ half is `cpp`.

The compilers run fenced; the screen refuses what a fence cannot judge, or would pay for with its whole time limit:
reading files, assembly, state that outlives a launch, and macros that grow. It reads what the compiler will read (with
spliced lines, without comments), and where two compilers could read differently (trigraphs, `%:`, raw strings, stray
control characters) it refuses rather than guesses.
"""

from __future__ import annotations

import bisect
import itertools
import re
from dataclasses import dataclass
from functools import cache

from sparsegen import prelude
from sparsegen.screen import assembly

MOST_SOURCE = 1 << 16  # characters
MOST_EXPANDED = 1 << 20  # characters after all macros
MOST_TOKEN = 1 << 10
MOST_DEPTH = 100
MOST_UNROLL = 1 << 12

_DIRECTIVES = {"define", "undef", "if", "ifdef", "ifndef", "elif", "else", "endif", "pragma"}
_HEADERS = {"<cuda_fp16.h>", "<cuda_bf16.h>", '"cuda_fp16.h"', '"cuda_bf16.h"'}
_NEVER = re.compile(
    r"asm|__asm(__)?|_Pragma|__pragma|__has_\w+|__FILE__|__BASE_FILE__|__DATE__|__TIME__|__TIMESTAMP__|__INCLUDE_LEVEL__"
    r"|__COUNTER__|__VA_OPT__|import|module"
)
_NOT_IN_KERNELS = re.compile(
    r"template|constexpr|consteval|constinit|decltype|static|thread_local|__constant__|__managed__|__attribute__"
    r"|__declspec|__host__|new|delete|malloc|free|printf|assert|__assert_fail|try|throw|cuda[A-Z]\w*"
)
_SIGNATURE = {
    "VALUE", "STORED", "ACC", "INDEX", "OFFSET", "LOCAL", "SIZES", "SCRATCH_ARRAYS", "CONSTANT_VALUES", "CHECK_FINITE",
}  # fmt: skip
_SCOPES = {"__device__", "__global__", "__shared__"}
_OPEN, _CLOSE = ("(", "[", "{"), (")", "]", "}")
_TOKEN = re.compile(
    r"""(?P<blank>[ \t]+|//[^\n]*|/\*.*?\*/)
      | (?P<newline>\n)
      | (?P<string>(?:u8|[uUL])?"(?:[^"\\\n]|\\.)*")
      | (?P<char>(?:u8|[uUL])?'(?:[^'\\\n]|\\.)+')
      | (?P<number>\.?[0-9](?:[eEpP][+-]|'[0-9A-Za-z_]|[0-9A-Za-z_.])*)
      | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<mark>\#\#|%:|::|\.\.\.|[][(){}<>;:,?~!=+\-*/%&|^.\#])""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)


class Refused(Exception):
    """Why a source is not let through, in one sentence."""


@dataclass(frozen=True)
class Token:
    kind: str  # string, char, number, name, mark
    text: str
    line: int
    first: bool  # of its line: here a # begins a directive
    spaced: bool  # after blank space: `F (x)` defines an object, `F(x)` a function


def spliced(source: str) -> tuple[str, list[int]]:
    """The source with continued lines joined, and where in it each line was joined."""
    pieces = source.split("\\\n")
    joins, length = [], 0
    for piece in pieces[:-1]:
        length += len(piece)
        joins.append(length)
    return "".join(pieces), joins


def tokens(source: str) -> list[Token]:
    """The tokens that a preprocessor sees. Raises Refused for text that compilers may read in two ways."""
    if odd := re.search(r"[\x00-\x08\x0b-\x1f\x7f]", source):
        raise Refused(f"line {_line(source, odd.start())}: the character {odd.group()!r}")
    if odd := re.search(r"\?\?[=/'()!<>-]|\\[ \t]+\n", source):
        raise Refused(f"line {_line(source, odd.start())}: a trigraph, or blank space after a backslash")
    if len(source) > MOST_SOURCE:
        raise Refused(f"the source has {len(source)} characters; at most {MOST_SOURCE}")
    text, joins = spliced(source)
    found: list[Token] = []
    position, first, spaced, newlines = 0, True, False, 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        line = 1 + newlines + bisect.bisect_right(joins, position)
        if not match:
            raise Refused(f"line {line}: {text[position : position + 12]!r} is not a token of the language")
        kind, word = str(match.lastgroup), match.group()
        position = match.end()
        if kind in ("blank", "newline"):
            newlines += word.count("\n")
            first, spaced = first or kind == "newline", True
            continue
        if len(word) > MOST_TOKEN:
            raise Refused(f"line {line}: a token of {len(word)} characters; at most {MOST_TOKEN}")
        if kind == "string" and found and found[-1].text in ("R", "LR", "uR", "UR", "u8R") and not spaced:
            raise Refused(f"line {line}: a raw string")
        if word == "%:":
            raise Refused(f"line {line}: '%:' for '#'")
        found.append(Token(kind, word, line, first, spaced))
        first = spaced = False
    return found


def lines(found: list[Token]) -> tuple[list[list[Token]], list[Token]]:
    """Directives, each without its #, and all other tokens. Raises Refused for a # anywhere else."""
    directives: list[list[Token]] = []
    rest: list[Token] = []
    inside = False
    for token in found:
        if token.first:
            inside = token.text == "#"
            if inside:
                directives.append([])
                continue
        if token.text in ("#", "##"):
            raise Refused(f"line {token.line}: '{token.text}' inside a line")
        (directives[-1] if inside else rest).append(token)
    return directives, rest


def check(source: str, *, fp_headers: bool = False) -> str | None:
    """One sentence why this CUDA source is not compiled, or None.

    A kernel file includes nothing, keeps nothing between launches, and needs no templates. `fp_headers` is for foreign
    sources, which may include the half-precision headers and use the rest of the language.
    """
    try:
        found = tokens(source)
        directives, rest = lines(found)
        for directive in directives:
            _directive(directive, fp_headers)
            _depth(directive)
        _words(found, foreign=fp_headers)
        _depth(rest)
        _unrolled(found)
        if not fp_headers:
            _stateless(rest)
        conditions = [token for directive in directives if directive[0].text in ("if", "elif") for token in directive]
        macros = _Macros(directives if fp_headers else [*_prelude(), *directives])
        expanded = macros.size(rest) + macros.size(_without_defined(conditions))
        if expanded > MOST_EXPANDED:
            return f"the macros expand to some {expanded:.0e} characters; at most {MOST_EXPANDED}"
    except Refused as refused:
        return str(refused)
    return None


def _line(source: str, position: int) -> int:
    return source.count("\n", 0, position) + 1


@cache
def _prelude() -> list[list[Token]]:
    return [each for each in lines(tokens(prelude.text("cuda")))[0] if each[0].text == "define"]


def _directive(directive: list[Token], fp_headers: bool) -> None:
    name = directive[0].text if directive else ""
    line = f"line {directive[0].line}: " if directive else ""
    argument = "".join(token.text for token in directive[1:])
    if name == "include" and fp_headers and argument in _HEADERS:
        return
    if name not in _DIRECTIVES:
        raise Refused(f"{line}the directive #{name[:40]}; a kernel may use define, undef, if to endif, pragma unroll")
    if name == "pragma" and not re.fullmatch(r"unroll(\d{1,4}|\(?[A-Z_][A-Z0-9_]*\)?|\(\d{1,4}\))?|nounroll", argument):
        raise Refused(f"{line}#pragma {argument[:40]}; only #pragma unroll, with a number or a parameter")
    if name in ("define", "undef") and not fp_headers:
        if len(directive) > 1 and directive[1].text in _SIGNATURE | {each[1].text for each in _prelude()}:
            raise Refused(f"{line}#{name} of {directive[1].text}, which is the prelude's")
        if _SCOPES & {token.text for token in directive}:
            raise Refused(f"{line}a macro that declares functions or variables")


def _without_defined(found: list[Token]) -> list[Token]:
    """Without the names that #if only asks about, which are not expanded."""
    texts = ["", "", *(token.text for token in found)]
    return [
        token
        for token, one, two in zip(found, texts[1:], texts, strict=False)
        if one != "defined" and not (one == "(" and two == "defined")
    ]


def _words(found: list[Token], foreign: bool) -> None:
    for i, token in enumerate(found):
        if token.kind != "name":
            continue
        if foreign and token.text in ("asm", "__asm__"):
            _assembly(found[i + 1 : i + 200], token.line)
            continue
        if _NEVER.fullmatch(token.text) or (not foreign and _NOT_IN_KERNELS.fullmatch(token.text)):
            raise Refused(f"line {token.line}: {token.text[:40]!r} is not for kernels")
        if token.text == "extern" and not foreign:
            after = found[i + 1].text if i + 1 < len(found) else ""
            if after not in ('"C"', "__shared__"):
                raise Refused(f"line {token.line}: 'extern' without \"C\" or __shared__")


def _assembly(after: list[Token], line: int) -> None:
    """asm volatile("instructions" : operands): the text is in plain literals, where it can be read."""
    texts = [token.text for token in after]
    start = 1 if texts[:1] in (["volatile"], ["__volatile__"]) else 0
    literals = list(itertools.takewhile(lambda token: token.kind == "string", after[start + 1 :]))
    end = texts[start + 1 + len(literals) : start + 2 + len(literals)]
    if texts[start : start + 1] != ["("] or end not in ([":"], ["::"], [")"]):
        raise Refused(f"line {line}: 'asm' is not for kernels, but for instructions in plain text")
    if any(not token.text.startswith('"') for token in literals):
        raise Refused(f"line {line}: a prefixed string in assembly")
    reason = assembly.check("".join(token.text[1:-1] for token in literals))
    if reason:
        raise Refused(f"line {line}: {reason}")


def _depth(found: list[Token]) -> None:
    depth = 0
    for token in found:
        depth += (token.text in _OPEN) - (token.text in _CLOSE)
        if depth > MOST_DEPTH:
            raise Refused(f"line {token.line}: brackets nested more than {MOST_DEPTH} deep")


def _unrolled(found: list[Token]) -> None:
    """A bare unroll of a loop with a bound in the ten thousands is code of that many bodies."""
    for i, token in enumerate(found):
        if token.text != "unroll" or (i + 1 < len(found) and not found[i + 1].first):
            continue
        for each in itertools.takewhile(lambda each: each.text not in ("{", ")"), found[i + 1 : i + 60]):
            digits = re.match(r"0[xX][0-9a-fA-F]+|[0-9]+", each.text.replace("'", ""))
            if digits and int(digits[0], 16 if digits[0][:2] in ("0x", "0X") else 10) > MOST_UNROLL:
                raise Refused(
                    f"line {token.line}: unrolls a loop with the bound {digits[0][:20]}; at most {MOST_UNROLL}"
                )


def _stateless(found: list[Token]) -> None:
    """Outside of functions stand only functions with a body, types and constants: nothing outlives a launch."""
    i = 0
    while i < len(found):
        start = i
        depth = 0
        while i < len(found) and (depth > 0 or found[i].text not in ("{", "}", ";", "=")):
            depth += (found[i].text in ("(", "[")) - (found[i].text in (")", "]"))
            i += 1
        words = [token.text for token in found[start:i]]
        mark = found[i].text if i < len(found) else ""
        if mark == "}" or words in ([], ["extern", '"C"']):  # the braces of extern "C" are not a scope
            i += 1
            continue
        end = _past(found, i)
        if mark == "{" and _declares_function(words):
            i = end
        elif (_SCOPES | {"extern"}) & {token.text for token in found[start:end]}:
            line = found[start].line
            raise Refused(f"line {line}: outside of functions stand only functions with a body, types and constants")
        i = end


def _declares_function(words: list[str]) -> bool:
    """Whether these words before a brace are the head of a function rather than of a variable."""
    if not {"__device__", "__global__"} & set(words) or words[-1] != ")":
        return False
    depth = 0
    for i in reversed(range(len(words))):
        depth += (words[i] == ")") - (words[i] == "(")
        if depth == 0:
            inner = words[i + 1 : -1]
            return i > 0 and (not inner or (len(inner) > 1 and inner[0] not in "*&("))
    return False


def _past(found: list[Token], i: int) -> int:
    """The position after the statement or body that goes on at i."""
    depth = 0
    while i < len(found):
        text = found[i].text
        depth += (text in _OPEN) - (text in _CLOSE)
        i += 1
        if depth <= 0 and text in ("}", ";"):
            break
    return i


class _Macros:
    """How long text gets when its macros are expanded: an upper bound, linear in the sizes of arguments."""

    def __init__(self, directives: list[list[Token]]):
        self.bodies: dict[str, list[tuple[list[str] | None, list[Token]]]] = {}
        for directive in directives:
            if directive[0].text == "define" and len(directive) > 1:
                name, body = directive[1], directive[2:]
                parameters = None
                if body and body[0].text == "(" and not body[0].spaced:
                    close = next((i for i, token in enumerate(body) if token.text == ")"), len(body) - 1)
                    parameters = [token.text for token in body[1:close] if token.text != ","]
                    parameters = ["__VA_ARGS__" if each == "..." else each for each in parameters]
                    body = body[close + 1 :]
                self.bodies.setdefault(name.text, []).append((parameters, body))
        self.functions = {n for n, all_ in self.bodies.items() if any(p is not None for p, _ in all_)}
        self.known: dict[str, tuple[float, list[float]]] = {}

    def size(self, found: list[Token]) -> float:
        return self._linear(found, {}, ())[0]

    def _linear(self, found: list[Token], parameters: dict[str, int], inside: tuple[str, ...]) -> tuple:
        """Characters of the expanded text: a constant, and one coefficient per parameter."""
        constant, factors = 0.0, [0.0] * (max(parameters.values(), default=-1) + 1)
        i = 0
        while i < len(found):
            token = found[i]
            i += 1
            if token.text in parameters:
                factors[parameters[token.text]] += 1
            elif token.kind != "name" or token.text not in self.bodies:
                constant += len(token.text) + 1
            else:
                own, per_argument = self._macro(token, inside)
                constant += own
                if token.text in self.functions:
                    arguments, i = self._arguments(found, i, token)
                    for k, argument in enumerate(arguments):
                        times = per_argument[min(k, len(per_argument) - 1)] if per_argument else 0.0
                        more, through = self._linear(argument, parameters, inside)
                        constant += times * more
                        factors = [a + times * b for a, b in zip(factors, through, strict=True)]
            if constant > 1e30 or any(factor > 1e30 for factor in factors):
                return 1e30, [1e30] * len(factors)
        return constant, factors

    def _macro(self, token: Token, inside: tuple[str, ...]) -> tuple[float, list[float]]:
        name = token.text
        if name in inside or len(inside) > 64:
            raise Refused(f"line {token.line}: the macro {name[:40]} expands to itself, or through too many others")
        if name not in self.known:
            constant, factors = 0.0, [0.0]
            for parameters, body in self.bodies[name]:
                places = {each: i for i, each in enumerate(parameters or [])}
                own, each = self._linear(body, places, (*inside, name))
                constant, count = max(constant, own), max(len(factors), len(each))
                factors = [max(a, b) for a, b in zip(_pad(factors, count), _pad(each, count), strict=True)]
            self.known[name] = constant, factors
        return self.known[name]

    def _arguments(self, found: list[Token], i: int, token: Token) -> tuple[list[list[Token]], int]:
        if i == len(found) or found[i].text != "(":
            raise Refused(f"line {token.line}: the macro {token.text[:40]} without arguments")
        arguments: list[list[Token]] = [[]]
        depth = 0
        for end in range(i, len(found)):
            text = found[end].text
            depth += (text == "(") - (text == ")")
            if depth == 0:
                return arguments, end + 1
            if text == "," and depth == 1:
                arguments.append([])
            elif end > i:
                arguments[-1].append(found[end])
        raise Refused(f"line {token.line}: the arguments of {token.text[:40]} have no end")


def _pad(numbers: list[float], count: int) -> list[float]:
    return numbers + [0.0] * (count - len(numbers))
