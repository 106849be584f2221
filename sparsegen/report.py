"""What a compilation measured: a mapping that prints as a table."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict

from sparsegen import bandwidth, ops
from sparsegen.candidate import Candidate
from sparsegen.problem import Facts, Problem
from sparsegen.search import Outcome
from sparsegen.verdict import Verdict

MEASURED = (
    "measured_us", "measured_cold_us", "measured_p20_us", "measured_p80_us", "speedup", "gflop_per_s", "bytes_moved",
    "limit_us", "fraction_of_limit", "limit_is", "break_even_calls",
)  # fmt: skip
SHOWN = ("measured_us", "cold_us", "prepare_ms", "refused", "chosen")  # of a baseline


class Report(Mapping):
    """Times in microseconds or milliseconds as the names say; measured_us is a clock's, limit_us the physical limit,
    estimated_us, where there is one, a model's of a GPU that is not here.

    Numbers are finite: what is not known, or is no number, is None. baselines: name -> times, or why it was not used;
    candidates: what came of each that was tried, and its origin; model: what the learned generator wrote, or why it was
    left out, and model_ms how long it took of search_ms, beside other work where a core was free; notes: sentences on
    what else there is to know, such as why a baseline serves.
    """

    def __init__(self, entries: Mapping):
        self._entries = {name: _finite(value) for name, value in entries.items()}

    def __getitem__(self, name: str):
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def noted(self, notes: list[str]) -> Report:
        """The same report with more notes."""
        return Report({**self._entries, "notes": [*self._entries.get("notes", []), *notes]}) if notes else self

    def completed(self, costs: Mapping) -> Report:
        """The same report with what making the kernel cost, and the calls after which that is won back."""
        entries = {**self._entries, **costs}
        base, own = entries["baselines"].get(entries["speedup_is_over"], {}).get("measured_us"), entries["measured_us"]
        saved_us = base - own if base and own else 0.0
        if entries["origin"] != "baseline" and saved_us > 0:
            entries["break_even_calls"] = int(entries["total_ms"] * 1e3 / saved_us) + 1
        return Report(entries)

    def unmeasured(self, candidate: Candidate | None, baseline: str) -> Report:
        """The report after another kernel, or `baseline`, has taken over: what was measured is not its."""
        served = describe(candidate, baseline) | {"verified": "one reference product"}
        return Report({**self._entries, **dict.fromkeys(MEASURED), **served})

    def valued(self, facts: Facts, notes: list[str]) -> Report:
        """The report after new values: their facts, and what came of the last update alone."""
        old = [note for note in self._entries.get("notes", []) if note not in self._entries.get("update_notes", [])]
        new = {"facts": [name for name, holds in asdict(facts).items() if holds], "update_notes": notes}
        return Report({**self._entries, **new, "notes": [*old, *notes]})

    def as_dict(self) -> dict:
        return dict(self._entries)

    def __str__(self) -> str:
        lines = []
        for name, value in self._entries.items():
            if name in ("baselines", "candidates", "notes", "update_notes"):
                continue
            lines.append((name, _shown(value)))
        for name, entry in self._entries.get("baselines", {}).items():
            lines.append((f"baseline {name}", _baseline(entry)))
        for entry in self._entries.get("candidates", []):
            lines.append((f"tried {entry['label']}", _tried(entry)))
        for note in self._entries.get("notes", []):
            lines.append(("note", note))
        width = min(max((len(name) for name, _ in lines), default=0), 60)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in lines)

    __repr__ = __str__


def describe(candidate: Candidate | None, baseline: str) -> dict:
    """The entries that name what serves."""
    if candidate is None:
        nothing: dict = {"format": None, "schedule": None, "parameters": {}}
        return {"kernel": f"baseline {baseline}", **nothing, "origin": "baseline"}
    return {
        "kernel": candidate.label, "format": candidate.format, "schedule": candidate.schedule,
        "parameters": dict(candidate.params), "origin": candidate.origin,
    }  # fmt: skip


def _finite(value):
    if isinstance(value, Mapping):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _shown(value) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return " ".join(f"{name}={_shown(each)}" for name, each in value.items()) or "-"
    if isinstance(value, (list, tuple)):
        return ", ".join(_shown(each) for each in value) or "-"
    return "-" if value is None else str(value)


def _baseline(entry: Mapping) -> str:
    if "refused" in entry:
        return f"not used: {entry['refused']}"
    time = "not measured" if entry.get("measured_us") is None else f"{entry['measured_us']:.4g} us"
    cold = f", {entry['cold_us']:.4g} us cold" if entry.get("cold_us") is not None else ""
    chosen = f" by {entry['chosen']}" if entry.get("chosen") else ""
    prepared = f" (prepare {entry['prepare_ms']:.3g} ms)" if entry.get("prepare_ms") is not None else ""
    return time + cold + chosen + prepared


def _tried(entry: Mapping) -> str:
    if entry.get("fault"):
        return f"{entry['level']}: {entry['fault']}: {entry['message'].splitlines()[0] if entry['message'] else ''}"
    time = entry.get("measured_us") or entry.get("rough_us")
    if entry.get("covered", "all") != "all":
        return f"{entry['level']}: {entry['covered']}"
    if entry.get("estimated_us"):
        return f"{entry['level']} {entry['estimated_us']:.4g} us (estimated)"
    return entry["level"] + (f" {time:.4g} us{'' if entry.get('measured_us') else ' (rough)'}" if time else "")


def made(outcome: Outcome, problem: Problem) -> dict:
    """What `Kernel.report` shows; costs that are not known yet are filled in by Report.completed."""
    winner, pattern = outcome.winner, problem.pattern
    best = outcome.baselines.get(outcome.baseline, {}).get("measured_us")
    report: dict = {
        "kernel": winner.label if winner else f"baseline {outcome.baseline}",
        "format": winner.candidate.format if winner else None,
        "schedule": winner.candidate.schedule if winner else None,
        "parameters": dict(winner.candidate.params) if winner else {},
        "origin": winner.candidate.origin if winner else "baseline",
        "verified": _verified(winner.verdict) if winner else "the library's result was within the bound",
        "op": problem.op, "shape": list(pattern.shape), "nnz": pattern.nnz, "dtype": problem.dtype.name, "k": problem.k,
        "facts": [name for name, holds in asdict(problem.facts).items() if holds],
        "threads": winner.threads if winner else problem.threads,
        "device": problem.device,
    }  # fmt: skip
    timing = winner.verdict.measured if winner else None
    measured = timing.median_us if timing else best
    report |= {
        "measured_us": measured,
        "measured_p20_us": timing.p20_us if timing else None,
        "measured_p80_us": timing.p80_us if timing else None,
        "speedup": outcome.speedup if winner else 1.0 if best else None,
        "speedup_is_over": min(
            (name for name, entry in outcome.baselines.items() if "measured_us" in entry),
            key=lambda name: outcome.baselines[name]["measured_us"],
            default=outcome.baseline,
        ),
        "measured_cold_us": outcome.cold_us,
        "gpu": outcome.gpu,
        "resolution": outcome.resolution,
        "rounds": outcome.rounds,
    }
    index = problem.index_dtype.itemsize
    moved = winner.packed_bytes if winner else pattern.nnz * (problem.dtype.itemsize + index) + (pattern.m + 1) * index
    moved += ops.get(problem.op).moved_bytes(problem)
    if measured:
        report |= _limit(moved, measured, problem)
    if winner and winner.verdict.estimate:
        report |= {"estimated_us": winner.verdict.estimated_us, "estimate": dict(winner.verdict.estimate)}
    report |= {
        "baselines": {
            name: {key: value for key, value in entry.items() if key in SHOWN}
            for name, entry in outcome.baselines.items()
        },
        "compile_ms": winner.verdict.resources.get("compile_ms") if winner else 0.0,
        "pack_ms": None, "startup_ms": None, "model_ms": None, "search_ms": None, "total_ms": None,
        "break_even_calls": None,
        "cached": False,
        "model": None,
        "candidates": [tried.as_dict() for tried in outcome.tried],
        "notes": list(outcome.notes),
    }  # fmt: skip
    if not winner and outcome.baselines:
        report["notes"].append(_why_baseline(outcome))
    return report


def _verified(verdict: Verdict) -> str:
    part = "" if verdict.covered == "all" else f"; {verdict.covered}"
    return f"worst error {verdict.worst:.3g} of its bound, seeds {', '.join(map(str, verdict.seeds))}{part}"


def _limit(moved: float, measured_us: float, problem: Problem) -> dict:
    flops = ops.get(problem.op).flops(problem)
    rate = {"gflop_per_s": flops / measured_us / 1e3, "bytes_moved": int(moved)}
    if problem.target != "cpu":
        return rate  # the memory of a GPU is not measured yet
    level, limit = bandwidth.limit(moved, problem.threads)
    if limit > measured_us:
        level, limit = bandwidth.limit(moved, problem.threads, again=True)
    resident = level.name != "memory"
    return {
        **rate,
        "limit_us": limit,
        "fraction_of_limit": limit / measured_us,
        "limit_is": f"{moved / 1e6:.3g} MB read at {level.bytes_per_s / 1e9:.3g} GB/s measured from {level.name}"
        + (", cache-resident" if resident else ""),
    }


def _why_baseline(outcome: Outcome) -> str:
    timed = [tried for tried in outcome.tried if tried.verdict.measured]
    if outcome.speedup is not None and timed:
        return (
            f"the best kernel ran at {outcome.speedup:.3f} times the speed of the best baseline; "
            f"only what differs by over {outcome.resolution or 0:.1%} counts, so the baseline serves"
        )
    if not outcome.tried:
        return "no candidate was tried, so the baseline serves"
    if all(tried.verdict.fault for tried in outcome.tried):
        return "no candidate was right, so the baseline serves"
    return "the budget ended before a kernel was timed, so the baseline serves"
