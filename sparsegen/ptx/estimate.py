"""Counters of a run -> the time it might take on a GPU, and what of it binds: estimated, uncalibrated.

For ranking. A launch costs its start, then the most loaded of the resources that work side by side, and a share of the
others, which never overlap wholly:

    memory      bytes that miss the L2, at a share of the memory's rate; an L2 that holds all is warm
    l2          sectors that miss the L1 or go past it
    issue       instructions of warps, four a cycle, of the multiprocessor that has most
    load_store  lines of requests, turns of shared memory and of its atomics, likewise
    f64         instructions of float64, likewise
    latency     the paths of the longest warps (_scoreboard.h), blocks going to multiprocessors as places get free
    atomics     turns at the hottest line of the L2, or at all of them

Not covered: how requests of different warps delay each other, tensor cores' throughput, clocks that sink under load,
spilled registers and local memory, and launches that overlap. No constant here was fitted to a measured time; where one
GPU was measured, its parts are multiplied by what was fitted to it (gpus.Fitted).
"""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from sparsegen.ptx.counters import Counters, Device
from sparsegen.ptx.gpus import GPU, RESERVED, Occupancy, occupancy

UNCALIBRATED = "estimated, uncalibrated"
FIRST_LAUNCH_US, NEXT_LAUNCH_US = 5.5, 1.0  # the next ones are queued meanwhile
MEMORY_SHARE = 0.9  # of the memory's rate that a copy reaches
REST = 0.15  # of the resources that do not bind
SCHEDULERS = 4
LINE_CYCLES = 1.9  # of a multiprocessor, for a line of 128 bytes of a request
CONFLICT_CYCLES = 2  # for a lane that waits for another's atomic
ATOMIC_CYCLES = 2  # for a turn at a line of the L2
SECTOR = 32
LEAST_L1 = 16 << 10
MOST_PLACED = 20_000  # blocks that are placed one by one; more are taken to spread evenly
MOST_COUNTED = 1_000_000  # entries of A times columns of B: of larger problems some blocks are run, and stand for all
FEWEST_BLOCKS = 128
_F64 = re.compile(r"(@\S+ )?(add|sub|mul|fma|div|sqrt|rcp|rsqrt|min|max|setp|cvt|neg|abs|mma)\S*\.f64")
PARTS = ("launch", "memory", "l2", "issue", "load_store", "f64", "latency", "atomics")


@dataclass(frozen=True)
class Estimate:
    """Times in microseconds; parts by the names of PARTS, and binds the greatest of them.

    occupancy: the least share of a multiprocessor's threads in any launch, and what limits it; imbalance: of the most
    loaded multiprocessor over the mean; blocks_run of blocks were executed. counters are sums over the launches.
    """

    device: str
    estimated_us: float
    parts: Mapping[str, float]
    binds: str
    occupancy: float
    occupancy_limit: str
    imbalance: float
    launches: int
    blocks: int
    blocks_run: int
    counters: Mapping[str, int]
    label: str = UNCALIBRATED

    def as_dict(self) -> dict:
        return asdict(self)


def device(gpu: GPU, resources: Mapping[str, int], block: int, shared_bytes: int, nbytes: int) -> Device:
    """The caches that a launch meets. nbytes: of all that the kernel touches; what fits the L2 is found there."""
    shared = resources["shared_bytes"] + shared_bytes
    held = occupancy(gpu, block, resources["registers"], shared).blocks * (shared + RESERVED)
    l1 = max(gpu.l1_bytes - held, LEAST_L1)
    cycles = gpu.memory_cycles if nbytes > gpu.l2_bytes else Device.l2_cycles
    return Device(gpu.multiprocessors, l1, gpu.l2_bytes, memory_cycles=cycles)


def label(gpu: GPU) -> str:
    """What an estimate for a GPU must be called."""
    if gpu.fitted is None:
        return UNCALIBRATED
    return f"estimated, calibrated on {gpu.fitted.records} times of this GPU, rms factor {gpu.fitted.rms:.2f}"


