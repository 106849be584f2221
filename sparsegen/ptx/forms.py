"""Instructions that do more than compute a value lane by lane: by their first word, what encodes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from sparsegen.ptx import collective, memory, table
from sparsegen.ptx.memory import FLAG_A, FLAG_B, OTHER, elements
from sparsegen.ptx.parse import BITS, Instruction

if TYPE_CHECKING:
    from sparsegen.ptx.encode import Encoder


def _branch(encoder: Encoder, parts: list[str]) -> None:
    if parts not in ([], ["uni"]):
        raise encoder.refuse()
    encoder.branches.append((len(encoder.rows), encoder.operands(1)[0]))
    encoder.emit(OTHER["BRANCH"])


def _branch_table(encoder: Encoder, parts: list[str]) -> None:
    """brx.idx index, table"""
    index, name = encoder.operands(2)
    if parts not in (["idx"], ["idx", "uni"]) or name not in encoder.entry.tables:
        raise encoder.refuse()
    count = len(encoder.entry.tables[name])
    encoder.emit(OTHER["BRANCH_TABLE"], [encoder.source(index, "u32"), count], immediate=encoder.table_of(name))


def _plain(name: str, *spellings: list[str]) -> Callable[[Encoder, list[str]], None]:
    def form(encoder: Encoder, parts: list[str]) -> None:
        if parts not in spellings:
            raise encoder.refuse()
        encoder.emit(OTHER[name])

    return form


def _hint(encoder: Encoder, parts: list[str]) -> None:
    """prefetch, nanosleep: nothing that shows."""
    encoder.emit(OTHER["NOTHING"])


def plain_move(instruction: Instruction) -> bool:
    """Whether a mov is one of the table's: neither of predicates nor of parts."""
    return not instruction.opcode.endswith(".pred") and not any("{" in each for each in instruction.operands)


def _move(encoder: Encoder, parts: list[str]) -> None:
    """mov.pred p, q; mov.b32 d, {low, high}; mov.b64 {low, high}, a"""
    to, source = encoder.operands(2)
    if parts == ["pred"]:
        _logic(encoder, "mov")
        return
    if parts not in (["b32"], ["b64"]):
        raise encoder.refuse()
    width, whole, listed = BITS[parts[0]] // 8, *((source, to) if to.startswith("{") else (to, source))
    texts = elements(listed)
    size = width // len(texts) if texts else 0
    if size not in (2, 4) or size * len(texts) != width or len(texts) < 2:
        raise encoder.refuse(f"{len(texts)} parts")
    if listed is to:
        places = [-1 if text == "_" else encoder.register(text, size) for text in texts]
        places.insert(0, encoder.source(whole, f"u{8 * width}"))
    else:
        places = [encoder.register(whole, width), *(encoder.source(text, f"u{8 * size}") for text in texts)]
    name = "UNPACK" if listed is to else "PACK"
    encoder.emit(OTHER[name], places, size=size, count=len(texts), width=width)


LOGIC = ("mov", "not", "and", "or", "xor")


def _logic(encoder: Encoder, name: str) -> None:
    to, *sources = encoder.operands(3 if name in ("and", "or", "xor") else 2)
    pairs = [encoder.signed_predicate(each) for each in sources]
    flags = sum(flag for (_, negated), flag in zip(pairs, (FLAG_A, FLAG_B), strict=False) if negated)
    places = [encoder.predicate(to), *(place for place, _ in pairs)]
    encoder.emit(OTHER["PREDICATE"], places, mode=LOGIC.index(name), flags=flags)


def _bitwise(name: str) -> Callable[[Encoder, list[str]], None]:
    def form(encoder: Encoder, parts: list[str]) -> None:
        if parts == ["pred"]:
            _logic(encoder, name)
        elif (row := table.SCALARS.get(".".join([name, *parts]))) is not None:
            encoder.scalar(row, encoder.instruction.operands)
        else:
            raise encoder.refuse()

    return form


FORMS: dict[str, Callable[[Encoder, list[str]], None]] = {
    "ld": lambda encoder, parts: memory.load_or_store(encoder, parts, store=False),
    "ldu": lambda encoder, parts: memory.load_or_store(encoder, parts, store=False),
    "st": lambda encoder, parts: memory.load_or_store(encoder, parts, store=True),
    "atom": lambda encoder, parts: memory.atomic(encoder, parts, returns=True),
    "red": lambda encoder, parts: memory.atomic(encoder, parts, returns=False),
    "membar": memory.membar,
    "fence": memory.membar,
    "bar": collective.barrier,
    "barrier": collective.barrier,
    "bra": _branch,
    "brx": _branch_table,
    "ret": _plain("EXIT", [], ["uni"]),
    "exit": _plain("EXIT", []),
    "trap": _plain("TRAP", []),
    "prefetch": _hint,
    "prefetchu": _hint,
    "nanosleep": _hint,
    "shfl": collective.shuffle,
    "vote": collective.vote,
    "match": collective.match,
    "redux": collective.reduce,
    "activemask": collective.active,
    "mov": _move,
    **{name: _bitwise(name) for name in ("not", "and", "or", "xor")},
    "cp": memory.copy_async,
    "ldmatrix": memory.load_matrix,
    "mma": collective.matrix_multiply,
}
