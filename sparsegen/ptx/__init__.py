"""CUDA without a GPU: the PTX that NVRTC makes, executed on the CPU with every access checked.

`launch` is the one door: source in, `Outcome` out. A kernel's fault is a value; a mistake in the call is an exception.

Not covered: kernels whose blocks wait for each other, or whose warps wait for a later warp, exceed their budget.
"""

from __future__ import annotations

import functools
import math
import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sparsegen import nvrtc
from sparsegen.errors import SparsegenError, SparsegenTypeError, SparsegenValueError
from sparsegen.ptx import counters as counting
from sparsegen.ptx import encode, parse
from sparsegen.ptx.program import Program
from sparsegen.screen import cuda as screen

KINDS = (
    "ok", "out of bounds", "misaligned", "read-only store", "uninitialised read", "race", "divergent warp operation",
    "barrier fault", "budget exceeded", "trap", "unsupported",
)  # fmt: skip
REFUSED = "refused"  # by the screen or the compiler: never executed
MOST_SHARED = 227 << 10  # bytes a block can ask for
MOST_LOCAL = 1 << 28  # bytes of all threads of a block
ACCESSES = ("reads", "writes", "changes")
_BASE_BUDGET, _BASE_WARP = 50_000_000, 2_000_000  # instructions of warps, and so many more for each byte of operands:
_BYTE_BUDGET, _BYTE_WARP = 64, 8


@dataclass(frozen=True)
class Outcome:
    """What became of a launch. kind is one of KINDS, or REFUSED; message is one sentence.

    line is of the source, 0 where there is none; block and thread count from 0, x fastest, None where there is none;
    buffer says whose memory it was about ("argument 2", "shared memory", ...) and offset where in it, in bytes.
    """

    kind: str
    message: str
    line: int = 0
    block: int | None = None
    thread: int | None = None
    counters: counting.Counters | None = None
    buffer: str | None = None
    offset: int | None = None

    @property
    def ok(self) -> bool:
        return self.kind == "ok"


def available() -> str | None:
    """None when kernels can be executed here; else one sentence why not and what to do."""
    try:
        from sparsegen.ptx import _executor  # noqa: F401
    except ImportError:
        return "the PTX executor was not built; install sparsegen where there is a C compiler"
    return nvrtc.available()


def launch(
    source: str,
    entry: str,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    args: Sequence,
    writable: Sequence[int] = (),
    shared_bytes: int = 0,
    arch: str = "sm_80",
    *,
    uninitialised: Sequence[int] = (),
    budget: int | None = None,
    counters: bool | counting.Device = False,
) -> Outcome:
    """Compile a CUDA source and execute its kernel `entry`, every block and thread of it.

    args: a NumPy array for every pointer, a number for every scalar (bytes for a struct). The kernel may change the
    arrays at the positions `writable`, in place; those also in `uninitialised` count as never written. shared_bytes:
    dynamic shared memory. budget: instructions of warps, else by the size of the operands. counters: also count what
    the run costs, with the caches of a Device. Raises SparsegenError for a launch that no GPU can make or that does not
    fit the kernel's parameters.
    """
    if not isinstance(source, str):
        raise SparsegenTypeError(f"source is a {type(source).__name__}; expected CUDA source as a str")
    reason = screen.check(source, fp_headers=True)
    if reason is not None:
        return Outcome(REFUSED, reason, _line_of(reason, r"line (\d+)"))
    why = available()
    if why is not None:
        raise SparsegenError(why)
    try:
        text = compile(source, arch)
    except nvrtc.CompileFailure as failure:
        return Outcome(REFUSED, failure.log, _line_of(failure.log, r"kernel\((\d+)\)"))
    except ValueError as error:
        raise SparsegenValueError(str(error)) from None
    return execute(
        text, entry, grid, block, args, writable, shared_bytes,
        uninitialised=uninitialised, budget=budget, counters=counters,
    )  # fmt: skip


