"""What single PTX instructions compute, on Python's integers and fractions: an oracle apart from the executor.

`expected(opcode, bits)` takes and gives bit patterns. Reals are rounded from exact fractions, once. Approximations give
a Near instead.
"""

from __future__ import annotations

import math
import struct
from fractions import Fraction
from typing import NamedTuple

FORMATS = {"f16": (5, 10), "bf16": (8, 7), "f32": (8, 23), "f64": (11, 52), "tf32": (8, 10)}
WIDTHS = {"pred": 1, "f16": 16, "bf16": 16, "f32": 32, "f64": 64, "f16x2": 32, "bf16x2": 32}
TESTS = {
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b, "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
}  # fmt: skip
UNSIGNED_TESTS = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}


class Near(NamedTuple):
    value: float
    relative: float


def width(kind: str) -> int:
    return WIDTHS[kind] if kind in WIDTHS else int(kind[1:])


def wrap(value: int, kind: str) -> int:
    return value & ((1 << width(kind)) - 1)


def integer(bits: int, kind: str) -> int:
    """Bits as a number of an integer type."""
    bits = wrap(bits, kind)
    return bits - (1 << width(kind)) if kind[0] == "s" and bits >> (width(kind) - 1) else bits


def real(bits: int, kind: str) -> float:
    """Bits as the number they stand for, which every f64 can hold."""
    exponent_bits, fraction_bits = FORMATS[kind]
    sign = -1.0 if bits >> (exponent_bits + fraction_bits) & 1 else 1.0
    exponent, fraction = bits >> fraction_bits & ((1 << exponent_bits) - 1), bits & ((1 << fraction_bits) - 1)
    bias = (1 << exponent_bits - 1) - 1
    if exponent == (1 << exponent_bits) - 1:
        return math.nan if fraction else sign * math.inf
    if exponent == 0:
        return sign * math.ldexp(fraction, 1 - bias - fraction_bits)
    return sign * math.ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits)


def nan(kind: str) -> int:
    exponent_bits, fraction_bits = FORMATS[kind]
    return (1 << exponent_bits + fraction_bits) - 1


def is_nan(bits: int, kind: str) -> bool:
    return math.isnan(real(bits, kind))


def rounded(value: Fraction | float, kind: str, mode: str = "rn", zero: float = 0.0) -> int:
    """The bits of an exact value in a format. `zero` gives the sign of a zero."""
    exponent_bits, fraction_bits = FORMATS[kind]
    sign_bit = 1 << (exponent_bits + fraction_bits)
    most = (1 << exponent_bits) - 1
    if isinstance(value, float) and not math.isfinite(value):
        return nan(kind) if math.isnan(value) else most << fraction_bits | (sign_bit if value < 0 else 0)
    exact = Fraction(value)
    if exact == 0:
        return sign_bit if math.copysign(1, zero) < 0 else 0
    sign, size = exact < 0, abs(exact)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent
    bias = most >> 1
    unit = Fraction(2) ** (max(exponent, 1 - bias) - fraction_bits)
    steps, rest = divmod(size, unit)
    up = {
        "rn": rest * 2 > unit or (rest * 2 == unit and steps & 1), "rz": False, "rm": sign and rest > 0,
        "rp": not sign and rest > 0, "rna": rest * 2 >= unit,
    }[mode]  # fmt: skip
    steps += up
    if steps >> fraction_bits + 1:
        steps >>= 1
        exponent += 1
    if exponent > bias:  # too large: infinite, or the largest where rounding goes towards zero
        down = mode == "rz" or (mode == "rm" and not sign) or (mode == "rp" and sign)
        bits = (most << fraction_bits) - 1 if down else most << fraction_bits
    elif steps >> fraction_bits == 0:
        bits = int(steps)
    else:
        bits = (max(exponent, 1 - bias) + bias << fraction_bits) + int(steps) - (1 << fraction_bits)
    return bits | (sign_bit if sign else 0)


def flushed(bits: int, kind: str) -> int:
    exponent_bits, fraction_bits = FORMATS[kind]
    return (
        bits
        if bits >> fraction_bits & ((1 << exponent_bits) - 1)
        else bits >> (exponent_bits + fraction_bits) << (exponent_bits + fraction_bits)
    )


def fused(x: float, y: float, z: float, kind: str, mode: str) -> int:
    """x y + z, rounded once; sums and products are cases of it."""
    if not all(map(math.isfinite, (x, y, z))):
        if math.isnan(x * y if not ((math.isinf(x) and y == 0) or (math.isinf(y) and x == 0)) else math.nan):
            return nan(kind)
        product = math.copysign(math.inf, x) * math.copysign(1, y) if math.isinf(x) or math.isinf(y) else 0.0
        return rounded(product + z, kind)
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    product_sign, sum_sign = math.copysign(1, x) * math.copysign(1, y), math.copysign(1, z)
    zero = product_sign if product_sign == sum_sign else (-1.0 if mode == "rm" else 1.0)
    return rounded(exact, kind, mode, zero)


