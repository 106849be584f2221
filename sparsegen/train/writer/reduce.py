"""Reductions: a chunk, a row or a whole array becomes one number, by one sum, several, a vector, or a block."""

from __future__ import annotations

from sparsegen.train.idioms import Pen

VERBS = "sum dot norm largest reduce total_of mean energy squares maximum"


def write(pen: Pen) -> str:
    entry = pen.entry(VERBS, "of rows chunks partial parts")
    if pen.cuda and pen.chance(0.5):
        return _grid(pen, entry)
    return _pieces(pen, entry)


def _pieces(pen: Pen, entry: str) -> str:
    """One item is a row of a matrix, or CHUNK elements of a vector."""
    rows = pen.chance(0.5)
    if rows:
        count, length = pen.size("rows"), pen.size("columns")
        stride = pen.size("stride") if pen.chance(0.5) else length
    else:
        count, size = pen.size("chunk chunks pieces parts groups"), pen.size()
        chunk = pen.macro("CHUNK", 64, 128, 256, 512, 1024)
    inputs = [pen.input() for _ in range(pen.pick(1, 1, 2))]
    scalars = [pen.scalar() for _ in range(pen.pick(0, 0, 1))]
    output = pen.output()
    tree = pen.formula(len(inputs) + len(scalars), extra=1, plain=True)
    init, take = pen.combiner()
    ways = pen.pick("one", "one", "many", "vector" if pen.own and not pen.cuda else "many")

    def body(item: str) -> list[str]:
        first, past = pen.name("first"), pen.name("bound")
        if rows:
            lines = [pen.declare(pen.wide, first, f"{item} * {stride}")]
            lines.append(pen.declare(pen.wide, past, f"{first} + {length}"))
        else:
            end = f"{first} + {chunk}"
            least = f"min({end}, {size})" if pen.cuda and not pen.ternary_max and pen.own else \
                f"{end} < {size} ? {end} : {size}"  # fmt: skip
            lines = [pen.declare(pen.wide, first, f"{item} * {chunk}"), pen.declare(pen.wide, past, least)]
        return [*lines, *_walk(pen, first, past, inputs, scalars, tree, init, take, ways, output, item)]

    return pen.file("reduce", entry, pen.each(count, body, role="row" if rows else "chunk"))


def _walk(pen, first, past, inputs, scalars, tree, init, take, ways, output, item) -> list[str]:
    at, total = pen.name("index"), pen.name("sum")

    def value(place: str) -> str:
        return pen.render(tree, [*(pen.read(array, place) for array in inputs), *scalars])

    if ways == "one":
        return [
            f"{pen.acc} {total} = {init};",
            *pen.loop(at, first, past, [take(total, value(at))], unroll=4), pen.put(output, item, total),
        ]  # fmt: skip
    if ways == "vector":
        wide = pen.name("sums lanes_of many")
        leaves = [*(f"load({array} + {at})" for array in inputs), *(f"splat({each})" for each in scalars)]
        taken = pen.render(tree, leaves, wide=True)
        return [
            f"vector {wide} = {{}};", f"int64_t {at} = {first};",
            *pen.loop(at, "", f"{past} - WIDTH + 1", [f"{wide} += {taken};"], step="WIDTH", declared=True),
            f"{pen.acc} {total} = total({wide});",
            *pen.loop(at, "", past, [f"{total} += {value(at)};"], declared=True), pen.put(output, item, total),
        ]  # fmt: skip
    count = pen.pick(2, 4, 4, 8)
    sums = pen.numbered("sum", count)
    together = " + ".join(sums)
    if count == 4 and pen.chance(0.5):
        together = f"({sums[0]} + {sums[1]}) + ({sums[2]} + {sums[3]})"
    inner = [f"{each} += {value(f'{at} + {number}' if number else at)};" for number, each in enumerate(sums)]
    return [
        f"{pen.acc} {', '.join(f'{each} = 0' for each in sums)};", f"{pen.wide} {at} = {first};",
        *pen.loop(at, "", f"{past} - {count - 1}", inner, step=str(count), declared=True),
        *pen.loop(at, "", past, [f"{sums[0]} += {value(at)};"], declared=True), pen.put(output, item, together),
    ]  # fmt: skip


def _grid(pen: Pen, entry: str) -> str:
    """CUDA: the grid strides over an array, every block leaves one number, or adds it to the only one."""
    count = pen.size()
    inputs = [pen.input() for _ in range(pen.pick(1, 2, 2, 3))]
    scalars = [pen.scalar() for _ in range(pen.pick(0, 0, 1))]
    output = pen.output()
    tree = pen.formula(len(inputs) + len(scalars), extra=1)
    block, thread = pen.threads()
    total, i = pen.name("sum"), pen.name("index")
    leaves = [*(pen.read(array, i) for array in inputs), *scalars]
    pen.launch = {"grid": f"min(ceil_div({count}, BLOCK), {pen.pick(64, 128, 256, 512)})", "block": "BLOCK"}
    stride = f"int64_t(gridDim.x) * {block}" if pen.own else f"gridDim.x * {block}"
    atomic = pen.chance(0.4)
    last = f"atomicAdd({pen.pick(output, f'&{output}[0]')}, {total});" if atomic else f"{output}[blockIdx.x] = {total};"
    if pen.own and atomic and pen.chance(0.5):
        pen.epilogue, last = True, f"ATOMIC_ADD({output}, 0, {total});"
    if not pen.own and pen.acc != pen.value:
        last = last.replace(f"{total})", f"({pen.value}){total})")
    lines = [
        f"{pen.acc} {total} = 0;",
        *pen.loop(i, thread, count, [f"{total} += {pen.render(tree, leaves)};"], step=stride),
        *pen.block_sum(total, pen.pick(128, 256)), f"if (threadIdx.x == 0) {last}",
    ]  # fmt: skip
    return pen.file("reduce", entry, lines)
