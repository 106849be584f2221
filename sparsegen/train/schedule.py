"""Rewrites that may change the machine code and so the speed; split_sum the rounding too, within a kernel's bound."""

from __future__ import annotations

import re

from sparsegen.train.source import WORDS, Kernel, Source


def unroll(source: Source, kernel: Kernel) -> str | None:
    """A pragma that asks for a loop to be unrolled: more, less, or not."""
    found = []
    for i in source.loops("for"):
        pragma = source[i - 1] if source[i - 1].startswith("#pragma") else ""
        numbers = [str(2**power) for power in range(1, 5)] + ([""] if kernel.cuda and pragma else [])
        word = "#pragma unroll" if kernel.cuda else "#pragma GCC unroll"
        texts = {f"{word} {number}".strip() for number in numbers} - {pragma}
        text = kernel.pick(sorted(texts))
        if pragma:
            found.append((i - 1, i, kernel.pick(["", text])))
        elif source[i - 1] != "else":
            found.append((i, i, f"\n{text}\n"))
    return source.edited([kernel.pick(found)]) if found else None


def split_sum(source: Source, kernel: Kernel) -> str | None:
    """A sum along a loop becomes two that do not wait for each other."""
    types = {name: each.type for each in source.declarations() for name, _, _ in each.names if each.plain}
    found = []
    for i in source.loops("for"):
        start, condition, more, body = source.head(i)
        counts = re.fullmatch(r"\+\+(\w+)|(\w+)\+\+|(\w+) \+= ([\w. *()]+)", more)
        if not counts or source[i - 1].startswith("#") or source[body].startswith("#"):
            continue
        p, by = counts[1] or counts[2] or counts[3], counts[4] or "1"
        past = source.past(body)
        first, last = (body + 1, past - 1) if source[body] == "{" else (body, past)
        if first >= last or not source.begins(first) or source.past(first) != last or source[first + 1] != "+=":
            continue
        total = source[first]
        inner = source.names(first + 2, last)
        single = re.fullmatch(rf"{p}( \+ [\w *]+)? (<|<=) [\w\[\] +.]+", condition)
        if types.get(total) not in ("ACC", "vector") or total in inner or p not in inner or not single:
            continue
        if any("shfl" in name or "sync" in name for name in inner) or {"++", "--"} & {
            source[j] for j in range(first, last)
        }:
            continue
        found.append((i, first, last, past, start, condition, more, p, by, total))
    if not found:
        return None
    i, first, last, past, start, condition, more, p, by, total = kernel.pick(found)
    other = kernel.fresh("sum", source)
    term = source.slice(first + 2, last - 1)
    ahead = re.sub(rf"\b{p}\b", f"({p} + {by})", term)
    ahead = re.sub(rf"([(\[])\(({p} \+ {re.escape(by)})\)([)\]])", r"\1\2\3", ahead)
    further = re.sub(rf"^{p}\b", f"{p} + {by}", condition)
    double = f"{p} += 2" if by == "1" else f"{p} += 2 * {by}" if WORDS.fullmatch(by) else f"{p} += 2 * ({by})"
    zero = "= {}" if types[total] == "vector" else "= 0"
    text = f"""{{
{start + ";" if start else ""}
{types[total]} {other} {zero};
for (; {further}; {double}) {{
{total} += {term};
{other} += {ahead};
}}
for (; {condition}; {more}) {total} += {term};
{total} += {other};
}}
"""
    return source.edited([(i, past, text)])
