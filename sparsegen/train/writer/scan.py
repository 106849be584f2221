"""Scans: running sums and maxima, of a row or chunk by one thread, or of a warp or block together."""

from __future__ import annotations

from sparsegen.train.idioms import Pen, indent

VERBS = "scan prefix running cumulative accumulate offsets_of"


def write(pen: Pen) -> str:
    entry = pen.entry(VERBS, "sum rows chunks values block")
    if pen.cuda and pen.chance(0.65):
        return _block(pen, entry)
    return _pieces(pen, entry)


def _pieces(pen: Pen, entry: str) -> str:
    """One item is a row, or what lies between two pointers."""
    pointers = pen.chance(0.4)
    count = pen.size("rows")
    length = "" if pointers else pen.size("columns")
    starts = pen.input("starts", pen.offset) if pointers else ""
    array, whole = pen.input(), pen.chance(0.3)
    type_ = pen.index if whole else pen.acc
    if whole:
        pen.arguments[-1] = pen.arguments[-1].replace(pen.value, pen.index, 1)
    weights = pen.input() if pen.chance(0.35) and not whole else ""
    output = pen.output(pen.index if whole else "")
    tree = pen.formula(2 if weights else 1, extra=1)
    exclusive, most = pen.chance(0.5), pen.chance(0.2)

    def body(row: str) -> list[str]:
        at, running, value = pen.name("entry"), pen.name("sum"), pen.name("value")
        here = f"{array}[{at}]"
        if not whole:
            here = pen.render(tree, [pen.read(array, at), *([pen.read(weights, at)] if weights else [])])
        step = f"{running} = {running} < {value} ? {value} : {running};" if most else f"{running} += {value};"
        put = f"{output}[{at}] = {running};"
        lines = [pen.declare(type_, value, here), *([put, step] if exclusive else [step, put])]
        first = f"{starts}[{row}]" if pointers else f"{row} * {length}"
        after = pen.pick(f"{row} * {length} + {length}", f"({row} + 1) * {length}")
        past = f"{starts}[{row} + 1]" if pointers else after
        carry = pen.declare(type_, running, "0", const=False)
        return [carry, *pen.loop(at, first, past, lines, type_=pen.offset if pointers else "")]

    return pen.file("scan", entry, pen.each(count, body, role="row"))


def _block(pen: Pen, entry: str) -> str:
    """CUDA: a thread brings one value, or ITEMS; the block's running sum is written, its end kept for another pass."""
    count, array = pen.size(), pen.input()
    weights = pen.input() if pen.chance(0.3) else ""
    output = pen.output()
    ends = pen.output() if pen.chance(0.5) else ""
    block, thread = pen.threads()
    size = block if pen.own else str(pen.pick(128, 256, 512))
    i, mine, step, lane = pen.name("index"), pen.name("sum"), pen.name("step"), pen.name("lane")
    tree = pen.formula(2 if weights else 1, extra=1)
    value = pen.render(tree, [pen.read(array, i), *([pen.read(weights, i)] if weights else [])])
    pen.launch = {"grid": f"ceil_div({count}, BLOCK)", "block": "BLOCK"}
    lines = [
        pen.declare(pen.wide, i, thread),
        f"{pen.acc} {mine} = {i} < {count} ? {pen.acc}({value}) : {pen.acc}(0);",
    ]
    if pen.chance(0.55):
        lines += _shuffles(pen, mine, step, lane, size)
    else:
        tile, other = pen.name("tile"), pen.name("value")
        inner = [
            pen.declare(pen.acc, other, f"threadIdx.x >= {step} ? {tile}[threadIdx.x - {step}] : {pen.acc}(0)"),
            "__syncthreads();", f"{tile}[threadIdx.x] += {other};", "__syncthreads();",
        ]  # fmt: skip
        lines += [
            f"__shared__ {pen.acc} {tile}[{size}];", f"{tile}[threadIdx.x] = {mine};", "__syncthreads();",
            pen.doubling(step, size), *indent(inner), "}", f"{mine} = {tile}[threadIdx.x];",
        ]  # fmt: skip
    lines.append(f"if ({i} < {count}) {pen.put(output, i, mine)}")
    if ends:
        lines.append(f"if (threadIdx.x == {size} - 1) {ends}[blockIdx.x] = {mine};")
    return pen.file("scan", entry, lines)


def _shuffles(pen: Pen, mine: str, step: str, lane: str, size: str) -> list[str]:
    other, shared, warp, before = pen.name("value"), pen.name("tile"), pen.name("warp w"), pen.name("carry before")
    up = f"__shfl_up_sync({pen.mask}, {mine}, {step})"
    inner = [pen.declare(pen.acc, other, up), f"if ({lane} >= {step}) {mine} += {other};"]
    lines = [
        pen.declare("int", lane, pen.pick("threadIdx.x % 32", "threadIdx.x & 31")),
        pen.doubling(step, "32"), *indent(inner), "}",
    ]  # fmt: skip
    return [
        *lines, f"__shared__ {pen.acc} {shared}[{size} / 32];",
        pen.declare("int", warp, pen.pick("threadIdx.x / 32", "threadIdx.x >> 5")),
        f"if ({lane} == 31) {shared}[{warp}] = {mine};", "__syncthreads();", f"{pen.acc} {before} = 0;",
        *pen.loop(other := pen.name("each o piece"), "0", warp, [f"{before} += {shared}[{other}];"], type_="int"),
        f"{mine} += {before};",
    ]  # fmt: skip
