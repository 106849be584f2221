"""What is tried for a problem, in order: the likeliest template, then kernels of the model and templates in turn.

A proposer is anything that yields candidates for a problem; the search knows no difference between them. The first
guess of the model is about as good as that of the templates' rule, and they fail on other matrices: where a search is
too short for all, one of each is worth more than two of either, and the rule's costs nothing. The model costs some
tenths of a second, so it is left out where a search is shorter than that pays for, and it never ends a search: when it
fails, one note says so and the templates go on.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sparsegen import paths, templates
from sparsegen.candidate import Candidate
from sparsegen.errors import SparsegenError
from sparsegen.problem import Problem

logger = logging.getLogger("sparsegen")

LEAST_BUDGET = 0.9  # seconds of a search that the model takes part in
SHARE = 0.35  # of a search's time, after which the model is stopped


class Proposers:
    """The candidates for one problem; iterate once. What the model did is in `report`, `ms` and `notes` afterwards.

    model: "auto" for the shipped checkpoint, "none", or the path of one. seconds: that the search may take. most:
    candidates that it may try. The model begins at once where a core is free of the search, and otherwise when the
    second candidate is asked for.
    """

    def __init__(self, problem: Problem, model: str, seconds: float, most: int | None = None) -> None:
        self.problem, self.model, self.seconds, self.most = problem, model, seconds, most
        self.report: dict = {"skipped": "the search did not come to it"}
        self.notes: list[str] = []
        self.ms = 0.0
        self._found: list[Candidate] = []
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._begun = False
        if _cores() > problem.useful_threads:
            self._begin()

    def __iter__(self) -> Iterator[Candidate]:
        known = templates.propose(self.problem)
        yield from itertools.islice(known, 1)
        self._begin()
        self._thread.join()
        for each in self._found:
            yield each
            yield from itertools.islice(known, 1)
        yield from known

    def ended(self) -> Proposers:
        """With nothing more to come from the model."""
        if self._begun:
            self._thread.join()
        return self

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            self._thread.start()

    def _sample(self) -> None:
        started = time.perf_counter()
        try:
            self._found = self._written()
        except Exception as error:  # a damaged checkpoint must not cost the search
            logger.info("the model failed", exc_info=error)
            reason = f"the model failed ({type(error).__name__}: {error})"
            self.report = {"skipped": reason}
            self.notes.append(f"{reason}; templates were tried")
        self.ms = (time.perf_counter() - started) * 1e3

    def _written(self) -> list[Candidate]:
        if self.model == "none":
            self.report = {"skipped": "it was not asked for"}
            return []
        if reason := no_part(self.seconds, self.most):
            self.report = {"skipped": reason}
            return []
        until = time.monotonic() + SHARE * self.seconds
        found = checkpoint_of(self.model)
        if isinstance(found, str):
            self.report = {"skipped": found}
            return []
        from sparsegen.model.proposal import propose

        proposal = propose(self.problem, found, seconds=until - time.monotonic())
        self.report = {
            "checkpoint": found.path.name, "samples": proposal.samples, "distinct": len(proposal.candidates),
            "duplicates": proposal.duplicates, "illegal": proposal.illegal, "unfinished": proposal.unfinished,
            "encode_ms": proposal.encode_ms, "sample_ms": proposal.sample_ms,
        }  # fmt: skip
        return proposal.candidates


_loaded: dict[tuple[str, str], Any] = {}


def checkpoint_of(model: str):
    """The checkpoint that `model` names, read once, or one sentence why none is shipped.

    Raises SparsegenError for a folder that holds none, or one that was made for another version.
    """
    from sparsegen.model import checkpoint, grammar  # not needed where the model is left out

    key = model, version(model)
    if key not in _loaded:
        found = checkpoint.default(grammar.VERSION) if model == "auto" else checkpoint.load(model, grammar.VERSION)
        if isinstance(found, str):
            return found
        _loaded[key] = found
    return _loaded[key]


def no_part(seconds: float, most: int | None) -> str | None:
    """Why no model takes part in a search of so many seconds and candidates; None where one does."""
    if seconds < LEAST_BUDGET:
        return f"a search of {seconds:.2g} s is too short for it"
    if most is not None and most < 2:
        return f"{most} candidates are tried at most, and a template is the first"
    return None


def versions(model: str, seconds: float, most: int | None) -> list[str]:
    """Of the models whose choices serve a search of so many seconds and candidates; its own is kept for the last.

    A choice of another model, or of none, is no choice of this one: but where this takes no part, one of none is.
    """
    return list(dict.fromkeys([version(model), "none"] if no_part(seconds, most) else [version(model)]))


def version(model: str) -> str:
    """What tells a model from the one that `model` named before, without reading all of it: the name of the shipped
    checkpoint, or a hash of the card of another, which holds those of its files."""
    if model == "none":
        return "none"
    try:
        if model == "auto":
            return paths.read(paths.data("models") / "default", 1 << 10).decode("utf-8", "replace").strip()
        return hashlib.blake2b(paths.read(Path(model) / "card.json", 1 << 20), digest_size=16).hexdigest()
    except (OSError, SparsegenError):
        return "unreadable"


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