def root(x: float, kind: str, mode: str) -> int:
    if math.isnan(x) or x < 0:
        return nan(kind)
    if x == 0 or math.isinf(x):
        return rounded(x, kind, mode, x)
    exact, scale = Fraction(x), 1 << 700
    scaled = exact.numerator * scale * scale // exact.denominator
    below = math.isqrt(scaled)
    inexact = Fraction(below, scale) ** 2 != exact
    return rounded(Fraction(2 * below + inexact, 2 * scale), kind, mode)


def quotient(x: float, y: float, kind: str, mode: str) -> int:
    sign = math.copysign(1, x) * math.copysign(1, y)
    if math.isnan(x) or math.isnan(y) or (x == 0 and y == 0) or (math.isinf(x) and math.isinf(y)):
        return nan(kind)
    if y == 0 or math.isinf(x):
        return rounded(sign * math.inf, kind)
    if math.isinf(y) or x == 0:
        return rounded(0.0, kind, mode, sign)
    return rounded(Fraction(x) / Fraction(y), kind, mode)


def saturated(bits: int, kind: str) -> int:
    value = real(bits, kind)
    return rounded(0.0 if math.isnan(value) or value <= 0 else min(value, 1.0), kind)


def least(bits: list[int], kind: str, greatest: bool, keep_nan: bool) -> int:
    a, b = (real(each, kind) for each in bits)
    if math.isnan(a) or math.isnan(b):
        return nan(kind) if keep_nan or (math.isnan(a) and math.isnan(b)) else bits[math.isnan(a)]
    key = [(value, math.copysign(1, value)) for value in (a, b)]
    return bits[0] if (key[0] >= key[1] if greatest else key[0] <= key[1]) else bits[1]


def compared(condition: str, a: float, b: float) -> bool:
    unordered = math.isnan(a) or math.isnan(b)
    if condition in ("num", "nan"):
        return unordered == (condition == "nan")
    if condition in TESTS:
        return not unordered and TESTS[condition](a, b)
    return unordered or TESTS[condition[:-1]](a, b)


def expected(opcode: str, bits: list[int]) -> int | Near:
    """The bits that the instruction gives for operands of these bits."""
    parts = opcode.split(".")
    name, kind = parts[0], parts[-1]
    if kind in ("f16x2", "bf16x2") and name != "cvt" and not (name == "set" and parts[2] == "u32"):
        halves = [[each & 0xFFFF for each in bits], [each >> 16 for each in bits]]
        single = opcode.replace("x2", "")
        low, high = (expected(single, half) for half in halves)
        assert isinstance(low, int) and isinstance(high, int)
        return high << 16 | low
    if name == "cvt":
        return converted(parts, bits)
    if name == "set":
        return _set(parts, bits)
    if kind in FORMATS and name not in ("selp", "mov"):
        return _real(parts, bits)
    return _integer(parts, bits)


def _set(parts: list[str], bits: list[int]) -> int:
    condition, result, source = parts[1], parts[-2], parts[-1]
    if source.endswith("x2"):  # a mask of each half
        held = [compared(condition, *(real(each >> shift & 0xFFFF, source[:-2]) for each in bits)) for shift in (0, 16)]
        return sum(0xFFFF << shift for shift, holds in zip((0, 16), held, strict=True) if holds)
    holds = expected(".".join(["setp", *parts[1:-2], source]), bits)
    if result in ("u32", "s32"):
        return 0xFFFFFFFF if holds else 0
    return rounded(1.0, result) if holds else 0


