"""Several columns at once: a sparse or dense row times a narrow dense matrix, its sums in registers."""

from __future__ import annotations

from sparsegen.train.idioms import Pen, indent

VERBS = "columns panel narrow multi many_vectors thin rows_by_columns"


def write(pen: Pen) -> str:
    entry = pen.entry(VERBS, "product sums apply block mix")
    sparse = pen.chance(0.65)
    if sparse:
        pen.stored("csr")
        rows, wide, ldb = "m", pen.size("columns"), pen.size("stride")
    else:
        rows, inner_size, wide = pen.size("rows"), pen.size("depth inner shared_size"), pen.size("columns")
        ldb, matrix = wide, pen.input()
    array, output = pen.input(), pen.output()
    p, column, total, j = pen.name("entry"), pen.name("column"), pen.name("sum"), pen.name("index")
    tree = pen.pick(("*", ("leaf", 0), ("leaf", 1)), ("*", ("leaf", 0), ("leaf", 1)), pen.formula(2, extra=1))

    def over(row: str, lines: list[str]) -> list[str]:
        if sparse:
            return pen.loop(p, f"indptr[{row}]", f"indptr[{row} + 1]", lines, type_=pen.offset)
        return pen.loop(p, "0", inner_size, lines)

    def entry_of(row: str) -> str:
        return pen.entry_value(p) if sparse else pen.read(matrix, f"{row} * {inner_size} + {p}")

    source = f"indices[{p}]" if sparse else p
    scaled = f"int64_t({source})" if pen.own else source
    if pen.own and not pen.cuda and pen.chance(0.5):
        vectors = pen.name("vector_sums sums wide_sums")
        term = pen.render(tree if tree[0] == "*" else ("*", ("leaf", 0), ("leaf", 1)), [
            f"splat({entry_of('ROW')})", f"load({array} + {scaled} * {ldb} + {column})"], wide=True)  # fmt: skip
        row = pen.name("row")
        term = term.replace("ROW", row)
        rest = pen.render(tree, [entry_of(row), pen.read(array, f"{scaled} * {ldb} + {column}")])
        body = [
            f"int64_t {column} = 0;", f"for (; {column} + WIDTH <= {wide}; {column} += WIDTH) {{",
            *indent([f"vector {vectors} = {{}};", *over(row, [f"{vectors} += {term};"]),
                     f"store({output} + {row} * {wide} + {column}, {vectors});"]), "}",
            *pen.loop(column, "", wide, [f"ACC {total} = 0;", *over(row, [f"{total} += {rest};"]),
                      pen.put(output, f"{row} * {wide} + {column}", total)], declared=True),
        ]  # fmt: skip
        pen.launch = {"items": rows}
        return pen.file("columns", entry, pen.loop(row, "begin", "end", body))
    if pen.chance(0.5):
        return pen.file("columns", entry, _tile(pen, rows, wide, ldb, array, output, tree, over, entry_of, scaled))

    def element(row: str, at: str) -> list[str]:
        term = pen.render(tree, [entry_of(row), pen.read(array, f"{scaled} * {ldb} + {at}")])
        return [
            f"{pen.acc} {total} = 0;", *over(row, [f"{total} += {term};"]),
            pen.put(output, f"{row} * {wide} + {at}", total),
        ]  # fmt: skip

    if pen.cuda:
        row = pen.name("row")

        def item(i: str) -> list[str]:
            places = [pen.declare(pen.wide, row, f"{i} / {wide}"), pen.declare(pen.wide, column, f"{i} % {wide}")]
            return [*places, *element(row, column)]

        return pen.file("columns", entry, pen.each(f"{rows} * {wide}", item))
    return pen.file("columns", entry, pen.each(rows, lambda row: pen.loop(j, "0", wide, element(row, j)), role="row"))


def _tile(pen: Pen, rows, wide, ldb, array, output, tree, over, entry_of, scaled) -> list[str]:
    """TILE columns of one row together, so that an entry of the row is read once for all of them."""
    tile = pen.macro("TILE", 2, 4, 8)
    sums, first, t, value = pen.name("sums parts totals"), pen.name("first"), pen.name("step"), pen.name("value")

    def body(row: str) -> list[str]:
        term = pen.render(tree, [value, pen.read(array, f"{scaled} * {ldb} + {first} + {t}")])
        inside = f"if ({first} + {t} < {wide})"
        inner = pen.loop(t, "0", tile, [f"{inside} {sums}[{t}] += {term};"], type_=pen.small, unroll=8)
        put = f"{inside} {pen.put(output, f'{row} * {wide} + {first} + {t}', f'{sums}[{t}]')}"
        lines = [
            f"{pen.acc} {sums}[{tile}] = {{}};", *over(row, [pen.declare(pen.acc, value, entry_of(row)), *inner]),
            *pen.loop(t, "0", tile, [put], type_=pen.small, unroll=8),
        ]  # fmt: skip
        return pen.loop(first, "0", wide, lines, step=tile)

    return pen.each(rows, body, role="row")
