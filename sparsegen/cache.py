"""Two caches on disk: `binaries` (compiled kernels) and `choices` (which kernel was the best). Keys are the caller's.

An entry is one file named by the hash of its key: the payload, then a digest of kind, key and payload (a shared object
loads with those 16 bytes behind it). It is written under a temporary name and renamed, so a reader meets a whole entry
or none, whoever is killed when; whatever fails its digest is a miss. Where the folder cannot be written, entries live
as long as the process does. Binaries are native code: a folder that another user owns or can write is not used for
them. The least recently used entries go when both caches exceed SPARSEGEN_CACHE_BYTES (1 GiB).
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import multiprocessing.util
import os
import re
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from sparsegen import paths
from sparsegen.errors import SparsegenError, SparsegenValueError

KINDS = ("binaries", "choices")
LIMIT_BYTES = 1 << 30
IN_USE_SECONDS = 60.0  # a binary this recent may be about to be loaded: never removed
ABANDONED_SECONDS = 3600.0  # a temporary file this old has lost its writer
DIGEST_BYTES = 16

_ENTRY = re.compile(r"[0-9a-f]{40}\.(blob|so)")
_TEMPORARY = "tmp-"

_log = logging.getLogger(__name__)
_memory: dict[tuple[str, str], bytes] = {}  # what no folder could take, oldest first
_warned: set[Path] = set()
_private: dict[int, Path] = {}  # process -> its own folder of binaries
_unchecked = [float("inf")]  # bytes written since the sizes were last summed


def get(kind: str, key: str) -> bytes | None:
    """The blob last put under this key, None when there is none or it is damaged."""
    folder = _folder(kind, create=False)
    if (kind, key) in _memory:  # the last put did not reach the folder
        blob = _memory[kind, key] = _memory.pop((kind, key))
        return blob
    return _read(folder / _name(key, "blob"), kind, key) if folder else None


def put(kind: str, key: str, blob: bytes) -> None:
    """Keep `blob` under this key, in place of what was there. Never raises for the state of the disk."""
    folder = _folder(kind, create=True)
    entry = blob + _digest(kind, key, blob)
    if folder and len(entry) <= limit():
        temporary = _temporary(folder, "blob")
        try:
            temporary.write_bytes(entry)
            os.replace(temporary, folder / _name(key, "blob"))
        except OSError as error:
            _remove(temporary)
            _warn(folder, error.strerror or str(error))
        else:
            _memory.pop((kind, key), None)
            _trim(len(entry))
            return
    _memory.pop((kind, key), None)
    _memory[kind, key] = blob
    while sum(map(len, _memory.values())) > max(limit(), len(blob)):
        del _memory[next(iter(_memory))]


def binary_path(key: str, build: Callable[[Path], None]) -> Path:
    """The shared object of this key, built by `build(path)` when there is none: load it at once.

    Whatever `build` raises is passed on and nothing is kept; SparsegenError when it leaves no file.
    """
    folder, name = _folder("binaries", create=True), _name(key, "so")
    if folder:
        path = folder / name
        if _read(path, "binaries", key) is not None:
            return path
        try:
            size = _build(path, key, build)
        except Exception:
            if _writable(folder):
                raise
        else:
            _trim(size)
            return path
    path = _private_folder() / name
    if not path.exists():
        _build(path, key, build)
    return path


def info() -> dict:
    """`folder`, `limit` in bytes, `writable`, and for each kind its `entries` and `bytes` on disk."""
    root = paths.cache()
    existing = next((folder for folder in (root, *root.parents) if folder.exists()), root)
    trusted = all(_distrust(folder) is None for folder in (root, root / "binaries") if folder.exists())
    report = {
        "folder": str(root),
        "limit": limit(),
        "writable": existing.is_dir() and os.access(existing, os.W_OK) and trusted,
    }
    for kind in KINDS:
        sizes = [status.st_size for path, status in _files(root / kind) if _ENTRY.fullmatch(path.name)]
        report[kind] = {"entries": len(sizes), "bytes": sum(sizes)}
    return report


def clear(kind: str | None = None) -> int:
    """Remove every entry of this kind, or of both, and return how many files. Foreign files are left alone."""
    kinds = KINDS if kind is None else (_checked(kind),)
    for entry in [entry for entry in _memory if entry[0] in kinds]:
        del _memory[entry]
    folders = [paths.cache() / known for known in kinds]
    if "binaries" in kinds and os.getpid() in _private:
        folders.append(_private_folder())
    removed = 0
    for path, status in (found for folder in folders for found in _files(folder)):
        if _ENTRY.fullmatch(path.name):
            removed += _remove(path)
        elif _abandoned(path, status):
            _remove(path)
    return removed


def _checked(kind: str) -> str:
    if kind not in KINDS:
        raise SparsegenValueError(f"no cache {kind!r}; there are {' and '.join(KINDS)}")
    return kind


def limit() -> int:
    """Bytes that both caches may take: `SPARSEGEN_CACHE_BYTES`, else 1 GiB. Raises SparsegenValueError for nonsense."""
    text = os.environ.get("SPARSEGEN_CACHE_BYTES", str(LIMIT_BYTES))
    if not text.isdecimal():
        raise SparsegenValueError(
            f"SPARSEGEN_CACHE_BYTES is {text!r}, expected a number of bytes such as {LIMIT_BYTES}"
        )
    return int(text)


def _name(key: str, suffix: str) -> str:
    return f"{hashlib.blake2b(key.encode(), digest_size=20).hexdigest()}.{suffix}"


def _digest(kind: str, key: str, payload: bytes) -> bytes:
    digest = hashlib.blake2b(f"{kind}\0{len(key)}\0{key}".encode(), digest_size=DIGEST_BYTES)
    digest.update(payload)
    return digest.digest()


def _folder(kind: str, create: bool) -> Path | None:
    """The folder of this kind; None, after one warning, when it cannot be made or trusted."""
    folder = paths.cache() / _checked(kind)
    reason: str | None
    try:
        if str(folder).startswith("~"):
            raise OSError("there is no home folder: set SPARSEGEN_CACHE_DIR")
        if create:
            folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
        reason = (_distrust(folder.parent) or _distrust(folder)) if kind == "binaries" else None
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not create:
            return None
        reason = error.strerror or str(error)
    if reason:
        _warn(folder, reason)
        return None
    return folder


def _distrust(folder: Path) -> str | None:
    """Why native code must not be loaded from here, None when it may."""
    if os.name != "posix":
        return None
    status = folder.stat()
    if status.st_uid != os.geteuid():
        return f"{folder} is owned by user {status.st_uid}"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"{folder} can be written by other users: chmod 700"
    return None


def _warn(folder: Path, reason: str) -> None:
    if folder not in _warned:
        _warned.add(folder)
        _log.warning("the cache %s cannot be used (%s): its entries are kept in this process only", folder, reason)


def _read(path: Path, kind: str, key: str) -> bytes | None:
    """The payload of an entry, marked as used; a damaged one is removed."""
    try:
        entry = path.read_bytes()
    except OSError:
        return None
    payload = entry[:-DIGEST_BYTES]
    if len(entry) < DIGEST_BYTES or entry[-DIGEST_BYTES:] != _digest(kind, key, payload):
        if path.suffix != ".so":  # a binary is replaced by the next build, which another process may just have done
            _remove(path)
        return None
    with contextlib.suppress(OSError):  # a folder that can only be read
        os.utime(path)
    return payload


def _build(path: Path, key: str, build: Callable[[Path], None]) -> int:
    temporary = _temporary(path.parent, "so")
    try:
        build(temporary)
        if not temporary.is_file():
            raise SparsegenError(f"the build left no file {temporary.name}")
        payload = temporary.read_bytes()
        with temporary.open("ab") as file:
            file.write(_digest("binaries", key, payload))
        os.replace(temporary, path)
    finally:
        _remove(temporary)
    return len(payload) + DIGEST_BYTES


def _temporary(folder: Path, suffix: str) -> Path:
    return folder / f"{_TEMPORARY}{os.getpid()}-{secrets.token_hex(8)}.{suffix}"


def _writable(folder: Path) -> bool:
    """Whether a file of a binary's size can be written; warns when not."""
    probe = _temporary(folder, "probe")
    try:
        probe.write_bytes(bytes(1 << 20))
    except OSError as error:
        _warn(folder, error.strerror or str(error))
        return False
    finally:
        _remove(probe)
    return True