def _real(parts: list[str], bits: list[int]) -> int | Near:
    name, kind, modifiers = parts[0], parts[-1], parts[1:-1]
    mode = next((each for each in modifiers if each in ("rz", "rm", "rp")), "rn")
    if "ftz" in modifiers and kind != "bf16":
        bits = [flushed(each, kind) for each in bits]
    x = [real(each, kind) for each in bits]
    sign = 1 << (width(kind) - 1)
    if name in ("setp", "testp"):
        if name == "setp":
            return int(compared(parts[1], *x))
        return int({
            "finite": math.isfinite(x[0]), "infinite": math.isinf(x[0]), "number": not math.isnan(x[0]),
            "notanumber": math.isnan(x[0]),
        }[parts[1]])  # fmt: skip
    if name in ("neg", "abs", "copysign"):
        return (
            bits[0] ^ sign
            if name == "neg"
            else bits[0] & ~sign
            if name == "abs"
            else (bits[1] & ~sign) | (bits[0] & sign)
        )
    if "approx" in modifiers or "full" in modifiers:
        return _approximate(name, kind, x, "ftz" in modifiers and kind != "bf16")
    if name in ("min", "max"):
        result = least(bits, kind, name == "max", "NaN" in modifiers)
    elif name == "add":
        result = fused(x[0], 1.0, x[1], kind, mode)
    elif name == "sub":
        result = fused(x[0], 1.0, -x[1], kind, mode)
    elif name == "mul":
        zero = -0.0 if math.copysign(1, x[0]) * math.copysign(1, x[1]) < 0 else 0.0
        result = fused(x[0], x[1], zero, kind, mode)
    elif name in ("fma", "mad"):
        result = fused(x[0], x[1], x[2], kind, mode)
    elif name == "div":
        result = quotient(x[0], x[1], kind, mode)
    elif name == "rcp":
        result = quotient(1.0, x[0], kind, mode)
    elif name == "sqrt":
        result = root(x[0], kind, mode)
    else:
        raise AssertionError(parts)
    if "ftz" in modifiers:
        result = flushed(result, kind)
    if "relu" in modifiers:
        result = nan(kind) if is_nan(result, kind) else 0 if result & sign else result
    return saturated(result, kind) if "sat" in modifiers else result


def _approximate(name: str, kind: str, x: list[float], flush: bool) -> Near:
    def guarded(function):
        try:
            return function()
        except (ValueError, ZeroDivisionError, OverflowError):
            return None

    a = x[0]
    value = guarded({
        "rcp": lambda: 1 / a, "sqrt": lambda: math.sqrt(a), "rsqrt": lambda: 1 / math.sqrt(a), "ex2": lambda: 2.0**a,
        "lg2": lambda: math.log2(a), "sin": lambda: math.sin(a), "cos": lambda: math.cos(a),
        "tanh": lambda: math.tanh(a), "div": lambda: a / x[1],
    }[name])  # fmt: skip
    del flush
    return Near(math.nan if value is None else value, {"f64": 2**-19, "f32": 2**-22, "f16": 2**-9, "bf16": 2**-7}[kind])


def converted(parts: list[str], bits: list[int]) -> int:
    """cvt: between integers, between reals, and either way; two f32 packed to halves."""
    kinds = [each for each in parts if each in FORMATS or each in WIDTHS or (each[:1] in "us" and each[1:].isdigit())]
    to, source = kinds
    modifiers = [each for each in parts[1:] if each not in kinds]
    if to.endswith("x2"):
        single = ["cvt", *modifiers, to[:-2], source]
        return converted(single, bits[1:]) | converted(single, bits[:1]) << 16
    mode = next((each for each in modifiers if each in ("rn", "rz", "rm", "rp", "rna")), "rn")
    whole = next((each for each in modifiers if each in ("rni", "rzi", "rmi", "rpi")), None)
    register = 16 if to in ("u8", "s8") else width("f32" if to == "tf32" else to)
    if source not in FORMATS:
        value = integer(bits[0], source)
        if to in FORMATS:
            return rounded(Fraction(value), to, mode)
        return integer(value, to) & ((1 << register) - 1)
    raw = wrap(bits[0], source)
    if "ftz" in modifiers and source == "f32":
        raw = flushed(raw, "f32")
    x = real(raw, source)
    if to not in FORMATS:
        if math.isnan(x):
            return 0
        low, high = (0, 2 ** width(to) - 1) if to[0] == "u" else (-(2 ** (width(to) - 1)), 2 ** (width(to) - 1) - 1)
        value = (high if x > 0 else low) if math.isinf(x) else min(max(_whole(x, whole), low), high)
        return value & ((1 << register) - 1)
    if whole:
        return (
            raw
            if not math.isfinite(x) and not math.isnan(x)
            else rounded(math.nan if math.isnan(x) else Fraction(_whole(x, whole)), to, zero=x)
        )
    result = rounded(x if not math.isfinite(x) else Fraction(x), to, mode, x)
    if "sat" in modifiers:
        return rounded(0.0 if math.isnan(x) or x <= 0 else min(x, 1.0), to)
    if "relu" in modifiers:
        result = result if is_nan(result, to) or not result >> (width(to) - 1) else 0
    return result << 13 if to == "tf32" else result


