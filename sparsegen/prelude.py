"""From a candidate to a translation unit: the macros of its signature, the fixed prelude, the source, the door.

Sizes and pointers are arguments and only the format's BAKED literals enter the text, so that one binary serves every
matrix of one signature.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

import numpy as np

from sparsegen import formats, ops, paths, values
from sparsegen.candidate import Candidate, Launch, Part, evaluate
from sparsegen.formats import Packed
from sparsegen.problem import Problem

VERSION = 1  # of the macros kernels are written against; a shipped model names the one it learned
C_TYPE = {"float32": "float", "float64": "double", "int32": "int32_t", "int64": "int64_t"}
PRELUDE = {"cpp": ("cpu_templates", "prelude.h"), "cuda": ("cuda_templates", "prelude.cuh")}
_STREAMS = re.compile(r"\bSTREAM_ROW\b|\bstream\b|movnt|nontemporal_store")


@cache
def text(language: str) -> str:
    """The prelude of a language, as it stands before every kernel."""
    folder, name = PRELUDE[language]
    return (paths.data(folder) / name).read_text()


def arguments(candidate: Candidate, part: Part) -> list[tuple[str, str]]:
    """What an entry of `part` receives, in order: (name, C type), up to and without begin and end."""
    format, op = formats.get(part.format), ops.get(candidate.op)
    return (
        [(name, "int64_t") for name in ["m", "n", "nnz", *op.SIZES, *format.SIZES]]
        + [(name, f"const {kind}*") for name, kind in format.ARRAYS.items()]
        + list(op.OPERANDS.items())
        + [(name, f"{kind}*") for name, (kind, _) in candidate.scratch.items()]
        + [("alpha", "ACC"), ("beta", "ACC"), ("status", "uint32_t*")]
    )


def sizes(problem: Problem, packed: Packed, turned: bool = False) -> dict[str, int]:
    """The values of the size arguments of a part's entries. turned: the host hands B over by rows in any case."""
    pattern, k = problem.pattern, problem.k
    ldb = k if turned or problem.layout_b == "row" else pattern.n
    ldc = k if problem.layout_c == "row" else pattern.m
    return {"m": pattern.m, "n": pattern.n, "nnz": packed.nnz, "k": k, "ldb": ldb, "ldc": ldc, **packed.sizes}


def names(candidate: Candidate, part: Part, problem: Problem, packed: Packed) -> dict[str, int]:
    """What the expressions of a part's CUDA launches may name: sizes, and parameters that are integers."""
    params = {name: value for name, value in candidate.params.items() if isinstance(value, int)}
    return {**sizes(problem, packed), **candidate.format_params(part), **params}


def scratch(candidate: Candidate, problem: Problem, packs: Sequence[Packed]) -> dict[str, tuple[np.dtype, int]]:
    """Of each scratch array the dtype, and elements enough for the part that wants most."""
    dtypes = {"INDEX": problem.index_dtype, "OFFSET": problem.offset_dtype}
    every = [names(candidate, part, problem, packed) for part, packed in zip(candidate.parts, packs, strict=True)]
    return {
        name: (dtypes.get(kind, problem.dtype), max(evaluate(items, known) for known in every))
        for name, (kind, items) in candidate.scratch.items()
    }