def stride(entries: int, blocks: int, multiprocessors: int) -> int:
    """Of so many blocks one is run: 1 up to MOST_COUNTED entries; no divisor in common with the multiprocessors."""
    found = min(-(-entries // MOST_COUNTED), blocks // FEWEST_BLOCKS)
    while found > 1 and math.gcd(found, multiprocessors) > 1:
        found -= 1
    return max(found, 1)


def launch(
    gpu: GPU, counters: Counters, resources: Mapping[str, int], block: int, shared_bytes: int = 0, first: bool = True
) -> Estimate:
    """Of one launch. resources: registers and shared_bytes of the kernel, as nvrtc.Image has them; shared_bytes: the
    dynamic ones. first: nothing is queued before it."""
    held = occupancy(gpu, block, resources["registers"], resources["shared_bytes"] + shared_bytes)
    total, cycle_us = counters.total(), 1e-3 / gpu.clock_ghz
    more = counters.grid / len(counters.blocks) if counters.grid else 1.0  # what was run stands for so much more
    sm = _multiprocessors(gpu, counters, held)
    missed, traffic = more * SECTOR * total["l2_misses"], more * SECTOR * total["l1_misses"]
    turns = max(counters.hottest * ATOMIC_CYCLES * cycle_us,
                total["atomic_turns"] * 2 * SECTOR / gpu.l2_gb_per_s * 1e-3)  # fmt: skip
    parts = {
        "launch": FIRST_LAUNCH_US if first else NEXT_LAUNCH_US,
        "memory": _cold_bytes(missed, gpu.l2_bytes) / (MEMORY_SHARE * gpu.memory_gb_per_s) * 1e-3,
        "l2": traffic / gpu.l2_gb_per_s * 1e-3,
        "issue": sm["issue"] * cycle_us,
        "load_store": sm["load_store"] * cycle_us,
        "f64": sm["f64"] * cycle_us,
        "latency": sm["latency"] * cycle_us,
        "atomics": more * turns,
    }
    if gpu.fitted is not None:
        parts = {name: us * gpu.fitted.factors.get(name, 1.0) for name, us in parts.items()}
        parts["launch"] = gpu.fitted.launch_us
    blocks = counters.grid or len(counters.blocks)
    total = {name: round(value * (1 if name.startswith("longest") else more)) for name, value in total.items()}
    total["hottest_line_turns"] = round(more * counters.hottest)
    share = gpu.fitted.rest if gpu.fitted else REST
    return Estimate(
        gpu.name, _sum(parts, share), parts, max(parts, key=lambda name: parts[name]), held.share, held.limit,
        sm["imbalance"], 1, blocks, len(counters.blocks), total, label(gpu),
    )  # fmt: skip


def joined(estimates: Sequence[Estimate], cleared: bool = False) -> Estimate:
    """Of launches one after the other; cleared: and the output is set to zero before."""
    if not estimates:
        raise ValueError("no launch")
    parts = {name: sum(each.parts[name] for each in estimates) for name in PARTS}
    us = sum(each.estimated_us for each in estimates)
    if cleared:
        parts["launch"], us = parts["launch"] + NEXT_LAUNCH_US, us + NEXT_LAUNCH_US
    least = min(estimates, key=lambda each: each.occupancy)
    names = estimates[0].counters
    counters = {
        name: (max if "longest" in name or "hottest" in name else sum)(each.counters[name] for each in estimates)
        for name in names
    }
    return Estimate(
        estimates[0].device, us, parts, max(parts, key=lambda name: parts[name]), least.occupancy,
        least.occupancy_limit, max(each.imbalance for each in estimates), len(estimates) + cleared,
        sum(each.blocks for each in estimates), sum(each.blocks_run for each in estimates), counters,
        estimates[0].label,
    )  # fmt: skip


def _sum(parts: Mapping[str, float], share: float) -> float:
    """The start, the greatest part, and a share of the others."""
    rest = [value for name, value in parts.items() if name != "launch"]
    return parts["launch"] + max(rest) + share * (sum(rest) - max(rest))


def _cold_bytes(missed: float, l2_bytes: int) -> float:
    """Of bytes that are missed when the L2 is empty, those that are missed again: none that fit, all of twice that."""
    return missed * min(max(missed / l2_bytes - 1, 0.0), 1.0)


def _f64_share(counters: Counters) -> float:
    """Of the instructions that were executed, those of float64 arithmetic."""
    executed = counters.instructions["executions"]
    double = np.array([bool(_F64.match(text)) for text in counters.texts], bool)
    return float(executed[double].sum() / max(int(executed.sum()), 1))


def _multiprocessors(gpu: GPU, counters: Counters, held: Occupancy) -> dict[str, float]:
    """Cycles of the most loaded multiprocessor for each resource, and when its last block ends."""
    blocks = counters.blocks
    issue = blocks["instructions"].astype(float)
    f64 = issue * _f64_share(counters) * (32 / gpu.f64_lanes)
    port = LINE_CYCLES * blocks["lines"] + blocks["shared_waves"] + CONFLICT_CYCLES * blocks["atomic_conflicts"]
    loads = np.stack([issue / SCHEDULERS, port.astype(float), f64])
    paths, count = blocks["longest_path"].astype(float), max(counters.grid, len(blocks))
    more, slots = count / len(blocks), gpu.multiprocessors * held.blocks
    if more > 1 or count > MOST_PLACED:
        even = loads.sum(axis=1) * more / gpu.multiprocessors
        most = np.maximum(even, loads.max(axis=1))  # one block that outweighs the others stays where it is
        latency, mean = max(paths.max(), paths.sum() * more / slots), even
    else:
        busy, ends = np.zeros((3, gpu.multiprocessors)), np.zeros(slots)
        delay = (held.blocks - 1) * loads.mean(axis=1).max()  # by the usual work of the blocks that are there as well
        free = [(0.0, turn) for turn in range(slots)]  # the first turns go to one multiprocessor each
        for k, path in enumerate(paths):
            begins, turn = heapq.heappop(free)
            ends[turn] += path
            busy[:, turn % gpu.multiprocessors] += loads[:, k]
            heapq.heappush(free, (begins + max(path, delay), turn))
        most, mean, latency = busy.max(axis=1), busy.mean(axis=1), ends.max()
    heaviest = int(np.argmax(most))
    imbalance = float(most[heaviest] / mean[heaviest]) if mean[heaviest] else 1.0
    issued, stored, double = (float(each) for each in most)
    return {"issue": issued, "load_store": stored, "f64": double, "latency": float(latency), "imbalance": imbalance}
