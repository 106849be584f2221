"""Transposes: rows become columns, directly, in tiles or through shared memory; records become arrays and back."""

from __future__ import annotations

from sparsegen.train.idioms import Pen, indent

VERBS = "transpose flip swap_axes interleave repack reorder"


def write(pen: Pen) -> str:
    entry = pen.entry(VERBS, "tiles matrix fields plain blocks")
    if pen.chance(0.25):
        return _fields(pen, entry)
    rows, columns = pen.size("rows"), pen.size("columns")
    scalars = [pen.scalar()] if pen.chance(0.3) else []
    if pen.cuda and pen.chance(0.6):
        return _shared(pen, entry, rows, columns, scalars)
    ld, to = (pen.size("stride"), pen.size("stride")) if pen.chance(0.3) else (columns, rows)
    array, output = pen.input(), pen.output()
    tree = pen.formula(1 + len(scalars), extra=1)

    def put(row: str, column: str) -> str:
        value = pen.render(tree, [pen.read(array, f"{row} * {ld} + {column}"), *scalars])
        return f"{output}[{column} * {to} + {row}] = {value};"

    if pen.chance(0.3):
        column = pen.name("column")
        lines = pen.each(rows, lambda row: pen.loop(column, "0", columns, [put(row, column)], unroll=8), role="row")
        return pen.file("transpose", entry, lines)
    tile = pen.macro("TILE", 4, 8, 16, 32)
    row, column, first, stop, here = (
        pen.name(role) for role in ("row", "column", "first", "bound", "chunk")
    )  # fmt: skip

    def tiles(item: str) -> list[str]:
        """One item is TILE rows; the columns are cut as well."""
        inner = pen.loop(column, here, f"{here} + {tile} < {columns} ? {here} + {tile} : {columns}", [put(row, column)])
        if pen.chance(0.5):
            until = pen.name("bound")
            inner = [
                pen.declare(pen.wide, until, f"{here} + {tile} < {columns} ? {here} + {tile} : {columns}"),
                *pen.loop(column, here, until, pen.loop(row, first, stop, [put(row, column)])),
            ]
        else:
            inner = pen.loop(row, first, stop, inner)
        return [
            pen.declare(pen.wide, first, f"{item} * {tile}"),
            pen.declare(pen.wide, stop, f"{first} + {tile} < {rows} ? {first} + {tile} : {rows}"),
            *pen.loop(here, "0", columns, inner, step=tile),
        ]

    count = f"ceil_div({rows}, {tile})" if pen.own else f"({rows} + {int(tile) - 1}) / {tile}"
    if pen.own and pen.cuda:
        bands = pen.size("bands strips")
        return pen.file("transpose", entry, pen.each(bands, tiles, role="chunk"))
    return pen.file("transpose", entry, pen.each(count, tiles, role="band strip"))


def _shared(pen: Pen, entry: str, rows: str, columns: str, scalars: list[str]) -> str:
    """CUDA: a block moves a square through shared memory, one column wider against bank conflicts."""
    array, output = pen.input(), pen.output()
    tile, lines_ = pen.macro("TILE", 16, 32), pen.macro("LINES", 4, 8)
    buffer, across, down, row, column, j = (
        pen.name(role) for role in ("tile", "stride", "step", "row", "column", "entry")
    )  # fmt: skip
    tree = pen.formula(1 + len(scalars), extra=1)
    value = pen.render(tree, [f"{buffer}[{across}][{down} + {j}]", *scalars])
    pen.launch = {"grid": f"ceil_div({columns}, TILE) * ceil_div({rows}, TILE)", "block": "TILE * LINES"}
    many = pen.name("tiles across_all per_line")
    pad = pen.pick(" + 1", " + 1", "")
    left, top = pen.name("left first_column"), pen.name("top first_row")
    there, here = f"{array}[{row} * {columns} + {column}]", f"{buffer}[{down} + {j}][{across}]"
    load = [
        pen.declare(pen.wide, row, f"{top} + {down} + {j}"), pen.declare(pen.wide, column, f"{left} + {across}"),
        f"if ({row} < {rows} && {column} < {columns}) {here} = {there};",
    ]  # fmt: skip
    inside = f"{left} + {down} + {j} < {columns} && {top} + {across} < {rows}"
    save = [f"if ({inside}) {output}[({left} + {down} + {j}) * {rows} + {top} + {across}] = {value};"]
    lines = [
        f"__shared__ {pen.value} {buffer}[{tile}][{tile}{pad}];",
        pen.declare(pen.wide, many, f"({columns} + {tile} - 1) / {tile}"),
        pen.declare(pen.wide, left, f"blockIdx.x % {many} * {tile}"),
        pen.declare(pen.wide, top, f"blockIdx.x / {many} * {tile}"),
        pen.declare("int", across, f"threadIdx.x % {tile}"), pen.declare("int", down, f"threadIdx.x / {tile}"),
        f"for (int {j} = 0; {j} < {tile}; {j} += {lines_}) {{", *indent(load), "}", "__syncthreads();",
        *([pen.unroll(8)] if pen.chance(0.3) else []),
        f"for (int {j} = 0; {j} < {tile}; {j} += {lines_}) {{", *indent(save), "}",
    ]  # fmt: skip
    return pen.file("transpose", entry, lines)


def _fields(pen: Pen, entry: str) -> str:
    """Records of a few fields from or to one array for each field."""
    count, array, output = pen.size(), pen.input(), pen.output()
    fields = pen.macro("FIELDS", 2, 3, 4, 6, 8)
    scalars = [pen.scalar()] if pen.chance(0.3) else []
    tree, back = pen.formula(1 + len(scalars), extra=1), pen.chance(0.5)

    def body(i: str) -> list[str]:
        f = pen.name("field f part")
        apart, together = f"{f} * {count} + {i}", f"{i} * {fields} + {f}"
        source, target = (apart, together) if back else (together, apart)
        put = pen.put(output, target, pen.render(tree, [pen.read(array, source), *scalars]))
        return pen.loop(f, "0", fields, [put], type_=pen.small, unroll=8)

    return pen.file("transpose", entry, pen.each(count, body))
