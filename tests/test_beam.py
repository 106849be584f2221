"""The beam: different headers, the likeliest first, each with its likeliest legal body."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from playback import FIRST, SIZE, Characters, Mixture
from support import problem_of, template

from sparsegen import gallery, templates
from sparsegen.candidate import instances
from sparsegen.errors import SparsegenValueError
from sparsegen.model import decoder as decoders
from sparsegen.model import encoder, guesses, recipe
from sparsegen.model.beam import beam
from sparsegen.model.grammar import Grammar
from sparsegen.model.sample import sample
from sparsegen.model.tokenizer import CPP, END, written

PROBLEM = problem_of(gallery.small()["stencil2d"], facts=None)
OTHER = problem_of(gallery.banded(211, 211, [-3, 0, 1]), facts=None)
SCALAR = written(template("csr_scalar", values="full"))
VECTOR = written(template("csr_vector", values="full"))
SLICES = {size: written(template("sell_slice", SLICE=size, SIGMA=1, BITS=32, values="full")) for size in (8, 16)}
SURE = 40.0


def searched(decoder, count: int, problems=(PROBLEM,), tokenizer=None, **options):
    structures = [encoder.encode(each, tokens=16) for each in problems]
    grammars = [Grammar(each) for each in problems]
    return beam(decoder, tokenizer or Characters(), structures, grammars, count, **options)


def found(texts: list[str], weights: list[float], count: int, **options) -> list:
    (group,) = searched(Mixture(texts, weights, sure=SURE), count, **options)
    return group


def header(text: str) -> str:
    return text.partition("*/")[0]


def test_the_likeliest_header_comes_first_where_greedy_takes_another():
    """sell is likelier than csr, but csr is likelier than either header of sell."""
    texts, weights = [SLICES[8], SLICES[16], SCALAR], [0.35, 0.25, 0.4]
    decoder = Mixture(texts, weights, sure=SURE)
    structure = encoder.encode(PROBLEM, tokens=16)
    ((greedy,),) = sample(decoder, Characters(), [structure], ["cpp"], [1], top_k=1)
    assert greedy.text == SLICES[8]
    group = found(texts, weights, 3)
    assert [each.text for each in group] == [SCALAR, SLICES[8], SLICES[16]]
    for each, weight in zip(group, (0.4, 0.35, 0.25), strict=True):
        assert each.finished and each.stopped == ""
        assert each.tokens == [*Characters().encode(each.text), END]
        assert len(each.logprobs) == len(each.tokens)
        assert sum(each.logprobs[: len(header(each.text)) + 2]) == pytest.approx(np.log(weight), abs=1e-4)


def test_of_equal_headers_one_is_written_with_its_likeliest_body():
    assert header(SCALAR) == header(VECTOR)
    group = found([SCALAR, SLICES[8], VECTOR], [0.3, 0.25, 0.45], 4)
    assert [each.text for each in group] == [VECTOR, SLICES[8]]
    group = found([SCALAR, SLICES[8], VECTOR], [0.31, 0.4, 0.29], 4)  # the header has 0.6, whatever the body
    assert [each.text for each in group] == [SCALAR, SLICES[8]]
    group = found([SCALAR, SLICES[8], VECTOR], [0.22, 0.6, 0.18], 4)
    assert [each.text for each in group] == [SLICES[8], SCALAR]


WORDS = {FIRST + 150: b"fo", FIRST + 151: b"rmat", FIRST + 152: b"form", FIRST + 153: b"at", FIRST + 154: b"csr"}


class Spelled(Characters):
    """Some words have tokens of their own as well."""

    def piece(self, id: int) -> bytes:
        return WORDS.get(id) or super().piece(id)

    def spelled(self, text: str, *ids: int) -> list[int]:
        """The text with its first occurrence of what the ids say in those tokens."""
        before, _, after = text.partition(self.decode(ids))
        return [*self.encode(before), *ids, *self.encode(after), END]


def test_one_header_in_other_tokens_is_not_another():
    """With room for two, the second spelling of csr would push sell out of the beam."""
    tokenizer = Spelled()
    decoder = Mixture(["", "", ""], [0.4, 0.35, 0.25], sure=SURE)
    one, other = (FIRST + 150, FIRST + 151), (FIRST + 152, FIRST + 153)
    decoder.texts = [tokenizer.spelled(SCALAR, *one), tokenizer.spelled(SCALAR, *other)]
    decoder.texts.append(tokenizer.spelled(SLICES[8], *one))
    (group,) = searched(decoder, 2, tokenizer=tokenizer, width=2)
    assert [each.text for each in group] == [SCALAR, SLICES[8]]
    decoder.texts[1] = tokenizer.spelled(SCALAR, FIRST + 154)  # shorter, so it is closed earlier
    decoder.weights = [0.5, 0.3, 0.2]
    (group,) = searched(decoder, 3, tokenizer=tokenizer)
    assert [each.text for each in group] == [SCALAR, SLICES[8]]
    assert len(group[0].tokens) == len(SCALAR) + 1 - 4  # the likelier: fo, rmat


def test_a_body_goes_on_with_what_is_legal():
    hostile = SCALAR.replace("ACC sum = 0;", "ACC sum = $;")
    group = found([hostile, SCALAR], [0.9, 0.1], 2)
    assert [each.text for each in group] == [SCALAR]
    assert group[0].finished


def test_why_texts_end():
    typo = SCALAR.replace("indptr[row + 1]", "indptr[row + 1)")
    wrong = SLICES[8].replace("vector sum = {};", "vector sum = x;")  # the screen says so, when all is written
    stuck = 'int main() { return system("x"); }'
    group = found([typo, wrong, SLICES[16]], [0.5, 0.3, 0.2], 3)
    assert [each.finished for each in group] == [False, False, True]
    assert group[0].stopped.startswith("hopeless: no likely token") and "indptr[row + 1" in group[0].stopped
    assert group[0].text == typo[: typo.index("1)") + 1]
    assert group[1].stopped.startswith("hopeless") and group[1].text == wrong
    (alone,) = found([stuck], [1.0], 3)
    assert (alone.text, alone.finished) == ("", False) and alone.stopped.startswith("hopeless")
    half = "/* sparsegen\n" + 'op = "spmv"\nformat = "nowhere"'
    group = found([half, SCALAR], [0.6, 0.4], 3)  # there is a legal way on, if not for that text
    assert [each.text for each in group] == [SCALAR]


@pytest.mark.parametrize("longest", [17, len(SCALAR) - 30])
def test_texts_that_are_too_long(longest):
    assert len(header(SCALAR)) in range(30, len(SCALAR) - 30)
    (each,) = found([SCALAR], [1.0], 2, longest=longest)
    assert (each.text, each.finished, each.stopped) == (SCALAR[:longest], False, "too long")
    (group,) = searched(Mixture([SCALAR], sure=SURE, longest=longest), 2)
    assert [each.stopped for each in group] == ["too long"]
    (whole,) = found([SCALAR], [1.0], 2, longest=len(SCALAR) + 1)
    assert whole.finished


def test_out_of_time(monkeypatch):
    moments = itertools.count(step=0.25)
    monkeypatch.setattr(time, "monotonic", lambda: next(moments))
    ((each,),) = searched(Mixture([SCALAR], sure=SURE), 2, seconds=1.0)
    assert SCALAR.startswith(each.text) and 3 <= len(each.text) <= 5
    assert (each.finished, each.stopped) == (False, "out of time")


class Paced(Mixture):
    """It takes a second to read a token of a sample."""

    now = 0.0

    def step(self, state, tokens):
        self.now += len(tokens)
        return super().step(state, tokens)


@pytest.mark.parametrize(("part", "finished"), [(1.1, 3), (0.9, 2), (0.6, 1), (0.4, 0), (0.1, 0)])
def test_short_of_time_the_likeliest_are_written_to_their_end(monkeypatch, part, finished):
    """In the order of their headers, not the shortest first. All three, of which headers are read together, take 1."""
    texts = [SLICES[8], SLICES[16], SCALAR]
    assert len(SCALAR) < len(SLICES[8])
    decoder = Paced(texts, [0.5, 0.3, 0.2], sure=SURE)
    monkeypatch.setattr("sparsegen.model.beam.time", SimpleNamespace(monotonic=lambda: decoder.now))
    (whole,) = searched(decoder, 3)
    needed, decoder.now = decoder.now, 0.0
    assert [each.text for each in whole] == texts
    (group,) = searched(decoder, 3, seconds=part * needed)
    assert [each.text for each in group if each.finished] == texts[:finished]
    assert {each.stopped for each in group if not each.finished} <= {"out of time"}
    assert len(group) == 3


def known(*texts: str):
    """The guess that any text may be among these."""
    return lambda header: [[*Characters().encode(text), END] for text in texts if text.startswith(header + "*/")]


def test_what_is_guessed_right_is_read_at_once_and_changes_nothing():
    texts, weights = [SLICES[8], VECTOR, SLICES[16]], [0.5, 0.3, 0.2]
    plain, guided = Mixture(texts, weights, sure=SURE), Mixture(texts, weights, sure=SURE)
    slow = searched(plain, 3)[0]
    quick = searched(guided, 3, guess=known(SCALAR, *texts[:2]))[0]
    for one, other in zip(slow, quick, strict=True):
        assert (one.text, one.tokens, one.finished) == (other.text, other.tokens, other.finished)
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-6)
    assert [each.text for each in quick] == texts and set(plain.reads) == {1}
    body = len(SLICES[8]) - len(header(SLICES[8])) - 2
    assert guided.reads[0] == body + 1  # all of it, and what closed the header
    # what csr_scalar and csr_vector share was guessed as either, and where they part the other one was known
    assert sum(length > 1 for length in guided.reads) == 3
    assert guided.reads.count(1) == len(SLICES[16]) - len(header(SLICES[16])) - 2 + 1


def test_a_wrong_guess_costs_a_reading_alone():
    wrong = SLICES[8].replace("{", "{ ;")
    for guess in (known(wrong), known(SLICES[8][:-9]), known(header(SLICES[8]) + "*/"), lambda header: [[], [END]]):
        decoder = Mixture([SLICES[8], SCALAR], [0.6, 0.4], sure=SURE)
        (group,) = searched(decoder, 2, guess=guess)
        assert [(each.text, each.finished) for each in group] == [(SLICES[8], True), (SCALAR, True)]
    decoder = Guided(GUIDE, 20263)
    plain, guided = (searched(decoder, 3, guess=each)[0] for each in (guesses.none, known(*GUIDE, VECTOR)))
    for one, other in zip(plain, guided, strict=True):
        assert (one.tokens, one.stopped) == (other.tokens, other.stopped)
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-3)


@pytest.mark.parametrize("longest", [len(header(SCALAR)) + 2, len(header(SCALAR)) + 9, len(SCALAR) - 30])
def test_a_guess_ends_where_a_text_must(longest):
    (group,) = searched(Mixture([SCALAR], sure=SURE, longest=longest), 2, guess=known(SCALAR))
    assert [(each.text, each.stopped) for each in group] == [(SCALAR[:longest], "too long")]


def test_a_guess_that_the_screen_refuses_is_hopeless():
    wrong = SLICES[8].replace("vector sum = {};", "vector sum = x;")
    (group,) = searched(Mixture([wrong, SCALAR], [0.7, 0.3], sure=SURE), 2, guess=known(wrong, SCALAR))
    assert [each.finished for each in group] == [False, True] and group[0].stopped.startswith("hopeless")


@pytest.mark.parametrize("language", ["cpp", "cuda"])
def test_guesses_are_the_bodies_of_templates(language):
    guess = guesses.of(language, "spmv", Characters())
    files = [each for each in templates.load(language) if each.op == "spmv"]
    for file in files:
        for each in instances(file):
            text = written(each)
            assert [*Characters().encode(text), END] in guess(header(text))
    other = header(SLICES[8]).replace("SLICE = 8", "SLICE = 64")  # a header that no template has
    if language == "cpp":
        assert Characters().decode(guess(other)[0][:-1]) == SLICES[8].replace("SLICE = 8", "SLICE = 64")
    assert guess("/* something else ") == [] and guesses.none(header(SCALAR)) == ()


def test_no_more_texts_than_asked_for_and_none_followed_that_cannot_be_among_them():
    texts = [SCALAR, SLICES[8], SLICES[16]]
    texts += [written(template("sell_slice", SLICE=size, SIGMA=256, BITS=32, values="full")) for size in (8, 16)]
    texts.append(written(template("coo_runs", values="full")))
    weights = [0.05, 0.1, 0.15, 0.3, 0.22, 0.18]
    for count in (1, 2, 4, 9):
        decoder = Mixture(texts, weights, sure=SURE)
        (group,) = searched(decoder, count)
        ranked = sorted(texts, key=lambda text: -weights[texts.index(text)])
        assert [each.text for each in group] == ranked[:count]
        assert max(decoder.widths) <= 6
        assert max(decoder.widths[max(len(header(text)) for text in texts) + 4 :]) <= count
    group = found([SLICES[16], SLICES[8], SCALAR], [0.25, 0.35, 0.4], 2, width=2)
    assert [each.text for each in group] == [SCALAR, SLICES[8]]
    narrow = Mixture(texts, weights, sure=SURE)
    (group,) = searched(narrow, 1, width=1)
    assert set(narrow.widths) == {1}
    assert group[0].text == texts[3]  # the greedy one, which is the likeliest of sell, and sell of all


class ByRow(Mixture):
    """Every second problem likes the texts in the other order."""

    def start(self, memory, rows):
        assert len(rows) == 1
        ordered = sorted(self.weights)
        self.weights = ordered if rows[0] % 2 else ordered[::-1]
        return super().start(memory, rows)


def test_each_problem_of_a_batch_has_its_own_texts():
    decoder = ByRow([SCALAR, SLICES[8]], [0.7, 0.3], sure=SURE)
    groups = searched(decoder, 2, (PROBLEM, PROBLEM, PROBLEM))
    assert [[each.text for each in group] for group in groups] == [
        [SCALAR, SLICES[8]], [SLICES[8], SCALAR], [SCALAR, SLICES[8]],
    ]  # fmt: skip
    assert searched(decoder, 2, ()) == []


class Guided(Mixture):
    """The shipped decoder with weights that mean nothing, which chooses among the given texts."""

    def __init__(self, texts: list[str], seed: int) -> None:
        super().__init__(texts, [1.0] * len(texts), sure=20.0)
        small = replace(recipe.load("tiny"), vocabulary=SIZE)
        rng = np.random.default_rng(seed)
        weights = {name: rng.standard_normal(shape) * 0.3 for name, shape in decoders.shapes(small).items()}
        self.real = decoders.Decoder(small, weights)
        self.recipe = small

    def remember(self, batch):
        return self.real.remember(batch)

    def start(self, memory, rows):
        return self.real.start(memory, rows), super().start(len(memory.mask), rows)

    def step(self, state, tokens):
        return self.real.step(state[0], tokens) + super().step(state[1], tokens)

    def read(self, state, tokens):
        played = [Mixture.step(self, state[1], column) for column in tokens.T]
        return self.real.read(state[0], tokens) + np.stack(played, 1)

    def keep(self, state, rows):
        return self.real.keep(state[0], rows), super().keep(state[1], rows)

    def fork(self, state, rows):
        return self.real.fork(state[0], rows), super().keep(state[1], rows)

    def back(self, state, position):
        self.real.back(state[0], position)
        super().back(state[1], position)


GUIDE = [SCALAR, *SLICES.values(), *(text.replace("BITS = 32", "BITS = 16") for text in SLICES.values())]


def test_a_batch_gives_what_each_problem_gives_alone():
    decoder = Guided(GUIDE, 20261)
    together = searched(decoder, 3, (PROBLEM, OTHER), longest=150)
    alone = [searched(decoder, 3, (each,), longest=150)[0] for each in (PROBLEM, OTHER)]
    assert [len(group) for group in together] == [len(group) for group in alone] == [3, 3]
    for one, other in zip(itertools.chain(*together), itertools.chain(*alone), strict=True):
        assert (one.tokens, one.stopped) == (other.tokens, other.stopped)
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-3)


def test_a_text_keeps_its_own_past_where_others_part_from_it_and_end():
    """Each text, replayed alone, has the same probabilities."""
    decoder = Guided(GUIDE, 20262)
    (group,) = searched(decoder, 4)
    assert sorted(map(len, decoder.texts)) != sorted(len(each.tokens) for each in group)
    assert len({header(each.text) for each in group}) == len(group) == 4
    memory = decoder.remember(encoder.batch([encoder.encode(PROBLEM, tokens=16)]))
    for each in group:
        state, token = decoder.start(memory, np.array([0])), CPP
        for following, logprob in zip(each.tokens, each.logprobs, strict=True):
            logits = decoder.step(state, np.array([token]))[0].astype(float)
            assert logprob == pytest.approx(logits[following] - np.log(np.exp(logits).sum()), abs=1e-3)
            token = following


@pytest.mark.parametrize(("options", "word"), [({"count": 0}, "count"), ({"count": 2, "width": 0}, "width")])
def test_options_that_make_no_sense(options, word):
    with pytest.raises(SparsegenValueError, match=word):
        searched(Mixture([SCALAR]), **options)
    with pytest.raises(SparsegenValueError, match="grammars"):
        beam(Mixture([SCALAR]), Characters(), [encoder.encode(PROBLEM, tokens=16)], [], 2)