def _private_folder() -> Path:
    """A folder of this process alone, removed when it ends. A forked child has its own."""
    process = os.getpid()
    if process not in _private:
        folder = Path(tempfile.mkdtemp(prefix="sparsegen-"))
        _private[process] = folder
        # unlike atexit, also runs at the end of a multiprocessing child, and only in the process that registered it
        multiprocessing.util.Finalize(None, shutil.rmtree, (folder, True), exitpriority=0)
    return _private[process]


def _trim(written: int) -> None:
    """Remove abandoned temporary files, and the least recently used entries while both caches exceed the limit.

    The folders are read once per 1/64 of the limit written, and left that much below the limit.
    """
    most = limit()
    _unchecked[0] += written
    if _unchecked[0] <= most // 64:
        return
    _unchecked[0] = 0
    entries = []
    for kind in KINDS:
        for path, status in _files(paths.cache() / kind):
            if _ENTRY.fullmatch(path.name):
                entries.append((status.st_mtime, path, status.st_size))
            elif _abandoned(path, status):
                _remove(path)
    excess = sum(size for _, _, size in entries) - most + most // 64
    for used, path, size in sorted(entries)[:-1]:
        if excess <= 0:
            break
        if path.suffix == ".so" and time.time() - used < IN_USE_SECONDS:
            continue
        _remove(path)
        excess -= size


def _abandoned(path: Path, status: os.stat_result) -> bool:
    return path.name.startswith(_TEMPORARY) and time.time() - status.st_mtime > ABANDONED_SECONDS


def _files(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    try:
        found = list(os.scandir(folder))
    except OSError:
        return
    for entry in found:
        try:
            if entry.is_file(follow_symlinks=False):
                yield Path(entry.path), entry.stat(follow_symlinks=False)
        except OSError:  # removed by another process meanwhile
            continue


def _remove(path: Path) -> bool:
    try:
        path.unlink()
    except OSError:
        return False
    return True
