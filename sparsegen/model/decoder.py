"""The trained generator in NumPy, float32: T5's arithmetic, the encoder once, then a token at a time for all samples.

Tested equal to `generator`. Scales of norms are multiplied into the matrices behind them, and T5 does not scale its
attention. One sample costs little more than the reading of the weights, so samples are stepped together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sparsegen.errors import SparsegenValueError
from sparsegen.model import encoder, statistics
from sparsegen.model.recipe import Sizes

BUCKETS, FURTHEST = 32, 128  # of T5's relative positions
EPSILON = np.float32(1e-6)
BLOCK = 256  # columns: OpenBLAS multiplies a few rows by a wide matrix in a third of the time when it is cut
NEVER = np.float32(-1e9)  # the score of padding


class Layer(NamedTuple):
    """Matrices of one layer, (in, out): of the encoder without those of the cross-attention."""

    query_key_value: np.ndarray
    out: np.ndarray
    gate_up: np.ndarray  # (blocks, in, columns), see `_cut`
    down: np.ndarray
    cross_query: np.ndarray | None = None
    cross_out: np.ndarray | None = None


@dataclass(frozen=True)
class Memory:
    """What the decoder asks of B encoded problems, E tokens each."""

    keys: tuple[np.ndarray, ...]  # of each layer, (B, heads, d_kv, E)
    values: tuple[np.ndarray, ...]  # (B, heads, E, d_kv)
    mask: np.ndarray  # (B, 1, 1, E), added to scores


@dataclass
class State:
    """N samples under way, in some of M slots. A step changes it in place."""

    memory: Memory  # of the problems that have samples, G of them
    rows: np.ndarray  # (M,) which row of the whole memory each slot is for
    places: np.ndarray  # (M,) where a slot's query lies among (G, widest group)
    widest: int
    keys: np.ndarray  # (layers, M, heads, longest, d_kv)
    values: np.ndarray
    whole: Memory
    live: np.ndarray  # (N,) slots of the samples, ascending
    position: int = 0  # tokens taken


class Decoder:
    def __init__(self, recipe: Sizes, weights: Mapping[str, np.ndarray]):
        """Raises SparsegenValueError when the weights are not those of the recipe."""
        check(weights, recipe)
        self.recipe = recipe
        full = {name: np.asarray(array, np.float32) for name, array in weights.items()}
        self._embedding = full["t5.shared.weight"]
        self._inputs = {name: full[name] for name in full if name.startswith(("conditions", "statistics", "coord"))}
        self._encoder = [_layer(full, f"t5.encoder.block.{i}.layer", False) for i in range(recipe.encoder_layers)]
        self._layers = [_layer(full, f"t5.decoder.block.{i}.layer", True) for i in range(recipe.decoder_layers)]
        self._cross = [
            _columns(full, f"t5.decoder.block.{i}.layer.1.EncDecAttention", "kv", "t5.encoder.final_layer_norm")
            for i in range(recipe.decoder_layers)
        ]
        self._head = _cut(_scaled(full["head.weight"], full["t5.decoder.final_layer_norm.weight"]))
        relative = "block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        self._encoder_bias = full[f"t5.encoder.{relative}"].T  # (heads, BUCKETS)
        past = -np.arange(recipe.longest)[::-1]  # a query's own position comes last
        self._bias = np.ascontiguousarray(full[f"t5.decoder.{relative}"].T[:, buckets(past, both=False)])

    def remember(self, batch: encoder.Batch) -> Memory:
        """Encode a batch and keep what the decoder's layers read of it."""
        recipe, inputs = self.recipe, self._inputs
        x = np.concatenate(
            [
                inputs["conditions.weight"][batch.conditions],
                np.einsum("bsi,sid->bsd", batch.statistics, inputs["statistics"]) + inputs["statistics_vectors"],
                batch.coordinates @ inputs["coordinates.weight"].T + inputs["coordinates.bias"],
            ],
            axis=1,
            dtype=np.float32,
        )
        B, E, _ = x.shape
        mask = np.where(batch.mask, np.float32(0), NEVER)[:, None, None, :]
        at = np.arange(E)
        bias = self._encoder_bias[:, buckets(at - at[:, None], both=True)] + mask  # (B, heads, E, E)
        for layer in self._encoder:
            mixed = (_normed(x) @ layer.query_key_value).reshape(B, E, 3, recipe.heads, recipe.d_kv)
            query, key, value = mixed.transpose(2, 0, 3, 1, 4)
            context = _softmax(query @ key.swapaxes(2, 3) + bias) @ value
            x = x + context.transpose(0, 2, 1, 3).reshape(B, E, -1) @ layer.out
            x = x + _feed_forward(x, layer)
        x = _normed(x)
        keys, values = [], []
        for matrix in self._cross:
            key, value = (x @ matrix).reshape(B, E, 2, recipe.heads, recipe.d_kv).transpose(2, 0, 3, 1, 4)
            keys.append(np.ascontiguousarray(key.swapaxes(2, 3)))
            values.append(np.ascontiguousarray(value))
        return Memory(tuple(keys), tuple(values), mask)

    def start(self, memory: Memory, rows: np.ndarray) -> State:
        """N samples that have taken no token yet; rows (N,) says which problem of the memory each is for."""
        rows = np.asarray(rows)
        if rows.ndim != 1 or not len(rows) or rows.dtype.kind not in "iu":
            raise SparsegenValueError(f"rows of shape {rows.shape}, {rows.dtype}; expected one integer a sample")
        if rows.min() < 0 or rows.max() >= len(memory.mask):
            raise SparsegenValueError(f"rows from {rows.min()} to {rows.max()} of a memory of {len(memory.mask)}")
        recipe = self.recipe
        shape = (recipe.decoder_layers, len(rows), recipe.heads, recipe.longest, recipe.d_kv)
        return State(
            *_grouped(memory, rows), np.empty(shape, np.float32), np.empty(shape, np.float32), memory,
            np.arange(len(rows)),
        )  # fmt: skip

    def step(self, state: State, tokens: np.ndarray) -> np.ndarray:
        """Take one token (N,) of each sample; logits (N, V) float32 of the next. The first is the language token."""
        return self.read(state, np.asarray(tokens)[:, None])[:, 0]

    def read(self, state: State, tokens: np.ndarray) -> np.ndarray:
        """Take some tokens (N, T) of each sample at once; logits (N, T, V) float32 of what follows each of them."""
        heads, d_kv, t = self.recipe.heads, self.recipe.d_kv, state.position
        slots, live, T = len(state.rows), state.live, tokens.shape[1]
        if len(tokens) != len(live):
            raise SparsegenValueError(f"{len(tokens)} tokens for {len(live)} samples")
        if t + T > self.recipe.longest:
            raise SparsegenValueError(f"a sample takes {self.recipe.longest} tokens at most")
        x = self._embedding[tokens]
        if len(live) < slots:  # slots of samples that were dropped are computed and not looked at
            x, few = np.zeros((slots, *x.shape[1:]), np.float32), x
            x[live] = few
        past = slice(0, t + T)
        bias = self._bias_of(t, T)
        groups, widest = len(state.memory.mask), state.widest
        for layer, keys, values, cross_keys, cross_values in zip(
            self._layers, state.keys, state.values, state.memory.keys, state.memory.values, strict=True
        ):
            mixed = (_normed(x) @ layer.query_key_value).reshape(slots, T, 3, heads, d_kv)
            query, key, value = mixed.transpose(2, 0, 3, 1, 4)
            keys[:, :, t : t + T], values[:, :, t : t + T] = key, value
            scores = (keys[:, :, past] @ query.swapaxes(2, 3)).swapaxes(2, 3)
            scores += bias
            context = _softmax(scores) @ values[:, :, past]
            x = x + context.swapaxes(1, 2).reshape(slots, T, -1) @ layer.out

            # the samples of one problem ask the same keys: groups of them, padded to the widest
            asked = np.zeros((groups * widest, T, heads * d_kv), np.float32)
            asked[state.places] = _normed(x) @ layer.cross_query
            scores = asked.reshape(groups, widest * T, heads, d_kv).swapaxes(1, 2) @ cross_keys
            scores += state.memory.mask
            context = (_softmax(scores) @ cross_values).swapaxes(1, 2).reshape(-1, T, heads * d_kv)
            x += context[state.places] @ layer.cross_out
            x += _feed_forward(x, layer)
        state.position = t + T
        return _wide(_normed(x if len(live) == slots else x[live]), self._head)

    def _bias_of(self, t: int, T: int) -> np.ndarray:
        """Added to the scores of T tokens behind t others: (heads, T, t + T), NEVER where the key comes later."""
        if T == 1:
            return self._bias[:, None, -t - 1 :]
        behind = t + np.arange(T)[:, None] - np.arange(t + T)  # of the query, its key
        return np.where(behind < 0, NEVER, self._bias[:, -1 - np.maximum(behind, 0)])

    def keep(self, state: State, rows: np.ndarray) -> State:
        """As `fork`, and faster; `state` itself must not be used after it."""
        rows = np.asarray(rows)
        kept = state.live[rows]
        # Moving the caches costs as much as some steps, so a few slots may lie idle
        if len(kept) > 0.75 * len(state.rows) and (np.diff(kept) > 0).all():
            state.live = kept
            return state
        return self.fork(state, rows)

    def fork(self, state: State, rows: np.ndarray) -> State:
        """The samples `rows` (indices among the N) alone, in that order; `state` goes on as it is."""
        kept = state.live[np.asarray(rows)]
        if not len(kept):
            raise SparsegenValueError("no samples to keep; stop stepping instead")
        keys, values = (
            np.empty((len(old), len(kept), *old.shape[2:]), np.float32) for old in (state.keys, state.values)
        )
        t = state.position
        keys[:, :, :, :t] = state.keys[:, kept, :, :t]
        values[:, :, :, :t] = state.values[:, kept, :, :t]
        grouped = _grouped(state.whole, state.rows[kept])
        return State(*grouped, keys, values, state.whole, np.arange(len(kept)), t)

    def back(self, state: State, position: int) -> None:
        """Forget all tokens but the first `position`."""
        state.position = min(position, state.position)


