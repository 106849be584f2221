"""Gathers: an output reads its inputs where an index array says, once, through two levels, or guarded."""

from __future__ import annotations

from sparsegen.train.idioms import Pen, indent

VERBS = "gather pick select permute lookup collect pull read_back"


def write(pen: Pen) -> str:
    entry = pen.entry(VERBS, "values by_index rows through each")
    if not pen.cuda and pen.own and pen.chance(0.4):
        return _chunks(pen, entry)
    count = pen.size()
    limit = pen.size("limit bound extent") if pen.chance(0.35) else ""
    keys = pen.input("keys", pen.index)
    second = pen.input("keys", pen.index) if pen.chance(0.25) else ""
    inputs = [pen.input() for _ in range(pen.pick(1, 1, 2))]
    near = [pen.input() for _ in range(pen.pick(0, 0, 1))]
    scalars = [pen.scalar() for _ in range(pen.pick(0, 1))]
    width = pen.size("columns") if pen.chance(0.3) else ""
    output = pen.output()
    tree = pen.formula(len(inputs) + len(near) + len(scalars), extra=1)

    def body(i: str) -> list[str]:
        key, column = pen.name("source where j there"), pen.name("column")
        at = f"{second}[{keys}[{i}]]" if second else f"{keys}[{i}]"
        place, to = (f"{key} * {width} + {column}", f"{i} * {width} + {column}") if width else (key, i)
        leaves = [*(pen.read(a, place) for a in inputs), *(pen.read(a, i) for a in near), *scalars]
        value = pen.render(tree, leaves)
        lines = [pen.declare(pen.pick(pen.index, pen.wide), key, at)]
        if not width:
            if limit and pen.chance(0.5):
                value = f"{key} < {limit} ? {pen.acc}({value}) : {pen.acc}(0)"
                return [*lines, f"{output}[{i}] = {value};"]
            put = pen.put(output, to, value)
            return [*lines, *(pen.block(f"if ({key} >= 0 && {key} < {limit})", [put]) if limit else [put])]
        inner = pen.loop(column, "0", width, [pen.put(output, to, value)], unroll=4)
        return [*lines, *(pen.block(f"if ({key} < {limit})", inner) if limit else inner)]

    return pen.file("gather", entry, pen.each(count, body))


def _chunks(pen: Pen, entry: str) -> str:
    """C++: WIDTH indices at once, the rest one by one."""
    count, keys, array = pen.size(), pen.input("keys", "INDEX"), pen.input()
    weights = pen.input() if pen.chance(0.6) else ""
    scalars = [pen.scalar() for _ in range(pen.pick(0, 1))]
    output = pen.output()
    pen.launch = {"items": count}
    tree = pen.formula(1 + bool(weights) + len(scalars), extra=1, plain=True)
    i, near = pen.name("index"), pen.name("value")
    leaves = [near, *([f"load({weights} + {i})"] if weights else []), *(f"splat({each})" for each in scalars)]
    value = pen.render(tree, leaves, wide=True)
    one = [pen.read(array, f"{keys}[{i}]"), *([pen.read(weights, i)] if weights else []), *scalars]
    inner = [pen.declare("vector", near, f"gather({array}, {keys} + {i})"), f"store({output} + {i}, {value});"]
    lines = [
        f"int64_t {i} = begin;", f"for (; {i} + WIDTH <= end; {i} += WIDTH) {{", *indent(inner), "}",
        *pen.loop(i, "", "end", [pen.put(output, i, pen.render(tree, one))], declared=True),
    ]  # fmt: skip
    return pen.file("gather", entry, lines)