def execute(
    text: str,
    entry: str,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    args: Sequence,
    writable: Sequence[int] = (),
    shared_bytes: int = 0,
    *,
    uninitialised: Sequence[int] = (),
    budget: int | None = None,
    counters: bool | counting.Device = False,
    stride: int = 1,
) -> Outcome:
    """Like `launch`, of PTX. stride: run one of so many blocks, from the middle of the first so many."""
    try:
        program = _encoded(text, entry)
    except parse.Refused as refused:
        kind = REFUSED if refused.never else "unsupported"
        return Outcome(kind, f"{kind}: {refused.what}", refused.line)
    return _Launch(program, grid, block, args, writable, shared_bytes, uninitialised, budget, stride).run(counters)


@functools.lru_cache(maxsize=64)
def compile(source: str, arch: str) -> str:
    """The PTX of a source that the screen let through, with lines. Raises nvrtc.CompileFailure."""
    return nvrtc.compile(source, arch, kind="ptx", options=["-lineinfo"]).data.decode()


@functools.lru_cache(maxsize=64)
def _encoded(text: str, entry: str) -> Program:
    return encode.encode(parse.parse(text), entry)


def _line_of(text: str, pattern: str) -> int:
    found = re.search(pattern, text)
    return int(found[1]) if found else 0


def _three(name: str, given: int | Sequence[int], most: tuple[int, int, int]) -> tuple[int, int, int]:
    try:
        listed = [given] if isinstance(given, (int, np.integer)) else list(given)
        sizes = [operator.index(each) for each in [*listed, 1, 1][:3]]
    except (TypeError, ValueError):
        raise SparsegenTypeError(f"{name} = {given!r}; expected one to three integers") from None
    if not 1 <= len(listed) <= 3 or any(not 1 <= size <= limit for size, limit in zip(sizes, most, strict=True)):
        raise SparsegenValueError(f"{name} = {given!r}; expected one to three integers from 1 to {most}")
    return sizes[0], sizes[1], sizes[2]


