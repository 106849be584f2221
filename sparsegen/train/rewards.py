"""What a sample is worth: named plain functions, Outcome -> float.

sparserl     the reward of SparseRL (ICLR 2026), exactly; r_eff and r_penalty are its parameters
tiered       failure tiers and measured GFLOP/s (arXiv 2602.12049)
correctness  compiles, and is right
ladder       ours: bounded, strictly ordered by how far a kernel got, then by its speed normalised per matrix
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from sparsegen.errors import SparsegenValueError
from sparsegen.verdict import Level

ILLEGAL, COMPILE, CRASH, CORRUPT, WRONG, SLOW, FAST = range(7)  # rungs, lowest first
RUNG = {
    "header": ILLEGAL, "screen": ILLEGAL, "infeasible": ILLEGAL, "unfinished": ILLEGAL, "compile": COMPILE,
    "crash": CRASH, "timeout": CRASH, "memory": CRASH,
    "out of bounds": CORRUPT, "writes input": CORRUPT, "race": CORRUPT, "too fast": CORRUPT, "wrong": WRONG,
}  # fmt: skip
_OF_LEVEL = {Level.NONE: ILLEGAL, Level.PARSED: COMPILE, Level.COMPILED: CRASH, Level.RAN: WRONG}


@dataclass(frozen=True)
class Outcome:
    """What is known of one sample.

    level, fault: as in Verdict; level COMPILED without a fault is a kernel that nothing ran (CUDA without a GPU).
    speedup: over the best baseline, beside it in the same rounds; None where nothing was timed.
    time_us, baseline_us: of one call, of the kernel and of that baseline.
    flops: of one call. null_spread: by how much one kernel under two names differed, relative.
    best: the best speedup known for this problem, None if none is.
    permitted: no technique outside the permitted set. shared_bytes_over: more shared memory than the limit.
    fresh: measured for this call, not remembered.
    Raises SparsegenValueError for a number that is not finite: a reward of NaN would spoil every weight.
    """

    level: Level
    fault: str = ""
    speedup: float | None = None
    time_us: float | None = None
    baseline_us: float | None = None
    flops: float = 0.0
    null_spread: float = 0.0
    best: float | None = None
    permitted: bool = True
    shared_bytes_over: bool = False
    fresh: bool = True

    def __post_init__(self):
        for name in ("speedup", "time_us", "baseline_us", "flops", "null_spread", "best"):
            if (number := getattr(self, name)) is not None and not math.isfinite(number):
                raise SparsegenValueError(f"{name} is {number}; expected a finite number, or None where none is known")

    @property
    def rung(self) -> int:
        """ILLEGAL to FAST. What compiled and was never run stands on the lowest rung of what compiled."""
        if not self.permitted:
            return ILLEGAL
        if self.level >= Level.CORRECT:
            return FAST if self.speedup is not None and self.speedup > 1 + self.null_spread else SLOW
        return RUNG.get(self.fault, _OF_LEVEL[self.level])


def sparserl(outcome: Outcome, r_eff: float = 1.0, r_penalty: float = 0.3) -> float:
    """R = R_compile + [compiled] R_test + [correct] r_eff (t_base / t - 1) - r_penalty [shared memory over the limit].

    R_compile and R_test are +0.5 or -0.5. The paper has r_eff = 1.0 and r_penalty = 0.3; its public code 0.2 and 0.2,
    with a limit of 48 KiB. Unbounded above; a correct kernel that is very slow is worth what a wrong one is.
    """
    reward = 0.5
    if outcome.rung <= COMPILE:
        reward = -0.5
    elif outcome.level >= Level.CORRECT:
        reward += 0.5
        if outcome.speedup is not None:
            reward += r_eff * (outcome.speedup - 1)
    elif outcome.level > Level.COMPILED or outcome.fault:  # else nothing tested it
        reward -= 0.5
    return reward - r_penalty * outcome.shared_bytes_over


def tiered(outcome: Outcome) -> float:
    """-100 format or forbidden, -40 compile, -30 time-out, -20 crash, -10 wrong; GFLOP/s where correct.

    Writing out of bounds counts as a crash. What compiled and was never run is given the lowest tier of what compiled.
    """
    if outcome.rung >= SLOW:
        return outcome.flops / (outcome.time_us * 1e3) if outcome.time_us else 0.0
    if outcome.fault == "timeout" and outcome.permitted:
        return -30.0
    if outcome.rung == CRASH and not outcome.fault:
        return -30.0
    return (-100.0, -40.0, -20.0, -20.0, -10.0)[outcome.rung]


def correctness(outcome: Outcome) -> float:
    """R_compile + [compiled] R_test: -0.5, 0 or 1, and 0.5 for what was compiled only."""
    return sparserl(outcome, r_eff=0.0, r_penalty=0.0)


FAILED = (-1.0, -0.8, -0.6, -0.4, -0.2)  # ladder: of the rungs below SLOW
EVEN = 0.4  # ladder: as fast as the best baseline
BEST = 0.8  # ladder: as fast as the best kernel known
SLOWEST = 8.0  # times slower than the best baseline: slower than that makes no difference
LEAST_GAIN = 1.1  # a best known speedup below this is taken as this: noise is not blown up
UNKNOWN_GAIN = 2.0  # what stands for the best where none is known


def ladder(outcome: Outcome) -> float:
    """In [-1, 1]: illegal < compile failure < crash or time-out < out of bounds or race < wrong < slow < fast.

    Slower than the best baseline: 0 to EVEN, by the logarithm of the speedup. Faster by more than the null pair's
    spread: above EVEN, linear in the logarithm of the speedup beyond the spread, so that what is as fast as the best
    known kernel of the problem has BEST whatever there is to gain on its matrix; 1 is reached at 1.5 times that
    logarithm. A best known kernel that gains less than LEAST_GAIN counts as one that gains that, and has less than BEST
    itself. Inside the spread, and where nothing was timed, there is no credit: EVEN, and 0.
    """
    if outcome.rung < SLOW:
        return FAILED[outcome.rung]
    if outcome.speedup is None or not outcome.speedup > 0:
        return 0.0
    gain, spread = math.log(outcome.speedup), math.log1p(outcome.null_spread)
    if outcome.rung == FAST:
        known = math.log(max(outcome.best or UNKNOWN_GAIN, 1e-9)) - spread
        part = (gain - spread) / max(known, math.log(LEAST_GAIN))
        return min(EVEN + (BEST - EVEN) * part, 1.0)
    lost = max(-gain - spread, 0.0) / math.log(SLOWEST)
    return EVEN * (1 - min(lost, 1.0))


REWARDS: dict[str, Callable[..., float]] = {each.__name__: each for each in (sparserl, tiered, correctness, ladder)}
