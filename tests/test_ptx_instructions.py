"""Every row of the table of instructions, executed and held to an oracle on Python's integers and fractions."""

from __future__ import annotations

import math

import numpy as np
import ptx_oracle
import pytest

from sparsegen import ptx
from sparsegen.ptx import table

pytestmark = pytest.mark.skipif(ptx.available() is not None, reason=str(ptx.available()))

N = 205  # values of each operand: six full warps and a part of one
BITS = {"pred": 1, "u16": 16, "s16": 16, "u32": 32, "s32": 32, "f32": 32, "u64": 64, "s64": 64, "f64": 64}
INTEGERS = [0, 1, 2, 3, 31, 32, 33, 63, 64, 127, 128, 255, 256, 2**15 - 1, 2**15, 2**16 - 1]
SPECIAL = {  # zeros, the least, subnormals, ones, halves, the greatest, infinities, NaN
    "f16": [0, 1, 0x3FF, 0x400, 0x3C00, 0x3800, 0x3E00, 0x4100, 0x7BFF, 0x7C00, 0x7E00],
    "bf16": [0, 1, 0x7F, 0x80, 0x3F80, 0x3F00, 0x3FC0, 0x4020, 0x7F7F, 0x7F80, 0x7FC0],
    "f32": [0, 1, 0x7FFFFF, 0x800000, 0x3F800000, 0x3F000000, 0x3FC00000, 0x40200000,
            0x4F000000, 0x7F7FFFFF, 0x7F800000, 0x7FC00000],
    "f64": [0, 1, 2**52 - 1, 2**52, 0x3FF << 52, 0x3FE << 52, 0x3FF8 << 48, 0x4004 << 48,
            0x43E << 52, (0x7FF << 52) - 1, 0x7FF << 52, 0x7FF8 << 48],
}  # fmt: skip


def kernel(opcode: str, row: table.Scalar) -> str:
    """Operands from arrays of 64 bits each, the result into another."""
    names = "abcd"[: len(row.operands)]
    lines = [f".reg .b{BITS[kind]} %{name};" for name, kind in zip(names, row.operands, strict=True) if kind != "pred"]
    lines += [f".reg .pred %{name};" for name, kind in zip(names, row.operands, strict=True) if kind == "pred"]
    lines.append(f".reg .{'pred' if row.result == 'pred' else f'b{BITS[row.result]}'} %result;")
    for k, (name, kind) in enumerate(zip(names, row.operands, strict=True)):
        lines += [f"ld.param.u64 %rd3, [arg_{k + 1}];", "add.s64 %rd4, %rd3, %rd2;", "ld.global.u64 %rd5, [%rd4];"]
        lines.append(
            f"setp.ne.b64 %{name}, %rd5, 0;" if kind == "pred"
            else f"mov.b64 %{name}, %rd5;" if BITS[kind] == 64 else f"cvt.u{BITS[kind]}.u64 %{name}, %rd5;"
        )  # fmt: skip
    lines.append(f"{opcode} %result, {', '.join(f'%{name}' for name in names)};")
    if row.result == "pred":
        lines.append("selp.b64 %rd6, 1, 0, %result;")
    else:
        lines.append(
            "mov.b64 %rd6, %result;" if BITS[row.result] == 64 else f"cvt.u64.u{BITS[row.result]} %rd6, %result;"
        )
    parameters = ", ".join(f".param .u64 arg_{k}" for k in range(len(names) + 1))
    body = "\n".join(lines)
    return f""".version 8.6
.target sm_90
.address_size 64
.visible .entry one({parameters}, .param .u32 count)
{{
.reg .pred %p<2>;
.reg .b32 %r<4>;
.reg .b64 %rd<9>;
mov.u32 %r1, %tid.x;
ld.param.u32 %r2, [count];
setp.ge.u32 %p1, %r1, %r2;
@%p1 bra DONE;
cvt.u64.u32 %rd1, %r1;
shl.b64 %rd2, %rd1, 3;
{body}
ld.param.u64 %rd7, [arg_0];
add.s64 %rd8, %rd7, %rd2;
st.global.u64 [%rd8], %rd6;
DONE:
ret;
}}
"""


def source_kinds(opcode: str, row: table.Scalar) -> list[str]:
    """What the bits of each operand stand for, to draw telling values."""
    parts = opcode.split(".")
    real = next((each for each in reversed(parts) if each.removesuffix("x2") in ptx_oracle.FORMATS), None)
    if parts[0] in ("selp", "mov") or (parts[0] == "cvt" and parts[-1] not in ptx_oracle.FORMATS):
        real = None
    elif parts[0] == "cvt":
        real = parts[-1]
    return [real if real and kind != "pred" else kind for kind in row.operands]


