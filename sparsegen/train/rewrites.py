"""Kernel files said in other words: rewrites that keep what an instance computes, one small function each.

A rewrite takes a `Source` and what it must know of its kernel, and gives the new text, or None where it finds nothing
to do. SPELLING holds those that leave a compiler nothing new to decide; SCHEDULE those that may change the machine code
and so the speed, and with "split_sum" the rounding, within the bound that every kernel is held to.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sparsegen import prelude, targets
from sparsegen.candidate import Candidate
from sparsegen.errors import SparsegenValueError
from sparsegen.screen.words import FOREIGN, KEYWORDS
from sparsegen.train.idioms import NAMES, TAKEN
from sparsegen.train.source import CHANGES, INTEGERS, REALS, Declaration, Source, Unclear

MOST = 6  # rewrites of one kernel
_NAMES = tuple(sorted({name for pool in NAMES.values() for name in pool.split()} - {"l"}))
_WORDS = re.compile(r"[A-Za-z_]\w*")
_CALLS = {  # how parts of expressions begin that may be given a name, and its type
    "VALUE_AT": "ACC", "VALUES_AT": "vector", "gather": "vector", "load": "vector", "ACC": "ACC", "ROW_OF_B": "vector",
    "indices": "INDEX", "rows": "INDEX", "lengths": "INDEX", "indptr": "OFFSET", "slices": "OFFSET",
}  # fmt: skip
_ROLES = {"ACC": "value", "vector": "value", "INDEX": "column", "OFFSET": "bound"}
_GUARDED = {"?", "&&", "||", "++", "--", "STORE_EACH", "STORE_ROW", "STORE_C", "ATOMIC_ADD_C"}
_COMMENTS = (
    "one row after the other", "padding adds nothing", "the tail", "registers", "in order", "nothing is read twice",
    "gathered", "of this row", "what is left", "the last ones",
)  # fmt: skip


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
        used = self.taken | set(_WORDS.findall(source.text))
        pool = [name for name in NAMES.get(role, "").split() if name not in used and name != "l"]
        if pool:
            return self.pick(pool)
        return next(name for i in range(99) for name in [f"{NAMES[role].split()[0]}{i}"] if name not in used)


Rewrite = Callable[[Source, Kernel], str | None]


def rename(source: Source, kernel: Kernel) -> str | None:
    """Other names for variables."""
    locals_ = {name for each in source.declarations() for name, _, _ in each.names} - kernel.kept - {"l"}
    lines = " ".join(token.text for token in source.tokens if token.kind == "line")
    free = sorted(name for name in locals_ if name not in _WORDS.findall(lines))
    if not free:
        return None
    chosen, used = {}, kernel.taken | set(_WORDS.findall(source.text))
    for name in kernel.some(free, 0.6):
        options = [each for each in _NAMES if each not in used]
        if not options:
            break
        chosen[name] = kernel.pick(options)
        used |= {chosen[name]}
    places = range(len(source.tokens))
    return source.edited([(i, i + 1, chosen[source[i]]) for i in places if source[i] in chosen and source[i - 1] != "."])


def step(source: Source, kernel: Kernel) -> str | None:
    """++i, i++ and i += 1 for each other, in loops and as statements, of integers."""
    integers = {name for each in source.declarations() if each.type in INTEGERS for name, _, _ in each.names}
    found = []
    for i in range(1, len(source.tokens) - 2):
        before, text = source[i - 1], source[i]
        if before not in (";", "{", "}", ",") or (before == "," and source[i + 2] != ")"):
            continue
        past = i + 2
        if text in ("++", "--") and source[i + 1] in integers:
            name, sign = source[i + 1], text[0]
        elif text in integers and source[i + 1] in ("++", "--"):
            name, sign = text, source[i + 1][0]
        elif text in integers and source[i + 1] in ("+=", "-=") and source[i + 2] == "1":
            name, sign, past = text, source[i + 1][0], i + 3
        else:
            continue
        if source[past] in (";", ")"):
            forms = {f"{sign}{sign}{name}", f"{name}{sign}{sign}", f"{name} {sign}= 1"} - {source.slice(i, past)}
            found.append((i, past, kernel.pick(sorted(forms))))
    return source.edited(kernel.some(found, 0.7)) if found else None


def loop(source: Source, kernel: Kernel) -> str | None:
    """A for becomes a while, or the reverse."""
    found = []
    for i in source.loops("while"):
        close = source.close(i + 1)
        if source[close + 1] not in (";", "") and not (source[i - 1] == "}" and _ends_do(source, i - 1)):
            found.append([(i, close + 1, f"for (; {source.slice(i + 2, close)};)")])
    for i in source.loops("for"):
        start, condition, more, body = source.head(i)
        if source[i - 1].startswith("#") or source[body].startswith("#") or not condition:
            continue
        past = source.past(body)
        if {"continue", "return"} & source.names(body, past):
            continue
        inner = source.slice(body + 1, past - 1) if source[body] == "{" else source.slice(body, past)
        then = "".join(f"\n{each.strip()};" for each in _split(more))
        text = f"while ({condition}) {{\n{inner}{then}\n}}"
        if start:
            text = f"{{\n{start};\n{text}\n}}"
        found.append([(i, past, text)])
    return source.edited(kernel.pick(found)) if found else None


def _ends_do(source: Source, i: int) -> bool:
    depth = 0
    for j in range(i, -1, -1):
        depth += (source[j] == "}") - (source[j] == "{")
        if depth == 0:
            return source[j - 1] == "do"
    return True


def _split(text: str) -> list[str]:
    """At commas outside brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part for part in parts if part.strip()]


