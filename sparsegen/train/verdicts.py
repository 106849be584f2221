"""What becomes of generated kernels, measured once each and remembered: (problem, texts) -> outcomes.

C++ kernels are compiled by a pool, then checked and timed by one worker beside the baselines; CUDA kernels are compiled
by NVRTC and get no further. What the corpus measured, and what was measured before, is not measured again; kernels
with the same object code share a verdict.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

import scipy.sparse as sp

from sparsegen import candidate as kernel_file
from sparsegen import evaluate
from sparsegen.candidate import Candidate
from sparsegen.errors import SparsegenError
from sparsegen.fence import Died
from sparsegen.problem import Problem
from sparsegen.record import Records
from sparsegen.train import corpus
from sparsegen.train.corpus import Task
from sparsegen.train.lines import verdict_fault
from sparsegen.train.measure import Measured, identity, measure, ready
from sparsegen.train.rewards import Outcome
from sparsegen.verdict import Level, Verdict

COMPILERS = 2
TOGETHER = 16  # kernels raced at once
ROUNDS = 8
MATRICES = 24  # kept in memory


class Verdicts:
    """The memory of a run: the lines of the corpus, and a file of what was measured since, which it appends to."""

    def __init__(self, lines: Iterable[dict], folder: Path | None, kept: Path, seed: int = 20269):
        self.lines = {line["key"]: line for line in lines if "kernels" in line}
        self.folder, self.seed = folder, seed
        self.records = Records(kept, verdict_fault)
        self.fresh = 0
        self._known: dict[tuple[str, str], dict] = {}  # by problem and kernel, and by problem and object code
        for line in self.lines.values():
            for each in line["kernels"]:
                self._remember(
                    line["key"], {**each, "baseline_us": line["baselines"][line["best"]], "spread": line["spread"]}
                )
        for each in self.records.known.values():
            self._remember(each["problem"], each)
        self.opened = lru_cache(MATRICES)(self._load)

    def task(self, problem: str) -> Task:
        """The task of a problem's name, its language cut off."""
        return corpus.task_of(self.lines[problem.rpartition(" ")[0]])

    def judge(self, problem: str, texts: Sequence[str]) -> list[Outcome]:
        """Outcomes of kernel texts for a problem: a task's key, then cpp or cuda."""
        key, _, language = problem.rpartition(" ")
        parsed = [self._parse(each, language) for each in texts]
        new: dict[str, Candidate] = {}
        for each in parsed:
            if isinstance(each, Candidate) and (problem, each.key) not in self._known:
                new.setdefault(each.key, each)
        if new:
            self._measure(problem, key, language, list(new.values()))
        return [
            Outcome(Level.NONE, "header") if each is None
            else each if isinstance(each, Outcome)
            else self._outcome(key, language, self._known[problem, each.key], each.key in new)
            for each in parsed
        ]  # fmt: skip

    def known(self, problem: str, kernel: str) -> dict | None:
        """What is remembered of a kernel's key, or of its identity, for a problem."""
        return self._known.get((problem, kernel))

    def best(self, key: str) -> float:
        """The best speedup known for a task."""
        line = self.lines[key]
        return max((each["speedup"] for each in line["kernels"] if each["speedup"]), default=1.0)

    def _parse(self, text: str, language: str) -> Candidate | Outcome:
        try:
            found = kernel_file.parse(text, name="model", origin="model", language=language)
        except SparsegenError:
            return Outcome(Level.NONE, "header")
        return found

    def _outcome(self, key: str, language: str, entry: dict, fresh: bool) -> Outcome:
        level = Level[entry["level"]]
        if language == "cuda":
            return Outcome(level, entry["fault"], fresh=fresh)
        task = corpus.task_of(self.lines[key])
        return Outcome(
            level, entry["fault"], speedup=entry["speedup"], time_us=entry["us"], baseline_us=entry["baseline_us"],
            flops=2.0 * self.lines[key]["nnz"] * task.k, null_spread=entry["spread"], best=self.best(key), fresh=fresh,
        )  # fmt: skip

    def _measure(self, problem: str, key: str, language: str, new: list[Candidate]) -> None:
        ready(language)
        A, posed = self.opened(key)
        if language == "cuda":
            posed = corpus.problem(self.task(problem), A, language)
            for each in new:
                self._keep(problem, entry_of(Measured(each, evaluate.cross_compile(each, posed, corpus.GPU))))
            return
        with ThreadPoolExecutor(COMPILERS) as pool:
            made = list(pool.map(lambda each: evaluate.refuse(each, posed) or evaluate.compile(each, posed), new))
        waiting: dict[str, Candidate] = {}
        alike: list[tuple[str, Candidate]] = []  # by the same object code as another, which speaks for both
        for each, found in zip(new, made, strict=True):
            if isinstance(found, Verdict):
                self._keep(problem, entry_of(Measured(each, found)))
            elif (problem, code := identity(found)) in self._known or code in waiting:
                alike.append((code, each))
            else:
                waiting[code] = each
        self.fresh += len(waiting)
        queue = list(waiting.values())
        for first in range(0, len(queue), TOGETHER):
            part = queue[first : first + TOGETHER]
            self._race(problem, A, posed, part)
        for code, each in alike:
            entry = {**self._known[problem, code], "kernel": each.key, "text": kernel_file.text(each)}
            self._keep(problem, entry)

    def _race(self, problem: str, A: sp.csr_array, posed: Problem, part: Sequence[Candidate]) -> None:
        try:
            best = self.lines[problem.rpartition(" ")[0]]["best"]  # the library that the corpus found fastest
            found = measure(posed, A, part, seed=self.seed, libraries=(best,), rounds=ROUNDS)
        except (Died, OSError) as error:
            if len(part) > 1:  # one of them brings the worker down twice: each on its own
                for each in part:
                    self._race(problem, A, posed, [each])
            else:
                self._keep(problem, entry_of(Measured(part[0], Verdict(Level.COMPILED, "crash", str(error)))))
            return
        for measured in found.measured:
            self._keep(problem, entry_of(measured, found.baselines[found.best], found.spread))

    def _keep(self, problem: str, entry: dict) -> None:
        self.records.append({**entry, "problem": problem, "key": f"{problem} {entry['kernel']}"})
        self._remember(problem, entry)

    def _remember(self, problem: str, entry: dict) -> None:
        name = problem if problem.endswith((" cpp", " cuda")) else f"{problem} cpp"
        self._known[name, entry["kernel"]] = entry
        if entry.get("binary"):
            self._known.setdefault((name, entry["binary"]), entry)

    def _load(self, key: str) -> tuple[sp.csr_array, Problem]:
        task = corpus.task_of(self.lines[key])
        A = corpus.matrix(task, self.folder)
        return A, corpus.problem(task, A)


def entry_of(measured: Measured, baseline_us: float = 0.0, spread: float = 0.0) -> dict:
    """What is remembered of a kernel."""
    text = kernel_file.text(measured.candidate)
    return {**measured.as_dict(), "baseline_us": baseline_us, "spread": spread, "text": text}
