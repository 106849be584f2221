"""What came of a candidate: how far it got, and the first thing that stopped it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import IntEnum

import numpy as np


class Level(IntEnum):
    """The furthest stage passed."""

    NONE = 0
    PARSED = 1
    COMPILED = 2
    RAN = 3
    CORRECT = 4
    TIMED = 5


@dataclass(frozen=True)
class Timing:
    """Time of one call in microseconds: median, 20th and 80th percentile over `repeats` bursts on `device`."""

    median_us: float
    p20_us: float
    p80_us: float
    repeats: int
    device: str = ""

    @staticmethod
    def of(per_call_ns: Sequence[float], device: str = "") -> Timing:
        p20, median, p80 = np.percentile(np.asarray(per_call_ns, float) / 1e3, [20, 50, 80])
        return Timing(float(median), float(p20), float(p80), len(per_call_ns), device)


@dataclass(frozen=True)
class Verdict:
    """level reached; fault: one word for what stopped it ("" for nothing), with a sentence in message.

    worst: the largest |y - reference| / bound seen, correct iff at most 1. measured is a clock's, estimated_us a
    model's, of which `estimate` holds the parts; they are never mixed. covered: what was not executed, if anything.
    """

    level: Level = Level.NONE
    fault: str = ""
    message: str = ""
    worst: float = float("nan")
    seeds: tuple[int, ...] = ()
    measured: Timing | None = None
    estimated_us: float | None = None
    estimate: Mapping[str, object] | None = None
    covered: str = "all"
    resources: Mapping[str, float] = field(default_factory=dict)

    def as_dict(self) -> dict:
        return {**asdict(self), "level": self.level.name}
