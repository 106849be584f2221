"""A parsed kernel -> the arrays that the executor runs. Opcodes are looked up whole in `table`, or built by `forms`.

Registers become places in a frame of 32 lanes each, predicates words of 32 bits, immediates registers that are filled
once. Widths must agree exactly; where PTX lets a register be wider than its value, the bits are moved explicitly.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from sparsegen.ptx import forms, memory, table
from sparsegen.ptx.parse import BITS, Entry, Instruction, Module, Refused, immediate
from sparsegen.ptx.program import INSTRUCTION, OPERANDS, SPECIALS, UNIT, Program

MOST_UNITS = 1 << 18  # of registers: 16 MiB a warp
MOST_LOCAL = 512 << 10  # bytes of a thread
MOST_STATIC_SHARED = 48 << 10
LIBRARY = {"vprintf": "printf", "__assertfail": "assert", "malloc": "malloc", "free": "free"}


def encode(module: Module, name: str) -> Program:
    """Encode the kernel `name`. Raises Refused for what is not supported, named, with its line."""
    if name not in module.entries:
        raise Refused(f"there is no kernel {name!r}; there are {', '.join(sorted(module.entries)) or 'none'}")
    entry = module.entries[name]
    for instruction in entry.code:
        if instruction.opcode.split(".")[0] == "call":
            callee, undefined = _call(instruction, module)
            raise Refused(f"a call of {callee} ({instruction.opcode})", instruction.line, never=undefined)
    encoder = Encoder(module, entry)
    starts = []
    for instruction in entry.code:
        starts.append(len(encoder.rows))
        encoder.instruction = instruction
        encoder.encode(instruction)
    starts.append(len(encoder.rows))
    encoder.instruction = Instruction("exit", (), None, False, entry.code[-1].line if entry.code else 0)
    encoder.emit(table.OTHER["EXIT"], guarded=False)
    return encoder.program(starts)


def _call(instruction: Instruction, module: Module) -> tuple[str, bool]:
    """Who is called, and whether nothing defines it: neither the source nor the library of a GPU."""
    names = [each for each in instruction.operands if re.fullmatch(r"[A-Za-z_$][\w$]*", each)]
    callee = names[0] if names else instruction.text[:60]
    declared, defined = (
        any(callee in re.findall(r"[\w$]+", each) for each in heads) for heads in (module.declared, module.defined)
    )
    return LIBRARY.get(callee, callee), declared and not defined and callee not in LIBRARY


class Encoder:
    """The rows of a program under construction, and where its operands lie."""

    def __init__(self, module: Module, entry: Entry):
        self.entry, self.instruction = entry, Instruction("", (), None, False, 0)
        self.rows: list[dict] = []
        self.origin: list[Instruction] = []
        self.units = 0
        self.places: dict[str, int] = {}
        self.predicates: dict[str, int] = {}
        self.constants: dict[tuple[int, int], int] = {}
        self.predicate_constants: dict[bool, int] = {}
        self.specials: dict[str, int] = {}
        self.branches: list[tuple[int, str]] = []  # row, label
        self.tables: list[str] = []
        self.table_at: dict[str, int] = {}
        self.narrowest = {"shared": 8, "global": 8}
        self.fences, self.barriers = False, 0
        self.warp_barriers: dict[int, int] = {}  # by line: copies of one in an unrolled loop are the same
        self.guesses = {  # addresses of compare-and-swap: a plain load of one is its first guess, and no race
            address
            for each in entry.code
            if each.opcode.startswith("atom") and ".cas." in each.opcode
            for address in each.operands[1:2]
        }
        self._lay_out(module)

    def _lay_out(self, module: Module) -> None:
        used = {word for each in self.entry.code for text in each.operands for word in re.findall(r"[\w$]+", text)}
        self.variables = tuple(each for each in module.variables.values() if each.space in ("global", "const"))
        self.symbols = {each.name: (each.space, k + 1 << 40) for k, each in enumerate(self.variables)}
        sizes = {"shared": 0, "local": 0}
        self.dynamic = False
        shared = [each for each in module.variables.values() if each.space == "shared" and each.name in used]
        waiting = []
        for variable in [*shared, *self.entry.variables.values()]:
            if variable.nbytes < 0:
                waiting.append(variable)
                continue
            start = -(-sizes[variable.space] // variable.align) * variable.align
            self.symbols[variable.name] = variable.space, start
            sizes[variable.space] = start + variable.nbytes
        for variable in waiting:  # dynamic shared memory begins behind the static
            self.dynamic = True
            align = max(16, variable.align)
            sizes["shared"] = -(-sizes["shared"] // align) * align
            self.symbols[variable.name] = "shared", sizes["shared"]
        if sizes["local"] > MOST_LOCAL or sizes["shared"] > MOST_STATIC_SHARED:
            what = f"{sizes['local']} bytes of local, {sizes['shared']} of static shared memory"
            raise Refused(f"{what}; a GPU has less", never=True)
        self.static_shared, self.local_bytes = sizes["shared"], sizes["local"]

    # What forms and encode share: refusing, emitting, operands.

    def refuse(self, why: str = "") -> Refused:
        text = self.instruction.text[:120]
        return Refused(f"{text}{f' ({why})' if why else ''}", self.instruction.line)

    def emit(self, op: int, operands: Sequence[int] = (), guarded: bool = True, **fields: int) -> None:
        guard = -1
        if guarded and self.instruction.guard:
            guard = self.predicate(self.instruction.guard)
            fields["negated"] = int(self.instruction.negated)
        row = {"op": op, "guard": guard, "operand": [*operands, *[-1] * (OPERANDS - len(operands))], **fields}
        self.rows.append(row)
        self.origin.append(self.instruction)

    def width(self, name: str) -> int:
        """Bytes of a register."""
        if name in SPECIALS:
            return 4
        kind = self.entry.register(name)
        if kind is None or kind == "pred":
            raise self.refuse(f"{name[:40]} is no register with a value")
        return BITS[kind] // 8

    def room(self, nbytes: int) -> int:
        """A place for 32 lanes."""
        at = self.units
        self.units += 32 * nbytes // UNIT
        if self.units > MOST_UNITS:
            raise self.refuse("too many registers")
        return at

    def register(self, name: str, nbytes: int) -> int:
        """The place of a register that must be `nbytes` wide."""
        width = self.width(name)
        if width != nbytes or name in SPECIALS:
            raise self.refuse(f"{name} has {8 * width} bits" if width != nbytes else f"{name} is no register to write")
        if name not in self.places:
            self.places[name] = self.room(nbytes)
        return self.places[name]

    def predicate(self, text: str) -> int:
        """The place of a predicate register, or of a constant 0 or 1."""
        if text in ("0", "1", "-1"):
            value = text != "0"
            if value not in self.predicate_constants:
                self.predicate_constants[value] = len(self.predicates)
                self.predicates[f"constant {value}"] = len(self.predicates)
            return self.predicate_constants[value]
        if self.entry.register(text) != "pred":
            raise self.refuse(f"{text[:40]} is no predicate")
        return self.predicates.setdefault(text, len(self.predicates))

    def signed_predicate(self, text: str) -> tuple[int, bool]:
        """A predicate and whether it is meant negated."""
        return self.predicate(text.lstrip("!").strip()), text.startswith("!")

    def constant(self, bits: int, nbytes: int) -> int:
        key = bits & ((1 << 8 * nbytes) - 1), nbytes
        if key not in self.constants:
            self.constants[key] = self.room(nbytes)
        return self.constants[key]

    def source(self, text: str, kind: str) -> int:
        """The place of a register, a special register, a number or an address, read as `kind`, such as u32."""
        nbytes = BITS[kind] // 8
        if text in SPECIALS:
            if nbytes != 4:
                raise self.refuse(f"{text} has 32 bits")
            if text not in self.specials:
                self.specials[text] = self.room(4)
            return self.specials[text]
        if text == "WARP_SZ":
            return self.constant(32, nbytes)
        if text.startswith("%"):
            return self.register(text, nbytes)
        bits = immediate(text, kind)
        if bits is None:
            named = re.fullmatch(r"([\w$]+)(?:\s*\+\s*(-?\w+))?", text)
            if not named or named[1] not in self.symbols or nbytes < 4:
                raise self.refuse(f"cannot read the operand {text[:40]!r}")
            bits = self.symbols[named[1]][1] + self.offset(named[2])
        return self.constant(bits, nbytes)

    def offset(self, text: str | None) -> int:
        if not text:
            return 0
        bits = immediate(text, "s64")
        if bits is None:
            raise self.refuse(f"cannot read the offset {text[:40]!r}")
        return bits - (1 << 64) if bits >> 63 else bits

    def address(self, text: str) -> tuple[int, int, int, str | None]:
        """Of [base + offset]: the base's place or -1, the offset, the flags, and the space of a named variable."""
        found = re.fullmatch(r"\[\s*([%\w$.]+)\s*(?:\+\s*(-?\w+))?\s*\]", text)
        if not found:
            raise self.refuse(f"cannot read the address {text[:40]!r}")
        base, offset = found[1], self.offset(found[2])
        if base in self.symbols:
            space, at = self.symbols[base]
            return -1, at + offset, 0, space
        if base.startswith("%"):
            nbytes = self.width(base)
            return self.register(base, nbytes), offset, memory.ADDRESS_32 if nbytes == 4 else 0, None
        bits = immediate(base, "u64")
        if bits is None:
            raise self.refuse(f"cannot read the address {text[:40]!r}")
        return -1, (bits + offset) - (1 << 64) if (bits + offset) >> 63 else bits + offset, 0, None

    def operands(self, *counts: int) -> tuple[str, ...]:
        """The operands, of which there must be so many."""
        if len(self.instruction.operands) not in counts:
            raise self.refuse(f"{len(self.instruction.operands)} operands")
        return self.instruction.operands

    # Instructions.

    def encode(self, instruction: Instruction) -> None:
        opcode = instruction.opcode
        root = opcode.split(".")[0]
        if root in forms.FORMS and not (root == "mov" and forms.plain_move(instruction)):
            forms.FORMS[root](self, opcode.split(".")[1:])
        elif root == "setp":
            self._compare(opcode)
        elif root == "set" and opcode not in table.SCALARS:
            self._compare_to_value(opcode)
        elif opcode in table.SCALARS:
            self.scalar(table.SCALARS[opcode], instruction.operands, relaxed=root == "cvt")
        else:
            raise self.refuse()

    def scalar(self, row: table.Scalar, operands: Sequence[str], relaxed: bool = False) -> None:
        """One case of the table. relaxed: registers may be wider than their values, as those of cvt may."""
        if len(operands) != 1 + len(row.operands):
            raise self.refuse(f"{len(operands)} operands")
        places = [0]
        for text, wanted in zip(operands[1:], row.operands, strict=True):
            if wanted == "pred":
                places.append(self.predicate(text))
                continue
            nbytes = BITS[wanted] // 8
            if relaxed and text.startswith("%") and self.width(text) > nbytes:
                width = self.width(text)
                places.append(self._resized(self.source(text, f"u{8 * width}"), width, nbytes))
            else:
                places.append(self.source(text, wanted))
        number, result = table.NUMBER[row], operands[0]
        if row.result == "pred":
            self.emit(number, [self.predicate(result), *places[1:]])
            return
        nbytes = BITS[row.result] // 8
        if relaxed and (width := self.width(result)) > nbytes:
            places[0] = self.room(nbytes)
            self.emit(number, places)
            signed = self.instruction.opcode.split(".")[-2][0] == "s"
            flags = memory.SIGNED if signed else 0
            to = self.register(result, width)
            self.emit(table.OTHER["RESIZE"], [to, places[0]], width=width, size=nbytes, flags=flags)
        else:
            places[0] = self.register(result, nbytes)
            self.emit(number, places)

    def _resized(self, place: int, width: int, nbytes: int) -> int:
        to = self.room(nbytes)
        self.emit(table.OTHER["RESIZE"], [to, place], width=nbytes, size=width)
        return to

    def _compare(self, opcode: str) -> None:
        """setp.lt.and.s32 p|q, a, b, !c"""
        parts = opcode.split(".")
        join = parts[2] if len(parts) > 3 and parts[2] in ("and", "or", "xor") else None
        if join:
            del parts[2]
        row = table.SCALARS.get(".".join(parts))
        if row is None:
            raise self.refuse()
        operands = self.operands(4 if join else 3)
        first, _, second = operands[0].partition("|")
        other, negated = self.signed_predicate(operands[3]) if join else (-1, False)
        places = [self.source(text, kind) for text, kind in zip(operands[1:3], row.operands, strict=True)]
        target = self.predicate(first.strip())
        opposite = self.predicate(second.strip()) if second.strip() not in ("", "_") else -1
        mode = {None: 0, "and": 1, "or": 2, "xor": 3}[join]
        flags = memory.NEGATE if negated else 0
        self.emit(table.NUMBER[row], [target, *places, -1, opposite, other], mode=mode, flags=flags)

    def _compare_to_value(self, opcode: str) -> None:
        """set.lt.u32.f32 d, a, b: all ones, or 1.0, where it holds."""
        *condition, result, source = opcode.split(".")[1:]
        row = table.SCALARS.get(".".join(["setp", *condition, source]))
        ones = {"u32": 0xFFFFFFFF, "s32": 0xFFFFFFFF, "f32": 0x3F800000, "f16": 0x3C00, "bf16": 0x3F80}.get(result)
        if row is None or ones is None:
            raise self.refuse()
        operands = self.operands(3)
        held = self.predicates.setdefault("held", len(self.predicates))
        places = [self.source(text, kind) for text, kind in zip(operands[1:], row.operands, strict=True)]
        self.emit(table.NUMBER[row], [held, *places])
        nbytes = BITS[result] // 8
        choice = [self.register(operands[0], nbytes), self.constant(ones, nbytes), self.constant(0, nbytes), held]
        self.emit(table.NUMBER[table.SCALARS[f"selp.b{8 * nbytes}"]], choice)

    def stores(self, space: str, nbytes: int) -> None:
        """A store of elements that wide: no grain of the shadow may be wider."""
        for each in ("shared", "global") if space == "generic" else (space,):
            if each in self.narrowest:
                self.narrowest[each] = min(self.narrowest[each], nbytes)

    def table_of(self, name: str) -> int:
        """Where the targets of a branch table begin."""
        if name not in self.table_at:
            self.table_at[name] = len(self.tables)
            self.tables += self.entry.tables[name]
        return self.table_at[name]

    def program(self, starts: list[int]) -> Program:
        labels = {label: starts[index] for label, index in self.entry.labels.items()}

        def target(label: str, line: int) -> int:
            if label not in labels:
                raise Refused(f"there is no label {label[:40]!r}", line)
            return labels[label]

        for row, label in self.branches:
            self.rows[row]["immediate"] = target(label, self.origin[row].line)
        for each in self.rows:
            each["immediate"] = ((each.get("immediate", 0) + (1 << 63)) & ((1 << 64) - 1)) - (1 << 63)
        fields = INSTRUCTION.names or ()
        code = np.array([tuple(each.get(field, 0) for field in fields) for each in self.rows], INSTRUCTION)
        constants = [(place, nbytes, bits) for (bits, nbytes), place in self.constants.items()]
        held = [(place, 0xFFFFFFFF if value else 0) for value, place in self.predicate_constants.items()]
        shifts = {space: nbytes.bit_length() - 1 for space, nbytes in self.narrowest.items()}
        return Program(
            self.entry.name,
            code,
            np.array([each.line for each in self.origin], np.int32),
            tuple(each.text for each in self.origin),
            np.array([target(label, 0) for label in self.tables], np.int32),
            np.array(constants, np.uint64).reshape(-1, 3),
            np.array(held, np.uint32).reshape(-1, 2),
            np.array([(SPECIALS.index(name), at) for name, at in self.specials.items()], np.int32).reshape(-1, 2),
            tuple(self.entry.parameters),
            self.entry.most_threads,
            self.variables,
            self.units,
            len(self.predicates),
            self.static_shared,
            self.dynamic,
            self.local_bytes,
            shifts["shared"],
            shifts["global"],
            self.fences,
            self.barriers,
            len(self.warp_barriers),
        )
