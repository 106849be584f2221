"""A trained generator on disk: models/<name>-<hash>/ with weights.safetensors (fp16), tokenizer.json and card.json.

The card says what the model was made of and what it was made for: its recipe, seed, commit, data and evaluation as the
trainer gives them, and the versions of everything its texts and inputs depend on. A checkpoint for another prelude,
grammar, tokenizer or encoder is refused. The hash is the card's, and the card holds those of the other files.

A folder may be anybody's: what is read is bounded before it is read, and nothing in it is run.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import reprlib
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sparsegen import paths, prelude
from sparsegen.errors import SparsegenError, SparsegenValueError
from sparsegen.model import decoder, encoder, statistics
from sparsegen.model import recipe as recipes
from sparsegen.model.decoder import Decoder
from sparsegen.model.recipe import Recipe, Sizes
from sparsegen.model.tokenizer import MOST_BYTES as MOST_TOKENIZER
from sparsegen.model.tokenizer import Tokenizer

WEIGHTS, TOKENIZER, CARD = "weights.safetensors", "tokenizer.json", "card.json"
MOST_CARD = 1 << 20  # bytes
GIVEN = ("seed", "commit", "data", "evaluation", "grammar")  # what a trainer says in a card
MADE = ("recipe", "prelude", "encoder", "tokenizer", "weights")  # what is added to it


@dataclass(frozen=True)
class Checkpoint:
    path: Path
    recipe: Sizes
    tokenizer: Tokenizer
    decoder: Decoder
    card: Mapping[str, Any]


def save(
    folder: str | Path,
    name: str,
    recipe: Recipe,
    tokenizer: Tokenizer,
    weights: Mapping[str, np.ndarray],
    card: Mapping[str, Any],
    grammar: int | None = None,
) -> Path:
    """Write <folder>/<name>-<hash>/ and return it: complete, such that `load` takes it, or not there at all.

    card: JSON values by name, GIVEN among them. grammar: the version that it must be of. Raises SparsegenValueError
    when weights, tokenizer and recipe do not belong together, a weight is not a number that fp16 holds, or the card
    lacks something.
    """
    if not recipes.NAME.fullmatch(name):
        raise SparsegenValueError(f"a checkpoint named {name!r}; expected small letters, digits and underscores")
    if not isinstance(card, Mapping) or not all(isinstance(key, str) for key in card):
        raise SparsegenValueError(f"a card that is {reprlib.repr(card)}; expected a table of {', '.join(GIVEN)}")
    if missing := sorted(set(GIVEN) - set(card)):
        raise SparsegenValueError(f"a card without {', '.join(missing)}; expected {', '.join(GIVEN)}")
    if taken := sorted(set(MADE) & set(card)):
        raise SparsegenValueError(f"a card with {', '.join(taken)}, which save writes itself")
    decoder.check(weights, recipe)
    _same("the tokenizer's size", tokenizer.size, recipe.vocabulary)
    with np.errstate(over="ignore"):
        halves = {key: np.ascontiguousarray(array, np.float16) for key, array in weights.items()}
    if wrong := sorted(key for key, array in halves.items() if not np.isfinite(array).all()):
        raise SparsegenValueError(f"{wrong[0]} has values that fp16 does not hold; train again, or with a lower rate")
    stored = _safetensors().save(halves)
    made = {
        "recipe": asdict(recipe),
        "prelude": prelude.VERSION,
        "encoder": reads(recipe),
        "tokenizer": tokenizer.digest,
        "weights": _hash(stored),
    }
    try:
        text = json.dumps({**card, **made}, indent=1, sort_keys=True, allow_nan=False) + "\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise SparsegenValueError(f"the card is not JSON: {error}") from None
    path = Path(folder) / f"{name}-{_hash(text.encode())}"
    if path.is_dir():
        load(path, grammar)
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".saving-") as unfinished:
        part = Path(unfinished) / path.name
        part.mkdir()
        (part / WEIGHTS).write_bytes(stored)
        tokenizer.save(part / TOKENIZER)
        (part / CARD).write_text(text, "utf-8")
        load(part, grammar)
        os.replace(part, path)
    return path


def load(path: str | Path, grammar: int | None = None) -> Checkpoint:
    """Read what `save` wrote. grammar: the version to insist on.

    Raises SparsegenError, in one sentence, when it is not complete, not intact, or made for other versions than those
    of this package.
    """
    path = Path(path)
    content = _read(path, CARD, MOST_CARD)
    try:
        card = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise SparsegenValueError(f"{CARD} of {path.name} is not JSON: {error}") from None
    if not isinstance(card, dict) or (missing := sorted({*GIVEN, *MADE} - set(card))):
        lacks = ", ".join(missing) if isinstance(card, dict) else "everything"
        raise SparsegenValueError(f"{CARD} of {path.name} lacks {lacks}; save the checkpoint again")
    recipe = recipes.sizes(card["recipe"])
    of = f"of checkpoint {path.name}"
    _same(f"the prelude version {of}", card["prelude"], prelude.VERSION)
    if grammar is not None:
        _same(f"the grammar version {of}", card["grammar"], grammar)
    _same(f"the encoder {of}", card["encoder"], reads(recipe))
    wanted = decoder.shapes(recipe)
    most = sum(2 * math.prod(shape) + 256 for shape in wanted.values()) + 4096  # each with its line of the file's head
    stored = _read(path, WEIGHTS, most)
    _same(f"the hash of {WEIGHTS} {of}", _hash(stored), card["weights"])
    tokenizer = Tokenizer(_read(path, TOKENIZER, MOST_TOKENIZER).decode("utf-8", "replace"))
    _same(f"the hash of {TOKENIZER} {of}", tokenizer.digest, card["tokenizer"])
    _same(f"the tokenizer's size {of}", tokenizer.size, recipe.vocabulary)
    library = _safetensors()
    try:
        weights = library.load(stored)
    except Exception as error:  # the library has an exception of its own, and passes on others
        raise SparsegenValueError(f"{WEIGHTS} {of} is not in the safetensors format: {str(error)[:200]}") from None
    for key, array in weights.items():
        if array.dtype != np.float16 or not np.isfinite(array).all():
            raise SparsegenValueError(f"{key[:80]} {of} is not made of finite fp16 numbers; save the checkpoint again")
    return Checkpoint(path, recipe, tokenizer, Decoder(recipe, weights), card)


def default(grammar: int | None = None) -> Checkpoint | str:
    """The shipped checkpoint, named by the one line of models/default; else, in one sentence, why there is none."""
    file = paths.data("models") / "default"
    try:
        name = paths.read(file, 1 << 10).decode("utf-8").strip()
    except (OSError, ValueError):
        return "no checkpoint is shipped: models/default cannot be read"
    if not re.fullmatch(r"[a-z0-9_]+-[0-9a-f]+", name):
        return f"models/default holds {name[:60]!r}, which is no name of a checkpoint"
    try:
        return load(file.with_name(name), grammar)
    except SparsegenError as error:
        return str(error)


def reads(recipe: Sizes) -> str:
    """A hash of what the inputs of a model mean: condition words, statistics, and the width of the embedding."""
    meanings = [encoder.CONDITIONS, statistics.NAMES, recipe.embedding, encoder.width(recipe.embedding)]
    return _hash(json.dumps(meanings).encode())


def _same(what: str, got: object, expected: object) -> None:
    if got != expected or type(got) is not type(expected):
        shown = reprlib.repr(got)
        raise SparsegenValueError(f"{what} is {shown}; expected {expected!r}; train it again, or use its sparsegen")


def _read(path: Path, name: str, most: int) -> bytes:
    try:
        return paths.read(path / name, most)
    except OSError as error:
        raise SparsegenValueError(f"{path} is no checkpoint: {name}: {error.strerror}") from None


def _hash(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=6).hexdigest()


def _safetensors() -> Any:
    try:
        import safetensors.numpy
    except ImportError:
        raise SparsegenError("a checkpoint needs the safetensors library; pip install safetensors") from None
    return safetensors.numpy
