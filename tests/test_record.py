"""Append-only records."""

from __future__ import annotations

import json

import pytest
from support import held

from sparsegen import files
from sparsegen.errors import SparsegenValueError
from sparsegen.record import Records, environment, known


def test_records_are_found_again(tmp_path):
    records = Records(tmp_path / "run" / "records.jsonl")
    records.append({"key": "a", "value": 3})
    records.append({"key": "b", "value": [1.5, None]})
    assert Records(tmp_path / "run" / "records.jsonl").known == records.known == {
        "a": {"key": "a", "value": 3},
        "b": {"key": "b", "value": [1.5, None]},
    }  # fmt: skip


@pytest.mark.parametrize("cut", [1, 7, 19])
def test_a_line_cut_short_is_dropped_and_the_file_stays_usable(tmp_path, cut):
    path = tmp_path / "records.jsonl"
    records = Records(path)
    for key in "abc":
        records.append({"key": key, "value": "some length of text"})
    path.write_bytes(path.read_bytes()[:-cut])
    resumed = Records(path)
    assert sorted(resumed.known) == ["a", "b"]
    resumed.append({"key": "c", "value": "again"})
    lines = path.read_text().splitlines()
    assert [json.loads(line)["key"] for line in lines] == ["a", "b", "c"]


def test_a_record_that_json_cannot_hold_is_refused_and_nothing_is_written(tmp_path):
    path = tmp_path / "records.jsonl"
    records = Records(path)
    with pytest.raises(ValueError):
        records.append({"key": "a", "value": float("nan")})
    assert path.read_bytes() == b""


@pytest.mark.parametrize("line", ["", "{", "[3]", "NUL", '{"value": 3}', '{"key": "b", "value": "cut sho'])
def test_a_damaged_line_is_named_and_nothing_is_written(tmp_path, line):
    path = tmp_path / "records.jsonl"
    path.write_bytes(f'{{"key": "a"}}\n{line}\n{{"key": "c"}}\n'.encode().replace(b"NUL", bytes(4)))
    before = path.read_bytes()
    for read in (known, Records):
        with pytest.raises(SparsegenValueError, match=r"records\.jsonl, line 2, is damaged.* with key"):
            read(path)
    assert path.read_bytes() == before


def test_reading_makes_no_folder_and_drops_nothing(tmp_path):
    assert known(tmp_path / "nowhere" / "records.jsonl") == {} and not list(tmp_path.iterdir())
    path = tmp_path / "records.jsonl"
    path.write_text('{"key": "a"}\n{"key": "b')
    assert list(known(path)) == ["a"] and path.read_text().endswith('"b')


def test_a_file_has_one_writer_and_a_dead_one_is_none(tmp_path):
    path = tmp_path / "records.jsonl"
    with held(path) as other:
        with pytest.raises(SparsegenValueError, match="another process is at work") as refused:
            Records(path)
        assert str(tmp_path) in str(refused.value) and known(path) == {}
        other.kill()  # no farewell
        other.wait()
        Records(path).append({"key": "a"})
        Records(path).append({"key": "b"})  # this process may open it again
    assert list(known(path)) == ["a", "b"]


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "folder" / "text"
    files.whole(path, lambda part: part.write_text("first"))

    def full(part):
        part.write_text("half")
        raise OSError(28, "No space left on device")

    for failing in (full, lambda part: [][0]):
        with pytest.raises((OSError, IndexError)):
            files.whole(path, failing)
    assert path.read_text() == "first" and list(path.parent.iterdir()) == [path]


def test_the_environment_names_seed_device_and_versions():
    found = environment(20260)
    assert found["seed"] == 20260
    assert found["device"]
    assert found["versions"]["numpy"]
    json.dumps(found, allow_nan=False)
