"""What the model reads: a problem as condition words, statistics, and one token per nonzero or per sampled nonzero.

Embeddings of the nonzeros, by name. Those of the paper (SparseRL) know absolute coordinates only; how the paper
samples a matrix with more nonzeros than tokens is unknown: here a sorted uniform sample without repetition.

    raw         row and column, as two numbers
    max_min     both scaled to [0, 1] by the smallest and largest among the nonzeros shown
    sinusoidal  the paper's: PE(i, 2j) = sin(i / 10000^(2j/d)), PE(i, 2j+1) = cos(i / 10000^(2j/d)) of the row and of
                the column, concatenated. Its d is unknown: DEPTH. The linear layer that follows is the generator's.
    none        no nonzeros
    windows     ours, the default: see windows.py
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sparsegen.errors import SparsegenTypeError, SparsegenValueError
from sparsegen.model import statistics, windows
from sparsegen.model.entries import rows_of
from sparsegen.model.statistics import STATISTIC as STATISTIC
from sparsegen.problem import Pattern, Problem

SEED = 20260
STATISTICS = len(statistics.NAMES)  # tokens of statistics
EMBEDDINGS = ("raw", "max_min", "sinusoidal", "none", "windows")
DEPTH = 64  # d of the paper's formula, for each axis

TECHNIQUES = (  # what a kernel may use, one word each
    "may_vector",  # the vector type, or warp shuffles
    "may_slice",  # SELL, BSELL
    "may_sort",  # SIGMA other than 1
    "may_block",  # BSR, BSELL
    "may_diagonal",  # DIA
    "may_compress",  # narrower indices or values, or one value for all
    "may_pad",  # ELL
    "may_split",  # composite parts
    "may_unroll",  # pragma unroll, tiles
    "may_atomic",  # atomic additions, COO
    "may_shared",  # CUDA's shared memory
)
# Append only, since the place of a word is its id in every checkpoint. 0 is padding.
CONDITIONS: tuple[str, ...] = (
    "", "op:spmv", "op:spmm",
    "k:1", "k:2", "k:4", "k:8", "k:16", "k:32", "k:64", "k:128",  # the nearest, by ratio
    "dtype:f32", "dtype:f64", "index:32", "index:64",
    "fact:constant", "fact:exact_f32", "fact:opaque",  # opaque: no fact is known
    "threads:1", "threads:2", "threads:3-4", "threads:5-8", "threads:9+",
    "b:row", "b:column", "c:row", "c:column", "deterministic",
    "target:cpu", "target:cuda",
    "device:other", "device:avx512", "device:avx2", "device:sse2", "device:neon",
    *(f"device:sm_{arch}" for arch in (70, 75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121)),
    *TECHNIQUES,
    "task:pretrain", "task:generate", "task:optimise", "task:translate",  # of training texts
    "kind:map", "kind:reduce", "kind:scan", "kind:gather", "kind:stencil", "kind:transpose", "kind:segmented",
    "kind:template", "kind:other",
)  # fmt: skip
IDS = {word: number for number, word in enumerate(CONDITIONS) if word}


@dataclass(frozen=True)
class Structure:
    """A problem as the model reads it: a token for every condition, every row of statistics, every nonzero shown."""

    conditions: np.ndarray  # (C,) int64, places in CONDITIONS, ascending
    statistics: np.ndarray  # (S, STATISTIC) float32, see statistics.NAMES
    coordinates: np.ndarray  # (T, width) float32


@dataclass
class Batch:
    """Structures side by side. The order of tokens is conditions, statistics, coordinates; mask is false on padding."""

    conditions: np.ndarray  # (B, C) int64
    statistics: np.ndarray  # (B, S, STATISTIC) float32
    coordinates: np.ndarray  # (B, T, W) float32
    mask: np.ndarray  # (B, C + S + T) bool


def encode(
    problem: Problem,
    embedding: str = "windows",
    tokens: int = 64,
    seed: int = SEED,
    permitted: Collection[str] | None = None,
) -> Structure:
    """A problem as the model reads it, with at most `tokens` nonzeros; the same arguments give the same arrays.

    Raises SparsegenValueError for an unknown embedding, a technique that is no word of TECHNIQUES, or tokens < 1.
    """
    shape = width(embedding)
    if tokens < 1:
        raise SparsegenValueError(f"tokens = {tokens}; expected at least 1, or the embedding 'none'")
    coordinates = np.zeros((0, shape), np.float32)
    if problem.pattern.nnz and embedding != "none":
        coordinates = _EMBED[embedding](problem.pattern, int(tokens), np.random.default_rng(seed)).astype(np.float32)
    return Structure(conditions(problem, permitted), statistics.of(problem, seed), coordinates)


def pretraining(language_target: str, words: Sequence[str], embedding: str = "windows") -> Structure:
    """Conditions alone, for texts that are no kernel of a matrix: zeros for statistics ("valid" too), no nonzeros.

    language_target: "cpu" or "cuda"; the language "cpp" means "cpu". words: of CONDITIONS. Raises SparsegenValueError.
    """
    target = {"cpp": "cpu"}.get(language_target, language_target)
    return Structure(
        _ids([f"target:{target}", *words]),
        np.zeros((len(statistics.NAMES), STATISTIC), np.float32),
        np.zeros((0, width(embedding)), np.float32),
    )


def permit(structure: Structure, allowed: Collection[str]) -> Structure:
    """The structure with the words of techniques that are not allowed taken out, as encode(permitted=) leaves them."""
    gone = [IDS[word] for word in TECHNIQUES if word not in allowed]
    return replace(structure, conditions=structure.conditions[~np.isin(structure.conditions, gone)])


def said_for(structure: Structure, threads: int) -> Structure:
    """The structure with another number of threads among its conditions; its statistics stay."""
    kept = [CONDITIONS[each] for each in structure.conditions if not CONDITIONS[each].startswith("threads:")]
    return replace(structure, conditions=_ids([*kept, _threads(threads)]))


def batch(structures: Sequence[Structure]) -> Batch:
    """Structures side by side, padded at the end of each part with zeros. Raises SparsegenValueError for none, or when
    they come from embeddings of different widths."""
    widths = {each.coordinates.shape[1] for each in structures}
    if len(widths) != 1:
        raise SparsegenValueError(f"structures of widths {sorted(widths)}; expected some, all of one embedding")
    numbers, padding = _stack([each.conditions for each in structures])
    tables, table_padding = _stack([each.statistics for each in structures])
    nonzeros, nonzero_padding = _stack([each.coordinates for each in structures])
    return Batch(numbers, tables, nonzeros, np.concatenate((padding, table_padding, nonzero_padding), axis=1))


def _stack(arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Arrays one after the other, padded with zeros to the longest, and where they are not padding."""
    lengths = np.array([len(each) for each in arrays])
    stacked = np.zeros((len(arrays), lengths.max(), *arrays[0].shape[1:]), arrays[0].dtype)
    for row, each in zip(stacked, arrays, strict=True):
        row[: len(each)] = each
    return stacked, np.arange(lengths.max()) < lengths[:, None]


