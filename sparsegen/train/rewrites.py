"""Kernel files said in other words: rewrites of an instance that keep what it computes.

SPELLING holds those that leave a compiler nothing new to decide (spelling.py), SCHEDULE those that may change the
machine code and so the speed (schedule.py); by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from sparsegen import prelude, targets
from sparsegen.candidate import Candidate
from sparsegen.errors import SparsegenValueError
from sparsegen.screen.words import FOREIGN, KEYWORDS
from sparsegen.train import schedule, spelling
from sparsegen.train.idioms import TAKEN
from sparsegen.train.source import WORDS, Kernel, Source, Unclear, tidy

MOST = 6  # rewrites of one kernel, where a caller does not say
Rewrite = Callable[[Source, Kernel], str | None]
SPELLING: dict[str, Rewrite] = {
    name: getattr(spelling, name)
    for name in (
        "rename", "step", "loop", "name_part", "inline", "swap", "braces", "accumulate", "commute", "spell", "const",
        "comment", "resolve",
    )
}  # fmt: skip
SCHEDULE: dict[str, Rewrite] = {"unroll": schedule.unroll, "split_sum": schedule.split_sum}


def names() -> list[str]:
    return [*SPELLING, *SCHEDULE]


def rewrite(
    candidate: Candidate, rng: np.random.Generator, only: Sequence[str] | None = None, count: int | None = None
) -> Candidate:
    """The candidate in other words: `count` rewrites, or a few, of those in `only`, or of all.

    A rewrite that finds nothing to do, or whose result the screen does not let through, leaves it as it was.
    Raises SparsegenValueError for a template with [tune] lists and for unknown rewrites.
    """
    if candidate.tune:
        raise SparsegenValueError(f"{candidate.name or 'the candidate'} is a template; rewrite one of its instances")
    chosen = list(only) if only is not None else names()
    if unknown := sorted(set(chosen) - set(names())):
        raise SparsegenValueError(f"unknown rewrites {unknown}; there are {', '.join(names())}")
    for _ in range(int(rng.integers(1, MOST + 1)) if count is None else count):
        name = chosen[int(rng.integers(len(chosen)))]
        done = apply(candidate, name, rng)
        if done is not None and screened(done) is None:
            candidate = done
    return candidate


def apply(candidate: Candidate, name: str, rng: np.random.Generator) -> Candidate | None:
    """One rewrite, tidied and not yet screened; None where it finds nothing to do."""
    try:
        text = {**SPELLING, **SCHEDULE}[name](Source(candidate.source), _kernel(candidate, rng))
    except Unclear:
        return None
    return None if text is None else replace(candidate, source=tidy(text))


def screened(candidate: Candidate) -> str | None:
    return targets.get("cpu" if candidate.language == "cpp" else "cuda").screen(candidate)


def _kernel(candidate: Candidate, rng: np.random.Generator) -> Kernel:
    signature = {name for part in candidate.parts for name, _ in prelude.arguments(candidate, part)}
    entries = {launch.entry for _, launch in prelude.entries(candidate)}
    kept = signature | entries | {"begin", "end"}
    words = set(WORDS.findall(prelude.text(candidate.language)))
    taken = kept | words | TAKEN | KEYWORDS | FOREIGN | set(candidate.params)
    integers = {name: value for name, value in candidate.params.items() if isinstance(value, int)}
    return Kernel(candidate.language == "cuda", frozenset(kept), frozenset(taken), integers, rng)
