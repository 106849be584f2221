"""The kernel files of cpu_templates/ and cuda_templates/, and which of them to try for a problem, best guess first."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache, cached_property

import numpy as np

from sparsegen import candidate, composite, formats, paths, values
from sparsegen.candidate import Candidate
from sparsegen.errors import SparsegenValueError
from sparsegen.problem import Pattern, Problem

FOLDERS = {"cpp": ("cpu_templates", ".cpp"), "cuda": ("cuda_templates", ".cu")}
REPEAT = 1.04  # a further instance of a template counts as slower by this: the first few should differ


@cache
def load(language: str) -> tuple[Candidate, ...]:
    """Every template of a language, "cpp" or "cuda", by op and name."""
    if language not in FOLDERS:
        raise SparsegenValueError(f"language is {language!r}; templates are written in {', '.join(FOLDERS)}")
    folder, suffix = FOLDERS[language]
    files = sorted(paths.data(folder).glob(f"*/*{suffix}"))
    return tuple(
        candidate.parse(file.read_text(), name=file.stem, origin="template", language=language) for file in files
    )


def get(name: str, op: str = "spmv", language: str = "cpp") -> Candidate:
    """The template `name`. Raises SparsegenValueError when there is no such file."""
    found = {each.name: each for each in load(language) if each.op == op}
    if name not in found:
        raise SparsegenValueError(f"no {language} template {name!r} for {op}; there are {', '.join(found)}")
    return found[name]


def propose(problem: Problem) -> Iterator[Candidate]:
    """Instances of templates that can compute `problem`, the most promising first.

    The order is that of a guess from cheap features of the pattern; whether an instance is feasible is asked only when
    its turn comes.
    """
    for each in _ordered(problem):
        if refusal(each, problem) is None:
            yield each


def refusals(problem: Problem) -> list[tuple[str, str]]:
    """(label, reason) of every instance that `propose` leaves out."""
    found = ((each.label, refusal(each, problem)) for each in _ordered(problem))
    return [(label, reason) for label, reason in found if reason]


def refusal(each: Candidate, problem: Problem) -> str | None:
    """One sentence why this candidate cannot be used for the problem, or None."""
    if problem.deterministic and re.search(r"\bATOMIC_ADD(_C)?\b|\batomicAdd\b", each.source):
        return "the order of its atomic additions is not the same in every run"
    return values.feasible(each.encoding, problem) or composite.feasible(each, problem)


def _ordered(problem: Problem) -> Iterator[Candidate]:
    language = "cpp" if problem.target == "cpu" else "cuda"
    features = Features(problem.pattern)
    guess = _cpu_guess if language == "cpp" else _cuda_guess
    offered = [each for file in load(language) if file.op == problem.op for each in candidate.instances(file)]
    left = sorted((guess(each, problem, features), i, each) for i, each in enumerate(offered))
    yield from (each for _, _, each in left)


class Features:
    def __init__(self, pattern: Pattern):
        self.pattern = pattern


def _cpu_guess(each: Candidate, problem: Problem, features: Features) -> float:
    order = {"sell_slice": 1, "csr_vector": 1.5, "csr_scalar": 2}
    gain = {"full": 1.0, "f32": 0.9, "constant": 0.6}[each.encoding]
    return order.get(each.name, 3) * gain + 0.1 * (each.params.get("SLICE", 8) != 8)


def _cuda_guess(each: Candidate, problem: Problem, features: Features) -> float:
    return 1.0
