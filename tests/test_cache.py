"""The two caches: what was put comes back whole or not at all, whatever other processes, the disk or a kill do."""

from __future__ import annotations

import hashlib
import logging
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sparsegen import cache
from sparsegen.errors import SparsegenError, SparsegenValueError


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    root = tmp_path / "nested" / "cache"
    monkeypatch.setenv("SPARSEGEN_CACHE_DIR", str(root))
    monkeypatch.delenv("SPARSEGEN_CACHE_BYTES", raising=False)
    monkeypatch.setattr(cache, "_unchecked", [float("inf")])
    monkeypatch.setattr(cache, "_warned", set())
    monkeypatch.setattr(cache, "_private", {})
    cache._memory.clear()
    return root


def blob(key: str, size: int = 1237) -> bytes:
    """Bytes that follow from the key, so that any process can tell whether what it read is whole."""
    return hashlib.shake_128(key.encode()).digest(size)


def builder(content: bytes, calls: list | None = None):
    def build(path: Path) -> None:
        assert path.suffix == ".so"
        if calls is not None:
            calls.append(path)
        path.write_bytes(content)

    return build


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


@pytest.mark.parametrize("kind", cache.KINDS)
def test_put_then_get(kind, folder):
    assert cache.get(kind, "a") is None and not folder.exists()
    for key in ("a", "../../b", "x" * 9999, "", "é\0ß"):
        cache.put(kind, key, blob(key))
    for key in ("a", "../../b", "x" * 9999, "", "é\0ß"):
        assert cache.get(kind, key) == blob(key)
    assert cache.get(kind, "b") is None
    cache.put(kind, "a", b"")
    assert cache.get(kind, "a") == b""
    assert {path.parent for path in files(folder)} == {folder / kind}
    assert not any(path.name.startswith("tmp-") for path in files(folder))


def test_kinds_are_apart():
    cache.put("choices", "a", b"one")
    assert cache.get("binaries", "a") is None
    cache.put("binaries", "a", b"two")
    assert (cache.get("choices", "a"), cache.get("binaries", "a")) == (b"one", b"two")
    for call in (lambda: cache.get("kernels", "a"), lambda: cache.put("kernels", "a", b""), lambda: cache.clear("all")):
        with pytest.raises(SparsegenValueError, match="binaries and choices"):
            call()


def test_folders_are_private(folder):
    cache.put("choices", "a", b"one")
    assert {path.stat().st_mode & 0o777 for path in (folder, folder / "choices")} == {0o700}


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "grow", "other"])
def test_damaged_entry_is_a_miss_and_is_replaced(damage, folder):
    cache.put("choices", "a", blob("a"))
    cache.put("choices", "b", blob("b"))
    calls: list[Path] = []
    path = cache.binary_path("a", builder(blob("a"), calls))
    blob_file = folder / "choices" / cache._name("a", "blob")
    for file in (blob_file, path):
        whole = file.read_bytes()
        flipped = bytearray(whole)
        flipped[700] ^= 4
        other = (folder / "choices" / cache._name("b", "blob")).read_bytes()
        damaged = {"flip": flipped, "truncate": whole[:700], "empty": b"", "grow": whole + b"0", "other": other}
        file.write_bytes(damaged[damage])
    assert cache.get("choices", "a") is None and not blob_file.exists()
    assert cache.binary_path("a", builder(blob("a2"), calls)) == path and len(calls) == 2
    assert path.read_bytes()[:-16] == blob("a2")
    cache.put("choices", "a", blob("a3"))
    assert cache.get("choices", "a") == blob("a3")


def test_binary_is_built_once_and_found_again(folder):
    calls: list[Path] = []
    first = cache.binary_path("k", builder(b"native", calls))
    assert cache.binary_path("k", builder(b"other", calls)) == first
    assert len(calls) == 1 and calls[0].parent == first.parent == folder / "binaries" and not calls[0].exists()
    assert first.read_bytes().startswith(b"native") and first.suffix == ".so"
    assert cache.binary_path("l", builder(b"second", calls)) != first


def test_failing_build_leaves_nothing(folder):
    def fails(path: Path) -> None:
        path.write_bytes(b"half")
        raise KeyError("compiler")

    with pytest.raises(KeyError, match="compiler"):
        cache.binary_path("k", fails)
    with pytest.raises(SparsegenError, match="no file"):
        cache.binary_path("k", lambda path: None)
    assert files(folder) == []
    assert cache.binary_path("k", builder(b"whole")).read_bytes().startswith(b"whole")


def test_shared_object_with_its_digest_loads(tmp_path):
    import ctypes
    import shutil

    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    source = tmp_path / "seven.c"
    source.write_text("int seven(void) { return 7; }\n")

    def build(path: Path) -> None:
        subprocess.run([compiler, "-shared", "-fPIC", "-o", str(path), str(source)], check=True)

    for _ in range(2):
        assert ctypes.CDLL(str(cache.binary_path("seven", build))).seven() == 7


# folders that cannot be used


