"""What is known of matrices that are not here: the shipped table, the site's, and queries of them."""

from __future__ import annotations

import functools
import sys
import types

import pytest
import webserver

from sparsegen import gallery, index, matrices, paths
from sparsegen.download import Manners
from sparsegen.errors import SparsegenError, SparsegenValueError
from sparsegen.index import Entry, Query
from sparsegen.train.corpus import held_out_families

QUICK = Manners(attempts=2, pause_s=0.0, timeout_s=2.0, backoff_s=0.0)
TABLE = """3
31-Oct-2023 18:12:37
HB,1138_bus,1138,1138,4054,1,0,0,1,1.00,1.00,power network problem,4054
HB,west0479,479,479,1888,1,0,0,0,0.02,0.01,chemical process simulation problem,1910
Newman,karate,34,34,156,1,1,0,0,1.00,1.00,undirected graph,156
"""
full = functools.partial(index.full, manners=QUICK)


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARSEGEN_HOME", str(tmp_path / "home"))
    monkeypatch.setitem(sys.modules, "ssgetpy", None)  # as if it were not installed


@pytest.fixture
def server():
    with webserver.running() as running:
        running.files["/files/ssstats.csv"] = TABLE.encode()
        yield running


def test_what_is_shipped():
    entries = index.shipped()
    assert len(entries) > 150 and len({entry.key for entry in entries}) == len(entries)
    karate = next(entry for entry in entries if entry.key == "Newman/karate")
    assert (karate.rows, karate.cols, karate.nnz, karate.symmetric) == (34, 34, 156, True)
    assert karate.domain and karate.family == "Newman:karate" and "graph" in karate.kind
    file = paths.data("matrices") / "index.tsv"
    assert file.stat().st_size < 60_000
    head = file.read_text("utf-8").splitlines()[:4]
    assert all(line.startswith("# ") for line in head) and "Licence" in head[1]
    for entry in entries:
        assert entry.rows > 0 and entry.cols > 0 and 0 < entry.nnz <= entry.rows * entry.cols
        matrices.downloaded(entry.key)


def test_every_entry_has_a_twin():
    for entry in index.shipped()[::9]:
        if entry.nnz < 60_000:
            A = gallery.twin(entry.statistics, seed=7)
            assert A.shape == (entry.rows, entry.cols)
            assert abs(A.nnz - entry.nnz) <= 0.05 * entry.nnz + 3, entry.key


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (Query(), ["A/one", "A/two", "B/three"]),
        (Query(rows="10:20"), ["A/one"]),
        (Query(rows="1e2:1e4"), ["A/two", "B/three"]),
        (Query(rows=":100"), ["A/one", "A/two"]),
        (Query(rows="101:"), ["B/three"]),
        (Query(rows="100"), ["A/two"]),
        (Query(cols=(7, 7)), ["A/one"]),
        (Query(nnz="31:400", group="a"), ["A/two"]),
        (Query(kind="GRAPH"), ["B/three"]),
        (Query(name="t*"), ["A/two", "B/three"]),
        (Query(name="TW?"), ["A/two"]),
        (Query(field="complex"), ["A/two"]),
        (Query(rows="10:20", kind="graph"), []),
    ],
    ids=str,
)
def test_queries(query, expected):
    entries = [
        Entry("B", "three", 7919, 9, 31, "pattern", True, "undirected graph"),
        Entry("A", "two", 100, 100, 400, "complex", False, "circuit simulation problem"),
        Entry("A", "one", 13, 7, 30, "real", False, "structural problem"),
    ]
    assert [entry.key for entry in index.search(query, entries)] == expected
    assert bool(query) == (query != Query())


@pytest.mark.parametrize("wrong", ["", ":", "five", "9:3", "-3:5", "1:2:3", "nan:5", (3,), (5, 3), 7, ["a", "b"]])
def test_ranges_that_are_none(wrong):
    with pytest.raises(SparsegenValueError, match="expected a range such as"):
        Query(nnz=wrong)
    with pytest.raises(SparsegenValueError, match="field"):
        Query(field="quaternion")


def test_the_whole_table_is_downloaded_once(server):
    assert index.date() is None
    entries = {entry.key: entry for entry in full(mirror=server.url)}
    assert set(entries) >= {"HB/1138_bus", "HB/west0479", "Newman/karate"}
    west = entries["HB/west0479"]
    assert (west.rows, west.nnz, west.field, west.symmetric) == (479, 1910, "real", False)  # with its stored zeros
    assert entries["Newman/karate"].family == "Newman:karate"  # what is shipped says more
    full(mirror=server.url)
    assert len(server.requests) == 1
    assert index.date() is not None and index.date()[:2] == "20"
    assert {entry.key for entry in index.known()} == set(entries)
    full(mirror=server.url, update=True)
    assert len(server.requests) == 2
    query = Query(kind="power network", rows="1138")
    assert matrices.collection(query) == [entry.key for entry in index.search(query)]
    assert "HB/1138_bus" in matrices.collection(query)


