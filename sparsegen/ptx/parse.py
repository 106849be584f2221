"""PTX text -> entries with their registers, variables and instructions, each with its line of the user's source.

What NVRTC writes with -lineinfo is read, inline assembly with its own scopes included. Anything else is refused: a
Refused says what was read and on which line. Nothing is interpreted here but declarations; opcodes are `encode`'s.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

MOST_TEXT = 1 << 24  # characters
MOST_BYTES = 1 << 30  # of one variable
BITS = {
    "pred": 1, "b8": 8, "u8": 8, "s8": 8, "b16": 16, "u16": 16, "s16": 16, "f16": 16, "bf16": 16, "b32": 32, "u32": 32,
    "s32": 32, "f32": 32, "f16x2": 32, "bf16x2": 32, "b64": 64, "u64": 64, "s64": 64, "f64": 64,
}  # fmt: skip
USER_FILE = "kernel"  # what nvrtc calls the source it was given

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_SECTION = re.compile(r"\.section\b[^{;]*\{[^}]*\}")
_LINE_DIRECTIVE = re.compile(r"^[ \t]*(\.(?:loc|file|version|target|address_size)\b[^\n;]*)$", re.MULTILINE)
_PIECE = re.compile(r"[^;{}:\"]+|[;{}:]|\"[^\"\n]*\"")
_LOC = re.compile(r"\.loc\s+(\d{1,9})\s+(\d{1,9})\s+\d+(?:.*\binlined_at\s+(\d{1,9})\s+(\d{1,9}))?")
_FILE = re.compile(r'\.file\s+(\d{1,9})\s+"([^"]*)"')
_HEADER = re.compile(r"(?:\.(?:visible|weak|extern)\s+)*\.(entry|func)\b")
_ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*(?:\(([^()]*)\))?([^()]*)$")
_PARAMETER = re.compile(
    r"\.param\s+(?:\.align\s+(\d{1,4})\s+)?\.(\w+)\s+(?:\.ptr\b(?:\s*\.(?!align)\w+)*(?:\s*\.align\s+\d{1,4})?\s+)?"
    r"([\w$]+)(?:\[(\d{1,9})\])?$"
)
_VARIABLE = re.compile(
    r"(?:\.(?:visible|weak|extern)\s+)*\.(global|const|shared|local)\s+(?:\.align\s+(\d{1,4})\s+)?\.(\w+)\s+([\w$]+)"
    r"((?:\s*\[\s*\d{0,10}\s*\])*)\s*(?:=\s*(.*))?$",
    re.DOTALL,
)
_REGISTERS = re.compile(r"\.reg\s*\.(\w+)\s+(.+)$", re.DOTALL)
_INSTRUCTION = re.compile(r"(?:@(!?)([%\w$]+)\s+)?([a-z][\w.:]*)(?:\s+(.*)|(?=[{\[(])(.*))?$", re.DOTALL)
_NAME = re.compile(r"[%$A-Za-z_][\w$]*")


class Refused(Exception):
    """Text that is not taken for PTX, or PTX that is not supported: what, and on which line of the user's source.

    never: no GPU would run it either.
    """

    def __init__(self, what: str, line: int = 0, never: bool = False):
        super().__init__(what)
        self.what, self.line, self.never = what, line, never


@dataclass(frozen=True)
class Instruction:
    """One instruction: opcode "ld.global.f32", operands as they stand, and a guard such as %p1 where it has one."""

    opcode: str
    operands: tuple[str, ...]
    guard: str | None
    negated: bool
    line: int

    @property
    def text(self) -> str:
        guard = f"@{'!' if self.negated else ''}{self.guard} " if self.guard else ""
        return f"{guard}{self.opcode} {', '.join(self.operands)}".strip()


@dataclass(frozen=True)
class Variable:
    """A declared array. nbytes -1: dynamic shared memory, as large as the launch says."""

    name: str
    space: str  # global, const, shared, local
    align: int
    nbytes: int
    data: bytes | None = None


@dataclass
class Entry:
    """A kernel. Registers %r0 to %r7 are the declaration ("%r", 8): ranges are not spelled out."""

    name: str
    parameters: list[tuple[str, int, int, str]] = field(default_factory=list)  # name, offset, bytes, type
    most_threads: int | None = None
    singles: dict[str, str] = field(default_factory=dict)  # register -> type
    ranges: dict[str, tuple[str, int]] = field(default_factory=dict)  # prefix -> type, count
    variables: dict[str, Variable] = field(default_factory=dict)
    code: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)  # -> index in code
    tables: dict[str, list[str]] = field(default_factory=dict)  # of brx.idx

    def register(self, name: str) -> str | None:
        """The type of a declared register, or None."""
        if name in self.singles:
            return self.singles[name]
        digits = re.search(r"(?:0|[1-9]\d{0,8})$", name)
        if digits and (kind := self.ranges.get(name[: digits.start()])) and int(digits[0]) < kind[1]:
            return kind[0]
        return None


@dataclass
class Module:
    """A translation unit: its kernels and variables, and the heads of functions that it declares or defines."""

    entries: dict[str, Entry] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    declared: list[str] = field(default_factory=list)
    defined: list[str] = field(default_factory=list)


def parse(text: str) -> Module:
    """Read one PTX module. Raises Refused."""
    if len(text) > MOST_TEXT:
        raise Refused(f"PTX of {len(text)} characters; at most {MOST_TEXT}")
    files = {int(number): name.lstrip("/") for number, name in _FILE.findall(text)}
    text = _SECTION.sub(" ", _COMMENT.sub(" ", text))
    module, reader = Module(), _Reader(files)
    for kind, piece in _pieces(_LINE_DIRECTIVE.sub(r"\1;", text)):
        reader.take(module, kind, piece)
    if reader.depth:
        raise Refused("the PTX ends inside a function", reader.line)
    return module


def split(text: str) -> list[str]:
    """The operands of a list, brackets kept together."""
    found, depth, start = [], 0, 0
    for i, letter in enumerate(text):
        depth += (letter in "{[(") - (letter in "}])")
        if letter == "," and depth == 0:
            found.append(text[start:i].strip())
            start = i + 1
    last = text[start:].strip()
    return [*found, last] if last or found else []


def _pieces(text: str) -> Iterator[tuple[str, str]]:
    """(statement | label | header | open | close, text); the braces of vectors and initialisers stay in statements."""
    held: list[str] = []
    inside = 0
    for piece in _PIECE.findall(text):
        if inside:
            inside += (piece == "{") - (piece == "}")
            held.append(piece)
            continue
        before = "".join(held).strip()
        if piece == ";":
            yield "statement", before
        elif piece == "{" and (not before or _HEADER.match(before)):
            if before:
                yield "header", before
            yield "open", ""
        elif piece == "}":
            if before:
                raise Refused(f"'}}' after {before[:60]!r}")
            yield "close", ""
        elif piece == ":" and re.fullmatch(r"[\w$%]+", before):
            yield "label", before
        else:
            inside += piece == "{"
            held.append(piece)
            continue
        held = []
    if rest := "".join(held).strip():
        raise Refused(f"the PTX ends inside {rest[:60]!r}")


class _Reader:
    """Where in the text we are: the function, its scopes, the line of the user's source."""

    def __init__(self, files: dict[int, str]):
        self.files, self.line, self.depth = files, 0, 0
        self.entry: Entry | None = None
        self.scopes: list[dict[str, str]] = []  # registers of inner scopes -> the names they go by
        self.renamed = 0
        self.table: str | None = None

    def take(self, module: Module, kind: str, text: str) -> None:
        if kind == "header":
            self._head(module, text)
        elif kind == "open":
            self.depth += 1
            self.scopes.append({})
        elif kind == "close":
            if self.depth == 0:
                raise Refused("a '}' without its '{'", self.line)
            self.depth -= 1
            self.scopes.pop()
            if self.depth == 0:
                self.entry = None
        elif kind == "label":
            self._label(text)
        elif re.match(r"\.loc\s", text):
            self._loc(text)
        elif self.depth == 0:
            self._outside(module, text)
        elif self.entry is not None and text:
            self._inside(self.entry, text)

    def _loc(self, text: str) -> None:
        found = _LOC.match(text)
        if not found:
            raise Refused(f"cannot read {text[:60]!r}", self.line)
        file, line, outer_file, outer_line = found.groups()
        if self._own(file):
            self.line = int(line)
        elif outer_file and self._own(outer_file):  # of a header: the line that uses it
            self.line = int(outer_line)

    def _own(self, file: str) -> bool:
        return self.files.get(int(file), USER_FILE) == USER_FILE

    def _head(self, module: Module, text: str) -> None:
        if ".entry" not in text:
            module.defined.append(text[:200])
            return
        found = _ENTRY.search(text)
        if not found:
            raise Refused(f"cannot read the kernel's head {text[:80]!r}")
        self.entry = Entry(found[1])
        offset = 0
        for parameter in split(found[2] or ""):
            read = _PARAMETER.match(parameter)
            if not read or read[2] not in BITS or read[2] == "pred":
                raise Refused(f"cannot read the parameter {parameter[:80]!r}")
            size = BITS[read[2]] // 8
            align, nbytes = _align(read[1], size), size * int(read[4] or 1)
            offset = -(-offset // align) * align
            self.entry.parameters.append((read[3], offset, nbytes, read[2]))
            offset += nbytes
            if offset > 1 << 15:
                raise Refused(f"parameters of more than {1 << 15} bytes")
        threads = re.search(r"\.(?:maxntid|reqntid)\s+(\d{1,9})(?:\s*,\s*(\d{1,9}))?(?:\s*,\s*(\d{1,9}))?", found[3])
        if threads:
            self.entry.most_threads = int(threads[1]) * int(threads[2] or 1) * int(threads[3] or 1)
        module.entries[self.entry.name] = self.entry

    def _label(self, text: str) -> None:
        if self.entry is None:
            return
        if text in self.entry.labels:
            raise Refused(f"the label {text[:60]} twice", self.line)
        self.entry.labels[text] = len(self.entry.code)
        self.table = text

    def _outside(self, module: Module, text: str) -> None:
        if _HEADER.match(text):  # a declaration without a body
            module.declared.append(text[:200])
        elif re.search(r"\.(?:global|const|shared)\b", text):
            variable = _variable(text, self.line)
            module.variables[variable.name] = variable
        elif text and not re.match(r"\.(?:version|target|address_size|file|pragma)\b", text):
            raise Refused(f"cannot read {text[:80]!r}")

    def _inside(self, entry: Entry, text: str) -> None:
        word = re.match(r"\.?\w*", text)
        directive = word[0] if word else ""
        if directive == ".reg":
            self._registers(entry, text)
        elif directive in (".shared", ".local"):
            variable = _variable(text, self.line)
            entry.variables[variable.name] = variable
        elif directive == ".branchtargets" and self.table:
            entry.tables[self.table] = split(text[len(directive) :])
        elif directive in (".pragma", ".param"):
            return
        elif directive.startswith("."):
            raise Refused(f"cannot read {text[:80]!r}", self.line)
        else:
            found = _INSTRUCTION.match(self._rename(text))
            if not found:
                raise Refused(f"cannot read {text[:80]!r}", self.line)
            negated, guard, opcode, operands, tight = found.groups()
            listed = tuple(re.sub(r"\s+", " ", each) for each in split(operands or tight or ""))
            entry.code.append(Instruction(opcode, listed, guard, negated == "!", self.line))

    def _registers(self, entry: Entry, text: str) -> None:
        found = _REGISTERS.match(text)
        if not found or found[1] not in BITS or found[1] in ("b8", "u8", "s8"):
            raise Refused(f"cannot read {text[:80]!r}", self.line)
        for name in split(found[2]):
            several = re.fullmatch(r"([%\w$]+)<(\d{1,9})>", name)
            if several and self.depth == 1:
                entry.ranges[several[1]] = found[1], int(several[2])
            elif not _NAME.fullmatch(name):
                raise Refused(f"cannot read the register {name[:60]!r}", self.line)
            elif self.depth == 1:
                entry.singles[name] = found[1]
            else:
                self.renamed += 1
                own = f"%scope{self.renamed}_{name.lstrip('%')}"
                self.scopes[-1][name] = own
                entry.singles[own] = found[1]

    def _rename(self, text: str) -> str:
        for scope in reversed(self.scopes):
            if scope:
                text = _NAME.sub(lambda name, scope=scope: scope.get(name[0], name[0]), text)  # type: ignore[misc]
        return text


def _align(text: str | None, size: int) -> int:
    align = int(text) if text else size
    if align < 1 or align & (align - 1):
        raise Refused(f".align {align}; expected a power of two")
    return align


def _variable(text: str, line: int) -> Variable:
    found = _VARIABLE.match(text)
    if not found or found[3] not in BITS or found[3] == "pred":
        raise Refused(f"cannot read {text[:80]!r}", line)
    space, align, kind, name, dimensions, initial = found.groups()
    size, count = BITS[kind] // 8, 1
    for dimension in re.findall(r"\[\s*(\d*)\s*\]", dimensions):
        count *= int(dimension) if dimension else -1
    nbytes = count * size if count >= 0 else -1
    if nbytes > MOST_BYTES or (nbytes < 0 and (space != "shared" or ".extern" not in text)):
        raise Refused(f"{name[:60]} has {count} elements", line, never=nbytes > 0)
    data = _initial(initial, kind, line) if initial else None
    if data is not None and len(data) > nbytes:
        raise Refused(f"{name[:60]} has more values than elements", line)
    return Variable(name, space, _align(align, size), nbytes, data)


def _initial(text: str, kind: str, line: int) -> bytes:
    """The bytes of an initialiser: numbers, in braces where there are several."""
    found = []
    for word in re.findall(r"[^\s{},]+", text):
        value = immediate(word, kind)
        if value is None:
            raise Refused(f"cannot read the initial value {word[:60]!r}", line)
        found.append(value.to_bytes(BITS[kind] // 8, "little"))
    return b"".join(found)


def immediate(text: str, kind: str) -> int | None:
    """The bits of a number as a value of type `kind`: 7, -1, 0x1F, 0b101, 0f3F800000, 0d3FF0000000000000; else None."""
    width, real = BITS[kind], kind in ("f32", "f64")
    if re.fullmatch(r"0[fF][0-9a-fA-F]{8}", text):
        bits = int(text[2:], 16)
        if kind == "f64":
            return int.from_bytes(struct.pack("<d", struct.unpack("<f", struct.pack("<I", bits))[0]), "little")
        return bits if width == 32 else None
    if re.fullmatch(r"0[dD][0-9a-fA-F]{16}", text):
        return int(text[2:], 16) if width == 64 else None
    found = re.fullmatch(r"(-?)(?:0[xX]([0-9a-fA-F]{1,16})|0[bB]([01]{1,64})|(0[0-7]{0,22})|([1-9]\d{0,19}))U?", text)
    if not found or real:
        return None
    sign, hexadecimal, binary, octal, decimal = found.groups()
    value = int(hexadecimal or binary or octal or decimal, 16 if hexadecimal else 2 if binary else 8 if octal else 10)
    return (-value if sign else value) & ((1 << width) - 1)