@pytest.fixture(params=["file", "below_a_file", "no_home", "refused", "where_none_can_be"])
def unusable(request, tmp_path, monkeypatch):
    root = tmp_path / "plain"
    if request.param == "refused":

        def refuse(*arguments, **options):
            raise OSError(30, "Read-only file system")

        monkeypatch.setenv("SPARSEGEN_CACHE_DIR", str(root))
        monkeypatch.setattr(Path, "mkdir", refuse)
    elif request.param == "where_none_can_be":
        monkeypatch.setenv("SPARSEGEN_CACHE_DIR", "/proc/nothing")
    elif request.param == "no_home":
        monkeypatch.setattr(cache.paths, "cache", lambda: Path("~/.cache/sparsegen"))
    else:
        root.write_text("not a folder")
        monkeypatch.setenv("SPARSEGEN_CACHE_DIR", str(root if request.param == "file" else root / "a" / "b"))
    return root


def test_unusable_folder_means_memory_and_one_warning_each(unusable, caplog):
    calls: list[Path] = []
    for round_ in range(3):
        cache.put("choices", "a", blob(f"a{round_}"))
        cache.put("choices", "b", blob("b"))
        assert cache.get("choices", "a") == blob(f"a{round_}") and cache.get("choices", "b") == blob("b")
        path = cache.binary_path("k", builder(b"native", calls))
        assert path.read_bytes().startswith(b"native") and path.parent.stat().st_mode & 0o777 == 0o700
    assert len(calls) == 1
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert cache.info()["choices"] == {"entries": 0, "bytes": 0}
    assert cache.clear() == 1 and cache.get("choices", "a") is None and not path.exists()


def test_memory_is_bounded(unusable, monkeypatch):
    monkeypatch.setenv("SPARSEGEN_CACHE_BYTES", "5000")
    for i in range(9):
        cache.put("choices", f"{i}", blob(f"{i}"))
        assert cache.get("choices", "0") == blob("0")  # used, so kept
    assert [i for i in range(9) if cache.get("choices", f"{i}")] == [0, 6, 7, 8]


