"""The host's C++ compiler and processor: compile a candidate to a shared object, bind it to arrays, run it.

The compiler is $CXX, $CC, g++, clang++, or the `ziglang` package. Kernels are linked against nothing, so that a name
the screen let through still has nowhere to go.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.util
import logging
import os
import platform
import shlex
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sparsegen import cache, formats, ops, prelude
from sparsegen.candidate import Candidate, evaluate
from sparsegen.errors import SparsegenValueError
from sparsegen.formats import Packed
from sparsegen.problem import Problem

try:
    from sparsegen import _native
except ImportError:  # installed on a machine without a compiler
    _native = None  # type: ignore[assignment]

logger = logging.getLogger("sparsegen")

LANGUAGE = "cpp"
COPIES = False  # bind leaves the arrays where they are
COMPILE_SECONDS = 20.0
COMPILE_MEMORY = 2 << 30  # bytes of address space
PIECES = 4  # of work per thread, so that one that is held up can be helped
SMALL = 1 << 15  # multiply-adds below which giving up and taking back the interpreter lock costs more than it gives
FLAGS = (
    "-x", "c++", "-std=gnu++17", "-O3", "-fPIC", "-shared", "-ffreestanding", "-fno-exceptions", "-fno-rtti",
    "-fno-stack-protector", "-fno-asynchronous-unwind-tables", "-fno-math-errno", "-fno-trapping-math",
    "-ffp-contract=fast", "-nostdlib", "-Wl,--no-undefined", "-w",
)  # fmt: skip
GCC_FLAGS = ("-fno-tree-loop-distribute-patterns", "-Wno-psabi")  # no calls of memset and memcpy made from loops
X86_LEVELS = (  # name, flags of /proc/cpuinfo, compiler options, vector bytes
    ("avx512", ("avx512f", "avx512vl", "avx512bw", "avx512dq", "avx2", "fma", "bmi2"), 64),
    ("avx2", ("avx2", "fma", "bmi2"), 32),
    ("sse2", ("sse2",), 16),
)


class CompileFailure(Exception):
    """The compiler's own words, about the candidate's lines alone."""


@dataclass(frozen=True)
class Compiler:
    command: tuple[str, ...]
    version: str

    @property
    def is_gcc(self) -> bool:
        return "Free Software Foundation" in self.version


@dataclass(frozen=True)
class Machine:
    """The instruction set kernels are compiled for, resolved: never "native"."""

    isa: str
    flags: tuple[str, ...]
    vector_bytes: int
    model: str
    usable: bool = True  # whether the compiler makes code for it


def available() -> str | None:
    """None when kernels can be compiled and run here; else one sentence why not and what to do."""
    if not sys.platform.startswith(("linux", "darwin")):
        return f"kernels are not compiled on {sys.platform} yet; the baseline is used"
    found = compiler()
    if found is None:
        return "no C++ compiler found: install g++ or clang++, or `pip install sparsegen[compiler]`, or set CXX"
    if _native is None:
        return "sparsegen was installed without a C compiler: install one, then install sparsegen again"
    if not machine().usable:
        return f"{shlex.join(found.command)} answers but does not compile: set CXX to a working C++ compiler"
    return None


@functools.cache
def compiler() -> Compiler | None:
    """The first compiler of the list that answers, or None."""
    found = [shlex.split(os.environ[name]) for name in ("CXX", "CC") if os.environ.get(name)]
    found += [["g++"], ["clang++"], ["c++"]]
    if importlib.util.find_spec("ziglang"):
        found.append([sys.executable, "-m", "ziglang", "c++"])
    for command in found:
        if not command or not shutil.which(command[0]):
            if command and command[0] not in ("g++", "clang++", "c++"):
                logger.warning("the compiler %s of CXX or CC is not found; looking for another", command[0])
            continue
        try:
            said = subprocess.run(
                [*command, "--version"], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL
            )
        except (OSError, subprocess.SubprocessError):
            continue
        if said.returncode == 0:
            return Compiler(tuple(command), said.stdout.strip())
    return None


@functools.cache
def machine() -> Machine:
    """What this processor offers."""
    kind, model, has = platform.machine().lower(), platform.processor() or "cpu", set()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            model = value.strip()
        elif name.strip() == "flags":
            has = set(value.split())
            break
    if kind in ("x86_64", "amd64"):
        for isa, needed, width in X86_LEVELS:
            if has.issuperset(needed) and _accepted(tuple(f"-m{name}" for name in needed), width):
                return Machine(isa, tuple(f"-m{name}" for name in needed), width, model)
        return Machine("sse2", ("-msse2",), 16, model, usable=False)
    return Machine(kind, (), 16, model, usable=_accepted((), 16))


def _accepted(flags: tuple[str, ...], width: int) -> bool:
    """Whether the compiler makes code with vectors of that width under these flags: some want further ones."""
    found = compiler()
    if found is None:
        return True
    text = f'typedef double v __attribute__((vector_size({width}))); extern "C" void f(v* a) {{ *a = *a + *a; }}'
    key = hashlib.blake2b("\0".join([found.version, *flags, text]).encode(), digest_size=20).hexdigest()
    command = [*found.command, *FLAGS, *flags]
    try:
        cache.binary_path(key, lambda path: _fenced([*command, "-o", str(path), "-"], text))
    except CompileFailure:
        return False
    return True


def device() -> str:
    """What a measured choice is for: the processor, its instruction set and the cores this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{machine().model} {machine().isa} {cores} cores"


def screen(candidate: Candidate) -> str | None:
    """One sentence why the source must not be compiled and run in a process of ours, or None."""
    from sparsegen.screen import cpp  # not needed before a first kernel

    return cpp.check(candidate)


