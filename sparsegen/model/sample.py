"""Texts drawn from the model, many at once, for reinforcement learning and for the figures of the raw model.

A token is drawn at `temperature` from the `top_k` most likely ones; under a grammar, one that it refuses is struck out
and another drawn from the rest. That is sampling from the masked and renormalised distribution, without asking the
grammar about tokens nobody draws. Every sample has a random generator of its own, from the seed and its place, so that
it does not depend on what is sampled beside it. Kernels for a user come from the likeliest texts instead: see beam.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sparsegen.errors import SparsegenValueError
from sparsegen.model import encoder
from sparsegen.model.grammar import Grammar
from sparsegen.model.tokenizer import CPP, CUDA, END, PAD, START

SEED = 20260
MOST_TRIES = 24  # tokens that a grammar may refuse at one place before the sample is given up


@dataclass
class Sample:
    """One text. tokens: as drawn, END included, without the language token that they follow. logprobs: of each, natural
    logarithms under the model itself: temperature 1, every token, no grammar. finished: END was drawn; else `stopped`
    says why not."""

    text: str
    tokens: list[int]
    logprobs: list[float]
    finished: bool
    stopped: str = ""


def sample(
    decoder,
    tokenizer,
    structures: Sequence[encoder.Structure],
    languages: Sequence[str],
    counts: Sequence[int],
    *,
    grammars: Sequence[Grammar | None] | None = None,
    temperature: float = 1.0,
    top_k: int | None = None,
    seed: int = SEED,
    longest: int | None = None,
    greedy_first: bool = False,
) -> list[list[Sample]]:
    """counts[i] texts in languages[i] ("cpp" or "cuda") for structures[i]: a list of samples for each structure.

    grammars: what the texts may be, one for each structure; None: anything. temperature over 0. top_k: None for all
    tokens. longest: tokens of a text, at most the recipe's. greedy_first: the first text of each structure takes the
    most likely token every time. Raises SparsegenValueError.
    """
    grammars = list(grammars) if grammars is not None else [None] * len(structures)
    if not len(structures) == len(languages) == len(counts) == len(grammars):
        sizes = f"{len(structures)}, {len(languages)}, {len(counts)} and {len(grammars)}"
        raise SparsegenValueError(f"structures, languages, counts and grammars of {sizes}; expected as many of each")
    if unknown := sorted(set(languages) - set(START)):
        raise SparsegenValueError(f"language {unknown[0]!r}; expected one of {', '.join(START)}")
    if not 0 < temperature < float("inf") or (top_k is not None and top_k < 1):
        got = f"temperature = {temperature}, top_k = {top_k}"
        raise SparsegenValueError(f"{got}; expected a temperature over 0, and a top_k of at least 1 or None")
    longest = min(longest or decoder.recipe.longest, decoder.recipe.longest)
    pieces = [tokenizer.piece(id).decode("latin-1") for id in range(tokenizer.size)]
    drafts = [
        [
            _Draft(
                pieces, grammar, np.random.default_rng([seed, i, j]), temperature, top_k, greedy_first and j == 0,
            )
            for j in range(count)
        ]
        for i, (count, grammar) in enumerate(zip(counts, grammars, strict=True))
    ]  # fmt: skip
    live = [each for group in drafts for each in group]
    if live:
        tokens = [START[language] for language, count in zip(languages, counts, strict=True) for _ in range(count)]
        rows = np.repeat(np.arange(len(counts)), counts)
        state = decoder.start(decoder.remember(encoder.batch(structures)), rows)
    while live:
        logits = decoder.step(state, np.array(tokens))
        logs = log_softmax(logits)
        going = [place for place, each in enumerate(live) if each.take(logits[place], logs[place], longest)]
        if going and len(going) < len(live):
            state = decoder.keep(state, np.array(going))
        live = [live[place] for place in going]
        tokens = [each.tokens[-1] for each in live]
    return [[each.sample(tokenizer) for each in group] for group in drafts]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Logarithms of the probabilities (N, V) that logits (N, V) mean."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


class _Draft:
    """A sample under way."""

    def __init__(self, pieces, grammar: Grammar | None, rng, temperature: float, top_k: int | None, greedy: bool):
        self.pieces, self.rng, self.temperature, self.top_k, self.greedy = pieces, rng, temperature, top_k, greedy
        self.state = grammar.start() if grammar is not None else None
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.finished = False
        self.stopped = ""

    def take(self, logits: np.ndarray, logs: np.ndarray, longest: int) -> bool:
        """Draw one token from logits (V,); False when the sample has ended."""
        token = self._draw(logits)
        if token is None:
            return False
        self.tokens.append(token)
        self.logprobs.append(float(logs[token]))
        self.finished = token == END
        if token in (PAD, CUDA, CPP):
            self.stopped = "a token that stands for no text"
        elif self.finished and self.state is not None and (reason := self.state.refusal()):
            self.finished, self.stopped = False, f"hopeless: {reason}"
        elif not self.finished and len(self.tokens) >= longest:
            self.stopped = "too long"
        elif not self.finished and self.state is not None:
            self.state.push(self.pieces[token])
        return not (self.finished or self.stopped)

    def _draw(self, logits: np.ndarray) -> int | None:
        for token in self._order(logits):
            if self._may(token):
                return token
        self.stopped = "hopeless: no likely token may follow " + repr(self.state.text[-30:] if self.state else "")
        return None

    def _order(self, logits: np.ndarray) -> Iterator[int]:
        """Tokens as they are drawn without putting back: at most MOST_TRIES."""
        count = len(logits) if self.top_k is None else min(self.top_k, len(logits))
        if self.greedy:
            first = np.argpartition(-logits, min(MOST_TRIES, len(logits) - 1))[:MOST_TRIES]
            yield from (int(token) for token in first[np.argsort(-logits[first], kind="stable")])
            return
        among = np.arange(len(logits)) if count == len(logits) else np.argpartition(-logits, count - 1)[:count]
        among.sort()  # the draw does not depend on how numpy partitions
        weights = np.exp((logits[among] - logits[among].max()).astype(np.float64) / self.temperature)
        for _ in range(min(MOST_TRIES, count)):
            steps = np.cumsum(weights)
            if not steps[-1] > 0:
                return
            place = int(np.searchsorted(steps, self.rng.random() * steps[-1], side="right"))
            place = min(place, len(weights) - 1)
            weights[place] = 0.0
            yield int(among[place])

    def _may(self, token: int) -> bool:
        if self.state is None:
            return True
        if token == END:
            return self.state.complete
        return self.pieces[token] != "" and self.state.may(self.pieces[token])

    def sample(self, tokenizer) -> Sample:
        return Sample(tokenizer.decode(self.tokens), self.tokens, self.logprobs, self.finished, self.stopped)
