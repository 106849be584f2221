"""What a search tries, with a model that plays back given texts: its kernels serve, and its failures cost a note."""

from __future__ import annotations

import itertools
import json
import os
import threading
from types import SimpleNamespace

import numpy as np
import playback
import pytest
from support import BUDGET, problem_of, right, template

import sparsegen
from sparsegen import candidate, gallery, paths, prelude, proposers, store, templates
from sparsegen.model.tokenizer import written
from sparsegen.proposers import Proposers

A = gallery.stencil2d(131, 127)
X = np.random.default_rng(20291).standard_normal(A.shape[1])
SLICE = written(template("sell_slice", SLICE=8, SIGMA=1, BITS=32, values="full"))
SCALAR = written(template("csr_scalar", values="full"))
MINE = SLICE.replace("sum", "mine").replace("doubt", "suspect")  # no instance of a template
OPTIONS = {"cache": False, "threads": 1, "facts": None}


@pytest.fixture
def played(monkeypatch):
    """played(*texts): what the shipped model writes from now on."""

    def play(*texts: str, **options) -> SimpleNamespace:
        made = playback.checkpoint(*texts, sure=40.0, **options)
        monkeypatch.setattr(proposers, "checkpoint_of", lambda model: made)
        return made

    return play


@pytest.fixture
def plain(monkeypatch):
    """The one template is slower than what the model writes."""
    monkeypatch.setattr(templates, "propose", lambda problem: iter([template("csr_scalar", values="full")]))


def tried(kernel, origin: str) -> list[dict]:
    return [each for each in kernel.report()["candidates"] if each["origin"] == origin]


def test_a_kernel_of_the_model_serves(played, plain, tmp_path):
    played(MINE)
    kernel = sparsegen.compile(A, budget=5.0, max_candidates=2, **OPTIONS)
    report = kernel.report()
    assert [each["origin"] for each in report["candidates"]] == ["template", "model"]
    assert report["candidates"][1]["level"] == "TIMED"
    assert report["model"]["checkpoint"] == "played-0a1b2c"
    assert (report["model"]["samples"], report["model"]["distinct"], report["model"]["duplicates"]) == (1, 1, 0)
    assert 0 < report["model"]["sample_ms"] <= report["model_ms"] < report["search_ms"]
    right(kernel @ X, A, X)
    assert report["origin"] == "model", "twice as fast as every library wherever this was run"
    assert kernel.candidate.name.startswith("model_")
    assert "suspect" in kernel.source
    assert "learned model played-0a1b2c" in kernel.explain()
    assert ": ." not in kernel.explain()
    assert "model" in str(report)
    kernel.save(tmp_path / "K.sgk")
    loaded = sparsegen.load(tmp_path / "K.sgk")
    assert loaded.candidate.origin == "model"
    assert loaded.candidate.key == kernel.candidate.key
    right(loaded @ X, A, X)


def test_what_the_model_wrote_is_remembered(played, plain, tmp_path, monkeypatch):
    monkeypatch.setenv("SPARSEGEN_CACHE_DIR", str(tmp_path))
    options = {**OPTIONS, "cache": True}
    played(MINE)
    first = sparsegen.compile(A, budget=5.0, max_candidates=2, **options)
    assert first.report()["origin"] == "model"
    played("nothing")
    again = sparsegen.compile(A, budget=5.0, **options)
    assert again.report()["cached"] is True
    assert again.report()["model_ms"] == 0
    assert again.candidate.key == first.candidate.key
    right(again @ X, A, X)
    without = sparsegen.compile(A, budget=BUDGET, model=None, **options)
    assert without.report()["cached"] is False
    assert without.report()["origin"] != "model"
    assert sparsegen.compile(A, budget=BUDGET, **options).candidate.key == first.candidate.key