def name_part(source: Source, kernel: Kernel) -> str | None:
    """A part of an expression becomes a constant of its own, before the statement."""
    found = []
    for i in source.statements():
        past = source.past(i)
        words = {source[j] for j in range(i, past)}
        if words & _GUARDED or source[i].startswith("#") or source[i - 1].startswith("#if"):
            continue
        declared = source.declaration(i)
        if declared and (not source.braced(i) or len(declared.names) > 1 or not declared.plain):
            continue
        for j in range(i + 1, past):
            if source[j] in _CALLS and source[j + 1] in ("(", "[") and source[j - 1] not in (".", "*", "&"):
                end = source.close(j + 1) + 1
                if source[end] not in CHANGES and source[end] not in (".", "["):
                    found.append((i, past, j, end, declared))
    if not found:
        return None
    i, past, j, end, declared = kernel.pick(found)
    type_ = _CALLS[source[j]]
    name = kernel.fresh(_ROLES[type_], source)
    before = f"const {type_} {name} = {source.slice(j, end)};\n"
    if source.braced(i):
        return source.edited([(_before_lines(source, i), _before_lines(source, i), before), (j, end, name)])
    return source.edited([(i, i, "{\n" + before), (j, end, name), (past, past, "\n}\n")])


def _before_lines(source: Source, i: int) -> int:
    while source[i - 1].startswith("#pragma"):
        i -= 1
    return i


def inline(source: Source, kernel: Kernel) -> str | None:
    """A constant that the next statement uses once goes where it is used."""
    found = []
    for each in source.declarations():
        name, start, past = each.names[0]
        if len(each.names) > 1 or not each.const or not each.plain or each.pointer or not source.begins(each.first):
            continue
        uses = [i for i in range(len(source.tokens)) if source[i] == name]
        after = each.past
        if len(uses) != 2 or source[start - 1] != "=" or source[after] in ("for", "if", "while", "do", "{", "}"):
            continue
        if source[after].startswith("#") or not after <= uses[1] < source.past(after):
            continue
        changes = {source[i] for i in range(after, source.past(after))} & {"++", "--"}
        if each.type not in (*INTEGERS, *REALS, "vector") or changes or _lambda_macro(source, after):
            continue
        value = source.slice(start, past)
        cast = "" if each.type == "vector" else each.type
        whole = value.startswith(f"{cast}(") and source[start + 1] == "(" and source.close(start + 1) == past - 1
        found.append((each, uses[1], value if whole and cast else f"{cast}({value})"))
    if not found:
        return None
    each, use, value = kernel.pick(found)
    return source.edited([(each.first, each.past, ""), (use, use + 1, value)])


def _lambda_macro(source: Source, i: int) -> bool:
    """Whether a statement's arguments are evaluated once for every lane."""
    return source[i] in ("STORE_EACH", "STORE_ROW")


def swap(source: Source, kernel: Kernel) -> str | None:
    """Two declarations that know nothing of each other change places."""
    found = []
    for one in source.declarations():
        if not source.begins(one.first) or not source.braced(one.first) or not source.begins(one.past):
            continue
        other = source.declaration(one.past)
        if other is None or {"__shared__", "constexpr"} & {source[one.first], source[other.first]}:
            continue
        everything = [source[i] for i in range(one.first, other.past)]
        effects = any(text in ("++", "--") or "sync" in text or text.startswith("#") for text in everything)
        ones, others = source.names(one.first, one.past), source.names(other.first, other.past)
        clash = {name for name, _, _ in one.names} & others or {name for name, _, _ in other.names} & ones
        if not effects and not clash:
            found.append((one, other))
    if not found:
        return None
    one, other = kernel.pick(found)
    first, second = source.slice(one.first, one.past), source.slice(other.first, other.past)
    return source.edited([(one.first, one.past, second), (other.first, other.past, first)])


