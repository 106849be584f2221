"""Segmented sums: neighbours with one key are added up, by runs in C++, by a scan of a warp or atomically in CUDA."""

from __future__ import annotations

from sparsegen.train.idioms import Pen, indent

VERBS = "segments runs by_key grouped sum_runs collapse"


def write(pen: Pen) -> str:
    entry = pen.entry(VERBS, "sum rows keys add entries")
    if pen.chance(0.35):
        return _pointers(pen, entry)
    if coo := pen.chance(0.5):
        pen.stored("coo")
        keys, count = "rows", "nnz"
    else:
        count, keys = pen.size(), pen.input("keys", pen.index)
    arrays = [] if coo else [pen.input()]
    if coo or pen.chance(0.4):
        arrays += [pen.input()] if pen.chance(0.75) else []
    output = pen.output()
    tree = pen.formula(coo + len(arrays), extra=1)

    def value(p: str) -> str:
        places = [f"indices[{p}]" if coo else p] * len(arrays)
        leaves = [pen.read(array, place) for array, place in zip(arrays, places, strict=True)]
        return pen.render(tree, [*([pen.entry_value(p)] if coo else []), *leaves])

    lines = _warp(pen, keys, count, output, value) if pen.cuda else _runs(pen, keys, count, output, value)
    return pen.file("segmented", entry, lines)


def _add(pen: Pen, output: str, key: str, value: str) -> str:
    if pen.own and pen.chance(0.7):
        pen.epilogue = True
        return f"{'ATOMIC_ADD' if pen.cuda else 'ADD'}({output}, {key}, {value});"
    if not pen.cuda:
        return f"{output}[{key}] += {value};"
    cast = f"{'VALUE' if pen.own else pen.value}({value})"
    return f"atomicAdd(&{output}[{key}], {cast});"


def _runs(pen: Pen, keys: str, count: str, output: str, value) -> list[str]:
    p, key, total = pen.name("entry"), pen.name("row"), pen.name("sum")
    pen.launch = {"items": count}
    first, past = ("begin", "end") if pen.own else ("0", count)
    add = _add(pen, output, key, total)
    if pen.chance(0.5):
        more = pen.pick(f"while (++{p} < {past} && {keys}[{p}] == {key});",
                        f"while ({p} < {past} && {keys}[{p}] == {key});")  # fmt: skip
        step = [] if "++" in more else [f"++{p};"]
        body = [
            pen.declare(pen.index, key, f"{keys}[{p}]"), f"{pen.acc} {total} = 0;",
            "do {", *indent([f"{total} += {value(p)};", *step]), "} " + more, add,
        ]  # fmt: skip
        return [f"for ({pen.wide} {p} = {first}; {p} < {past};) {{", *indent(body), "}"]
    body = [
        f"if ({keys}[{p}] != {key}) {{", *indent([add, f"{key} = {keys}[{p}];", f"{total} = 0;"]), "}",
        f"{total} += {value(p)};",
    ]  # fmt: skip
    return [
        f"if ({first} >= {past}) return;", f"{pen.index} {key} = {keys}[{first}];", f"{pen.acc} {total} = 0;",
        *pen.loop(p, first, past, body), add,
    ]  # fmt: skip


def _warp(pen: Pen, keys: str, count: str, output: str, value) -> list[str]:
    _, thread = pen.threads()
    p, key, total, lane = pen.name("entry"), pen.name("row"), pen.name("sum"), pen.name("lane")
    pen.launch = {"grid": f"ceil_div({count}, BLOCK)", "block": "BLOCK"}
    start = pen.declare(pen.wide, p, thread)
    if pen.chance(0.3):
        return [start, f"if ({p} < {count}) {_add(pen, output, f'{keys}[{p}]', value(p))}"]
    step, other, other_key = pen.name("step"), pen.name("value"), pen.name("key theirs other_row")
    index = "int" if pen.index == "unsigned" else pen.index
    last = pen.name("next_row following after")
    inner = [
        pen.declare(pen.acc, other, f"__shfl_up_sync({pen.mask}, {total}, {step})"),
        pen.declare(index, other_key, f"__shfl_up_sync({pen.mask}, {key}, {step})"),
        f"if ({lane} >= {step} && {other_key} == {key}) {total} += {other};",
    ]
    none = f"{index}(-1)" if " " not in index else "-1"
    return [
        start, pen.declare("int", lane, pen.pick("threadIdx.x % 32", "threadIdx.x & 31")),
        pen.declare(index, key, f"{p} < {count} ? {index if ' ' not in index else ''}({keys}[{p}]) : {none}"),
        f"{pen.acc} {total} = {p} < {count} ? {pen.acc}({value(p)}) : {pen.acc}(0);",
        pen.doubling(step, "32"), *indent(inner), "}",
        pen.declare(index, last, f"__shfl_down_sync({pen.mask}, {key}, 1)"),
        f"if ({key} >= 0 && ({lane} == 31 || {last} != {key})) {_add(pen, output, key, total)}",
    ]  # fmt: skip


def _pointers(pen: Pen, entry: str) -> str:
    """Segments lie between two pointers; one item, or some lanes, own each."""
    count, starts = pen.size("segments groups rows count"), pen.input("starts", pen.offset)
    arrays = [pen.input() for _ in range(pen.pick(1, 1, 2))]
    keys = pen.input("keys", pen.index) if pen.chance(0.4) else ""
    output = pen.output()
    tree = pen.formula(len(arrays), extra=1)
    init, take = pen.combiner()

    def value(p: str) -> str:
        places = [f"{keys}[{p}]" if keys and array == arrays[-1] else p for array in arrays]
        return pen.render(tree, [pen.read(array, place) for array, place in zip(arrays, places, strict=True)])

    p, total = pen.name("entry"), pen.name("sum")
    if pen.cuda and pen.chance(0.5):
        lanes = pen.macro("LANES_EACH", 4, 8, 16, 32)
        _, thread = pen.threads()
        segment, lane = pen.name("row"), pen.name("lane")
        pen.launch = {"grid": f"ceil_div({count} * {lanes}, BLOCK)", "block": "BLOCK"}
        loop = pen.loop(
            p, f"{starts}[{segment}] + {lane}", f"{starts}[{segment} + 1]", [f"{total} += {value(p)};"],
            type_=pen.offset, step=lanes,
        )  # fmt: skip
        lines = [
            pen.declare(pen.wide, segment, f"({thread}) / {lanes}"), pen.declare("int", lane, f"threadIdx.x % {lanes}"),
            f"{pen.acc} {total} = 0;", *pen.block(f"if ({segment} < {count})", loop), *pen.warp_sum(total, lanes),
            f"if ({segment} < {count} && {lane} == 0) {pen.put(output, segment, total)}",
        ]  # fmt: skip
        return pen.file("segmented", entry, lines)

    def body(segment: str) -> list[str]:
        loop = pen.loop(
            p, f"{starts}[{segment}]", f"{starts}[{segment} + 1]", [take(total, value(p))], type_=pen.offset, unroll=4
        )
        return [f"{pen.acc} {total} = {init};", *loop, pen.put(output, segment, total)]

    return pen.file("segmented", entry, pen.each(count, body, role="row"))
