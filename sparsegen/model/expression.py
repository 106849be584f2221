"""Launch expressions under way: whether one that has begun may still become one that `candidate.evaluate` takes.

It may when it can be ended at once, and then every beginning of that end may as well: no text comes to where nothing
may follow. What is missing is an operand, closing brackets, or the rest of a name; to a value out of range a number is
added that brings it into range.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from sparsegen import candidate
from sparsegen.errors import SparsegenValueError

FUNCTIONS = ("ceil_div", "min", "max")  # of two arguments
FAR = 1 << 62  # a value is known up to here
_TOKEN = re.compile(r" ?(?:(?P<number>[0-9]+)|(?P<word>[A-Za-z_][A-Za-z0-9_]*)|(?P<mark>//|[-+*/%(),])|\Z)")
_CORRECTED = re.compile(r"(?P<whole>.*[\w)]) (?:[+-](?: [0-9]*)?)?")


def is_one(text: str, names: Mapping[str, int], least: int, most: int) -> bool:
    """Whether `text` is an expression of these names with a value in range."""
    value = _value(text, names)
    return value is not None and least <= value <= most and text in ended(text, names)


def begins(text: str, names: Mapping[str, int], least: int, most: int) -> bool:
    """Whether `text` may become one."""
    for whole in ended(text, names):
        value = _value(whole, names)
        if (value is not None and least <= value <= most) or _corrected(whole, names, least) is not None:
            return True
    found = _CORRECTED.fullmatch(text)
    if not found or found["whole"] not in ended(found["whole"], names):
        return False
    corrected = _corrected(found["whole"], names, least)
    return corrected is not None and corrected.startswith(text)


def ended(text: str, names: Mapping[str, int]) -> list[str]:
    """The shortest expressions that `text` begins, one for each name that its last word may become."""
    brackets: list[int] = []  # open ones: 0, or the argument of a function that is read
    operand, called, position = True, False, 0  # what comes next: an operand; the bracket of a function
    endings = [""]
    while position < len(text):
        found = _TOKEN.match(text, position)
        if not found:
            return []
        position, last = found.end(), found.end() == len(text)
        word, mark = found["word"], found["mark"]
        if called and mark != "(":
            if word or mark or found["number"]:
                return []
        elif word and operand:
            known = [each for each in (*names, *FUNCTIONS) if (each.startswith(word) if last else each == word)]
            endings = [each[len(word) :] + "(1, 1)" * (last and each in FUNCTIONS) for each in known]
            operand, called = False, word in FUNCTIONS and not last
        elif found["number"] and operand:
            operand = False
        elif mark == "(" and (operand or called):
            brackets.append(int(called))
            operand, called = True, False
        elif mark == ")" and not operand and brackets and brackets[-1] != 1:
            brackets.pop()
        elif mark == "," and not operand and brackets and brackets[-1] == 1:
            brackets[-1], operand = 2, True
        elif mark in ("+", "-", "*", "//", "%") and not operand:
            operand = True
        elif mark == "/" and not operand and last:
            endings, operand = ["/"], True
        elif word or mark or found["number"]:
            return []
        if not endings:
            return []
    rest = "1" * operand + "(1, 1)" * called + "".join(", 1)" if each == 1 else ")" for each in reversed(brackets))
    return [text + each + rest for each in endings]


def _corrected(whole: str, names: Mapping[str, int], least: int) -> str | None:
    """The expression with what is missing to `least` added, or too much subtracted; None where that is none."""
    whole = whole.rstrip(" ")
    value = _value(f"{whole} + {FAR}", names)
    if value is None:
        return None
    over = value - FAR - least
    corrected = f"{whole} - {over}" if over > 0 else f"{whole} + {-over}"
    return None if _value(corrected, names) is None else corrected


def _value(text: str, names: Mapping[str, int]) -> int | None:
    try:
        return candidate.evaluate(text, names)
    except SparsegenValueError:
        return None