def braces(source: Source, kernel: Kernel) -> str | None:
    """Braces around a single statement, or none."""
    found = []
    for word in ("for", "if", "while"):
        for i in source.loops(word):
            body = source.close(i + 1) + 1
            if source[body] == ";" or source[body].startswith("#") or source[i - 1].startswith("#pragma"):
                continue
            past = source.past(body)
            if source[body] != "{":
                found.append([(body, body, "{\n"), (past, past, "\n}\n")])
                continue
            inside = source.past(body + 1) if source[body + 1] not in ("}", "if", "#") else 0
            single = inside == past - 1 and not source[body + 1].startswith("#") and source.begins(body + 1)
            if single and not source.declaration(body + 1) and source[past] != "else":
                found.append([(body, body + 1, ""), (past - 1, past, "")])
    return source.edited(kernel.pick(found)) if found else None


def accumulate(source: Source, kernel: Kernel) -> str | None:
    """s += t and s = s + (t) for each other."""
    found = []
    for i in source.statements():
        past = source.past(i)
        target = i + 1
        while source[target] == "[":
            target = source.close(target) + 1
        if source[target] == "+=" and not {"++", "--"} & {source[j] for j in range(i, past)}:
            value, name = source.slice(target + 1, past - 1), source.slice(i, target)
            simple = not re.search(r"[-<>?&|]", value)
            found.append((target, past - 1, f"= {name} + {value if simple else f'({value})'}"))
    return source.edited([kernel.pick(found)]) if found else None


def commute(source: Source, kernel: Kernel) -> str | None:
    """The two factors of a product change places."""
    found = []
    for i in range(1, len(source.tokens) - 1):
        if source[i] == "*" and source[i - 1] == ")" and source.tokens[i + 1].kind == "name" and source[i + 2] == "(":
            first, past = source.open_of(i - 1) - 1, source.close(i + 2) + 1
            calls = source[first] in _CALLS or source[first] in ("splat",)
            if calls and source[first - 1] in ("=", "+=", "+", "(", ",") and source[past] in (";", ")", ",", "+", "-", ":"):
                found.append([(first, i, source.slice(i + 1, past)), (i + 1, past, source.slice(first, i))])
    return source.edited(kernel.pick(found)) if found else None


def spell(source: Source, kernel: Kernel) -> str | None:
    """Integer types by another of their names; casts in another notation."""
    wide = "long long" if kernel.cuda else "long"
    found = []
    for each in source.declarations():
        place = next(i for i in range(each.first, each.past) if source[i] == each.type)
        if each.type in ("int64_t", "int32_t", "int") and not each.pointer:
            found.append((place, place + 1, {"int64_t": wide, "int32_t": "int", "int": "int32_t"}[each.type]))
    for first, past in source.bodies:
        for i in range(first, past):
            if source[i] in ("int64_t", "ACC", "INDEX", "int") and source[i + 1] == "(" and source[i - 1] not in ("<", "("):
                found.append((i, i + 1, kernel.pick([f"({source[i]})", f"static_cast<{source[i]}>"])))
    return source.edited(kernel.some(found, 0.3)) if found else None


def const(source: Source, kernel: Kernel) -> str | None:
    """const before a variable that nothing changes, or not."""
    found = []
    for each in source.declarations():
        if not source.begins(each.first) or not each.plain or each.pointer:
            continue
        if each.const and source[each.first] == "const":
            found.append((each.first, each.first + 2, source[each.first + 1]))
        elif all(source[start - 1] == "=" and not source.changed(name) for name, start, _ in each.names):
            found.append((each.first, each.first, "const "))
    return source.edited(kernel.some(found, 0.3)) if found else None


def comment(source: Source, kernel: Kernel) -> str | None:
    """A remark at the end of a statement's line, or on one of its own."""
    ends = [token.end for token in source.tokens if token.text in (";", "{") and source.text[token.end :][:1] == "\n"]
    if not ends:
        return None
    at, words = kernel.pick(ends), kernel.pick(_COMMENTS)
    return source.text[:at] + kernel.pick([f"  // {words}", f"\n/* {words} */"]) + source.text[at:]