def test_a_choice_of_another_model_is_not_taken(played, plain, tmp_path, monkeypatch):
    """A checkpoint that was trained again under its name, or ships since: both are searched with."""
    monkeypatch.setenv("SPARSEGEN_CACHE_DIR", str(tmp_path / "cache"))
    shipped = tmp_path / "models"
    shipped.mkdir()
    (shipped / "card.json").write_text("{}")
    (shipped / "default").write_text("first-0a\n")
    monkeypatch.setattr(paths, "data", lambda folder: shipped)
    played("nothing")
    options = {**OPTIONS, "cache": True, "budget": 1.2}
    for model in ("auto", shipped):
        assert not sparsegen.compile(A, model=model, **options).report()["cached"]
        assert sparsegen.compile(A, model=model, **options).report()["cached"]
    (shipped / "default").write_text("second-0b\n")
    assert not sparsegen.compile(A, **options).report()["cached"]
    assert sparsegen.compile(A, model=shipped, **options).report()["cached"]
    (shipped / "card.json").write_text('{"seed": 7}')
    assert not sparsegen.compile(A, model=shipped, **options).report()["cached"]


def test_a_choice_that_the_model_took_no_part_in_is_found_without_it_alone(played, plain, tmp_path, monkeypatch):
    monkeypatch.setenv("SPARSEGEN_CACHE_DIR", str(tmp_path))
    played(MINE)
    options = {**OPTIONS, "cache": True}
    for brief in ({"budget": BUDGET}, {"budget": 1.2, "max_candidates": 1}):
        for again in (False, True):
            kernel = sparsegen.compile(A, retune=not again, **options, **brief)
            assert (kernel.report()["cached"], kernel.report()["origin"] == "model") == (again, False)
    assert sparsegen.compile(A, model=None, budget=1.2, **options).report()["cached"]
    whole = sparsegen.compile(A, budget=2.0, **options)
    assert not whole.report()["cached"] and whole.report()["model"]["distinct"] == 1
    assert sparsegen.compile(A, budget=BUDGET, **options).candidate.key == whole.candidate.key


def test_templates_and_texts_take_turns_and_none_is_tried_twice(played):
    played(SCALAR, SLICE)
    problem = problem_of(A, facts=None)
    made = Proposers(problem, "auto", 60.0)
    found = list(made)
    assert [each.origin for each in found[:6]] == ["template", "model"] * 2 + ["template"] * 2
    written = [each for each in found if each.origin == "template"]
    assert [each.key for each in written] == [each.key for each in templates.propose(problem)]
    kernel = sparsegen.compile(A, budget=20.0, max_candidates=4, **OPTIONS)
    keys = [each["label"].partition(" ")[0] for each in kernel.report()["candidates"]]
    assert len(kernel.report()["candidates"]) <= 4
    assert len(tried(kernel, "model")) == 2
    assert "csr_scalar" not in keys


HOSTILE = {
    "does not parse": "int main() { return system(0); }",
    "header": SLICE.replace('format = "sell"', 'format = "../etc"'),
    "screen": SCALAR.replace("ACC sum = 0;", "ACC sum = 0; asm(0);"),
    "endless header": "/* sparsegen\n" + "[params]\n" * 50,
    "not text": "\x00\xff\n" * 9,
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_texts_do_no_harm(played, kind):
    played(HOSTILE[kind])
    kernel = sparsegen.compile(A, budget=1.5, max_candidates=2, **OPTIONS)
    report = kernel.report()
    assert tried(kernel, "model") == []
    assert report["model"]["illegal"] == 1
    assert report["model"]["distinct"] == 0
    right(kernel @ X, A, X)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (("row < end; ++row", "row < end + 9; ++row"), "out of bounds"),
        (("sum +=", "sum -="), "wrong"),
        (("ACC sum = 0;", "ACC sum = 0; for (;;) { }"), "timeout"),
        (("ACC sum = 0;", "ACC sum = lanes{};"), "compile"),
    ],
)
def test_what_the_grammar_lets_through_is_still_judged(played, monkeypatch, change, fault):
    monkeypatch.setattr("sparsegen.evaluate.RUN_SECONDS", 0.5)
    text = SCALAR.replace(*change)
    assert text != SCALAR
    played(text)
    kernel = sparsegen.compile(A, budget=2.0, max_candidates=2, **OPTIONS)
    (entry,) = tried(kernel, "model")
    assert entry["fault"] == fault
    assert kernel.report()["origin"] != "model"
    right(kernel @ X, A, X)


