"""Histograms: items are counted or added up by bin, in bins of a range's own, of a block's, or atomically."""

from __future__ import annotations

from sparsegen.train.idioms import Pen

VERBS = "histogram count bin tally column_counts degrees_of accumulate_bins"


def write(pen: Pen) -> str:
    entry = pen.entry(VERBS, "keys values columns bins sums")
    sparse = pen.chance(0.35)
    if sparse:
        pen.stored(pen.pick("csr", "coo"))
        count, keys, bins = "nnz", "indices", "n"
    else:
        count = pen.size()
        by_value = pen.chance(0.4)
        keys = pen.input("input" if by_value else "keys", "" if by_value else pen.index)
        bins = pen.size("bins buckets classes")
    weights = pen.input("weights w values") if pen.chance(0.4) and not sparse else ""
    weighted = bool(weights) or (sparse and pen.chance(0.6))
    scale = (pen.scalar(), pen.scalar()) if not sparse and by_value else ()
    type_ = "" if weighted else pen.pick("int", "unsigned" if pen.cuda else "int")
    output = pen.output(type_)
    if pen.cuda and pen.chance(0.4) and not sparse:
        return pen.file("histogram", entry, _shared(pen, count, keys, bins, weights, scale, output, type_))

    def body(i: str) -> list[str]:
        lines, key = _key(pen, i, keys, bins, scale)
        value = _weight(pen, i, weights, sparse and weighted)
        if not pen.cuda:
            add = f"{output}[{key}] += {value};" if weighted or pen.chance(0.5) else f"++{output}[{key}];"
        else:
            cast = pen.value if weighted else type_
            add = f"atomicAdd(&{output}[{key}], {cast}({value}));"
        if pen.chance(0.3):
            return [*lines, f"if ({key} >= 0 && {key} < {bins}) {add}"]
        return [*lines, add]

    return pen.file("histogram", entry, pen.each(count, body, role="entry"))


def _key(pen: Pen, i: str, keys: str, bins: str, scale: tuple) -> tuple[list[str], str]:
    name = pen.name("bin key b where_to")
    if scale:
        value = f"({keys}[{i}] - {scale[0]}) * {scale[1]}"
        lines = [f"int {name} = int({value});"]
        if pen.chance(0.5):
            lines.append(f"{name} = {name} < 0 ? 0 : {name} < {bins} ? {name} : int({bins}) - 1;")
        return lines, name
    if pen.chance(0.5):
        return [pen.declare(pen.index, name, f"{keys}[{i}]")], name
    return [], f"{keys}[{i}]"


def _weight(pen: Pen, i: str, weights: str, stored: bool) -> str:
    if stored:
        value = pen.entry_value(i)
        return pen.pick(value, f"{value} * {value}")
    return pen.pick(f"{weights}[{i}]", f"{weights}[{i}] * {weights}[{i}]") if weights else "1"


def _shared(pen: Pen, count, keys, bins, weights, scale, output, type_) -> list[str]:
    """CUDA: a block counts in shared memory and adds its bins to all at the end."""
    most = pen.macro("BINS", 64, 128, 256, 512)
    block, thread = pen.threads()
    local, i, b = pen.name("local_bins own shared_bins"), pen.name("index"), pen.name("entry")
    cast = type_ or pen.value
    lines, key = _key(pen, i, keys, bins, scale)
    add = f"atomicAdd(&{local}[{key} % {most}], {cast}({_weight(pen, i, weights, False)}));"
    pen.launch = {"grid": f"min(ceil_div({count}, BLOCK), {pen.pick(128, 256, 512)})", "block": "BLOCK"}
    stride = f"int64_t(gridDim.x) * {block}" if pen.own else f"gridDim.x * {block}"
    flush = f"if ({b} < {bins} && {local}[{b}] != 0) atomicAdd(&{output}[{b}], {local}[{b}]);"
    return [
        f"__shared__ {cast} {local}[{most}];",
        *pen.loop(b, "threadIdx.x", most, [f"{local}[{b}] = 0;"], type_="int", step=block), "__syncthreads();",
        *pen.loop(i, thread, count, [*lines, add], step=stride), "__syncthreads();",
        *pen.block(f"for (int {b} = threadIdx.x; {b} < {most}; {b} += {block})", [flush]),
    ]  # fmt: skip
