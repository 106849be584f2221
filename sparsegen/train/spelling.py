"""Rewrites that say the same in other words: names, forms of loops, casts, braces, the order of declarations.

Each takes a `Source` and what is known of its kernel, and gives the new text, or None where it finds nothing to do. A
compiler is left nothing new to decide.
"""

from __future__ import annotations

import re

from sparsegen.train.idioms import NAMES
from sparsegen.train.source import CHANGES, INTEGERS, REALS, WORDS, Kernel, Source

_WHOLE = ("index", "row", "entry", "lane", "first", "bound", "chunk")  # roles of integers
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


def rename(source: Source, kernel: Kernel) -> str | None:
    """Other names for variables."""
    types = {name: each.type for each in source.declarations() for name, _, _ in each.names}
    lines = {word for token in source.tokens if token.kind == "line" for word in WORDS.findall(token.text)}
    free = sorted(set(types) - kernel.kept - lines - {"l"})
    if not free:
        return None
    chosen, used = {}, kernel.taken | set(WORDS.findall(source.text))
    for name in kernel.some(free, 0.6):
        pools = [pool.split() for pool in NAMES.values() if name in pool.split()]
        pools = pools or [NAMES[role].split() for role in (_WHOLE if types[name] in INTEGERS else ("sum", "value"))]
        options = sorted({each for pool in pools for each in pool} - used - {"l"})
        if options:
            chosen[name] = kernel.pick(options)
            used |= {chosen[name]}
    if not chosen:
        return None
    places = range(len(source.tokens))
    return source.edited(
        [(i, i + 1, chosen[source[i]]) for i in places if source[i] in chosen and source[i - 1] != "."]
    )


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
        if (
            each.type not in (*INTEGERS, *REALS, "vector")
            or " " in each.type
            or changes
            or _lambda_macro(source, after)
        ):
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
        effects = any(re.search(r"\+\+|--|sync|atomic|^#", text) for text in everything)
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
            if (
                calls
                and source[first - 1] in ("=", "+=", "+", "(", ",")
                and source[past] in (";", ")", ",", "+", "-", ":")
            ):
                found.append([(first, i, source.slice(i + 1, past)), (i + 1, past, source.slice(first, i))])
    return source.edited(kernel.pick(found)) if found else None


def spell(source: Source, kernel: Kernel) -> str | None:
    """Integer types by another of their names; casts in another notation."""
    wide = "long long" if kernel.cuda else "long"
    found = []
    for each in source.declarations():
        place = next((i for i in range(each.first, each.past) if source[i] == each.type), 0)
        if each.type in ("int64_t", "int32_t", "int") and not each.pointer:
            found.append((place, place + 1, {"int64_t": wide, "int32_t": "int", "int": "int32_t"}[each.type]))
    for first, past in source.bodies:
        for i in range(first, past):
            if (
                source[i] in ("int64_t", "ACC", "INDEX", "int")
                and source[i + 1] == "("
                and source[i - 1] not in ("<", "(")
            ):
                found.append((i, i + 1, kernel.pick([f"({source[i]})", f"static_cast<{source[i]}>"])))
    return source.edited(kernel.some(found, 0.3)) if found else None


def const(source: Source, kernel: Kernel) -> str | None:
    """const before a variable that nothing changes, or not."""
    inside = {i for first, past in source.bodies for i in range(first, past)}
    if any(source[i] == "&" for i in range(len(source.tokens)) if i not in inside):
        return None  # a helper may change what it is passed
    found = []
    for each in source.declarations():
        if not source.begins(each.first) or not each.plain or each.pointer:
            continue
        if each.const and source[each.first] == "const":
            found.append((each.first, each.first + 2, source[each.first + 1]))
        elif all(
            source[start - 1] == "=" and source[start] != "{" and not source.changed(name)
            for name, start, _ in each.names
        ):
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
    lines, kept, done = source.text.split("\n"), [], False
    stack: list[bool | None] = []  # of each open condition whether it holds, None where that is not known
    for line in lines:
        found = re.fullmatch(r"#\s*(if|elif|else|endif)\b(.*)", line)
        if not found:
            kept += [line] if all(each is None or each for each in stack) else []
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
