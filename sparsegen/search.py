"""The measured search: try candidates in a worker, then race the best of them against the baselines.

Rounds are interleaved in random order. The winner among the candidates is chosen on the even rounds and scored on the
odd ones, so that luck in being chosen does not flatter it. A null pair, the same kernel under two names, says what this
run can tell apart: whatever differs by less is a tie, and a tie goes to the baseline.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from sparsegen import baselines, checks, evaluate, fence, gpu, nvrtc, prelude, timing
from sparsegen.candidate import Candidate
from sparsegen.errors import SparsegenError
from sparsegen.fence import Died
from sparsegen.outcome import Outcome as Outcome
from sparsegen.outcome import Tried as Tried
from sparsegen.problem import Problem
from sparsegen.ptx import estimate
from sparsegen.ptx.gpus import GPU
from sparsegen.verdict import Level, Timing, Verdict

logger = logging.getLogger("sparsegen")

FINALISTS = 3
CLOSE = 1.4  # times the best rough time: an arm farther behind does not race
RACE_SHARE = 0.4  # of the budget, kept for the race
LEAST_RACE = 0.25  # seconds
PATIENCE = 0.25  # of the budget that one check of a candidate may hang for
LEAST_PATIENCE = 0.5  # seconds
FEWEST_ROUNDS, MOST_ROUNDS = 6, 60
LEAST_RESOLUTION = 0.05  # where arrays happen to lie moves times by as much from one process to the next
NULL_LIMIT = 0.10  # a round of a multi-threaded race whose null pair is farther apart says nothing


def search(
    problem: Problem,
    A: sp.csr_array,
    candidates: Iterator[Candidate],
    seconds: float,
    most: int | None,
    seed: int,
    modules: tuple[str, ...] = (),
    estimated: GPU | None = None,
    made: Mapping[str, Path] | None = None,
) -> Outcome:
    """Race at most `most` of `candidates` against the baselines for `seconds`, starting the worker apart.

    A: canonical, in the problem's dtype. Best so far at any time; with no time at all, scipy. The target emulator races
    nothing: the verified candidate of the least estimated time on `estimated` wins, or without one the first.
    made: binaries that are there already, by the key of their candidate.
    """
    outcome = Outcome(None, "scipy", None, {}, [])
    try:
        with fence.session(problem, A, modules) as session:
            outcome.startup_ms = session.start() * 1e3
            until = time.monotonic() + seconds
            _Search(problem, A, session, until, seed, outcome, estimated, made).run(candidates, most)
    except Died as error:
        outcome.notes.append(f"the worker could not be used: {error}")
    except OSError as error:
        outcome.notes.append(f"the worker could not be started: {error}")
    return outcome


class _Search:
    def __init__(
        self, problem: Problem, A, session: fence.Session, deadline: float, seed: int, outcome: Outcome,
        estimated: GPU | None = None, made: Mapping[str, Path] | None = None,
    ):  # fmt: skip
        self.problem, self.session, self.gpu = problem, session, estimated
        self.deadline, self.seed, self.outcome, self.made = deadline, seed, outcome, made or {}
        self.finite = bool(np.isfinite(A.data).all())
        self.references = checks.References(problem)
        self.timed = checks.TimedReferences(problem, A)
        self.arms: dict[str, tuple[Tried, int]] = {}  # arm -> candidate, threads; fastest first
        self.states: list[dict] = []  # of a GPU, before and after rounds
        hangs = max(LEAST_PATIENCE, PATIENCE * (deadline - time.monotonic()))
        self.patience = min(evaluate.RUN_SECONDS, hangs)
        self.seconds = 10 + evaluate.seconds(problem)

    def run(self, candidates: Iterator[Candidate], most: int | None) -> None:
        if self.problem.target == "emulator":
            self._verify(candidates, most)
            return
        started = time.monotonic()
        slow = [name for name in baselines.names() if getattr(baselines.get(name), "SLOW_START", False)]
        self._prepare_baselines(sorted(set(baselines.names()) - set(slow), key=lambda name: (name != "scipy", name)))
        race = max(LEAST_RACE, RACE_SHARE * (self.deadline - started))
        with ThreadPoolExecutor(1) as compiler:
            self._try_all(self._compiled(candidates, compiler, most), race)
        self._prepare_baselines(slow)
        self._race()

    def _verify(self, candidates: Iterator[Candidate], most: int | None) -> None:
        """Where nothing can be timed: the right candidate of the least estimate, or the first where none is asked for.

        What the budget lets be executed in part alone is tried, and no winner.
        """
        with ThreadPoolExecutor(1) as compiler:
            for number, (candidate, made) in enumerate(self._compiled(candidates, compiler, most)):
                name = f"candidate {number}"
                verdict = made
                if not isinstance(made, Verdict):
                    verdict = evaluate.run(
                        made, self.problem, self.session, self.references, name, until=self.deadline
                    )  # fmt: skip
                    first = self.outcome.winner is None or time.monotonic() < self.deadline
                    if self.gpu and first and verdict.level >= Level.RAN and not verdict.fault:
                        verdict = evaluate.estimate(verdict, made, self.problem, self.session, name, self.gpu)
                    self._ask_quietly("drop", names=[name])
                tried = Tried(candidate, verdict, packed_bytes=int(verdict.resources.get("packed_bytes", 0)))
                self.outcome.tried.append(tried)
                if verdict.level >= Level.CORRECT and tried.before(self.outcome.winner):
                    self.outcome.winner = tried
                if (self.outcome.winner and not self.gpu) or time.monotonic() > self.deadline:
                    break
        if self.outcome.winner:
            how = f"by times on {self.gpu.name} that are {estimate.label(self.gpu)}" if self.gpu else "by rule"
            self.outcome.notes.append(f"executed without a GPU: verified, chosen {how}, not by measurement")

    def _prepare_baselines(self, names: list[str]) -> None:
        for name in names:
            if baselines.get(name).available(self.problem) is not None and name != "scipy":
                self.outcome.baselines[name] = {"refused": baselines.get(name).available(self.problem)}
                continue
            if name != "scipy" and time.monotonic() > self.deadline:
                self.outcome.baselines[name] = {"refused": "the budget was used up"}
                continue
            try:
                answer = self._timed("baseline", self.seconds + 60, name=name)
            except Died as error:
                answer = {"refused": f"{error.fault}: {error}"}
                self._restore()
            # scipy is what A @ x means
            if "refused" not in answer and name != "scipy" and not self.timed.right(0, self.session.output):
                answer = {"refused": "its result misses the bound"}
            self.outcome.baselines[name] = answer

    def _compiled(self, candidates, pool: ThreadPoolExecutor, most: int | None):
        """Candidates with their binaries (or verdicts), each compiled while the one before it runs."""
        seen: set[str] = set()
        waiting: list[tuple[Candidate, Future]] = []
        while most is None or len(seen) < most:  # no more is asked for: what comes next may have to be written first
            candidate = next(candidates, None)
            if candidate is None:
                break
            if candidate.key in seen or (not self.finite and prelude.checks_finite(candidate)):
                continue
            seen.add(candidate.key)
            waiting.append((candidate, pool.submit(self._compile, candidate)))
            if len(waiting) > 1:
                first, future = waiting.pop(0)
                yield first, future.result()
        for candidate, future in waiting:
            yield candidate, future.result()

    def _compile(self, candidate: Candidate) -> evaluate.Compiled | Verdict:
        if candidate.key in self.made:
            there = evaluate.Compiled(candidate, self.made[candidate.key], 0.0)
            return evaluate.refuse(candidate, self.problem) or there
        made = evaluate.refuse(candidate, self.problem) or evaluate.compile(candidate, self.problem)
        if self.gpu and isinstance(made, evaluate.Compiled):  # once more for the GPU, while another candidate runs
            with contextlib.suppress(SparsegenError, nvrtc.CompileFailure):
                evaluate.image(made, self.problem, self.gpu.arch)
        return made

    def _timed(self, request: str, seconds: float, **details) -> dict:
        """What the worker answers to a question that it times something for. Waiting for a turn costs no budget."""
        with timing.turn() as waited:
            self.deadline += waited
            return self.session.ask(request, seconds, **details)

    def _try_all(self, compiled, race: float) -> None:
        """Each of `compiled`, until so many seconds are left."""
        for number, (candidate, made) in enumerate(compiled):
            name = f"candidate {number}"
            if isinstance(made, Verdict):
                tried = Tried(candidate, made)
            else:
                verdict = evaluate.run(made, self.problem, self.session, self.references, name, self.patience)
                tried = Tried(candidate, verdict, packed_bytes=int(verdict.resources.get("packed_bytes", 0)))
                if verdict.level >= Level.CORRECT:
                    self._enter(name, tried)
                elif not self.session.alive:
                    self._restore()
                else:
                    self._ask_quietly("drop", names=[name])
            self.outcome.tried.append(tried)
            logger.info("%s: %s %s", tried.label, tried.verdict.level.name, tried.verdict.message or tried.rough_us)
            now = time.monotonic()
            if now > self.deadline or (now > self.deadline - race and self.arms):
                break

    def _enter(self, name: str, tried: Tried) -> None:
        """Make a correct candidate an arm, with one thread and with all; keep the fastest few in the worker."""
        for threads in sorted({1, self.problem.useful_threads}):
            try:
                arm = f"{name} {threads}"
                answer = self._timed("arm", self.seconds, name=arm, bound=name, threads=threads)
            except Died:
                self._restore()
                return
            if tried.rough_us is None or answer["rough_ns"] / 1e3 < tried.rough_us:
                tried.rough_us, tried.threads = answer["rough_ns"] / 1e3, threads
            self.arms[arm] = (tried, threads)
        each_once = {id(each): each for each, _ in self.arms.values()}.values()
        ranked = sorted(each_once, key=lambda each: each.rough_us or 0)
        kept = {id(each) for each in ranked[:FINALISTS]}
        dropped = [arm for arm, (each, _) in self.arms.items() if id(each) not in kept]
        for arm in dropped:
            del self.arms[arm]
        gone = sorted({arm.rpartition(" ")[0] for arm in dropped})
        self._ask_quietly("drop", names=[*dropped, *gone])

    def _restore(self) -> None:
        """After the worker died: baselines and correct candidates again, in a new one."""
        if self.session.alive:  # it could not do what it was asked, no more than that
            return
        try:
            for name, entry in self.outcome.baselines.items():
                if "refused" not in entry:
                    self._timed("baseline", self.seconds + 60, name=name)
            old, self.arms = self.arms, {}
            for name in dict.fromkeys(arm.rpartition(" ")[0] for arm in old):
                tried = next(each for arm, (each, _) in old.items() if arm.rpartition(" ")[0] == name)
                made = self._compile(tried.candidate)
                if isinstance(made, evaluate.Compiled):
                    self.session.ask(
                        "load", self.seconds + 20, name=name, text=evaluate.kernel_file.text(tried.candidate),
                        path=str(made.path), label=name,
                    )  # fmt: skip
                    self._enter(name, tried)
        except Died as error:
            self.outcome.notes.append(f"the worker died again while it was set up anew: {error}")

    def _ask_quietly(self, request: str, **details) -> None:
        try:
            self.session.ask(request, self.seconds, **details)
        except Died:
            self._restore()

    # ---- the race

    def _race(self) -> None:
        usable = {name: entry for name, entry in self.outcome.baselines.items() if "refused" not in entry}
        best = min((entry["rough_ns"] for entry in usable.values()), default=0.0)
        close = [name for name, entry in usable.items() if entry["rough_ns"] < CLOSE * best or name == "scipy"]
        if self.problem.target == "cuda" and len(usable) > 1:  # scipy cannot take what is on a GPU
            usable.pop("scipy", None)
            best = min(entry["rough_ns"] for entry in usable.values())
            close = [name for name, entry in usable.items() if entry["rough_ns"] < CLOSE * best]
        if not self.arms or not close or (self.problem.target != "cuda" and "scipy" not in usable):
            self._baselines_alone(usable)
            return
        rough = {arm: tried.rough_us or 0.0 for arm, (tried, _) in self.arms.items()}
        arms = sorted(arm for arm in rough if rough[arm] <= CLOSE * min(rough.values()))
        arms.sort(key=lambda arm: rough[arm])
        fastest = next(arm for arm in arms if self.arms[arm][1] == self.arms[arm][0].threads)
        threads = self.arms[fastest][1]
        try:
            self._timed("arm", self.seconds, name="null", bound=fastest.rpartition(" ")[0], threads=threads)
            rounds, changed = self._rounds([*arms, "null", *close], (fastest, "null"))
            self._judge(rounds, arms, close, fastest, changed)
            self._cold(close)
        except Died as error:
            self.outcome.notes.append(f"the worker died in the race: {error}")
            self._baselines_alone(usable)

    def _baselines_alone(self, usable: dict) -> None:
        """No candidate to race: another baseline replaces scipy only where it was much faster at first sight."""
        for entry in usable.values():
            entry["measured_us"] = entry["rough_ns"] / 1e3
        scipy_ns = usable.get("scipy", {}).get("rough_ns", float("inf"))
        name = min(usable, key=lambda each: usable[each]["rough_ns"], default="scipy")
        self.outcome.baseline = name if usable and usable[name]["rough_ns"] < 0.8 * scipy_ns else "scipy"

    def _rounds(self, arms: list[str], pair: tuple[str, str]) -> tuple[list[dict], set[str]]:
        """Rounds until the null pair is known to half its limit, or the budget ends; never fewer than FEWEST_ROUNDS."""
        rounds: list[dict] = []
        changed: set[str] = set()
        while len(rounds) < MOST_ROUNDS:
            left = self.deadline - time.monotonic()
            if len(rounds) >= FEWEST_ROUNDS and left < 0:
                break
            count = FEWEST_ROUNDS if not rounds or left > 0 else FEWEST_ROUNDS - len(rounds)
            answer = self._timed(
                "rounds", self.seconds * len(arms) + 30, arms=arms, count=count,
                most_seconds=max(left, LEAST_RACE), seed=self.seed + len(rounds),
            )  # fmt: skip
            rounds += answer["rounds"]
            self.states += answer.get("states", [])
            changed |= set(answer["changed"])
            ratios = np.array([each[pair[1]] / each[pair[0]] for each in rounds])
            error = 1.25 * ratios.std() / np.sqrt(len(ratios))  # of a median
            if len(rounds) >= 3 * FEWEST_ROUNDS and error < LEAST_RESOLUTION / 10:
                break
        return rounds, changed

    def _judge(self, rounds: list[dict], arms: list[str], names: list[str], fastest: str, changed: set[str]) -> None:
        outcome, clean = self.outcome, rounds
        if self.problem.threads > 1:
            clean = [each for each in rounds if abs(each["null"] / each[fastest] - 1) <= NULL_LIMIT]
            if len(clean) < 4:
                apart = f"{len(rounds) - len(clean)} of {len(rounds)} null pairs over {NULL_LIMIT:.0%} apart"
                outcome.notes.append(f"a noisy machine: {apart}, so no kernel with several threads was considered")
                clean, arms = rounds, [arm for arm in arms if self.arms[arm][1] == 1]
        choosing, scoring = clean[::2], clean[1::2] or clean
        # several threads are held up by whatever else runs: their quiet rounds are what a user gets
        level = 50 if self.problem.threads == 1 else 20
        null = np.median([each["null"] / each[fastest] for each in clean])
        outcome.resolution = float(max(LEAST_RESOLUTION, abs(null - 1)))
        outcome.rounds = len(clean)
        for name in names:  # nothing is chosen here that all rounds could flatter
            outcome.baselines[name]["measured_us"] = float(np.percentile([each[name] for each in clean], level)) / 1e3
        for entry in outcome.baselines.values():
            if "refused" not in entry and "measured_us" not in entry:
                entry["measured_us"] = entry["rough_ns"] / 1e3
        times = {name: outcome.baselines[name]["measured_us"] for name in names}
        best = min(names, key=times.__getitem__)
        tied = times.get("scipy", np.inf) <= times[best] * (1 + outcome.resolution)
        outcome.baseline = "scipy" if tied else best
        for arm in sorted(arms, key=lambda arm: np.percentile([each[arm] for each in choosing], level)):
            tried, threads = self.arms[arm]
            timing = Timing.of([each[arm] for each in scoring], self.problem.device)
            if fault := self._distrust(arm, tried, timing, changed):
                tried.verdict = replace(tried.verdict, level=Level.RAN, fault=fault[0], message=fault[1])
                continue
            if tried.verdict.measured is None:  # else it did better with another number of threads
                tried.threads = threads
                tried.verdict = replace(tried.verdict, level=Level.TIMED, measured=timing)
            ratio = float(np.median([each[best] / each[arm] for each in scoring]))
            if self.problem.threads > 1:
                ratio = times[best] * 1e3 / float(np.percentile([each[arm] for each in scoring], level))
            if outcome.timing is None:
                outcome.timing, outcome.speedup = timing, ratio
                alone = self.problem.target == "cuda" and names == ["scipy"]  # nothing else is there for a GPU
                if ratio > 1 + outcome.resolution or alone:
                    outcome.winner = tried

    def _cold(self, names: list[str]) -> None:
        """On a GPU: times with nothing in the L2, apart from the race, and the state of the GPU while it was on."""
        outcome = self.outcome
        if self.problem.target != "cuda":
            return
        if self.states:
            outcome.gpu = {"before": self.states[0], "after": self.states[-1]}
            outcome.notes += gpu.notes(self.states[0], self.states[-1])
        own = next((arm for arm, (tried, _) in self.arms.items() if tried is outcome.winner), None)
        answer = self._timed("cold", self.seconds * len(names) + 30, arms=[*names, *([own] if own else [])])
        for arm, ns in answer["cold_ns"].items():
            if arm == own:
                outcome.cold_us = ns / 1e3
            else:
                outcome.baselines[arm]["cold_us"] = ns / 1e3

    def _distrust(self, arm: str, tried: Tried, timing: Timing, changed: set[str]) -> tuple[str, str] | None:
        """What speaks against a time: results that changed or are wrong afterwards, or more than the hardware can."""
        if why := evaluate.disbelieved(self.session, self.timed, tried.candidate, arm, changed, self.seconds):
            return "wrong", why
        reason = evaluate.too_fast(self.problem, tried.packed_bytes, timing.median_us)
        return ("too fast", reason) if reason else None