def test_full_disk(folder, monkeypatch, caplog):
    cache.put("choices", "old", blob("old"))
    cache.put("choices", "a", blob("old a"))

    def full(self, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    cache.put("choices", "a", blob("a"))
    cache.put("choices", "c", blob("c"))
    assert [cache.get("choices", key) for key in ("old", "a", "c")] == [blob("old"), blob("a"), blob("c")]
    assert len(caplog.records) == 1 and "No space" in caplog.text
    calls = []

    def build(path: Path) -> None:
        calls.append(path)
        if folder in path.parents:
            raise RuntimeError("ld: no space")
        with path.open("wb") as file:
            file.write(b"native")

    assert cache.binary_path("k", build) == cache.binary_path("k", build)
    assert [folder in path.parents for path in calls] == [True, False, True]  # the folder is tried again
    monkeypatch.undo()


@pytest.mark.skipif(os.name != "posix", reason="owners and modes")
@pytest.mark.parametrize("who", ["group", "world", "root_group", "other_user"])
def test_binaries_of_untrusted_folders_are_not_loaded(who, folder, monkeypatch, caplog):
    trusted = cache.binary_path("k", builder(b"planted"))
    cache.put("binaries", "k", b"planted")
    if who == "other_user":
        monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    else:
        (folder if who == "root_group" else folder / "binaries").chmod(0o777 if who == "world" else 0o770)
    path = cache.binary_path("k", builder(b"own"))
    assert path != trusted and folder not in path.parents and path.read_bytes().startswith(b"own")
    assert cache.get("binaries", "k") is None
    cache.put("binaries", "k", b"own")
    assert cache.get("binaries", "k") == b"own"
    assert len(caplog.records) == 1 and not cache.info()["writable"]
    cache.put("choices", "k", b"text")
    cache._memory.clear()
    assert cache.get("choices", "k") == b"text"


def test_private_folder_goes_with_its_process(tmp_path):
    code = """
import multiprocessing, os, sys
from pathlib import Path
from sparsegen import cache
def work(_=None):
    path = cache.binary_path("k", lambda path: path.write_bytes(b"native"))
    print(path, flush=True)
work()
child = multiprocessing.get_context("fork" if os.name == "posix" else "spawn").Process(target=work)
child.start()
child.join()
work()
"""
    (tmp_path / "file").write_text("")
    environment = dict(os.environ, SPARSEGEN_CACHE_DIR=str(tmp_path / "file"))
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    mine, childs, again = map(Path, done.stdout.split())
    assert mine == again != childs
    assert not mine.parent.exists() and not childs.parent.exists()


# size


def test_least_recently_used_go_first(folder, monkeypatch):
    entry = 1237 + 16
    monkeypatch.setenv("SPARSEGEN_CACHE_BYTES", str(10 * entry + 200))
    for i in range(9):
        cache.put(cache.KINDS[i % 2], f"{i}", blob(f"{i}"))
        age(folder / cache.KINDS[i % 2] / cache._name(f"{i}", "blob"), 1000 - i)
    assert cache.get("choices", "1") == blob("1")  # used now
    for i in range(9, 13):
        cache.put("choices", f"{i}", blob(f"{i}"))
    assert [i for i in range(13) if cache.get(cache.KINDS[i % 2 if i < 9 else 1], f"{i}")] == [1, *range(4, 13)]
    assert sum(path.stat().st_size for path in files(folder)) <= 10 * entry + 200


def test_a_binary_about_to_be_loaded_is_not_removed(monkeypatch):
    monkeypatch.setenv("SPARSEGEN_CACHE_BYTES", "3000")
    paths = [cache.binary_path(f"{i}", builder(blob(f"{i}"))) for i in range(5)]
    assert all(path.exists() for path in paths)
    for path in paths:
        age(path, 100)
    cache.put("choices", "a", b"one" * 30)
    assert sum(path.exists() for path in paths) == 2
    assert cache.get("choices", "a") == b"one" * 30


def test_entry_beyond_the_limit_stays_in_memory(folder, monkeypatch):
    monkeypatch.setenv("SPARSEGEN_CACHE_BYTES", "1000")
    cache.put("choices", "a", b"small")
    cache.put("choices", "b", blob("b"))
    assert cache.get("choices", "b") == blob("b") and cache.get("choices", "a") == b"small"
    assert len(files(folder)) == 1


@pytest.mark.parametrize("text", ["-1", "1e9", "1 GiB", ""])
def test_limit_that_is_no_number(text, monkeypatch):
    monkeypatch.setenv("SPARSEGEN_CACHE_BYTES", text)
    with pytest.raises(SparsegenValueError, match="SPARSEGEN_CACHE_BYTES"):
        cache.put("choices", "a", b"one")


def test_abandoned_temporary_files_are_removed(folder):
    cache.put("choices", "a", b"one")
    old, new, foreign = (folder / "choices" / name for name in ("tmp-9-ab.blob", "tmp-9-cd.blob", "notes.txt"))
    for file in (old, new, foreign):
        file.write_text("half")
    age(old, 3700)
    age(foreign, 3700)
    cache._unchecked[0] = float("inf")
    cache.put("choices", "b", b"two")
    assert not old.exists() and new.exists() and foreign.exists()


def test_info_and_clear(folder):
    report = cache.info()
    assert report["folder"] == str(folder) and report["limit"] == 2**30 and report["writable"]
    assert report["binaries"] == report["choices"] == {"entries": 0, "bytes": 0} and not folder.exists()
    cache.put("choices", "a", b"one")
    cache.put("choices", "b", b"three")
    cache.binary_path("k", builder(b"native"))
    keep = folder / "choices" / "mine.txt"
    keep.write_text("not ours")
    assert cache.info()["choices"] == {"entries": 2, "bytes": 8 + 32}
    assert cache.info()["binaries"] == {"entries": 1, "bytes": 6 + 16}
    assert cache.clear("choices") == 2 and cache.get("choices", "a") is None
    assert cache.clear() == 1 and files(folder) == [keep]


# many processes


def hammer(seed: int, seconds: float) -> None:
    """Put, get, build and now and then clear over few keys; any entry that is not whole ends the process with 1."""
    rng = random.Random(seed)
    stop = time.monotonic() + seconds
    while time.monotonic() < stop:
        key = f"{rng.randrange(7)}"
        kind = rng.choice(cache.KINDS)
        step = rng.randrange(20)
        if step < 8:
            cache.put(kind, key, blob(key, 40_000))
        elif step < 15:
            found = cache.get(kind, key)
            assert found is None or found == blob(key, 40_000)
        elif step < 19:
            path = cache.binary_path(key, builder(blob(key, 60_000)))
            assert path.read_bytes()[:-16] == blob(key, 60_000)
        else:
            cache.clear("choices")


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods()[:2])
def test_six_processes_at_once(method, folder, monkeypatch):
    monkeypatch.setenv("SPARSEGEN_CACHE_BYTES", "700000")  # evicting all the time
    cache.put("choices", "before the fork", b"one")
    context = multiprocessing.get_context(method)
    workers = [context.Process(target=hammer, args=(seed, 1.5)) for seed in range(11, 17)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0] * 6
    assert not any(path.name.startswith("tmp-") for path in files(folder))


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="kill -9")
def test_killed_at_any_instant(folder):
    rng = random.Random(23)
    context = multiprocessing.get_context("fork")
    for seed in range(100, 125):
        worker = context.Process(target=hammer, args=(seed, 60))
        worker.start()
        time.sleep(rng.uniform(0.005, 0.08))
        os.kill(worker.pid, signal.SIGKILL)
        worker.join()
        for kind in cache.KINDS:
            for key in map(str, range(7)):
                assert cache.get(kind, key) in (None, blob(key, 40_000))
    for key in map(str, range(7)):
        assert cache.binary_path(key, builder(blob(key, 60_000))).read_bytes()[:-16] == blob(key, 60_000)
    for path in files(folder):
        if path.name.startswith("tmp-"):
            age(path, 3700)
    cache._unchecked[0] = float("inf")
    cache.put("choices", "a", b"one")
    assert all(cache._ENTRY.fullmatch(path.name) for path in files(folder))
