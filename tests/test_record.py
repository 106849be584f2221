"""Append-only records."""

from __future__ import annotations

import json

import pytest

from sparsegen.record import Records, environment


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
    assert not path.exists()


def test_the_environment_names_seed_device_and_versions():
    found = environment(20260)
    assert found["seed"] == 20260
    assert found["device"]
    assert found["versions"]["numpy"]
    json.dumps(found, allow_nan=False)
