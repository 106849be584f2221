"""Examples to fine-tune on: a problem as the encoder sees it, and the kernels that are right for it with their speeds.

C++ kernels carry measured speeds over the best baseline. CUDA kernels carry none: they are the first instances that the
templates propose, in the order of their guess, and are known to be feasible and to compile, no more.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import sys
from collections.abc import Iterable
from dataclasses import astuple, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from sparsegen import candidate, files, templates
from sparsegen.candidate import Candidate
from sparsegen.model import encoder, entries, statistics, tokenizer, windows
from sparsegen.model.tokenizer import START
from sparsegen.problem import Pattern, Problem
from sparsegen.train import corpus
from sparsegen.train.corpus import Task

logger = logging.getLogger("sparsegen")

CUDA_KERNELS = 8  # of each problem: the best by guess
VALIDATION = 12  # one family of so many is left out to watch the training by


@dataclass(frozen=True)
class Kernel:
    """A right answer: its text, its key, and how many times as fast as the best baseline it is, where measured."""

    text: str
    key: str
    speedup: float | None
    techniques: frozenset[str]


@dataclass(frozen=True)
class Example:
    """structures: one problem under several seeds of the sampling rule. kernels: by speed, or as proposed."""

    task: Task
    language: str
    structures: tuple[encoder.Structure, ...]
    kernels: tuple[Kernel, ...]

    @property
    def validation(self) -> bool:
        return sum(self.task.family.encode()) % VALIDATION == 0

    @property
    def best(self) -> float:
        return max((each.speedup for each in self.kernels if each.speedup), default=0.0)


@cache
def instances(language: str) -> dict[tuple[str, str], Candidate]:
    """Every template instance of a language by (op, label)."""
    files = templates.load(language)
    return {(each.op, each.label): each for file in files for each in candidate.instances(file)}


@cache
def _kernel(language: str, op: str, label: str) -> Kernel:
    from sparsegen.train import techniques

    each = instances(language)[op, label]
    return Kernel(tokenizer.written(each), each.key, None, frozenset(techniques.of(each)))


def kernels_of(line: dict) -> tuple[Kernel, ...]:
    """The correct template instances of a line of the corpus, fastest first."""
    right = [each for each in line["kernels"] if each["speedup"]]
    right.sort(key=lambda each: -each["speedup"])
    known = instances("cpp")
    return tuple(
        replace(_kernel("cpp", line["op"], each["label"]), speedup=each["speedup"])
        for each in right
        if (line["op"], each["label"]) in known
    )


def cuda_kernels(problem: Problem) -> tuple[Kernel, ...]:
    """The first instances the templates propose for a problem on a GPU."""
    proposed = itertools.islice(templates.propose(problem), CUDA_KERNELS)
    return tuple(_kernel("cuda", problem.op, each.label) for each in proposed)


def build(
    lines: Iterable[dict],
    folder: Path | None,
    kept: Path,
    *,
    embedding: str,
    tokens: int,
    variants: int,
    seed: int,
) -> list[Example]:
    """Examples of the lines of a corpus, C++ and CUDA. `kept` is a file that holds those made before: what is no such
    file, damaged or made in another way is made again."""
    digest = _digest(embedding, tokens, variants, seed)
    made = read(kept, digest)
    lines = [line for line in lines if "kernels" in line]
    fresh = sorted((line for line in lines if f"{line['key']} cpp" not in made), key=lambda line: line["matrix"])
    for name, group in tqdm(
        [(name, list(group)) for name, group in itertools.groupby(fresh, key=lambda line: line["matrix"])],
        file=sys.stderr, disable=not sys.stderr.isatty(),
    ):  # fmt: skip
        patterns: dict[str, Pattern] = {}  # one for all problems of a matrix
        coordinates: dict[int, np.ndarray] = {}  # and one sample of it
        for line in group:
            task = corpus.task_of(line)
            A = corpus.matrix(task, folder)
            for language in START:
                problem = corpus.problem(task, A, language)
                problem = replace(problem, pattern=patterns.setdefault(name, problem.pattern))
                right = kernels_of(line) if language == "cpp" else cuda_kernels(problem)
                if right:
                    seen = [
                        encoder.encode(problem, embedding, tokens, seed=seed + number) for number in range(variants)
                    ]
                    for number, each in enumerate(seen):
                        shared = coordinates.setdefault(number, each.coordinates)
                        seen[number] = replace(each, coordinates=shared)
                    made[f"{task.key} {language}"] = Example(task, language, tuple(seen), right)
                else:
                    made.setdefault(f"{task.key} {language}", Example(task, language, (), ()))
    if fresh:
        files.whole(kept, lambda part: write(part, made, digest))
    wanted = {line["key"]: line for line in lines}
    found = [each for each in made.values() if each.task.key in wanted and each.structures]
    timed = [  # again: the speeds may have been measured again since
        replace(each, kernels=kernels_of(wanted[each.task.key])) if each.language == "cpp" else each for each in found
    ]
    return [each for each in timed if each.kernels]


PARTS = ("conditions", "statistics", "coordinates")  # of a structure


def _digest(*how: object) -> str:
    """Of all that examples depend on but the matrices and the speeds. The encoder's text is its version."""
    digest = hashlib.blake2b(json.dumps([how, encoder.CONDITIONS]).encode(), digest_size=16)
    for module in (encoder, statistics, windows, entries):
        digest.update(Path(str(module.__file__)).read_bytes())
    for language in START:
        digest.update("".join(sorted(each.key for each in instances(language).values())).encode())
    return digest.hexdigest()


