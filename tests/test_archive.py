"""Archives from elsewhere: what is in them, and nothing outside the folder whatever they say."""

from __future__ import annotations

import io
import stat
import tarfile
import zipfile

import numpy as np
import pytest
from webserver import packed

from sparsegen import archive
from sparsegen.errors import SparsegenValueError

FILES = {"A/A.mtx": b"%%MatrixMarket\n" * 5003, "A/A_b.mtx": np.random.default_rng(7013).bytes(70_001)}


def zipped(files: dict[str, bytes], mode: int = 0) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as made:
        for name, body in files.items():
            info = zipfile.ZipInfo(name)
            info.external_attr, info.compress_type = mode << 16, zipfile.ZIP_DEFLATED
            made.writestr(info, body)
    return out.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> bytes:
    """A tar archive of a good file and one more."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as made:
        good, odd = tarfile.TarInfo("A/A.mtx"), tarfile.TarInfo(name)
        odd.type, odd.linkname = kind, link
        made.addfile(good, io.BytesIO())
        made.addfile(odd, io.BytesIO())
    return out.getvalue()


@pytest.fixture
def extracted(tmp_path):
    """extract(body) into a folder with a neighbour; what is left afterwards is checked by `untouched`."""
    folder = tmp_path / "inside" / "folder"

    def extract(body: bytes, **options):
        file = tmp_path / "archive"
        file.write_bytes(body)
        return archive.extract(file, folder, **options)

    extract.folder = folder
    return extract


def untouched(tmp_path) -> None:
    left = {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*")}
    assert left == {"archive", "inside", "inside/folder"}


@pytest.mark.parametrize(
    "body",
    [packed(FILES), packed(FILES, "w"), packed(FILES, "w:bz2"), packed(FILES, "w:xz"), zipped(FILES)],
    ids=["gz", "tar", "bz2", "xz", "zip"],
)
def test_files_come_out_as_they_went_in(extracted, body, tmp_path):
    assert [str(each.relative_to(extracted.folder)) for each in extracted(body)] == list(FILES)
    for name, content in FILES.items():
        assert (extracted.folder / name).read_bytes() == content
    assert archive.names(tmp_path / "archive") == list(FILES)
    assert {each.name for each in extracted.folder.iterdir()} == {"A"}


def test_only_what_is_wanted_and_under_another_name(extracted):
    (made,) = extracted(packed(FILES), wanted={"A/A_b.mtx": "B/b.mtx"}.get)
    assert made == extracted.folder / "B" / "b.mtx" and made.read_bytes() == FILES["A/A_b.mtx"]
    with pytest.raises(SparsegenValueError, match="outside"):
        extracted(packed(FILES), wanted=lambda name: f"../{name}")


@pytest.mark.parametrize(
    "name", ["../evil.mtx", "A/../../evil.mtx", "/tmp/evil.mtx", "..", "A\\..\\..\\evil", "C:evil", "A/\nb", "."]
)
@pytest.mark.parametrize("pack", [packed, zipped], ids=["tar", "zip"])
def test_paths_that_lead_elsewhere(extracted, tmp_path, name, pack):
    if pack is zipped and "\\" in name:
        pytest.skip("zipfile itself writes / for it")
    with pytest.raises(SparsegenValueError, match="leads outside its folder"):
        extracted(pack({**FILES, name: b"evil"}))
    untouched(tmp_path)


@pytest.mark.parametrize(
    ("kind", "link"),
    [
        (tarfile.SYMTYPE, "/etc/passwd"), (tarfile.SYMTYPE, "A.mtx"), (tarfile.LNKTYPE, "A/A.mtx"),
        (tarfile.FIFOTYPE, ""), (tarfile.CHRTYPE, ""), (tarfile.BLKTYPE, ""),
    ],
)  # fmt: skip
def test_links_and_devices(extracted, tmp_path, kind, link):
    with pytest.raises(SparsegenValueError, match="link or a device"):
        extracted(member("A/link", kind, link))
    untouched(tmp_path)


def test_a_link_in_a_zip(extracted, tmp_path):
    with pytest.raises(SparsegenValueError, match="link or a device"):
        extracted(zipped({"A/link": b"/etc/passwd"}, stat.S_IFLNK | 0o777))
    untouched(tmp_path)


@pytest.mark.parametrize("other", ["A/A.mtx", "a/a.MTX", "A//A.mtx"])
def test_a_name_twice(extracted, tmp_path, other):
    with pytest.raises(SparsegenValueError, match="twice"):
        extracted(member(other))
    untouched(tmp_path)


@pytest.mark.parametrize("pack", [packed, zipped], ids=["tar", "zip"])
def test_bombs(extracted, tmp_path, monkeypatch, pack):
    monkeypatch.setattr(archive, "ALWAYS", 100_000)
    assert extracted(pack({"A/A.mtx": b"7" * 50_000}))
    with pytest.raises(SparsegenValueError, match="more bytes than make sense"):
        extracted(pack({"A/bomb": b"7" * 2_000_000}))
    monkeypatch.setattr(archive, "MOST_FILES", 7)
    with pytest.raises(SparsegenValueError, match="more than 7 files"):
        extracted(pack({f"A/{number}": b"" for number in range(9)}))
    assert {str(file.relative_to(extracted.folder)) for file in extracted.folder.rglob("*")} == {"A", "A/A.mtx"}


def test_a_size_that_lies(extracted, tmp_path):
    """A header that promises a terabyte, and none of it follows."""
    info = tarfile.TarInfo("A/A.mtx")
    info.size = 1 << 40
    with pytest.raises(SparsegenValueError, match=r"damaged or truncated|more bytes"):
        extracted(info.tobuf() + b"7" * 5003)
    untouched(tmp_path)


@pytest.mark.parametrize("mode", ["w:gz", "w:bz2", "w:xz"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_cut_short_or_changed(extracted, tmp_path, mode, share):
    body = packed(FILES, mode)
    place = int(len(body) * share)
    for damaged in (body[:place], body[:place] + bytes([body[place] ^ 0x55]) + body[place + 1 :]):
        with pytest.raises(SparsegenValueError) as raised:
            extracted(damaged)
        assert "\n" not in str(raised.value)
        untouched(tmp_path)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "empty"), (b"<!DOCTYPE html><html></html>", "a web page"), (b"\n<html>", "a web page"),
        (b"%%MatrixMarket matrix", "something else, not an archive"), (b"PK\x03\x04nothing", "damaged"),
    ],
)  # fmt: skip
def test_what_is_no_archive(extracted, tmp_path, body, said):
    with pytest.raises(SparsegenValueError, match=said):
        extracted(body)
    untouched(tmp_path)


def test_a_disk_that_is_full_leaves_the_folder_as_it_was(extracted, tmp_path, monkeypatch):
    def full(file, mode):
        if mode == "xb" and file.name == "A_b.mtx":
            raise OSError(28, "No space left on device")
        return open(file, mode)

    monkeypatch.setattr(archive, "open", full, raising=False)
    with pytest.raises(OSError, match="No space"):
        extracted(packed(FILES))
    untouched(tmp_path)
