"""Models that write given texts: what decoding needs of a checkpoint, with a token for every character."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from sparsegen.model.tokenizer import END

FIRST = 4  # ids below stand for no text
SIZE = FIRST + 256
SURE = 12.0  # the logit of what is played; others have 0


class Characters:
    """A tokenizer of single bytes."""

    size = SIZE

    def encode(self, text: str) -> list[int]:
        return [FIRST + byte for byte in text.encode()]

    def decode(self, ids) -> str:
        return b"".join(map(self.piece, ids)).decode("utf-8", "replace")

    def piece(self, id: int) -> bytes:
        return bytes([id - FIRST]) if id >= FIRST else b""


@dataclass
class Playing:
    rows: np.ndarray  # (N,) sample -> text
    position: int = 0


class Playback:
    """A decoder whose sample j writes texts[j % len(texts)], as surely as `sure` says, then END."""

    def __init__(self, texts: list[str], sure: float = SURE, longest: int = 4000) -> None:
        self.recipe = SimpleNamespace(longest=longest, embedding="windows", tokens=16)
        self.texts = [[*Characters().encode(text), END] for text in texts]
        self.sure = sure
        self.widths: list[int] = []  # samples of each step
        self.reads: list[int] = []  # tokens of each reading

    def remember(self, batch) -> int:
        return len(batch.mask)

    def start(self, memory: int, rows: np.ndarray) -> Playing:
        assert (rows >= 0).all() and (rows < memory).all()
        return Playing(np.arange(len(rows)) % len(self.texts))

    def step(self, state: Playing, tokens: np.ndarray) -> np.ndarray:
        assert len(tokens) == len(state.rows)
        self.widths.append(len(tokens))
        logits = np.zeros((len(tokens), SIZE), np.float32)
        for place, row in enumerate(state.rows):
            text = self.texts[row]
            logits[place, text[min(state.position, len(text) - 1)]] = self.sure
        state.position += 1
        return logits

    def read(self, state, tokens: np.ndarray) -> np.ndarray:
        self.reads.append(tokens.shape[1])
        return np.stack([self.step(state, column) for column in tokens.T], 1)

    def keep(self, state: Playing, rows: np.ndarray) -> Playing:
        return Playing(state.rows[rows], state.position)

    def fork(self, state, rows: np.ndarray):
        return self.keep(state, rows)

    def back(self, state: Playing, position: int) -> None:
        state.position = min(position, state.position)


class Mixture(Playback):
    """A decoder that writes texts[i] with a probability in proportion to weights[i], by default half as likely each as
    the one before. Where it goes wrong, it likes bytes that are in no kernel."""

    def __init__(self, texts: list[str], weights: list[float] | None = None, **options) -> None:
        super().__init__(texts, **options)
        self.weights = weights or [0.5**place for place in range(len(texts))]

    def start(self, memory: int, rows: np.ndarray) -> list[list[int]]:
        assert (rows >= 0).all() and (rows < memory).all()
        return [[] for _ in rows]

    def step(self, state: list[list[int]], tokens: np.ndarray) -> np.ndarray:
        assert len(tokens) == len(state)
        self.widths.append(len(tokens))
        logits = np.zeros((len(tokens), SIZE), np.float32)
        logits[:, -64:] = 1.0
        for line, past, token in zip(logits, state, tokens.tolist(), strict=True):
            past.append(token)
            written, following = past[1:], np.zeros(SIZE)  # behind the language
            for text, weight in zip(self.texts, self.weights, strict=True):
                if text[: len(written)] == written and len(text) > len(written):
                    following[text[len(written)]] += weight
            likely = following > 0
            line[likely] = self.sure + np.log(following[likely] / sum(self.weights))
        return logits

    def keep(self, state: list[list[int]], rows: np.ndarray) -> list[list[int]]:
        return [list(state[row]) for row in rows]

    def back(self, state: list[list[int]], position: int) -> None:
        for past in state:
            del past[position:]


def checkpoint(*texts: str, **options) -> SimpleNamespace:
    """What `proposers.checkpoint_of` gives: a model that likes each text better than the next."""
    decoder = Mixture(list(texts), **options)
    return SimpleNamespace(
        path=Path("played-0a1b2c"), recipe=decoder.recipe, tokenizer=Characters(), decoder=decoder, card={}
    )
