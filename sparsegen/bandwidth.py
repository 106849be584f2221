"""What this machine can read per second from each level of its memory, measured once and kept.

The physical limit of a product is the bytes it must read and write over the bandwidth of the level that holds them.
"""

from __future__ import annotations

import functools
import json
import logging
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sparsegen import cache
from sparsegen.targets import cpu

logger = logging.getLogger("sparsegen")

REPEATS = 7
FALLBACK_SIZES = {"L1": 32 << 10, "L2": 1 << 20, "L3": 32 << 20}  # where the system does not tell
MOST_BUFFER = 256 << 20


@dataclass(frozen=True)
class Level:
    """A cache or the memory: what it holds (0: all) and what `threads` read from it together."""

    name: str
    size_bytes: int
    bytes_per_s: float


@functools.cache
def levels(threads: int) -> tuple[Level, ...]:
    """Every level from the nearest to memory, for that many threads. Raises RuntimeError without the native module."""
    key = f"bandwidth 1 {cpu.device()} {threads}"
    if stored := cache.get("choices", key):
        return tuple(Level(*entry) for entry in json.loads(stored))
    measured = tuple(_measure(threads))
    cache.put("choices", key, json.dumps([[each.name, each.size_bytes, each.bytes_per_s] for each in measured]).encode())
    return measured


def level_of(nbytes: float, threads: int) -> Level:
    """The level that `nbytes` fit in with room to spare."""
    found = levels(threads)
    return next((level for level in found[:-1] if nbytes <= 0.75 * level.size_bytes), found[-1])


def _measure(threads: int):
    from sparsegen import _native

    sizes = _cache_sizes()
    own = {name: size * (threads if name in ("L1", "L2") else 1) for name, size in sizes.items()}
    last = max(own.values())
    buffer = np.ones(min(max(2 * last, 32 << 20), MOST_BUFFER) // 8)
    fastest = float("inf")
    found = []
    for name, size in [*own.items(), ("memory", 0)]:
        part = buffer[: (size // 2) // 8] if size else buffer
        repeats = max(1, (1 << 22) // part.nbytes)
        best = float("inf")
        for _ in range(REPEATS):
            begun = time.perf_counter()
            _native.read(part, threads, repeats)
            best = min(best, (time.perf_counter() - begun) / repeats)
        fastest = min(fastest, part.nbytes / best)  # a farther level is never the faster one: noise
        found.append(Level(name, size, fastest))
    return found


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