class _Launch:
    """A program with its arguments, checked and laid out."""

    def __init__(self, program: Program, grid, block, args, writable, shared_bytes, uninitialised, budget, stride=1):
        self.program, self.args, self.stride = program, list(args), stride
        self.grid = _three("grid", grid, (2**31 - 1, 65535, 65535))
        self.block = _three("block", block, (1024, 1024, 64))
        threads = int(np.prod(self.block))
        most = min(program.most_threads or 1024, 1024)
        if threads > most:
            raise SparsegenValueError(f"block = {block!r}, {threads} threads; the kernel takes at most {most}")
        if not 0 <= shared_bytes <= MOST_SHARED - program.static_shared:
            room = MOST_SHARED - program.static_shared
            raise SparsegenValueError(f"shared_bytes = {shared_bytes}; expected 0 to {room} beside the kernel's own")
        if program.local_bytes * threads > MOST_LOCAL:
            got = f"{threads} threads of {program.local_bytes} bytes of local memory"
            raise SparsegenValueError(f"{got}; at most {MOST_LOCAL} in all")
        self.shared_bytes = int(shared_bytes)
        self.names = [each.name for each in program.variables]
        self.buffers: list[tuple[np.ndarray, bool, bool]] = []
        for variable in program.variables:
            data = np.zeros(variable.nbytes, np.uint8)
            if variable.data is not None:
                data[: len(variable.data)] = np.frombuffer(variable.data, np.uint8)
            self.buffers.append((data, variable.space == "global", False))
        if len(self.args) != len(program.parameters):
            raise SparsegenTypeError(f"{len(self.args)} args; {program.name} takes {len(program.parameters)}")
        for position in {*writable, *uninitialised}:
            if not 0 <= position < len(self.args) or not isinstance(self.args[position], np.ndarray):
                raise SparsegenValueError(f"writable position {position}; expected the position of an array in args")
        if set(uninitialised) - set(writable):
            raise SparsegenValueError("uninitialised positions must be among the writable ones")
        self.parameters = bytearray(max((at + size for _, at, size, _ in program.parameters), default=0))
        for position, argument in enumerate(self.args):
            self._place(position, argument, position in writable, position in uninitialised)
        self._apart(writable)
        nbytes = sum(array.nbytes for array, _, _ in self.buffers)
        if not 1 <= stride <= math.prod(self.grid):
            raise SparsegenValueError(f"stride = {stride}; expected 1 to the number of blocks")
        self.budget = budget if budget is not None else _BASE_BUDGET + _BYTE_BUDGET * nbytes
        self.warp_budget = min(self.budget, budget if budget is not None else _BASE_WARP + _BYTE_WARP * nbytes)
        if self.budget < 0:
            raise SparsegenValueError(f"budget = {budget}; expected a number of instructions")

    def _place(self, position: int, argument, writable: bool, fresh: bool) -> None:
        _, at, size, kind = self.program.parameters[position]
        expected = f"expected a value of {size} bytes ({kind}) for args[{position}]"
        if isinstance(argument, np.ndarray):
            if size != 8 or kind not in ("u64", "b64", "s64"):
                raise SparsegenTypeError(f"an array; {expected}")
            if not argument.flags.forc or argument.dtype.hasobject:
                raise SparsegenTypeError(f"args[{position}] is not one piece of memory; pass np.ascontiguousarray(...)")
            if writable and not argument.flags.writeable:
                raise SparsegenValueError(f"args[{position}] is writable for the kernel, but a read-only array")
            flat = argument.reshape(-1, order="A" if argument.flags.c_contiguous else "F").view(np.uint8)
            self.buffers.append((flat, writable, fresh))
            self.names.append(f"argument {position}")
            data = (len(self.buffers) << 40).to_bytes(8, "little")
        else:
            data = _scalar_bytes(argument, size, kind, expected)
        self.parameters[at : at + size] = data

    def _apart(self, writable: Sequence[int]) -> None:
        for position in writable:
            for other, argument in enumerate(self.args):
                mine = self.args[position]
                if other != position and isinstance(argument, np.ndarray) and np.may_share_memory(argument, mine):
                    got = f"args[{position}] is writable and shares memory with args[{other}]"
                    raise SparsegenValueError(f"{got}; copy one of them")

    def setup(self, device: counting.Device) -> np.ndarray:
        """As the executor's Setup."""
        program = self.program
        found = [
            program.frame_units, program.predicates, self._shared(), program.local_bytes, self.shared_bytes,
            program.shared_shift, program.global_shift, *self.grid, *self.block, min(self.budget, 2**62),
            min(self.warp_budget, 2**62), program.fences, program.barriers, program.warp_barriers,
            device.multiprocessors, device.l1_bytes, device.l2_bytes, device.l1_cycles, device.l2_cycles,
            device.memory_cycles, self.stride,
        ]  # fmt: skip
        return np.array(found, np.int64)

    def run(self, count: bool | counting.Device) -> Outcome:
        from sparsegen.ptx import _executor

        program = self.program
        device = count if isinstance(count, counting.Device) else counting.Device()
        blocks = lines = None
        if count:
            grid = int(np.prod(self.grid, dtype=object))
            if grid > counting.MOST_BLOCKS:
                raise SparsegenValueError(f"counters of {grid} blocks; at most {counting.MOST_BLOCKS}")
            blocks = np.zeros(grid, counting.BLOCK)
            lines = np.zeros(len(program.code), counting.INSTRUCTION)
        found = _executor.run(
            program.code, program.tables, program.constants, program.predicate_constants, program.specials,
            bytes(self.parameters), self.setup(device), self.buffers, blocks, lines,
        )  # fmt: skip
        counters = None
        if blocks is not None and lines is not None:
            ran = blocks[self.stride // 2 :: self.stride]
            counters = counting.Counters(ran, lines, program.texts, program.lines, found[-1], len(blocks))
        return self._outcome(found, counters)

    def _outcome(self, found: tuple[int, ...], counters: counting.Counters | None) -> Outcome:
        number, pc, block, thread, buffer, offset, size, access, other, other_access, total, _ = found
        kind = KINDS[number]
        if kind == "ok":
            return Outcome("ok", f"{total} instructions of warps", counters=counters)
        line, text = int(self.program.lines[pc]), self.program.texts[pc]
        who = f"thread {self._at(thread, self.block)} of block {self._at(block, self.grid)}"
        memory, length = self._memory(buffer)
        what = f"{who} {ACCESSES[access]} {size} bytes at offset {offset} of {memory}"
        about: dict = {"buffer": memory, "offset": offset}
        if kind == "uninitialised read" and buffer == -1 and other:
            kind = "divergent warp operation"
            sentence = f"{what}, which nothing has written: a __syncwarp() went without {_lanes(other)}"
        elif kind == "out of bounds":
            sentence = f"{what}, which has {length} bytes"
            if length is None:
                about = {"offset": offset}
                sentence = f"{who} {ACCESSES[access]} {size} bytes at address {offset:#x}, which is no argument's"
        elif kind == "misaligned":
            sentence = f"{what}, not a multiple of {size}"
        elif kind == "read-only store":
            sentence = f"{what}, which is not among the writable arguments"
        elif kind == "uninitialised read":
            sentence = f"{what}, which nothing has written"
        elif kind == "race":
            rival = "another block" if other < 0 else f"thread {self._at(other, self.block)}"
            sentence = f"{what}, which {rival} {ACCESSES[other_access]}, and nothing orders the two"
        else:
            about = {}
            sentence = self._control(kind, who, other, line, text)
        return Outcome(kind, f"{kind}: {sentence} (line {line})", line, block, thread, counters, **about)

    def _control(self, kind: str, who: str, other: int, line: int, text: str) -> str:
        if kind == "divergent warp operation":
            return f"{who} waits in {text} for lanes that are elsewhere ({_lanes(other)})"
        if kind == "barrier fault":
            if other < 0:
                return f"{who} returned, and others wait at a barrier for all threads"
            return f"{who} waits at a barrier while others wait at the one of line {int(self.program.lines[other])}"
        if kind == "budget exceeded":
            return f"{who} still runs after {self.warp_budget} instructions of its warp or {self.budget} of all"
        if kind == "trap":
            return f"{who} executed a trap"
        return f"{who}: {text}"

    def _at(self, index: int, shape: tuple[int, int, int]) -> str:
        if shape[1] == shape[2] == 1:
            return str(index)
        return f"({index % shape[0]}, {index // shape[0] % shape[1]}, {index // shape[0] // shape[1]})"

    def _shared(self) -> int:
        return self.program.static_shared + (self.shared_bytes if self.program.dynamic else 0)

    def _memory(self, buffer: int) -> tuple[str, int | None]:
        if buffer >= 0:
            return self.names[buffer], self.buffers[buffer][0].nbytes
        return {
            -1: ("shared memory", self._shared()),
            -2: ("a thread's local memory", self.program.local_bytes),
            -4: ("a branch table", 0),
        }.get(buffer, ("nothing", None))


def _lanes(mask: int) -> str:
    return f"lanes {', '.join(str(lane) for lane in range(32) if mask >> lane & 1)}"


def _scalar_bytes(value, size: int, kind: str, expected: str) -> bytes:
    """A scalar argument as the kernel reads it."""
    if isinstance(value, (bytes, np.void)):
        data = bytes(value) if isinstance(value, bytes) else value.tobytes()
        if len(data) != size:
            raise SparsegenTypeError(f"{len(data)} bytes; {expected}")
        return data
    real = kind in ("f32", "f64")
    if isinstance(value, (float, np.floating)) or (real and isinstance(value, (int, np.integer))):
        if (not real and not kind.startswith("b")) or size not in (2, 4, 8):
            raise SparsegenTypeError(f"{value!r}; {expected}")
        with np.errstate(over="ignore"):
            return np.array(value, f"<f{size}").tobytes()
    if not isinstance(value, (int, np.integer, np.bool_)) or size > 8:
        raise SparsegenTypeError(f"{type(value).__name__}; {expected}")
    if not -(1 << 8 * size - 1) <= int(value) < 1 << 8 * size:
        raise SparsegenValueError(f"{value} does not fit; {expected}")
    return (int(value) & ((1 << 8 * size) - 1)).to_bytes(size, "little")