def write(path: Path, made: dict[str, Example], digest: str) -> None:
    """Examples in numpy's archive format: each part of their structures end to end, once where it is shared."""
    arrays: dict[str, Any] = {}
    places: dict[str, dict[int, int]] = {}
    for part in PARTS:
        every = [getattr(structure, part) for each in made.values() for structure in each.structures]
        once = {id(array): array for array in every}
        places[part] = {name: place for place, name in enumerate(once)}
        arrays[f"{part}_lengths"] = np.array([len(array) for array in once.values()], np.int64)
        arrays[part] = np.concatenate([*once.values()]) if once else np.zeros(0)
    entries = [
        {
            "task": astuple(each.task), "language": each.language,
            "kernels": [[kernel.key, kernel.speedup] for kernel in each.kernels],
            "structures": [[places[part][id(getattr(one, part))] for part in PARTS] for one in each.structures],
        }
        for each in made.values()
    ]  # fmt: skip
    about = json.dumps({"digest": digest, "examples": entries}).encode()
    with open(path, "wb") as file:
        np.savez(file, about=np.frombuffer(about, np.uint8), **arrays)


def read(path: Path, digest: str) -> dict[str, Example]:
    """What `write` left, by the task's key and the language; nothing where it is not there, of another digest, or
    damaged. Nothing is unpickled."""
    if not path.exists():
        return {}
    try:
        with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
            about = json.loads(file["about"].tobytes())
            if about["digest"] != digest:
                return {}
            pools = [np.split(file[part], np.cumsum(file[f"{part}_lengths"])[:-1]) for part in PARTS]
        return {f"{each.task.key} {each.language}": each for each in _examples(about["examples"], pools)}
    except Exception as error:  # whatever bytes that are damaged, or made up, lead to
        logger.warning("%s is damaged, its problems are encoded again: %r", path, error)
        return {}


def _examples(entries: Iterable[dict], pools: list[list[np.ndarray]]) -> Iterable[Example]:
    known = {each.key: (language, *at) for language in START for at, each in instances(language).items()}
    for entry in entries:
        structures = tuple(
            encoder.Structure(*(pool[place] for pool, place in zip(pools, places, strict=True)))
            for places in entry["structures"]
        )
        kernels = tuple(replace(_kernel(*known[key]), speedup=speedup) for key, speedup in entry["kernels"])
        yield Example(Task(*entry["task"]), entry["language"], structures, kernels)


def any_correct(example: Example, kernels: list[Kernel], rng: np.random.Generator) -> Kernel:
    """SparseRL: whichever right kernel."""
    return kernels[rng.integers(len(kernels))]


def fastest(example: Example, kernels: list[Kernel], rng: np.random.Generator) -> Kernel:
    """Nichols et al. (2024): the fastest known. Of kernels without a time, the first proposed."""
    return kernels[0]


SHARPNESS = 25.0  # a kernel 4 % slower is drawn 1/e as often


def softmax(example: Example, kernels: list[Kernel], rng: np.random.Generator) -> Kernel:
    """In proportion to speed to the power SHARPNESS. Of kernels without a time, the first proposed twice as often."""
    if kernels[0].speedup is None:
        weights = 0.5 ** np.arange(len(kernels))
    else:
        speeds = np.array([each.speedup for each in kernels], float)
        weights = (speeds / speeds.max()) ** SHARPNESS
    return kernels[rng.choice(len(kernels), p=weights / weights.sum())]


LABELS = {"any": any_correct, "fastest": fastest, "softmax": softmax}
