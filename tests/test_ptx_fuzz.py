"""PTX that was damaged at random, and encoded programs likewise: an outcome or a refusal, never a crash or a hang."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from sparsegen import ptx
from sparsegen.errors import SparsegenError
from sparsegen.ptx import counters, encode, parse, table

pytestmark = pytest.mark.skipif(ptx.available() is not None, reason=str(ptx.available()))

KERNELS = Path(__file__).parent / "kernels"
SOURCES = [path for folder in ("good", "ptx") for path in sorted((KERNELS / folder).glob("*.cu"))]
SOURCES = [path for path in SOURCES if not path.stem.startswith(("refused", "unsupported"))]
WORDS = re.compile(r"%\w+|\$?\w+|[.:@!]|\S")
BUDGET = 20_000


def texts() -> list[str]:
    return [ptx.compile(path.read_text(), "sm_80") for path in SOURCES]


def arguments(text: str, entry: str, rng: np.random.Generator) -> tuple[list, list[int]]:
    """An array of small numbers for every pointer, a number for every scalar."""
    args: list = []
    head = text[text.index(f".entry {entry}") :]
    for kind, size in re.findall(r"\.param (?:\.align \d+ )?\.(\w+) \w+(?:\[(\d+)\])?", head[: head.index(")")]):
        if size:
            args.append(bytes(int(size)))
        elif kind == "u64":
            args.append(rng.integers(0, 60, 64, dtype=np.int32))
        else:
            args.append(float(rng.integers(40)) if kind[0] == "f" else int(rng.integers(40)))
    arrays = [k for k, each in enumerate(args) if isinstance(each, np.ndarray)]
    return args, [k for k in arrays if rng.random() < 0.7]


def mutated(text: str, pool: list[str], rng: np.random.Generator) -> str:
    """One to six changes: a line gone, twice, elsewhere or of another kernel; a word of another place; a character."""
    lines = text.split("\n")
    for _ in range(int(rng.integers(1, 7))):
        at, other = (int(each) for each in rng.integers(len(lines), size=2))
        how = int(rng.integers(7))
        if how == 0:
            del lines[at]
        elif how == 1:
            lines.insert(at, lines[other])
        elif how == 2:
            lines[at], lines[other] = lines[other], lines[at]
        elif how == 3:
            lines.insert(at, pool[int(rng.integers(len(pool)))])
        elif how in (4, 5):
            words, donor = list(WORDS.finditer(lines[at])), WORDS.findall(pool[int(rng.integers(len(pool)))])
            if words and donor:
                word = words[int(rng.integers(len(words)))]
                put = (
                    donor[int(rng.integers(len(donor)))]
                    if how == 4
                    else str(int(rng.integers(-(2**62), 2**62)) >> int(rng.integers(62)))
                )
                lines[at] = lines[at][: word.start()] + put + lines[at][word.end() :]
        elif lines[at]:
            place = int(rng.integers(len(lines[at])))
            lines[at] = lines[at][:place] + chr(int(rng.integers(32, 127))) + lines[at][place + 1 :]
    return "\n".join(lines)


def run_mutants(count: int, seed: int) -> dict[str, int]:
    rng, corpus = np.random.default_rng(seed), texts()
    pool = [line for text in corpus for line in text.split("\n") if line.strip()]
    pool += [f"{opcode} %r1, %r2, %r3;" for opcode in table.SCALARS]
    found: dict[str, int] = {}
    for _ in range(count):
        text = corpus[int(rng.integers(len(corpus)))]
        entry = re.search(r"\.entry (\w+)", text)[1]
        args, writable = arguments(text, entry, rng)
        block = (int(rng.choice([1, 31, 64, 96])), int(rng.choice([1, 2])))
        try:
            outcome = ptx.execute(
                mutated(text, pool, rng), entry, int(rng.integers(1, 4)), block, args, writable,
                int(rng.choice([0, 64, 4096])), budget=BUDGET, counters=bool(rng.integers(2)),
            )  # fmt: skip
            kind = outcome.kind
            assert outcome.message and kind in (*ptx.KINDS, ptx.REFUSED)
        except SparsegenError:
            kind = "error"
        found[kind] = found.get(kind, 0) + 1
    return found


def test_damaged_ptx():
    found = run_mutants(700, seed=51783)
    assert found.get("ok", 0) > 20 and found.get("unsupported", 0) > 100 and len(found) >= 6, found


def test_damaged_programs():
    """The executor's own look at what it is given: random changes of encoded instructions."""
    from sparsegen.ptx import _executor

    rng = np.random.default_rng(90210)
    kept = refused = 0
    for text in texts():
        entry = re.search(r"\.entry (\w+)", text)[1]
        program = encode.encode(parse.parse(text), entry)
        for _ in range(60):
            code = program.code.copy()
            raw = code.view(np.uint8).reshape(len(code), -1)
            for _ in range(int(rng.integers(1, 4))):
                row = int(rng.integers(len(code)))
                if rng.random() < 0.5:
                    raw[row, int(rng.integers(raw.shape[1]))] = rng.integers(256)
                else:
                    code["operand"][row, int(rng.integers(16))] = rng.integers(-2, program.frame_units + 2)
                if rng.random() < 0.3:
                    code["op"][row] = rng.integers(len(table.CASES) + len(table.OTHERS) + 2)
            args, writable = arguments(text, entry, rng)
            launch = ptx._Launch(program, 2, 64, args, writable, 256, (), BUDGET)
            setup = launch.setup(counters.Device())
            if rng.random() < 0.2:
                setup[int(rng.integers(len(setup)))] = int(rng.integers(-(2**40), 2**40)) >> int(rng.integers(41))
            counted: tuple = (None, None)
            if rng.random() < 0.5:
                counted = np.zeros(2, counters.BLOCK), np.zeros(len(code), counters.INSTRUCTION)
            try:
                _executor.run(
                    code, program.tables, program.constants, program.predicate_constants, program.specials,
                    bytes(launch.parameters), setup, launch.buffers, *counted,
                )  # fmt: skip
                kept += 1
            except ValueError:
                refused += 1
    assert kept > 50 and refused > 50


def test_long_and_strange_texts_are_refused_quickly():
    for text in (
        "", "{" * 5000, "}" , "." * 100_000, "a:" * 50_000, ".entry f" + "(" * 10_000, ".reg .b32 %r<999999999>;",
        ".visible .entry f()\n{\n.reg .b32 %r<999999999>;\nmov.b32 %r999999998, 1;\nret;\n}",
        ".visible .entry f()\n{\n.shared .b8 s[999999999];\nret;\n}", ".global .b8 g[9999999999];\n" * 3,
        ".visible .entry f()\n{\n" + "ret;\n" * 20_000 + "}", ".visible .entry f()\n{\nbra NOWHERE;\n}",
        "\0", "π" * 1000, ".visible .entry f(.param .b8 a[999999999])\n{\nret;\n}",
    ):  # fmt: skip
        outcome = ptx.execute(text, "f", 1, 32, [])
        assert outcome.kind in ("ok", "unsupported", "refused") and outcome.message


def test_counters_have_the_layout_of_the_executor():
    assert counters.BLOCK.itemsize == 18 * 8 and counters.INSTRUCTION.itemsize == 5 * 8
    assert encode.INSTRUCTION.itemsize == 88