def test_tables_of_earlier_years_have_a_column_less(server):
    lines = [line.rpartition(",")[0] if line.count(",") > 5 else line for line in TABLE.splitlines()]
    server.files["/files/ssstats.csv"] = "\n".join(lines).encode()
    assert next(entry for entry in full(mirror=server.url) if entry.name == "west0479").nnz == 1888


@pytest.mark.parametrize(
    "body", [b"", b"<html></html>", TABLE.replace("3\n", "4\n", 1).encode(), TABLE[:-30].encode(), b"\xff\xfe\n\n"]
)
def test_a_table_that_is_not_whole(server, body):
    server.files["/files/ssstats.csv"] = body
    with pytest.raises(SparsegenError, match=r"ssstats\.csv: what arrived: (not the table|2 matrices|3 matrices)"):
        full(mirror=server.url)
    assert {entry.key for entry in index.known()} == {entry.key for entry in index.shipped()}
    server.files["/files/ssstats.csv"] = TABLE.encode()
    assert len(full(mirror=server.url)) > len(index.shipped())


def test_a_kept_table_that_is_damaged_is_downloaded_again(server):
    full(mirror=server.url)
    (paths.home() / "ssstats.csv").write_text("3\n")
    assert "HB/1138_bus" in {entry.key for entry in full(mirror=server.url)}


def test_an_update_that_fails_leaves_what_was_there(server):
    full(mirror=server.url)
    server.script = [webserver.status(503)] * 9
    with pytest.raises(SparsegenError, match="HTTP 503"):
        full(mirror=server.url, update=True)
    assert "HB/1138_bus" in {entry.key for entry in index.known()}


def test_ssgetpy_serves_where_the_site_does_not(server, monkeypatch):
    server.script = [webserver.status(503)] * 9
    found = types.SimpleNamespace(
        group="HB", name="1138_bus", rows=1138, cols=1138, nnz=4054, dtype="binary", nsym=1.0, kind="power"
    )
    module = types.SimpleNamespace(search=lambda limit: [found])
    monkeypatch.setitem(sys.modules, "ssgetpy", module)
    assert full(mirror=server.url) == [Entry("HB", "1138_bus", 1138, 1138, 4054, "pattern", True, "power")]
    monkeypatch.setitem(sys.modules, "ssgetpy", types.SimpleNamespace(search=lambda limit: 1 / 0))
    with pytest.raises(SparsegenError, match="HTTP 503"):
        full(mirror=server.url)


def entries_of(name: str) -> list[Entry]:
    known = {entry.key: entry for entry in index.shipped()}
    return [known[key] for key in matrices.listed(name)]


@pytest.mark.parametrize("name", matrices.collections())
def test_a_shipped_list_says_where_it_is_from(name):
    lines = (paths.data("matrices") / "collections" / f"{name}.txt").read_text("utf-8").splitlines()
    assert lines[0].startswith("# ") and matrices.about(name) == lines[0][2:]
    assert lines[1].startswith("# Source: ") and lines[2].startswith("# Licence: ")
    listed = matrices.listed(name)
    assert listed and len(set(listed)) == len(listed)
    if name != "smoke":
        entries_of(name)  # all of them are in the index


def test_train_and_test_share_no_family_and_no_near_duplicate():
    train, test = entries_of("train"), entries_of("test")
    held_out = held_out_families()
    assert all(entry.family in held_out for entry in test)
    assert not any(entry.family in held_out for entry in train)
    sizes = [{(entry.rows, entry.cols, entry.nnz) for entry in part} for part in (train, test)]
    assert not sizes[0] & sizes[1]
    whole = {entry.key for entry in index.shipped() if entry.group != "DLMC"}
    assert {entry.key for entry in train + test} == whole


def test_folders_are_collections(tmp_path):
    folder = tmp_path / "mine"
    names = ["a/HB/west.tar.gz", "b.mtx", "c.mtx.gz", "d.rua", "e.smtx"]
    for name in (*names, ".hidden.mtx", "notes.txt", "manifest.tsv"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")
    assert matrices.collection(folder) == [str(folder / name) for name in names]
    (tmp_path / "empty").mkdir()
    with pytest.raises(SparsegenValueError, match="no matrix file in this folder"):
        matrices.collection(tmp_path / "empty")


def test_what_was_downloaded_is_the_file(tmp_path):
    (tmp_path / "mine.txt").write_text("HB/west0479\nDLMC/rn50/x/0.5/y\nHB/other\n")
    for name in ("HB/west0479.tar.gz", "DLMC/rn50/x/0.5/y.smtx"):
        file = paths.home() / "matrices" / name
        file.parent.mkdir(parents=True)
        file.write_text("")
    west, layer, other = matrices.collection(tmp_path / "mine.txt")
    assert west.endswith("HB/west0479.tar.gz") and layer.endswith("y.smtx") and other == "HB/other"
    assert matrices.listed(tmp_path / "mine.txt")[0] == "HB/west0479"


@pytest.mark.parametrize("name", ["west0479", "HB/../x", "/HB/x", "HB/", "a/b/c", "HB/.x", "HB/a b", "HB/a\n", ""])
def test_names_that_are_none(name):
    with pytest.raises(SparsegenValueError, match="Group/Name"):
        matrices.downloaded(name)
