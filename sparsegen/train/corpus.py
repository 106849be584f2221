"""What is learned from: problems of synthetic and real matrices, split by family, and their measured kernels.

Every feasible template instance of every problem is measured, one problem after the other, into one JSON line per
problem: nothing is measured twice, and training replays the file. Real matrices belong to the families of their
folder's manifest.tsv (a file without an entry is a family of its own); families in models/held_out.txt are for
evaluation alone.
"""

from __future__ import annotations

import csv
import itertools
import json
import logging
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from tqdm import tqdm

from sparsegen import candidate, engine, files, matrices, paths, templates
from sparsegen.candidate import Candidate
from sparsegen.errors import SparsegenError, SparsegenValueError
from sparsegen.fence import Died
from sparsegen.problem import Facts, Problem
from sparsegen.record import Records
from sparsegen.train import families
from sparsegen.train.measure import Rounds, measure

logger = logging.getLogger("sparsegen")

LEAST, MOST = 1_000, 3_000_000  # entries of the real matrices that take part
MOST_SPMM = 1_000_000
MOST_NUMBERS = 1 << 27  # of B or C: a gigabyte in float64
CORE = (("spmv", 1, "float64"), ("spmv", 1, "float32"), ("spmm", 32, "float64"))
EXTRA_K = (2, 4, 8, 16, 64, 128)
SYNTHETIC = "synthetic"
GPU = "sm_90"  # what CUDA is compiled for


@dataclass(frozen=True)
class Task:
    """One problem of the corpus. matrix: a file's name, or synthetic:<family>:<number>. facts: none, constant or
    exact_f32, which the values are made to obey."""

    matrix: str
    family: str
    held_out: bool
    op: str
    k: int
    dtype: str
    facts: str = "none"

    @property
    def key(self) -> str:
        return f"{self.matrix} {self.op} {self.k} {self.dtype} {self.facts}"


def held_out_families() -> frozenset[str]:
    """The real families in models/held_out.txt and the synthetic ones of families.HELD_OUT."""
    lines = (paths.data("models") / "held_out.txt").read_text().splitlines()
    real = {line.strip() for line in lines if line.strip() and not line.startswith("#")}
    return frozenset(real | {f"{SYNTHETIC}:{name}" for name in families.HELD_OUT})


def real(folder: Path) -> Iterator[tuple[str, str, int]]:
    """(file name, family, entries) of the matrices of a folder that take part, by size; without those that cannot be
    read. Raises SparsegenValueError for a manifest.tsv that does not say what it has to, OSError."""
    known = _manifest(folder / "manifest.tsv")
    found = []
    for file in sorted(folder.iterdir()):
        if file.name in known:
            family, field, nnz = known[file.name]
        elif ".mtx" in file.name:
            try:
                info = matrices.info(file)
            except (SparsegenError, MemoryError) as error:
                logger.warning("left out: %s", error)
                continue
            family, field, nnz = file.name.split(".")[0], info.field, info.nnz
        else:
            continue
        if field != "complex":
            found.append((file.name, family, nnz))
    return iter(sorted((each for each in found if LEAST <= each[2] <= MOST), key=lambda each: (each[2], each[0])))


def _manifest(path: Path) -> dict[str, tuple[str, str, int]]:
    """Family, field and entries of each file; nothing where there is no manifest."""
    if not path.is_file():
        return {}
    found: dict[str, tuple[str, str, int]] = {}
    rows = csv.DictReader([], delimiter="\t")
    try:
        rows = csv.DictReader(path.read_text("utf-8").splitlines(), delimiter="\t")
        for row in rows:
            found[row["file"]] = (str(row["family"]), str(row["field"]), int(row["nnz_full"]))
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        expected = "the columns file, family, field and nnz_full, a number, separated by tabs"
        raise SparsegenValueError(f"{path}, line {rows.line_num}: {error!r}; expected {expected}") from None
    return found


def tasks(folder: Path | None, per_family: int, held_out: bool, seed: int) -> list[Task]:
    """The problems to measure: three for every matrix, and for those to learn from one more of another width or fact.

    Real and synthetic ones alternate, small ones first, so that a corpus cut short is still a mixed one.
    """
    rng = np.random.default_rng([seed, int(held_out)])
    held = held_out_families()
    chosen: list[tuple[str, str, int]] = list(real(folder)) if folder else []
    made = []
    for number, name in itertools.product(range(per_family), families.names()):
        made.append((f"{SYNTHETIC}:{name}:{number}", f"{SYNTHETIC}:{name}", 0))
    mixed: list[tuple[float, Task]] = []
    for group in (chosen, made):
        kept = [each for each in group if (each[1] in held) == held_out]
        for place, (matrix, family, nnz) in enumerate(kept):
            wanted = [problem for problem in CORE if problem[0] == "spmv" or nnz <= MOST_SPMM or held_out]
            each_task = [Task(matrix, family, held_out, *problem) for problem in wanted]
            if not held_out:
                each_task.append(_extra(rng, matrix, family, nnz))
            mixed += [(place / len(kept), task) for task in each_task]
    return [task for _, task in sorted(mixed, key=lambda pair: pair[0])]


