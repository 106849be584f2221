"""Recipes say everything, once: what is missing, unknown or of a wrong kind is one clear error."""

from __future__ import annotations

from dataclasses import asdict, replace

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
        ({"d_model": 0}, r"recipe\.d_model = 0; expected an integer from 1 on"),
        ({"d_model": 12.0}, r"recipe\.d_model = 12\.0; expected an integer"),
        ({"heads": True}, r"recipe\.heads = True"),
        ({"dropout": 1.5}, r"recipe\.dropout = 1\.5; expected a number from 0 to 1"),
        ({"dropout": "much"}, r"recipe\.dropout = 'much'"),
        ({"dropout": float("nan")}, r"recipe\.dropout = nan"),
        ({"embedding": ""}, r"recipe\.embedding = ''; expected a name"),
        ({"layers": 3}, r"recipe has layers, which is unknown"),
        ({"rl": 3}, r"recipe\.rl is 3; expected a table"),
        ({"sft": {"steps": 3}}, r"recipe\.sft misses batch; misses clip_norm"),
    ],
)
def test_what_is_wrong_is_said(change, message):
    table = asdict(recipe.load("tiny"))
    with pytest.raises(SparsegenValueError, match=message):
        recipe.parse(table | change)


def test_a_missing_field_is_said():
    table = asdict(recipe.load("tiny"))
    del table["tokens"]
    with pytest.raises(SparsegenValueError, match="recipe misses tokens"):
        recipe.parse(table)


def test_no_warmup_is_allowed():
    read = recipe.load("tiny")
    none = replace(read, rl=replace(read.rl, warmup=0))
    assert recipe.parse(asdict(none)) == none
