"""A model's sizes and how it is trained: models/<name>.toml, one dial for everything that grows with the model."""

from __future__ import annotations

import re
import reprlib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

from sparsegen import paths
from sparsegen.errors import SparsegenValueError

NAME = re.compile(r"[a-z0-9_]{1,40}")  # also that of the folder of a checkpoint
MOST_BYTES = 1 << 16  # of a file
MOST = {  # far above what is trained today; a recipe may come with somebody else's checkpoint
    "tokens": 1 << 12, "d_model": 1 << 13, "d_ff": 1 << 15, "heads": 1 << 7, "d_kv": 1 << 10,
    "encoder_layers": 1 << 7, "decoder_layers": 1 << 7, "vocabulary": 1 << 16, "longest": 1 << 13,
    "batch": 1 << 16, "problems": 1 << 16, "group": 1 << 12, "epochs": 1 << 12, "top_k": 1 << 16,
}  # fmt: skip
MOST_COUNT, MOST_NUMBER = 10**9, 1e6  # of other integers, and of all that are none
MOST_WEIGHTS = 1 << 30
MOST_HELD = 1 << 26  # numbers that one text or one problem takes beside them


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
class Sizes:
    """What is needed of a recipe to run a model."""

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


@dataclass(frozen=True)
class Recipe(Sizes):
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
    content = paths.read(path, MOST_BYTES)
    try:
        table = tomllib.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise SparsegenValueError(f"{path.name} is not TOML: {error}") from None
    return parse({"name": path.stem, **table})


def parse(table: Mapping[str, Any]) -> Recipe:
    """A recipe out of plain values; `parse(dataclasses.asdict(recipe))` gives it back."""
    recipe = _filled(Recipe, table, "recipe")
    _bound(recipe)
    return recipe


def sizes(table: object) -> Sizes:
    """The sizes out of a recipe of any version: how a model was trained does not matter where it runs."""
    names = {field.name for field in fields(Sizes)}
    some = {name: value for name, value in table.items() if name in names} if isinstance(table, Mapping) else table
    found = _filled(Sizes, some, "recipe")
    _bound(found)
    return found


def _bound(recipe: Sizes) -> None:
    inner, both = recipe.heads * recipe.d_kv, recipe.encoder_layers + recipe.decoder_layers
    rows = 2 * recipe.vocabulary + 4 * inner * (both + recipe.decoder_layers) + 3 * recipe.d_ff * both
    for what, count, most in (
        ("weights", rows * recipe.d_model, MOST_WEIGHTS),
        ("keys of one text", recipe.decoder_layers * inner * recipe.longest, MOST_HELD),
        ("scores of the nonzeros of one problem", recipe.heads * recipe.tokens**2, MOST_HELD),
    ):
        if count > most:
            raise SparsegenValueError(f"recipe {recipe.name} stands for {count} {what}; expected at most {most}")


def _filled(kind: type, table: object, where: str) -> Any:
    if not isinstance(table, Mapping):
        raise SparsegenValueError(f"{where} is {_shown(table)}; expected a table")
    wanted = {field.name for field in fields(kind)}
    if wanted != set(table):
        wrong = [f"misses {name}" for name in sorted(wanted - set(table))]
        wrong += [f"has {name[:40]}, which is unknown" for name in sorted(set(table) - wanted)]
        raise SparsegenValueError(f"{where} {'; '.join(wrong[:3])}")
    hints = get_type_hints(kind)
    return kind(**{name: _value(hints[name], table[name], f"{where}.{name}") for name in wanted})


def _value(kind: type, value: object, where: str) -> Any:
    """`value` as a str, a nested table, or a number that is not negative; most ints count something: at least 1."""
    field = where.rpartition(".")[2]
    if is_dataclass(kind):
        return _filled(kind, value, where)
    if kind is str:
        sound = isinstance(value, str) and NAME.fullmatch(value) is not None
        expected = "a name of at most 40 small letters, digits and underscores"
    elif kind is int:
        least, most = int(field not in ("warmup", "stage_updates")), MOST.get(field, MOST_COUNT)
        sound, expected = type(value) is int and least <= value <= most, f"an integer from {least} to {most}"
    else:
        limit = 1.0 if field in ("dropout", "gae") else MOST_NUMBER
        sound, expected = type(value) in (int, float) and 0 <= value <= limit, f"a number from 0 to {limit:g}"  # type: ignore[operator]
    if not sound:
        raise SparsegenValueError(f"{where} = {_shown(value)}; expected {expected}")
    return float(value) if kind is float else value  # type: ignore[arg-type]


def _shown(value: object) -> str:
    try:
        return reprlib.repr(value)
    except ValueError:  # what Python says of thousands of digits
        return "a number of thousands of digits"
