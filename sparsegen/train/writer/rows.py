"""Rows of a CSR matrix: sums, norms and extremes, weighted by vectors; one thread, some lanes or a vector to a row."""

from __future__ import annotations

from sparsegen.train.idioms import Pen

VERBS = "row_walk row_sums row_norms weighted per_row matrix_rows graph degrees neighbours"


def write(pen: Pen) -> str:
    entry = pen.entry(VERBS, "csr sum update reduce apply")
    listed = pen.chance(0.15)
    pen.stored("dcsr" if listed else "csr")
    count = "stored_rows" if listed else "m"
    inputs = [pen.input() for _ in range(pen.pick(0, 1, 1, 1, 2))]
    here = [pen.input("diagonal weight bias d")] if pen.chance(0.3) else []
    output = pen.output()
    how = pen.pick("one", "one", "lanes" if pen.cuda else "wide", "lanes" if pen.cuda else "ways")
    how = "one" if how == "wide" and not pen.own else how
    tree = pen.formula(1 + len(inputs), extra=1, plain=True)
    last = pen.formula(1 + len(here), extra=1) if here or pen.chance(0.25) else ("leaf", 0)
    init, take = pen.combiner() if how == "one" else ("0", lambda s, v: f"{s} += {v};")
    p, total = pen.name("entry"), pen.name("sum")
    names = bool(inputs) and pen.chance(0.4)

    def term(place: str) -> str:
        leaves = [pen.read(array, f"indices[{place}]") for array in inputs]
        return pen.render(tree, [pen.entry_value(place), *leaves])

    def body_of(place: str) -> list[str]:
        if not names:
            return [take(total, term(place))]
        column, value = pen.name("column"), pen.name("value")
        leaves = [pen.read(array, column) for array in inputs]
        lines = [pen.declare(pen.index, column, f"indices[{place}]")]
        text = pen.render(tree, [pen.entry_value(place), *leaves])
        return [*lines, pen.declare(pen.acc, value, text), take(total, value)]

    def end(row: str) -> str:
        target = f"rows[{row}]" if listed else row
        return pen.put(output, target, pen.render(last, [total, *(pen.read(array, target) for array in here)]))

    if how == "lanes":
        return pen.file("rows", entry, _lanes(pen, count, p, total, body_of, end))

    def one(row: str) -> list[str]:
        past = pen.name("bound")
        if how == "wide":
            return [*_wide(pen, row, p, past, total, tree, inputs, term), end(row)]
        if how == "ways":
            return [*_ways(pen, row, p, past, total, term), end(row)]
        lines = [f"{pen.acc} {total} = {init};"]
        stop = f"indptr[{row} + 1]"
        if pen.chance(0.5):
            lines.append(pen.declare(pen.offset, past, stop))
            stop = past
        return [*lines, *pen.loop(p, f"indptr[{row}]", stop, body_of(p), type_=pen.offset, unroll=4), end(row)]

    return pen.file("rows", entry, pen.each(count, one, role="row"))


def _lanes(pen: Pen, count: str, p: str, total: str, body_of, end) -> list[str]:
    """CUDA: THREADS_PER_ROW lanes walk along a row and add up with shuffles; those past the end stay for them."""
    lanes = pen.macro(pen.pick("THREADS_PER_ROW", "THREADS_PER_ROW", "LANES_PER_ROW"), 2, 4, 8, 16, 32)
    _, thread = pen.threads()
    row, lane, past = pen.name("row"), pen.name("lane"), pen.name("bound")
    pen.launch = {"grid": f"ceil_div({count} * {lanes}, BLOCK)", "block": "BLOCK"}
    loop = pen.loop(p, f"indptr[{row}] + {lane}", past, body_of(p), type_=pen.offset, step=lanes)
    return [
        pen.declare(pen.wide, row, f"({thread}) / {lanes}"), pen.declare("int", lane, f"threadIdx.x % {lanes}"),
        f"{pen.acc} {total} = 0;",
        *pen.block(f"if ({row} < {count})", [pen.declare(pen.offset, past, f"indptr[{row} + 1]"), *loop]),
        *pen.warp_sum(total, lanes), f"if ({row} < {count} && {lane} == 0) {end(row)}",
    ]  # fmt: skip


def _wide(pen: Pen, row: str, p: str, past: str, total: str, tree: tuple, inputs: list[str], term) -> list[str]:
    """C++: WIDTH entries at a time, gathered; the rest one by one."""
    wide = pen.name("sums many partial_sums")

    def taken(place: str) -> str:
        leaves = [f"gather({array}, indices + {place})" for array in inputs]
        return pen.render(tree, [f"VALUES_AT({place})", *leaves], wide=True)

    start = [f"OFFSET {p} = indptr[{row}];", pen.declare("OFFSET", past, f"indptr[{row} + 1]")]
    rest = pen.loop(p, "", past, [f"{total} += {term(p)};"], declared=True)
    if pen.chance(0.35):
        other = pen.name("odd more second")
        return [
            *start, f"vector {wide} = {{}}, {other} = {{}};",
            *pen.block(f"for (; {p} + 2 * WIDTH <= {past}; {p} += 2 * WIDTH)",
                       [f"{wide} += {taken(p)};", f"{other} += {taken(f'{p} + WIDTH')};"]),
            f"ACC {total} = total({wide} + {other});", *rest,
        ]  # fmt: skip
    return [
        *start, f"vector {wide} = {{}};",
        *pen.block(f"for (; {p} + WIDTH <= {past}; {p} += WIDTH)", [f"{wide} += {taken(p)};"]),
        f"ACC {total} = total({wide});", *rest,
    ]  # fmt: skip


def _ways(pen: Pen, row: str, p: str, past: str, total: str, term) -> list[str]:
    """Several sums that do not wait for each other, and what is left."""
    ways = pen.pick(2, 2, 4)
    sums = pen.numbered("sum", ways)
    inner = [f"{each} += {term(f'{p} + {number}' if number else p)};" for number, each in enumerate(sums)]
    return [
        f"{pen.offset} {p} = indptr[{row}];", pen.declare(pen.offset, past, f"indptr[{row} + 1]"),
        f"{pen.acc} {', '.join(f'{each} = 0' for each in sums)};",
        *pen.block(f"for (; {p} + {ways} <= {past}; {p} += {ways})", inner),
        *pen.loop(p, "", past, [f"{sums[0]} += {term(p)};"], declared=True),
        pen.declare(pen.acc, total, " + ".join(sums)),
    ]  # fmt: skip