def macros(candidate: Candidate, problem: Problem, packs: Sequence[Packed]) -> dict[str, str]:
    """Every macro of a kernel's signature: types, layouts, parameters, baked literals and argument lists."""
    encoding, op = candidate.encoding, ops.get(candidate.op)
    real = C_TYPE[problem.dtype.name]
    defined = {
        "VALUE": real,
        "ACC": real,
        "STORED": C_TYPE[values.stored_dtype(encoding, problem.dtype).name],
        "INDEX": C_TYPE[problem.index_dtype.name],
        "OFFSET": C_TYPE[problem.offset_dtype.name],
        "LOCAL": "INDEX",
        "CONSTANT_VALUES": str(int(encoding == "constant")),
        "CHECK_FINITE": str(int(checks_finite(candidate))),
        "B_BY_ROW": str(int(problem.layout_b == "row" or candidate.turns)),
        "C_BY_ROW": str(int(problem.layout_c == "row")),
        "SIZES": ", ".join(f"int64_t {name}" for name in ["m", "n", "nnz", *op.SIZES]),
        "SCRATCH_ARRAYS": "".join(f"{kind}* {name}, " for name, (kind, _) in candidate.scratch.items()),
    }
    for part, packed in zip(candidate.parts, packs, strict=True):
        format = formats.get(part.format)
        numbers = [f"int64_t {name}" for name in format.SIZES]
        arrays = [f"const {kind}* {name}" for name, kind in format.ARRAYS.items()]
        defined[f"{part.format.upper()}_ARRAYS"] = ", ".join(numbers + arrays)
        defined |= {name: str(value) for name, value in candidate.format_params(part).items()}
        defined |= packed.baked
    return defined | {name: str(value) for name, value in candidate.params.items() if name != "values"}


def checks_finite(candidate: Candidate) -> bool:
    """Whether the kernel reports a sum that is not finite, for the host to compute again exactly."""
    padded = any(formats.get(part.format).PADS == "zero" for part in candidate.parts)
    return padded or candidate.encoding == "constant"


def assemble(candidate: Candidate, problem: Problem, packs: Sequence[Packed], machine: dict[str, str]) -> str:
    """The whole translation unit. `machine` holds macros of the hardware, such as LANES."""
    defines = {**macros(candidate, problem, packs), **machine}
    lines = [f"#define {name} {value}" for name, value in defines.items()]
    body = ['#line 1 "prelude"', text(candidate.language), '#line 1 "kernel"', candidate.source]
    if candidate.language == "cpp":
        # Hidden, an entry that is named like a function of the C library is not mistaken for it
        body = ["#pragma GCC visibility push(hidden)", *body, '#line 1 "door"', "#pragma GCC visibility pop"]
        body += dict.fromkeys(door(candidate, part, launch) for part, launch in entries(candidate))
    return "\n".join([*lines, *body, ""])


def entries(candidate: Candidate) -> list[tuple[Part, Launch]]:
    """The launches of all parts, in the order they run."""
    return [(part, launch) for part in candidate.parts for launch in part.launches]


def door(candidate: Candidate, part: Part, launch: Launch) -> str:
    """One uniform signature for every C++ entry, so that the caller needs no knowledge of its arguments.

    words holds sizes by value and arrays by address, in the order of `arguments`, operands left out.
    """
    passed, operands = [], ops.get(candidate.op).OPERANDS
    word = 0
    for name, kind in arguments(candidate, part):
        if name in operands:
            passed.append(f"({kind})operand_{list(operands).index(name)}")
        elif name in ("alpha", "beta"):
            passed.append(f"(ACC){name}")
        elif name == "status":
            passed.append(name)
        else:
            passed.append(f"({kind})words[{word}]")
            word += 1
    # Stores past the caches come before whatever another thread is told next
    fence = " STREAM_FENCE;" if _STREAMS.search(candidate.source) else ""
    return (
        f'extern "C" void door_{launch.entry}(const int64_t* words, const void* operand_0, void* operand_1, '
        f"double alpha, double beta, uint32_t* status, int64_t begin, int64_t end) "
        f"{{ {launch.entry}({', '.join(passed)}, begin, end);{fence} }}"
    )


def words(candidate: Candidate, part: Part, sizes: dict[str, int], arrays: dict[str, np.ndarray]) -> np.ndarray:
    """The words a door reads: (count,) int64. The arrays must outlive every call."""
    passed = worded(candidate, part)
    return np.array([sizes[name] if name in sizes else arrays[name].ctypes.data for name in passed], np.int64)


def worded(candidate: Candidate, part: Part) -> list[str]:
    """The arguments of an entry that a door reads from its words, in order."""
    operands = {*ops.get(candidate.op).OPERANDS, "alpha", "beta", "status"}
    return [name for name, _ in arguments(candidate, part) if name not in operands]