@pytest.mark.parametrize("where", ["remember", "step", "keep"])
def test_a_checkpoint_that_fails_costs_a_note(played, monkeypatch, where):
    made = played(SCALAR, SLICE)

    def broken(*_):
        raise RuntimeError("a matrix of the wrong shape")

    monkeypatch.setattr(made.decoder, where, broken)
    kernel = sparsegen.compile(A, budget=2.0, max_candidates=2, **OPTIONS)
    notes = [note for note in kernel.report()["notes"] if "model" in note]
    assert len(notes) == 1
    assert "a matrix of the wrong shape" in notes[0]
    assert "wrong shape" in kernel.report()["model"]["skipped"]
    assert len(tried(kernel, "template")) == 2
    assert tried(kernel, "model") == []
    right(kernel @ X, A, X)


def test_when_the_model_is_left_out(played, monkeypatch):
    def asked(model):
        raise AssertionError("nothing of the model is read")

    monkeypatch.setattr(proposers, "checkpoint_of", asked)
    for options, reason in (
        ({"model": None}, "not asked for"),
        ({"model": "none"}, "not asked for"),
        ({"budget": BUDGET}, "too short"),
        ({"expected_calls": 5000}, "too short"),
    ):
        kernel = sparsegen.compile(A, **{"budget": 2.0, "max_candidates": 2, **OPTIONS, **options})
        assert reason in kernel.report()["model"]["skipped"]
        assert not any("model" in note for note in kernel.report()["notes"])
        assert reason in kernel.explain()
    assert sparsegen.compile(A, budget=0.0).report()["model"] is None


def test_without_a_checkpoint(monkeypatch):
    monkeypatch.setattr(proposers, "checkpoint_of", lambda model: "no checkpoint is shipped")
    kernel = sparsegen.compile(A, budget=1.5, max_candidates=2, **OPTIONS)
    assert kernel.report()["model"] == {"skipped": "no checkpoint is shipped"}
    assert not any("checkpoint" in note for note in kernel.report()["notes"])
    assert kernel.explain().count("no checkpoint is shipped") == 1
    assert len(tried(kernel, "template")) == 2


def test_the_model_is_stopped_in_time(played):
    made = played(SCALAR)
    step, steps = made.decoder.step, []

    def slow(state, tokens):
        steps.append(len(tokens))
        threading.Event().wait(0.02)
        return step(state, tokens)

    made.decoder.step = slow
    found = Proposers(problem_of(A, facts=None), "auto", 1.0)
    assert {each.origin for each in found} == {"template"}
    assert (found.report["illegal"], found.report["unfinished"]) == (0, 1)
    assert 1 < len(steps) < len(SCALAR)


def test_reading_the_checkpoint_takes_of_the_time(monkeypatch):
    def slow(model):
        threading.Event().wait(0.4)
        return playback.checkpoint(SCALAR, sure=40.0)

    monkeypatch.setattr(proposers, "checkpoint_of", slow)
    found = Proposers(problem_of(A, facts=None), "auto", 1.0)
    assert {each.origin for each in found} == {"template"}
    assert found.report["unfinished"] == found.report["samples"] == 1


def test_an_endless_kernel_does_not_end_the_search(monkeypatch):
    """Of four seconds it may have one, and what comes after it is tried."""
    endless = candidate.parse(SCALAR.replace("ACC sum = 0;", "ACC sum = 0; for (;;) { }"), name="endless")
    monkeypatch.setattr(templates, "propose", lambda problem: iter([endless, candidate.parse(SLICE, name="slice")]))
    kernel = sparsegen.compile(A, budget=4.0, model=None, **OPTIONS)
    first, second = kernel.report()["candidates"]
    assert first["fault"] == "timeout"
    assert second["level"] in ("CORRECT", "TIMED")
    right(kernel @ X, A, X)


def test_what_there_was_no_time_for_is_told(played, monkeypatch):
    monkeypatch.setattr("sparsegen.model.beam.time", SimpleNamespace(monotonic=itertools.count(step=9.0).__next__))
    played(SCALAR)
    kernel = sparsegen.compile(A, budget=1.5, max_candidates=2, **OPTIONS)
    assert kernel.report()["model"]["unfinished"] == 1
    assert "no time for 1 more" in kernel.explain()


def test_where_none_of_its_kernels_is_tried_the_model_is_left_out(monkeypatch):
    monkeypatch.setattr(proposers, "checkpoint_of", None)  # not called
    for most in (0, 1):
        kernel = sparsegen.compile(A, budget=2.0, max_candidates=most, **OPTIONS)
        assert kernel.report()["model"].keys() == {"skipped"}
        assert len(kernel.report()["candidates"]) == most


