"""Maps: every output is a formula of the inputs at the same place, of one or two dimensions."""

from __future__ import annotations

from sparsegen.train.idioms import Pen, indent

VERBS = "scale shift blend clamp combine apply update mix transform axpby relax damp weigh square map mask"


def write(pen: Pen) -> str:
    entry = pen.entry(VERBS, "all values vector each array")
    if pen.chance(0.2):
        return _matrix(pen, entry)
    count = pen.size()
    inputs = [pen.input() for _ in range(int(pen.rng.integers(1, 4)))]
    scalars = [pen.scalar() for _ in range(int(pen.rng.integers(3)))]
    output = pen.output()
    chunks = not pen.cuda and pen.own and pen.chance(0.55)
    trees = [pen.formula(len(inputs) + len(scalars), plain=chunks) for _ in range(pen.pick(1, 1, 2))]
    if len(trees) == 2:  # the second formula takes what the first gave
        trees[1] = ("+", trees[1], ("leaf", len(inputs) + len(scalars)))
    if chunks:
        return pen.file("map", entry, _chunks(pen, count, inputs, scalars, output, trees))
    return pen.file("map", entry, pen.each(count, lambda i: _one(pen, i, inputs, scalars, output, trees)))


def _one(pen: Pen, i: str, inputs: list[str], scalars: list[str], output: str, trees: list[tuple]) -> list[str]:
    lines, leaves = [], []
    for array in inputs:
        leaves.append(pen.read(array, i))
        if pen.chance(0.4):
            name = pen.name("value")
            lines.append(pen.declare(pen.acc, name, leaves[-1]))
            leaves[-1] = name
    leaves += scalars
    if len(trees) == 2:
        name = pen.name("value")
        lines.append(pen.declare(pen.acc, name, pen.render(trees[0], leaves)))
        leaves.append(name)
    result = pen.render(trees[-1], leaves)
    if pen.chance(0.2):
        condition = f"{leaves[0]} {pen.pick('>', '<', '>=')} {pen.constant()}"
        return [*lines, f"if ({condition}) {output}[{i}] = {result};", f"else {output}[{i}] = {leaves[-1]};"]
    if pen.chance(0.3):
        name = pen.name("sum")
        return [*lines, pen.declare(pen.acc, name, result), pen.put(output, i, name)]
    return [*lines, pen.put(output, i, result)]


def _chunks(pen: Pen, count: str, inputs: list[str], scalars: list[str], output: str, trees: list[tuple]) -> list[str]:
    """C++: vectors of WIDTH items, then the rest of the range one by one or in one masked vector."""
    i, result = pen.name("index"), pen.name("sum")
    pen.launch = {"items": count}
    names = [pen.name("value") for _ in inputs]

    def vectors(load: str) -> list[str]:
        leaves = [*names, *(f"splat({each})" for each in scalars)]
        lines = [pen.declare("vector", name, load.format(array)) for name, array in zip(names, inputs, strict=True)]
        if len(trees) == 2:
            first = pen.name("value")
            lines.append(pen.declare("vector", first, pen.render(trees[0], leaves, wide=True)))
            leaves.append(first)
        return [*lines, pen.declare("vector", result, pen.render(trees[-1], leaves, wide=True))]

    start = f"int64_t {i} = begin;"
    doubt = pen.name("doubt") if pen.chance(0.5) else ""
    pen.epilogue = bool(doubt) or pen.epilogue
    put = f"STORE_LANES({output}, {i}, {result}, {doubt});" if doubt else f"store({output} + {i}, {result});"
    body = [*vectors(f"load({{}} + {i})"), put]
    lines = [f"vector {doubt} = {{}};"] if doubt else []
    lines += [start, f"for (; {i} + WIDTH <= end; {i} += WIDTH) {{", *indent(body), "}"]
    if doubt and pen.chance(0.5):
        rest = [*vectors(f"load_first({{}} + {i}, end - {i})"),
                f"STORE_EACH({output}, {i} + l, {result}, end - {i}, {doubt});"]  # fmt: skip
        lines += [f"if ({i} < end) {{", *indent(rest), "}"]
    else:
        one = _one(pen, i, inputs, scalars, output, trees)
        lines += pen.loop(i, "", "end", one, declared=True)
    return [*lines, f"REPORT({doubt});"] if doubt else lines


def _matrix(pen: Pen, entry: str) -> str:
    """A rows x columns array with a leading dimension, one item per element or per row."""
    rows, columns = pen.size("rows"), pen.size("columns")
    stride = pen.size("stride") if pen.chance(0.6) else columns
    inputs = [pen.input() for _ in range(pen.pick(1, 2))]
    scalars = [pen.scalar() for _ in range(pen.pick(0, 1, 2))]
    if pen.chance(0.4):
        scalars.append(f"{pen.input('weight bias d diagonal')}[%s]")
    output = pen.output()
    tree = pen.formula(len(inputs) + len(scalars))

    def element(row: str, column: str) -> list[str]:
        at = f"{row} * {stride} + {column}"
        lines = []
        if pen.chance(0.5):
            name = pen.name("index")
            lines.append(pen.declare(pen.wide, name, at))
            at = name
        per = pen.pick(row, column) if stride == columns else row
        leaves = [*(pen.read(array, at) for array in inputs), *(each.replace("%s", per) for each in scalars)]
        return [*lines, pen.put(output, at, pen.render(tree, leaves))]

    if pen.chance(0.5):
        column = pen.name("column")
        return pen.file(
            "map", entry, pen.each(rows, lambda row: pen.loop(column, "0", columns, element(row, column)), role="row")
        )

    def split(item: str) -> list[str]:
        row, column = pen.name("row"), pen.name("column")
        return [
            pen.declare(pen.wide, row, f"{item} / {columns}"),
            pen.declare(pen.wide, column, pen.pick(f"{item} % {columns}", f"{item} - {row} * {columns}")),
            *element(row, column),
        ]

    return pen.file("map", entry, pen.each(f"{rows} * {columns}", split))
