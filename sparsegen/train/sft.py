"""Stage 2: from a matrix to a kernel that is right for it.

Learns from the measured kernels of the corpus; `label` says which of the right ones is the answer.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from sparsegen import candidate
from sparsegen.errors import SparsegenError, SparsegenValueError
from sparsegen.model import encoder
from sparsegen.model.decoder import Decoder
from sparsegen.model.generator import Generator
from sparsegen.model.recipe import Recipe
from sparsegen.model.sample import sample
from sparsegen.model.tokenizer import END, START, Tokenizer
from sparsegen.train import corpus, examples, lines, techniques
from sparsegen.train.examples import LABELS, Example
from sparsegen.train.fit import fit, initial
from sparsegen.train.run import Run, kept

HEADERS = 0.65  # of the batches, of headers alone: a header says which kernel it is, and is a third as long
CUDA_SHARE = 0.25  # of the examples drawn
RESTRICTED = 0.15  # of them with a smaller set of permitted techniques
OTHER_THREADS = 0.3  # of them said to be for more threads than the one they were measured with
VARIANTS = 4  # samples of the coordinates of each matrix
WATCHED, WATCH_EVERY = 60, 500  # validation problems, steps


@dataclass(frozen=True)
class SftConfig:
    recipe: Recipe
    corpus: str  # folder with measured.jsonl
    matrices: str | None  # folder of the real ones
    pretrained: str | None  # run of stage 1; None: from scratch, with its tokenizer all the same
    tokenizer: str
    out: str
    label: str = "softmax"
    fraction: float = 1.0  # of the matrices
    seed: int = 20260


def problems(config: SftConfig) -> list[Example]:
    """The examples of the corpus. Held-out families, should there be any in it, are not even looked at."""
    held = corpus.held_out_families()
    every = lines.measured(Path(config.corpus) / "measured.jsonl")
    kept = [line for line in every if not (line["held_out"] or line["family"] in held)]
    if not kept:
        raise SparsegenValueError(f"nothing to learn from in {config.corpus}; expected what the stage corpus measures")
    recipe = config.recipe
    before = Path(config.corpus) / f"examples-{recipe.embedding}-{recipe.tokens}.npz"
    folder = Path(config.matrices) if config.matrices else None
    return examples.build(
        kept, folder, before, embedding=recipe.embedding, tokens=recipe.tokens, variants=VARIANTS, seed=20260
    )


def share(found: list[Example], fraction: float, seed: int) -> list[Example]:
    """The examples of a fraction of the matrices, at least one, drawn at random; those that training is watched by."""
    matrices = sorted({each.task.matrix for each in found if not each.validation})
    order = np.random.default_rng([seed, 2]).permutation(matrices)
    drawn = set(order[: max(1, round(fraction * len(matrices)))].tolist())
    return [each for each in found if each.validation or each.task.matrix in drawn]


def shown(example: Example, rng: np.random.Generator, permitted: frozenset[str] | None = None) -> encoder.Structure:
    """One of the example's structures, with its conditions varied where the answer does not depend on them."""
    structure = example.structures[rng.integers(len(example.structures))]
    if permitted is not None:
        structure = encoder.permit(structure, permitted)
    if rng.random() < OTHER_THREADS:
        structure = encoder.said_for(structure, int(rng.choice([2, 4, 8, 16])))
    return structure


def watch(found: list[Example], recipe: Recipe, learned: Tokenizer):
    """Share of validation problems whose first, greedy text is a known right kernel; its speed over the fastest's."""
    watched = sorted((each for each in found if each.language == "cpp"), key=lambda each: each.task.key)
    picks = np.random.default_rng(20260).permutation(len(watched))[:WATCHED]
    chosen = [watched[each] for each in picks]

    def measure(generator: Generator, step: int) -> dict:
        decoder = Decoder(recipe, generator.weights())
        texts = sample(
            decoder, learned, [each.structures[0] for each in chosen], [each.language for each in chosen],
            [1] * len(chosen), temperature=1.0, top_k=1, seed=20260, longest=recipe.longest,
        )  # fmt: skip
        known, fractions = 0, []
        for example, (first,) in zip(chosen, texts, strict=True):
            speeds = {each.key: each.speedup for each in example.kernels}
            try:
                key = candidate.parse(first.text).key
            except SparsegenError:
                key = ""
            known += key in speeds
            fractions.append((speeds.get(key) or 0.0) / example.best)
        positive = [each for each in fractions if each > 0]
        return {
            "watched": len(chosen), "known": known / max(len(chosen), 1),
            "fraction": float(np.exp(np.mean(np.log(positive)))) if positive else 0.0,
        }  # fmt: skip

    return measure


def train(config: SftConfig) -> Generator | None:
    """Train to the end; None when told to stop before. Raises SparsegenValueError for what cannot be trained on."""
    if config.label not in LABELS:
        raise SparsegenValueError(f"label is {config.label!r}; expected one of {', '.join(LABELS)}")
    recipe, settings = config.recipe, config.recipe.sft
    learned = Tokenizer.load(config.tokenizer)
    found = problems(config)
    texts = {(each.language, kernel.text) for each in found for kernel in each.kernels}
    encoded = {each: _ids(learned, *each) for each in texts}

    def fits(example: Example) -> Example:
        short = [k for k in example.kernels if len(encoded[example.language, k.text][0]) <= recipe.longest]
        return replace(example, kernels=tuple(short))

    training = [fits(each) for each in share(found, config.fraction, config.seed) if not each.validation]
    training = [each for each in training if each.kernels]
    groups = {name: [each for each in training if each.language == name] for name in START}
    if not groups["cpp"]:
        expected = f"kernels of at most {recipe.longest} tokens, not of the validation families alone"
        raise SparsegenValueError(f"no example in {config.corpus} to train on; expected {expected}")
    label = LABELS[config.label]

    def draw(rng: np.random.Generator):
        structures, texts = [], []
        whole = rng.random() >= HEADERS
        for _ in range(settings.batch):
            language = "cuda" if rng.random() < CUDA_SHARE and groups["cuda"] else "cpp"
            example = groups[language][rng.integers(len(groups[language]))]
            kernels, permitted = list(example.kernels), None
            if rng.random() < RESTRICTED:
                permitted = techniques.STAGES[rng.integers(len(techniques.STAGES))]
                within = [each for each in kernels if each.techniques <= permitted]
                kernels, permitted = (within, permitted) if within else (kernels, None)
            chosen = label(example, kernels, rng)
            structures.append(shown(example, rng, permitted))
            texts.append(encoded[language, chosen.text][int(not whole)])
        return structures, texts

    generator = initial(recipe, config.seed)
    if config.pretrained:
        generator.load(weights(recipe, Path(config.pretrained)))
    run = Run(config.out, {**asdict(config), "stage": "sft"})
    watched = [each for each in found if each.validation]
    finished = fit(generator, run, draw, settings, config.seed, watch(watched, recipe, learned), WATCH_EVERY)
    return generator if finished else None


def weights(recipe: Recipe, run: Path) -> dict[str, np.ndarray]:
    """What a run of the first two stages has learned. Raises SparsegenValueError."""
    return kept(recipe, run / "checkpoint.pt", "generator")


def _ids(learned: Tokenizer, language: str, text: str) -> tuple[list[int], list[int]]:
    """The text as tokens, whole and up to the end of its header."""
    whole = [START[language], *learned.encode(text), END]
    past, at = text.index("*/") + 2, 0
    for count, token in enumerate(whole[1:], 2):
        at += len(learned.piece(token))
        if at >= past:
            return whole, whole[:count]
    return whole, whole
