"""A checkpoint comes back as it was saved; what is missing, changed or made for other versions is one clear error."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict, replace
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
SIZES = recipe.sizes(asdict(TINY))
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
    assert (read.path, read.recipe) == (saved, SIZES)
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
    assert checkpoint.load(tmp_path / "elsewhere").recipe == SIZES


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


FILES = ["weights.safetensors", "tokenizer.json", "card.json"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "loop", "of /proc"])
def test_what_is_no_file_is_not_read(saved, name, kind):
    """A pipe would wait, /dev/zero has no end, and reading some files of /proc waits."""
    file = saved / name
    file.unlink()
    message = "no regular file"
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    else:
        file.symlink_to({"device": "/dev/zero", "loop": name, "of /proc": "/proc/kmsg"}[kind])
        if kind != "device":
            message = "is no checkpoint|JSON|the hash of|tokenizer is not one|no regular file"
    with pytest.raises(SparsegenValueError, match=message):
        checkpoint.load(saved)


def test_how_it_was_trained_does_not_matter_where_it_runs(saved):
    """A field of training that is new, or gone, since: the model is the same."""
    other = asdict(TINY)
    other["rl"] = {"updates": 5, "since": 7}
    del other["pretrain"]
    edited(saved, recipe=other)
    assert checkpoint.load(saved).recipe == SIZES


def test_files_may_be_links(saved, tmp_path):
    for name in FILES:
        (saved / name).rename(tmp_path / name)
        (saved / name).symlink_to(tmp_path / name)
    assert checkpoint.load(saved).recipe == SIZES


@pytest.mark.parametrize("name", FILES)
def test_what_is_too_large_is_not_read(saved, name):
    with open(saved / name, "r+b") as file:
        file.truncate(1 << 42)
    with pytest.raises(SparsegenValueError, match=rf"{name} has 4398046511104 bytes; expected at most \d+$"):
        checkpoint.load(saved)


@pytest.mark.parametrize("path", ["no\0path", "x" * 5000, "/dev/null"])
def test_what_is_no_folder_is_one_error(path):
    with pytest.raises(SparsegenValueError):
        checkpoint.load(path)


@pytest.mark.parametrize(
    "change",
    [
        {"encoder_layers": 10**9}, {"decoder_layers": 10**9}, {"longest": 2 * 10**8}, {"tokens": 10**7},
        {"d_model": "32"}, {"d_ff": 64.0}, {"heads": None}, {"vocabulary": [300]}, {"name": "../../x"},
        {"d_model": 8192, "d_ff": 32768, "encoder_layers": 128}, {"embedding": "other"},
    ],
    ids=lambda change: "-".join(change),
)  # fmt: skip
def test_hostile_sizes_are_refused_at_once(saved, change):
    edited(saved, recipe=asdict(TINY) | change)
    with pytest.raises(SparsegenValueError) as raised:
        checkpoint.load(saved)
    assert len(str(raised.value)) < 200


@pytest.mark.parametrize(
    "content",
    [
        lambda text: b"\xef\xbb\xbf" + text.encode(),
        lambda text: text.encode("utf-16"),
        lambda text: text.replace("abc", "\xe9").encode("latin-1"),
        lambda text: text.replace('"abc"', "[" * 20_000 + "]" * 20_000).encode(),
        lambda text: text.replace('"abc"', "9" * 9_000).encode(),
        lambda text: text.replace('"prelude": ', '"prelude": [[[[[[[[[]]]]]]]]], "x": ').encode(),
        lambda text: text.replace('"prelude": 1', '"prelude": true').encode(),
        lambda text: text.replace('"prelude": 1', '"prelude": "1"').encode(),
        lambda text: text.replace('"prelude": ', f'"prelude": "{"x" * 100_000}", "x": ').encode(),
    ],
)
def test_hostile_cards_are_one_error(saved, content):
    text = (saved / "card.json").read_text()
    (saved / "card.json").write_bytes(content(text))
    with pytest.raises(SparsegenValueError, match=r"card\.json of tiny-.* is not JSON|the prelude version") as raised:
        checkpoint.load(saved)
    assert len(str(raised.value)) < 300


def stored(saved: Path, change: dict[str, np.ndarray]) -> None:
    import safetensors.numpy

    content = safetensors.numpy.save(safetensors.numpy.load_file(saved / "weights.safetensors") | change)
    (saved / "weights.safetensors").write_bytes(content)
    edited(saved, weights=checkpoint._hash(content))


@pytest.mark.parametrize(
    "bias",
    [
        np.array([np.nan], np.float16), np.array([-np.inf], np.float16), np.array([0.5], np.float32),
        np.array([0.5], np.float64), np.array([3], np.int16), np.array([True]), np.array([0.5 + 1j], np.complex64),
    ],
    ids=lambda bias: f"{bias.dtype} {bias[0]}",
)  # fmt: skip
def test_weights_are_finite_halves(saved, bias):
    stored(saved, {"value.bias": bias})
    message = r"value\.bias of checkpoint tiny-.* is not made of finite fp16 numbers"
    with pytest.raises(SparsegenValueError, match=message):
        checkpoint.load(saved)


@pytest.mark.parametrize("name", FILES)
def test_any_damage_is_one_error(saved, name):
    """Also where the hashes agree with it: bytes changed, cut out and doubled, values of the card replaced."""
    rng = np.random.default_rng(7027)
    whole, card = (saved / name).read_bytes(), json.loads((saved / "card.json").read_text())
    odd = (None, True, -1, 2**70, 1e308, "", "\ud800", [], {}, [[[]]], {"": {}})
    for _ in range(60):
        content = bytearray(whole)
        at, length = int(rng.integers(min(len(whole), 9000))), int(rng.integers(1, 40))
        match rng.integers(4):
            case 0:
                content[at] = int(rng.integers(256))
            case 1:
                del content[at : at + length]
            case 2:
                content[at:at] = content[at : at + length]
            case _:
                changed = copy.deepcopy(card)
                table = [changed, changed["recipe"], changed["recipe"]["rl"]][rng.integers(3)]
                table[sorted(table)[rng.integers(len(table))]] = odd[rng.integers(len(odd))]
                content = bytearray(json.dumps(changed).encode() if name == "card.json" else whole[: at + 1])
        (saved / name).write_bytes(content)
        if name == "weights.safetensors":
            edited(saved, weights=checkpoint._hash(bytes(content)))
        if name == "tokenizer.json":
            digest = hashlib.blake2b(content.decode("utf-8", "replace").encode(), digest_size=8).hexdigest()
            edited(saved, tokenizer=digest)
        try:
            checkpoint.load(saved)
        except SparsegenError as error:
            assert len(str(error)) < 500


def test_more_weights_than_declared_are_refused_unread(saved):
    stored(saved, {"more": np.zeros(1 << 18, np.float16)})
    with pytest.raises(SparsegenValueError, match=r"weights\.safetensors has \d+ bytes; expected at most"):
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
        ({"name": "x" * 200}, "named 'xxx"),
        ({"card": [1, 2]}, r"a card that is \[1, 2\]; expected a table of seed, commit"),
        ({"card": None}, "a card that is None"),
        ({"card": CARD | {3: 4}}, "a card that is {"),
        ({"card": CARD | {"data": "x" * 2_000_000}}, r"card\.json has \d+ bytes; expected at most"),
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


def test_what_is_saved_was_loaded_and_a_damaged_one_is_not_taken_for_it(saved, tokenizer):
    (saved / "weights.safetensors").write_bytes(b"")
    with pytest.raises(SparsegenValueError, match=r"the hash of weights\.safetensors"):
        checkpoint.save(saved.parent, "tiny", TINY, tokenizer, numbers(7013), CARD)


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
