"""A checkpoint comes back as it was saved; what is missing, changed or made for other versions is one clear error."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sparsegen import paths, prelude
from sparsegen.errors import SparsegenError, SparsegenValueError
from sparsegen.model import checkpoint, decoder, encoder, recipe, statistics
from sparsegen.model.tokenizer import CPP, Tokenizer

pytest.importorskip("tokenizers")
ROOT = Path(__file__).resolve().parent.parent
TINY = replace(recipe.load("tiny"), vocabulary=300)
CARD = {"seed": 7013, "commit": "abc", "data": {"texts": 3}, "evaluation": {"loss": 1.5}, "grammar": 3}


def numbers(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in decoder.shapes(TINY).items()}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.learn(["for (int64_t p = begin; p < end; ++p) {}"], TINY.vocabulary)


@pytest.fixture
def saved(tmp_path, tokenizer) -> Path:
    return checkpoint.save(tmp_path / "models", "tiny", TINY, tokenizer, numbers(7013), CARD)


def test_it_comes_back(saved, tokenizer):
    read = checkpoint.load(saved, grammar=3)
    assert (read.path, read.recipe) == (saved, TINY)
    assert read.tokenizer.digest == tokenizer.digest
    assert {name: read.card[name] for name in CARD} == CARD
    assert read.card["prelude"] == prelude.VERSION
    rounded = {name: array.astype(np.float16) for name, array in numbers(7013).items()}
    batch = encoder.Batch(
        np.array([[1, 2]]),
        np.ones((1, len(statistics.NAMES), statistics.STATISTIC), np.float32),
        np.zeros((1, 0, encoder.width(TINY.embedding)), np.float32),
        np.ones((1, 2 + len(statistics.NAMES)), bool),
    )
    first, second = (
        model.step(model.start(model.remember(batch), np.array([0])), np.array([CPP]))
        for model in (read.decoder, decoder.Decoder(TINY, rounded))
    )
    np.testing.assert_array_equal(first, second)
    assert np.ptp(first) > 0


def test_its_files_and_name(saved, tmp_path, tokenizer):
    assert {file.name for file in saved.iterdir()} == {"weights.safetensors", "tokenizer.json", "card.json"}
    assert saved.name.startswith("tiny-")
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]
    count = sum(array.size for array in numbers(7013).values())
    assert 2 * count < (saved / "weights.safetensors").stat().st_size < 2 * count + 20_000

    def again(seed: int, card: dict) -> Path:
        return checkpoint.save(tmp_path / "models", "tiny", TINY, tokenizer, numbers(seed), card)

    assert again(7013, CARD) == saved
    assert len({saved, again(7019, CARD), again(7013, CARD | {"seed": 7019})}) == 3


def test_it_may_be_moved(saved, tmp_path):
    shutil.move(saved, tmp_path / "elsewhere")
    assert checkpoint.load(tmp_path / "elsewhere").recipe == TINY


def edited(saved: Path, **changes: object) -> None:
    card = json.loads((saved / "card.json").read_text())
    (saved / "card.json").write_text(json.dumps(card | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prelude": prelude.VERSION + 1}, f"the prelude version of .* is {prelude.VERSION + 1}; expected"),
        ({"grammar": 4}, "the grammar version of checkpoint tiny-.* is 4; expected 3"),
        ({"tokenizer": "0" * 16}, r"the hash of tokenizer\.json of checkpoint tiny-"),
        ({"weights": "0" * 12}, r"the hash of weights\.safetensors of checkpoint tiny-"),
        ({"encoder": "0" * 12}, "the encoder of checkpoint tiny-.*; expected '"),
        ({"recipe": {}}, "recipe misses d_ff"),
        ({"recipe": None}, "recipe is None; expected a table"),
    ],
)
def test_other_versions_are_refused(saved, changes, message):
    edited(saved, **changes)
    with pytest.raises(SparsegenValueError, match=message):
        checkpoint.load(saved, grammar=3)


def test_a_grammar_is_insisted_on_by_who_has_one(saved):
    assert checkpoint.load(saved).card["grammar"] == 3


def test_another_meaning_of_the_inputs_is_refused(saved, monkeypatch):
    words = encoder.CONDITIONS
    monkeypatch.setattr(encoder, "CONDITIONS", (words[0], words[2], words[1], *words[3:]))
    with pytest.raises(SparsegenValueError, match="the encoder of checkpoint"):
        checkpoint.load(saved)


@pytest.mark.parametrize("name", ["weights.safetensors", "tokenizer.json", "card.json"])
def test_what_is_missing_or_damaged_is_refused(saved, name):
    whole = (saved / name).read_bytes()
    for content in (b"", whole[:-7], b"\xff" * len(whole), b"[]", b"[" * 100_000):
        (saved / name).write_bytes(content)
        with pytest.raises(SparsegenValueError, match=r"tokenizer is not one|card\.json of|the hash of"):
            checkpoint.load(saved)
    (saved / name).unlink()
    with pytest.raises(SparsegenValueError, match=f"is no checkpoint: {name}: No such file"):
        checkpoint.load(saved)


@pytest.mark.parametrize("content", [b"", b"\x08\0\0\0\0\0\0\0{}", b"\xff" * 64, b"\x02\0\0\0\0\0\0\0{}"])
def test_weights_that_are_none_are_refused(saved, content):
    (saved / "weights.safetensors").write_bytes(content)
    edited(saved, weights=checkpoint._hash(content))
    with pytest.raises(SparsegenValueError, match=r"is not in the safetensors format|weights without"):
        checkpoint.load(saved)


def test_weights_of_another_shape_are_refused(saved, tokenizer):
    import safetensors.numpy

    weights = safetensors.numpy.load_file(saved / "weights.safetensors")
    weights["value.bias"] = np.zeros(2, np.float16)
    content = safetensors.numpy.save(weights)
    (saved / "weights.safetensors").write_bytes(content)
    edited(saved, weights=checkpoint._hash(content))
    with pytest.raises(SparsegenValueError, match=r"value\.bias is \(2,\)"):
        checkpoint.load(saved)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "../tiny"}, "named '../tiny'"),
        ({"card": {"seed": 3}}, "a card without commit, data, evaluation, grammar"),
        ({"card": CARD | {"prelude": 1}}, "a card with prelude, which save writes itself"),
        ({"card": CARD | {"data": {3, 4}}}, "the card is not JSON"),
        ({"card": CARD | {"data": float("nan")}}, "the card is not JSON"),
        ({"recipe": replace(TINY, vocabulary=301)}, r"is \(300, 32\); recipe tiny has \(301, 32\)"),
        ({"weights": numbers(7013) | {"value.bias": np.array([7e4])}}, r"value\.bias has values that fp16"),
        ({"weights": numbers(7013) | {"value.bias": np.array([np.nan])}}, r"value\.bias has values that fp16"),
    ],
)
def test_what_cannot_be_saved_is_refused(tmp_path, tokenizer, change, message):
    arguments = {"name": "tiny", "recipe": TINY, "tokenizer": tokenizer, "weights": numbers(7013), "card": CARD}
    with pytest.raises(SparsegenValueError, match=message):
        checkpoint.save(tmp_path, **(arguments | change))
    assert list(tmp_path.iterdir()) == []


def test_another_tokenizer_is_refused(tmp_path):
    small = Tokenizer.learn(["a"], 299)
    with pytest.raises(SparsegenValueError, match="the tokenizer's size is 299; expected 300"):
        checkpoint.save(tmp_path, "tiny", TINY, small, numbers(7013), CARD)


@pytest.fixture
def models(saved, monkeypatch) -> Path:
    monkeypatch.setattr(paths, "data", lambda folder: saved.parent if folder == "models" else ROOT / folder)
    return saved.parent


def test_the_default_is_what_the_file_names(models, saved):
    assert checkpoint.default() == "no checkpoint is shipped: models/default cannot be read"
    (models / "default").write_text(f"{saved.name}\n")
    found = checkpoint.default(3)
    assert isinstance(found, checkpoint.Checkpoint) and found.path == saved
    assert "the grammar version" in str(checkpoint.default(4))
    for line, reason in (
        ("tiny-0123456789ab", "is no checkpoint: card.json"),
        ("../tiny", "no name of a checkpoint"),
        ("", "no name of a checkpoint"),
        ("x" * 500, "no name of a checkpoint"),
    ):
        (models / "default").write_text(line)
        said = checkpoint.default()
        assert isinstance(said, str) and reason in said
        assert "\n" not in said and len(said) < 300


def test_without_the_library_it_says_what_to_install(models, saved, monkeypatch):
    (models / "default").write_text(saved.name)
    monkeypatch.setitem(sys.modules, "safetensors", None)
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    assert checkpoint.default() == "a checkpoint needs the safetensors library; pip install safetensors"
    with pytest.raises(SparsegenError, match="pip install safetensors"):
        checkpoint.load(saved)


def test_loading_needs_neither_torch_nor_tokenizers(saved):
    code = (
        "import sys; from sparsegen.model import checkpoint\n"
        f"checkpoint.load({str(saved)!r}).tokenizer.decode([70, 80])\n"
        "print(sorted({'torch', 'transformers', 'tokenizers'} & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert ran.stdout.strip() == "[]"


def test_an_interrupted_save_leaves_no_checkpoint(tmp_path, tokenizer, monkeypatch):
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", stop)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.save(tmp_path, "tiny", TINY, tokenizer, numbers(7013), CARD)
    monkeypatch.undo()
    assert not list(tmp_path.glob("tiny-*"))
    path = checkpoint.save(tmp_path, "tiny", TINY, tokenizer, numbers(7013), CARD)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
