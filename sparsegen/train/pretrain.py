"""Stage 1: the language of kernels, before any matrix is seen.

The text comes from the writer (kernels of many kinds), from template instances with meaning-preserving rewrites, and
from whatever folders of CUDA and C++ the user names. The tokenizer is learned on the same text, and kept in RUN.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from sparsegen import files
from sparsegen.errors import SparsegenValueError
from sparsegen.model import encoder, tokenizer
from sparsegen.model.generator import Generator
from sparsegen.model.recipe import Recipe
from sparsegen.model.tokenizer import END, START, Tokenizer
from sparsegen.train import examples, folders, rewrites, writer
from sparsegen.train.fit import fit, initial
from sparsegen.train.run import Run

TEXTS = 16_000  # of each of the two kinds that are made here
TEMPLATE_SHARE = 0.6  # of the batches: template instances, most of them rewritten
ALIKE = 0.05  # of the texts, sorted by length: those of a batch are so near to each other, or padding is most of it


@dataclass(frozen=True)
class PretrainConfig:
    recipe: Recipe
    out: str
    folders: tuple[str, ...] = ()  # of .cu, .cuh, .cpp and .h files to learn from as well
    written: int = TEXTS  # kernels of the writer
    rewritten: int = TEXTS  # rewritten template instances
    seed: int = 20260


def texts(config: PretrainConfig) -> list[dict]:
    """The corpus as {language, words, text, template}, made once and kept in the run's folder.

    Raises SparsegenValueError where what is kept is damaged.
    """
    path = Path(config.out) / "text.jsonl"
    if path.exists():
        kept = files.lines(path, "language", "words", "text", "template")
        least = config.written + config.rewritten // 2 * 2
        if len(kept) < least or not all(each["language"] in START for each in kept):
            raise SparsegenValueError(f"{path} is damaged; expected at least {least} kernels in {' and '.join(START)}")
        return kept
    rng = np.random.default_rng([config.seed, 1])
    found = []
    for number in range(config.written):
        language = ("cpp", "cuda")[number % 2]
        kernel = writer.write(language, rng)
        found.append({"language": language, "words": list(kernel.words), "text": kernel.text, "template": False})
    for language in ("cpp", "cuda"):
        known = list(examples.instances(language).values())
        chosen = [known[rng.integers(len(known))] for _ in range(config.rewritten // 2)]
        for place, each in enumerate(chosen):
            words = ["kind:template", f"op:{each.op}"]
            text = tokenizer.written(each if place % 4 == 0 else rewrites.rewrite(each, rng))
            found.append({"language": language, "words": words, "text": text, "template": True})
    for folder in config.folders:
        for text in folders.texts(folder):
            language = "cuda" if "__global__" in text else "cpp"
            found.append({"language": language, "words": ["kind:other"], "text": text, "template": False})
    files.whole(path, lambda part: part.write_text("".join(json.dumps(each) + "\n" for each in found)))
    return found


def learned_tokenizer(config: PretrainConfig, corpus: list[dict]) -> Tokenizer:
    path = Path(config.out) / "tokenizer.json"
    if not path.exists():
        instances = [tokenizer.written(each) for name in START for each in examples.instances(name).values()]
        learned = Tokenizer.learn([*instances, *(each["text"] for each in corpus)], config.recipe.vocabulary)
        files.whole(path, learned.save)
    return Tokenizer.load(path)


def train(config: PretrainConfig) -> tuple[Generator, Tokenizer] | None:
    """Train to the end; None when told to stop before.

    Raises SparsegenValueError for less than two texts of a kind, in a folder of another run or of one that is at work,
    and where a file in it is damaged.
    """
    if min(config.written, config.rewritten) < 2:
        least = min(config.written, config.rewritten)
        raise SparsegenValueError(f"{least} texts of a kind to learn from; expected at least 2, one in each language")
    folder, settings = Path(config.out), config.recipe.pretrain
    if (folder / "text.jsonl").exists() and not (folder / "checkpoint.pt").exists():
        fix = "expected a checkpoint.pt that says which, or another folder"
        raise SparsegenValueError(f"{folder} holds a text.jsonl that was made with settings nobody knows; {fix}")
    run = Run(config.out, {**asdict(config), "stage": "pretrain"})
    corpus = texts(config)
    learned = learned_tokenizer(config, corpus)
    longest, embedding = config.recipe.longest, config.recipe.embedding
    encoded = [[START[each["language"]], *learned.encode(each["text"]), END][:longest] for each in corpus]
    lengths = np.array([len(each) for each in encoded])
    groups = []  # template instances, all else; by length
    for wanted in (True, False):
        group = np.flatnonzero([each["template"] is wanted for each in corpus])
        groups.append(group[np.argsort(lengths[group], kind="stable")])

    def draw(rng: np.random.Generator):
        group = groups[int(rng.random() >= TEMPLATE_SHARE)]
        reach = max(int(ALIKE * len(group)), 1)
        first = int(rng.integers(max(len(group) - reach, 1)))
        chosen = rng.choice(group[first : first + reach], settings.batch).tolist()
        seen = [encoder.pretraining(corpus[each]["language"], corpus[each]["words"], embedding) for each in chosen]
        return seen, [encoded[each] for each in chosen]

    generator = initial(replace(config.recipe, dropout=0.0), config.seed)  # there is always more text
    finished = fit(generator, run, draw, settings, config.seed)
    return (generator, learned) if finished else None
