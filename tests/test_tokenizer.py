"""The text the model writes is the same kernel, shorter; tokens lose nothing; learning alone needs a library."""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from sparsegen import candidate, templates
from sparsegen.errors import SparsegenError, SparsegenTypeError, SparsegenValueError
from sparsegen.model.tokenizer import CPP, CUDA, END, LEAST, PAD, START, Tokenizer, written

ROOT = Path(__file__).resolve().parent.parent
FILES = [file for language in templates.FOLDERS for file in templates.load(language)]
INSTANCES = [one for file in FILES for one in candidate.instances(file)]
TEXTS = [written(one) for one in INSTANCES]
SIZE = 2048


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.learn(TEXTS, SIZE)


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.language}-{file.op}-{file.name}")
def test_what_is_written_is_the_same_kernel(file):
    for one in candidate.instances(file):
        text = written(one)
        assert candidate.parse(text).key == one.key
        assert candidate.parse(text).language == one.language
        assert text == written(candidate.parse(text))
        assert len(text) < len(candidate.text(one))
        lines = text.splitlines()
        assert all(line.strip() and not line.startswith("about") for line in lines)
        assert "//" not in text.split("*/")[1] and text.count("/*") == 1
        assert lines.index("[params]") < min(i for i, line in enumerate(lines) if "launch]]" in line)


def test_comments_and_splices_are_no_text():
    source = (
        '// first\nextern "C" void spmv(SIZES,\\\n CSR_ARRAYS) {\n\n    /* a\n    b */\n'
        "\tif (m) /* c */ y[0] = 1; // d \\\n still d\n#if A\n        f();\n#endif\n}\n"
    )
    head = '/* sparsegen\nop = "spmv"\nformat = "csr"\n[[launch]]\nentry = "spmv"\nitems = "m"\n*/\n'
    one = candidate.parse(head + source)
    assert written(one) == head + (
        'extern "C" void spmv(SIZES, CSR_ARRAYS) {\n if (m) y[0] = 1;\n#if A\n  f();\n#endif\n}\n'
    )
    assert candidate.parse(written(one)).key == one.key


def test_a_template_is_no_single_kernel():
    with pytest.raises(SparsegenValueError, match="csr_scalar stands for many kernels"):
        written(templates.get("csr_scalar"))


def test_kernels_are_short(tokenizer):
    lengths = [len(tokenizer.encode(text)) for text in TEXTS]
    assert 100 <= statistics.median(lengths) <= 180
    cpu = [length for length, one in zip(lengths, INSTANCES, strict=True) if one.language == "cpp"]
    assert max(cpu) < 256


def test_tokens_recombine(tokenizer):
    """A template that was not learned from is not much longer than with tokens made of it."""
    for name in ("sell_slice", "csr_vector", "bsr_row"):
        others = [text for text, one in zip(TEXTS, INSTANCES, strict=True) if one.name != name]
        stranger = Tokenizer.learn(others, SIZE)
        for one in candidate.instances(templates.get(name)):
            text = written(one)
            assert len(stranger.encode(text)) < 1.5 * len(tokenizer.encode(text))


def test_values_of_parameters_are_spelled(tokenizer):
    for text in TEXTS:
        for id in tokenizer.encode(text):
            piece = tokenizer.piece(id).decode()
            assert not piece.strip().isdigit() or len(piece.strip()) == 1
    ids = tokenizer.encode("\nSIGMA = 256\n")
    assert [tokenizer.piece(id) for id in ids[-4:]] == [b" 2", b"5", b"6", b"\n"]


def test_nothing_of_a_template_is_lost(tokenizer):
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert min(ids) > CPP
        assert b"".join(map(tokenizer.piece, ids)).decode() == text


