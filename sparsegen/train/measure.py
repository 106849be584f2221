"""Measured times of many candidates of one problem beside the baselines, as one record that can be replayed.

The rounds are those of a search (timing.py), but everything correct takes part in them, not the best three: a corpus
wants to know how slow the slow ones are. Nothing else may run on the machine meanwhile.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp

from sparsegen import baselines, checks, evaluate, fence, nvrtc
from sparsegen.candidate import Candidate, text
from sparsegen.errors import SparsegenError
from sparsegen.evaluate import Compiled
from sparsegen.fence import Died
from sparsegen.problem import Problem
from sparsegen.targets import cpu
from sparsegen.verdict import Level, Timing, Verdict

BASELINES = ("scipy", "mkl", "mkl_noopt")
ROUNDS = 12
SLOW = 1.8  # times the best rough time: slower ones keep their rough time
MOST_ARMS = 24
MOST_SECONDS = 6.0  # of racing, whatever the size
BURST_SECONDS = 0.004  # of one arm in one round, warm-up included, for a product that takes less


@dataclass(frozen=True)
class Measured:
    """One candidate: verdict, its time in microseconds, and how many times as fast as the best baseline it was.

    raced: timed in the rounds; else us is the shortest of a few single calls, which tells slow kernels apart well
    enough. binary is the kernel's `identity`, so that equal ones are measured once.
    """

    candidate: Candidate
    verdict: Verdict
    binary: str = ""
    us: float | None = None
    speedup: float | None = None
    raced: bool = False

    def as_dict(self) -> dict:
        return {
            "label": self.candidate.label, "origin": self.candidate.origin, "kernel": self.candidate.key,
            "binary": self.binary, "level": self.verdict.level.name, "fault": self.verdict.fault,
            "message": self.verdict.message[:200], "us": self.us, "speedup": self.speedup, "raced": self.raced,
        }  # fmt: skip


@dataclass(frozen=True)
class Rounds:
    """baselines: microseconds of each; best: the fastest; spread: the null pair's departure from 1 plus its noise."""

    measured: list[Measured]
    baselines: dict[str, float]
    best: str
    spread: float
    rounds: int
    seconds: float


def ready(language: str) -> None:
    """Raises SparsegenError where kernels of a language cannot be compiled here: all would be recorded as failures."""
    if reason := cpu.available() if language == "cpp" else nvrtc.available():
        raise SparsegenError(f"{language} kernels cannot be measured here: {reason}")


def identity(compiled: Compiled) -> str:
    """Equal for kernels with the same machine code, run in the same way on arrays packed in the same way."""
    kernel = compiled.candidate
    packed = [(part.select, part.format, kernel.format_params(part), part.launches) for part in kernel.parts]
    ways = repr((packed, kernel.encoding, kernel.zero))
    return f"{cpu.code(compiled.path)[:24]}-{hashlib.blake2b(ways.encode(), digest_size=6).hexdigest()}"


def measure(
    problem: Problem,
    A: sp.csr_array,
    candidates: Iterable[Candidate],
    *,
    seed: int,
    trusted: bool = False,
    libraries: Sequence[str] = BASELINES,
    rounds: int = ROUNDS,
) -> Rounds:
    """Verify and time `candidates` on A (canonical, in the problem's dtype) beside `libraries`, in one worker.

    trusted: templates, which the tests verify, have to match one reference product only. A candidate that brings the
    worker down loses its own evaluation alone. Raises Died when the worker cannot be started or a library kills it.
    """
    begun = time.monotonic()
    made = [(each, evaluate.refuse(each, problem) or evaluate.compile(each, problem)) for each in candidates]
    with fence.session(problem, A) as session:
        bench = _Bench(problem, A, session, trusted, libraries)
        results = [
            Measured(each, found) if isinstance(found, Verdict) else bench.enter(found, number)
            for number, (each, found) in enumerate(made)
        ]
        return bench.race(results, seed, rounds, begun)


