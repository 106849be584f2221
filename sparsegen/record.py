"""Records of what ran: JSON lines, appended whole, resumed by key, headed by the environment they were made in."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Callable
from pathlib import Path

from sparsegen import files
from sparsegen.errors import SparsegenError
from sparsegen.paths import PACKAGE
from sparsegen.targets import cpu

PACKAGES = (
    "numpy", "scipy", "torch", "mkl", "numba", "cuda-bindings", "nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12",
    "nvidia-cusparse", "nvidia-cusparse-cu12", "cupy-cuda13x", "cupy-cuda12x",
)  # fmt: skip


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
Brief = Callable[[dict], dict]  # what of a record is kept in memory


def known(path: str | os.PathLike, fault: Fault | None = None, brief: Brief | None = None) -> dict[str, dict]:
    """What a file of records holds, by key, or what `brief` keeps of each; of records with one key the last one.

    Nothing where there is no file. Only read. Raises SparsegenValueError.
    """
    path = Path(path)
    if not path.exists():
        return {}
    return {each["key"]: brief(each) if brief else each for each in files.each_line(path, "key", fault=fault)}


class Records:
    """An append-only file of records, each with a "key", that is written by this process alone until it ends.

    known: by key each record, or what `brief` keeps of it. A line cut short by a kill is dropped. Raises
    SparsegenValueError for another damaged one, and where another process writes the file.
    """

    def __init__(self, path: str | os.PathLike, fault: Fault | None = None, brief: Brief | None = None):
        self.path, self.brief = Path(path), brief
        files.alone(self.path)
        self.known = known(self.path, fault, brief)
        os.truncate(self.path, _whole_lines(self.path))

    def append(self, record: dict) -> None:
        """Write one record with its "key", whole or not at all. Raises SparsegenError where the disk cannot take it."""
        line = (json.dumps(record, default=str, allow_nan=False) + "\n").encode()
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        before = os.fstat(file).st_size
        try:
            left = memoryview(line)
            while left:
                left = left[os.write(file, left) :]
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(file, before)
            raise SparsegenError(
                f"{self.path}: a record cannot be written: {error.strerror or error}; nothing that was recorded is "
                "lost: free some space, then go on"
            ) from error
        finally:
            os.close(file)
        self.known[record["key"]] = self.brief(record) if self.brief else record


def _whole_lines(path: Path) -> int:
    """Bytes up to the end of the last line that has one."""
    with open(path, "rb") as file:
        end = file.seek(0, os.SEEK_END)
        while end:
            start = max(end - (1 << 16), 0)
            file.seek(start)
            last = file.read(end - start).rfind(b"\n")
            if last >= 0:
                return start + last + 1
            end = start
    return 0