def draw(kind: str, bits: int, rng: np.random.Generator) -> list[int]:
    """N bit patterns: special ones, and at random of every size."""
    if kind.endswith("x2"):
        return [low | high << 16 for low, high in zip(draw(kind[:-2], 16, rng), draw(kind[:-2], 16, rng), strict=True)]
    every = (1 << bits) - 1
    if kind in SPECIAL:
        chosen = [each | sign << (bits - 1) for each in SPECIAL[kind] for sign in (0, 1)]
        fraction = ptx_oracle.FORMATS[kind][1]
        middle = (every >> 1) >> fraction >> 1
        for _ in range(N):  # of sizes that meet: near one, with few bits
            exponent = middle + int(rng.integers(-9, 9))
            chosen.append(
                int(rng.integers(2)) << (bits - 1)
                | exponent << fraction
                | int(rng.integers(1 << min(fraction, 62))) & -(1 << int(rng.integers(fraction)))
            )
    else:
        chosen = [value & every for each in INTEGERS for value in (each, -each, ~each)]
        chosen += [1 << (bits - 1), (1 << (bits - 1)) - 1]
        chosen += [int(rng.integers(1 << 63)) >> int(rng.integers(63)) & every for _ in range(N // 2)]
    chosen += [int(rng.integers(0, 1 << 64, dtype=np.uint64)) & every for _ in range(N)]
    return [chosen[k] for k in rng.permutation(len(chosen))[:N]]


def operands(opcode: str, row: table.Scalar) -> list[list[int]]:
    rng = np.random.default_rng([90210, *opcode.encode()])
    drawn = [draw(kind, BITS[own], rng) for kind, own in zip(source_kinds(opcode, row), row.operands, strict=True)]
    if opcode.startswith(("shl", "shr", "bfe", "bfi", "shf")):  # amounts and positions near the width
        for k in range(
            1 if opcode.startswith(("shl", "shr")) else len(drawn) - (1 if opcode.startswith("shf") else 2), len(drawn)
        ):
            drawn[k] = [value if turn % 8 == 0 else value % 70 for turn, value in enumerate(drawn[k])]
    elif len(drawn) > 1 and row.operands[0] == row.operands[1]:  # equal ones as well
        drawn[1] = [a if turn % 5 == 0 else b for turn, (a, b) in enumerate(zip(*drawn[:2], strict=True))]
    if opcode.startswith(("isspacep", "cvta.to")):
        drawn[0] = [
            value & 0xFFFFFFFF | window << 40
            for value, window in zip(drawn[0], [0xFFFFFF, 0xFFFFFE, 1] * N, strict=False)
        ]
    return drawn


def close(bits: int, kind: str, near: ptx_oracle.Near) -> bool:
    value = ptx_oracle.real(bits, kind)
    if math.isnan(near.value) or math.isnan(value):
        return math.isnan(near.value)
    tiny = ptx_oracle.real(1 << ptx_oracle.FORMATS[kind][1], kind)
    greatest = ptx_oracle.real((1 << sum(ptx_oracle.FORMATS[kind])) - (1 << ptx_oracle.FORMATS[kind][1]) - 1, kind)
    if abs(near.value) > greatest:
        return value == math.copysign(math.inf, near.value)
    return abs(value - near.value) <= near.relative * abs(near.value) + tiny


ROWS = sorted(table.SCALARS)
GROUPS = sorted({opcode.split(".")[0] for opcode in ROWS})


def check(opcode: str) -> None:
    row = table.SCALARS[opcode]
    drawn = operands(opcode, row)
    result = np.zeros(N, np.uint64)
    arrays = [np.array(each, np.uint64) for each in drawn]
    if "pred" in row.operands:
        arrays[-1] &= np.uint64(1)
        drawn[-1] = [each & 1 for each in drawn[-1]]
    outcome = ptx.execute(kernel(opcode, row), "one", 1, 224, [result, *arrays, N], writable=[0])
    assert outcome.ok, f"{opcode}: {outcome.message}"
    kinds = [each for each in opcode.split(".") if each in ptx_oracle.FORMATS]
    to = (
        opcode.split(".")[-1]
        if opcode[:3] != "cvt"
        else next((each for each in opcode.split(".")[1:] if each in ptx_oracle.FORMATS or each[1:].isdigit()), "")
    )
    real = to if kinds and to in ptx_oracle.FORMATS and row.result != "pred" and to != "tf32" else None
    for k in range(N):
        given = [each[k] for each in drawn]
        got = int(result[k])
        if "approx" in opcode and opcode.endswith("x2"):
            single, kind = opcode[:-2], opcode.split(".")[-1][:-2]
            for shift in (0, 16):
                near = ptx_oracle.expected(single, [each >> shift & 0xFFFF for each in given])
                assert close(got >> shift & 0xFFFF, kind, near), f"{opcode} {given}: got {got:#x}, expected {near}"
            continue
        wanted = ptx_oracle.expected(opcode, given)
        told = f"{opcode} {[hex(each) for each in given]}: got {got:#x}, expected {wanted}"
        if isinstance(wanted, ptx_oracle.Near):
            assert close(got, opcode.split(".")[-1], wanted), told
        elif real and ptx_oracle.is_nan(wanted, real):
            assert ptx_oracle.is_nan(got, real), told
        elif opcode.endswith("x2") and not opcode.startswith(("cvt", "set")):
            for shift in (0, 16):
                half, other = wanted >> shift & 0xFFFF, got >> shift & 0xFFFF
                kind = opcode.split(".")[-1][:-2]
                assert half == other or (ptx_oracle.is_nan(half, kind) and ptx_oracle.is_nan(other, kind)), told
        else:
            assert got == wanted, told


@pytest.mark.parametrize("group", GROUPS)
def test_every_row_computes_what_ptx_says(group):
    count = 0
    for opcode in ROWS:
        if opcode.split(".")[0] == group:
            check(opcode)
            count += 1
    assert count


def test_the_cases_of_the_interpreter_are_those_of_the_table():
    assert table.HEADER.read_text() == table.header(), "from sparsegen.ptx import table; table.write()"