class _Bench:
    def __init__(self, problem: Problem, A: sp.csr_array, session: fence.Session, trusted: bool, libraries):
        self.problem, self.session, self.trusted = problem, session, trusted
        self.references = checks.References(problem)
        self.timed = checks.TimedReferences(problem, A)
        self.seconds = 10 + evaluate.seconds(problem)
        self.arms: dict[str, tuple[Compiled, float]] = {}  # arm -> kernel, rough us
        self.libraries = [name for name in libraries if baselines.get(name).available(problem) is None]
        self.rough: dict[str, float] = {}
        self._prepare()

    def _prepare(self) -> None:
        for name in self.libraries:
            self.rough[name] = self.session.ask("baseline", self.seconds + 60, name=name)["rough_ns"] / 1e3

    def enter(self, compiled: Compiled, number: int) -> Measured:
        """Check a kernel and time it roughly; it stays in the worker while it may be among the fast ones."""
        name, candidate = f"candidate {number}", compiled.candidate
        verdict = Verdict(Level.COMPILED)
        try:
            if self.trusted:
                self.session.ask(
                    "load", self.seconds, name=name, text=text(candidate), path=str(compiled.path), label=name
                )
                verdict = Verdict(Level.CORRECT)
            else:
                verdict = evaluate.run(compiled, self.problem, self.session, self.references, name)
            if verdict.level >= Level.CORRECT:
                arm = f"arm {number}"
                rough = self.session.ask("arm", self.seconds, name=arm, bound=name, threads=self.problem.threads)
                if not evaluate.timed_right(self.session, self.timed, arm, self.seconds, which=(0,)):
                    verdict = Verdict(Level.RAN, "wrong", "A x is not the product")
        except Died as error:
            verdict = Verdict(Level.COMPILED, error.fault, str(error))
        if verdict.fault in ("crash", "timeout", "memory", *evaluate.CORRUPTING):
            self._restore()
        if verdict.level < Level.CORRECT:
            return Measured(candidate, verdict, identity(compiled))
        self.arms[arm] = (compiled, rough["rough_ns"] / 1e3)
        self._thin()
        return Measured(candidate, verdict, identity(compiled), rough["rough_ns"] / 1e3)

    def _thin(self) -> None:
        """Forget the arms that are too slow to race: each holds its packed matrix."""
        ranked = sorted(self.arms, key=lambda arm: self.arms[arm][1])
        least = self.arms[ranked[0]][1]
        gone = [arm for place, arm in enumerate(ranked) if place >= MOST_ARMS or self.arms[arm][1] > SLOW * least]
        for arm in gone:
            del self.arms[arm]
        if gone:
            self.session.ask("drop", self.seconds, names=[*gone, *(arm.replace("arm", "candidate") for arm in gone)])

    def _restore(self) -> None:
        """A new worker, with everything in it that the last one held."""
        self.session.discard()
        self._prepare()
        for arm, (compiled, _) in self.arms.items():
            name = arm.replace("arm", "candidate")
            self.session.ask(
                "load", self.seconds, name=name, text=text(compiled.candidate), path=str(compiled.path), label=name
            )
            self.session.ask("arm", self.seconds, name=arm, bound=name, threads=self.problem.threads)

    def _too_fast(self, each: Measured, times: np.ndarray | None) -> str | None:
        us = each.us if times is None else float(np.median(times))
        if us is None or self.trusted:
            return None
        return evaluate.too_fast(self.problem, int(each.verdict.resources["packed_bytes"]), us)

    def race(self, results: list[Measured], seed: int, count: int, begun: float) -> Rounds:
        ranked = sorted(self.arms, key=lambda arm: self.arms[arm][1])
        arms, pair = [*ranked, *self.libraries], []
        if ranked:
            pair = [ranked[0], "null"]
            self.session.ask(
                "arm", self.seconds, name="null", bound=ranked[0].replace("arm", "candidate"),
                threads=self.problem.threads,
            )  # fmt: skip
            arms.append("null")
        slowest = max([us for _, us in self.arms.values()] + [self.rough[name] for name in self.libraries])
        most = count * len(arms) * max(BURST_SECONDS, 4 * slowest / 1e6)
        answer = self.session.ask(
            "rounds",
            most + self.seconds * len(arms),
            arms=arms,
            count=count,
            most_seconds=min(most, MOST_SECONDS),
            seed=seed,
        )
        table = answer["rounds"]
        times = {arm: np.array([each[arm] for each in table]) / 1e3 for arm in arms}
        libraries = {name: float(np.median(times[name])) for name in self.libraries}
        best = min(libraries, key=libraries.__getitem__)
        spread = 0.0
        if pair:
            ratios = times[pair[1]] / times[pair[0]]
            spread = abs(float(np.median(ratios)) - 1) + 1.25 * float(ratios.std()) / len(ratios) ** 0.5
        measured = []
        for number, each in enumerate(results):
            arm = f"arm {number}"
            if arm in answer["changed"]:
                fault = "equal inputs gave different results while it was timed"
                each = Measured(each.candidate, Verdict(Level.RAN, "wrong", fault), each.binary)
            elif reason := self._too_fast(each, times.get(arm)):
                each = Measured(each.candidate, Verdict(Level.RAN, "too fast", reason), each.binary)
            elif arm in times:
                timing = Timing.of((times[arm] * 1e3).tolist(), self.problem.device)
                verdict = replace(each.verdict, level=Level.TIMED, measured=timing)
                speedup = float(np.median(times[best] / times[arm]))
                each = replace(each, verdict=verdict, us=timing.median_us, speedup=speedup, raced=True)
            elif each.us is not None:
                each = replace(each, speedup=libraries[best] / each.us)
            measured.append(each)
        return Rounds(measured, libraries, best, spread, len(table), time.monotonic() - begun)
