"""Files that a crash, a full disk or a second process must not spoil, and the signals that end what writes them."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from sparsegen.errors import SparsegenValueError

_held: dict[tuple[int, int], int] = {}  # device and inode -> what is open for as long as this process lives


def whole(path: Path, write: Callable[[Path], object]) -> None:
    """Have `write` fill a file that then takes the place of `path`; where it fails, nothing is left of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        write(part)
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def alone(path: Path) -> None:
    """Hold `path`, made where it is missing, until this process ends, however it ends.

    Raises SparsegenValueError where another process holds it. Never for a file that is replaced: it is another then.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    opened = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    file = os.fstat(opened).st_dev, os.fstat(opened).st_ino
    if file in _held:
        os.close(opened)
        return
    try:
        import fcntl

        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        os.close(opened)
        fix = "wait until it has ended, or give another folder"
        raise SparsegenValueError(f"another process is at work in {path.parent} and holds {path.name}; {fix}") from None
    except (OSError, ImportError):  # a system or file system without locks: nothing can be noticed there
        pass
    _held[file] = opened


def lines(path: Path, *needed: str) -> list[dict]:
    """The objects of a file of JSON lines, which have all that is needed. A last line without its end is left out:
    a crash wrote half of it. Raises SparsegenValueError that names any other line that is no such object, OSError."""
    return list(each_line(path, *needed))


def each_line(path: Path, *needed: str, fault: Callable[[dict], str | None] | None = None) -> Iterator[dict]:
    """As `lines`, one after the other, for a file may be larger than what is to be kept of it; and in which `fault`
    finds no sentence why they cannot be relied on."""
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                record = None
            if not isinstance(record, dict) or any(name not in record for name in needed):
                expected = f"a JSON object{' with ' + ', '.join(needed) if needed else ''}"
                found = line[:60].strip()
                raise SparsegenValueError(f"{path}, line {number}, is damaged: {found!r}; expected {expected}")
            if fault and (reason := fault(record)):
                raise SparsegenValueError(f"{path}, line {number}, is damaged: {reason}")
            yield record


@contextmanager
def told(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """SIGTERM and SIGINT go to `handler` in here, and outside to where they went before; those of the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, was in before.items():
            signal.signal(number, signal.SIG_DFL if was is None else was)  # None: not set from Python
