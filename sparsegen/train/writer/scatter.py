"""Scatters: an item writes where an index array says; added up atomically in CUDA where places may repeat."""

from __future__ import annotations

from sparsegen.train.idioms import Pen

VERBS = "scatter push place spread assemble write_back distribute"


def write(pen: Pen) -> str:
    entry = pen.entry(VERBS, "values add rows into updates")
    count = pen.size()
    keys = pen.input("keys", pen.index)
    columns = pen.input("columns", pen.index) if pen.chance(0.3) else ""
    width = pen.size("stride") if columns else pen.size("columns") if pen.chance(0.2) else ""
    inputs = [pen.input() for _ in range(pen.pick(1, 1, 2))]
    scalars = [pen.scalar() for _ in range(pen.pick(0, 1))]
    output = pen.output()
    tree = pen.formula(len(inputs) + len(scalars), extra=1)
    adds = pen.chance(0.55)
    skips = pen.chance(0.25)

    def target(place: str, value: str) -> str:
        if not adds:
            return f"{output}[{place}] = {value};"
        if not pen.cuda:
            if pen.own and pen.chance(0.5):
                pen.epilogue = True
                return f"ADD({output}, {place}, {value});"
            return f"{output}[{place}] += {value};"
        if pen.own and pen.chance(0.5):
            pen.epilogue = True
            return f"ATOMIC_ADD({output}, {place}, {value});"
        cast = "VALUE" if pen.own else pen.value
        return f"atomicAdd({pen.pick(f'&{output}[{place}]', f'{output} + {place}')}, {cast}({value}));"

    def body(i: str) -> list[str]:
        key, column, lines = pen.name("to target there row"), pen.name("column"), []
        place, at = keys and f"{keys}[{i}]", i
        if pen.chance(0.5) or width or skips:
            lines.append(pen.declare(pen.pick(pen.index, pen.wide), key, place))
            place = key
        if columns:
            place = f"{pen.wide}({place}) * {width} + {columns}[{i}]" if " " not in pen.wide else \
                f"{place} * {width} + {columns}[{i}]"  # fmt: skip
        elif width:
            place, at = f"{place} * {width} + {column}", f"{i} * {width} + {column}"
        value = pen.render(tree, [*(pen.read(array, at) for array in inputs), *scalars])
        if pen.chance(0.4):
            name = pen.name("value")
            done = [pen.declare(pen.acc, name, value), target(place, name)]
        else:
            done = [target(place, value)]
        if width and not columns:
            done = pen.loop(column, "0", width, done)
        return [*lines, *(pen.block(f"if ({key} >= 0)", done) if skips else done)]

    return pen.file("scatter", entry, pen.each(count, body))
