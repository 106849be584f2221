"""The table of instructions: for every accepted opcode its operand types and, as a C expression, what it computes.

`encode` looks opcodes up here, whole: a type, rounding mode or modifier that is not listed is refused, never guessed.
The cases of the interpreter come from the same rows: `write()` writes _cases.h, and a test compares. An instruction's
operands are a, b, c and d, all lanes of a register each; the result has the type `result`.

Instructions that do more than compute a value lane by lane (memory, votes, branches) are `forms`'; only their numbers
are given here.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

HEADER = Path(__file__).parent / "_cases.h"


class Scalar(NamedTuple):
    """A value computed in each lane. result "pred": a bit per lane; an operand "pred" likewise, 0 or 1."""

    result: str
    operands: tuple[str, ...]
    expression: str


SCALARS: dict[str, Scalar] = {}  # by whole opcode
OTHERS = (
    "BRANCH", "BRANCH_TABLE", "EXIT", "TRAP", "NOTHING", "FENCE", "PREDICATE", "LOAD", "STORE", "ATOMIC", "PARAMETER",
    "BARRIER", "BARRIER_VOTE", "WARP_BARRIER", "SHUFFLE", "VOTE", "MATCH", "REDUCE", "LOAD_MATRIX", "MATRIX_MULTIPLY",
    "ACTIVE", "PACK", "UNPACK",
    "COPY_ASYNC", "RESIZE",
)  # fmt: skip

REAL = ("f32", "f64")
HALVES = ("f16", "bf16")
SIGNED, UNSIGNED, PLAIN = ("s16", "s32", "s64"), ("u16", "u32", "u64"), ("b16", "b32", "b64")
ROUNDINGS = {"rn": "FE_TONEAREST", "rz": "FE_TOWARDZERO", "rm": "FE_DOWNWARD", "rp": "FE_UPWARD"}


def add(opcodes: str | list[str], result: str, operands: str, expression: str) -> None:
    """One row under one or several names."""
    for opcode in [opcodes] if isinstance(opcodes, str) else opcodes:
        assert opcode not in SCALARS, opcode
        SCALARS[opcode] = Scalar(result, tuple(operands.split()), expression)


def _integers() -> None:
    for width in (16, 32, 64):
        u, s, most = f"u{width}", f"s{width}", width - 1
        both = (u, s)
        add([f"add.{t}" for t in both], u, f"{u} {u}", "a + b")
        add([f"sub.{t}" for t in both], u, f"{u} {u}", "a - b")
        add([f"mul.lo.{t}" for t in both], u, f"{u} {u}", "(u64)a * b")
        add([f"mad.lo.{t}" for t in both], u, f"{u} {u} {u}", "(u64)a * b + c")
        add(f"neg.{s}", u, u, "0 - (u64)a")
        add(f"abs.{s}", u, s, "a < 0 ? 0 - (u64)a : (u64)a")
        for t in both:
            add(f"min.{t}", t, f"{t} {t}", "a < b ? a : b")
            add(f"max.{t}", t, f"{t} {t}", "a > b ? a : b")
        add(f"div.{u}", u, f"{u} {u}", f"b ? a / b : ({u})-1")
        add(f"rem.{u}", u, f"{u} {u}", "b ? a % b : a")
        add(f"div.{s}", s, f"{s} {s}", f"b == 0 ? -1 : b == -1 ? ({s})(0 - (u64)a) : a / b")
        add(f"rem.{s}", s, f"{s} {s}", "b == 0 ? a : b == -1 ? 0 : a % b")
        b = f"b{width}"
        add(f"and.{b}", u, f"{u} {u}", "a & b")
        add(f"or.{b}", u, f"{u} {u}", "a | b")
        add(f"xor.{b}", u, f"{u} {u}", "a ^ b")
        add(f"not.{b}", u, u, "~a")
        add(f"cnot.{b}", u, u, "a == 0")
        add(f"shl.{b}", u, f"{u} u32", f"b > {most} ? 0 : (u64)a << b")
        add([f"shr.{u}", f"shr.{b}"], u, f"{u} u32", f"b > {most} ? 0 : a >> b")
        add(f"shr.{s}", s, f"{s} u32", f"a >> (b > {most} ? {most} : b)")
        for t in (*both, b):
            for condition, test in COMPARISONS.items():
                if t[0] == "b" and condition not in ("eq", "ne"):
                    continue
                add(f"setp.{condition}.{t}", "pred", f"{u if t[0] == 'b' else t} " * 2, test)
        for name, test in {"lo": "a < b", "ls": "a <= b", "hi": "a > b", "hs": "a >= b"}.items():
            add(f"setp.{name}.{u}", "pred", f"{u} {u}", test)
        real = {32: ["f32"], 64: ["f64"]}.get(width, [])
        for t in (*both, b, *real):
            add(f"selp.{t}", u, f"{u} {u} pred", "c ? a : b")
            add(f"mov.{t}", u, u, "a")
    for t, wide, most in (("s16", "s32", 16), ("u16", "u32", 16), ("s32", "s64", 32), ("u32", "u64", 32)):
        add(f"mul.wide.{t}", wide, f"{t} {t}", f"({wide})a * b")
        add(f"mad.wide.{t}", wide, f"{t} {t} {wide}", f"(u64)(({wide})a * b) + c")
        add(f"mul.hi.{t}", t, f"{t} {t}", f"(({wide})a * b) >> {most}")
        add(f"mad.hi.{t}", t, f"{t} {t} {t}", f"(u64)((({wide})a * b) >> {most}) + c")
    for t, wide in (("s64", "s128"), ("u64", "u128")):
        add(f"mul.hi.{t}", t, f"{t} {t}", f"({t})((({wide})a * b) >> 64)")
        add(f"mad.hi.{t}", t, f"{t} {t} {t}", f"(u64)({t})((({wide})a * b) >> 64) + c")
    for t in ("s16", "u16", "s32", "u32"):
        add(f"sad.{t}", f"u{t[1:]}", f"{t} {t} u{t[1:]}", "(u64)(a > b ? (s64)a - b : (s64)b - a) + c")
    add("add.sat.s32", "s32", "s32 s32", "saturate_s32((s64)a + b)")
    add("sub.sat.s32", "s32", "s32 s32", "saturate_s32((s64)a - b)")
    add("popc.b32", "u32", "u32", "bits_set(a)")
    add("popc.b64", "u32", "u64", "bits_set((u32)a) + bits_set((u32)(a >> 32))")
    add("clz.b32", "u32", "u32", "a ? __builtin_clz(a) : 32")
    add("clz.b64", "u32", "u64", "a ? __builtin_clzll(a) : 64")
    add("brev.b32", "u32", "u32", "(u32)(reversed(a) >> 32)")
    add("brev.b64", "u64", "u64", "reversed(a)")
    for t in ("u32", "s32", "u64", "s64"):
        whole = f"{'(s64)' if t[0] == 's' else '(u64)'}a"
        folded = f"({whole} < 0 ? ~(u64)a : (u64)a)" if t[0] == "s" else whole
        add(f"bfind.{t}", "u32", t, f"top_bit({folded})")
        add(f"bfind.shiftamt.{t}", "u32", t, f"{folded} ? {int(t[1:]) - 1}u - top_bit({folded}) : ~0u")
        add(f"bfe.{t}", t, f"{t} u32 u32", f"extract_bits((u64)a, b, c, {t[1:]}, {int(t[0] == 's')})")
    add("bfi.b32", "u32", "u32 u32 u32 u32", "(u32)insert_bits(a, b, c, d, 32)")
    add("bfi.b64", "u64", "u64 u64 u32 u32", "insert_bits(a, b, c, d, 64)")
    add("prmt.b32", "u32", "u32 u32 u32", "permuted(a, b, c)")
    add("lop3.b32", "u32", "u32 u32 u32 u32", "looked_up(a, b, c, d)")
    for mode, amount in {"wrap": "(c & 31)", "clamp": "(c > 32 ? 32 : c)"}.items():
        add(f"shf.l.{mode}.b32", "u32", "u32 u32 u32", f"(u32)((((u64)b << 32 | a) << {amount}) >> 32)")
        add(f"shf.r.{mode}.b32", "u32", "u32 u32 u32", f"(u32)(((u64)b << 32 | a) >> {amount})")
    add("dp4a.s32.s32", "s32", "u32 u32 u32", "dot_bytes(a, b, c, 1, 1)")
    add("dp4a.u32.u32", "u32", "u32 u32 u32", "dot_bytes(a, b, c, 0, 0)")
    for space, number in {"shared": "SHARED_WINDOW", "local": "LOCAL_WINDOW"}.items():
        add(f"isspacep.{space}", "pred", "u64", f"a >> 40 == {number}")
        add(f"cvta.{space}.u64", "u64", "u64", f"a + ((u64){number} << 40)")
        add(f"cvta.to.{space}.u64", "u64", "u64", f"a - ((u64){number} << 40)")
    add("isspacep.global", "pred", "u64", "a >> 40 < LOCAL_WINDOW")
    for space in ("global", "const"):
        add([f"cvta.{space}.u64", f"cvta.to.{space}.u64"], "u64", "u64", "a")


COMPARISONS = {"eq": "a == b", "ne": "a != b", "lt": "a < b", "le": "a <= b", "gt": "a > b", "ge": "a >= b"}


def _float_tests(x: str, y: str) -> dict[str, str]:
    """condition -> test of the values x and y; the unordered ones hold for NaN, the others do not."""
    tests = {}
    for name, symbol in {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}.items():
        plain = f"{x} {symbol} {y}" if name != "ne" else f"{x} < {y} || {x} > {y}"
        tests[name] = plain
        tests[f"{name}u"] = f"{x} != {y}" if name == "ne" else f"!({x} == {x}) || !({y} == {y}) || {plain}"
    tests["num"] = f"{x} == {x} && {y} == {y}"
    tests["nan"] = f"{x} != {x} || {y} != {y}"
    return tests


def _floats() -> None:
    for t in REAL:
        flushes = ("", ".ftz") if t == "f32" else ("",)
        for ftz in flushes:
            a, b, c = (f"flush({x})" if ftz else x for x in "abc")

            def done(expression: str, ftz: str = ftz) -> str:
                return f"flush({expression})" if ftz else expression

            for name, symbol in {"add": "+", "sub": "-", "mul": "*", "div": "/"}.items():
                for rounding, mode in ROUNDINGS.items():
                    plain = f"{a} {symbol} {b}"
                    value = plain if rounding == "rn" else f"directed_{t}('{symbol}', {mode}, {a}, {b}, 0)"
                    names = [f"{name}.{rounding}{ftz}.{t}"]
                    if rounding == "rn" and name != "div":
                        names.append(f"{name}{ftz}.{t}")
                    add(names, t, f"{t} {t}", done(value))
                    if t == "f32" and name != "div" and rounding == "rn":
                        add(
                            [f"{name}{ftz}.sat.f32", f"{name}.rn{ftz}.sat.f32"], t, f"{t} {t}",
                            f"saturate({done(value)})",
                        )  # fmt: skip
            for rounding, mode in ROUNDINGS.items():
                plain = f"__builtin_fma{'f' if t == 'f32' else ''}({a}, {b}, {c})"
                value = plain if rounding == "rn" else f"directed_{t}('m', {mode}, {a}, {b}, {c})"
                add([f"{name}.{rounding}{ftz}.{t}" for name in ("fma", "mad")], t, f"{t} {t} {t}", done(value))
                if t == "f32":
                    add(f"fma.{rounding}{ftz}.sat.f32", t, f"{t} {t} {t}", f"saturate({done(value)})")
                plain = f"__builtin_sqrt{'f' if t == 'f32' else ''}({a})"
                value = plain if rounding == "rn" else f"directed_{t}('s', {mode}, {a}, 0, 0)"
                add(f"sqrt.{rounding}{ftz}.{t}", t, t, done(value))
                value = f"1 / {a}" if rounding == "rn" else f"directed_{t}('/', {mode}, 1, {a}, 0)"
                add(f"rcp.{rounding}{ftz}.{t}", t, t, done(value))
            for nan in ("", ".NaN") if t == "f32" else ("",):
                for name in ("min", "max"):
                    add(f"{name}{ftz}{nan}.{t}", t, f"{t} {t}", f"{name}_{t}({a}, {b}, {int(bool(nan))})")
            sign, raw = ("0x80000000u", "u32") if t == "f32" else ("1ull << 63", "u64")
            if ftz:
                add("neg.ftz.f32", t, t, "-flush(a)")
                add("abs.ftz.f32", t, t, "flush(a < 0 ? -a : a)")
            else:
                add(f"neg.{t}", raw, raw, f"a ^ ({sign})")
                add(f"abs.{t}", raw, raw, f"a & ~({sign})")
                add(f"copysign.{t}", raw, f"{raw} {raw}", f"(b & ~({sign})) | (a & ({sign}))")
            for condition, test in _float_tests(a, b).items():
                add(f"setp.{condition}{ftz}.{t}", "pred", f"{t} {t}", test)
        for name, test in {
            "finite": "a - a == 0", "infinite": "a == a && a - a != 0", "number": "a == a", "notanumber": "a != a",
        }.items():  # fmt: skip
            add(f"testp.{name}.{t}", "pred", t, test)
    for ftz in ("", ".ftz"):
        a, b = ("flush(a)", "flush(b)") if ftz else ("a", "b")
        for name, value in {
            "rcp": f"1 / (f64){a}", "sqrt": f"__builtin_sqrt((f64){a})", "rsqrt": f"1 / __builtin_sqrt((f64){a})",
            "ex2": f"__builtin_exp2((f64){a})", "lg2": f"__builtin_log2((f64){a})", "sin": f"__builtin_sin((f64){a})",
            "cos": f"__builtin_cos((f64){a})", "tanh": f"__builtin_tanh((f64){a})",
        }.items():  # fmt: skip
            if name == "tanh" and ftz:
                continue
            add(f"{name}.approx{ftz}.f32", "f32", "f32", f"flush((f32)({value}))" if ftz else f"(f32)({value})")
        value = f"(f32)((f64){a} / {b})"
        add([f"div.approx{ftz}.f32", f"div.full{ftz}.f32"], "f32", "f32 f32", f"flush({value})" if ftz else value)
    add("rcp.approx.ftz.f64", "f64", "f64", "high_word(1 / high_word(a))")
    add(["rsqrt.approx.f64"], "f64", "f64", "1 / __builtin_sqrt(a)")
    add("rsqrt.approx.ftz.f64", "f64", "f64", "high_word(1 / __builtin_sqrt(high_word(a)))")


def _halves() -> None:
    """One value of 16 bits, or two packed in 32. Sums and products are exact, or rounded to odd, before they round."""
    for t in HALVES:
        x, y, z = (f"from_{t}({v})" for v in "abc")
        # .noftz and .rn are what happens anyway
        rows = {
            ("add", ".rn"): ("2", f"to_{t}(odd_sum({x}, {y}))"),
            ("sub", ".rn"): ("2", f"to_{t}(odd_sum({x}, -{y}))"),
            ("mul", ".rn"): ("2", f"to_{t}({x} * {y})"),
            ("fma", ".rn"): ("3", f"to_{t}(odd_sum({x} * {y}, {z}))"),
            ("min", ""): ("2", f"pick_{t}(a, b, 0, 0)"),
            ("max", ""): ("2", f"pick_{t}(a, b, 1, 0)"),
            ("min", ".NaN"): ("2", f"pick_{t}(a, b, 0, 1)"),
            ("max", ".NaN"): ("2", f"pick_{t}(a, b, 1, 1)"),
            ("neg", ""): ("1", "a ^ 0x8000"),
            ("abs", ""): ("1", "a & 0x7fff"),
        }
        for (name, modifier), (count, value) in rows.items():
            names = [f"{name}{modifier}"]
            if modifier == ".rn" and name != "fma":
                names.append(name)
            operands = int(count)
            arguments = ", ".join("abc"[:operands])
            add([f"{each}.{t}" for each in names], "u16", "u16 " * operands, value)
            packed = f"BOTH{operands}({value}, {arguments})"
            add([f"{each}.{t}x2" for each in names], "u32", "u32 " * operands, packed)
            if t == "f16" and modifier == ".rn":
                add([f"{each}.sat.f16" for each in names], "u16", "u16 " * operands, f"saturated_f16({value})")
                packed = f"BOTH{operands}(saturated_f16({value}), {arguments})"
                add([f"{each}.sat.f16x2" for each in names], "u32", "u32 " * operands, packed)
        add(f"fma.rn.relu.{t}", "u16", "u16 u16 u16", f"relu_{t}(to_{t}(odd_sum({x} * {y}, {z})))")
        add(
            f"fma.rn.relu.{t}x2", "u32", "u32 u32 u32",
            f"BOTH3(relu_{t}(to_{t}(odd_sum({x} * {y}, {z}))), a, b, c)",
        )  # fmt: skip
        for name, value in {"ex2": f"to_{t}(__builtin_exp2({x}))", "tanh": f"to_{t}(__builtin_tanh({x}))"}.items():
            approximate = f"{name}.approx{'.ftz' if (name, t) == ('ex2', 'bf16') else ''}"
            add(f"{approximate}.{t}", "u16", "u16", value)
            add(f"{approximate}.{t}x2", "u32", "u32", f"BOTH1({value}, a)")
        for condition, test in _float_tests(x, y).items():
            add(f"setp.{condition}.{t}", "pred", "u16 u16", test)
            one = "0x3c00" if t == "f16" else "0x3f80"
            add(f"set.{condition}.{t}x2.{t}x2", "u32", "u32 u32", f"BOTH2(({test}) ? {one} : 0, a, b)")
            add(f"set.{condition}.u32.{t}x2", "u32", "u32 u32", f"BOTH2(({test}) ? 0xffff : 0, a, b)")


def _conversions() -> None:
    """cvt. Bytes lie in registers of 16 bits; narrower and wider registers are `encode`'s to bring about."""
    integers = {f"{sign}{width}": width for sign in "us" for width in (8, 16, 32, 64)}
    kept = {t: t if width > 8 else f"{t[0]}16" for t, width in integers.items()}  # type of the register
    for s in integers:
        value = f"({s})a"
        for d in integers:
            add(f"cvt.{d}.{s}", kept[d], kept[s], f"({d}){value}")
        wide = "s64" if s[0] == "s" else "u64"
        for rounding, mode in ROUNDINGS.items():
            for d in REAL:
                exact = integers[s] < 24 or (d == "f64" and integers[s] < 53)
                turned = f"({d}){value}" if exact or rounding == "rn" else f"{d}_from_{wide}({value}, {mode})"
                add(f"cvt.{rounding}.{d}.{s}", d, kept[s], turned)
            for d in HALVES:
                add(f"cvt.{rounding}.{d}.{s}", "u16", kept[s], f"{rounding}_{d}(odd_from_{wide}({value}))")
    for s in (*HALVES, *REAL):
        source = "u16" if s in HALVES else s
        for ftz in ("", ".ftz") if s == "f32" else ("",):
            value = f"from_{s}(a)" if s in HALVES else "(f64)flush(a)" if ftz else "(f64)a"
            for rounding, whole in {"rni": "rint", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}.items():
                turned = f"__builtin_{whole}({value})"
                for d in integers:
                    if integers[d] < 16 and (rounding, ftz) != ("rzi", ""):
                        continue
                    names = [f"cvt.{rounding}{ftz}.{d}.{s}", f"cvt.{rounding}{ftz}.sat.{d}.{s}"]
                    add(names, kept[d], source, f"{d}_from_f64({turned})")
                if s in REAL:
                    add(f"cvt.{rounding}{ftz}.{s}.{s}", s, s, f"({s}){turned}")
                else:
                    add(f"cvt.{rounding}.{s}.{s}", "u16", "u16", f"to_{s}({turned})")
            for d in REAL:
                names = [f"cvt{ftz}.{d}.{s}"] if s != "f64" or d == "f64" else []
                add(names, d, source, f"({d})({value})")
                if (s, d) == ("f64", "f32"):
                    add("cvt.rn.f32.f64", d, s, "(f32)a")
                    for rounding in ("rz", "rm", "rp"):
                        add(f"cvt.{rounding}.f32.f64", d, s, f"f32_from_f64(a, {ROUNDINGS[rounding]})")
            if s in REAL:
                add(f"cvt{ftz}.sat.{s}.{s}", s, s, f"a != a ? 0 : a < 0 ? 0 : a > 1 ? 1 : ({s})({value})")
                for d in HALVES:
                    for rounding in ROUNDINGS if not ftz else ():
                        add(f"cvt.{rounding}.{d}.{s}", "u16", s, f"{rounding}_{d}({value})")
    for t in HALVES:
        add(f"cvt.{t}.{t}", "u16", "u16", "a")
        for rounding in ("rn", "rz"):
            add(f"cvt.{rounding}.{t}x2.f32", "u32", "f32 f32", f"PACKED({rounding}_{t}(b), {rounding}_{t}(a))")
            relu = f"PACKED(relu_{t}({rounding}_{t}(b)), relu_{t}({rounding}_{t}(a)))"
            add(f"cvt.{rounding}.relu.{t}x2.f32", "u32", "f32 f32", relu)
            add(f"cvt.{rounding}.relu.{t}.f32", "u16", "f32", f"relu_{t}({rounding}_{t}(a))")
    add("cvt.rna.tf32.f32", "u32", "f32", "narrowed(a, 8, 10, AWAY) << 13")
    add("cvt.rn.tf32.f32", "u32", "f32", "narrowed(a, 8, 10, NEAREST) << 13")
    add("cvt.rz.tf32.f32", "u32", "f32", "narrowed(a, 8, 10, TO_ZERO) << 13")


