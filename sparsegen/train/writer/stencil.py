"""Stencils: an output reads its neighbours on a line or a grid; borders are kept, clamped or skipped."""

from __future__ import annotations

from sparsegen.train.idioms import Pen, indent

VERBS = "stencil smooth laplace diffuse jacobi filter blur sweep relax convolve"


def write(pen: Pen) -> str:
    entry = pen.entry(VERBS, "line grid step field inner")
    if pen.chance(0.4):
        return _grid(pen, entry)
    if pen.cuda and pen.chance(0.5):
        return _shared(pen, entry)
    return _line(pen, entry)


def _terms(pen: Pen, places: list[str], array: str, weights: list[str]) -> str:
    terms = [f"{weight} * {pen.read(array, place)}" for weight, place in zip(weights, places, strict=True)]
    return pen.pick(" + ", " + ", " - ").join(terms)


def _line(pen: Pen, entry: str) -> str:
    count, array, output = pen.size(), pen.input(), pen.output()
    radius = pen.pick(1, 1, 2, 3)
    pattern = pen.pick("loop", "written", "wide" if pen.own and not pen.cuda else "written")
    weights = pen.input("weights taps coefficients w") if pattern == "loop" else ""
    constants = [pen.constant() for _ in range(2 * radius + 1)]
    if pattern == "wide":
        return pen.file("stencil", entry, _wide(pen, count, array, output, radius, constants))

    def body(i: str) -> list[str]:
        total, d = pen.name("sum"), pen.name("step")
        if pattern == "loop":
            j = pen.name("column")
            inner = [
                pen.declare(pen.wide, j, f"{i} + {d}"),
                f"if ({j} >= 0 && {j} < {count}) {total} += {weights}[{d} + {radius}] * {pen.read(array, j)};",
            ]
            loop = pen.loop(d, f"-{radius}", str(radius + 1), inner, type_=pen.small, unroll=8)
            return [f"{pen.acc} {total} = 0;", *loop, pen.put(output, i, total)]
        places = [f"{i} {'-' if d < 0 else '+'} {abs(d)}" if d else i for d in range(-radius, radius + 1)]
        if pen.chance(0.4):  # clamped at the ends
            places = [_clamped(i, d, count) for d in range(-radius, radius + 1)]
            return [pen.put(output, i, _terms(pen, places, array, constants))]
        inside = f"{i} >= {radius} && {i} < {count} - {radius}"
        put = pen.put(output, i, _terms(pen, places, array, constants))
        edge = f"else {output}[{i}] = {pen.pick('0', f'{array}[{i}]')};"
        return [f"if ({inside}) {put}", *([edge] if pen.chance(0.6) else [])] if pen.one_line else \
            [f"if ({inside}) {{", *indent([put]), "}"]  # fmt: skip

    return pen.file("stencil", entry, pen.each(count, body))


def _clamped(i: str, d: int, count: str) -> str:
    if d < 0:
        return f"{i} >= {-d} ? {i} - {-d} : 0"
    return f"{i} + {d} < {count} ? {i} + {d} : {count} - 1" if d else i


def _wide(pen: Pen, count: str, array: str, output: str, radius: int, constants: list[str]) -> list[str]:
    """C++: vectors of neighbours where all are there, one by one at the borders."""
    i, total = pen.name("index"), pen.name("sum")
    pen.launch = {"items": count}
    offsets = range(-radius, radius + 1)
    loads = [f"load({array} + {i} {'-' if d < 0 else '+'} {abs(d)})" if d else f"load({array} + {i})" for d in offsets]
    wide = " + ".join(f"{constant} * {each}" for constant, each in zip(constants, loads, strict=True))
    places = [f"{i} {'-' if d < 0 else '+'} {abs(d)}" for d in offsets]
    ones = [
        f"if ({place} >= 0 && {place} < {count}) {total} += {constant} * {pen.read(array, place)};"
        for place, constant in zip(places, constants, strict=True)
    ]
    return [
        f"int64_t {i} = begin;",
        f"while ({i} < end) {{",
        *indent([
            f"if ({i} >= {radius} && {i} + WIDTH + {radius} <= {count} && {i} + WIDTH <= end) {{",
            *indent([f"store({output} + {i}, {wide});", f"{i} += WIDTH;"]),
            "} else {",
            *indent([f"{pen.acc} {total} = 0;", *ones, pen.put(output, i, total), pen.increment.format(i) + ";"]),
            "}",
        ]),
        "}",
    ]  # fmt: skip


