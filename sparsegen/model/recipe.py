"""A model's sizes and how it is trained: models/<name>.toml, one dial for everything that grows with the model."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

from sparsegen import paths
from sparsegen.errors import SparsegenValueError


@dataclass(frozen=True)
class Fit:
    """Pretraining or supervised fine-tuning with AdamW; the rate falls as a cosine to a tenth."""

    steps: int
    batch: int  # texts of one step
    learning_rate: float  # the highest
    warmup: int  # steps that it rises for
    weight_decay: float
    clip_norm: float  # of the gradient


@dataclass(frozen=True)
class Rl:
    """Reinforcement learning: sample, measure, update."""

    updates: int
    problems: int  # of one update
    group: int  # kernels sampled for each
    epochs: int  # passes over them
    learning_rate: float
    warmup: int
    weight_decay: float
    clip_norm: float
    clip_ratio: float  # of new to old probability (PPO, Schulman et al. 2017)
    kl: float  # weight of the divergence from the fine-tuned model
    value_weight: float  # of the critic's loss
    gae: float  # lambda of the advantages
    temperature: float
    top_k: int
    stage_updates: int  # updates of each stage in which not all techniques are permitted; 0: all are, always


@dataclass(frozen=True)
class Recipe:
    name: str
    embedding: str  # of a nonzero, see encoder.EMBEDDINGS
    tokens: int  # nonzeros that the encoder sees
    d_model: int
    d_ff: int
    heads: int
    d_kv: int  # of one head
    encoder_layers: int
    decoder_layers: int
    vocabulary: int
    longest: int  # tokens of a kernel, the language token included
    dropout: float
    pretrain: Fit
    sft: Fit
    rl: Rl


def load(name_or_path: str | Path) -> Recipe:
    """The recipe models/<name>.toml, or that of a file *.toml. Raises SparsegenValueError that says what is wrong."""
    path = Path(name_or_path)
    if path.suffix != ".toml":
        path = paths.data("models") / f"{name_or_path}.toml"
    if not path.is_file():
        known = sorted(file.stem for file in paths.data("models").glob("*.toml"))
        raise SparsegenValueError(f"no recipe {name_or_path}; there are {', '.join(known)}, or give a file *.toml")
    try:
        table = tomllib.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise SparsegenValueError(f"{path.name} is not TOML: {error}") from None
    return parse({"name": path.stem, **table})


def parse(table: Mapping[str, Any]) -> Recipe:
    """A recipe out of plain values; `parse(dataclasses.asdict(recipe))` gives it back."""
    return _filled(Recipe, table, "recipe")


def _filled(kind: type, table: object, where: str) -> Any:
    if not isinstance(table, Mapping):
        raise SparsegenValueError(f"{where} is {table!r}; expected a table")
    wanted = {field.name for field in fields(kind)}
    if wanted != set(table):
        wrong = [f"misses {name}" for name in sorted(wanted - set(table))]
        wrong += [f"has {name}, which is unknown" for name in sorted(set(table) - wanted)]
        raise SparsegenValueError(f"{where} {'; '.join(wrong)}")
    hints = get_type_hints(kind)
    return kind(**{name: _value(hints[name], table[name], f"{where}.{name}") for name in wanted})


def _value(kind: type, value: object, where: str) -> Any:
    """`value` as a str, a nested table, or a number that is not negative; most ints count something: at least 1."""
    if is_dataclass(kind):
        return _filled(kind, value, where)
    if kind is str:
        sound, expected = isinstance(value, str) and value != "", "a name"
    elif kind is int:
        least = 0 if where.endswith((".warmup", ".stage_updates")) else 1
        sound, expected = type(value) is int and value >= least, f"an integer from {least} on"
    else:
        most = 1.0 if where.endswith((".dropout", ".gae")) else float("inf")
        sound, expected = type(value) in (int, float) and 0 <= value <= most, f"a number from 0 to {most:g}"  # type: ignore[operator]
    if not sound:
        raise SparsegenValueError(f"{where} = {value!r}; expected {expected}")
    return float(value) if kind is float else value  # type: ignore[arg-type]
