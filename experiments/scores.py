"""What the kernels of an ablation's arm are worth on families it never saw.

Scored are SAMPLES texts for each of PROBLEMS problems, the same for all arms, at temperature 1 from all tokens, with no
grammar. A template instance is looked up in the two held-out measurements, anything else is measured twice as well: by
the first the fastest of k is taken, and it is worth its speed in the second. Where none of the k is right, the best
library serves. Texts of a problem are alike but for chance, so what one text reaches is a mean over all of them, and
what the fastest of four reaches one over the disjoint fours.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from arms import MOST_ENTRIES, Bench, Trained
from study import Problem, problems

from sparsegen import candidate, metrics
from sparsegen.errors import SparsegenValueError
from sparsegen.model import encoder
from sparsegen.model.decoder import Decoder
from sparsegen.model.recipe import Recipe
from sparsegen.model.sample import Sample, sample
from sparsegen.train import rl
from sparsegen.train.rewards import Outcome
from sparsegen.train.rl import Prompt
from sparsegen.train.verdicts import Verdicts
from sparsegen.verdict import Level

PROBLEMS, SAMPLES = 40, 16
FEW, MANY = 4, 8  # texts: to take the fastest of, and of pass@k
TOGETHER = 8  # problems sampled for at once
SEED = 20260  # of what is the same for all arms
LOSS = 0.03  # slower than the best library by more than this and the null pair's spread


class HeldOut:
    """The problems that arms are scored on, and what is known of kernels for them."""

    def __init__(self, bench: Bench, count: int = PROBLEMS, samples: int = SAMPLES):
        small = [each for each in problems(bench.corpus) if each.line["nnz"] <= MOST_ENTRIES]
        pool = [each for each in small if not each.synthetic] or small
        if not pool:
            raise SparsegenValueError(f"every held-out problem of {bench.corpus} has over {MOST_ENTRIES} entries")
        picks = np.random.default_rng(SEED).permutation(len(pool))[:count]
        self.found, self.samples = [pool[each] for each in sorted(picks)], samples
        lines = [[each.line for each in self.found], [each.again for each in self.found]]
        self.first = Verdicts(lines[0], bench.matrices, bench.out / "judged_held_out.jsonl", seed=20269)
        self.second = Verdicts(lines[1], bench.matrices, bench.out / "judged_held_out_again.jsonl", seed=20271)
        self._prompts: dict[tuple[str, int], list[Prompt]] = {}

    def score(self, trained: Trained) -> dict:
        """The figures of an arm, and a row per problem."""
        prompts = self._shown(trained.recipe)
        written = texts(trained, prompts, self.samples)
        outcomes = [
            rl.judged(self.first.judge, prompt, group, frozenset(encoder.TECHNIQUES))
            for prompt, group in zip(prompts, written, strict=True)
        ]
        keys = [self._right(*each) for each in zip(self.found, written, outcomes, strict=True)]
        return figures(self.found, outcomes, keys)

    def _shown(self, recipe: Recipe) -> list[Prompt]:
        how = recipe.embedding, recipe.tokens
        if how not in self._prompts:
            posed = [(f"{each.line['key']} cpp", self.first.opened(each.line["key"])[1]) for each in self.found]
            self._prompts[how] = [Prompt(name, "cpp", encoder.encode(problem, *how)) for name, problem in posed]
        return self._prompts[how]

    def _right(self, problem: Problem, group: Sequence[Sample], outcomes: Sequence[Outcome]) -> list[str]:
        """Keys of the kernels that are right in both measurements, "" for the others."""
        keys = [
            candidate.parse(each.text, language="cpp").key if outcome.speedup else ""
            for each, outcome in zip(group, outcomes, strict=True)
        ]
        new = {
            key: (each.text, outcome.speedup)
            for key, each, outcome in zip(keys, group, outcomes, strict=True)
            if key and (key not in problem.chosen or key not in problem.scored)
        }
        again = self.second.judge(f"{problem.line['key']} cpp", [text for text, _ in new.values()])
        for (key, (_, speedup)), outcome in zip(new.items(), again, strict=True):
            if outcome.speedup:
                problem.chosen[key], problem.scored[key] = speedup, outcome.speedup
        return [key if key in problem.chosen and key in problem.scored else "" for key in keys]


def texts(trained: Trained, prompts: Sequence[Prompt], count: int) -> list[list[Sample]]:
    """The declared decoding: `count` texts of each problem at temperature 1, nothing masked."""
    decoder = Decoder(trained.recipe, trained.weights)
    found: list[list[Sample]] = []
    for first in range(0, len(prompts), TOGETHER):
        part = prompts[first : first + TOGETHER]
        found += sample(
            decoder, trained.tokenizer, [each.structure for each in part], [each.language for each in part],
            [count] * len(part), temperature=1.0, top_k=None, seed=SEED + first,
        )  # fmt: skip
    return found


def figures(found: Sequence[Problem], outcomes: Sequence[Sequence[Outcome]], keys: Sequence[Sequence[str]]) -> dict:
    """What the texts of some problems come to: outcomes and, of the right ones, keys, of each in the same order.

    parse, compile, pass_1, pass_8   chance that a text parses, compiles, is right, and that one of eight is
    speed, gflops                    of the right texts, geometric means: over the best library, and 10^9 / s
    fraction_1, fraction_4           speed over the template optimum's, of one text and of the fastest of four
    median_4, p10_4, losses          of speed over the best library, over problems, with the fastest of four
    distinct                         different right kernels of a problem
    """
    parsed = [[each.level >= Level.PARSED or each.fault == "screen" for each in group] for group in outcomes]
    compiled = [[each.level >= Level.COMPILED for each in group] for group in outcomes]
    right = [[bool(key) for key in group] for group in keys]
    rows, speeds, rates = [], [], []
    for problem, group in zip(found, keys, strict=True):
        line = problem.line
        fours = [group[at : at + FEW] for at in range(0, len(group), FEW)]
        own = [problem.scored[key] for key in group if key]
        speeds += own
        flops = 2.0 * line["nnz"] * line["k"]
        rates += [metrics.gflops(flops, line["baselines"][line["best"]] / each) for each in own]
        rows.append(
            {
                "problem": line["key"], "matrix": line["matrix"], "right": len(own), "distinct": len(set(group) - {""}),
                "fraction_1": metrics.geomean([problem.fraction([key]) for key in group]),
                "fraction_4": metrics.geomean([problem.fraction(four) for four in fours]),
                "speed_4": metrics.geomean([problem.value(four) for four in fours]),
            }
        )  # fmt: skip
    over = np.array([row["speed_4"] for row in rows])
    least = np.array([1 - max(LOSS, problem.line["spread"]) for problem in found])
    return {
        "parse": metrics.pass_at_k(parsed, 1), "compile": metrics.build_at_k(compiled, 1),
        "pass_1": metrics.pass_at_k(right, 1), "pass_8": metrics.pass_at_k(right, MANY),
        "speed": metrics.geomean(speeds) if speeds else None, "gflops": metrics.geomean(rates) if rates else None,
        "fraction_1": metrics.geomean([row["fraction_1"] for row in rows]),
        "fraction_4": metrics.geomean([row["fraction_4"] for row in rows]),
        "median_4": float(np.median(over)), "p10_4": float(np.percentile(over, 10)),
        "losses": int((over < least).sum()), "distinct": float(np.mean([row["distinct"] for row in rows])),
        "problems": rows,
    }  # fmt: skip
