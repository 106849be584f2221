"""The kernels with the most likely headers: a beam over the header, then the most likely body of each.

The header of a kernel file decides (format, parameters, launches) and the body follows from it, so that samples differ
little below a header. Each of `count` texts here has a header of its own; nothing is random.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sparsegen.model import encoder
from sparsegen.model.grammar import Grammar, State
from sparsegen.model.sample import Sample, log_softmax
from sparsegen.model.tokenizer import END, START

WIDTH = 6  # headers followed at once
CHOICES = 8  # tokens considered after each


@dataclass
class _Draft:
    state: State
    tokens: list[int]
    logprobs: list[float]
    header: str = ""  # once it is written
    score: float = 0.0  # log-probability of the header
    stopped: str = ""
    finished: bool = False

    def after(self, token: int, logprob: float, piece: str) -> _Draft:
        state = self.state
        if token != END:
            state = copy.copy(self.state).push(piece)
        header, score = self.header, self.score + (0.0 if self.header else logprob)
        if not header and state.in_body:
            header = state.text.partition("*/")[0]
        return _Draft(state, [*self.tokens, token], [*self.logprobs, logprob], header, score, finished=token == END)


def beam(
    decoder,
    tokenizer,
    structures: Sequence[encoder.Structure],
    grammars: Sequence[Grammar],
    count: int,
    *,
    width: int = WIDTH,
    longest: int | None = None,
) -> list[list[Sample]]:
    """For each structure up to `count` texts with different headers, the likeliest header first.

    Texts that could not be finished say why in `stopped`, as in `sample`.
    """
    memory = decoder.remember(encoder.batch(structures))
    most = min(longest or decoder.recipe.longest, decoder.recipe.longest)
    pieces = [tokenizer.piece(id).decode("latin-1") for id in range(tokenizer.size)]
    return [
        _follow(decoder, memory, row, grammar, tokenizer, pieces, count, max(width, count), most)
        for row, grammar in enumerate(grammars)
    ]


def _follow(decoder, memory, row, grammar, tokenizer, pieces, count, width, most) -> list[Sample]:
    live = [_Draft(grammar.start(), [], [])]
    ended: list[_Draft] = []
    state = decoder.start(memory, np.array([row]))
    tokens = np.array([START[grammar.language]])
    while live:
        logs = log_softmax(decoder.step(state, tokens))
        heads = [(place, each) for place, each in enumerate(live) if not each.header]
        chosen = _headers(heads, logs, pieces, width)
        for place, each in enumerate(live):
            if each.header:
                chosen += _likeliest(place, each, logs[place], pieces)
        chosen, over = _best(chosen, ended, count, most)
        ended += over
        live = [each for _, each in chosen]
        if live:
            state = decoder.keep(state, np.array([place for place, _ in chosen]))
            tokens = np.array([each.tokens[-1] for each in live])
    ended.sort(key=lambda each: -each.score)
    return [
        Sample(tokenizer.decode(each.tokens), each.tokens, each.logprobs, each.finished, each.stopped)
        for each in ended[:count]
    ]


def _headers(heads: list[tuple[int, _Draft]], logs: np.ndarray, pieces: list[str], width: int):
    """The `width` likeliest legal continuations of the headers under way, with the places they continue."""
    options = []
    for place, each in heads:
        for token in np.argpartition(-logs[place], CHOICES)[:CHOICES]:
            options.append((each.score + logs[place, token], place, int(token), each))
    options.sort(key=lambda option: -option[0])
    chosen: list[tuple[int, _Draft]] = []
    for _, place, token, each in options:
        if len(chosen) == width:
            break
        if token != END and pieces[token] and each.state.may(pieces[token]):
            chosen.append((place, each.after(token, float(logs[place, token]), pieces[token])))
    return chosen


def _likeliest(place: int, each: _Draft, logs: np.ndarray, pieces: list[str]) -> list[tuple[int, _Draft]]:
    """The likeliest legal continuation of a body; one that has none ends there."""
    for token in np.argsort(-logs)[: 3 * CHOICES].tolist():
        if token == END and each.state.complete:
            after = each.after(token, float(logs[token]), "")
            if reason := each.state.refusal():
                after.finished, after.stopped = False, f"hopeless: {reason}"
            return [(place, after)]
        if token != END and pieces[token] and each.state.may(pieces[token]):
            return [(place, each.after(token, float(logs[token]), pieces[token]))]
    each.stopped = "hopeless: no likely token may follow " + repr(each.state.text[-30:])
    return [(place, each)]


def _best(chosen: list[tuple[int, _Draft]], ended: list[_Draft], count: int, most: int):
    """What goes on, and what has just ended: of equal headers the likeliest, and no more than can be among `count`."""
    known: dict[str, _Draft] = {each.header: each for each in ended}
    going: list[tuple[int, _Draft]] = []
    over: list[_Draft] = []
    for place, each in sorted(chosen, key=lambda pair: -pair[1].score):
        if each.header:
            if each.header in known:
                continue
            known[each.header] = each
        if len(each.tokens) >= most and not each.finished:
            each.stopped = "too long"
        if each.finished or each.stopped:
            over.append(each)
        else:
            going.append((place, each))
    scores = sorted((each.score for each in known.values()), reverse=True)
    least = scores[count - 1] if len(scores) >= count else -np.inf
    return [pair for pair in going if pair[1].score >= least], [each for each in over if each.score >= least]
