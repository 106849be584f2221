"""A checkpoint on the problems of held-out families: what it writes for them, and what becomes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from sparsegen import candidate
from sparsegen.candidate import Candidate
from sparsegen.errors import SparsegenError, SparsegenValueError
from sparsegen.model import encoder
from sparsegen.model.beam import beam
from sparsegen.model.checkpoint import Checkpoint
from sparsegen.model.grammar import Grammar
from sparsegen.model.sample import sample
from sparsegen.train import corpus, examples, lines
from sparsegen.train.corpus import Task
from sparsegen.train.examples import Example
from sparsegen.train.rewards import Outcome
from sparsegen.train.verdicts import Verdicts
from sparsegen.verdict import Level

BUDGETS = (1, 2, 4)
TOGETHER = 64  # samples drawn at once
SEED = 20260


@dataclass
class Problem:
    """line, again: of the two measurements; chosen, scored: speedup over the best baseline by kernel key in each;
    order: as proposed."""

    line: dict
    again: dict
    chosen: dict[str, float]
    scored: dict[str, float]
    order: list[str]

    @staticmethod
    def kind_of(task: Task) -> str:
        return f"{task.op} {task.dtype}" + (f" k={task.k}" if task.op == "spmm" else "") + f" {task.facts}"

    @property
    def kind(self) -> str:
        return self.kind_of(corpus.task_of(self.line))

    @property
    def synthetic(self) -> bool:
        return self.line["matrix"].startswith(corpus.SYNTHETIC)

    @property
    def optimum(self) -> float:
        return self.scored[max(self.order, key=lambda each: self.chosen[each])]

    def value(self, kernels: Sequence[str]) -> float:
        """Speedup of what is taken of `kernels`: 1 where none is right."""
        right = [each for each in kernels if each in self.chosen and each in self.scored]
        return self.scored[max(right, key=lambda each: self.chosen[each])] if right else 1.0

    def fraction(self, kernels: Sequence[str]) -> float:
        return self.value(kernels) / self.optimum


def problems(folder: Path) -> list[Problem]:
    """The problems that both measurements hold, with the instances correct in both. Raises SparsegenValueError for
    none."""
    first, again = lines.measured(folder / "held_out.jsonl"), lines.measured(folder / "held_out_again.jsonl")
    twice = {line["key"]: line for line in again}
    found = []
    for line in (each for each in first if each["key"] in twice):
        again_line = twice[line["key"]]
        chosen = {each["kernel"]: each["speedup"] for each in line["kernels"] if each["speedup"]}
        scored = {each["kernel"]: each["speedup"] for each in again_line["kernels"] if each["speedup"]}
        order = [each["kernel"] for each in line["kernels"] if each["kernel"] in chosen and each["kernel"] in scored]
        if order:
            kept = ({name: speeds[name] for name in order} for speeds in (chosen, scored))
            found.append(Problem(line, again_line, *kept, order))
    if not found:
        how = "measure them with python -m sparsegen.train corpus --held-out, and --again"
        raise SparsegenValueError(f"{folder} has no held-out problems that were measured twice; {how}")
    return found


class Study:
    """shown: the problems as the model sees them, in C++; texts: the right ones it wrote, by problem and kernel key."""

    def __init__(self, model: Checkpoint, found: list[Problem], folder: Path, matrices: Path | None):
        self.model, self.found = model, found
        self.lines = [each.line for each in found]
        self.first = Verdicts(self.lines, matrices, folder / "judged_held_out.jsonl", seed=20269)
        again = [each.again for each in found]  # what is scored was not measured to choose by, be it the same code
        self.second = Verdicts(again, matrices, folder / "judged_held_out_again.jsonl", seed=20271)
        recipe = model.recipe
        kept = folder / f"held_out-{recipe.embedding}-{recipe.tokens}.npz"
        built = examples.build(
            self.lines, matrices, kept, embedding=recipe.embedding, tokens=recipe.tokens, variants=1, seed=SEED
        )
        by_key = {(each.task.key, each.language): each for each in built}
        self.examples = {
            language: [by_key[line["key"], language] for line in self.lines if (line["key"], language) in by_key]
            for language in ("cpp", "cuda")
        }
        self.shown = self.examples["cpp"]
        if len(self.shown) < len(found):
            raise SparsegenValueError(f"{folder} was measured with templates that are gone; expected it measured again")
        self.texts: dict[tuple[str, str], str] = {}
        self._grammars: dict[tuple[str, str], Grammar] = {}

    def grammar(self, example: Example) -> Grammar:
        key = (example.task.key, example.language)
        if key not in self._grammars:
            A, _ = self.first.opened(example.task.key)
            self._grammars[key] = Grammar(corpus.problem(example.task, A, example.language))
        return self._grammars[key]

    def written(self, count: int, structures: Sequence[encoder.Structure] | None = None) -> list[list[str]]:
        """Kernel keys of `count` texts in the declared decoding (beam.py) for each problem, "" for a failure."""
        keyed = []
        for place, (example, each) in enumerate(zip(self.shown, self.found, strict=True)):
            shown = structures[place] if structures else example.structures[0]
            (texts,) = beam(self.model.decoder, self.model.tokenizer, [shown], [self.grammar(example)], count)
            keys = [self._key(example, each, text.text) if text.finished else "" for text in texts]
            keyed.append(keys + [""] * (count - len(keys)))
        return keyed

    def controlled(self, name: str) -> list[list[str]]:
        """The first kernel when the model is given other tokens than the problem's own."""
        own = [each.structures[0] for each in self.shown]
        if name == "another matrix":  # of the same kind of problem, its conditions kept
            given = list(own)
            rng = np.random.default_rng(SEED)
            for kind in {each.kind for each in self.found}:
                places = [place for place, each in enumerate(self.found) if each.kind == kind]
                for place, other in zip(places, np.roll(rng.permutation(places), 1), strict=True):
                    given[place] = replace(own[int(other)], conditions=own[place].conditions)
        elif name == "coordinates only":
            given = [replace(each, statistics=np.zeros_like(each.statistics)) for each in own]
        else:
            given = [replace(each, coordinates=each.coordinates[:0]) for each in own]
        return self.written(1, given)

    def _key(self, example: Example, each: Problem, text: str) -> str:
        try:
            key = candidate.parse(text, language=example.language).key
        except SparsegenError:
            return ""
        if key not in each.chosen or key not in each.scored:
            name = f"{example.task.key} {example.language}"
            (first,), (second,) = self.first.judge(name, [text]), self.second.judge(name, [text])
            if not first.speedup or not second.speedup:
                return ""
            each.chosen[key], each.scored[key] = first.speedup, second.speedup
        self.texts[example.task.key, key] = text
        return key

    def judged(self, language: str, texts: list[str]) -> list[Outcome]:
        """What becomes of one text for each problem."""
        outcomes = []
        for example, text in zip(self.examples[language], texts, strict=True):
            outcomes += self.first.judge(f"{example.task.key} {language}", [text])
        return outcomes

    def first_kernels(self, language: str) -> list[Candidate]:
        """The greedy kernels of each problem that parse."""
        found = []
        for text in raw(self, language, greedy=True, masked=True):
            try:
                found.append(candidate.parse(text, language=language))
            except SparsegenError:
                continue
        return found

    def is_new(self, each: Problem, key: str) -> bool:
        """Whether the machine code, on its packing, is that of no template instance of the problem."""
        binaries = {one["binary"] for one in each.line["kernels"]}
        entry = self.first.known(f"{each.line['key']} cpp", key)
        return entry is not None and key not in each.order and entry["binary"] not in binaries


