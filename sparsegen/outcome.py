"""What a search has found: each candidate with what came of it, and what serves in the end."""

from __future__ import annotations

from dataclasses import dataclass, field

from sparsegen.candidate import Candidate
from sparsegen.verdict import Timing, Verdict


@dataclass
class Tried:
    """A candidate with what came of it; arms are its names in the worker, per thread count."""

    candidate: Candidate
    verdict: Verdict
    rough_us: float | None = None
    threads: int = 1
    packed_bytes: int = 0

    @property
    def label(self) -> str:
        return self.candidate.label

    def before(self, other: Tried | None) -> bool:
        """Whether its estimate is less; without estimates, the first stays."""
        mine = self.verdict.estimated_us
        if other is None or other.verdict.estimated_us is None:
            return other is None or mine is not None
        return mine is not None and mine < other.verdict.estimated_us

    def as_dict(self) -> dict:
        measured = self.verdict.measured
        return {
            "label": self.label, "origin": self.candidate.origin, "level": self.verdict.level.name,
            "fault": self.verdict.fault, "message": self.verdict.message, "worst": self.verdict.worst,
            "rough_us": self.rough_us, "measured_us": measured.median_us if measured else None,
            "estimated_us": self.verdict.estimated_us, "covered": self.verdict.covered, "threads": self.threads,
        }  # fmt: skip


@dataclass
class Outcome:
    """winner None: the baseline serves. speedup is over that baseline, the best; resolution what the race can tell."""

    winner: Tried | None
    baseline: str
    timing: Timing | None
    baselines: dict[str, dict]
    tried: list[Tried]
    resolution: float | None = None
    speedup: float | None = None
    rounds: int = 0
    startup_ms: float = 0.0
    cold_us: float | None = None  # of the winner on a GPU, with nothing in its L2
    gpu: dict | None = None  # its clocks and temperature before and after the race
    notes: list[str] = field(default_factory=list)
