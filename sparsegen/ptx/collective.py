"""What lanes of a warp, or threads of a block, do together: how it is written, and how it is encoded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparsegen.ptx.memory import ATOMICS, NEGATE, OTHER, TYPES, elements, take
from sparsegen.ptx.parse import BITS

if TYPE_CHECKING:
    from sparsegen.ptx.encode import Encoder


def barrier(encoder: Encoder, parts: list[str]) -> None:
    """bar.sync 0, bar.red.popc.u32 d, 0, p, bar.warp.sync mask"""
    if parts == ["warp", "sync"]:
        member = encoder.source(encoder.operands(1)[0], "u32")
        place = encoder.warp_barriers.setdefault(encoder.instruction.line, len(encoder.warp_barriers))
        encoder.emit(OTHER["WARP_BARRIER"], [-1, -1, member], immediate=place)
        return
    take(parts, ("cta",), ("aligned",))
    encoder.barriers += 1
    if parts == ["sync"]:
        if encoder.operands(1)[0] != "0":
            raise encoder.refuse("only barrier 0, of all threads")
        encoder.emit(OTHER["BARRIER"])
    elif parts in (["red", "popc", "u32"], ["red", "and", "pred"], ["red", "or", "pred"]):
        result, which, vote = encoder.operands(3)
        if which != "0":
            raise encoder.refuse("only barrier 0, of all threads")
        predicate, negated = encoder.signed_predicate(vote)
        to = encoder.register(result, 4) if parts[1] == "popc" else encoder.predicate(result)
        mode = {"popc": ATOMICS.index("add"), "and": ATOMICS.index("and"), "or": ATOMICS.index("or")}[parts[1]]
        encoder.emit(OTHER["BARRIER_VOTE"], [to, predicate], mode=mode, flags=NEGATE if negated else 0)
    else:
        raise encoder.refuse()


def shuffle(encoder: Encoder, parts: list[str]) -> None:
    """shfl.sync.down.b32 d|p, a, b, c, mask"""
    modes = ("up", "down", "bfly", "idx")
    if len(parts) != 3 or parts[0] != "sync" or parts[1] not in modes or parts[2] != "b32":
        raise encoder.refuse()
    result, *sources = encoder.operands(5)
    to, _, inside = result.partition("|")
    value, by, clamp, member = (encoder.source(text, "u32") for text in sources)
    predicate = encoder.predicate(inside.strip()) if inside else -1
    places = [encoder.register(to.strip(), 4), value, by, clamp, predicate, member]
    encoder.emit(OTHER["SHUFFLE"], places, mode=modes.index(parts[1]))


def vote(encoder: Encoder, parts: list[str]) -> None:
    """vote.sync.ballot.b32 d, p, mask"""
    modes = ("ballot", "any", "all", "uni")
    if len(parts) != 3 or parts[0] != "sync" or parts[1] not in modes:
        raise encoder.refuse()
    if parts[2] != ("b32" if parts[1] == "ballot" else "pred"):
        raise encoder.refuse()
    result, vote, member = encoder.operands(3)
    to = encoder.register(result, 4) if parts[1] == "ballot" else encoder.predicate(result)
    predicate, negated = encoder.signed_predicate(vote)
    places = [to, predicate, encoder.source(member, "u32")]
    encoder.emit(OTHER["VOTE"], places, mode=modes.index(parts[1]), flags=NEGATE if negated else 0)


def match(encoder: Encoder, parts: list[str]) -> None:
    """match.any.sync.b64 d|p, a, mask"""
    if len(parts) != 3 or parts[0] not in ("any", "all") or parts[1] != "sync" or parts[2] not in ("b32", "b64"):
        raise encoder.refuse()
    result, value, member = encoder.operands(3)
    to, _, matched = result.partition("|")
    predicate = encoder.predicate(matched.strip()) if matched else -1
    kind = f"u{parts[2][1:]}"
    sources = [encoder.source(value, kind), encoder.source(member, "u32")]
    places = [encoder.register(to.strip(), 4), *sources, -1, predicate]
    encoder.emit(OTHER["MATCH"], places, mode=1 if parts[0] == "any" else 2, width=BITS[kind] // 8)


def reduce(encoder: Encoder, parts: list[str]) -> None:
    """redux.sync.add.s32 d, a, mask"""
    allowed = {**dict.fromkeys(("add", "min", "max"), ("u32", "s32")), **dict.fromkeys(("and", "or", "xor"), ("b32",))}
    if len(parts) != 3 or parts[0] != "sync" or parts[2] not in allowed.get(parts[1], ()):
        raise encoder.refuse()
    result, value, member = encoder.operands(3)
    places = [encoder.register(result, 4), encoder.source(value, "u32"), encoder.source(member, "u32")]
    kind = "s32" if parts[2] == "s32" else "u32"
    encoder.emit(OTHER["REDUCE"], places, mode=ATOMICS.index(parts[1]), type=TYPES.index(kind))


def active(encoder: Encoder, parts: list[str]) -> None:
    if parts != ["b32"]:
        raise encoder.refuse()
    encoder.emit(OTHER["ACTIVE"], [encoder.register(encoder.operands(1)[0], 4)])


def matrix_multiply(encoder: Encoder, parts: list[str]) -> None:
    """mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 D, A, B, C"""
    if len(parts) != 9 or parts[:2] != ["sync", "aligned"] or parts[3:5] != ["row", "col"] or parts[6] != parts[7]:
        raise encoder.refuse()
    shape, (result, kind, _, added) = parts[2], parts[5:]
    depths = {"f16": (8, 16), "bf16": (8, 16), "tf32": (4, 8)}
    lists = [elements(text) for text in encoder.operands(4)]
    if shape == "m8n8k4" and (result, kind, added) == ("f64", "f64", "f64"):
        counts, width, depth, half = (2, 1, 1, 2), 8, 4, False
        code = TYPES.index("f64")
    else:
        depth = next((each for each in depths.get(kind, ()) if shape == f"m16n8k{each}"), 0)
        half = (result, added) == ("f16", "f16") and kind == "f16"
        if not depth or not (half or (result, added) == ("f32", "f32")):
            raise encoder.refuse()
        per = 4 if kind != "tf32" else 2
        counts, width = (2 if half else 4, depth // per, depth // (2 * per), 2 if half else 4), 4
        code = TYPES.index("f32" if kind == "tf32" else kind)
    if tuple(len(each) for each in lists) != counts:
        raise encoder.refuse("another number of registers")
    places = [-1] * 14
    for start, texts, is_result in zip((0, 4, 8, 10), lists, (True, False, False, False), strict=True):
        for k, text in enumerate(texts):
            place = encoder.register(text, width) if is_result else encoder.source(text, f"u{8 * width}")
            places[start + k] = place
    encoder.emit(OTHER["MATRIX_MULTIPLY"], places, count=depth, type=code, mode=int(half))
