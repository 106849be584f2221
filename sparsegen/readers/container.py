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

from sparsegen.errors import SparsegenTypeError, SparsegenValueError
from sparsegen.readers import matrix_market

HEAD, STEP = 1 << 16, 1 << 24  # bytes looked at before any more are expanded, and then at a time
ALWAYS, FOLD = 1 << 28, 200  # a stream may expand to so many bytes, or so many times its size


def _limit() -> int:
    """Half of this machine's memory: the most bytes that a file may have, or expand to."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    except (AttributeError, ValueError, OSError):
        return 1 << 32


LIMIT = _limit()


def contents(path: str | os.PathLike) -> tuple[bytes, str]:
    """The bytes of the matrix file at `path` or inside it, and its name without the suffixes of compression.

    Raises SparsegenValueError: no such file, not a file, empty, truncated, damaged, far too large.
    """
    raw, name = _bytes(path)
    for magic, start in ((b"\x1f\x8b", _gzip), (b"BZh", bz2.BZ2Decompressor)):
        if raw.startswith(magic):
            raw = _expanded(raw, magic, start, str(path))
            break
    name = name.removesuffix(".gz").removesuffix(".bz2")
    if name.endswith(".tgz"):
        name = name.removesuffix(".tgz") + ".tar"
    if raw[257:262] == b"ustar":
        return _member(raw, name.removesuffix(".tar"), str(path))
    if not raw[:HEAD].strip() and not raw.strip():
        raise SparsegenValueError(f"{path}: the file is empty")
    return raw, name


def _bytes(path: str | os.PathLike) -> tuple[bytes, str]:
    try:
        file = Path(path).expanduser()
        if not file.exists():
            raise SparsegenValueError(f"{path}: no such file")
        if not file.is_file():
            kind = "a folder" if file.is_dir() else "not a regular file"
            raise SparsegenValueError(f"{path}: {kind}; expected a matrix file")
        size = file.stat().st_size
        if size > LIMIT:
            raise SparsegenValueError(f"{path}: {size / 2**30:.1f} GiB, more than half of this machine's memory")
        return file.read_bytes(), file.name
    except TypeError:
        raise SparsegenTypeError(f"a path of type {type(path).__qualname__}; expected str or os.PathLike") from None
    except SparsegenValueError:
        raise
    except (OSError, ValueError, RuntimeError) as error:
        raise SparsegenValueError(f"{path}: cannot be read: {error}") from error


def _gzip() -> Any:
    return zlib.decompressobj(wbits=31)


def _expanded(raw: bytes, magic: bytes, start: Callable[[], Any], where: str) -> bytes:
    """The decompressed stream; an error where it grows beyond what its own size line or good sense allows."""
    out, limit, pending = io.BytesIO(), min(LIMIT, max(ALWAYS, FOLD * len(raw))), raw
    try:
        while pending:
            stream = start()
            while not stream.eof:
                part = stream.decompress(pending, STEP if out.tell() else HEAD)
                pending = stream.unconsumed_tail if hasattr(stream, "unconsumed_tail") else b""
                if not part and not pending and not stream.eof:
                    raise EOFError("it ends in the middle")
                if not out.tell():
                    limit = _allowed(part, limit, where)
                out.write(part)
                if out.tell() > limit:
                    raise SparsegenValueError(
                        f"{where}: {len(raw)} bytes expand to more than {limit}, beyond what its size line, "
                        f"{FOLD}-fold compression or half of this machine's memory allows"
                    )
            pending = stream.unused_data.lstrip(b"\0")
            if pending and not pending.startswith(magic):
                raise EOFError(f"{len(pending)} bytes of something else follow it")
    except SparsegenValueError:
        raise
    except (zlib.error, OSError, EOFError, ValueError) as error:
        raise SparsegenValueError(f"{where}: the compressed stream is damaged or truncated: {error}") from error
    return out.getvalue()


def _allowed(head: bytes, limit: int, where: str) -> int:
    """The bytes that a stream beginning with `head` may have, at most `limit`."""
    if matrix_market.sniff(head):
        return min(limit, matrix_market.longest(head) or limit)
    if b"\0" in head and head[257:262] != b"ustar" and not head.startswith((b"MATLAB", b"\x89HDF", b"PK")):
        raise SparsegenValueError(f"{where}: the compressed stream holds no kind of matrix file")
    return limit


def _member(raw: bytes, stem: str, where: str) -> tuple[bytes, str]:
    """The matrix in a tar archive as SuiteSparse ships them: `Name/Name.mtx` beside right-hand sides and notes."""
    try:
        with tarfile.open(fileobj=io.BytesIO(raw)) as archive:
            files = [member for member in archive if member.isreg() and member.size <= len(raw)]
            found = {PurePosixPath(member.name): member for member in files}
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