def width(embedding: str) -> int:
    """Numbers of one coordinate token. Raises SparsegenValueError for an unknown embedding."""
    widths = {"raw": 2, "max_min": 2, "sinusoidal": 2 * DEPTH, "none": 1, "windows": windows.WIDTH}
    if embedding not in widths:
        raise SparsegenValueError(f"embedding = {embedding!r}; expected one of {', '.join(EMBEDDINGS)}")
    return widths[embedding]


def conditions(problem: Problem, permitted: Collection[str] | None = None) -> np.ndarray:
    """The condition words of a problem as ascending places in CONDITIONS, (C,) int64.

    permitted: words of TECHNIQUES, None for all. Raises SparsegenValueError for other words and for an op that has
    none, SparsegenTypeError for dtypes other than float32 and float64.
    """
    names = {"float32": "f32", "float64": "f64"}
    if problem.dtype.name not in names:
        raise SparsegenTypeError(f"a problem in {problem.dtype}; the model knows float32 and float64")
    if wrong := sorted(set(permitted or ()) - set(TECHNIQUES)):
        raise SparsegenValueError(f"permitted {wrong}; expected some of {', '.join(TECHNIQUES)}")
    facts = [name for name in ("constant", "exact_f32") if getattr(problem.facts, name)]
    words = [
        f"op:{problem.op}",
        f"k:{1 << min(round(float(np.log2(problem.k))), 7)}",
        f"dtype:{names[problem.dtype.name]}",
        f"index:{8 * problem.index_dtype.itemsize}",
        *(f"fact:{name}" for name in facts or ["opaque"]),
        _threads(problem.threads),
        f"b:{problem.layout_b}",
        f"c:{problem.layout_c}",
        *(["deterministic"] if problem.deterministic else []),
        f"target:{problem.target}",
        _device(problem),
        *(TECHNIQUES if permitted is None else permitted),
    ]
    return _ids(words)


