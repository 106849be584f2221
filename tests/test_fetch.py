"""Fetching collections: what arrives can be read, what cannot be had is said, and nothing is fetched twice."""

from __future__ import annotations

import io
import json

import pytest
import scipy.io
import webserver
from webserver import packed

from sparsegen import download, fetch, gallery, matrices, parsed, paths
from sparsegen.__main__ import main
from sparsegen.download import Manners
from sparsegen.errors import SparsegenError

QUICK = Manners(attempts=2, pause_s=0.0, timeout_s=0.4, backoff_s=0.0)
LAYER = b"3, 5, 2\n0 1 1 2\n4 0\n"


def market(A) -> bytes:
    out = io.BytesIO()
    scipy.io.mmwrite(out, A)
    return out.getvalue()


A = gallery.stencil2d(13, 7, variable=True)
ONE = packed({"one/one.mtx": market(A), "one/one_b.mtx": b"%%MatrixMarket"})


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARSEGEN_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(download, "POLITE", QUICK)


@pytest.fixture
def server():
    with webserver.running() as running:
        running.files["/MM/HB/one.tar.gz"] = ONE
        running.files["/MM/HB/two.tar.gz"] = packed({"two/two.mtx": market(gallery.arrow(23))})
        running.files["/dlmc.tar.gz"] = packed({f"dlmc/rn50/x/0.5/{name}.smtx": LAYER for name in "abc"})
        yield running


def fetched(server, *names, **options) -> list[fetch.Item]:
    return list(fetch.fetch(names, server.url, manners=QUICK, **options))


def test_a_matrix_arrives_and_is_read(server):
    assert [item.state for item in fetch.plan(["HB/one"], server.url)] == ["missing"]
    seen = []
    (item,) = fetched(server, "HB/one", progress=lambda *now: seen.append(now))
    assert item.state == "fetched" and item.bytes == len(ONE) and seen[-1] == ("HB/one", len(ONE), len(ONE))
    for load in (matrices.load, parsed.load, parsed.load):
        assert (load(item.path) != A).nnz == 0
    (again,) = fetched(server, "HB/one")
    assert again.state == "here" and again.path == item.path and len(server.requests) == 1
    sums = (paths.home() / "matrices" / "SHA256SUMS").read_text()
    assert sums == f"{download.digest(item.path)}  HB/one.tar.gz\n"


def test_one_that_cannot_be_had_does_not_stop_the_others(server, tmp_path):
    local = tmp_path / "mine.mtx"
    local.write_bytes(market(A))
    items = fetched(server, "HB/one", "HB/none", "no name", str(local), "HB/two")
    assert [item.state for item in items] == ["fetched", "failed", "failed", "here", "fetched"]
    assert "HTTP 404" in items[1].reason and "Group/Name" in items[2].reason and items[3].path == local


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (webserver.page, "a web page, not an archive"),
        (webserver.cut(99), "promised"),
        (webserver.length(99), "damaged or truncated"),
        (webserver.length(len(ONE) + 9), "promised"),
        (webserver.stall(99, 5), "timed out"),
        (webserver.status(503), "HTTP 503"),
        (webserver.status(429), "HTTP 429"),
        (webserver.status(302, Location="/MM/HB/one.tar.gz"), "redirects in a loop"),
    ],
)
def test_servers_that_fail(server, answer, said):
    server.script = [answer] * 40
    (item,) = fetched(server, "HB/one")
    assert item.state == "failed" and said in item.reason and "\n" not in item.reason
    assert not item.path.exists()
    server.script.clear()
    (item,) = fetched(server, "HB/one")
    assert item.state == "fetched" and item.path.read_bytes() == ONE


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (packed({"../../one/one.mtx": b"7"}), "leads outside"), (packed({"/one/one.mtx": b"7"}), "leads outside"),
        (packed({"two/two.mtx": b"7"}), "holds no one/one.mtx but two/two.mtx"), (packed({}), "but nothing"),
        (b"%%MatrixMarket", "not an archive"), (b"", "empty, not an archive"), (ONE[:-9], "damaged"),
    ],
    ids=["above", "absolute", "another", "nothing", "text", "empty", "cut"],  # an archive holds the time it was made
)  # fmt: skip
def test_archives_that_are_wrong(server, body, said, tmp_path):
    server.files["/MM/HB/one.tar.gz"] = body
    (item,) = fetched(server, "HB/one")
    assert item.state == "failed" and said in item.reason
    assert [file for file in (tmp_path / "home").rglob("*") if file.is_file()] == []


