"""Whether kernels of the writer compile: many to one translation unit, halved where one of them does not.

Each stands in a namespace of its own, behind the prelude and the macros a kernel of our dialect is given.
"""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Sequence

from sparsegen import formats, nvrtc, prelude
from sparsegen.errors import SparsegenValueError
from sparsegen.targets import cpu
from sparsegen.train.writer import Text

BATCH = 150  # kernels to a translation unit
ARCH = "sm_90"
SECONDS = 120.0
_HEADER = re.compile(r"\A/\* sparsegen\b(.*?)\*/", re.DOTALL)


def check(texts: Sequence[Text], dtype: str = "double", whole: bool = False) -> list[str | None]:
    """For each kernel None, or the compiler's first words about it. dtype: what VALUE and ACC stand for.

    The compilers check the language; with `whole` they make code as well, some hundred times as slow.
    Raises SparsegenValueError where the compiler of a language is missing.
    """
    found: list[str | None] = [None] * len(texts)
    for language, compile_ in (("cpp", _cpp), ("cuda", _cuda)):
        places = [place for place, text in enumerate(texts) if text.language == language]
        if places and (reason := cpu.available() if language == "cpp" else nvrtc.available()):
            raise SparsegenValueError(f"{language} kernels cannot be compiled here: {reason}")
        waiting = [places[first : first + BATCH] for first in range(0, len(places), BATCH)]
        while waiting:
            some = waiting.pop()
            said = compile_(unit([texts[place] for place in some], language, dtype), whole) if some else None
            if said is None:
                continue
            if len(some) == 1:
                found[some[0]] = said
            else:
                waiting += [some[: len(some) // 2], some[len(some) // 2 :]]
    return found


def unit(texts: Sequence[Text], language: str, dtype: str) -> str:
    """One translation unit of kernels of one language."""
    defined = {
        "VALUE": dtype, "ACC": dtype, "STORED": dtype, "INDEX": "int32_t", "OFFSET": "int32_t", "LOCAL": "INDEX",
        "LANES": str(cpu.machine().vector_bytes // (8 if dtype == "double" else 4)), "CONSTANT_VALUES": "0",
        "CHECK_FINITE": "1", "B_BY_ROW": "1", "C_BY_ROW": "1", "SCRATCH_ARRAYS": "", "OFFSETS": "{-1, 0, 1}",
        "DIAGONALS": "3", "SIZES": "int64_t m, int64_t n, int64_t nnz",
    }  # fmt: skip
    for name in formats.names():
        module = formats.get(name)
        sizes = [f"int64_t {size}" for size in module.SIZES]
        arrays = [f"const {kind}* {array}" for array, kind in module.ARRAYS.items()]
        defined[f"{name.upper()}_ARRAYS"] = ", ".join(sizes + arrays)
    lines = [f"#define {name} {value}" for name, value in defined.items()]
    lines += ['#line 1 "prelude"', prelude.text(language)]
    for number, text in enumerate(texts):
        header = _HEADER.match(text.text)
        params = tomllib.loads(header.group(1)).get("params", {}) if header else {}
        lines += [f"#define {name} {value}" for name, value in params.items()]
        # Two namespaces may not both hold the one C function of a name
        lines += [f"namespace kernel_{number} {{", '#line 1 "kernel"', text.text.replace('extern "C" ', ""), "}"]
        lines += [f"#undef {name}" for name in [*params, *re.findall(r"^#define (\w+)", text.text, re.MULTILINE)]]
    return "\n".join([*lines, ""])


def _cpp(source: str, whole: bool) -> str | None:
    compiler = cpu.compiler()
    assert compiler is not None
    flags = [*cpu.FLAGS, *(cpu.GCC_FLAGS if compiler.is_gcc else ()), *cpu.machine().flags]
    command = [*compiler.command, *flags, *(["-c", "-o", "/dev/null"] if whole else ["-fsyntax-only"]), "-"]
    try:
        ran = subprocess.run(command, input=source, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return f"the compiler took over {SECONDS:.0f} s"
    return _first(ran.stderr) if ran.returncode else None


def _cuda(source: str, whole: bool) -> str | None:
    try:
        nvrtc.compile(source, ARCH, kind="cubin" if whole else "ptx", timeout_s=SECONDS)
    except nvrtc.CompileFailure as failure:
        return _first(failure.log)
    return None


def _first(log: str) -> str:
    errors = [line for line in log.splitlines() if "error" in line]
    return (errors or ["the compiler failed without a word about the kernel"])[0]
