"""The matrices of a collection that are not here yet, from the SuiteSparse collection's site or a mirror of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from sparsegen import archive, download, index, matrices, paths
from sparsegen.errors import SparsegenError, SparsegenValueError

DLMC = "https://storage.googleapis.com/sgk-sc2020/dlmc.tar.gz"  # one archive of all (Gale, Zaharia, Young, Elsen, 2020)
SUMS = "SHA256SUMS"  # of what was downloaded, as sha256sum writes and reads them


@dataclass(frozen=True)
class Item:
    """One matrix of a collection. state: here, missing, fetched or failed, and then why. bytes: of its file, if here.

    url: where it comes from; empty for a file of the user's. path: where it is, or will be.
    """

    name: str
    state: str
    path: Path
    url: str = ""
    bytes: int = 0
    reason: str = ""

    def as_dict(self) -> dict:
        return {**vars(self), "path": str(self.path)}


def plan(names: Sequence[str], mirror: str | None = None) -> list[Item]:
    """What is here of these matrices, given as files or as `Group/Name`, and where the others would come from."""
    return [_planned(name, mirror) for name in names]


def fetch(
    names: Sequence[str], mirror: str | None = None, progress: Callable[[str, int, int | None], None] | None = None,
    manners: download.Manners | None = None,
) -> Iterator[Item]:  # fmt: skip
    """Download what is missing, one after the other; an Item of each matrix as it is done.

    A matrix that cannot be had is an Item with its reason, and the next one follows; a site that never answered is not
    asked again. SparsegenError where going on makes no sense: the disk is full. Meanwhile progress(name, bytes, bytes
    of the whole or None) is called.
    """
    items = plan(names, mirror)
    together = {_member(item): item.path for item in items if item.state == "missing" and _is_dlmc(item)}
    silent: dict[str, str] = {}  # host -> what was said of it
    for item in items:
        host = urlsplit(item.url).netloc
        if item.state != "missing":
            yield item
            continue
        if host in silent:
            yield replace(item, state="failed", reason=silent[host])
            continue
        try:
            yield _fetched(item, together, progress, manners)
        except SparsegenError as error:
            if getattr(error.__cause__, "errno", None) is not None:
                raise
            if isinstance(error, download.NoAnswer):
                silent[host] = str(error)
            yield replace(item, state="failed", reason=str(error))


def _planned(name: str, mirror: str | None) -> Item:
    try:
        path = Path(name) if Path(name).is_file() else matrices.downloaded(name)
    except SparsegenValueError as error:
        return Item(name, "failed", Path(name), reason=str(error))
    site = (mirror or index.SITE).rstrip("/")
    if path.is_file():
        return Item(name, "here", path, bytes=path.stat().st_size)
    if name.startswith("DLMC/") and path.suffix == ".smtx":
        return Item(name, "missing", path, f"{site}/dlmc.tar.gz" if mirror else DLMC)
    return Item(name, "missing", path, f"{site}/MM/{name}.tar.gz")


def _is_dlmc(item: Item) -> bool:
    return item.path.suffix == ".smtx" and item.name.startswith("DLMC/")


def _member(item: Item) -> str:
    """Its name in DLMC's archive."""
    return f"dlmc/{item.name.removeprefix('DLMC/')}.smtx"


def _fetched(item: Item, together: dict[str, Path], progress, manners: download.Manners | None) -> Item:
    root = paths.home() / "matrices"
    target = root / "dlmc.tar.gz" if _is_dlmc(item) else item.path
    title = target.relative_to(root).as_posix()
    known = _sums(root / SUMS)
    if not target.is_file():
        download.download(
            item.url, target, sha256=known.get(title), check=lambda file: _checked(file, item),
            manners=manners or download.POLITE,
            progress=(lambda done, whole: progress(item.name, done, whole)) if progress else None,
        )  # fmt: skip
        if title not in known:
            _remember(root / SUMS, title, download.digest(target))
    if not item.path.is_file():
        _take(target, root, together, item)
    return Item(item.name, "fetched", item.path, item.url, item.path.stat().st_size)


def _checked(file: Path, item: Item) -> None:
    """Raise unless the archive is whole and holds the matrix."""
    found = archive.names(file)
    if not _is_dlmc(item):
        stem = item.name.split("/")[1]
        if f"{stem}/{stem}.mtx" not in found:
            listed = ", ".join(found[:5]) or "nothing"
            raise SparsegenValueError(f"{file}: the archive holds no {stem}/{stem}.mtx but {listed}")


def _take(file: Path, root: Path, together: dict[str, Path], item: Item) -> None:
    """Extract all that is wanted of DLMC's archive, which is read only once."""
    targets = {member: path.relative_to(root).as_posix() for member, path in together.items()}
    try:
        archive.extract(file, root, targets.get)
    except OSError as error:
        raise SparsegenError(f"{item.path}: cannot be written: {error.strerror or error}; free some space") from error
    if not item.path.is_file():
        raise SparsegenValueError(f"{file}: the archive holds no {_member(item)}")


def _sums(file: Path) -> dict[str, str]:
    """File -> SHA-256; lines that are none are passed over."""
    try:
        lines = file.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    pairs = [line.split(maxsplit=1) for line in lines]
    return {pair[1].lstrip("*"): pair[0] for pair in pairs if len(pair) == 2 and len(pair[0]) == 64}


def _remember(file: Path, title: str, digest: str) -> None:
    with contextlib.suppress(OSError), open(file, "a", encoding="utf-8") as out:
        out.write(f"{digest}  {title}\n")
