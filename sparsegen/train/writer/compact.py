"""Compactions: of every row or chunk, the items that a condition keeps are counted or moved together."""

from __future__ import annotations

from sparsegen.train.idioms import Pen

VERBS = "compact keep prune drop_small filter_entries count_kept squeeze"


def write(pen: Pen) -> str:
    entry = pen.entry(VERBS, "rows entries above chunks matrix")
    sparse = pen.chance(0.6)
    if sparse:
        pen.stored("csr")
        count, starts = "m", "indptr"
    else:
        count, starts = pen.size("chunk chunks groups rows"), pen.input("starts", pen.offset)
    array = "" if sparse else pen.input()
    limit = pen.scalar()
    only_count = pen.chance(0.35)
    target = "" if only_count else pen.input("targets to_starts new_starts", pen.offset)
    kept = pen.output(pen.index if only_count else "")
    columns = pen.output(pen.index) if sparse and not only_count else ""
    p, to, value = pen.name("entry"), pen.name("to kept_at put next_place"), pen.name("value")
    offdiagonal = sparse and pen.chance(0.3)

    def body(row: str) -> list[str]:
        here = pen.entry_value(p) if sparse else pen.read(array, p)
        magnitude = pen.pick(value, f"({value} < 0 ? -{value} : {value})", f"{value} * {value}")
        condition = f"{magnitude} {pen.pick('>', '>=', '<')} {limit}"
        if offdiagonal:
            condition = f"indices[{p}] != {row} && {condition}"
        if only_count:
            name = pen.name("many counted kept_here")
            more = pen.pick(f"if ({condition}) ++{name};", f"{name} += {condition};")
            inner = [pen.declare(pen.acc, value, here), more]
            loop = pen.loop(p, f"{starts}[{row}]", f"{starts}[{row} + 1]", inner, type_=pen.offset, unroll=4)
            return [f"{pen.index} {name} = 0;", *loop, f"{kept}[{row}] = {name};"]
        moved = [f"{kept}[{to}] = {value};", *([f"{columns}[{to}] = indices[{p}];"] if columns else []), f"++{to};"]
        inner = [pen.declare(pen.acc, value, here), *pen.block(f"if ({condition})", moved)]
        loop = pen.loop(p, f"{starts}[{row}]", f"{starts}[{row} + 1]", inner, type_=pen.offset)
        return [f"{pen.offset} {to} = {target}[{row}];", *loop]

    return pen.file("compact", entry, pen.each(count, body, role="row"))
