"""Small dense blocks: sums over block rows (BSR), products of little matrices, several sums in registers."""

from __future__ import annotations

from sparsegen.train.idioms import Pen

VERBS = "blocks rows_of_blocks tiles small_products micro block_sums per_block"


def write(pen: Pen) -> str:
    entry = pen.entry(VERBS, "sum apply product norm batch")
    R, S = pen.macro("R", 2, 3, 4, 6, 8), pen.macro("S", 2, 3, 4, 6)
    sums, r, s = pen.name("sums totals results acc"), pen.name("r rr a i"), pen.name("s cc b j")
    if pen.chance(0.3):
        return _batch(pen, entry, R, S, sums, r, s)
    pen.stored("bsr")
    inputs = [pen.input() for _ in range(pen.pick(0, 1, 1, 1))]
    output = pen.output()
    tree = pen.formula(1 + len(inputs), extra=1)
    block, p, first = pen.name("block b_number entry"), pen.name("entry"), pen.name("first column")

    def body(block_row: str) -> list[str]:
        near = pen.name("near column_values there") if inputs and pen.chance(0.4) else ""
        at = f"{near}[{s}]" if near else f"{inputs[0]}[{first} + {s}]" if inputs else ""
        lines = [pen.declare(pen.wide, p, f"{pen.wide if ' ' not in pen.wide else ''}({block}) * ({R} * {S})")]
        if near:
            lines.append(f"const {pen.value}* {near} = {inputs[0]} + indices[{block}] * {S};")
        elif inputs:
            lines.append(pen.declare(pen.wide, first, f"indices[{block}] * {S}"))
        value = pen.name("value") if at and pen.chance(0.5) else ""
        term = pen.render(tree, [pen.entry_value(f"{p} + {r} * {S} + {s}"), *([value or at] if at else [])])
        inner = pen.loop(r, "0", R, [f"{sums}[{r}] += {term};"], type_=pen.small, unroll=8)
        if value:
            inner = [pen.declare(pen.acc, value, at), *inner]
        lines += pen.loop(s, "0", S, inner, type_=pen.small, unroll=8)
        put = pen.put(output, f"{block_row} * {R} + {r}", f"{sums}[{r}]")
        return [
            f"{pen.acc} {sums}[{R}] = {{}};",
            *pen.loop(block, f"indptr[{block_row}]", f"indptr[{block_row} + 1]", lines, type_=pen.offset),
            *pen.loop(r, "0", R, [put], type_=pen.small, unroll=8),
        ]

    return pen.file("blocks", entry, pen.each("block_rows", body, role="row"))


def _batch(pen: Pen, entry: str, R: str, S: str, sums: str, r: str, s: str) -> str:
    """Many R x S matrices, each with a vector of its own."""
    count, matrices, vectors = pen.size(), pen.input(), pen.input()
    output = pen.output()
    adds = pen.chance(0.4)

    def body(item: str) -> list[str]:
        term = f"{pen.read(matrices, f'({item} * {R} + {r}) * {S} + {s}')} * {pen.read(vectors, f'{item} * {S} + {s}')}"
        where = f"{item} * {R} + {r}"
        put = f"{output}[{where}] += {sums};" if adds else pen.put(output, where, sums)
        inner = pen.loop(s, "0", S, [f"{sums} += {term};"], type_=pen.small, unroll=8)
        return pen.loop(r, "0", R, [f"{pen.acc} {sums} = 0;", *inner, put], type_=pen.small, unroll=8)

    return pen.file("blocks", entry, pen.each(count, body, role="index"))