def raw(study: Study, language: str, *, greedy: bool = False, masked: bool = False) -> list[str]:
    """One text for each problem: no grammar, no mask and no early stop unless `masked`."""
    found: list[str] = []
    every = study.examples[language]
    for first in range(0, len(every), TOGETHER):
        part = every[first : first + TOGETHER]
        texts = sample(
            study.model.decoder, study.model.tokenizer, [each.structures[0] for each in part], [language] * len(part),
            [1] * len(part), grammars=[study.grammar(each) for each in part] if masked else None,
            temperature=1.0, top_k=None, seed=SEED, greedy_first=greedy,
        )  # fmt: skip
        found += [group[0].text for group in texts]
    return found


def levels(outcomes: list[Outcome], cuda: bool) -> list[str]:
    """Shares that parse, that compile, and that are correct (CUDA: that parse and whose format holds the matrix)."""
    parsed = [each.level >= Level.PARSED or each.fault == "screen" for each in outcomes]
    compiled = [each.level >= Level.COMPILED for each in outcomes]
    last = [each.level >= Level.CORRECT for each in outcomes]
    if cuda:
        last = [good and each.fault != "infeasible" for good, each in zip(parsed, outcomes, strict=True)]
    return [f"{100 * sum(each) / max(len(outcomes), 1):.1f}" for each in (parsed, compiled, last)]
