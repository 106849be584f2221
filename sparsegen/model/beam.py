"""The kernels with the most likely headers: a beam over the header, then the most likely body of each.

This is the declared decoding of compiling and evaluation. The header of a kernel file decides (format, parameters,
launches) and the body nearly always follows from it: samples differ little below a header, so each text here has a
header of its own. Two kernels under one header (csr_scalar and csr_vector) are one choice, the likelier. Nothing is
random. Headers are ranked by their probability under the model itself; the grammar only strikes out. Bodies are written
one after the other, below the likeliest header first; what may come next is guessed, so that many tokens are read at
once where the guess is right.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsegen.errors import SparsegenValueError
from sparsegen.model import encoder, guesses
from sparsegen.model.grammar import Grammar, State
from sparsegen.model.guesses import Guesses
from sparsegen.model.sample import MOST_TRIES, Sample, log_softmax
from sparsegen.model.tokenizer import END, START

WIDTH = 6  # headers followed at once
CHOICES = 8  # tokens considered after each of them
OUT_OF_TIME = "out of time"


def beam(
    decoder,
    tokenizer,
    structures: Sequence[encoder.Structure],
    grammars: Sequence[Grammar],
    count: int,
    *,
    width: int = WIDTH,
    longest: int | None = None,
    seconds: float | None = None,
    guess: Guesses = guesses.none,
) -> list[list[Sample]]:
    """For each structure up to `count` texts with different headers, the likeliest header first.

    Texts that could not be finished say why in `stopped`, as in `sample`; headers that no likely token could go on with
    come last, where there are fewer others than `count`. longest: tokens of a text, at most the recipe's. seconds: for
    all of it; what is not written by then was given up "out of time". guess: of the language of the grammars; without
    it the same is written, a token at a time. Raises SparsegenValueError.
    """
    if len(structures) != len(grammars):
        raise SparsegenValueError(
            f"{len(structures)} structures and {len(grammars)} grammars; expected as many of each"
        )
    if count < 1 or width < 1:
        raise SparsegenValueError(f"count = {count}, width = {width}; expected at least 1 of each")
    if not structures:
        return []
    begun = time.monotonic()
    memory = decoder.remember(encoder.batch(structures))
    most = min(longest or decoder.recipe.longest, decoder.recipe.longest)
    pieces = [tokenizer.piece(id).decode("latin-1") for id in range(tokenizer.size)]
    found = []
    for row, grammar in enumerate(grammars):
        state = decoder.start(memory, np.array([row]))
        deadline = float("inf") if seconds is None else begun + seconds * (row + 1) / len(grammars)
        writer = _Writer(decoder, pieces, guess, most, deadline)
        found.append([each.sample(tokenizer) for each in writer.texts(state, grammar, count, max(width, count))])
    return found


@dataclass
class _Draft:
    """A text under way."""

    state: State
    tokens: list[int]
    logprobs: list[float]
    header: str = ""  # once it is closed
    score: float = 0.0  # log-probability of the header
    finished: bool = False
    stopped: str = ""

    def after(self, token: int, logprob: float, piece: str) -> _Draft:
        """With one more token, which the grammar allows."""
        state = self.state if token == END else copy.copy(self.state).push(piece)
        header = self.header
        if not header and state.in_body:
            header = state.text.partition("*/")[0]
        score = self.score if self.header else self.score + logprob
        return _Draft(state, [*self.tokens, token], [*self.logprobs, logprob], header, score, token == END)

    def sample(self, tokenizer) -> Sample:
        return Sample(tokenizer.decode(self.tokens), self.tokens, self.logprobs, self.finished, self.stopped)

    def may(self, token: int, pieces: list[str]) -> bool:
        return self.state.complete if token == END else pieces[token] != "" and self.state.may(pieces[token])

    def hopeless(self, reason: str) -> _Draft:
        self.finished, self.stopped = False, f"hopeless: {reason}"
        return self

    def stuck(self) -> _Draft:
        return self.hopeless("no likely token may follow " + repr(self.state.text[-30:]))


_Placed = tuple[int, _Draft]  # a draft, and the place among the samples of the decoder that it goes on from


@dataclass
class _Writer:
    """Of one structure's texts."""

    decoder: Any
    pieces: list[str]
    guess: Guesses
    most: int  # tokens of a text
    deadline: float

    def texts(self, state, grammar: Grammar, count: int, width: int) -> list[_Draft]:
        """The drafts, best first."""
        closed, ended, dead = self._headers(state, grammar, count, width)
        ended += [self._body(own, each) for each, own in closed]
        for group in (ended, dead):
            group.sort(key=lambda each: -each.score)
        return [*ended, *dead][:count]

    def _headers(self, state, grammar: Grammar, count: int, width: int):
        """The `count` likeliest headers, each with its place in the decoder; those given up, and those that are stuck.

        Of equal headers the likeliest is kept, and none is followed that `count` others are ahead of.
        """
        live, tokens = [_Draft(grammar.start(), [], [])], [START[grammar.language]]
        closed: dict[str, tuple[_Draft, Any]] = {}
        ended: list[_Draft] = []
        dead: list[_Draft] = []
        while live:
            logs = log_softmax(self.decoder.step(state, np.array(tokens)))
            going, stuck = _headers(list(enumerate(live)), logs, self.pieces, width)
            dead += stuck
            for place, each in going:
                if each.header and (each.header not in closed or closed[each.header][0].score < each.score):
                    closed[each.header] = each, self.decoder.fork(state, np.array([place]))
            best = sorted(closed.values(), key=lambda pair: -pair[0].score)[:count]
            least = best[-1][0].score if len(best) == count else float("-inf")
            heads = [pair for pair in going if not pair[1].header and pair[1].score >= least]
            ended += [each for _, each in heads if self._over(each)]
            heads = [pair for pair in heads if not pair[1].stopped]
            places, live = [place for place, _ in heads], [each for _, each in heads]
            if live and places != list(range(len(tokens))):
                state = self.decoder.keep(state, np.array(places))
            tokens = [each.tokens[-1] for each in live]
        return sorted(closed.values(), key=lambda pair: -pair[0].score)[:count], ended, dead

    def _body(self, state, each: _Draft) -> _Draft:
        """The draft of a header with its likeliest legal body."""
        known = self.guess(each.header)
        while not (each.finished or each.stopped or self._over(each)):
            done = len(each.tokens)
            ahead = next((text[done:] for text in known if list(text[:done]) == each.tokens), [])
            fed = [each.tokens[-1], *ahead[:-1]][: self.most - done]
            logs = log_softmax(self.decoder.read(state, np.array([fed]))[0])
            for turn, line in enumerate(logs):
                each = _likeliest(each, line, self.pieces)
                if each.finished or each.stopped or each.tokens[-1:] != fed[turn + 1 : turn + 2]:
                    break  # or what was fed ends
            self.decoder.back(state, len(each.tokens))
        return each

    def _over(self, each: _Draft) -> bool:
        """Whether a draft must end here; it then says why."""
        if len(each.tokens) >= self.most:
            each.stopped = "too long"
        elif time.monotonic() > self.deadline:
            each.stopped = OUT_OF_TIME
        return bool(each.stopped)


