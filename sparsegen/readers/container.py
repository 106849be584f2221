"""The bytes of one matrix file, out of gzip, bzip2 and tar; in memory, bounded, nothing is ever extracted to disk."""

from __future__ import annotations

import bz2
import io
import os
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

from sparsegen.errors import SparsegenValueError
from sparsegen.readers import matrix_market

HEAD = 1 << 16


def _limit() -> int:
    """Half of this machine's memory: the most bytes that a file may expand to."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    except (AttributeError, ValueError, OSError):
        return 1 << 32


LIMIT = _limit()


def contents(path: str | os.PathLike) -> tuple[bytes, str]:
    """The bytes of the matrix file at `path` or inside it, and its name without the suffixes of compression.

    Raises SparsegenValueError: no such file, not a file, empty, truncated, damaged, far too large.
    """
    try:
        file = Path(path).expanduser()
        if not file.exists():
            raise SparsegenValueError(f"{path}: no such file")
        if not file.is_file():
            raise SparsegenValueError(f"{path}: {'a folder' if file.is_dir() else 'not a regular file'}; expected a matrix file")
        if file.stat().st_size > LIMIT:
            raise SparsegenValueError(f"{path}: {file.stat().st_size / 2**30:.1f} GiB, more than half of this machine's memory")
        raw = file.read_bytes()
    except (OSError, ValueError, RuntimeError) as error:
        if isinstance(error, SparsegenValueError):
            raise
        raise SparsegenValueError(f"{path}: cannot be read: {error}") from error
    name = file.name
    for magic, suffix, start in ((b"\x1f\x8b", ".gz", _gzip), (b"BZh", ".bz2", bz2.BZ2Decompressor)):
        if raw.startswith(magic):
            raw = _expanded(raw, magic, start, str(path))
            break
    for suffix in (".gz", ".bz2"):
        name = name.removesuffix(suffix)
    if name.endswith(".tgz"):
        name = name.removesuffix(".tgz") + ".tar"
    if raw[257:262] == b"ustar":
        return _member(raw, name.removesuffix(".tar"), str(path))
    if not raw.strip():
        raise SparsegenValueError(f"{path}: the file is empty")
    return raw, name


def _gzip() -> Any:
    return zlib.decompressobj(wbits=31)


def _expanded(raw: bytes, magic: bytes, start: Callable[[], Any], where: str) -> bytes:
    """The decompressed stream, stopped where it grows beyond what its own size line allows."""
    parts: list[bytes] = []
    size, limit, pending = 0, LIMIT, raw
    try:
        while pending:
            stream = start()
            while not stream.eof:
                part = stream.decompress(pending, HEAD if not size else min(limit - size + 1, 1 << 24))
                pending = stream.unconsumed_tail if hasattr(stream, "unconsumed_tail") else b""
                if not part and not pending and not stream.eof:
                    raise EOFError("it ends in the middle of the compressed stream")
                if not size and matrix_market.sniff(part):
                    limit = min(limit, matrix_market.longest(part) or limit)
                parts.append(part)
                size += len(part)
                if size > limit:
                    raise SparsegenValueError(
                        f"{where}: expands to more than {limit} bytes, far beyond what "
                        + ("half of this machine's memory holds" if limit == LIMIT else "its size line promises")
                    )
            pending = stream.unused_data.lstrip(b"\0")
            if pending and not pending.startswith(magic):
                raise EOFError(f"{len(pending)} bytes of something else follow the compressed stream")
    except (zlib.error, OSError, EOFError, ValueError) as error:
        if isinstance(error, SparsegenValueError):
            raise
        raise SparsegenValueError(f"{where}: the compressed file is damaged or truncated: {error}") from error
    return b"".join(parts)


def _member(raw: bytes, stem: str, where: str) -> tuple[bytes, str]:
    """The matrix in a tar archive as SuiteSparse ships them: `Name/Name.mtx` beside right-hand sides and notes."""
    try:
        with tarfile.open(fileobj=io.BytesIO(raw)) as archive:
            found = {PurePosixPath(member.name): member for member in archive if member.isreg() and member.size <= len(raw)}
            names = [name for name in found if name.suffix.lower() in (".mtx", ".rb", ".mat", ".smtx", ".npz")]
            if len(names) > 1:
                names = [name for name in names if name.stem in (stem, name.parent.name)]
            if len(names) != 1:
                listed = ", ".join(map(str, list(found)[:8])) or "nothing"
                raise SparsegenValueError(f"{where}: expected one matrix file in the archive; it holds {listed}")
            data = archive.extractfile(found[names[0]])
            assert data is not None  # a regular file
            return data.read(), names[0].name
    except (tarfile.TarError, OSError, EOFError) as error:
        raise SparsegenValueError(f"{where}: the archive is damaged or truncated: {error}") from error
