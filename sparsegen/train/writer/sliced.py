"""Padded rows, lane by lane: ELL and sliced ELL, a thread to a row in CUDA, a vector of rows with a mask in C++."""

from __future__ import annotations

from sparsegen.train.idioms import Pen, indent

VERBS = "slice_sums padded lanes_of sliced ell_rows columns_first packed_rows"


def write(pen: Pen) -> str:
    entry = pen.entry(VERBS, "sum weighted norm apply walk")
    sliced = pen.chance(0.6)
    pen.stored("sell" if sliced else "ell")
    inputs = [pen.input() for _ in range(pen.pick(0, 1, 1, 1, 2))]
    output = pen.output()
    tree = pen.formula(1 + len(inputs), extra=1, plain=True)
    if pen.own and not pen.cuda and pen.chance(0.65):
        return pen.file("sliced", entry, _wide(pen, sliced, inputs, output, tree))
    slice_ = pen.macro("SLICE", 8, 16, 32) if sliced else ""
    p, j, total = pen.name("entry"), pen.name("index"), pen.name("sum")
    init, take = pen.combiner()

    def term(place: str) -> str:
        return pen.render(tree, [pen.entry_value(place), *(pen.read(array, f"indices[{place}]") for array in inputs)])

    def walk(lane: str, start: str, stride: str) -> list[str]:
        """Along the row of one lane, whose entries are `stride` apart."""
        length = f"lengths[{lane}]"
        if pen.chance(0.5):
            name = pen.name("length count many")
            head, length = [pen.declare(pen.index, name, length)], name
        else:
            head = []
        if pen.chance(0.4):
            more = f"{pen.increment.format(j)}, {p} += {stride}"
            loop = pen.block(f"for ({pen.small} {j} = 0; {j} < {length}; {more})", [take(total, term(p))])
            return [*head, f"{pen.wide} {p} = {start};", f"{pen.acc} {total} = {init};", *loop]
        inner = [pen.declare(pen.wide, p, f"{start} + {j} * {stride}"), take(total, term(p))]
        return [*head, f"{pen.acc} {total} = {init};", *pen.loop(j, "0", length, inner, unroll=4)]

    if not sliced:
        lines = pen.each("m", lambda row: [*walk(row, row, "m"), pen.put(output, row, total)], role="row")
        return pen.file("sliced", entry, lines)
    ordered = pen.chance(0.3)

    def lane_of(lane: str) -> list[str]:
        row, slice_number = pen.name("row"), pen.name("slice chunk block_of")
        lines = [pen.declare(pen.wide, slice_number, f"{lane} / {slice_}")]
        body = walk(lane, f"slices[{slice_number}] + {lane} % {slice_}", slice_)
        if ordered:
            return [*lines, *body, f"if ({lane} < m) {pen.put(output, lane, total)}"]
        return [
            *lines, *body, pen.declare(pen.pick(pen.index, pen.wide), row, f"rows[{lane}]"),
            f"if ({row} >= 0 && {row} < m) {pen.put(output, row, total)}",
        ]  # fmt: skip

    if pen.cuda:
        return pen.file("sliced", entry, pen.each(f"slice_count * {slice_}", lane_of, role="lane"))
    lane, offset = pen.name("lane"), pen.name("step")

    def whole(number: str) -> list[str]:
        inner = [pen.declare(pen.wide, lane, f"{number} * {slice_} + {offset}"), *lane_of(lane)]
        return pen.loop(offset, "0", slice_, inner)

    return pen.file("sliced", entry, pen.each("slice_count", whole, role="slice chunk block_of"))


def _wide(pen: Pen, sliced: bool, inputs: list[str], output: str, tree: tuple) -> list[str]:
    """C++: lane l of a vector is a row; lanes whose row has ended keep their sums."""
    doubt, length, total, step, p, more = (
        pen.name(role)
        for role in ("doubt suspicious", "length lengths_here", "sum", "step", "entry", "more longer next")
    )
    pen.epilogue = True
    leaves = [f"VALUES_AT({p})", *(f"gather({array}, indices + {p})" for array in inputs)]
    value = pen.render(tree, leaves, wide=True)
    added = [
        pen.declare("vector", more, f"{total} + {value}" if " - " not in value else f"{total} + ({value})"),
        f"{total} = {length} > {step} ? {more} : {total};",
    ]
    sums = [f"vector {total} = {{}};", f"lanes {step} = {{}};"]
    head = [f"vector {doubt} = {{}};"]
    if not sliced:
        row, j = pen.name("row"), pen.name("index")
        pen.launch = {"items": "m"}
        inner = [
            pen.declare("lanes", length, f"load_lanes(lengths + {row})"), *sums,
            f"for (int64_t {j} = 0; {j} < width && ANY({length} > {step}); ++{j}, {step} += 1) {{",
            *indent([pen.declare("int64_t", p, f"{j} * m + {row}"), *added]), "}",
            f"STORE_LANES({output}, {row}, {total}, {doubt});",
        ]  # fmt: skip
        loop = [f"int64_t {row} = begin;", f"for (; {row} + WIDTH <= end; {row} += WIDTH) {{", *indent(inner), "}"]
        rest, q = pen.name("sum"), pen.name("entry")
        ones = [pen.entry_value(q), *(pen.read(array, f"indices[{q}]") for array in inputs)]
        tail = [
            f"ACC {rest} = 0;",
            *pen.loop(j, "0", f"lengths[{row}]",
                      [f"const int64_t {q} = {j} * m + {row};", f"{rest} += {pen.render(tree, ones)};"]),
            f"STORE({output}, {row}, {rest});",
        ]  # fmt: skip
        return [*head, *loop, f"REPORT({doubt});", *pen.loop(row, "", "end", tail, declared=True)]
    slice_, lane, past = pen.name("slice chunk block_of"), pen.name("lane"), pen.name("bound")
    part = pen.name("part piece half_of")
    pen.macro("SLICE", 16, 32, 64)
    pen.launch = {"items": "slice_count"}
    stores = pen.pick(f"STORE_EACH({output}, rows[{lane} + l], {total}, m - {lane}, {doubt});", "whole")
    if stores == "whole":
        stores = f"if ({lane} + WIDTH <= m) STORE_LANES({output}, {lane}, {total}, {doubt});"
    inner = [
        pen.declare("int64_t", lane, f"{slice_} * SLICE + {part}"),
        pen.declare("lanes", length, f"load_lanes(lengths + {lane})"), *sums,
        *pen.block(f"for (OFFSET {p} = slices[{slice_}] + {part}; {p} < {past}; {p} += SLICE, {step} += 1)", added),
        stores,
    ]  # fmt: skip
    if "if (" in stores:
        inner.append(f"else STORE_EACH({output}, {lane} + l, {total}, m - {lane}, {doubt});")
    loop = [pen.declare("OFFSET", past, f"slices[{slice_} + 1]"), *pen.loop(part, "0", "SLICE", inner, step="WIDTH")]
    return [*head, *pen.loop(slice_, "begin", "end", loop), f"REPORT({doubt});"]