def shapes(recipe: Sizes) -> dict[str, tuple[int, ...]]:
    """The tensors of a model: their names in `generator` and their shapes, (out, in) for matrices."""
    d, inner = recipe.d_model, recipe.heads * recipe.d_kv
    of = {
        "t5.shared.weight": (recipe.vocabulary, d),
        "conditions.weight": (len(encoder.CONDITIONS), d),
        "statistics": (len(statistics.NAMES), statistics.STATISTIC, d),
        "statistics_vectors": (len(statistics.NAMES), d),
        "coordinates.weight": (d, encoder.width(recipe.embedding)),
        "coordinates.bias": (d,),
        "head.weight": (recipe.vocabulary, d),
        "value.weight": (1, d),
        "value.bias": (1,),
    }
    for stack, layers in (("encoder", recipe.encoder_layers), ("decoder", recipe.decoder_layers)):
        attentions = ["SelfAttention", "EncDecAttention"][: 1 + (stack == "decoder")]
        of[f"t5.{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"] = (BUCKETS, recipe.heads)
        of[f"t5.{stack}.final_layer_norm.weight"] = (d,)
        for block in range(layers):
            prefix = f"t5.{stack}.block.{block}.layer"
            for i, attention in enumerate(attentions):
                of |= {f"{prefix}.{i}.{attention}.{name}.weight": (inner, d) for name in "qkv"}
                of[f"{prefix}.{i}.{attention}.o.weight"] = (d, inner)
                of[f"{prefix}.{i}.layer_norm.weight"] = (d,)
            last = f"{prefix}.{len(attentions)}"
            of |= {f"{last}.DenseReluDense.{name}.weight": (recipe.d_ff, d) for name in ("wi_0", "wi_1")}
            of[f"{last}.DenseReluDense.wo.weight"] = (d, recipe.d_ff)
            of[f"{last}.layer_norm.weight"] = (d,)
    return of