def unit(candidate: Candidate, problem: Problem, packs: Sequence[Packed]) -> str:
    """The translation unit of a candidate for this machine."""
    lanes = machine().vector_bytes // problem.dtype.itemsize
    return prelude.assemble(candidate, problem, packs, {"LANES": str(lanes)})


def build(text: str, ordinal: int = 0) -> Path:
    """The shared object of a translation unit, from the cache or compiled into it.

    Raises CompileFailure with the compiler's words, or when it takes over 20 s or 2 GiB.
    """
    found = compiler()
    if found is None:
        raise CompileFailure(available() or "no compiler")
    flags = [*FLAGS, *(GCC_FLAGS if found.is_gcc else ()), *machine().flags]
    key = hashlib.blake2b("\0".join([found.version, *flags, text]).encode(), digest_size=20).hexdigest()

    def build(path: Path) -> None:
        _fenced([*found.command, *flags, "-o", str(path), "-"], text)

    return cache.binary_path(key, build)


def code(path: Path) -> str:
    """A hash of the machine code and constants of a shared object: kernels that differ in spelling alone have one.

    Of the .text and .rodata sections where the file is 64-bit ELF, else of the whole file.
    """
    raw = path.read_bytes()
    digest = hashlib.blake2b(digest_size=20)
    if raw[:6] != b"\x7fELF\x02\x01":
        digest.update(raw)
        return digest.hexdigest()
    start, size, count, names = *struct.unpack_from("<Q", raw, 40), *struct.unpack_from("<HHH", raw, 58)
    sections = [struct.unpack_from("<IIQQQQ", raw, start + number * size) for number in range(count)]
    for name, _, _, _, offset, length in sections:
        label = raw[sections[names][4] + name :].partition(b"\0")[0]
        if label in (b".text", b".rodata"):
            digest.update(raw[offset : offset + length])
    return digest.hexdigest()


def _fenced(command: list[str], text: str) -> None:
    memory, seconds = COMPILE_MEMORY // 1024, int(COMPILE_SECONDS) + 1
    limits = f'ulimit -v {memory} 2>/dev/null; ulimit -c 0; ulimit -t {seconds}; exec "$@"'
    with subprocess.Popen(
        ["/bin/sh", "-c", limits, "sh", *command], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True,
    ) as process:  # fmt: skip
        try:
            _, said = process.communicate(text, timeout=COMPILE_SECONDS)
        except subprocess.TimeoutExpired:
            raise CompileFailure(f"the compiler took over {COMPILE_SECONDS:.0f} s") from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        own = [line for line in said.splitlines() if line.startswith(("kernel:", "door:", "prelude:"))]
        undefined = [line.partition("undefined ")[1:] for line in said.splitlines() if "undefined reference" in line]
        words = own or ["".join(part) for part in undefined] or ["the compiler failed without a word about the kernel"]
        raise CompileFailure("\n".join(words[:8])[:2000])


def load(path: Path) -> ctypes.CDLL:
    """Map a compiled kernel into this process."""
    return ctypes.CDLL(str(path), mode=os.RTLD_LOCAL | os.RTLD_NOW)


def bind(
    library: ctypes.CDLL,
    candidate: Candidate,
    problem: Problem,
    packs: Sequence[Packed],
    arrays: Sequence[Mapping[str, np.ndarray]],
    threads: int,
):
    """A native plan: plan.run(x, y, alpha, beta). `arrays` holds for each part those of its format, data included.

    threads: how many share a call. x is (n,) or (n, k), y (m,) or (m, k), in the problem's dtype and layouts.
    """
    launches, later = [], False
    row_b, row_c, turned = problem.layout_b == "row", problem.layout_c == "row", candidate.turns
    pieces = 1 if threads == 1 else threads * PIECES
    for part, packed, own in zip(candidate.parts, packs, arrays, strict=True):
        sizes = prelude.sizes(problem, packed, turned)
        cuts = formats.get(part.format).cuts(packed, pieces)
        for launch in part.launches:
            if (items := evaluate(launch.items, {**sizes, **_integers(candidate)})) != cuts[-1]:
                raise SparsegenValueError(
                    f"items = {launch.items!r} is {items}, but {part.format} has {cuts[-1]} work items here"
                )
            address = ctypes.cast(getattr(library, f"door_{launch.entry}"), ctypes.c_void_p).value or 0
            words = prelude.words(candidate, part, sizes, dict(own))
            launches.append((address, words, np.ascontiguousarray(cuts, np.int64), later))
        later = True
    x_shape, y_shape = ops.get(candidate.op).shapes(problem)
    work = problem.pattern.nnz * problem.k
    return _native.Plan(
        launches, (*x_shape, -1)[:2], (*y_shape, -1)[:2], problem.dtype.char, row_b, row_c, bool(candidate.zero),
        threads, int(threads > 1 or work > SMALL), (library, list(arrays)), *([True] if turned else []),
    )  # fmt: skip


def fits(problem: Problem) -> Callable | None:
    """run(x, y, alpha, beta) of a plan without launches: 0 for operands that a plan would take, else -1.

    None where the package was installed without a compiler.
    """
    if _native is None:
        return None
    x_shape, y_shape = ops.get(problem.op).shapes(problem)
    row_b, row_c = problem.layout_b == "row", problem.layout_c == "row"
    shapes = (*x_shape, -1)[:2], (*y_shape, -1)[:2]
    kind = np.empty(0, problem.dtype).data.format
    return _native.Plan([], *shapes, kind, row_b, row_c, False, 1, 0, None).run


def _integers(candidate: Candidate) -> dict[str, int]:
    return {name: value for name, value in candidate.params.items() if isinstance(value, int)}