def _extra(rng: np.random.Generator, matrix: str, family: str, nnz: int) -> Task:
    facts = str(rng.choice(["none", "exact_f32", "constant"]))
    if facts != "none" or nnz > MOST_SPMM:
        facts = facts if facts != "none" else "constant"
        op, k = ("spmm", 32) if rng.random() < 0.25 and nnz <= MOST_SPMM else ("spmv", 1)
        dtype = "float64" if facts == "exact_f32" else str(rng.choice(["float32", "float64"]))
        return Task(matrix, family, False, op, k, dtype, facts)
    return Task(matrix, family, False, "spmm", int(rng.choice(EXTRA_K)), str(rng.choice(["float32", "float64"])))


def matrix(task: Task, folder: Path | None) -> sp.csr_array:
    """A of a task: canonical, in its dtype, its values as its facts say."""
    if task.matrix.startswith(SYNTHETIC + ":"):
        _, family, number = task.matrix.split(":")
        A = families.draw(family, int(number))
    elif folder is None:
        raise SparsegenValueError(f"{task.matrix} is a real matrix; expected --matrices, the folder it is in")
    else:
        A = sp.csr_array(matrices.load(folder / task.matrix))
    data = A.data.astype(task.dtype)
    if task.facts == "constant":
        data = np.full_like(data, 1.5)
    elif task.facts == "exact_f32":
        data = data.astype(np.float32).astype(task.dtype)
    return sp.csr_array((data, A.indices, A.indptr), shape=A.shape)


def problem(task: Task, A: sp.csr_array, language: str = "cpp") -> Problem:
    """The problem of a task, for one thread of this machine's processor, or in CUDA for a GPU."""
    found = engine.problem_of(A, op=task.op, k=task.k if task.op == "spmm" else None, threads=1, facts=None)
    facts = Facts(constant=task.facts == "constant", exact_f32=task.facts == "exact_f32")
    if language == "cuda":
        return replace(found, facts=facts, target="cuda", device=GPU)
    return replace(found, facts=facts)


def record(task: Task, A: sp.csr_array, found: Rounds) -> dict:
    """One line of the corpus."""
    return {
        "key": task.key, "matrix": task.matrix, "family": task.family, "held_out": task.held_out, "op": task.op,
        "k": task.k, "dtype": task.dtype, "facts": task.facts, "m": A.shape[0], "n": A.shape[1], "nnz": A.nnz,
        "baselines": found.baselines, "best": found.best, "spread": found.spread, "rounds": found.rounds,
        "seconds": found.seconds, "kernels": [each.as_dict() for each in found.measured],
    }  # fmt: skip


def task_of(line: dict) -> Task:
    """The task a line of the corpus is about."""
    return Task(*(line[name] for name in ("matrix", "family", "held_out", "op", "k", "dtype", "facts")))


def write_paper(pairs: Iterable[tuple[sp.csr_array, Candidate]], path: Path) -> None:
    """Pairs in the JSON lines of SparseRL's public code: rows, cols, shape, format, code."""

    def write(part: Path) -> None:
        with open(part, "w") as file:
            for A, kernel in pairs:
                coordinates = A.tocoo()
                line = {
                    "rows": coordinates.row.tolist(), "cols": coordinates.col.tolist(), "shape": list(A.shape),
                    "format": kernel.format.upper(), "code": candidate.text(kernel),
                }  # fmt: skip
                file.write(json.dumps(line) + "\n")

    files.whole(path, write)


def read_paper(path: Path) -> Iterator[tuple[sp.csr_array, str, str]]:
    """(A with ones for values, format, code) of each line that `write_paper`, or the paper's public code, wrote."""
    with open(path) as file:
        for number, line in enumerate(file, 1):
            try:
                found = json.loads(line)
                ones = np.ones(len(found["rows"]))
                A = sp.csr_array(sp.coo_array((ones, (found["rows"], found["cols"])), shape=tuple(found["shape"])))
                yield A, str(found["format"]).lower(), str(found["code"])
            except (KeyError, TypeError, ValueError) as error:
                expected = "a JSON object with rows, cols, shape, format and code"
                raise SparsegenValueError(f"{path}, line {number}: {error!r}; expected {expected}") from None


def collect(chosen: Sequence[Task], folder: Path | None, records: Records, seed: int) -> None:
    """Measure what is not in `records` yet. A matrix that cannot be measured is recorded with its reason."""
    for task in tqdm(chosen, file=sys.stderr, disable=not sys.stderr.isatty()):
        if task.key in records.known:
            continue
        try:
            A = matrix(task, folder)
            if (most := max(A.shape) * task.k) > MOST_NUMBERS:
                raise SparsegenValueError(f"an operand of {most} numbers; expected at most {MOST_NUMBERS}")
            posed = problem(task, A)
            found = measure(posed, A, templates.propose(posed), seed=seed, trusted=True)
        except (SparsegenError, Died, MemoryError) as error:
            logger.warning("%s: %s", task.key, error)
            records.append({"key": task.key, "failed": str(error)})
            continue
        records.append(record(task, A, found))
