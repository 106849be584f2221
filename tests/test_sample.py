"""Sampling: what is drawn, its probabilities, and the mask of a grammar."""

from __future__ import annotations

import numpy as np
import playback
import pytest
from support import problem_of, template

from sparsegen import gallery
from sparsegen.errors import SparsegenValueError
from sparsegen.model import encoder, sample
from sparsegen.model.grammar import Grammar
from sparsegen.model.tokenizer import END, written

A = gallery.small()["stencil2d"]
PROBLEM = problem_of(A, facts=None)
STRUCTURE = encoder.encode(PROBLEM, tokens=16)
SCALAR = written(template("csr_scalar", values="full"))
SLICE = written(template("sell_slice", SLICE=8, SIGMA=1, BITS=32, values="full"))


class Noise(playback.Playback):
    """Logits that depend on what a sample has written so far, and on nothing else."""

    def __init__(self, size: int = 40, ending: float = 0.0, longest: int = 60) -> None:
        super().__init__(["x"], longest=longest)
        self.size, self.ending = size, ending

    def start(self, memory, rows):
        return [[int(row)] for row in rows]

    def step(self, state, tokens):
        self.widths.append(len(tokens))
        logits = np.full((len(tokens), playback.SIZE), -np.inf, np.float32)
        for line, (past, token) in enumerate(zip(state, tokens, strict=True)):
            past.append(int(token))
            logits[line, playback.FIRST + 65 : playback.FIRST + 65 + self.size] = self.scores(past)
            logits[line, END] = self.ending
        return logits

    def scores(self, past):
        return np.random.default_rng(past).standard_normal(self.size) * 2

    def keep(self, state, rows):
        return [state[row] for row in rows]


def drawn(decoder, counts, **options):
    structures, languages = [STRUCTURE] * len(counts), ["cpp"] * len(counts)
    return sample.sample(decoder, playback.Characters(), structures, languages, counts, **options)


def texts(groups):
    return [[each.text for each in group] for group in groups]


def test_what_is_played_is_written():
    decoder = playback.Playback([SCALAR, SLICE])
    (found,) = drawn(decoder, [3], top_k=1)
    assert [each.text for each in found] == [SCALAR, SLICE, SCALAR]
    for each in found:
        assert each.finished
        assert each.stopped == ""
        assert each.tokens == [*playback.Characters().encode(each.text), END]
        assert len(each.logprobs) == len(each.tokens)


def test_finished_samples_leave_the_batch():
    decoder = playback.Playback(["abc", "abcdef", "a"])
    drawn(decoder, [3], top_k=1)
    assert decoder.widths == [3, 3, 2, 2, 1, 1, 1]


def test_log_probabilities_are_those_of_the_model_whatever_the_decoding():
    for options in ({}, {"temperature": 0.3, "top_k": 5}, {"greedy_first": True}):
        decoder = Noise()
        ((each,),) = drawn(decoder, [1], seed=7013, **options)
        past = [0, 3]  # the row, and C++
        for token, logprob in zip(each.tokens, each.logprobs, strict=True):
            logits = np.append(decoder.scores(past), decoder.ending)
            logs = logits - np.log(np.exp(logits).sum())
            place = -1 if token == END else token - playback.FIRST - 65
            assert logprob == pytest.approx(logs[place], abs=1e-5)
            past.append(token)


def test_a_sample_does_not_depend_on_the_others():
    alone = texts(drawn(Noise(), [2], seed=7013))
    beside = texts(drawn(Noise(), [2, 5], seed=7013))
    more = texts(drawn(Noise(), [6], seed=7013))
    assert alone[0] == beside[0] == more[0][:2]
    assert len(set(more[0])) == 6
    assert texts(drawn(Noise(), [2], seed=7014)) != alone


def test_frequencies_are_those_of_the_softmax():
    """Of 4000 first tokens among four, at temperature 2, with the two least likely cut off by top_k."""
    decoder = Noise(4, ending=-np.inf, longest=1)
    scores = decoder.scores([0, 3])
    (found,) = drawn(decoder, [4000], temperature=2.0, seed=7013)
    counts = np.bincount([each.tokens[0] - playback.FIRST - 65 for each in found], minlength=4)
    expected = np.exp(scores / 2) / np.exp(scores / 2).sum()
    assert np.abs(counts / 4000 - expected).max() < 5 * 0.5 / np.sqrt(4000)
    (found,) = drawn(decoder, [4000], top_k=2, seed=7013)
    counts = np.bincount([each.tokens[0] - playback.FIRST - 65 for each in found], minlength=4)
    best = np.argsort(-scores)[:2]
    assert set(np.flatnonzero(counts)) == set(best)
    kept = np.exp(scores[best]) / np.exp(scores[best]).sum()
    assert np.abs(counts[best] / 4000 - kept).max() < 5 * 0.5 / np.sqrt(4000)


