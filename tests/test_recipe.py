"""Recipes say everything, once: what is missing, unknown or of a wrong kind is one clear error."""

from __future__ import annotations

from dataclasses import asdict, fields, replace

import pytest

from sparsegen import paths
from sparsegen.errors import SparsegenValueError
from sparsegen.model import recipe

NAMES = sorted(file.stem for file in paths.data("models").glob("*.toml"))


@pytest.mark.parametrize("name", NAMES)
def test_recipes_load_and_come_back(name):
    read = recipe.load(name)
    assert read.name == name
    assert recipe.parse(asdict(read)) == read
    assert recipe.load(paths.data("models") / f"{name}.toml") == read
    assert all(type(value) is float for value in (read.dropout, read.rl.kl, read.sft.weight_decay))


def test_small_and_tiny_are_there():
    assert {"small", "tiny"} <= set(NAMES)
    small, tiny = recipe.load("small"), recipe.load("tiny")
    assert (small.d_model, small.heads, small.d_kv, small.vocabulary) == (192, 4, 48, 2048)
    assert tiny.d_model < small.d_model


def test_an_unknown_name_lists_the_known():
    with pytest.raises(SparsegenValueError, match=r"no recipe huge; there are .*small, tiny"):
        recipe.load("huge")
    with pytest.raises(SparsegenValueError, match="no recipe"):
        recipe.load("huge.toml")


def test_what_is_no_toml_is_said(tmp_path):
    (tmp_path / "odd.toml").write_text("d_model = = 3")
    with pytest.raises(SparsegenValueError, match=r"odd\.toml is not TOML"):
        recipe.load(tmp_path / "odd.toml")
    (tmp_path / "odd.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(SparsegenValueError, match=r"odd\.toml is not TOML"):
        recipe.load(tmp_path / "odd.toml")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"d_model": 0}, r"recipe\.d_model = 0; expected an integer from 1 to 8192"),
        ({"d_model": 12.0}, r"recipe\.d_model = 12\.0; expected an integer"),
        ({"heads": True}, r"recipe\.heads = True"),
        ({"dropout": 1.5}, r"recipe\.dropout = 1\.5; expected a number from 0 to 1"),
        ({"dropout": "much"}, r"recipe\.dropout = 'much'"),
        ({"dropout": float("nan")}, r"recipe\.dropout = nan"),
        ({"embedding": ""}, r"recipe\.embedding = ''; expected a name"),
        ({"layers": 3}, r"recipe has layers, which is unknown"),
        ({"rl": 3}, r"recipe\.rl is 3; expected a table"),
        ({"sft": {"steps": 3}}, r"recipe\.sft misses batch; misses clip_norm"),
        ({"encoder_layers": 10**9}, r"recipe\.encoder_layers = 1000000000; expected an integer from 1 to 128$"),
        ({"longest": 2 * 10**8}, r"recipe\.longest = 200000000; expected an integer from 1 to 8192"),
        ({"tokens": 10**7}, r"recipe\.tokens = 10000000; expected an integer from 1 to 4096"),
        ({"tokens": 16**5000}, r"recipe\.tokens = a number of thousands of digits; expected"),
        ({"tokens": "16"}, r"recipe\.tokens = '16'; expected an integer"),
        ({"dropout": 10**400}, r"recipe\.dropout = 10+\.\.\.0+; expected a number from 0 to 1"),
        ({"name": "../tiny"}, r"recipe\.name = '\.\./tiny'; expected a name"),
        ({"name": "x" * 10**6}, r"recipe\.name = 'x+\.\.\.x+'; expected a name of at most 40"),
        ({"x" * 10**6: 3}, "recipe has x{40}, which is unknown$"),
        ({"rl": [[[[[[[[[3]]]]]]]]]}, r"recipe\.rl is \[\[\[\[\[\[\[\.\.\.\]+; expected a table"),
        ({"d_model": 8192, "d_ff": 32768, "encoder_layers": 128}, r"recipe tiny stands for \d+ weights; expected"),
        ({"d_kv": 1024, "heads": 128, "longest": 4096}, r"recipe tiny stands for \d+ keys of one text; expected"),
        ({"heads": 128, "tokens": 4096}, r"recipe tiny stands for \d+ scores of the nonzeros"),
    ],
)
def test_what_is_wrong_is_said(change, message):
    table = asdict(recipe.load("tiny"))
    with pytest.raises(SparsegenValueError, match=message):
        recipe.parse(table | change)


@pytest.mark.parametrize("field", [each.name for each in fields(recipe.Recipe) if each.type == "int"])
def test_no_integer_is_without_an_end(field):
    with pytest.raises(SparsegenValueError, match=rf"recipe\.{field} = .* expected an integer from 1 to \d+$"):
        recipe.parse(asdict(recipe.load("tiny")) | {field: 10**12})


@pytest.mark.parametrize("stage", ["pretrain", "sft", "rl"])
def test_no_number_of_a_stage_is_without_an_end(stage):
    table = asdict(recipe.load("tiny"))
    for field in table[stage]:
        with pytest.raises(SparsegenValueError, match=rf"recipe\.{stage}\.{field} = 1e\+?30|{10**30}"):
            recipe.parse(table | {stage: table[stage] | {field: type(table[stage][field])(10**30)}})


def test_a_model_of_a_gpu_is_allowed():
    table = asdict(recipe.load("small"))
    base = {"d_model": 768, "d_ff": 2048, "heads": 12, "d_kv": 64, "encoder_layers": 12, "decoder_layers": 12}
    large = {"d_model": 1024, "d_ff": 2816, "heads": 16, "d_kv": 64, "encoder_layers": 24, "decoder_layers": 24}
    for sizes in (base, large):
        assert recipe.parse(table | sizes | {"vocabulary": 32_000, "tokens": 2048, "longest": 2048})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"tokens = " + b"[" * 5000 + b"]" * 5000, "is not TOML"),
        (b"\xef\xbb\xbftokens = 16", "is not TOML"),
        (b"tokens = 0x" + b"f" * 9000, r"recipe misses"),
        (b"#" * 10**6, "has 1000000 bytes; expected at most"),
    ],
)
def test_hostile_files_are_one_error(tmp_path, content, message):
    (tmp_path / "odd.toml").write_bytes(content)
    with pytest.raises(SparsegenValueError, match=message) as raised:
        recipe.load(tmp_path / "odd.toml")
    assert len(str(raised.value)) < 300


def test_what_is_no_file_is_not_read(tmp_path):
    (tmp_path / "odd.toml").symlink_to("/dev/zero")
    with pytest.raises(SparsegenValueError, match="no recipe"):
        recipe.load(tmp_path / "odd.toml")


def test_a_missing_field_is_said():
    table = asdict(recipe.load("tiny"))
    del table["tokens"]
    with pytest.raises(SparsegenValueError, match="recipe misses tokens"):
        recipe.parse(table)


def test_no_warmup_is_allowed():
    read = recipe.load("tiny")
    none = replace(read, rl=replace(read.rl, warmup=0))
    assert recipe.parse(asdict(none)) == none
