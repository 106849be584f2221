"""Loads, stores, atomics, fences and asynchronous copies: how they are written, and how they are encoded.

Every qualifier is matched or refused. Numbers of spaces, modes and types are those of the executor's enums.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparsegen.ptx import table
from sparsegen.ptx.parse import BITS, split

if TYPE_CHECKING:
    from sparsegen.ptx.encode import Encoder

SIGNED, STRONG, ADDRESS_32, ACQUIRE, RELEASE, NEGATE, FLAG_A, FLAG_B = (1 << k for k in range(8))
SPACES = {"generic": 0, "global": 1, "const": 1, "shared": 2, "local": 3}
SCOPES = ("cta", "cluster", "gpu", "sys", "gl")
CACHING = ("ca", "cg", "cs", "lu", "cv", "nc", "wb", "wt")
ATOMICS = ("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec")
TYPES = ("u16", "u32", "s32", "u64", "s64", "f16", "bf16", "f16x2", "bf16x2", "f32", "f64")
ATOMIC_TYPES = {
    "add": ("u32", "s32", "u64", "f32", "f64", "f16", "f16x2", "bf16", "bf16x2"),
    **dict.fromkeys(("min", "max"), ("u32", "s32", "u64", "s64", "f16", "f16x2", "bf16", "bf16x2")),
    **dict.fromkeys(("and", "or", "xor", "exch"), ("b32", "b64")),
    "cas": ("b16", "b32", "b64"),
    **dict.fromkeys(("inc", "dec"), ("u32",)),
}
OTHER = table.OTHER


def take(parts: list[str], *sets: tuple[str, ...]) -> list[str | None]:
    """The first of each set among the parts, in the order of the sets; what is taken leaves the list."""
    found: list[str | None] = []
    for words in sets:
        word = next((each for each in parts if each in words), None)
        if word is not None:
            parts.remove(word)
        found.append(word)
    return found


def elements(text: str) -> list[str]:
    """Of {a, b} or a."""
    return split(text[1:-1]) if text.startswith("{") and text.endswith("}") else [text]


def _data_places(encoder: Encoder, texts: list[str], kind: str, store: bool) -> tuple[list[int], int]:
    """The places of the data of a load or store and the bytes of their lanes: registers may be wider than memory."""
    size = BITS[kind] // 8
    widths = {encoder.width(text) for text in texts if text.startswith("%")}
    width = max(2, size) if not widths else widths.pop()
    if widths or width < size:
        raise encoder.refuse("registers of different widths, or too narrow")
    if store:
        return [encoder.source(text, kind if width == size else f"u{8 * width}") for text in texts], width
    return [-1 if text == "_" else encoder.register(text, width) for text in texts], width


def load_or_store(encoder: Encoder, parts: list[str], store: bool) -> None:
    """ld.volatile.global.cs.v4.f32 {a, b, c, d}, [address]"""
    parts = ["shared" if each == "shared::cta" else each for each in parts if not each.startswith(("L1::", "L2::"))]
    spaces = ("global", "shared", "local", "const", "param")
    orders = ("volatile", "weak", "relaxed", "release" if store else "acquire")
    order, _, space, caching, vector = take(parts, orders, SCOPES, spaces, CACHING, ("v2", "v4", "v8"))
    if len(parts) != 1 or parts[0] not in BITS or parts[0] == "pred" or (store and space in ("const", "param")):
        raise encoder.refuse()
    kind, size = parts[0], BITS[parts[0]] // 8
    operands = encoder.operands(2)
    address, data = operands if store else operands[::-1]
    texts, count = elements(data), int(vector[1]) if vector else 1
    if len(texts) != count or size * count > 32:
        raise encoder.refuse(f"{len(texts)} elements")
    places, width = _data_places(encoder, texts, kind, store)
    flags = SIGNED if kind[0] == "s" else 0
    if space == "param":
        _parameter(encoder, address, places, size, count, width, flags)
        return
    base, offset, wide, of = encoder.address(address)
    space = space or "generic"
    if of and of != space:
        raise encoder.refuse(f"a variable of {of} memory")
    held = order == "volatile" and space == "shared"  # volatile orders no lanes of a warp: __syncwarp() does
    if (order not in (None, "weak") and not held) or caching == "cv":
        flags |= STRONG | (RELEASE if store else ACQUIRE)
    if not store and address in encoder.guesses:
        flags |= STRONG
    if order == "release":
        _fence(encoder)
    if store:
        encoder.stores(space, size)
    encoder.emit(
        OTHER["STORE" if store else "LOAD"], [base, *places], immediate=offset, size=size, count=count, width=width,
        space=SPACES[space], flags=flags | wide,
    )  # fmt: skip


def _parameter(
    encoder: Encoder, address: str, places: list[int], size: int, count: int, width: int, flags: int
) -> None:
    name, _, offset = address.strip("[] ").partition("+")
    found = next((each for each in encoder.entry.parameters if each[0] == name.strip()), None)
    if found is None:
        raise encoder.refuse("not a parameter of the kernel")
    at = encoder.offset(offset.strip())
    if at < 0 or at + size * count > found[2]:
        raise encoder.refuse("outside of the parameter")
    encoder.emit(
        OTHER["PARAMETER"], [-1, *places], immediate=found[1] + at, size=size, count=count, width=width, flags=flags
    )


def _fence(encoder: Encoder) -> None:
    encoder.fences = True
    encoder.emit(OTHER["FENCE"])


def membar(encoder: Encoder, parts: list[str]) -> None:
    """membar.gl, fence.acq_rel.gpu; within a block a fence orders nothing that a barrier does not."""
    take(parts, ("sc", "acq_rel"))
    scope = take(parts, SCOPES)[0]
    encoder.operands(0)
    if parts or scope is None:
        raise encoder.refuse()
    if scope == "cta":
        encoder.emit(OTHER["NOTHING"])
    else:
        _fence(encoder)


def atomic(encoder: Encoder, parts: list[str], returns: bool) -> None:
    """atom.global.add.f64 d, [address], b"""
    parts = ["shared" if each == "shared::cta" else each for each in parts]
    order, _, space, vector, _ = take(
        parts, ("relaxed", "acquire", "release", "acq_rel"), SCOPES, ("global", "shared"), ("v2", "v4"), ("noftz",)
    )
    if (
        len(parts) != 2
        or parts[1] not in ATOMIC_TYPES.get(parts[0], ())
        or (not returns and parts[0] in ("cas", "exch"))
    ):
        raise encoder.refuse()
    (what, kind), count = parts, int(vector[1]) if vector else 1
    size = BITS[kind] // 8
    operands = encoder.operands(2 + returns + (what == "cas"))
    result, rest = (operands[0], operands[1:]) if returns else ("_", operands)
    base, offset, wide, of = encoder.address(rest[0])
    space = space or "generic"
    if of and of != space:
        raise encoder.refuse(f"a variable of {of} memory")
    results, values = elements(result), elements(rest[1])
    if len(values) != count or (result != "_" and len(results) != count) or (count > 1 and what == "cas"):
        raise encoder.refuse("another number of elements")
    width = max(size, 2)
    plain = f"u{8 * width}" if kind[0] in "bu" or kind.endswith(("16", "x2")) else kind
    places = [-1] * 12
    places[0] = base
    if what == "cas":
        places[1] = encoder.source(rest[2], plain)
    for k, text in enumerate(values):
        places[8 + k] = encoder.source(text, plain)
    for k, text in enumerate(results):
        places[4 + k] = -1 if text == "_" else encoder.register(text, width)
    encoder.stores(space, size)
    if order in ("release", "acq_rel"):
        _fence(encoder)
    named = kind if kind in TYPES else {"b16": "u16", "b32": "u32", "b64": "u64"}[kind]
    encoder.emit(
        OTHER["ATOMIC"], places, immediate=offset, size=size, count=count, width=width, space=SPACES[space],
        mode=ATOMICS.index(what), type=TYPES.index(named), flags=wide,
    )  # fmt: skip


def copy_async(encoder: Encoder, parts: list[str]) -> None:
    """cp.async.ca.shared.global [to], [from], 8, taken; cp.async.commit_group; cp.async.wait_group 1"""
    modes = {"commit_group": 1, "wait_group": 2, "wait_all": 3}
    if len(parts) == 2 and parts[0] == "async" and parts[1] in modes:
        count = encoder.offset(encoder.operands(1)[0]) if parts[1] == "wait_group" else 0
        if not 0 <= count < 1 << 16:
            raise encoder.refuse()
        encoder.emit(OTHER["COPY_ASYNC"], mode=modes[parts[1]], immediate=count)
        return
    parts = [each for each in parts if not each.startswith("L2::")]
    if parts[:1] != ["async"] or parts[1:2] not in (["ca"], ["cg"]) or parts[3:] != ["global"]:
        raise encoder.refuse()
    if parts[2] not in ("shared", "shared::cta"):
        raise encoder.refuse()
    to, source, *rest = encoder.operands(3, 4)
    size = encoder.offset(rest[0])
    if size not in ((16,) if parts[1] == "cg" else (4, 8, 16)):
        raise encoder.refuse(f"{size} bytes")
    (to_base, to_offset, wide, _), (base, offset, narrow, _) = encoder.address(to), encoder.address(source)
    if base < 0 or narrow or to_base < 0 or max(abs(to_offset), abs(offset)) >= 1 << 31:
        raise encoder.refuse("addresses of another form")
    taken = ignored = -1
    if len(rest) > 1:
        if encoder.entry.register(rest[1]) == "pred":
            ignored = encoder.predicate(rest[1])
        else:
            taken = encoder.source(rest[1], "u32")
    encoder.stores("shared", min(size, 8))
    encoder.emit(
        OTHER["COPY_ASYNC"], [to_base, base, taken, ignored], size=size, flags=wide,
        immediate=(to_offset << 32) + (offset & 0xFFFFFFFF),
    )  # fmt: skip


def load_matrix(encoder: Encoder, parts: list[str]) -> None:
    """ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {a, b, c, d}, [address]"""
    _, shared = take(parts, ("aligned",), ("shared", "shared::cta"))
    transposed = take(parts, ("trans",))[0]
    if len(parts) != 4 or parts[:2] != ["sync", "m8n8"] or parts[2] not in ("x1", "x2", "x4") or parts[3] != "b16":
        raise encoder.refuse()
    if not shared:
        raise encoder.refuse()
    texts, address = encoder.operands(2)
    base, offset, wide, _ = encoder.address(address)
    results, count = elements(texts), int(parts[2][1])
    if len(results) != count:
        raise encoder.refuse(f"{len(results)} results")
    places = [base, *(encoder.register(text, 4) for text in results)]
    encoder.emit(
        OTHER["LOAD_MATRIX"], places, immediate=offset, count=count, space=SPACES["shared"],
        mode=int(transposed is not None), flags=wide,
    )  # fmt: skip