def test_greedy_first():
    decoder = Noise(ending=-np.inf, longest=9)
    (found,) = drawn(decoder, [2], greedy_first=True, temperature=5.0)
    past = [0, 3]
    for token in found[0].tokens:
        assert token == playback.FIRST + 65 + int(np.argmax(decoder.scores(past)))
        past.append(token)
    assert found[1].tokens != found[0].tokens


def test_why_samples_stop():
    (found,) = drawn(playback.Playback(["abc"], longest=2), [1], top_k=1)
    assert (found[0].text, found[0].finished, found[0].stopped) == ("ab", False, "too long")
    (found,) = drawn(playback.Playback(["abcdef"]), [1], top_k=1, longest=3)
    assert found[0].text == "abc"
    nothing = playback.Playback(["abc"])
    nothing.texts[0][1] = 0  # padding
    (found,) = drawn(nothing, [1], top_k=1)
    assert "no text" in found[0].stopped


def test_without_samples():
    assert drawn(playback.Playback(["abc"]), []) == []
    assert drawn(playback.Playback(["abc"]), [0, 0]) == [[], []]


@pytest.mark.parametrize(
    ("options", "word"),
    [({"temperature": 0.0}, "temperature"), ({"top_k": 0}, "top_k"), ({"grammars": []}, "grammars")],
)
def test_options_that_make_no_sense(options, word):
    with pytest.raises(SparsegenValueError, match=word):
        drawn(playback.Playback(["abc"]), [1], **options)
    with pytest.raises(SparsegenValueError, match="fortran"):
        sample.sample(playback.Playback(["a"]), playback.Characters(), [STRUCTURE], ["fortran"], [1])


# ---- under a grammar


def test_a_grammar_changes_nothing_that_is_legal():
    decoder = playback.Playback([SCALAR, SLICE], sure=30.0)
    (found,) = drawn(decoder, [2], grammars=[Grammar(PROBLEM)])
    assert [each.text for each in found] == [SCALAR, SLICE]
    assert all(each.finished for each in found)


class Torn(playback.Playback):
    """Plays a text, but at one place something else is likelier."""

    def __init__(self, text: str, place: str, instead: str) -> None:
        super().__init__([text], sure=30.0)
        self.place, self.instead = text.index(place) + len(place), playback.FIRST + ord(instead)

    def step(self, state, tokens):
        at = state.position
        logits = super().step(state, tokens)
        if at == self.place:
            logits[:, self.instead] = 33.0
        return logits


@pytest.mark.parametrize(
    ("place", "instead"),
    [("/* ", "S"), ('format = "c', "d"), ('items = "', "z"), ("extern ", "c"), ("ACC s", "$"), ("}\n}", "}")],
)
def test_what_the_grammar_refuses_is_drawn_again(place, instead):
    for options in ({}, {"greedy_first": True}):
        ((free,),) = drawn(Torn(SCALAR, place, instead), [1], top_k=1)
        assert free.text != SCALAR
        ((held,),) = drawn(Torn(SCALAR, place, instead), [1], grammars=[Grammar(PROBLEM)], temperature=0.1, **options)
        assert held.text == SCALAR
        assert held.finished
        where = len(SCALAR[: SCALAR.index(place)]) + len(place)
        assert held.logprobs[where] == pytest.approx(-3.05, abs=0.1)  # of the model, which preferred another


def test_the_hopeless_are_given_up():
    typo = SCALAR.replace("indptr[row + 1]", "indptr[row + 1)")
    (found,) = drawn(playback.Playback([typo]), [1], grammars=[Grammar(PROBLEM)], top_k=1)
    assert found[0].stopped.startswith("hopeless")
    assert "indptr[row + 1" in found[0].stopped
    assert found[0].text == typo[: typo.index("1)") + 1]
    wrong = SCALAR.replace("ACC sum = 0;", "ACC sum = x;")  # the screen says so, when all is written
    (found,) = drawn(playback.Playback([wrong]), [1], grammars=[Grammar(PROBLEM)], top_k=1)
    assert not found[0].finished
    assert "pointer" in found[0].stopped


def test_an_unfinished_kernel_does_not_end():
    half = SCALAR[: SCALAR.index("STORE")]
    (found,) = drawn(playback.Playback([half]), [1], grammars=[Grammar(PROBLEM)], top_k=1)
    assert found[0].stopped.startswith("hopeless")
    assert not found[0].finished