def _whole(x: float, how: str | None) -> int:
    exact = Fraction(x)
    return {"rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}[how or "rzi"](exact)


def _integer(parts: list[str], bits: list[int]) -> int:
    name, kind, modifiers = parts[0], parts[-1], parts[1:-1]
    bit_count = width(kind) if kind not in ("global", "shared", "local") else 64
    every = (1 << bit_count) - 1
    x = [integer(each, kind) if kind[0] in "us" and kind[1:].isdigit() else each for each in bits]
    a, b, c = [*x, 0, 0, 0][:3]
    signed = kind[0] == "s"
    if name in ("setp",):
        condition = UNSIGNED_TESTS.get(parts[1], parts[1])
        return int(TESTS[condition](a, b))
    if name in ("mul", "mad"):
        exact = a * b
        if "wide" in modifiers:
            wide = f"{kind[0]}{2 * bit_count}"
            return wrap(exact + (integer(bits[2], wide) if name == "mad" else 0), wide)
        part = exact >> bit_count if "hi" in modifiers else exact
        return (part + (c if name == "mad" else 0)) & every
    if name in ("add", "sub"):
        exact = a + b if name == "add" else a - b
        if "sat" in modifiers:
            exact = min(max(exact, -(2**31)), 2**31 - 1)
        return exact & every
    if name in ("div", "rem"):
        if b == 0:
            return every if name == "div" else a & every
        size = abs(a) // abs(b)
        whole = -size if (a < 0) != (b < 0) else size
        return (whole if name == "div" else a - whole * b) & every
    if name == "bfe":
        position, length = bits[1] & 255, bits[2] & 255
        last = min(position + length - 1, bit_count - 1)
        sign = signed and length > 0 and bits[0] >> last & 1
        result = 0
        for i in range(bit_count):
            inside = i < length and position + i < bit_count
            result |= (bits[0] >> position + i & 1 if inside else int(sign)) << i
        return result
    if name == "bfi":
        position, length = bits[2] & 255, bits[3] & 255
        result = bits[1]
        for i in range(length):
            if position + i < bit_count:
                result = result & ~(1 << position + i) | (bits[0] >> i & 1) << position + i
        return result
    if name == "bfind":
        searched = ~a if a < 0 else a
        top = searched.bit_length() - 1
        if searched == 0:
            return 0xFFFFFFFF
        return bit_count - 1 - top if "shiftamt" in modifiers else top
    if name == "shf":
        amount = bits[2] & 31 if parts[2] == "wrap" else min(bits[2], 32)
        both = bits[1] << 32 | bits[0]
        return (both << amount >> 32 if parts[1] == "l" else both >> amount) & 0xFFFFFFFF
    if name == "prmt":
        four = struct.pack("<II", bits[0], bits[1])
        chosen = [(bits[2] >> 4 * i) & 15 for i in range(4)]
        return sum(((255 if four[n & 7] & 128 else 0) if n & 8 else four[n & 7]) << 8 * i for i, n in enumerate(chosen))
    if name == "lop3":
        return sum(
            (bits[3] >> ((bits[0] >> i & 1) << 2 | (bits[1] >> i & 1) << 1 | (bits[2] >> i & 1)) & 1) << i
            for i in range(32)
        )
    if name == "dp4a":
        pairs = zip(
            *(struct.unpack("<4b" if signed else "<4B", struct.pack("<I", each)) for each in bits[:2]), strict=True
        )
        return (sum(p * q for p, q in pairs) + bits[2]) & every
    if name in ("isspacep", "cvta"):
        windows = {"shared": 0xFFFFFF, "local": 0xFFFFFE}
        if name == "isspacep":
            return int(bits[0] >> 40 == windows[kind] if kind in windows else bits[0] >> 40 < windows["local"])
        space = next(each for each in modifiers if each != "to")
        shift = windows.get(space, 0) << 40
        return (bits[0] - shift if "to" in modifiers else bits[0] + shift) & every
    simple = {
        "neg": lambda: -a, "abs": lambda: abs(a), "min": lambda: min(a, b), "max": lambda: max(a, b),
        "and": lambda: a & b, "or": lambda: a | b, "xor": lambda: a ^ b, "not": lambda: ~a, "cnot": lambda: int(a == 0),
        "shl": lambda: 0 if bits[1] >= bit_count else a << bits[1],
        "shr": lambda: a >> min(bits[1], bit_count) if not signed else a >> min(bits[1], bit_count - 1),
        "selp": lambda: bits[0] if bits[2] else bits[1], "mov": lambda: bits[0],
        "sad": lambda: abs(a - b) + bits[2], "popc": lambda: a.bit_count(), "clz": lambda: bit_count - a.bit_length(),
        "brev": lambda: int(f"{a:0{bit_count}b}"[::-1], 2),
    }  # fmt: skip
    return simple[name]() & every
