"""The small arm of the ablations: what may be varied, and how an arm is trained.

An arm is a model of models/arm.toml, about two million parameters, that goes through some of the three stages. All arms
take the same steps and are shown the same problems; `scaled` changes the steps of all. Stages that arms have in common
are trained once: the folder of a stage is named after all that it depends on, and goes on where it was cut. Pretraining
shows no nonzeros, so arms of every embedding begin from one pretraining, with a new layer to read them. Only C++ is
reinforced, since its kernels are measured here; what was measured for one arm is not measured for another.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from sparsegen import files
from sparsegen.model.generator import Generator
from sparsegen.model.recipe import Recipe
from sparsegen.model.tokenizer import Tokenizer
from sparsegen.train import lines, pretrain, rl, sft
from sparsegen.train.rl import RLConfig
from sparsegen.train.verdicts import Verdicts

STAGES = ("pretrain", "sft", "rl")
TEXTS = 3_000  # of pretraining, from the writer and from the templates each
MOST_ENTRIES = 400_000  # of the matrices that kernels are measured on


@dataclass(frozen=True)
class Arm:
    """What an ablation varies."""

    stages: tuple[str, ...] = STAGES  # one that is left out leaves the weights as they are
    embedding: str = "windows"
    label: str = "softmax"  # of sft
    fraction: float = 1.0  # of the matrices of the corpus, in sft and rl
    staged: bool = False  # in half of the updates of rl, not all techniques are permitted
    reinforced: Mapping[str, object] = field(default_factory=dict)  # changes to rl.RLConfig


@dataclass(frozen=True)
class Trained:
    """name: of the folder of its last stage. rewards, kl: kernels judged in rl, and how far it went from sft."""

    name: str
    recipe: Recipe
    tokenizer: Tokenizer
    weights: Mapping[str, np.ndarray]
    rewards: int = 0
    kl: float = 0.0


def scaled(recipe: Recipe, share: float) -> Recipe:
    """The recipe with this share of its steps."""

    def part(number: int, least: int = 1) -> int:
        return max(round(share * number), least)

    fits = {
        name: replace(each, steps=part(each.steps), warmup=part(each.warmup, 0))
        for name, each in (("pretrain", recipe.pretrain), ("sft", recipe.sft))
    }
    return replace(
        recipe, **fits, rl=replace(recipe.rl, updates=part(recipe.rl.updates), warmup=part(recipe.rl.warmup, 0))
    )


@dataclass(frozen=True)
class Bench:
    """What arms are trained on, and where. corpus: the folder of measured.jsonl, held_out.jsonl and
    held_out_again.jsonl; matrices: that of the real ones; out: that of the stages."""

    recipe: Recipe
    corpus: Path
    matrices: Path | None
    out: Path
    texts: int = TEXTS

    def train(self, arm: Arm, seed: int) -> Trained:
        """The arm through all its stages, those done before taken as they are."""
        recipe = replace(self.recipe, embedding=arm.embedding)
        facts: dict = {"recipe": asdict(self.recipe), "texts": self.texts, "seed": seed}
        texts = pretrain.PretrainConfig(self.recipe, "", (), self.texts, self.texts, seed)
        folder = self._once("pretrain", facts, seed, lambda out: pretrain.train(replace(texts, out=str(out))))
        tokens = folder / "tokenizer.json"  # of arms that are not pretrained as well
        learned = Tokenizer.load(tokens)
        facts |= {"corpus": _digest(sorted(line["key"] for line in self._lines())), "embedding": arm.embedding}
        begun = self._pretrained(folder, recipe, seed) if "pretrain" in arm.stages else None
        tuned = sft.SftConfig(
            recipe, str(self.corpus), self.matrices and str(self.matrices), begun and str(begun), str(tokens), "",
            arm.label, arm.fraction, seed,
        )  # fmt: skip
        facts["stages"] = [stage for stage in arm.stages if stage != "rl"]
        if "sft" in arm.stages:
            facts |= {"label": arm.label, "fraction": arm.fraction}
            begun = folder = self._once("sft", facts, seed, lambda out: sft.train(replace(tuned, out=str(out))))
        weights = sft.weights(recipe, begun) if begun else _fresh(recipe, seed).weights()
        if "rl" not in arm.stages:
            return Trained(folder.name, recipe, learned, weights)
        facts |= {"fraction": arm.fraction, "staged": arm.staged}
        facts |= {"stages": arm.stages, "reinforced": dict(arm.reinforced)}
        folder = self._once("rl", facts, seed, lambda out: self._reinforce(out, arm, tuned, learned, weights))
        log = files.lines(folder / "iterations.jsonl", "samples", "kl")
        judged = sum(each["samples"] for each in log)
        return Trained(folder.name, recipe, learned, rl.weights(recipe, folder), judged, log[-1]["kl"])

    def _pretrained(self, folder: Path, recipe: Recipe, seed: int) -> Path:
        """The pretrained run as one of another embedding: the layer that reads the nonzeros is a new one."""
        if recipe.embedding == self.recipe.embedding:
            return folder
        other = folder / recipe.embedding
        if not (other / "checkpoint.pt").exists():
            made = _fresh(recipe, seed)
            own = {name: array for name, array in made.weights().items() if name.startswith("coordinates.")}
            made.load(sft.weights(self.recipe, folder) | own)
            files.whole(other / "checkpoint.pt", lambda part: torch.save({"generator": made.state_dict()}, part))
        return other

    def _reinforce(self, folder: Path, arm: Arm, tuned: sft.SftConfig, learned: Tokenizer, weights) -> Mapping:
        recipe, measured = tuned.recipe, self._lines()
        small = {line["key"] for line in measured if line["nnz"] <= MOST_ENTRIES}
        kept = sft.share(sft.problems(tuned), arm.fraction, tuned.seed)
        prompts = rl.prompts([each for each in kept if each.language == "cpp" and each.task.key in small])
        verdicts = Verdicts(measured, self.matrices, self.out / "judged.jsonl")
        early = max(recipe.rl.updates // 6, 1) if arm.staged else 0  # for each of the three stages before the last
        changes = {"stage_updates": early, "seed": tuned.seed, **arm.reinforced}
        config = RLConfig.of(recipe, folder, **changes)
        return rl.train(config, prompts, verdicts.judge, recipe, learned, weights)

    def _lines(self) -> list[dict]:
        return lines.measured(self.corpus / "measured.jsonl")

    def _once(self, stage: str, facts: dict, seed: int, train: Callable[[Path], object]) -> Path:
        """The folder of a stage with these facts, trained now or before."""
        folder = self.out / f"{stage}-{_digest(facts)}"
        if not (folder / "done.json").exists():
            torch.manual_seed(seed)  # of the weights
            if train(folder) is None:
                raise SystemExit(f"stopped in {folder}; the same command goes on from there")
            files.whole(folder / "done.json", lambda part: part.write_text(json.dumps(facts, indent=1)))
        return folder


def _fresh(recipe: Recipe, seed: int) -> Generator:
    torch.manual_seed(seed)
    return Generator(recipe)


def _digest(facts: object) -> str:
    return hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=6).hexdigest()
