"""The logs of reinforcement learning: JSON lines, one per iteration and one per sample, cut where a run goes on."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from sparsegen import files, metrics
from sparsegen.model.sample import Sample
from sparsegen.train.rewards import Outcome


def append(file: Path, lines: Iterable[dict]) -> None:
    with open(file, "a") as opened:
        opened.write("".join(json.dumps(each, allow_nan=False) + "\n" for each in lines))


def cut(file: Path, number: int) -> None:
    """Drop the lines of iterations that will be done again, and one that a kill cut short."""
    if file.exists():
        kept = [json.dumps(each) + "\n" for each in files.lines(file, "iteration") if each["iteration"] < number]
        files.whole(file, lambda part: part.write_text("".join(kept)))


def sample(number: int, problem: str, written: Sample, outcome: Outcome, reward: float) -> dict:
    """What the log says of one sample."""
    return {
        "iteration": number, "problem": problem, "sample": digest(written.text), "tokens": len(written.tokens),
        "level": outcome.level.name, "fault": outcome.fault, "permitted": outcome.permitted,
        "speedup": outcome.speedup, "reward": reward, "fresh": outcome.fresh,
    }  # fmt: skip


def digest(text: str) -> str:
    """The name of a sample in the logs."""
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()


def iteration(groups: Sequence[Sequence[Sample]], outcomes: list[list[Outcome]], rewards: list[list[float]]) -> dict:
    """What the log says of the samples of an iteration."""
    every = [each for group in outcomes for each in group]
    speeds = [each.speedup for each in every if each.speedup]
    distinct = [len({each.text for each in group}) / len(group) for group in groups]
    flat = [each for group in rewards for each in group]
    return {
        "samples": len(every),
        "reward": math.fsum(flat) / len(flat),
        "reward_best": math.fsum(map(max, rewards)) / len(rewards),
        "levels": dict(Counter(each.level.name for each in every)),
        "faults": dict(Counter(each.fault for each in every if each.fault)),
        "forbidden": sum(not each.permitted for each in every),
        "distinct": math.fsum(distinct) / len(distinct),
        "speedup": metrics.geomean(speeds) if speeds else None,
        "measured": sum(each.fresh and each.speedup is not None for each in every),
        "tokens": math.fsum(len(each.tokens) for group in groups for each in group) / len(every),
    }
