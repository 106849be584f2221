"""Matrices parsed once: beside their files, a store of what was read, as binsparse files that load without parsing.

An entry is named by where its source lies and holds the source's size and times: a source that changed is read anew.
It ends with a SHA-256 of all before (HDF5 readers do not look behind the end), which is compared at every load: what
is damaged or cut short is made anew. It is written under a temporary name and renamed, so that readers, of any number,
meet a whole file or none; of two writers the last one wins, with the same content.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import time
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from sparsegen import matrices, paths
from sparsegen.errors import SparsegenError, SparsegenValueError
from sparsegen.readers import binsparse

VERSION = 1  # of what readers make of a file; another one is read anew
DIGEST_BYTES = hashlib.sha256().digest_size
ABANDONED_S = 86_400.0  # a temporary file this old has lost its writer
_TEMPORARY = "tmp-"
_STEP = 1 << 24  # bytes hashed at a time


def load(path: str | os.PathLike) -> sp.csr_array | sp.coo_array:
    """As `matrices.load`, out of the store; what is not there yet, or no longer right, is read and stored.

    The arrays are views of one buffer with the bytes of the entry: nothing is parsed, converted or sorted.
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
            buffer = np.fromfile(file, np.uint8)
            body = buffer[:-DIGEST_BYTES]
            if len(buffer) < DIGEST_BYTES or hashlib.sha256(body).digest() != buffer[-DIGEST_BYTES:].tobytes():
                return None
            with h5py.File(file, "r") as opened:  # the very file whose digest was right
                about, found = binsparse.arrays(opened, buffer)
    except (OSError, SparsegenValueError):
        return None
    if about["sparsegen"]["source"] != stamp:
        return None
    data = found["values"].astype(about["sparsegen"]["dtype"], copy=False)
    shape = tuple(about[binsparse.HEADER]["shape"])
    if about[binsparse.HEADER]["format"] == "CSR":
        A = sp.csr_array((data, found["indices_1"], found["pointers_to_1"]), shape=shape)
        A.has_canonical_format = True  # as it was when written, says the digest
        return A
    B = sp.coo_array((data, (found["indices_0"], found["indices_1"])), shape=shape)
    B.has_canonical_format = True
    return B


def _write(kept: Path, A: sp.csr_array | sp.coo_array, stamp: dict[str, Any]) -> None:
    temporary = kept.with_name(f"{_TEMPORARY}{os.getpid()}-{secrets.token_hex(8)}.h5")
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        _tidy(kept.parent)
        binsparse.write(temporary, A, {"sparsegen": {"source": stamp, "dtype": A.dtype.name}})
        with open(temporary, "r+b") as file:
            digest = hashlib.sha256()
            while part := file.read(_STEP):
                digest.update(part)
            file.write(digest.digest())
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, kept)
    except (OSError, RuntimeError) as error:  # h5py has a RuntimeError for some
        raise SparsegenError(
            f"{kept.parent}: a parsed matrix of {A.nnz} entries cannot be stored here: "
            f"{getattr(error, 'strerror', None) or error}. Nothing that was stored is lost; free some space, or let "
            "SPARSEGEN_HOME name another folder"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def _tidy(folder: Path) -> None:
    for left in folder.glob(f"{_TEMPORARY}*"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > ABANDONED_S:
                left.unlink()
