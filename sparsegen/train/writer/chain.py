"""Chains of vector updates, as one step of an iterative solver: axpy, scaling, residuals, and a dot product beside."""

from __future__ import annotations

from sparsegen.train.idioms import Pen, indent

VERBS = "step update advance cg axpy fused iterate solver smooth_step"


def write(pen: Pen) -> str:
    entry = pen.entry(VERBS, "xpay residual direction vectors dot")
    count = pen.size()
    inputs = [pen.input() for _ in range(pen.pick(1, 2, 3))]
    scalars = [pen.scalar() for _ in range(pen.pick(1, 1, 2))]
    outputs = [pen.output() for _ in range(pen.pick(1, 2, 2))]
    trees = [pen.formula(2 + len(scalars), extra=1, plain=True) for _ in range(len(outputs) + pen.pick(0, 1))]
    dot = pen.chance(0.35)
    target = pen.name("products partial_dot norms") if dot else ""
    if dot:
        pen.arguments.append(f"{pen.value}* {pen.restrict}{target}")
    wide = pen.own and not pen.cuda and pen.chance(0.5)
    choices = [(int(pen.rng.integers(len(inputs))), int(pen.rng.integers(len(outputs)))) for _ in trees]

    def updates(i: str, vectors: bool) -> tuple[list[str], str]:
        """Statements for item i, and the name of the last value."""
        lines, name = [], ""
        for number, (tree, (source, output)) in enumerate(zip(trees, choices, strict=True)):
            output = number if number < len(outputs) else output
            old, new = outputs[output], inputs[source]
            leaves = [f"load({new} + {i})", f"load({old} + {i})"] if vectors else [pen.read(new, i), pen.read(old, i)]
            if name and pen.chance(0.5):
                leaves[0] = name
            value = pen.render(tree, [*leaves, *(f"splat({each})" if vectors else each for each in scalars)], vectors)
            name = pen.name("value")
            lines.append(pen.declare("vector" if vectors else pen.acc, name, value))
            lines.append(f"store({old} + {i}, {name});" if vectors else pen.put(old, i, name))
        return lines, name

    if wide:
        return pen.file("chain", entry, _wide(pen, count, updates, target))
    if not dot:
        return pen.file("chain", entry, pen.each(count, lambda i: updates(i, False)[0]))
    total = pen.name("sum")
    i = pen.name("index")
    lines, last = updates(i, False)
    body = [*lines, f"{total} += {last} * {last};"]
    if pen.cuda:
        block, thread = pen.threads()
        stride = f"int64_t(gridDim.x) * {block}" if pen.own else f"gridDim.x * {block}"
        pen.launch = {"grid": f"min(ceil_div({count}, BLOCK), 512)", "block": "BLOCK"}
        loop = pen.loop(i, thread, count, body, step=stride)
        sums = [*pen.block_sum(total, 256), f"if (threadIdx.x == 0) {target}[blockIdx.x] = {total};"]
        return pen.file("chain", entry, [f"{pen.acc} {total} = 0;", *loop, *sums])
    pen.launch = {"items": count}
    first, past = ("begin", "end") if pen.own else ("0", count)
    where = f"{first} / {pen.pick(256, 1024, 4096)}" if pen.own else "0"
    loop = pen.loop(i, first, past, body)
    return pen.file("chain", entry, [f"{pen.acc} {total} = 0;", *loop, f"{target}[{where}] = {total};"])


def _wide(pen: Pen, count: str, updates, target: str) -> list[str]:
    i, total = pen.name("index"), pen.name("sum")
    sums = pen.name("sums squares many")
    pen.launch = {"items": count}
    lines, last = updates(i, True)
    inner = [*lines, *([f"{sums} += {last} * {last};"] if target else [])]
    head = [f"vector {sums} = {{}};"] if target else []
    head += [f"int64_t {i} = begin;", f"for (; {i} + WIDTH <= end; {i} += WIDTH) {{", *indent(inner), "}"]
    if target:
        head.append(f"ACC {total} = total({sums});")
    lines, last = updates(i, False)
    rest = [*lines, *([f"{total} += {last} * {last};"] if target else [])]
    done = [f"{target}[begin / {pen.pick(256, 1024, 4096)}] = {total};"] if target else []
    return [*head, *pen.loop(i, "", "end", rest, declared=True), *done]
