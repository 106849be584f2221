"""The kernels with the most likely headers: a beam over the header, then the most likely body of each.

This is the declared decoding of compiling and evaluation. The header of a kernel file decides (format, parameters,
launches) and the body nearly always follows from it: samples differ little below a header, so each text here has a
header of its own. Two kernels under one header (csr_scalar and csr_vector) are one choice, the likelier. Nothing is
random. Headers are ranked by their probability under the model itself; the grammar only strikes out.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sparsegen.errors import SparsegenValueError
from sparsegen.model import encoder
from sparsegen.model.grammar import Grammar, State
from sparsegen.model.sample import MOST_TRIES, Sample, log_softmax
from sparsegen.model.tokenizer import END, START

WIDTH = 6  # headers followed at once
CHOICES = 8  # tokens considered after each of them
PATIENCE = 16  # tokens between two looks at the pace
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
) -> list[list[Sample]]:
    """For each structure up to `count` texts with different headers, the likeliest header first.

    Texts that could not be finished say why in `stopped`, as in `sample`; headers that no likely token could go on with
    come last, where there are fewer others than `count`. longest: tokens of a text, at most the recipe's. seconds: for
    all of it; where that is short the less likely headers are given up, so that the likeliest is written to its end,
    and after it everything. What was given up was "out of time". Raises SparsegenValueError.
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
        clock = None if seconds is None else _Clock(begun + seconds * (row + 1) / len(grammars), most)
        drafts = _follow(decoder, state, grammar, pieces, count, max(width, count), most, clock)
        found.append([each.sample(tokenizer) for each in drafts])
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


class _Clock:
    """Whether a text of `most` tokens can still be finished by `deadline`, at the pace of the last few."""

    def __init__(self, deadline: float, most: int) -> None:
        self.looked, self.deadline, self.most = time.monotonic(), deadline, most

    @property
    def over(self) -> bool:
        return time.monotonic() > self.deadline

    def late(self, tokens: int) -> bool:
        """To be asked at every token; it looks now and then, as the header's are slower than those of a body."""
        if tokens % PATIENCE:
            return False
        now, before = time.monotonic(), self.looked
        self.looked = now
        return now + (now - before) / PATIENCE * (self.most - tokens) > self.deadline


_Placed = tuple[int, _Draft]  # a draft, and the place among the samples of the decoder that it goes on from


def _follow(
    decoder, state, grammar: Grammar, pieces: list[str], count: int, width: int, most: int, clock: _Clock | None
) -> list[_Draft]:
    """The drafts of one structure, best first."""
    live = [_Draft(grammar.start(), [], [])]
    ended: list[_Draft] = []
    dead: list[_Draft] = []
    tokens = [START[grammar.language]]
    while live:
        logs = log_softmax(decoder.step(state, np.array(tokens)))
        heads = [(place, each) for place, each in enumerate(live) if not each.header]
        going, stuck = _headers(heads, logs, pieces, width)
        going += [(place, _likeliest(each, logs[place], pieces)) for place, each in enumerate(live) if each.header]
        going, over = _best(going, ended, count, most)
        dead += stuck
        ended += over
        if clock and going:
            going, late = _in_time(going, clock)
            ended += late
        places, live = [place for place, _ in going], [each for _, each in going]
        if live and places != list(range(len(tokens))):
            state = decoder.keep(state, np.array(places))
        tokens = [each.tokens[-1] for each in live]
    for group in (ended, dead):
        group.sort(key=lambda each: -each.score)
    return [*ended, *dead][:count]


def _in_time(going: list[_Placed], clock: _Clock) -> tuple[list[_Placed], list[_Draft]]:
    """What goes on, and what there is no time for: of bodies the least likely first."""
    drafts = [each for _, each in going]
    late: list[_Draft] = []
    behind = clock.late(len(drafts[0].tokens))
    if clock.over:
        late = drafts
    elif len(drafts) > 1 and all(each.header for each in drafts) and behind:
        late = [min(drafts, key=lambda each: each.score)]
    for each in late:
        each.stopped = OUT_OF_TIME
    return [pair for pair in going if not pair[1].stopped], late


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


def _best(drafts: list[_Placed], ended: list[_Draft], count: int, most: int) -> tuple[list[_Placed], list[_Draft]]:
    """What goes on, by place, and what has just ended: of equal headers the likeliest, and none that `count` others are
    ahead of."""
    known = {each.header: each for each in ended}
    kept: list[_Placed] = []
    for place, each in sorted(drafts, key=lambda pair: -pair[1].score):
        if each.header and each.header in known:
            continue
        if each.header:
            known[each.header] = each
        if len(each.tokens) >= most and not (each.finished or each.stopped):
            each.stopped = "too long"
        kept.append((place, each))
    ahead = sorted((each.score for each in known.values()), reverse=True)
    least = ahead[count - 1] if len(ahead) >= count else float("-inf")
    kept = [pair for pair in sorted(kept, key=lambda pair: pair[0]) if pair[1].score >= least]
    over = [each for _, each in kept if each.finished or each.stopped]
    return [pair for pair in kept if not (pair[1].finished or pair[1].stopped)], over
