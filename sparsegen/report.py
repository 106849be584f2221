"""What a compilation measured: a mapping that prints as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping


class Report(Mapping):
    """Times in microseconds or milliseconds as the names say; measured_us is a clock's, limit_us the physical limit."""

    def __init__(self, entries: Mapping):
        self._entries = dict(entries)

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
        base = entries["baselines"].get(entries["speedup_is_over"], {}).get("measured_us")
        saved_us = (base or 0.0) - (entries["measured_us"] or 0.0)
        if entries["origin"] != "baseline" and saved_us > 0:
            entries["break_even_calls"] = int(entries["total_ms"] * 1e3 / saved_us) + 1
        return Report(entries)

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
    return f"{entry['measured_us']:.4g} us (prepare {entry['prepare_ms']:.3g} ms)"


def _tried(entry: Mapping) -> str:
    if entry.get("fault"):
        return f"{entry['level']}: {entry['fault']}: {entry['message'].splitlines()[0] if entry['message'] else ''}"
    time = entry.get("measured_us") or entry.get("rough_us")
    return entry["level"] + (f" {time:.4g} us{'' if entry.get('measured_us') else ' (rough)'}" if time else "")
