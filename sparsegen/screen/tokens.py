"""The tokens of a C++ kernel and its conditional lines, read strictly: what a compiler could read otherwise is refused.

Refused are backslashes (line splices), digraphs, trigraphs, string and character literals other than the "C" after
extern, characters beyond ASCII, and every directive but #if, #elif, #else, #endif and #pragma GCC unroll or ivdep.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

_OTHER = re.compile(r"[^\x20-\x7e\n\t]|\\")
_TOKEN = re.compile(
    r"""(?P<space>[ \t]+) | (?P<newline>\n) | (?P<comment>//[^\n]*|/\*.*?\*/) | (?P<extern>extern[ \t]+"C")
    | (?P<name>[A-Za-z_][A-Za-z0-9_]*) | (?P<number>\.?[0-9](?:[eE][+-]|[A-Za-z0-9_.])*)
    | (?P<refused><:|:>|<%|%>|%:|\?\?|/\*|["'`@$])
    | (?P<op><<=|>>=|\.\.\.|->|::|\+\+|--|&&|\|\||==|!=|<=|>=|<<|>>|[-+*/%&|^]=|[-+*/%&|^~!<>=?:;,.()\[\]{}])
    | (?P<hash>\#[ \t]*(?P<word>\w*)(?P<rest>[^\n]*))""",
    re.VERBOSE | re.DOTALL,
)
_NUMBER = re.compile(
    r"0[xX][0-9a-fA-F]+[uU]?[lL]{0,2}|0[bB][01]+[uU]?[lL]{0,2}|[0-9]+[uU]?[lL]{0,2}"
    r"|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[fF]?|[0-9]+[eE][+-]?[0-9]+[fF]?"
)
_PRAGMA = re.compile(r"[ \t]+GCC[ \t]+(ivdep|unroll[ \t]+\(?[0-9]{1,3}\)?)[ \t]*")
_DECIMAL = re.compile(r"0|[1-9][0-9]{0,17}")
_PRECEDENCE = {
    "||": 1, "&&": 2, "|": 3, "^": 4, "&": 5, "==": 6, "!=": 6, "<": 7, ">": 7, "<=": 7, ">=": 7,
    "+": 8, "-": 8, "*": 9, "/": 9, "%": 9,
}  # fmt: skip


class Refused(Exception):
    """One sentence with the line and the token."""


@dataclass(frozen=True)
class Token:
    """kind: name, number, op, extern or end. ours: written by the prelude, not by the kernel."""

    kind: str
    text: str
    line: int
    ours: bool = False


@dataclass(frozen=True)
class Directive:
    word: str
    rest: str
    line: int


def tokenize(source: str, ours: bool = False, line: int = 1) -> list[Token | Directive]:
    """Tokens and directives of a source, comments dropped."""
    if ours:
        source = source.replace("\\\n", " ")
    elif found := _OTHER.search(source):
        raise refusal(source.count("\n", 0, found.start()) + line, found.group(), "is not a character of kernels")
    items: list[Token | Directive] = []
    position, first = 0, True
    while position < len(source):
        found = _TOKEN.match(source, position)
        if not found or found.lastgroup == "refused":
            raise refusal(line, source[position : position + 2].strip(), "is not a token of the kernel language")
        text, kind = found.group(), str(found.lastgroup)
        if found.group("hash") is not None:
            if not first or ("/*" in found.group("rest") and not ours):
                raise refusal(line, text.strip(), "must stand alone on its line")
            items.append(_directive(found.group("word"), found.group("rest").partition("//")[0], line, ours))
        elif kind in ("name", "number", "op", "extern"):
            if kind == "number" and not _NUMBER.fullmatch(text):
                raise refusal(line, text, "is not a number")
            items.append(Token(kind, text, line, ours))
        first = kind == "newline" or (first and kind in ("space", "comment"))
        line += text.count("\n")
        position = found.end()
    return items


def _directive(word: str, rest: str, line: int, ours: bool) -> Directive:
    known = word in ("if", "elif", "else", "endif") or (word == "pragma" and _PRAGMA.fullmatch(rest))
    if not known and not ours:
        raise refusal(line, f"#{word}{rest}".rstrip(), "is not a directive of the kernel language")
    return Directive(word, rest, line)


def scan(text: str, position: int) -> re.Match[str] | None:
    """The token that begins at a position: the group that matched is its kind, "refused" what no kernel holds."""
    return _TOKEN.match(text, position)


def is_number(text: str) -> bool:
    return _NUMBER.fullmatch(text) is not None


def refusal(line: int, text: str, why: str) -> Refused:
    return Refused(f"line {line}: {text[:60]!r} {why}")


def words(directive: Directive, ours: bool = False) -> list[Token]:
    """The tokens of the condition after #if or #elif."""
    return [item for item in tokenize(directive.rest, ours, directive.line) if isinstance(item, Token)]


def live(items: Iterable[Token | Directive], holds: Callable[[list[Token]], bool]) -> list[Token]:
    """The tokens that are compiled, where holds(condition) decides."""
    tokens: list[Token] = []
    stack: list[list[bool]] = []  # for each open #if: this branch is read, one was already read, #else was seen
    for item in items:
        reading = all(branch[0] for branch in stack)
        if isinstance(item, Token):
            if reading:
                tokens.append(item)
        elif item.word == "if":
            value = reading and holds(words(item))
            stack.append([value, value, False])
        elif item.word != "pragma":
            if not stack or (stack[-1][2] and item.word != "endif") or (item.word != "elif" and item.rest.strip()):
                raise refusal(item.line, f"#{item.word}{item.rest}".rstrip(), "belongs to no #if")
            outer = all(branch[0] for branch in stack[:-1])
            if item.word == "endif":
                stack.pop()
            elif item.word == "else":
                stack[-1] = [not stack[-1][1], True, True]
            else:
                value = outer and not stack[-1][1] and holds(words(item))
                stack[-1] = [value, stack[-1][1] or value, False]
    if stack:
        raise Refused("the source ends inside an #if")
    return tokens


def fold(tokens: list[Token], lookup: Callable[[Token], int], defined: Callable[[str], bool]) -> int:
    """The value of a condition, as the preprocessor computes it. lookup gives that of a name."""
    position = 0

    def take(text: str | None = None) -> Token:
        nonlocal position
        if position >= len(tokens) or text not in (None, tokens[position].text):
            line = tokens[0].line if tokens else 0
            raise refusal(line, " ".join(token.text for token in tokens), "is not a condition")
        position += 1
        return tokens[position - 1]

    def unary(depth: int) -> int:
        token = take()
        if depth > 40:
            raise refusal(token.line, token.text, "is nested too deeply")
        if token.text in ("!", "-", "+"):
            value = unary(depth + 1)
            return int(not value) if token.text == "!" else -value if token.text == "-" else value
        if token.text == "(":
            value = binary(1, depth + 1)
            take(")")
            return value
        if token.text == "defined":
            bracket = tokens[position : position + 1] and tokens[position].text == "("
            if bracket:
                take("(")
            name = take()
            if bracket:
                take(")")
            return int(defined(name.text))
        if token.kind == "number" and _DECIMAL.fullmatch(token.text):
            return int(token.text)
        if token.kind == "name":
            return lookup(token)
        raise refusal(token.line, token.text, "cannot stand in a condition")

    def binary(minimum: int, depth: int) -> int:
        left = unary(depth)
        while position < len(tokens) and _PRECEDENCE.get(tokens[position].text, 0) >= minimum:
            operator = take()
            left = apply(operator, left, binary(_PRECEDENCE[operator.text] + 1, depth + 1))
            if not -(2**63) <= left < 2**63:
                raise refusal(operator.line, operator.text, "leaves 64 bits")
        return left

    def apply(operator: Token, left: int, right: int) -> int:
        text = operator.text
        if text in ("/", "%"):
            if right == 0:
                raise refusal(operator.line, text, "divides by zero")
            quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
            return quotient if text == "/" else left - quotient * right
        return int(
            {
                "||": left != 0 or right != 0, "&&": left != 0 and right != 0, "|": left | right, "^": left ^ right,
                "&": left & right, "==": left == right, "!=": left != right, "<": left < right, ">": left > right,
                "<=": left <= right, ">=": left >= right, "+": left + right, "-": left - right, "*": left * right,
            }[text]
        )  # fmt: skip

    value = binary(1, 0)
    if position < len(tokens):
        raise refusal(tokens[position].line, tokens[position].text, "cannot stand here in a condition")
    return value
