"""Proposals: the kernels among what a model's beam wrote."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import playback
from support import problem_of, template

from sparsegen import candidate, gallery
from sparsegen.model import proposal
from sparsegen.model.proposal import propose
from sparsegen.model.sample import Sample
from sparsegen.model.tokenizer import written

PROBLEM = problem_of(gallery.small()["stencil2d"], facts=None)
SCALAR = written(template("csr_scalar", values="full"))
SLICE = written(template("sell_slice", SLICE=8, SIGMA=1, BITS=32, values="full"))
WIDER = written(template("sell_slice", SLICE=16, SIGMA=1, BITS=32, values="full"))


def test_proposals_are_distinct_legal_kernels_the_likeliest_first():
    pointless = WIDER.replace("vector sum = {};", "vector sum = x;")  # the screen says so, when all is written
    played = playback.checkpoint(SLICE, pointless, SCALAR, "no kernel at all", sure=40.0)
    found = propose(PROBLEM, played, count=5)
    assert (found.samples, found.duplicates, found.illegal) == (3, 0, 1)
    assert [each.format for each in found] == ["sell", "csr"]
    for each, text in zip(found, (SLICE, SCALAR), strict=True):
        assert each.origin == "model"
        assert each.name == f"model_{each.key[:6]}"
        assert each.key == candidate.parse(text).key
        assert "values=full" in each.label
        assert candidate.parse(candidate.text(each)).key == each.key
    assert len({each.name for each in found}) == 2
    assert found.encode_ms > 0
    assert found.sample_ms > 0


def test_the_same_kernel_twice_is_a_duplicate(monkeypatch):
    texts = [SCALAR, SLICE, SCALAR.replace("\n ", "\n   "), "int x;", SLICE + "\n"]
    whole = [Sample(text, [5], [-1.0], True) for text in texts]
    cut = Sample(WIDER, [5], [-1.0], False, "out of time")
    monkeypatch.setattr(proposal, "beam", lambda *_, **__: [[*whole, cut]])
    found = propose(PROBLEM, playback.checkpoint(SCALAR))
    assert (found.samples, found.duplicates, found.illegal, found.unfinished) == (6, 2, 1, 1)
    assert [each.format for each in found] == ["csr", "sell"]


def test_no_more_than_were_asked_for():
    played = playback.checkpoint(SCALAR, SLICE, WIDER, sure=40.0)
    assert [each.params.get("SLICE") for each in propose(PROBLEM, played, count=2)] == [None, 8]
    assert len(propose(PROBLEM, played).candidates) == 3


def test_proposals_for_a_deterministic_problem():
    found = propose(replace(PROBLEM, deterministic=True), playback.checkpoint(SLICE, sure=40.0), count=2)
    assert len(found.candidates) == 1


def test_out_of_time_nothing_is_proposed():
    found = propose(PROBLEM, playback.checkpoint(SCALAR, SLICE, sure=40.0), seconds=0.0)
    assert found.candidates == [] and found.unfinished == found.samples > 0 == found.illegal


def test_reading_the_matrix_takes_of_the_time(monkeypatch):
    asked = []
    ticks = iter([5.0, 8.0, 9.0])
    monkeypatch.setattr(proposal, "beam", lambda *_, seconds, guess: asked.append(seconds) or [[]])
    monkeypatch.setattr(proposal, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    found = propose(PROBLEM, playback.checkpoint(SCALAR), seconds=3.5)
    assert asked == [0.5]
    assert (found.encode_ms, found.sample_ms) == (3000, 1000)