def check(weights: Mapping[str, np.ndarray], recipe: Sizes) -> None:
    """Raises SparsegenValueError, with the first difference, when weights are not those of a recipe."""
    wanted = shapes(recipe)
    if missing := sorted(set(wanted) - set(weights)):
        raise SparsegenValueError(f"weights without {missing[0]}, which recipe {recipe.name} has")
    if unknown := sorted(set(weights) - set(wanted)):
        raise SparsegenValueError(f"weights with {unknown[0]}, which recipe {recipe.name} has not")
    for name, shape in wanted.items():
        if tuple(weights[name].shape) != shape:
            raise SparsegenValueError(f"{name} is {tuple(weights[name].shape)}; recipe {recipe.name} has {shape}")


def buckets(offsets: np.ndarray, *, both: bool) -> np.ndarray:
    """T5's bucket of each key position minus query position: exact, then logarithmic; both: keys ahead too."""
    count = BUCKETS // 2 if both else BUCKETS
    distance = np.abs(offsets) if both else np.maximum(-offsets, 0)
    exact = count // 2
    ratio = np.log(np.maximum(distance, exact).astype(np.float32) / np.float32(exact))
    far = exact + (ratio / np.float32(np.log(FURTHEST / exact)) * np.float32(count - exact)).astype(np.int64)
    found = np.where(distance < exact, distance, np.minimum(far, count - 1))
    return found + np.where(offsets > 0, count, 0) if both else found


