"""PTX on NumPy: a slow executor of one block after the other, written apart from the product's, to compare with it.

All threads of a block are the lanes of arrays; those with the lowest program counter go next. It checks nothing: it is
for kernels that are right. Memory is one flat array of bytes for each space.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import ptx_oracle

from sparsegen.ptx import parse

UNSIGNED = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
SIGNED = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}
COMPARE = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
COMPARE |= {"lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal}
ARITHMETIC = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "min": np.minimum, "max": np.maximum}
BITWISE = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}


def dtype(kind: str):
    bits = parse.BITS[kind]
    if kind in ("f32", "f64"):
        return np.float32 if bits == 32 else np.float64
    return (SIGNED if kind[0] == "s" else UNSIGNED)[bits]


class Block:
    """The threads of one block: registers by name, each an array of unsigned numbers of its width."""

    def __init__(self, module, entry, index, grid, block, memory, parameters, symbols, shared_bytes, local_bytes):
        self.entry, self.memory, self.parameters, self.symbols = entry, memory, parameters, symbols
        self.count = int(np.prod(block))
        t = np.arange(self.count, dtype=np.uint32)
        self.special = {
            "%tid.x": t % block[0], "%tid.y": t // block[0] % block[1], "%tid.z": t // (block[0] * block[1]),
            "%ctaid.x": index % grid[0], "%ctaid.y": index // grid[0] % grid[1],
            "%ctaid.z": index // grid[0] // grid[1],
            **{f"%ntid.{axis}": size for axis, size in zip("xyz", block, strict=True)},
            **{f"%nctaid.{axis}": size for axis, size in zip("xyz", grid, strict=True)},
            "%laneid": t & 31,
        }  # fmt: skip
        self.shared = np.zeros(shared_bytes + 1, np.uint8)
        self.local = np.zeros(self.count * local_bytes + 1, np.uint8)
        self.local_bytes = local_bytes
        self.registers: dict[str, np.ndarray] = {}
        self.pc = np.zeros(self.count, np.int64)
        self.waiting = np.zeros(self.count, bool)

    def run(self) -> None:
        end = len(self.entry.code)
        while True:
            live = self.pc < end
            if not live.any():
                return
            ready = live & ~self.waiting
            if not ready.any():  # all have come to the barrier
                self.waiting[:] = False
                self.pc[live] += 1
                continue
            pc = self.pc[ready].min()
            lanes = np.flatnonzero(ready & (self.pc == pc))
            self.step(int(pc), lanes)

    def step(self, pc: int, lanes: np.ndarray) -> None:
        instruction = self.entry.code[pc]
        chosen = lanes
        if instruction.guard:
            held = self.registers[instruction.guard][lanes]
            chosen = lanes[~held if instruction.negated else held]
        parts = instruction.opcode.split(".")
        self.pc[lanes] += 1
        if parts[0] == "bra":
            self.pc[chosen] = self.entry.labels[instruction.operands[0]]
        elif parts[0] in ("ret", "exit"):
            self.pc[chosen] = len(self.entry.code)
        elif parts[0] == "brx":
            table = [self.entry.labels[label] for label in self.entry.tables[instruction.operands[1]]]
            self.pc[chosen] = np.array(table)[self.read(instruction.operands[0], "u32", chosen)]
        elif parts[0] == "bar" and parts[1] == "sync":
            self.pc[chosen] -= 1
            self.waiting[chosen] = True
        elif len(chosen):
            getattr(self, f"do_{parts[0]}", self.do_value)(parts, instruction.operands, chosen)

    # Operands.

    def read(self, text: str, kind: str, lanes: np.ndarray) -> np.ndarray:
        want = dtype(kind)
        if text in self.special:
            return np.broadcast_to(np.asarray(self.special[text], np.uint32), self.count)[lanes].view(want)
        if text.startswith("%"):
            held = self.registers[text][lanes]
            narrow = held.astype(UNSIGNED[parse.BITS[kind]]) if held.dtype.itemsize * 8 != parse.BITS[kind] else held
            return narrow.view(want)
        bits = parse.immediate(text, kind)
        if bits is None:
            name, _, offset = text.partition("+")
            bits = self.symbols[name.strip()] + int(offset or 0)
        return np.full(len(lanes), bits, UNSIGNED[parse.BITS[kind]]).view(want)

    def write(self, name: str, value: np.ndarray, lanes: np.ndarray, signed: bool = False) -> None:
        if name == "_":
            return
        declared = self.entry.register(name)
        if declared == "pred":
            store = np.asarray(value, bool)
        else:
            bits = parse.BITS[declared]
            store = np.asarray(value)
            if store.dtype.itemsize * 8 != bits:
                raw = store if store.dtype.kind in "iu" else store.view(UNSIGNED[store.dtype.itemsize * 8])
                store = raw.astype((SIGNED if signed else UNSIGNED)[bits])
            store = store.view(UNSIGNED[bits])
        if name not in self.registers:
            self.registers[name] = np.zeros(self.count, store.dtype)
        self.registers[name][lanes] = store

    def place(self, text: str, space: str, lanes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        base, _, offset = text.strip("[]").partition("+")
        base = base.strip()
        if base.startswith("%"):
            held = self.registers[base][lanes].astype(np.int64)
        else:
            held = np.full(len(lanes), self.symbols[base], np.int64)
        at = held + int(offset or 0)
        if space == "shared":
            return self.shared, at
        if space == "local":
            return self.local, at + lanes * self.local_bytes
        return self.memory, at

    # Instructions.

    def do_ld(self, parts: list[str], operands: Sequence[str], lanes: np.ndarray) -> None:
        kind, size = parts[-1], parse.BITS[parts[-1]] // 8
        names = parse.split(operands[0].strip("{}"))
        if "param" in parts:
            base, _, offset = operands[1].strip("[]").partition("+")
            at = self.parameters[0][base] + int(offset or 0)
            data = np.frombuffer(self.parameters[1][at : at + size], dtype(kind))
            self.write(names[0], np.repeat(data, len(lanes)), lanes, kind[0] == "s")
            return
        space = next((each for each in ("shared", "local") if each in parts), "global")
        memory, at = self.place(operands[1], space, lanes)
        for k, name in enumerate(names):
            data = memory[(at + k * size)[:, None] + np.arange(size)].copy().view(dtype(kind))[:, 0]
            self.write(name, data, lanes, kind[0] == "s")

    def do_st(self, parts: list[str], operands: Sequence[str], lanes: np.ndarray) -> None:
        kind, size = parts[-1], parse.BITS[parts[-1]] // 8
        space = next((each for each in ("shared", "local") if each in parts), "global")
        memory, at = self.place(operands[0], space, lanes)
        for k, name in enumerate(parse.split(operands[1].strip("{}"))):
            value = np.ascontiguousarray(self.read(name, kind, lanes))
            memory[(at + k * size)[:, None] + np.arange(size)] = value.view(np.uint8).reshape(-1, size)

    def do_atom(self, parts: list[str], operands: Sequence[str], lanes: np.ndarray, returns: bool = True) -> None:
        kind = parts[-1]
        result, address, value = operands if returns else ("_", *operands)
        assert "add" in parts
        memory, at = self.place(address, "shared" if "shared" in parts else "global", lanes)
        added, want = self.read(value, kind, lanes), dtype(kind)
        old = np.zeros(len(lanes), want)
        for k, place in enumerate(at):  # one lane after the other
            cell = memory[place : place + want().nbytes].view(want)
            old[k] = cell[0]
            cell[0] = cell[0] + added[k]
        self.write(result, old, lanes)

    def do_red(self, parts, operands, lanes) -> None:
        self.do_atom(parts, operands, lanes, returns=False)

    def do_shfl(self, parts: list[str], operands: Sequence[str], lanes: np.ndarray) -> None:
        to, _, inside = operands[0].partition("|")
        value = np.zeros(self.count, np.uint32)
        value[lanes] = self.read(operands[1], "u32", lanes)
        by = self.read(operands[2], "u32", lanes).astype(np.int64) & 31
        clamp = self.read(operands[3], "u32", lanes).astype(np.int64)
        lane, segment = lanes & 31, clamp >> 8 & 31
        lowest, bound = lane & segment, (lane & segment) | (clamp & 31 & ~segment)
        source = {"up": lane - by, "down": lane + by, "bfly": lane ^ by, "idx": lowest | (by & ~segment)}[parts[2]]
        fits = source >= bound if parts[2] == "up" else source <= bound
        source = np.where(fits, source, lane) + (lanes & ~31)
        self.write(to, value[np.minimum(source, self.count - 1)], lanes)
        if inside:
            self.write(inside, fits, lanes)

    def do_vote(self, parts: list[str], operands: Sequence[str], lanes: np.ndarray) -> None:
        held = self.registers[operands[1].lstrip("!")][lanes] ^ operands[1].startswith("!")
        ballots = np.zeros(self.count // 32 + 1, np.uint32)
        np.bitwise_or.at(
            ballots, lanes >> 5, np.where(held, np.uint32(1) << (lanes & 31).astype(np.uint32), 0).astype(np.uint32)
        )
        assert parts[2] == "ballot"
        self.write(operands[0], ballots[lanes >> 5], lanes)

    def do_bar(self, parts, operands, lanes) -> None:
        assert parts[1] == "warp"

    def do_setp(self, parts: list[str], operands: Sequence[str], lanes: np.ndarray) -> None:
        condition, kind = parts[1], parts[-1]
        kind = f"u{kind[1:]}" if kind[0] == "b" else kind
        a, b = (self.read(text, kind, lanes) for text in operands[1:3])
        if condition in COMPARE:
            held = COMPARE[condition](a, b) & ((a == a) & (b == b))
        else:
            held = COMPARE[condition[:-1]](a, b) | (a != a) | (b != b)
        if parts[2] in BITWISE:
            other = self.registers[operands[3].lstrip("!")][lanes] ^ operands[3].startswith("!")
            held = BITWISE[parts[2]](held, other)
        self.write(operands[0], held, lanes)

    def do_selp(self, parts, operands, lanes) -> None:
        kind = f"u{parse.BITS[parts[-1]]}"
        a, b = (self.read(text, kind, lanes) for text in operands[1:3])
        self.write(operands[0], np.where(self.registers[operands[3]][lanes], a, b), lanes)

    def do_cvt(self, parts: list[str], operands: Sequence[str], lanes: np.ndarray) -> None:
        kinds = [each for each in parts if each in parse.BITS]
        value = self.read(operands[1], f"u{parse.BITS[kinds[1]]}", lanes)
        turned = [ptx_oracle.expected(".".join(parts), [int(each)]) for each in value]
        bits = max(parse.BITS[kinds[0]], 16)
        self.write(
            operands[0],
            np.array(turned, UNSIGNED[bits]).view((SIGNED if kinds[0][0] == "s" else UNSIGNED)[bits]),
            lanes,
            kinds[0][0] == "s",
        )

    def do_cvta(self, parts, operands, lanes) -> None:
        self.write(operands[0], self.read(operands[1], "u64", lanes), lanes)

    def do_mov(self, parts: list[str], operands: Sequence[str], lanes: np.ndarray) -> None:
        kind = parts[-1]
        if kind == "pred":
            self.write(
                operands[0],
                np.full(len(lanes), operands[1] != "0")
                if operands[1][0] != "%"
                else self.registers[operands[1]][lanes],
                lanes,
            )
        elif operands[0].startswith("{"):
            names = parse.split(operands[0].strip("{}"))
            whole = self.read(operands[1], f"u{parse.BITS[kind]}", lanes)
            size = parse.BITS[kind] // len(names)
            for name, part in zip(names, whole.copy().view(UNSIGNED[size]).reshape(-1, len(names)).T, strict=True):
                self.write(name, np.ascontiguousarray(part), lanes)
        elif operands[1].startswith("{"):
            names = parse.split(operands[1].strip("{}"))
            size = parse.BITS[kind] // len(names)
            whole = np.stack([self.read(name, f"u{size}", lanes) for name in names], axis=1)
            self.write(operands[0], np.ascontiguousarray(whole).view(UNSIGNED[parse.BITS[kind]])[:, 0], lanes)
        else:
            self.write(operands[0], self.read(operands[1], f"u{parse.BITS[kind]}", lanes), lanes)

    def do_value(self, parts: list[str], operands: Sequence[str], lanes: np.ndarray) -> None:
        """What is left computes lane by lane: the usual on arrays, the rest by the oracle of single instructions."""
        name, kind = parts[0], parts[-1]
        if kind == "pred":
            held = [self.registers[text.lstrip("!")][lanes] ^ text.startswith("!") for text in operands[1:]]
            self.write(operands[0], ~held[0] if name == "not" else BITWISE[name](*held), lanes)
            return
        plain = name in ARITHMETIC and not {"hi", "wide", "ftz", "sat", "rz", "rm", "rp"} & set(parts)
        if plain and kind in ("f32", "f64") and name in ("min", "max"):
            plain = False
        if plain or name in BITWISE:
            want = f"u{kind[1:]}" if kind[0] == "b" else kind
            a, b = (self.read(text, want, lanes) for text in operands[1:])
            with np.errstate(all="ignore"):
                self.write(operands[0], (ARITHMETIC | BITWISE)[name](a, b), lanes)
            return
        widths = [f"u{parse.BITS[kind]}"] * (len(operands) - 1)
        if name in ("shl", "shr"):
            widths[1] = "u32"
        elif name == "mad" and "wide" in parts:
            widths[2] = f"u{2 * parse.BITS[kind]}"
        elif name == "bfi":
            widths[2:] = ["u32", "u32"]
        read = [self.read(text, width, lanes) for text, width in zip(operands[1:], widths, strict=True)]
        opcode = ".".join(parts)
        turned = [ptx_oracle.expected(opcode, [int(each) for each in values]) for values in zip(*read, strict=True)]
        bits = parse.BITS[str(self.entry.register(operands[0]))]
        self.write(operands[0], np.array(turned, np.uint64).astype(UNSIGNED[bits]), lanes)


def execute(text: str, name: str, grid, block, args: Sequence, writable=(), shared_bytes: int = 0) -> None:
    """Run a kernel; writable arrays are changed in place."""
    module = parse.parse(text)
    entry = module.entries[name]
    symbols: dict[str, int] = {}
    sizes = {"shared": 0, "local": 0}
    used = {word for each in entry.code for operand in each.operands for word in re.findall(r"[\w$]+", operand)}
    for variable in [*module.variables.values(), *entry.variables.values()]:
        if variable.space in sizes and (variable.name in used or variable.name in entry.variables):
            align = max(variable.align, 16)
            symbols[variable.name] = -(-sizes[variable.space] // align) * align
            sizes[variable.space] = symbols[variable.name] + max(variable.nbytes, 0)
    memory, at, places = bytearray(256), {}, {}
    data = bytearray(max((offset + size for _, offset, size, _ in entry.parameters), default=0))
    for variable in module.variables.values():
        if variable.space in ("global", "const"):
            symbols[variable.name] = len(memory)
            memory += (variable.data or b"").ljust(variable.nbytes, b"\0") + bytes(-variable.nbytes % 256)
    for position, ((label, offset, size, kind), value) in enumerate(zip(entry.parameters, args, strict=True)):
        at[label] = offset
        if isinstance(value, np.ndarray):
            places[position] = len(memory)
            data[offset : offset + 8] = len(memory).to_bytes(8, "little")
            memory += value.tobytes() + bytes(-value.nbytes % 256)
        else:
            raw = np.array(value, dtype(kind if kind[0] != "b" else f"u{kind[1:]}") if kind[0] != "f" else f"f{size}")
            data[offset : offset + size] = raw.tobytes()
    flat = np.frombuffer(memory, np.uint8)
    grid, block = ([*np.atleast_1d(each).tolist(), 1, 1][:3] for each in (grid, block))
    for index in range(int(np.prod(grid))):
        shared = sizes["shared"] + shared_bytes
        Block(module, entry, index, grid, block, flat, (at, bytes(data)), symbols, shared, sizes["local"]).run()
    for position in writable:
        value = args[position]
        start = places[position]
        value[...] = flat[start : start + value.nbytes].view(value.dtype).reshape(value.shape)