@given(text=st.text(st.characters(codec="utf-8")) | st.text('ab_1 \n\t{};=<+*/"x\r\x00é€🙂'))
def test_nothing_of_any_text_is_lost(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_specials_say_nothing_and_are_not_found_in_text(tokenizer):
    assert START == {"cuda": CUDA, "cpp": CPP}
    assert {tokenizer.piece(id) for id in (PAD, END, CUDA, CPP)} == {b""}
    ids = tokenizer.encode(" pad end cuda cpp unused 2000")
    assert min(ids) > CPP
    assert tokenizer.decode([CPP, *ids, END, PAD]) == " pad end cuda cpp unused 2000"


def test_size_is_the_size_asked_for():
    small = Tokenizer.learn(["for (;;) {}"], 300)
    assert small.size == 300
    assert small.piece(299) == b""
    for id in (300, -1):
        with pytest.raises(SparsegenValueError, match="ids are 0 to 299"):
            small.piece(id)
    with pytest.raises(SparsegenValueError, match=str(LEAST)):
        Tokenizer.learn(["a"], LEAST - 1)


def test_it_comes_back_from_its_file(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "tokenizer.json")
    again = Tokenizer.load(tmp_path / "tokenizer.json")
    assert (again.size, again.digest) == (tokenizer.size, tokenizer.digest)
    assert again.encode(TEXTS[7]) == tokenizer.encode(TEXTS[7])
    assert Tokenizer.learn(TEXTS, SIZE).digest == tokenizer.digest
    assert Tokenizer.learn(TEXTS[:200], SIZE).digest != tokenizer.digest


@given(text=st.text('ab_1 \n\t{}();=<+*/"x\r\x00é€🙂²ß') | st.sampled_from(TEXTS))
def test_texts_are_cut_and_joined_as_by_the_library(tokenizer, text):
    theirs = tokenizers.Tokenizer.from_str(tokenizer._text)
    assert tokenizer.encode(text) == theirs.encode(text, add_special_tokens=False).ids


def test_joined_as_by_the_library_where_two_pairs_spell_the_same(tokenizer):
    """Where a later pair makes a token that an earlier one joins on, the earlier one is next, not the rest of these."""
    rng, odd = random.Random(7013), 0
    for _ in range(60):
        table = json.loads(tokenizer._text)
        words = {name: id for name, id in table["model"]["vocab"].items() if id < LEAST}
        pairs, tokens = [], list("=+-/")
        for _ in range(30):
            pair = [rng.choice(tokens), rng.choice(tokens)]
            if len("".join(pair)) < 9 and pair not in pairs:
                pairs.append(pair)
                words.setdefault("".join(pair), len(words))
                tokens = list(dict.fromkeys([*tokens, "".join(pair)]))
        table["model"] |= {"vocab": words, "merges": pairs}
        mine, theirs = Tokenizer(json.dumps(table)), tokenizers.Tokenizer.from_str(json.dumps(table))
        for _ in range(30):
            text = "".join(rng.choice("=+-/") for _ in range(rng.randrange(1, 60)))
            assert mine.encode(text) == theirs.encode(text, add_special_tokens=False).ids
        odd += any(mine._first[both] < rank for rank, both in mine._merges.values())
    assert odd


def test_long_pieces_are_joined_in_no_time(tokenizer):
    text = "\n" + " " * 100_003
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_encoding_and_decoding_need_no_library(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "tokenizer.json")
    code = (
        "import sys; sys.modules['tokenizers'] = None\n"
        "from sparsegen.model.tokenizer import Tokenizer\n"
        f"made = Tokenizer.load({str(tmp_path / 'tokenizer.json')!r})\n"
        f"print(made.decode(made.encode({TEXTS[3]!r})), end='')"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert ran.stdout == TEXTS[3]


def test_without_the_library_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(SparsegenError, match=r"sparsegen\[train\]"):
        Tokenizer.learn(TEXTS, SIZE)


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", "null", '{"model": {"vocab": {}}}', '{"model": {"vocab": {"a": 0}}}', "\ufffd", "[" * 100_000],
)
def test_another_file_is_refused(text):
    with pytest.raises(SparsegenValueError, match="Tokenizer"):
        Tokenizer(text)


def test_gaps_between_ids_are_refused(tokenizer):
    broken = json.loads(tokenizer._text)
    broken["model"]["vocab"][" more"] = tokenizer.size + 1
    with pytest.raises(SparsegenValueError, match="Tokenizer"):
        Tokenizer(json.dumps(broken))


@pytest.mark.parametrize(
    "id", ["300", 300.0, True, None, [300], 10**30, -1], ids=lambda id: f"{type(id).__name__} {str(id)[:3]}"
)
def test_ids_are_integers(tokenizer, id):
    broken = json.loads(tokenizer._text)
    last = max(broken["model"]["vocab"], key=broken["model"]["vocab"].__getitem__)
    broken["model"]["vocab"][last] = float(SIZE - 1) if id == 300.0 else 1 if id is True else id
    with pytest.raises(SparsegenValueError, match="Tokenizer"):
        Tokenizer(json.dumps(broken))


def test_pieces_are_short(tokenizer):
    broken = json.loads(tokenizer._text)
    broken["model"]["vocab"]["x" * 10_000] = tokenizer.size
    with pytest.raises(SparsegenValueError, match="Tokenizer"):
        Tokenizer(json.dumps(broken))
    assert Tokenizer.learn(["x" * 5000] * 9, 2 * LEAST).size == 2 * LEAST


def hostile(table: dict, change: str) -> None:
    split = table["pre_tokenizer"]["pretokenizers"][0]
    match change:
        case "pattern":
            split["pattern"]["Regex"] = "(a|a)*$"  # takes forever
        case "normalizer":
            table["pre_tokenizer"] = None
        case "unknown":
            table["model"]["merges"].append(["nothing", "known"])
        case "odd":
            table["model"]["merges"] = 3
        case "triple":
            table["model"]["merges"][0] = ["a", "b", "c"]
        case "missing":
            del table["model"]["merges"]


@pytest.mark.parametrize("change", ["pattern", "normalizer", "unknown", "odd", "triple", "missing"])
def test_a_file_that_was_not_learned_decodes_and_does_not_encode(tokenizer, change):
    table = json.loads(tokenizer._text)
    hostile(table, change)
    read = Tokenizer(json.dumps(table))
    assert read.decode([300, 301]) == tokenizer.decode([300, 301])
    with pytest.raises(SparsegenValueError, match="the tokenizer cannot encode"):
        read.encode("a" * 50 + "b")


def test_only_files_of_a_size_are_read(tmp_path):
    with open(tmp_path / "large.json", "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(SparsegenValueError, match="bytes; expected at most"):
        Tokenizer.load(tmp_path / "large.json")
    with pytest.raises(SparsegenValueError, match="no regular file"):
        Tokenizer.load("/dev/zero")


def test_what_is_no_text_is_refused(tokenizer):
    with pytest.raises(SparsegenTypeError, match="bytes"):
        tokenizer.encode(b"a")
    with pytest.raises(SparsegenValueError, match="UTF-8"):
        tokenizer.encode("\ud800")
