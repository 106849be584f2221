"""What does the model's first, best of two and best of four kernels reach on matrices of families it never saw?

    python -m sparsegen.train.corpus --matrices DIR --out FOLDER --held-out            # every template instance, to choose
    python -m sparsegen.train.corpus --matrices DIR --out FOLDER --held-out --again    # and again, to score
    python experiments/held_out.py --matrices DIR --corpus FOLDER --checkpoint models/NAME [--other LABEL=RUN ...]

The unit is a problem: a matrix with spmv f64, spmv f32 or spmm k = 32 f64, values opaque, one thread. A method is an
ordered list of kernels for it; at a budget of k the fastest of its first k is taken, by the first measurement, and is
worth its speed in the second, which was made by another process with other inputs' timing. A text that is no correct
kernel is a spent try; where all k are, the best baseline serves. The optimum is the fastest template instance, chosen
and scored in the same way. Figures are geometric means of speed over the optimum's, with 95 % bootstrap intervals over
matrices. What the model wrote that is no template instance is measured twice as well.

Results: results/held_out.md (tables), held_out.jsonl (every text of the model, its level, and where it stands).
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sparsegen import candidate, metrics
from sparsegen.errors import SparsegenError
from sparsegen.model import checkpoint, encoder
from sparsegen.model.beam import beam
from sparsegen.model.grammar import Grammar
from sparsegen.model.sample import sample
from sparsegen.record import Records, environment
from sparsegen.train import corpus, examples
from sparsegen.train.rewards import Outcome
from sparsegen.train.verdicts import Verdicts
from sparsegen.verdict import Level

import selectors_ as rivals

HERE = Path(__file__).resolve().parent
BUDGETS = (1, 2, 4)
LEAST_INSTANCES = 20
SEED = 20260


@dataclass
class Problem:
    """chosen, scored: speedup over the best baseline by kernel key, in the two measurements; order: as proposed."""

    line: dict
    chosen: dict[str, float]
    scored: dict[str, float]
    order: list[str]

    @property
    def kind(self) -> str:
        return f"{self.line['op']} {self.line['dtype']}" + (f" k={self.line['k']}" if self.line["op"] == "spmm" else "")

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
    """The problems that both measurements hold, with the instances correct in both."""
    first = Records(folder / "held_out.jsonl").known
    again = Records(folder / "held_out_again.jsonl").known
    found = []
    for key, line in first.items():
        if "kernels" not in line or "kernels" not in again.get(key, {}):
            continue
        chosen = {each["kernel"]: each["speedup"] for each in line["kernels"] if each["speedup"]}
        scored = {each["kernel"]: each["speedup"] for each in again[key]["kernels"] if each["speedup"]}
        order = [each["kernel"] for each in line["kernels"] if each["kernel"] in chosen and each["kernel"] in scored]
        if order:
            found.append(Problem(line, {k: chosen[k] for k in order}, {k: scored[k] for k in order}, order))
    return found


Write = Callable[[str, list[examples.Example]], list[list[str]]]


def texts(model, shown: list[encoder.Structure], grammars: list[Grammar], count: int) -> list[list[str]]:
    """The declared decoding: the likeliest headers in order, the likeliest body of each."""
    found = beam(model.decoder, model.tokenizer, shown, grammars, count)
    return [[each.text if each.finished else "" for each in group] for group in found]


def raw(model, shown, languages, *, grammars=None, greedy: bool) -> list[str]:
    """One sample each: no grammar, no mask, no early stop unless `grammars`."""
    found = []
    for first in range(0, len(shown), 64):
        part = slice(first, first + 64)
        found += sample(
            model.decoder, model.tokenizer, shown[part], languages[part], [1] * len(shown[part]),
            grammars=grammars[part] if grammars else None, temperature=1.0, top_k=None, seed=SEED, greedy_first=greedy,
        )  # fmt: skip
    return [group[0].text for group in found]


def table(rows: list[list[str]]) -> str:
    heads, *body = rows
    lines = ["| " + " | ".join(row) + " |" for row in (heads, ["---"] * len(heads), *body)]
    return "\n".join(lines)


def interval(found: metrics.Interval) -> str:
    return f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}]"


def levels(outcomes: list[Outcome], cuda: bool) -> list[str]:
    """Shares that parse, compile, and are correct (CUDA: whose format is feasible)."""
    count = len(outcomes)
    parsed = [each.level >= Level.PARSED or each.fault == "screen" for each in outcomes]
    compiled = [each.level >= Level.COMPILED for each in outcomes]
    last = [each.level >= Level.CORRECT for each in outcomes]
    if cuda:
        last = [good and each.fault != "infeasible" for good, each in zip(parsed, outcomes, strict=True)]
    return [f"{100 * sum(each) / count:.1f}" for each in (parsed, compiled, last)]


class Study:
    """One checkpoint on the held-out problems."""

    def __init__(self, name: str, model, found: list[examples.Example], options):
        self.name, self.model, self.found = name, model, found
        folder = options.corpus / "judged"
        lines = Records(options.corpus / "held_out.jsonl").known.values()
        again = Records(options.corpus / "held_out_again.jsonl").known.values()
        self.first = Verdicts(lines, options.matrices, folder / "held_out.jsonl", seed=20269)
        self.second = Verdicts(again, options.matrices, folder / "held_out_again.jsonl", seed=20271)
        self.grammars = [self._grammar(each) for each in found]

    def _grammar(self, example: examples.Example) -> Grammar:
        A, posed = self.first.opened(f"{example.task.key} {example.language}")
        return Grammar(posed)

    def keys(self, written: list[list[str]], problems: dict[str, Problem]) -> list[list[str]]:
        """Kernel keys of the texts for each example, "" for what is no correct kernel; measured where it is new."""
        keyed = []
        for example, group in zip(self.found, written, strict=True):
            keyed.append([self._key(example, text, problems[example.task.key]) for text in group])
        return keyed

    def _key(self, example, text: str, problem: Problem) -> str:
        try:
            key = candidate.parse(text, language=example.language).key
        except SparsegenError:
            return ""
        if key not in problem.chosen or key not in problem.scored:
            name = f"{example.task.key} {example.language}"
            (first,), (second,) = self.first.judge(name, [text]), self.second.judge(name, [text])
            if not first.speedup or not second.speedup:
                return ""
            problem.chosen[key], problem.scored[key] = first.speedup, second.speedup
        return key


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--matrices", type=Path, metavar="DIR")
    parser.add_argument("--corpus", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--checkpoint", type=Path, metavar="FOLDER", help="by default the one that ships")
    parser.add_argument("--other", action="append", default=[], metavar="LABEL=FOLDER", help="checkpoints to compare")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("--limit", type=int, help="only so many matrices")
    options = parser.parse_args()
    print(report(options))


if __name__ == "__main__":
    main()