def _headers(
    heads: list[_Placed], logs: np.ndarray, pieces: list[str], width: int
) -> tuple[list[_Placed], list[_Draft]]:
    """The `width` likeliest legal continuations of the headers under way, and the headers that have none."""
    options = []
    for place, each in heads:
        for token in np.argpartition(-logs[place], CHOICES)[:CHOICES].tolist():
            options.append((each.score + float(logs[place, token]), place, token, each))
    options.sort(key=lambda option: (-option[0], *option[1:3]))
    chosen: list[_Placed] = []
    known: set[str] = set()  # the same text in other tokens is not another header
    barren = dict(heads)
    for _, place, token, each in options:
        if len(chosen) == width:
            return chosen, []
        if each.may(token, pieces):
            barren.pop(place, None)
            after = each.after(token, float(logs[place, token]), pieces[token])
            if after.state.text not in known:
                known.add(after.state.text)
                chosen.append((place, after))
    return chosen, [each.stuck() for each in barren.values()]


def _likeliest(each: _Draft, logs: np.ndarray, pieces: list[str]) -> _Draft:
    """A body with the likeliest legal token; it ends where there is none, and at END."""
    for token in _ranked(logs):
        if each.may(token, pieces):
            after = each.after(token, float(logs[token]), pieces[token])
            reason = after.state.refusal() if token == END else None
            return after.hopeless(reason) if reason else after
    return each.stuck()


def _ranked(logs: np.ndarray) -> Iterator[int]:
    """Tokens, the likeliest first: at most MOST_TRIES. The first is nearly always the one that is taken."""
    yield int(logs.argmax())
    yield from np.argsort(-logs, kind="stable")[1:MOST_TRIES].tolist()
