"""The held-out study: what is scored was measured apart from what was chosen by."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from sparsegen.model import recipe

FOLDER = Path(__file__).resolve().parent.parent / "experiments"
torch = pytest.importorskip("torch")


@pytest.fixture(scope="module", autouse=True)
def experiments():
    sys.path.insert(0, str(FOLDER))
    yield
    sys.path.remove(str(FOLDER))


@pytest.fixture
def corpus_folder(tmp_path) -> Path:
    import ablation

    ablation.pretend(tmp_path / "corpus")
    return tmp_path / "corpus"


def refused(main, arguments, capsys) -> str:
    """The one line of an error."""
    with pytest.raises(SystemExit) as ended:
        main([str(each) for each in arguments])
    assert ended.value.code == 2
    return capsys.readouterr().err.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--corpus", "{nowhere}"), "has no held-out problems that were measured twice"),
        (("--corpus", "{corpus}", "--checkpoint", "{nowhere}"), "nowhere is no checkpoint: card.json"),
        (("--corpus", "{corpus}", "--checkpoint", "{corpus}"), "corpus is no checkpoint: card.json"),
        (("--corpus", "{corpus}", "--limit", "0"), "--limit is 0; expected at least 1"),
        (("--corpus", "{corpus}", "--limit", "-3"), "--limit is -3; expected at least 1"),
        (("--corpus", "{corpus}", "--other", "alone"), "--other is 'alone'; expected LABEL=FOLDER"),
    ],
)
def test_what_cannot_be_studied_is_one_clear_error(corpus_folder, tmp_path, capsys, options, message):
    import held_out

    places = {"corpus": corpus_folder, "nowhere": tmp_path / "nowhere"}
    assert message in refused(held_out.main, [each.format(**places) for each in options], capsys)
    assert not (tmp_path / "nowhere").exists()


def test_a_study_without_a_real_matrix_has_fewer_tables(corpus_folder, tmp_path, monkeypatch):
    """--limit may leave nothing of a kind; one with nothing learned of its kind has the library."""
    pytest.importorskip("sklearn")
    import held_out

    shipped = SimpleNamespace(recipe=recipe.load("tiny"), path=tmp_path)
    monkeypatch.setattr(held_out.checkpoint, "load", lambda path: shipped)
    monkeypatch.setattr(held_out.Study, "written", lambda self, count, shown=None: [[""] * count for _ in self.found])
    for name in ("samples", "variety", "novel"):
        monkeypatch.setattr(held_out, name, lambda *given, name=name: [["a"]] if name == "samples" else "")
    for limit, learned in (("1", True), ("9", False)):
        if not learned:  # a corpus of another kind of problem
            file = corpus_folder / "measured.jsonl"
            file.write_text(file.read_text().replace('"float64"', '"float32"').replace(" float64 ", " float32 "))
        given = ["--corpus", str(corpus_folder), "--checkpoint", str(tmp_path / "x"), "--limit", limit]
        held_out.main([*given, "--out", str(tmp_path / "out")])
        said = (tmp_path / "out" / "held_out.md").read_text()
        assert "## Synthetic matrices" in said and "## Real matrices" not in said
        rows = (tmp_path / "out" / "held_out.tsv").read_text().splitlines()
        assert len(rows) == 1 + min(int(limit), 2)


def test_rivals_that_have_learned_nothing():
    pytest.importorskip("sklearn")
    import rivals

    assert rivals.fixed_list([], 4) == []
    assert rivals.Selector([]).order(SimpleNamespace(), ["b", "a"]) == ["b", "a"]


@pytest.mark.parametrize(
    ("iterations", "message"),
    [
        (None, "iterations.jsonl"),
        ("", "has no iteration yet"),
        ('{"iteration": 0', "has no iteration yet"),
        ('{"iteration": 0}\n', "iterations.jsonl, line 1, is damaged"),
        ('[3]\n{"iteration": 0}\n', "iterations.jsonl, line 1, is damaged"),
    ],
)
def test_curves_of_no_run_are_one_clear_error(tmp_path, capsys, iterations, message):
    import curves

    if iterations is not None:
        (tmp_path / "iterations.jsonl").write_text(iterations)
        (tmp_path / "rewards.jsonl").write_text("")
    assert message in refused(curves.main, ["--trained", tmp_path, "--out", tmp_path / "out"], capsys)
    assert not (tmp_path / "out").exists()


def test_curves_without_a_measured_speed(tmp_path):
    """And with a last line that a kill cut short."""
    pytest.importorskip("matplotlib")
    import curves

    row = '{"iteration": %d, "measured": 0, "reward": -1.0, "kl": 0.0, "speedup": null}\n'
    (tmp_path / "iterations.jsonl").write_text("".join(row % number for number in range(3)) + row[:30])
    (tmp_path / "rewards.jsonl").write_text('{"problem": "a", "sample": "b", "speedup": null}\n')
    curves.main(["--trained", str(tmp_path), "--out", str(tmp_path / "out")])
    table = (tmp_path / "out" / "rl_curves.tsv").read_text().splitlines()
    assert [line.split("\t")[0] for line in table if line[0] != "#"] == ["iteration", "0", "1", "2"]


def test_the_second_measurement_speaks_for_the_second(tmp_path):
    """A text with the object code of a template instance is worth what that one was the second time."""
    import ablation
    import study

    ablation.pretend(tmp_path)
    found = study.problems(tmp_path)
    assert len(found) == 2
    made = study.Study(SimpleNamespace(recipe=recipe.load("tiny")), found, tmp_path, None)
    for each in found:
        name = f"{each.line['key']} cpp"
        for kernel in each.order:
            first, second = (kept.known(name, kernel)["speedup"] for kept in (made.first, made.second))
            assert (first, second) == (each.chosen[kernel], each.scored[kernel])
            assert first != second