def _normed(x: np.ndarray) -> np.ndarray:
    """x over the root of its mean square (RMSNorm, Zhang and Sennrich 2019), unscaled."""
    squares = np.einsum("...d,...d->...", x, x)[..., None]
    squares *= np.float32(1 / x.shape[-1])
    squares += EPSILON
    return x / np.sqrt(squares, out=squares)


def _softmax(scores: np.ndarray) -> np.ndarray:
    scores -= scores.max(-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(-1, keepdims=True)
    return scores


def _feed_forward(x: np.ndarray, layer: Layer) -> np.ndarray:
    """GELU by its tanh form (Hendrycks and Gimpel 2016), its half in `down`."""
    both = _wide(_normed(x), layer.gate_up)
    gate, up = both[..., : both.shape[-1] // 2], both[..., both.shape[-1] // 2 :]
    bent = gate * gate
    bent *= np.float32(0.044715 * np.sqrt(2 / np.pi))
    bent += np.float32(np.sqrt(2 / np.pi))
    bent *= gate
    np.tanh(bent, out=bent)
    bent += np.float32(1)
    bent *= gate
    bent *= up
    return bent @ layer.down


def _grouped(memory: Memory, rows: np.ndarray) -> tuple[Memory, np.ndarray, np.ndarray, int]:
    """(memory of the problems that occur, rows, places, widest) as `State` holds them."""
    problems, of, counts = np.unique(rows, return_inverse=True, return_counts=True)
    order = np.argsort(of, kind="stable")
    within = np.empty(len(rows), np.int64)
    within[order] = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    widest = int(counts.max())
    if len(problems) < len(memory.mask):
        keys, values = ([each[problems] for each in arrays] for arrays in (memory.keys, memory.values))
        memory = Memory(tuple(keys), tuple(values), memory.mask[problems])
    return memory, rows, of * widest + within, widest


def _scaled(matrix: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """The transpose of a matrix (out, in), as products with rows want it, behind a norm with that scale."""
    return np.ascontiguousarray((matrix * scale).T)


def _cut(matrix: np.ndarray) -> np.ndarray:
    """A matrix (in, out) as (blocks, in, columns) of at most BLOCK columns each."""
    columns = next(c for c in range(BLOCK, 0, -1) if matrix.shape[1] % c == 0)
    return np.ascontiguousarray(matrix.reshape(len(matrix), -1, columns).swapaxes(0, 1))


def _wide(x: np.ndarray, blocks: np.ndarray) -> np.ndarray:
    """x (..., in) times a matrix that is cut: (..., out)."""
    product = x.reshape(-1, x.shape[-1]) @ blocks
    return product.swapaxes(0, 1).reshape(*x.shape[:-1], -1)


def _columns(full: dict[str, np.ndarray], prefix: str, names: str, norm: str) -> np.ndarray:
    matrices = [full[f"{prefix}.{name}.weight"] for name in names]
    return _scaled(np.concatenate(matrices), full[f"{norm}.weight"])


def _layer(full: dict[str, np.ndarray], prefix: str, cross: bool) -> Layer:
    last = f"{prefix}.{2 if cross else 1}"
    gate_up = np.concatenate([full[f"{last}.DenseReluDense.{name}.weight"] for name in ("wi_0", "wi_1")])
    layer = Layer(
        query_key_value=_columns(full, f"{prefix}.0.SelfAttention", "qkv", f"{prefix}.0.layer_norm"),
        out=np.ascontiguousarray(full[f"{prefix}.0.SelfAttention.o.weight"].T),
        gate_up=_cut(_scaled(gate_up, full[f"{last}.layer_norm.weight"])),
        down=np.ascontiguousarray(full[f"{last}.DenseReluDense.wo.weight"].T) * np.float32(0.5),
    )
    if not cross:
        return layer
    return layer._replace(
        cross_query=_columns(full, f"{prefix}.1.EncDecAttention", "q", f"{prefix}.1.layer_norm"),
        cross_out=np.ascontiguousarray(full[f"{prefix}.1.EncDecAttention.o.weight"].T),
    )