def test_a_file_that_was_there_before_must_be_the_same(server):
    (item,) = fetched(server, "HB/one")
    item.path.unlink()
    server.files["/MM/HB/one.tar.gz"] = packed({"one/one.mtx": market(gallery.arrow(17))})
    (item,) = fetched(server, "HB/one")
    assert item.state == "failed" and "SHA-256" in item.reason
    server.files["/MM/HB/one.tar.gz"] = ONE
    assert fetched(server, "HB/one")[0].state == "fetched"


def test_pruned_layers_come_out_of_one_archive(server):
    names = [f"DLMC/rn50/x/0.5/{name}" for name in "abz"]
    items = fetched(server, *names)
    assert [item.state for item in items] == ["fetched", "fetched", "failed"]
    assert "holds no dlmc/rn50/x/0.5/z.smtx" in items[2].reason
    assert len(server.requests) == 1
    assert matrices.load(items[0].path).shape == (3, 5)
    assert not (items[0].path.parent / "c.smtx").exists()
    assert fetch.plan(["DLMC/rn50/x/0.5/c"])[0].url == fetch.DLMC


def test_a_site_that_does_not_answer_is_not_asked_again(server):
    server.script = [webserver.silent] * 40
    items = fetched(server, "HB/one", "HB/two", "HB/none")
    assert [item.state for item in items] == ["failed"] * 3 and len(server.requests) == QUICK.attempts
    assert all("no answer" in item.reason for item in items)


def test_a_full_disk_ends_it(server, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(download, "_copy", full)
    with pytest.raises(SparsegenError, match="No space left on device"):
        fetched(server, "HB/one", "HB/two")


# ---------------------------------------------------------------- the command line


@pytest.fixture
def mine(tmp_path):
    file = tmp_path / "mine.txt"
    file.write_text("# two of them\nHB/one\nHB/two # and a word\n")
    return str(file)


def run(capsys, *arguments) -> tuple[int, str]:
    status = main(["fetch", *arguments])
    return status, capsys.readouterr().out


def test_fetch(capsys, server, mine):
    status, out = run(capsys, mine, "--mirror", server.url, "--dry-run")
    assert status == 0 and not server.requests
    assert f"missing  HB/one  {server.url}/MM/HB/one.tar.gz" in out and out.endswith("2 matrices\n")
    status, out = run(capsys, mine, "--mirror", server.url + "/")
    assert status == 0 and out.count("fetched") == 2 and out.endswith("2 matrices\n")
    status, out = run(capsys, mine, "--mirror", server.url, "--json")
    assert status == 0 and [item["state"] for item in json.loads(out)] == ["here", "here"]
    (server.files).clear()
    status, out = run(capsys, mine, "--dry-run", "--json", "--offline", "--limit", "1")
    assert status == 0 and len(json.loads(out)) == 1


def test_fetch_a_query(capsys, server):
    rows = ["HB,one,91,91,409,1,0,0,1,1,1,structural problem,409", "HB,big,9999,9999,9999,1,0,0,1,1,1,structural,9999"]
    server.files["/files/ssstats.csv"] = "\n".join(["2", "a date", *rows]).encode()
    query = ("--kind", "structural", "--group", "hb", "--rows", "90:95", "--mirror", server.url)
    status, out = run(capsys, *query, "--dry-run")
    assert status == 0 and out.splitlines()[0].startswith("missing  HB/one") and out.endswith("1 matrices\n")
    status, out = run(capsys, *query)
    assert status == 0 and out.startswith("fetched  HB/one")


def test_fetch_a_part_of_a_collection(capsys):
    status, out = run(capsys, "structural", "--rows", ":1e3", "--dry-run", "--json", "--offline")
    names = {item["name"] for item in json.loads(out)}
    assert status == 0 and names and names < set(matrices.listed("structural"))


def test_fetch_what_cannot_be_had(capsys, server, tmp_path):
    (tmp_path / "mine.txt").write_text("HB/none\nHB/one\n")
    status, out = run(capsys, str(tmp_path / "mine.txt"), "--mirror", server.url)
    assert status == 1 and "failed   HB/none" in out and "HTTP 404" in out and "fetched  HB/one" in out


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ([], "list collections"), (["dragons"], "smoke"), (["smoke", "--rows", "many"], "expected a range"),
        (["smoke", "--offline"], "--dry-run"), (["--limit", "3"], "list collections"),
    ],
)  # fmt: skip
def test_fetch_that_makes_no_sense(capsys, arguments, word):
    assert main(["fetch", *arguments]) == 1
    out, err = capsys.readouterr()
    assert not out and word in err and err.count("\n") == 1