def resolve(source: Source, kernel: Kernel) -> str | None:
    """Lines under a condition that the parameters decide: those that are compiled, without the condition."""
    lines, kept, stack, done = source.text.split("\n"), [], [], False
    for line in lines:
        found = re.fullmatch(r"#\s*(if|elif|else|endif)\b(.*)", line)
        if not found:
            kept += [line] if all(stack_ is None or stack_ for stack_ in stack) else []
            continue
        word, condition = found.groups()
        if word == "if":
            known = re.fullmatch(r"\s*([A-Z]+)\s*(==|!=)\s*(\d+)\s*", condition)
            if known and known[1] in kernel.params:
                stack.append((kernel.params[known[1]] == int(known[3])) == (known[2] == "=="))
                done = True
                continue
            stack.append(None)
        elif not stack or (word == "elif" and stack[-1] is not None):
            return None
        elif stack[-1] is not None:
            stack[-1:] = [not stack[-1]] if word == "else" else []
            continue
        elif word == "endif":
            stack.pop()
        kept += [line] if all(each is None or each for each in stack) else []
    return "\n".join(kept) if done and not stack else None


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
        if any("shfl" in name or "sync" in name for name in inner) or {"++", "--"} & {source[j] for j in range(first, last)}:
            continue
        found.append((i, first, last, past, start, condition, more, p, by, total))
    if not found:
        return None
    i, first, last, past, start, condition, more, p, by, total = kernel.pick(found)
    other = kernel.fresh("sum", source)
    term = source.slice(first + 2, last - 1)
    ahead = re.sub(rf"\b{p}\b", f"({p} + {by})", term)
    further = re.sub(rf"^{p}\b", f"{p} + {by}", condition)
    double = f"{p} += 2" if by == "1" else f"{p} += 2 * {by}" if _WORDS.fullmatch(by) else f"{p} += 2 * ({by})"
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


SPELLING: dict[str, Rewrite] = {
    each.__name__: each
    for each in (rename, step, loop, name_part, inline, swap, braces, accumulate, commute, spell, const, comment, resolve)
}
SCHEDULE: dict[str, Rewrite] = {each.__name__: each for each in (unroll, split_sum)}


def names() -> list[str]:
    return [*SPELLING, *SCHEDULE]


def rewrite(
    candidate: Candidate, rng: np.random.Generator, only: Sequence[str] | None = None, count: int | None = None
) -> Candidate:
    """The candidate in other words: `count` rewrites, or a few, of those in `only`, or of all.

    A rewrite that finds nothing to do, or whose result the screen does not let through, leaves it as it was.
    Raises SparsegenValueError for a template with [tune] lists and for unknown rewrites.
    """
    if candidate.tune:
        raise SparsegenValueError(f"{candidate.name or 'the candidate'} is a template; rewrite one of its instances")
    chosen = list(only) if only is not None else names()
    if unknown := sorted(set(chosen) - set(names())):
        raise SparsegenValueError(f"unknown rewrites {unknown}; there are {', '.join(names())}")
    for _ in range(int(rng.integers(1, MOST + 1)) if count is None else count):
        name = chosen[int(rng.integers(len(chosen)))]
        done = apply(candidate, name, rng)
        if done is not None and screened(done) is None:
            candidate = done
    return candidate


def apply(candidate: Candidate, name: str, rng: np.random.Generator) -> Candidate | None:
    """One rewrite, tidied and not yet screened; None where it finds nothing to do."""
    try:
        text = {**SPELLING, **SCHEDULE}[name](Source(candidate.source), _kernel(candidate, rng))
    except Unclear:
        return None
    return None if text is None else replace(candidate, source=tidy(text))


def screened(candidate: Candidate) -> str | None:
    return targets.get("cpu" if candidate.language == "cpp" else "cuda").screen(candidate)


def _kernel(candidate: Candidate, rng: np.random.Generator) -> Kernel:
    signature = {name for part in candidate.parts for name, _ in prelude.arguments(candidate, part)}
    entries = {launch.entry for _, launch in prelude.entries(candidate)}
    kept = signature | entries | {"begin", "end"}
    words = set(_WORDS.findall(prelude.text(candidate.language)))
    taken = kept | words | TAKEN | KEYWORDS | FOREIGN | set(candidate.params)
    integers = {name: value for name, value in candidate.params.items() if isinstance(value, int)}
    return Kernel(candidate.language == "cuda", frozenset(kept), frozenset(taken), integers, rng)


def tidy(text: str) -> str:
    """Lines indented by the braces and heads they stand in, as a person would; directives at the margin."""
    lines: list[str] = []
    depth, hanging = 0, 0
    for line in text.split("\n"):
        bare = line.strip()
        if not bare:
            continue
        if bare.startswith("#"):
            lines.append(bare)
            continue
        code = re.sub(r"//.*|/\*.*?\*/", "", bare).strip()
        closing = len(code) - len(code.lstrip("}"))
        lines.append("    " * max(depth - closing + hanging, 0) + bare)
        depth += code.count("{") - code.count("}")
        opens = re.match(r"(\}\s*)?(else\b|for\b|if\b|while\b|do\b)", code) and code[-1:] not in ("{", ";", "}")
        hanging = hanging + 1 if opens else hanging if not code else 0
    return "\n".join(lines)


__all__ = ["SCHEDULE", "SPELLING", "Declaration", "apply", "names", "rewrite", "screened"]
