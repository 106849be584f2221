"""The kernels that a trained model proposes for a problem: what its beam wrote, read and held to the problem."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from sparsegen.candidate import Candidate
from sparsegen.model import encoder, guesses
from sparsegen.model.beam import OUT_OF_TIME, beam
from sparsegen.model.grammar import Grammar
from sparsegen.problem import Problem

COUNT = 4  # texts of a problem


@dataclass
class Proposal:
    """Kernels that the model wrote for one problem, the best guess first, and what that took. Iterating gives them."""

    candidates: list[Candidate] = field(default_factory=list)
    samples: int = 0  # texts
    duplicates: int = 0
    illegal: int = 0  # texts that are no kernel for the problem
    unfinished: int = 0  # texts that there was no time for
    encode_ms: float = 0.0
    sample_ms: float = 0.0

    def __iter__(self) -> Iterator[Candidate]:
        return iter(self.candidates)


def propose(problem: Problem, checkpoint, count: int = COUNT, *, seconds: float | None = None) -> Proposal:
    """Distinct kernels for a problem that parse, hold its matrix and pass the screen, of `count` texts of a checkpoint.

    The likeliest header comes first. seconds: for all of it, after which what is unfinished is given up.
    """
    started = time.perf_counter()
    recipe, grammar = checkpoint.recipe, Grammar(problem)
    structure = encoder.encode(problem, recipe.embedding, recipe.tokens)
    encoded = time.perf_counter()
    left = None if seconds is None else seconds - (encoded - started)
    tokenizer = checkpoint.tokenizer
    guess = guesses.of(grammar.language, problem.op, tokenizer)
    (texts,) = beam(checkpoint.decoder, tokenizer, [structure], [grammar], count, seconds=left, guess=guess)
    proposal = Proposal(samples=len(texts), encode_ms=(encoded - started) * 1e3)
    seen: set[str] = set()
    for each in texts:
        found = grammar.reading(each.text) if each.finished else None
        if each.stopped == OUT_OF_TIME:
            proposal.unfinished += 1
        elif not isinstance(found, Candidate):
            proposal.illegal += 1
        elif found.key in seen:
            proposal.duplicates += 1
        else:
            seen.add(found.key)
            proposal.candidates.append(replace(found, name=f"model_{found.key[:6]}"))
    proposal.sample_ms = (time.perf_counter() - encoded) * 1e3
    return proposal