def _ids(words: Sequence[str]) -> np.ndarray:
    if unknown := [word for word in words if word not in IDS]:
        raise SparsegenValueError(f"the model has no word for {', '.join(unknown)}; its words are {', '.join(IDS)}")
    return np.array(sorted({IDS[word] for word in words}), np.int64)


def _threads(threads: int) -> str:
    return f"threads:{('1', '2', '3-4', '5-8', '9+')[np.searchsorted((1, 2, 4, 8), threads)]}"


def _device(problem: Problem) -> str:
    """The instruction set or architecture in the name of the device, as targets/*.device() write it."""
    parts = problem.device.lower().split()
    if problem.target == "cpu":
        parts = ["neon" if part in ("aarch64", "arm64") else part for part in parts if not part.startswith("sm_")]
    else:
        parts = [part for part in parts if part.startswith("sm_")]
    return next((f"device:{part}" for part in reversed(parts) if f"device:{part}" in IDS), "device:other")


def positional(places: np.ndarray, depth: int = DEPTH) -> np.ndarray:
    """The paper's PE of each index, (len(places), depth) float64: sin in even columns, cos in odd ones."""
    angles = np.asarray(places)[:, None] / 10000.0 ** (np.arange(0, depth, 2) / depth)
    return np.stack((np.sin(angles), np.cos(angles)), axis=-1).reshape(len(angles), -1)[:, :depth]


def _sample(pattern: Pattern, tokens: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of the nonzeros that the paper's embeddings show."""
    places = np.arange(pattern.nnz)
    if pattern.nnz > tokens:
        places = np.sort(rng.choice(pattern.nnz, tokens, replace=False, shuffle=False))
    return rows_of(pattern, places), pattern.indices[places].astype(np.int64)


def _raw(pattern: Pattern, tokens: int, rng: np.random.Generator) -> np.ndarray:
    return np.stack(_sample(pattern, tokens, rng), axis=1)


def _max_min(pattern: Pattern, tokens: int, rng: np.random.Generator) -> np.ndarray:
    both = _raw(pattern, tokens, rng)
    low, high = both.min(axis=0), both.max(axis=0)
    return (both - low) / np.maximum(high - low, 1)


def _sinusoidal(pattern: Pattern, tokens: int, rng: np.random.Generator) -> np.ndarray:
    return np.concatenate([positional(axis) for axis in _sample(pattern, tokens, rng)], axis=1)


_EMBED: dict[str, Callable[[Pattern, int, np.random.Generator], np.ndarray]] = {
    "raw": _raw, "max_min": _max_min, "sinusoidal": _sinusoidal, "windows": windows.embed,
}  # fmt: skip