@pytest.mark.parametrize("cores", [1, 2])
def test_the_model_begins_at_once_where_a_core_is_free(played, monkeypatch, cores):
    monkeypatch.setattr(proposers, "_cores", lambda: cores)
    made = played(SCALAR)
    made.decoder.remember = lambda batch: began.set() or len(batch.mask)
    began = threading.Event()
    found = Proposers(problem_of(A, facts=None, threads=1), "auto", 5.0)
    assert began.wait(20 if cores == 2 else 0.5) == (cores == 2)
    proposed = iter(found)
    assert next(proposed).origin == "template"
    assert began.is_set() == (cores == 2)
    assert next(proposed).origin == "model"
    assert began.is_set()


def test_a_folder_of_a_checkpoint_is_not_saved_with_a_kernel(played, tmp_path):
    played(MINE)
    kernel = sparsegen.compile(A, budget=1.5, max_candidates=2, model=tmp_path, **OPTIONS)
    assert kernel.options["model"] == str(tmp_path)
    assert kernel.report()["model"]["checkpoint"] == "played-0a1b2c"
    assert str(tmp_path).encode() not in store.dumps(kernel)
    assert store.loads(store.dumps(kernel)).options["model"] == "auto"
    plain = sparsegen.compile(A, budget=0.0, model=None)
    assert store.loads(store.dumps(plain)).options["model"] == "none"


@pytest.mark.parametrize("kind", ["folder", "pipe", "large"])
def test_what_names_no_checkpoint_costs_a_line(monkeypatch, tmp_path, kind):
    default = tmp_path / "default"
    if kind == "folder":
        default.mkdir()
    elif kind == "pipe":
        os.mkfifo(default)
    else:
        default.write_bytes(bytes(1 << 20))
    data = paths.data
    monkeypatch.setattr(paths, "data", lambda folder: tmp_path if folder == "models" else data(folder))
    kernel = sparsegen.compile(A, budget=1.2, max_candidates=2, **OPTIONS)
    assert "cannot be read" in kernel.report()["model"]["skipped"]
    assert len(tried(kernel, "template")) == 2
    right(kernel @ X, A, X)


def test_a_checkpoint_is_read_once(monkeypatch, tmp_path):
    from sparsegen.model import checkpoint

    read = []
    monkeypatch.setattr(proposers, "_loaded", {})
    monkeypatch.setattr(checkpoint, "load", lambda path, grammar: read.append((path, grammar)) or object())
    first = proposers.checkpoint_of(str(tmp_path))
    assert proposers.checkpoint_of(str(tmp_path)) is first
    assert read == [(str(tmp_path), 1)]
    (tmp_path / "card.json").write_text("{}")
    assert proposers.checkpoint_of(str(tmp_path)) is not first
    monkeypatch.setattr(checkpoint, "default", lambda grammar: "none yet")
    assert proposers.checkpoint_of("auto") == "none yet"


def test_the_command_line(played, capsys, tmp_path):
    from sparsegen.__main__ import main

    path = str(paths.data("matrices") / "tiny" / "diffusion2d.mtx")
    played(MINE)
    command = ["compile", path, "--budget", "1.5", "--max-candidates", "2", "--no-cache", "--json"]
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out)["model"]["distinct"] == 1
    assert main([*command, "--model", "none"]) == 0
    assert "not asked for" in json.loads(capsys.readouterr().out)["model"]["skipped"]
    assert main([*command, "--model", str(tmp_path / "nowhere")]) == 1
    assert "no folder" in capsys.readouterr().err
    assert main(["doctor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"] == "played-0a1b2c"


def test_versions_are_kept_with_a_choice(played, monkeypatch):
    played(MINE)
    kept = []
    monkeypatch.setattr(sparsegen.cache, "put", lambda kind, key, blob: kept.append(json.loads(blob)))
    sparsegen.compile(A, budget=1.5, max_candidates=2, retune=True, **{**OPTIONS, "cache": True})
    versions = {"sparsegen": sparsegen.__version__, "prelude": prelude.VERSION, "model": "played-0a1b2c"}
    assert kept[-1]["versions"] == versions