_integers()
_floats()
_halves()
_conversions()
CASES: list[Scalar] = list(dict.fromkeys(SCALARS.values()))  # of the interpreter, in order; OTHERS follow
NUMBER = {scalar: number for number, scalar in enumerate(CASES)}
OTHER = {name: len(CASES) + i for i, name in enumerate(OTHERS)}


def header() -> str:
    """The text of _cases.h: a row per case, CASE2(7, u32, u32, u32, a + b); numbers of the other instructions."""
    lines = ["/* Written by table.write(); what each instruction computes is said there. */"]
    lines += ["#ifdef CASE1"]
    for number, scalar in enumerate(CASES):
        lines.append(f"{_macro(scalar)}({', '.join([str(number), *_types(scalar), scalar.expression])})")
    lines += ["#else", f"enum {{ SCALAR_CASES = {len(CASES)} }};", "enum {"]
    lines += [f"    {name} = {number}," for name, number in OTHER.items()]
    return "\n".join([*lines, "};", "#endif", ""])


def _types(scalar: Scalar) -> list[str]:
    return [kind for kind in (scalar.result, *scalar.operands) if kind != "pred"]


def _macro(scalar: Scalar) -> str:
    """CASE and the number of operands; TEST for a predicate result; SELECT for a predicate operand."""
    if scalar.result == "pred":
        return f"TEST{len(scalar.operands)}"
    return "SELECT" if "pred" in scalar.operands else f"CASE{len(scalar.operands)}"


def write() -> None:
    """Write _cases.h again, after a row has changed."""
    HEADER.write_text(header())
