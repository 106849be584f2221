"""The GPUs of gpus.toml, by name, and how many blocks of a kernel a multiprocessor of one holds.

What experiments/calibrate.py has fitted to measured times of one lies in fitted.toml; there is none until it ran.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sparsegen.errors import SparsegenTypeError, SparsegenValueError

REGISTER_UNIT, WARP_UNIT = 256, 4  # registers of a warp come in these; warps go in turn to four schedulers
USUAL = "A100"  # where nobody says otherwise
RESERVED = 1 << 10  # bytes of shared memory that the system takes with each block


FITTED = Path(__file__).parent / "fitted.toml"


@dataclass(frozen=True)
class Fitted:
    """What times measured on a GPU make of the estimate's parts: each times its factor, the start of a launch in a row
    of calls, and the share of the parts that do not bind. rms: exp of that of log(estimate/measured) of `records` of
    matrices that were not fitted."""

    launch_us: float
    rest: float
    factors: Mapping[str, float]
    records: int
    rms: float
    source: str


@dataclass(frozen=True)
class GPU:
    """As described in gpus.toml, and in fitted.toml where it was measured."""

    name: str
    arch: str
    multiprocessors: int
    clock_ghz: float
    memory_gb_per_s: float
    memory_cycles: int
    l2_bytes: int
    l2_gb_per_s: float
    l1_bytes: int
    shared_bytes: int
    block_shared_bytes: int
    threads: int
    blocks: int
    registers: int
    f64_lanes: int
    source: str
    fitted: Fitted | None = None


@dataclass(frozen=True)
class Occupancy:
    """blocks on a multiprocessor at a time, the share of its threads they are, and what does not allow another."""

    blocks: int
    share: float
    limit: str


@functools.cache
def names() -> tuple[str, ...]:
    return tuple(_all())


@functools.cache
def _all() -> dict[str, GPU]:
    text = (Path(__file__).parent / "gpus.toml").read_text()
    fitted = tomllib.loads(FITTED.read_text()) if FITTED.is_file() else {}
    return {
        name: GPU(name, **entry, fitted=Fitted(**fitted[name]) if name in fitted else None)
        for name, entry in tomllib.loads(text).items()
    }


def get(name: str) -> GPU:
    """The GPU of a name such as "A100" or "RTX 4090". Raises SparsegenValueError."""
    if not isinstance(name, str):
        raise SparsegenTypeError(f"device = {name!r}; expected the name of a GPU: {', '.join(names())}")
    plain = name.upper().replace(" ", "").replace("-", "").replace("_", "").removeprefix("NVIDIA")
    if plain not in _all():
        raise SparsegenValueError(f"device = {name!r}; the GPUs that are known are {', '.join(names())}")
    return _all()[plain]


def asked(device: int | str | None, target: str, arch: str | None) -> tuple[GPU | None, str | None]:
    """The GPU whose times `compile` is to estimate, and the architecture to compile for, if it is one elsewhere.

    An architecture stands for the first GPU that has it. Raises SparsegenValueError for a name with another target.
    """
    if isinstance(device, str):
        found = get(device)
        if target not in ("cuda", "emulator"):
            raise SparsegenValueError(f"device = {device!r} with target = {target!r}; expected 'cuda' or 'emulator'")
        if target == "cuda" and arch not in (None, found.arch):
            raise SparsegenValueError(f"arch = {arch!r} with device = {device!r}; expected {found.arch}")
        return found, found.arch if target == "cuda" else arch
    if target == "emulator":
        return get(USUAL), arch
    return next((each for each in _all().values() if each.arch == arch), None), arch


def occupancy(gpu: GPU, block: int, registers: int, shared_bytes: int) -> Occupancy:
    """Of blocks of so many threads, registers a thread and bytes of shared memory, static and dynamic together.

    Raises SparsegenValueError where not one fits.
    """
    warps = -(-block // 32)
    by_thread = gpu.threads // (32 * warps)
    per_warp = -(-max(registers, 1) * 32 // REGISTER_UNIT) * REGISTER_UNIT
    by_register = gpu.registers // per_warp // WARP_UNIT * WARP_UNIT // warps
    by_shared = gpu.shared_bytes // (shared_bytes + RESERVED)
    fits = {"threads": by_thread, "registers": by_register, "shared memory": by_shared, "blocks": gpu.blocks}
    limit = min(fits, key=lambda name: fits[name])
    if fits[limit] < 1 or shared_bytes > gpu.block_shared_bytes:
        got = f"a block of {block} threads, {registers} registers each, and {shared_bytes} bytes of shared memory"
        raise SparsegenValueError(f"{got} does not fit a multiprocessor of the {gpu.name}")
    return Occupancy(fits[limit], min(1.0, fits[limit] * 32 * warps / gpu.threads), limit)
