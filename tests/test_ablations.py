"""Every ablation runs small, writes what it found and goes on where it was; the figures are those worked by hand."""

from __future__ import annotations

import argparse
import importlib
import json
import math
import sys
from pathlib import Path

import pytest
from support import LOOP, template, user_kernel

from sparsegen.model.sample import Sample
from sparsegen.model.tokenizer import written
from sparsegen.targets import cpu

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("tokenizers")

FOLDER = Path(__file__).resolve().parent.parent / "experiments"
NAMES = sorted(file.stem for file in FOLDER.glob("ablate_*.py"))
FIGURES = (
    "parse", "compile", "pass_1", "pass_8", "fraction_1", "fraction_4", "median_4", "p10_4", "losses", "distinct",
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def experiments():
    """The scripts' own folder on the path, as when they run; one thread: models this small are slower with two."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    sys.path.insert(0, str(FOLDER))
    yield
    sys.path.remove(str(FOLDER))
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """One folder for all factors, as the scripts are used: what they have in common is trained once."""
    return tmp_path_factory.mktemp("runs")


def smoke(name: str, out: Path, *more: str) -> list[dict]:
    """The records of an ablation that was run small, without that of the environment."""
    importlib.import_module(name).main(["--smoke", "--out", str(out), *more])
    return [json.loads(line) for line in (out / f"{name}.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", NAMES)
def test_every_variant_is_trained_scored_and_written(name, runs, capsys):
    module = importlib.import_module(name)
    found = smoke(name, runs)
    assert [row["variant"] for row in found] == list(module.VARIANTS) and len(found) >= 2
    for row in found:
        assert all(math.isfinite(row[figure]) for figure in FIGURES), row
        assert row["kl"] >= 0 and len(row["problems"]) == 2 and row["environment"]["seed"] == 20260
    table = (runs / f"{name}.md").read_text()
    assert table in capsys.readouterr().out
    assert table.splitlines()[0] == f"# {module.__doc__.splitlines()[0]}"
    assert all(f"\n| {variant} | 1 |" in table for variant in module.VARIANTS)
    assert all(f"- {fact}: " in table for fact in ("seed", "commit", "device", "versions", "arm"))
    plot = runs / f"{name}.svg"
    assert not plot.exists() or plot.stat().st_size < 60_000


def test_every_ablation_says_its_question_and_how_it_is_run():
    assert len(NAMES) >= 8
    for name in NAMES:
        text = importlib.import_module(name).__doc__
        assert text.splitlines()[0].endswith("?") and f"python experiments/{name}.py --smoke" in text


def test_a_script_goes_on_where_it_was_stopped(tmp_path, monkeypatch):
    import arms

    only = ("--only", "staged")
    smoke("ablate_techniques", tmp_path, *only)
    stages = {file.parent.name.partition("-")[0] for file in tmp_path.glob("*/done.json")}
    assert stages == set(arms.STAGES)
    times = {file: file.stat().st_mtime_ns for file in tmp_path.glob("*/*") if file.suffix in (".pt", ".json")}
    before = smoke("ablate_techniques", tmp_path, *only)
    called = []
    real = arms.rl.train
    monkeypatch.setattr(arms.pretrain, "train", lambda config: called.append("pretrain"))
    monkeypatch.setattr(arms.sft, "train", lambda config: called.append("sft"))
    monkeypatch.setattr(arms.rl, "train", lambda *given: called.append("rl") or real(*given))
    after = smoke("ablate_techniques", tmp_path)  # the other variant shares the first two stages
    assert called == ["rl"] and after[: len(before)] == before and len(after) == len(before) + 1
    assert all(file.stat().st_mtime_ns == time for file, time in times.items())


def test_a_stage_that_is_told_to_stop_ends_the_script(tmp_path, monkeypatch):
    import arms

    monkeypatch.setattr(arms.pretrain, "train", lambda config: None)
    with pytest.raises(SystemExit, match="goes on from there"):
        smoke("ablate_techniques", tmp_path, "--only", "staged")
    assert not list(tmp_path.glob("*/done.json"))


def test_arms_of_one_seed_begin_alike_whatever_their_embedding(runs):
    import ablation
    import arms

    options = argparse.Namespace(out=runs)
    bench, _ = ablation._small(options)
    seen = {name: bench.train(arms.Arm(("pretrain",), embedding=name), 20260).weights for name in ("windows", "raw")}
    for name, array in seen["windows"].items():
        assert (array.shape == seen["raw"][name].shape and (array == seen["raw"][name]).all()) != (
            name.startswith("coordinates.")
        ), name


def test_a_fraction_of_the_corpus_is_a_fraction_of_its_matrices_and_keeps_those_that_are_watched():
    from sparsegen.train import sft
    from sparsegen.train.corpus import Task
    from sparsegen.train.examples import Example

    found = [
        Example(Task(f"m{number}", family, False, "spmv", 1, dtype), "cpp", (), ())
        for number in range(21)
        for family in ("family" if number % 3 else "some:one",)
        for dtype in ("float32", "float64")
    ]
    watched = {each.task.matrix for each in found if each.validation}
    learned = {each.task.matrix for each in found} - watched
    assert watched and learned
    parts = {fraction: sft.share(found, fraction, 7013) for fraction in (1.0, 0.5, 1e-6)}
    assert parts[1.0] == found
    for fraction, part in parts.items():
        matrices = {each.task.matrix for each in part}
        assert watched <= matrices and len(matrices - watched) == max(1, round(fraction * len(learned)))
        assert len(part) == 2 * len(matrices)
    assert parts[0.5] == sft.share(found, 0.5, 7013) != sft.share(found, 0.5, 7027)


def test_steps_are_scaled_and_never_none():
    import arms

    from sparsegen.model import recipe

    full = recipe.load("arm")
    assert arms.scaled(full, 1.0) == full
    half, least = arms.scaled(full, 0.5), arms.scaled(full, 1e-6)
    assert (half.pretrain.steps, half.sft.steps, half.rl.updates) == (300, 750, 24)
    assert half.sft.warmup == full.sft.warmup / 2 and half.sft.learning_rate == full.sft.learning_rate
    assert (least.pretrain.steps, least.sft.steps, least.rl.updates, least.sft.warmup) == (1, 1, 1, 0)


def test_an_arm_has_about_two_million_parameters():
    from sparsegen.model import recipe
    from sparsegen.model.generator import parameters

    assert 1.8e6 < parameters(recipe.load("arm")) < 2.3e6


def test_figures_by_hand():
    import scores
    from study import Problem

    from sparsegen.train.rewards import Outcome
    from sparsegen.verdict import Level

    lines = [
        {
            "key": key, "matrix": key, "nnz": 1003, "k": 1, "spread": 0.1, "best": "mkl",
            "baselines": {"mkl": 4.0, "scipy": 9.0},
        }
        for key in ("a", "b")
    ]  # fmt: skip
    found = [  # the first measurement would take "fast", which is slower in the second
        Problem(lines[0], {}, {"slow": 1.0, "fast": 3.0}, {"slow": 4.0, "fast": 2.0}, ["slow", "fast"]),
        Problem(lines[1], {}, {"slow": 0.8}, {"slow": 0.5}, ["slow"]),
    ]
    right, wrong, none = Outcome(Level.TIMED, speedup=1.0), Outcome(Level.RAN, "wrong"), Outcome(Level.NONE, "header")
    refused, broken = Outcome(Level.NONE, "screen"), Outcome(Level.PARSED, "compile")
    outcomes = [[right, right, wrong, none] * 2, [right, refused, broken, none] * 2]
    keys = [["slow", "fast", "", ""] * 2, ["slow", "", "", ""] * 2]
    figures = scores.figures(found, outcomes, keys)
    assert figures["parse"] == pytest.approx(6 / 8) and figures["compile"] == pytest.approx((6 / 8 + 2 / 8) / 2)
    assert figures["pass_1"] == pytest.approx((4 / 8 + 2 / 8) / 2) and figures["pass_8"] == 1
    assert figures["speed"] == pytest.approx((4 * 2 * 4 * 2 * 0.5 * 0.5) ** (1 / 6))
    assert figures["gflops"] == pytest.approx(2 * 1003 / (4.0 * 1e3) * figures["speed"])
    # of "a" the optimum is "fast", worth 2; a failure is the library, worth 1: half of it. Of "b" it is "slow": 0.5
    one = [(4 / 2 * 2 / 2 * 1 / 2 * 1 / 2) ** (1 / 4), (0.5 / 0.5 * 1 / 0.5 * 1 / 0.5 * 1 / 0.5) ** (1 / 4)]
    assert [row["fraction_1"] for row in figures["problems"]] == pytest.approx(one)
    assert figures["fraction_1"] == pytest.approx((one[0] * one[1]) ** 0.5)
    assert [row["fraction_4"] for row in figures["problems"]] == pytest.approx([1, 1])
    assert [row["speed_4"] for row in figures["problems"]] == pytest.approx([2, 0.5])
    assert figures["median_4"] == pytest.approx(1.25) and figures["losses"] == 1 and figures["distinct"] == 1.5
    nothing = scores.figures(found, [[none] * 8] * 2, [[""] * 8] * 2)
    assert nothing["speed"] is None and nothing["pass_8"] == 0 and nothing["losses"] == 0


@pytest.mark.skipif(cpu.available() is not None, reason="kernels are compiled")
def test_instances_are_looked_up_and_other_kernels_measured_twice(tmp_path, monkeypatch):
    import ablation
    import scores

    _, held_out = ablation._small(argparse.Namespace(out=tmp_path))
    known = template("csr_scalar", values="full")
    new = user_kernel(LOOP.replace("ACC sum = 0;", "ACC sum = ACC(0) * ACC(3);"))
    group = [written(known), written(new), written(user_kernel(LOOP.replace("+=", "-="))), "no kernel"] * 2
    drawn = [Sample(text, [5], [0.0], True) for text in group]
    monkeypatch.setattr(scores, "texts", lambda trained, prompts, count: [drawn] * len(prompts))
    trained = argparse.Namespace(recipe=ablation.recipe.load("tiny"))
    first = held_out.score(trained)
    assert (first["parse"], first["compile"], first["pass_1"]) == (0.75, 0.75, 0.5)
    assert all(row["right"] == 4 and row["distinct"] == 2 for row in first["problems"])
    for problem in held_out.found:
        assert problem.scored[known.key] == held_out.second.lines[problem.line["key"]]["kernels"][0]["speedup"]
        assert problem.chosen[new.key] > 0 and problem.scored[new.key] > 0
    fresh = held_out.first.fresh, held_out.second.fresh
    assert fresh[0] >= 2 and fresh[1] >= 1
    assert held_out.score(trained) == first and (held_out.first.fresh, held_out.second.fresh) == fresh


def test_tables_show_the_spread_over_seeds_and_the_ratio_to_the_first_variant():
    import ablation

    def row(fraction: float, speed: float | None) -> dict:
        problems = [{"matrix": f"m{i}", "fraction_1": fraction * (i + 1)} for i in range(3)]
        return {**dict.fromkeys(ablation.COLUMNS, 0.5), "fraction_1": fraction, "speed": speed, "problems": problems}

    rows = {"ours": [row(0.4, None), row(0.5, None)], "theirs": [row(0.2, 1.25), row(0.25, None)]}
    heads, _, ours, theirs = (line.split(" | ") for line in ablation.table(rows, {"theirs": "48.75"}).splitlines())
    at = {head.strip("| "): place for place, head in enumerate(heads)}
    assert ours[at["of optimum, 1"]] == "0.450 (0.400 to 0.500)" and ours[at["speed, right ones"]] == "none"
    assert ours[at["parse %"]] == "50.0 (50.0 to 50.0)" and theirs[at["speed, right ones"]] == "1.250"
    assert theirs[at["over ours"]] == "0.500 [0.500, 0.500]" and "48.75" in theirs[at["paper"]]


def test_what_is_missing_is_said_before_anything_is_trained(tmp_path, capsys):
    import ablate_data

    with pytest.raises(SystemExit):
        ablate_data.main([])
    assert "expected --corpus, --out" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        ablate_data.main(["--corpus", str(tmp_path), "--out", str(tmp_path)])
    assert "no held-out problems that were measured twice" in capsys.readouterr().err


def test_without_matplotlib_there_is_a_line_in_place_of_a_plot(tmp_path, monkeypatch, capsys):
    import ablation

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    ablation.plot({}, tmp_path / "plot.svg")
    assert "matplotlib is not installed" in capsys.readouterr().out and not list(tmp_path.iterdir())
