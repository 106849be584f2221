"""Diagonals: rows multiplied by what lies at fixed distances, with the distances as literals or in an array."""

from __future__ import annotations

from sparsegen.train.idioms import Pen, indent

VERBS = "diagonals banded band_rows shifts along offsets_from"


def write(pen: Pen) -> str:
    entry = pen.entry(VERBS, "sum apply product rows literal")
    d, column, total = pen.name("d diagonal k_th"), pen.name("column"), pen.name("sum")
    if pen.own and pen.chance(0.6):
        pen.stored("dia")
        array, output, many, rows, columns = pen.input(), pen.output(), "DIAGONALS", "m", "n"
        distances = pen.name("offsets distances shifts_of")
        head = [f"{'constexpr' if not pen.cuda else 'const'} int64_t {distances}[DIAGONALS] = OFFSETS;"]
        stored, by_diagonal = True, True
        if not pen.cuda and pen.chance(0.5):
            return pen.file("diagonals", entry, [*head, *_wide(pen, array, output, distances, d, column, total)])
    else:
        rows, columns, many = pen.size("rows"), pen.size("columns"), pen.size("diagonals bands count")
        distances, matrix = pen.input("offsets distances shifts_of", pen.pick(pen.index, "int")), pen.input()
        array, output, head = pen.input(), pen.output(), []
        stored, by_diagonal = False, pen.chance(0.6)
    tree = pen.formula(2, extra=1)

    def body(row: str) -> list[str]:
        slot = f"{d} * {rows} + {row}" if by_diagonal else f"{row} * {many} + {d}"
        value = pen.entry_value(slot) if stored else pen.read(matrix, slot)
        term = f"{total} += {pen.render(tree, [value, pen.read(array, column)])};"
        guard = f"if ({column} >= 0 && {column} < {columns})"
        inner = [pen.declare(pen.wide, column, f"{row} + {distances}[{d}]"), *pen.block(guard, [term])]
        loop = pen.loop(d, "0", many, inner, type_=pen.small, unroll=16)
        return [f"{pen.acc} {total} = 0;", *loop, pen.put(output, row, total)]

    return pen.file("diagonals", entry, [*head, *pen.each(rows, body, role="row")])


def _wide(pen: Pen, array: str, output: str, distances: str, d: str, column: str, total: str) -> list[str]:
    """C++: a vector of consecutive rows where all its columns are there, single rows at the ends."""
    row, one, doubt = pen.name("row"), pen.name("sum"), pen.name("doubt")
    pen.launch, pen.epilogue = {"items": "m"}, True
    inside = f"{row} + WIDTH <= end && {row} + {distances}[0] >= 0 && {row} + {distances}[DIAGONALS - 1] + WIDTH <= n"
    fast = [
        f"vector {total} = {{}};",
        *pen.loop(d, "0", "DIAGONALS",
                  [f"{total} += VALUES_AT({d} * m + {row}) * load({array} + {row} + {distances}[{d}]);"], unroll=16),
        f"STORE_LANES({output}, {row}, {total}, {doubt});", f"{row} += WIDTH;",
    ]  # fmt: skip
    slow = [
        f"ACC {one} = 0;",
        *pen.loop(d, "0", "DIAGONALS", [
            pen.declare("int64_t", column, f"{row} + {distances}[{d}]"),
            f"if ({column} >= 0 && {column} < n) {one} += VALUE_AT({d} * m + {row}) * {pen.read(array, column)};",
        ]),
        f"STORE({output}, {row}, {one});", f"++{row};",
    ]  # fmt: skip
    body = [f"if ({inside}) {{", *indent(fast), "} else {", *indent(slow), "}"]
    return [
        f"vector {doubt} = {{}};", f"int64_t {row} = begin;", f"while ({row} < end) {{", *indent(body), "}",
        f"REPORT({doubt});",
    ]  # fmt: skip
