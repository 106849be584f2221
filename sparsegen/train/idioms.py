"""The idioms that generated kernels are made of: names, types, formulas, loops, reductions, and the file around them.

A `Pen` writes one kernel. What it draws (names, loop forms, types, whether the prelude is used) differs between pens
and stays the same within one, as a person's habits do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from sparsegen import formats
from sparsegen.model.tokenizer import spelled

OWN = 0.68  # share of kernels written against the prelude, with a header
NAMES = {
    "index": "i j idx item at pos e t id q slot cell",
    "row": "row r i line node",
    "column": "column col c j",
    "entry": "p e at slot j pos q",
    "sum": "sum acc s result partial dot value r",
    "value": "a b c v w u value left right now mine",
    "input": "x a b u v w src in values weights f g source",
    "output": "y out dst z result r target c",
    "keys": "index keys map ids where order perm columns links",
    "starts": "starts ptr offsets first bounds ends",
    "size": "n count size length",
    "rows": "rows m height",
    "columns": "cols n width",
    "stride": "ld stride pitch lda",
    "scalar": "scale c factor shift a step omega tau",
    "lane": "lane l part local me",
    "thread": "thread tid me t",
    "step": "step distance offset d delta half",
    "tile": "tile buffer shared_values cache_line staged",
    "bound": "past last stop upto limit",
    "first": "from first lo start",
    "chunk": "chunk group block piece part",
}
TAKEN = frozenset(  # by the prelude, the signature and the languages
    """alpha beta status begin end vector lanes packed splat load store gather total lane_of lane_numbers first_lanes
    load_first load_lanes gather_every data indptr indices m n nnz k ldb ldc min max abs fabs sqrt fma int long float
    double if for do while return const void auto""".split()  # noqa: SIM905
)
CONSTANTS = ("0.5", "2", "3", "0.25", "1.5", "0.1", "4", "0.125", "1", "0.75", "10", "0.01", "1e-3", "6")
Body = Callable[[str], list[str]]


def indent(lines: Sequence[str]) -> list[str]:
    return [line if line.startswith("#") else "    " + line for line in lines]


class Pen:
    """Writes one kernel of a language, "cpp" or "cuda"; what its functions draw comes from rng."""

    def __init__(self, language: str, rng: np.random.Generator):
        self.language, self.rng = language, rng
        self.cuda = language == "cuda"
        self.own = self.chance(OWN)
        self.used: set[str] = set(TAKEN)
        self.params: dict[str, int] = {}  # of the header
        self.arguments: list[str] = []
        self.helpers: list[str] = []
        self.format, self.launch, self.epilogue = "dense", {}, False  # type: ignore[var-annotated]
        if self.own:
            self.value, self.acc, self.wide, self.index, self.offset = "VALUE", "ACC", "int64_t", "INDEX", "OFFSET"
            self.small = self.pick("int", "int", "int64_t")
        else:
            self.value = self.pick("float", "double")
            self.acc = self.pick(self.value, self.value, "double")
            self.wide = self.pick("int", "int", "long", "long long")
            self.index = self.pick("int", "unsigned", "int", self.wide)
            self.offset, self.small = self.wide, "int"
        self.restrict = self.pick("", "__restrict__ ", "__restrict__ " if self.cuda else "")
        self.const = self.pick("const ", "const ", "")
        self.increment = self.pick("++{}", "++{}", "{}++", "{} += 1")
        self.while_share = self.pick(0.0, 0.0, 0.15, 0.5)
        self.unroll_share = self.pick(0.0, 0.3, 0.6)
        self.ternary_max = not self.cuda or self.chance(0.3)
        self.halving = self.pick("{0} /= 2", "{0} >>= 1", "{0} = {0} / 2")
        self.mask = self.pick("0xffffffffu", "0xffffffff", "~0u", "0xffffffffu")
        self.one_line = self.chance(0.5)

    def chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def pick(self, *options):
        return options[int(self.rng.integers(len(options)))]

    def name(self, role: str) -> str:
        """A name of this role that nothing else has here."""
        pool = NAMES.get(role, role).split()
        while True:
            name = self.pick(*pool)
            if name in self.used or self.chance(0.12):
                name += self.pick("0", "1", "2", "_a", "_b", "_here", "_of", "_next", "x", "_in")
            if name not in self.used:
                self.used.add(name)
                return name

    def numbered(self, role: str, count: int) -> list[str]:
        """s0, s1, ...: names of this role, of which nothing else has any."""
        while True:
            name = self.pick(*NAMES.get(role, role).split())
            every = [f"{name}{number}" for number in range(count)]
            if not self.used & set(every):
                self.used |= set(every)
                return every

    def entry(self, verbs: str, what: str) -> str:
        """A name for the kernel: a verb, or a verb and what it is done to."""
        return self.name(f"{self.pick(*verbs.split())} {self.pick(*verbs.split())}_{self.pick(*what.split())}")

    def constant(self) -> str:
        """A number as the accumulator's type would have it written."""
        number = self.pick(*CONSTANTS)
        if self.own:
            return f"{self.acc}({number})"
        number += ".0" if number.isdigit() and self.chance(0.7) else ""
        return number + "f" if self.acc == "float" and not number.isdigit() else number

    def macro(self, name: str, *values: int) -> str:
        """A parameter of the header, one of these values; the number itself in a plain kernel."""
        if not self.own:
            return str(self.pick(*values))
        self.params.setdefault(name, int(self.pick(*values)))
        return name

    # Arguments, in the order they are asked for

    def size(self, role: str = "size") -> str:
        name = self.name(role)
        self.arguments.append(f"{self.wide} {name}")
        return name

    def scalar(self) -> str:
        name = self.name("scalar")
        self.arguments.append(f"{self.acc if self.own else self.value} {name}")
        return name

    def input(self, role: str = "input", type_: str = "") -> str:
        name = self.name(role)
        self.arguments.append(f"const {type_ or self.value}* {self.restrict}{name}")
        return name

    def output(self, type_: str = "") -> str:
        name = self.name("output")
        self.arguments.append(f"{type_ or self.value}* {self.restrict}{name}")
        return name

    def stored(self, name: str) -> None:
        """Ask for a sparse matrix in a format of ours: its sizes m, n, nnz and arrays by their usual names."""
        module = formats.get(name)
        self.format = name
        self.used |= {*module.SIZES, *module.ARRAYS}
        if self.own:
            self.arguments += ["SIZES", f"{name.upper()}_ARRAYS"]
            return
        types = {"INDEX": self.index, "LOCAL": self.index, "OFFSET": self.offset, "STORED": self.value}
        self.arguments += [f"{self.wide} {size}" for size in ("m", "n", "nnz", *module.SIZES)]
        self.arguments += [f"const {types[kind]}* {self.restrict}{array}" for array, kind in module.ARRAYS.items()]

    def entry_value(self, slot: str) -> str:
        """The value stored in a slot of the matrix, as an accumulator."""
        return f"VALUE_AT({slot})" if self.own else f"data[{slot}]"

    # Expressions

    def read(self, array: str, at: str) -> str:
        return f"{self.acc}({array}[{at}])" if self.own and self.chance(0.7) else f"{array}[{at}]"

    def put(self, array: str, at: str, value: str) -> str:
        """A statement that stores a result: often, in our dialect, through the epilogue."""
        if self.own and self.chance(0.45):
            self.epilogue = True
            return f"STORE({array}, {at}, {value});"
        cast = self.own and self.chance(0.4)
        return f"{array}[{at}] = {f'VALUE({value})' if cast else value};"

    def formula(self, leaves: int, extra: int = 2, plain: bool = False) -> tuple:
        """A tree over leaves 0 ... leaves - 1, each used, and a few constants. plain: operators of vectors only."""
        nodes: list[tuple] = [("leaf", i) for i in range(leaves)]
        single = ("leaf", "constant")
        for _ in range(int(self.rng.integers(extra + 1))):
            nodes.append(self.pick(("constant", self.constant()), ("leaf", int(self.rng.integers(leaves)))))
        while len(nodes) > 1:
            left = nodes.pop(int(self.rng.integers(len(nodes))))
            right = nodes.pop(int(self.rng.integers(len(nodes))))
            kind = self.pick("+", "+", "-", "*", "*", "max", "min")
            if kind in ("max", "min") and (plain or self.ternary_max) and {left[0], right[0]} - set(single):
                kind = "+"  # a ternary would write its operands twice
            node: tuple = ("*" if left == right else kind, left, right)
            if self.chance(0.12):
                node = (self.pick("-", "-" if plain else "abs", "-" if plain else "sqrt"), node)
            nodes.append(node)
        root = nodes[0]
        return ("+", root, ("*", root, root)) if root[0] == "leaf" and self.chance(0.5) else root

    def render(self, tree: tuple, leaves: Sequence[str], wide: bool = False) -> str:
        """The tree as an expression; wide: its leaves are vectors."""
        return self._render(tree, leaves, wide)[0]

    def _render(self, tree: tuple, leaves: Sequence[str], wide: bool) -> tuple[str, int]:
        kind = tree[0]
        if kind == "leaf":
            text = leaves[tree[1]]
            return text, 3 if _atom(text) else 0
        if kind == "constant":
            number = tree[1].removeprefix(f"{self.acc}(").removesuffix(")")
            return (f"splat({number})" if wide else tree[1]), 3
        inner = [self._render(each, leaves, wide) for each in tree[1:]]
        texts = [text if level == 3 else f"({text})" for text, level in inner]
        if kind == "sqrt":
            root = "sqrt" if self.cuda else "__builtin_sqrt"
            return f"{root}({self._abs(inner[0][0])})", 3
        if kind == "abs":
            return (f"({texts[0]} < splat(0) ? -{texts[0]} : {texts[0]})" if wide else self._abs(inner[0][0])), 3
        if kind in ("max", "min"):
            if self.ternary_max or wide:
                return f"({texts[0]} {'>' if kind == 'max' else '<'} {texts[1]} ? {texts[0]} : {texts[1]})", 3
            cast = "" if self.own else self.acc
            return f"{kind}({', '.join(f'{cast}({text})' if cast else text for text, _ in inner)})", 3
        if len(inner) == 1:
            return f"-{texts[0]}", 1
        if kind == "*":
            return f"{inner[0][0] if inner[0][1] >= 2 else texts[0]} * {texts[1]}", 2
        right = inner[1][0] if inner[1][1] >= 2 else texts[1]
        return f"{inner[0][0] if inner[0][1] >= 1 else texts[0]} {kind} {right}", 1

    def _abs(self, text: str) -> str:
        return f"fabs({text})" if self.cuda else f"__builtin_fabs({text})"

    def combiner(self) -> tuple[str, Callable[[str, str], str]]:
        """What a reduction starts from, and the statement that takes one more value in."""
        if self.chance(0.7):
            return "0", lambda s, v: f"{s} += {v};"
        if self.cuda and not self.ternary_max:
            return "0", lambda s, v: f"{s} = max({s}, {self.acc}({v}));"
        return "0", lambda s, v: f"{s} = {s} < {v} ? {v} : {s};"

    # Statements

    def block(self, head: str, lines: Sequence[str]) -> list[str]:
        """head { lines }, or without braces for one statement."""
        if len(lines) == 1 and lines[0].endswith(";") and self.one_line:
            return [f"{head} {lines[0]}"] if len(head) + len(lines[0]) < 100 else [head, *indent(lines)]
        return [head + " {", *indent(lines), "}"]

    def declare(self, type_: str, name: str, value: str, const: bool = True) -> str:
        return f"{self.const if const else ''}{type_} {name} = {value};"

    def loop(
        self, name: str, first: str, past: str, lines: Sequence[str], *, type_: str = "", step: str = "1",
        unroll: int = 0, declared: bool = False,
    ) -> list[str]:  # fmt: skip
        """A loop that counts name from first up to past. unroll: at most so often, where this pen unrolls."""
        more = self.increment.format(name) if step == "1" else f"{name} += {step}"
        start = "" if declared else f"{type_ or self.wide} {name} = {first}"
        if self.chance(self.while_share) and not unroll:
            before = [start + ";"] if start else []
            return [*before, f"while ({name} < {past}) {{", *indent([*lines, more + ";"]), "}"]
        head = f"for ({start}; {name} < {past}; {more})"
        pragma = [self.unroll(unroll)] if unroll and self.chance(self.unroll_share) else []
        return [*pragma, *self.block(head, lines)]

    def unroll(self, most: int) -> str:
        count = self.pick(*[each for each in (2, 4, 8, 16) if each <= most] or [2])
        return self.pick("#pragma unroll", f"#pragma unroll {count}") if self.cuda else f"#pragma GCC unroll {count}"

    def each(self, count: str, body: Body, role: str = "index") -> list[str]:
        """body(index) for every item below count: a range in C++, threads in CUDA; the launch is set."""
        i = self.name(role)
        if not self.cuda:
            self.launch = {"items": count}
            first, past = ("begin", "end") if self.own else ("0", count)
            return self.loop(i, first, past, body(i))
        block, thread = self.threads()
        grid, form = f"ceil_div({count}, BLOCK)", self.pick("return", "if", "stride", "items")
        self.launch = {"grid": grid, "block": "BLOCK"}
        start = self.declare(self.wide, i, thread)
        if form == "return":
            return [start, f"if ({i} >= {count}) return;", *body(i)]
        if form == "if":
            return [start, *self.block(f"if ({i} < {count})", body(i))]
        if form == "stride":
            self.launch["grid"] = f"min({grid}, {self.pick(256, 512, 1024, 2048)})"
            stride = f"int64_t(gridDim.x) * {block}" if self.own else f"gridDim.x * {block}"
            if self.chance(0.3):
                name = self.name("stride")
                return [self.declare(self.wide, name, stride), *self.loop(i, thread, count, body(i), step=name)]
            return self.loop(i, thread, count, body(i), step=stride)
        items, step, base = self.macro("ITEMS", 2, 4, 8), self.name("step"), self.name("first")
        self.launch["grid"] = f"ceil_div({count}, BLOCK * ITEMS)"
        start = f"int64_t(blockIdx.x) * {block} * {items}" if self.own else f"blockIdx.x * {block} * {items}"
        inner = [
            self.declare(self.wide, i, f"{base} + {step} * {block}"),
            *self.block(f"if ({i} < {count})", body(i)),
        ]
        return [
            self.declare(self.wide, base, f"{start} + threadIdx.x"),
            *self.loop(step, "0", items, inner, type_="int", unroll=8),
        ]

    def threads(self) -> tuple[str, str]:
        """Threads of a block, and the number of this thread in the grid."""
        if not self.own:
            return "blockDim.x", self.pick(
                "blockIdx.x * blockDim.x + threadIdx.x", "threadIdx.x + blockIdx.x * blockDim.x",
                f"({self.wide})blockIdx.x * blockDim.x + threadIdx.x",
            )  # fmt: skip
        self.macro("BLOCK", 64, 128, 256, 512)
        return "BLOCK", "int64_t(blockIdx.x) * BLOCK + threadIdx.x"

    def warp_sum(self, name: str, width: str = "32") -> list[str]:
        """CUDA: name becomes the sum over the lanes of a warp, or of `width` of them, in the first of them."""
        step = self.name("step")
        half = str(int(width) // 2) if width.isdigit() else f"{width} / 2"
        more = "" if width == "32" else f", {width}"
        shuffle = self.pick("down", "xor")
        lines = [f"{name} += __shfl_{shuffle}_sync({self.mask}, {name}, {step}{more});"]
        head = f"for (int {step} = {half}; {step} > 0; {self.halving.format(step)})"
        pragma = [self.unroll(8)] if self.chance(self.unroll_share) else []
        return [*pragma, *self.block(head, lines)]

    def block_sum(self, name: str, threads: int) -> list[str]:
        """CUDA: name becomes the sum over a block of `threads` threads, in its first thread."""
        shared, thread = self.name("tile"), "threadIdx.x"
        size = "BLOCK" if self.own else str(threads)
        if self.chance(0.5):
            step = self.name("step")
            inner = [f"if ({thread} < {step}) {shared}[{thread}] += {shared}[{thread} + {step}];", "__syncthreads();"]
            return [
                f"__shared__ {self.acc} {shared}[{size}];", f"{shared}[{thread}] = {name};", "__syncthreads();",
                *self.block(f"for (int {step} = {size} / 2; {step} > 0; {self.halving.format(step)})", inner),
                f"{name} = {shared}[0];",
            ]  # fmt: skip
        warp = self.name("warp w piece")
        return [
            f"__shared__ {self.acc} {shared}[{size} / 32];", *self.warp_sum(name),
            f"if ({thread} % 32 == 0) {shared}[{thread} / 32] = {name};", "__syncthreads();",
            *self.block(
                f"if ({thread} == 0)",
                self.loop(warp, "1", f"{size} / 32", [f"{name} += {shared}[{warp}];"], type_="int"),
            ),
        ]  # fmt: skip

    def doubling(self, step: str, past: str) -> str:
        """The head of a loop over 1, 2, 4, ..."""
        return f"for (int {step} = 1; {step} < {past}; {step}{self.pick(' *= 2', ' <<= 1')}) {{"

    # The file

    def file(self, op: str, entry: str, lines: Sequence[str]) -> str:
        """The text of the kernel: header, helpers, entry."""
        arguments = list(self.arguments)
        if self.own and self.epilogue:
            arguments.append("EPILOGUE")
        if not self.own:
            head = f"{'__global__ ' if self.cuda else ''}void {entry}"
            if self.chance(0.3 if self.cuda else 0.5):
                head = f'extern "C" {head}'
            return spelled("\n".join([*self.helpers, *_signature(head, arguments), *indent(lines), "}"])) + "\n"
        if self.cuda:
            self.macro("BLOCK", 64, 128, 256)
            start = ['extern "C" __global__ void __launch_bounds__(BLOCK)', *_signature(entry, arguments)]
        else:
            start = _signature(f'extern "C" void {entry}', [*arguments, "int64_t begin", "int64_t end"])
        header = ["/* sparsegen", f'op = "{op}"', f'format = "{self.format}"']
        if self.params:
            header += ["[params]", *(f"{name} = {value}" for name, value in self.params.items())]
        header += ["[[launch]]", f'entry = "{entry}"', *(f'{name} = "{text}"' for name, text in self.launch.items())]
        return "\n".join([*header, "*/", spelled("\n".join([*self.helpers, *start, *indent(lines), "}"])), ""])


def _atom(text: str) -> bool:
    """Whether an expression needs no brackets around it: brackets of its own hold every operator it has."""
    depth = 0
    for letter in text:
        depth += (letter in "([") - (letter in ")]")
        if depth == 0 and letter in " +-*/?<>":
            return False
    return True


def _signature(head: str, arguments: Sequence[str]) -> list[str]:
    """head(arguments) {, over more lines when it is long."""
    whole = f"{head}({', '.join(arguments)}) {{"
    if len(whole) <= 120:
        return [whole]
    lines, line = [], f"{head}("
    for number, argument in enumerate(arguments):
        text = argument + (", " if number < len(arguments) - 1 else ") {")
        if len(line) + len(text.rstrip()) > 120:
            lines.append(line.rstrip())
            line = "    "
        line += text
    return [*lines, line]
