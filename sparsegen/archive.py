"""Archives from elsewhere, tar (gzip, bzip2, xz) and zip: looked through, and extracted without trusting them.

Refused as a whole, before anything is written where it belongs: a path that leads elsewhere, a link, a device, a name
twice, more files or more bytes than make sense, a stream that is cut short or whose checksum is wrong.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import re
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any

from sparsegen.errors import SparsegenError, SparsegenValueError

MOST_FILES = 100_000
ALWAYS, FOLD = 1 << 30, 200  # an archive may expand to so many bytes, or so many times its size
STEP = 1 << 20
DAMAGE = (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError, zlib.error, lzma.LZMAError, ValueError, RuntimeError)
OPENERS: dict[bytes, Callable[..., Any]] = {
    b"\x1f\x8b": gzip.GzipFile, b"BZh": bz2.BZ2File, b"\xfd7zXZ\x00": lzma.LZMAFile,
}  # fmt: skip


def names(file: Path) -> list[str]:
    """The files in an archive, all of it read and found in order. Raises SparsegenValueError."""
    found = []
    for name, content in _members(file):
        while content.read(STEP):
            pass
        found.append(name)
    return found


def extract(file: Path, folder: Path, wanted: Callable[[str], str | None] = str) -> list[Path]:
    """Extract files into `folder`, each as what `wanted` makes of its name, None to leave it out.

    Written beside the folder first and moved into it when the whole archive has been read, each file by one rename.
    Raises SparsegenValueError for an archive that cannot be trusted, OSError where the disk is the reason.
    """
    folder.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix="tmp-", dir=folder))
    try:
        targets = []
        for name, content in _members(file):
            target = wanted(name)
            if target is None:
                while content.read(STEP):
                    pass
                continue
            _safe(target, file)
            written = aside / target
            written.parent.mkdir(parents=True, exist_ok=True)
            with open(written, "xb") as out:
                while data := content.read(STEP):
                    out.write(data)
            targets.append(target)
        for target in targets:
            (folder / target).parent.mkdir(parents=True, exist_ok=True)
            os.replace(aside / target, folder / target)
        return [folder / target for target in targets]
    finally:
        shutil.rmtree(aside, ignore_errors=True)


class _Counted:
    """A stream of which no more than `most` bytes can be read, and whose damage is one kind of error."""

    def __init__(self, stream: IO[bytes], most: int, where: Path):
        self.stream, self.left, self.where = stream, most, where

    def read(self, size: int = STEP) -> bytes:
        try:
            data = self.stream.read(min(size, STEP)) if size >= 0 else self.stream.read(STEP)
        except SparsegenError:
            raise
        except DAMAGE as error:
            raise _damaged(self.where, error) from error
        self.left -= len(data)
        if self.left < 0:
            raise SparsegenValueError(f"{self.where}: the archive expands to more bytes than make sense for its size")
        return data


def _damaged(file: Path, error: Exception) -> SparsegenValueError:
    return SparsegenValueError(f"{file}: the archive is damaged or truncated: {error or type(error).__name__}")


def _members(file: Path) -> Iterator[tuple[str, _Counted]]:
    """(name, content) of each file of an archive, in order; the content is to be read before the next one."""
    with open(file, "rb") as raw:
        head = raw.read(512)
    most = max(ALWAYS, FOLD * file.stat().st_size)
    if head.startswith(b"PK"):
        found = _zipped(file, most)
    elif any(head.startswith(magic) for magic in OPENERS) or head[257:262] == b"ustar":
        found = _tarred(file, head, most)
    else:
        page = head.lstrip().lower().startswith((b"<!doctype", b"<html", b"<?xml", b"<head"))
        said = "a web page" if page else "empty" if not head else "something else"
        raise SparsegenValueError(f"{file}: {said}, not an archive (tar.gz, tar.bz2, tar.xz, tar or zip)")
    seen: set[str] = set()
    for name, content in found:
        key = str(_safe(name, file)).casefold()
        if key in seen:
            raise SparsegenValueError(f"{file}: the archive holds {name!r} twice")
        seen.add(key)
        if len(seen) > MOST_FILES:
            raise SparsegenValueError(f"{file}: the archive holds more than {MOST_FILES} files")
        yield name, content


def _tarred(file: Path, head: bytes, most: int) -> Iterator[tuple[str, _Counted]]:
    opener = next((opener for magic, opener in OPENERS.items() if head.startswith(magic)), open)
    with opener(file, "rb") as stream:
        counted = _Counted(stream, most, file)
        try:
            with tarfile.open(fileobj=counted, mode="r|") as archive:  # type: ignore[call-overload]
                for member in archive:
                    if member.isdir():
                        continue
                    if not member.isreg() or member.issparse():
                        raise SparsegenValueError(
                            f"{file}: {member.name!r} in the archive is a link or a device; only plain files are "
                            "extracted"
                        )
                    content = archive.extractfile(member)
                    assert content is not None  # a plain file
                    yield member.name, _Counted(content, most, file)
        except SparsegenError:
            raise
        except (tarfile.TarError, EOFError, ValueError) as error:
            raise _damaged(file, error) from error
        while counted.read(STEP):  # to the end of the stream, where its checksum is
            pass


def _zipped(file: Path, most: int) -> Iterator[tuple[str, _Counted]]:
    try:
        with zipfile.ZipFile(file) as archive:
            for member in archive.infolist():
                if member.is_dir():
                    continue
                mode = member.external_attr >> 16
                if mode & 0o170000 not in (0, 0o100000):
                    raise SparsegenValueError(
                        f"{file}: {member.filename!r} in the archive is a link or a device; only plain files are "
                        "extracted"
                    )
                with archive.open(member) as content:
                    counted = _Counted(content, most, file)
                    yield member.filename, counted
                    most = counted.left
    except (zipfile.BadZipFile, NotImplementedError, EOFError, zlib.error, RuntimeError) as error:
        raise _damaged(file, error) from error


def _safe(name: str, file: Path) -> PurePosixPath:
    """The name as a path that stays where it is put."""
    path = PurePosixPath(name)
    if not path.parts or path.is_absolute() or ".." in path.parts or re.search(r"[\\:\x00-\x1f]", name):
        raise SparsegenValueError(f"{file}: {name[:200]!r} in the archive leads outside its folder: it is refused")
    return path
