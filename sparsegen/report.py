"""What a compilation measured: a mapping that prints as a table."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from sparsegen.candidate import Candidate

MEASURED = (
    "measured_us", "measured_p20_us", "measured_p80_us", "speedup", "gflop_per_s", "bytes_moved", "limit_us",
    "fraction_of_limit", "limit_is", "break_even_calls",
)  # fmt: skip


class Report(Mapping):
    """Times in microseconds or milliseconds as the names say; measured_us is a clock's, limit_us the physical limit.

    Numbers are finite: what is not known, or is no number, is None.
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

    def as_dict(self) -> dict:
        return dict(self._entries)

    def __str__(self) -> str:
        lines = []
        for name, value in self._entries.items():
            if name in ("baselines", "candidates", "notes"):
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
    return time + (f" (prepare {entry['prepare_ms']:.3g} ms)" if entry.get("prepare_ms") is not None else "")


def _tried(entry: Mapping) -> str:
    if entry.get("fault"):
        return f"{entry['level']}: {entry['fault']}: {entry['message'].splitlines()[0] if entry['message'] else ''}"
    time = entry.get("measured_us") or entry.get("rough_us")
    return entry["level"] + (f" {time:.4g} us{'' if entry.get('measured_us') else ' (rough)'}" if time else "")
