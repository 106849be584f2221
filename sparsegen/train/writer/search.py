"""Searches: where an item falls among sorted bounds, row numbers from row pointers, matches of two sorted lists."""

from __future__ import annotations

from sparsegen.train.idioms import Pen, indent

VERBS = "search locate find lower_bound owner expand_rows intersect matches"


def write(pen: Pen) -> str:
    entry = pen.entry(VERBS, "rows sorted keys of_entries bounds")
    if pen.chance(0.25):
        return _intersect(pen, entry)
    if pen.chance(0.3):
        return _expand(pen, entry)
    count, size = pen.size(), pen.size("limit many rows")
    bounds, keys = pen.input("starts", pen.offset), pen.input("keys", pen.pick(pen.index, pen.offset))
    payload = pen.input() if pen.chance(0.4) else ""
    output = pen.output("" if payload else pen.index)
    low, high, middle, key = (
        pen.name(role)
        for role in ("low left lo lower", "high right hi upper", "middle mid half_way", "wanted key goal")
    )
    compare = pen.pick("<", "<=")
    half = pen.pick(f"({low} + {high}) / 2", f"{low} + ({high} - {low}) / 2", f"({low} + {high}) >> 1")
    step = [
        pen.declare(pen.wide, middle, half),
        *pen.pick(
            [f"if ({bounds}[{middle}] {compare} {key}) {low} = {middle} + 1;", f"else {high} = {middle};"],
            [f"if ({bounds}[{middle}] {compare} {key}) {{", f"    {low} = {middle} + 1;", "} else {",
             f"    {high} = {middle};", "}"],
        ),
    ]  # fmt: skip
    function = pen.chance(0.35)
    if function:
        name, array, wanted, many = pen.name("position_of rank first_at"), "sorted_bounds", "looked_for", "how_many"
        lines = [f"{pen.wide} {low} = 0, {high} = {many};", f"while ({low} < {high}) {{", *indent(step), "}",
                 f"return {low};"]  # fmt: skip
        head = "__device__ __forceinline__" if pen.cuda else "inline"
        text = f"{head} {pen.wide} {name}(const {pen.offset}* {array}, {pen.wide} {many}, {pen.wide} {wanted}) {{"
        renamed = [line.replace(f"{bounds}[", f"{array}[").replace(f" {key})", f" {wanted})") for line in lines]
        pen.helpers = [text, *indent(renamed), "}", ""]

    def body(i: str) -> list[str]:
        found = low
        lines = [pen.declare(pen.wide, key, pen.pick(f"{keys}[{i}]", f"{keys}[{i}]"))]
        if function:
            found = pen.name("found where place")
            lines.append(pen.declare(pen.wide, found, f"{name}({bounds}, {size}, {key})"))
        else:
            lines += [f"{pen.wide} {low} = 0, {high} = {size};", f"while ({low} < {high}) {{", *indent(step), "}"]
        if payload:
            return [*lines, f"{output}[{i}] = {found} < {size} ? {payload}[{found}] : {pen.constant()};"]
        value = pen.pick(found, f"{found} > 0 ? {found} - 1 : 0")
        return [*lines, f"{output}[{i}] = {value};"]

    return pen.file("search", entry, pen.each(count, body))


def _expand(pen: Pen, entry: str) -> str:
    """The row of every entry, or a value per row at each of its entries."""
    pen.stored("csr")
    per_row = pen.input() if pen.chance(0.6) else ""
    output = pen.output("" if per_row else pen.index)
    p, tree = pen.name("entry"), pen.formula(2, extra=1)

    def body(row: str) -> list[str]:
        value = pen.render(tree, [pen.entry_value(p), pen.read(per_row, row)]) if per_row else row
        put = f"{output}[{p}] = {value};"
        return pen.loop(p, f"indptr[{row}]", f"indptr[{row} + 1]", [put], type_=pen.offset, unroll=8)

    return pen.file("search", entry, pen.each("m", body, role="row"))


def _intersect(pen: Pen, entry: str) -> str:
    """A sparse dot product: two sorted index lists, walked together."""
    count = pen.size("pairs rows count")
    starts, other = pen.input("starts", pen.offset), pen.input("starts", pen.offset)
    keys, second = pen.input("keys", pen.index), pen.input("keys", pen.index)
    values, factors, output = pen.input(), pen.input(), pen.output()
    p, q, total, past, end = (pen.name(role) for role in ("p a_at i", "q b_at j", "sum", "bound", "bound"))
    sparse = [f"{total} += {pen.read(values, p)} * {pen.read(factors, q)};", f"++{p};", f"++{q};"]

    def body(row: str) -> list[str]:
        walk = [
            *pen.block(f"if ({keys}[{p}] == {second}[{q}])", sparse),
            f"else if ({keys}[{p}] < {second}[{q}]) ++{p};", f"else ++{q};",
        ]  # fmt: skip
        return [
            f"{pen.offset} {p} = {starts}[{row}], {q} = {other}[{row}];",
            f"const {pen.offset} {past} = {starts}[{row} + 1], {end} = {other}[{row} + 1];", f"{pen.acc} {total} = 0;",
            f"while ({p} < {past} && {q} < {end}) {{", *indent(walk), "}", pen.put(output, row, total),
        ]  # fmt: skip

    return pen.file("search", entry, pen.each(count, body, role="row"))
