"""What this machine can read per second from each level of its memory, measured once and kept.

The physical limit of a product is the bytes it must read and write over the bandwidth of the level that holds them.
"""

from __future__ import annotations

import json
import logging
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sparsegen import cache, timing
from sparsegen.targets import cpu

logger = logging.getLogger("sparsegen")

REPEATS = 7
FALLBACK_SIZES = {"L1": 32 << 10, "L2": 1 << 20, "L3": 32 << 20}  # where the system does not tell
MOST_BUFFER = 256 << 20
PRIVATE = ("L1", "L2")  # every core has its own


@dataclass(frozen=True)
class Level:
    """A cache or the memory: what it holds (0: all) and what `threads` read from it together."""

    name: str
    size_bytes: int
    bytes_per_s: float


def levels(threads: int, again: bool = False) -> tuple[Level, ...]:
    """Every level from the nearest to memory, for that many threads. Raises RuntimeError without the native module.

    `again` measures once more and keeps the faster: a busy machine only ever makes a memory look slower than it is.
    """
    key = f"bandwidth 2 {cpu.device()} {threads}"
    known = _known.get(key)
    if known is None and (stored := cache.get("choices", key)):
        known = tuple(Level(*entry) for entry in json.loads(stored))
    if known is None or again:
        with timing.turn():
            measured = tuple(_measure(threads))
        known = tuple(map(_faster, known, measured)) if known else measured
        rows = [[each.name, each.size_bytes, each.bytes_per_s] for each in known]
        cache.put("choices", key, json.dumps(rows).encode())
    _known[key] = known
    return known


_known: dict[str, tuple[Level, ...]] = {}


def _faster(first: Level, second: Level) -> Level:
    return first if first.bytes_per_s >= second.bytes_per_s else second


def level_of(nbytes: float, threads: int) -> Level:
    """The level that `nbytes` fit in with room to spare."""
    found = levels(threads)
    return next((level for level in found[:-1] if nbytes <= 0.75 * level.size_bytes), found[-1])


def limit(nbytes: float, threads: int, again: bool = False) -> tuple[Level, float]:
    """The level that `nbytes` are read from, and how long that takes at least, in microseconds."""
    levels(threads, again)
    level = level_of(nbytes, threads)
    return level, nbytes / level.bytes_per_s * 1e6


def _measure(threads: int) -> list[Level]:
    sizes = _cache_sizes()
    buffer = np.ones(min(max(2 * max(sizes.values()), 32 << 20), MOST_BUFFER) // 8)
    found: list[Level] = []
    for name, size in [*sizes.items(), ("memory", 0)]:
        part = buffer[: (size // 2) // 8] if size else buffer
        rate = _rate(part, 1, time.thread_time_ns)
        if name in PRIVATE:
            rate, size = rate * threads, size * threads
        elif threads > 1:
            rate = max(rate, _rate(part, threads, time.perf_counter_ns))
        if found:
            rate = min(rate, found[-1].bytes_per_s)  # a farther level is never the faster one: noise
        found.append(Level(name, size, rate))
    return found


def _rate(part: np.ndarray, threads: int, clock) -> float:
    """Bytes per second of reading `part`, the best of several."""
    from sparsegen import _native

    repeats = max(1, (1 << 22) // part.nbytes)
    best = float("inf")
    for _ in range(REPEATS):
        begun = clock()
        _native.read(part, threads, repeats)
        best = min(best, max(clock() - begun, 1) / repeats)
    return part.nbytes / best * 1e9


def _cache_sizes() -> dict[str, int]:
    """Data caches of one core, nearest first, bytes."""
    sizes = {}
    for entry in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            level, kind = (entry / "level").read_text().strip(), (entry / "type").read_text().strip()
            text = (entry / "size").read_text().strip()
        except OSError:
            continue
        if kind != "Instruction":
            sizes[f"L{level}"] = int(text.rstrip("KM")) << {"K": 10, "M": 20}.get(text[-1], 0)
    return dict(sorted(sizes.items())) or dict(FALLBACK_SIZES)