def _grid(pen: Pen, entry: str) -> str:
    """Five or nine points of a grid of rows and columns."""
    rows, columns, array = pen.size("rows"), pen.size("columns"), pen.input()
    source = pen.input() if pen.chance(0.4) else ""
    factor, output = pen.scalar(), pen.output()
    nine = pen.chance(0.3)

    def cell(row: str, column: str) -> list[str]:
        at = pen.name("index")
        shifts = [f"{at} - {columns}", f"{at} - 1", f"{at} + 1", f"{at} + {columns}"]
        if nine:
            shifts += [f"{at} {one} {columns} {other} 1" for one in "-+" for other in "-+"]
        total, value = " + ".join(pen.read(array, each) for each in shifts), pen.name("value")
        centre = f"{pen.constant()} * {pen.read(array, at)}"
        result = f"{pen.read(array, at)} + {factor} * ({value} - {centre})"
        if source:
            result = f"{factor} * ({value} + {pen.read(source, at)}) {pen.pick('-', '+')} {centre}"
        lines = [
            pen.declare(pen.wide, at, f"{row} * {columns} + {column}"), pen.declare(pen.acc, value, total),
            pen.put(output, at, result),
        ]  # fmt: skip
        return lines

    if pen.chance(0.5) or not pen.cuda:
        column = pen.name("column")

        def row_of(row: str) -> list[str]:
            inner = pen.loop(column, "1", f"{columns} - 1", cell(row, column))
            return pen.block(f"if ({row} > 0 && {row} < {rows} - 1)", inner)

        return pen.file("stencil", entry, pen.each(rows, row_of, role="row"))

    def point(item: str) -> list[str]:
        row, column = pen.name("row"), pen.name("column")
        inside = f"{row} > 0 && {row} < {rows} - 1 && {column} > 0 && {column} < {columns} - 1"
        return [
            pen.declare(pen.wide, row, f"{item} / {columns}"), pen.declare(pen.wide, column, f"{item} % {columns}"),
            *pen.block(f"if ({inside})", cell(row, column)),
        ]  # fmt: skip

    return pen.file("stencil", entry, pen.each(f"{rows} * {columns}", point))


def _shared(pen: Pen, entry: str) -> str:
    """CUDA: a block stages its stretch of the line with a halo."""
    count, array, output = pen.size(), pen.input(), pen.output()
    radius = pen.pick(1, 2, 3, 4)
    block, thread = pen.threads()
    size = block if pen.own else str(pen.pick(128, 256))
    i, tile, me, total = pen.name("index"), pen.name("tile"), pen.name("lane"), pen.name("sum")
    pen.launch = {"grid": f"ceil_div({count}, BLOCK)", "block": "BLOCK"}
    zero = f"{pen.acc}(0)"
    weights = [pen.constant() for _ in range(2 * radius + 1)]
    terms = " + ".join(
        f"{weight} * {tile}[{me}{f' + {d}' if d > 0 else f' - {-d}' if d else ''}]"
        for weight, d in zip(weights, range(-radius, radius + 1), strict=True)
    )
    lines = [
        f"__shared__ {pen.acc} {tile}[{size} + {2 * radius}];", pen.declare(pen.wide, i, thread),
        pen.declare("int", me, f"threadIdx.x + {radius}"),
        f"{tile}[{me}] = {i} < {count} ? {pen.acc}({array}[{i}]) : {zero};",
        *pen.block(f"if (threadIdx.x < {radius})", [
            f"{tile}[{me} - {radius}] = {i} >= {radius} ? {pen.acc}({array}[{i} - {radius}]) : {zero};",
            f"{tile}[{me} + {size}] = {i} + {size} < {count} ? {pen.acc}({array}[{i} + {size}]) : {zero};",
        ]),
        "__syncthreads();", pen.declare(pen.acc, total, terms), f"if ({i} < {count}) {pen.put(output, i, total)}",
    ]  # fmt: skip
    return pen.file("stencil", entry, lines)
