"""Matrices parsed once: beside their files, a store of what was read, as binsparse files that load without parsing.

An entry is named by where its source lies and holds the source's size and times: a source that changed is read anew.
It ends with a CRC-32 of all before (HDF5 readers do not look behind the end), which is compared at every load: what is
damaged or cut short is made anew. A CRC finds accidents, and reads memory three times as fast as a SHA-256. An entry is
written under a temporary name and renamed, so that readers, of any number, meet a whole file or none; of two writers
the last one wins, with the same content.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import threading
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from sparsegen import files, matrices, paths
from sparsegen.errors import SparsegenError, SparsegenValueError
from sparsegen.readers import binsparse

VERSION = 1  # of what readers make of a file; another one is read anew
CHECK_BYTES = 4
ABANDONED_S = 86_400.0  # a temporary file this old has lost its writer
_writing = threading.Lock()  # one entry at a time in a process
_STEP = 1 << 24  # bytes checked at a time


def load(path: str | os.PathLike) -> sp.csr_array | sp.coo_array:
    """As `matrices.load`, out of the store; what is not there yet, or no longer right, is read and stored.

    The arrays are the caller's own and lie in the file, mapped copy on write: nothing is parsed, converted or copied.
    As long as they are in use the entry may be removed or replaced, but must not be cut short in its place.
    Raises SparsegenValueError as `matrices.load` does, and SparsegenError where the store cannot be written.
    """
    source, kept = Path(path), place(path)
    found = _read(kept, _stamp(source))
    if found is not None:
        return found
    stamp = _stamp(source)  # of before reading: a source that changes meanwhile is read anew next time
    A = matrices.load(path)
    _write(kept, A, stamp)
    return A


def place(path: str | os.PathLike) -> Path:
    """Where the store keeps the matrix of this file: `SPARSEGEN_HOME/parsed/<name>-<hash of its path>.h5`."""
    source = Path(path).expanduser()
    full = str(source.resolve())
    name = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in source.name.split(".")[0])
    return paths.home() / "parsed" / f"{name[:60]}-{hashlib.blake2b(full.encode(), digest_size=10).hexdigest()}.h5"


def _stamp(source: Path) -> dict[str, Any]:
    """What says that a file has not changed; empty where there is none."""
    try:
        status = source.expanduser().stat()
    except (OSError, ValueError):
        return {}  # matrices.load says what is wrong
    return {
        "version": VERSION, "size": status.st_size, "mtime_ns": status.st_mtime_ns, "ctime_ns": status.st_ctime_ns,
    }  # fmt: skip


def _read(kept: Path, stamp: dict[str, Any]) -> sp.csr_array | sp.coo_array | None:
    """The matrix of an entry; None where there is none, it is damaged, or its source is another by now."""
    import h5py

    try:
        with open(kept, "rb") as file:
            if os.fstat(file.fileno()).st_size <= CHECK_BYTES:
                return None
            buffer = np.memmap(file, np.uint8, "c")
            if zlib.crc32(buffer[:-CHECK_BYTES].data).to_bytes(CHECK_BYTES) != buffer[-CHECK_BYTES:].tobytes():
                return None
            with h5py.File(file, "r") as opened:  # the very file whose check was right
                about, found = binsparse.arrays(opened, buffer)
    except (OSError, SparsegenValueError):
        return None
    if about["sparsegen"]["source"] != stamp:
        return None
    data = found["values"].astype(about["sparsegen"]["dtype"], copy=False)
    shape = tuple(about[binsparse.HEADER]["shape"])
    if about[binsparse.HEADER]["format"] == "CSR":
        A = sp.csr_array((data, found["indices_1"], found["pointers_to_1"]), shape=shape)
        A.has_canonical_format = True  # as it was when written, says the check
        return A
    B = sp.coo_array((data, (found["indices_0"], found["indices_1"])), shape=shape)
    B.has_canonical_format = True
    return B


def _write(kept: Path, A: sp.csr_array | sp.coo_array, stamp: dict[str, Any]) -> None:
    def write(part: Path) -> None:
        binsparse.write(part, A, {"sparsegen": {"source": stamp, "dtype": A.dtype.name}})
        with open(part, "r+b") as file:
            check = 0
            while piece := file.read(_STEP):
                check = zlib.crc32(piece, check)
            file.write(check.to_bytes(CHECK_BYTES))
            file.flush()
            os.fsync(file.fileno())

    try:
        _tidy(kept.parent)
        with _writing:
            files.whole(kept, write)
    except (OSError, RuntimeError) as error:  # h5py has a RuntimeError for some
        raise SparsegenError(
            f"{kept.parent}: a parsed matrix of {A.nnz} entries cannot be stored here: "
            f"{_why(error)}. Nothing that was stored is lost; free some space, or let "
            "SPARSEGEN_HOME name another folder"
        ) from error


def _why(error: OSError | RuntimeError) -> str:
    """The system's words, which HDF5 hides in some of its own."""
    said = re.search(r"error message = '([^']*)'", str(error))
    return said[1] if said else getattr(error, "strerror", None) or " ".join(str(error).split())


def _tidy(folder: Path) -> None:
    for left in folder.glob("*.part"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > ABANDONED_S:
                left.unlink()
