"""Records of what ran: JSON lines, appended whole, resumed by key, headed by the environment they were made in."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Callable
from pathlib import Path

from sparsegen import files
from sparsegen.paths import PACKAGE
from sparsegen.targets import cpu

PACKAGES = ("numpy", "scipy", "torch", "mkl", "numba", "cuda-bindings", "nvidia-cuda-nvrtc")


def environment(seed: int) -> dict:
    """Seed, commit, device and versions, as they stand beside every figure."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    compiler = cpu.compiler()
    return {
        "seed": seed,
        "commit": commit(),
        "device": cpu.device(),
        "system": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "compiler": compiler.version.splitlines()[0] if compiler else None,
        "versions": versions,
    }


def commit() -> str | None:
    """The commit of a checkout, with + when it was changed; None in an installed wheel."""
    try:
        ran = [
            subprocess.run(["git", "-C", str(PACKAGE.parent), *arguments], capture_output=True, text=True, timeout=10)
            for arguments in (("rev-parse", "--short", "HEAD"), ("status", "--porcelain", "--untracked-files=no"))
        ]
    except (OSError, subprocess.SubprocessError):
        return None
    return None if ran[0].returncode else ran[0].stdout.strip() + ("+" if ran[1].stdout.strip() else "")


Fault = Callable[[dict], str | None]  # one sentence why a record cannot be relied on, or None


def known(path: str | os.PathLike, fault: Fault | None = None) -> dict[str, dict]:
    """What a file of records holds, by key; nothing where there is none. Only read. Raises SparsegenValueError."""
    path = Path(path)
    return {each["key"]: each for each in files.lines(path, "key", fault=fault)} if path.exists() else {}


class Records:
    """An append-only file of records, each with a "key", that is written by this process alone until it ends.

    A line cut short by a kill is dropped. Raises SparsegenValueError for another damaged one, and where another process
    writes the file.
    """

    def __init__(self, path: str | os.PathLike, fault: Fault | None = None):
        self.path = Path(path)
        files.alone(self.path)
        self.known = known(self.path, fault)
        os.truncate(self.path, self.path.read_bytes().rfind(b"\n") + 1)

    def append(self, record: dict) -> None:
        """Write one record with its "key" in a single write."""
        line = json.dumps(record, default=str, allow_nan=False) + "\n"
        with open(self.path, "ab") as file:
            file.write(line.encode())
        self.known[record["key"]] = record
