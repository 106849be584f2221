"""All stages end to end by their commands, tiny: corpus, pretrain, sft, rl, publish, and the model in a search."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from support import held, right, template

import sparsegen
from sparsegen import matrices, paths, proposers, templates
from sparsegen.model import checkpoint, grammar, recipe
from sparsegen.model.sample import Sample
from sparsegen.model.tokenizer import Tokenizer, written
from sparsegen.record import Records
from sparsegen.targets import cpu
from sparsegen.train import corpus
from sparsegen.train.__main__ import STOPPED, main
from sparsegen.train.corpus import Task

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("tokenizers")
from sparsegen.train import fit, pretrain, rl, sft  # noqa: E402

pytestmark = pytest.mark.skipif(cpu.available() is not None, reason="kernels are compiled and timed")
REAL, HELD = "diffusion2d.mtx", "blocks.mtx"  # of matrices/tiny
FAMILIES = ("rows_bimodal", "block_five")  # the second is held out
SCALAR = written(template("csr_scalar", values="full"))
NEW = SCALAR.replace("ACC sum = 0;", "ACC sum = ACC(0) * ACC(3);")  # in no corpus


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Iterator[SimpleNamespace]:
    """Folders of a run: models with the tiny recipe, and matrices of which one is held out. One thread: a model this
    small is slower with more. Few kernels of few problems are measured."""
    root = tmp_path_factory.mktemp("training")
    models, folder = root / "models", root / "matrices"
    for each in (models, folder):
        each.mkdir()
    held = sorted(name for name in corpus.held_out_families() if not name.startswith("synthetic"))[0]
    rows = ["file\tfamily\tnnz_full\tfield"]
    for name, family in ((REAL, "tiny:diffusion"), (HELD, held)):
        shutil.copy(paths.data("matrices") / "tiny" / name, folder)
        rows.append(f"{name}\t{family}\t{max(matrices.info(folder / name).nnz, corpus.LEAST)}\treal")
    (folder / "manifest.tsv").write_text("\n".join(rows) + "\n")
    shutil.copy(paths.data("models") / "held_out.txt", models)
    sizes = (paths.data("models") / "tiny.toml").read_text()
    (models / "tiny.toml").write_text(sizes.replace("problems = 2", "problems = 8"))  # all of them in each update
    data, propose, threads = paths.data, templates.propose, torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paths, "data", lambda name: models if name == "models" else data(name))
        patch.setattr(corpus.families, "names", lambda: FAMILIES)
        patch.setattr(corpus, "CORE", (("spmv", 1, "float64"),))
        patch.setattr(corpus, "_extra", lambda rng, *matrix: Task(*matrix[:2], False, "spmv", 1, "float32", "constant"))
        patch.setattr(corpus.templates, "propose", lambda problem: itertools.islice(propose(problem), 4))
        patch.setattr(proposers, "_loaded", {})
        yield SimpleNamespace(root=root, models=models, matrices=folder, corpus=root / "corpus")
    torch.set_num_threads(threads)


def run(stage: str, *options: object) -> int:
    return main([stage, *map(str, options)])


def lines(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def same(one: dict, other: dict) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def interrupted(patch: pytest.MonkeyPatch, module, name: str, after: int, how: Callable[[], None]) -> None:
    """Call number `after` of module.name ends the process, or tells it to end."""
    real, calls = getattr(module, name), itertools.count(1)

    def call(*arguments, **options):
        if next(calls) == after:
            how()
        return real(*arguments, **options)

    patch.setattr(module, name, call)


def kill() -> None:
    raise MemoryError("killed")


@pytest.fixture(scope="module")
def measured(place) -> Path:
    assert run("corpus", "--matrices", place.matrices, "--corpus", place.corpus, "--per-family", 1) == 0
    return place.corpus


@pytest.fixture(scope="module")
def pretrained(place) -> Path:
    out = place.root / "pretrained"
    assert run("pretrain", "--recipe", "tiny", "--texts", 40, "--out", out) == 0
    return out


def sft_options(place, pretrained: Path, out: Path) -> list[object]:
    given = ["--matrices", place.matrices, "--corpus", place.corpus, "--pretrained", pretrained]
    return ["--recipe", "tiny", *given, "--out", out]


@pytest.fixture(scope="module")
def tuned(place, measured, pretrained) -> Path:
    out = place.root / "tuned"
    assert run("sft", *sft_options(place, pretrained, out)) == 0
    return out


def rl_options(place, pretrained: Path, tuned: Path, out: Path) -> list[object]:
    return [*sft_options(place, pretrained, out), "--tuned", tuned]


@pytest.fixture(scope="module")
def knowing(place) -> Iterator[None]:
    """A model this small writes no kernel: two samples of every group are replaced by what it might have written."""
    real = rl.sample

    def sample(decoder, tokenizer, structures, languages, counts, **options):
        groups = real(decoder, tokenizer, structures, languages, counts, **options)
        for group, language in zip(groups, languages, strict=True):
            if language == "cpp":
                for at, text in enumerate((SCALAR, NEW)):
                    ids = tokenizer.encode(text)
                    group[at] = Sample(text, ids, [-1.0] * len(ids), True)
        return groups

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rl, "sample", sample)
        yield


@pytest.fixture(scope="module")
def trained(place, tuned, pretrained, knowing) -> Path:
    out = place.root / "trained"
    assert run("rl", *rl_options(place, pretrained, tuned, out)) == 0
    return out


def test_the_corpus_holds_what_may_be_learned_from(place, measured, capsys):
    environment, *found = lines(measured / "measured.jsonl")
    assert environment["key"] == "environment" and environment["seed"] == 20260
    assert {line["matrix"] for line in found} == {REAL, f"synthetic:{FAMILIES[0]}:0"}
    assert len(found) == 4 and not any(line["held_out"] for line in found)
    for line in found:
        assert len(line["kernels"]) == 4 and any(each["speedup"] for each in line["kernels"])
    before = (measured / "measured.jsonl").read_bytes()
    again = ("corpus", "--matrices", place.matrices, "--corpus", measured, "--per-family", 1)
    assert run(*again) == 0
    assert capsys.readouterr().out == f"done: {measured}\n"
    assert (measured / "measured.jsonl").read_bytes() == before  # nothing is measured twice
    assert run(*again, "--held-out") == 0
    _, *held = lines(measured / "held_out.jsonl")
    assert {line["matrix"] for line in held} == {HELD, f"synthetic:{FAMILIES[1]}:0"}
    assert all(line["held_out"] for line in held)


def test_an_error_of_the_system_names_its_file(tmp_path, capsys):
    (tmp_path / "taken").write_text("a file")
    assert run("pretrain", "--recipe", "tiny", "--out", tmp_path / "taken") == 1
    assert capsys.readouterr().err == f"error: {tmp_path / 'taken'}: File exists\n"


def test_pretraining_leaves_a_model_its_tokenizer_and_its_text(pretrained):
    sizes = recipe.load("tiny")
    texts = lines(pretrained / "text.jsonl")
    assert len(texts) == 80 and sum(each["template"] for each in texts) == 40
    assert {each["language"] for each in texts} == {"cpp", "cuda"}
    assert Tokenizer.load(pretrained / "tokenizer.json").size == sizes.vocabulary
    logged = lines(pretrained / "log.jsonl")
    assert logged[-1]["step"] == sizes.pretrain.steps and np.isfinite(logged[-1]["loss"])
    assert logged[-1]["loss"] < np.log(sizes.vocabulary)  # of a model that knows nothing
    assert sorted(file.name for file in pretrained.iterdir()) == [
        "checkpoint.pt", "lock", "log.jsonl", "text.jsonl", "tokenizer.json",
    ]  # fmt: skip


def test_pretraining_that_is_stopped_goes_on_exactly(place, pretrained, monkeypatch, capsys):
    out = place.root / "pretrained_in_parts"
    command = ("pretrain", "--recipe", "tiny", "--texts", 40, "--out", out)
    with monkeypatch.context() as patch:
        interrupted(patch, pretrain, "learned_tokenizer", 1, kill)
        with pytest.raises(MemoryError):
            run(*command)
    with monkeypatch.context() as patch:
        interrupted(patch, fit, "cross_entropy", 8, lambda: os.kill(os.getpid(), signal.SIGTERM))
        assert run(*command) == 1
    assert STOPPED in capsys.readouterr().err
    assert torch.load(out / "checkpoint.pt", weights_only=True)["step"] == 8
    assert run(*command) == 0
    sizes = recipe.load("tiny")
    assert same(sft.weights(sizes, out), sft.weights(sizes, pretrained))
    for name in ("text.jsonl", "tokenizer.json"):
        assert (out / name).read_bytes() == (pretrained / name).read_bytes()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_pretraining_is_stopped_while_it_writes_its_texts(place, tmp_path, monkeypatch, capsys, how):
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    command = ("pretrain", "--recipe", "tiny", "--texts", 30, "--out", tmp_path)
    with monkeypatch.context() as patch:
        interrupted(patch, pretrain.writer, "write", 7, lambda: signal.raise_signal(how))
        assert run(*command) == 1
    assert capsys.readouterr().err.strip() == STOPPED
    assert sorted(each.name for each in tmp_path.iterdir()) == ["checkpoint.pt", "lock"]
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


@pytest.mark.parametrize("at", ["text", "tokenizer", "checkpoint"])
def test_a_pretraining_folder_is_of_its_settings_from_the_beginning(place, tmp_path, monkeypatch, capsys, at):
    """Stopped before its first step, with texts or without: another seed, size or number of texts is refused."""
    (tmp_path / "other.toml").write_text((place.models / "tiny.toml").read_text().replace("1024", "900"))
    out = tmp_path / "out"
    command = ["pretrain", "--recipe", "tiny", "--texts", "40", "--out", str(out)]
    with monkeypatch.context() as patch:
        where = {"text": "texts", "tokenizer": "learned_tokenizer", "checkpoint": "fit"}
        interrupted(patch, pretrain, where[at], 1, kill)
        with pytest.raises(MemoryError):
            run(*command)
    assert (out / "text.jsonl").exists() == (at != "text")
    for changes, message in (
        (["--seed", "7013"], "seed"), (["--texts", "30"], "rewritten, written"), (["--folder", "x"], "folders"),
        (["--recipe", str(tmp_path / "other.toml")], "recipe"),
    ):  # fmt: skip
        assert run(*command, *changes) == 1
        assert f"holds a run with another {message}" in capsys.readouterr().err
    (out / "checkpoint.pt").unlink()
    assert run(*command) == (0 if at == "text" else 1)
    assert ("settings nobody knows" in capsys.readouterr().err) == (at != "text")


@pytest.mark.parametrize("name", ["text.jsonl", "tokenizer.json", "checkpoint.pt"])
def test_a_full_disk_leaves_nothing_half_written(place, tmp_path, monkeypatch, capsys, name):
    def full(part, *rest):
        Path(part).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        if name == "text.jsonl":
            patch.setattr(Path, "write_text", full)
        elif name == "tokenizer.json":
            patch.setattr(Tokenizer, "save", lambda self, part: full(part))
        else:
            patch.setattr(torch, "save", lambda state, part: full(part))
        assert run("pretrain", "--recipe", "tiny", "--texts", 30, "--out", tmp_path) == 1
    assert "No space left" in capsys.readouterr().err
    assert {each.name for each in tmp_path.iterdir()} <= {"checkpoint.pt", "lock", "text.jsonl"} - {name}


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda rows: [*rows[:4], "{", *rows[5:]], "line 5, is damaged"),
        (lambda rows: [*rows[:4], '{"language": "cpp", "text": ""}', *rows[5:]], "line 5, is damaged"),
        (lambda rows: rows[:-1], "expected at least 80 kernels"),
        (lambda rows: [*rows[:-1], rows[-1].replace('"cuda"', '"rust"')], "kernels in cuda and cpp"),
    ],
)
def test_damaged_texts_are_one_clear_error(place, pretrained, tmp_path, capsys, spoil, message):
    out = tmp_path / "out"
    shutil.copytree(pretrained, out)
    file = out / "text.jsonl"
    file.write_text("".join(f"{row}\n" for row in spoil(file.read_text().splitlines())))
    assert run("pretrain", "--recipe", "tiny", "--texts", 40, "--out", out) == 1
    found = capsys.readouterr().err.strip().splitlines()
    assert len(found) == 1 and "text.jsonl" in found[0] and message in found[0]


def test_fine_tuning_reads_no_held_out_family(place, measured, tuned, monkeypatch):
    sizes = recipe.load("tiny")
    assert not same(sft.weights(sizes, tuned), sft.weights(sizes, place.root / "pretrained"))
    logged = lines(tuned / "log.jsonl")
    assert [each["step"] for each in logged if "loss" in each][-1] == sizes.sft.steps
    assert {"watched", "known", "fraction"} <= logged[-1].keys()
    opened = []
    real = corpus.matrix
    monkeypatch.setattr(corpus, "matrix", lambda task, folder: opened.append(task) or real(task, folder))
    for file in measured.glob("*.npz"):
        file.unlink()
    config = sft.SftConfig(sizes, str(measured), str(place.matrices), None, "", "")
    found = sft.problems(config)
    held = corpus.held_out_families()
    assert opened and {each.family for each in opened} == {each.task.family for each in found}
    assert not held & {each.family for each in opened}
    assert {each.language for each in found} == {"cpp", "cuda"}


@pytest.mark.parametrize("how", ["told to stop", "killed"])
def test_fine_tuning_that_is_interrupted_goes_on_exactly(place, pretrained, tuned, monkeypatch, how):
    out = place.root / how.replace(" ", "_")
    command = ("sft", *sft_options(place, pretrained, out))
    with monkeypatch.context() as patch:
        if how == "killed":
            patch.setattr("sparsegen.train.run.SAVE_SECONDS", 0.0)  # after every step
            interrupted(patch, fit, "cross_entropy", 12, kill)
            with pytest.raises(MemoryError):
                run(*command)
        else:
            interrupted(patch, fit, "cross_entropy", 5, lambda: os.kill(os.getpid(), signal.SIGTERM))
            assert run(*command) == 1
    assert torch.load(out / "checkpoint.pt", weights_only=True)["step"] == {"killed": 11}.get(how, 5)
    assert run(*command) == 0
    sizes = recipe.load("tiny")
    assert same(sft.weights(sizes, out), sft.weights(sizes, tuned))


def test_reinforcement_learning_measures_what_is_new(place, measured, trained):
    sizes = recipe.load("tiny")
    iterations, samples = lines(trained / "iterations.jsonl"), lines(trained / "rewards.jsonl")
    assert [each["iteration"] for each in iterations] == [0, 1]
    problems = {each["problem"] for each in samples}
    assert len(problems) == 5 and len(samples) == sizes.rl.updates * 5 * sizes.rl.group
    timed = [each for each in samples if each["level"] == "TIMED"]
    assert sum(each.endswith(" cuda") for each in problems) == 1  # of four: most rewards are to be measured ones
    assert len(timed) == 2 * 2 * 4  # updates, texts, problems in C++
    assert all(each["speedup"] > 0 and each["problem"].endswith(" cpp") for each in timed)
    junk = [each["reward"] for each in samples if each["level"] == "NONE"]
    assert len(junk) == len(samples) - len(timed) and max(junk) < min(each["reward"] for each in timed)
    judged = Records(measured / "judged.jsonl").known
    asked = {(each["problem"], each["sample"]) for each in timed if each["fresh"]}
    assert len(judged) == len(asked) == iterations[0]["measured"] > 0 == iterations[1]["measured"]
    assert all(each["level"] == "TIMED" for each in judged.values())
    assert not same(rl.weights(sizes, trained), sft.weights(sizes, place.root / "tuned"))


def test_reinforcement_learning_that_is_killed_goes_on_exactly(place, pretrained, tuned, trained, monkeypatch, capsys):
    out = place.root / "trained_in_parts"
    command = ("rl", *rl_options(place, pretrained, tuned, out))
    with monkeypatch.context() as patch:
        interrupted(patch, rl, "judged", 10, lambda: signal.raise_signal(signal.SIGINT))
        assert run(*command) == 1
    assert STOPPED in capsys.readouterr().err
    assert len(lines(out / "iterations.jsonl")) == 1
    assert run(*command) == 0
    sizes = recipe.load("tiny")
    assert same(rl.weights(sizes, out), rl.weights(sizes, trained))
    timed = [each for each in lines(out / "rewards.jsonl") if each["speedup"]]
    assert timed and not any(each["fresh"] for each in timed)  # the first run measured them all


def test_what_is_published_takes_part_in_a_search(place, pretrained, trained, capsys):
    card = place.root / "card.json"
    card.write_text(json.dumps({"seed": 20260, "commit": "0", "data": "tiny", "evaluation": "none", "grammar": 1}))
    given = ("--recipe", "tiny", "--tokenizer", pretrained / "tokenizer.json", "--card", card)
    assert run("publish", "--trained", trained, *given) == 0
    folder = Path(capsys.readouterr().out.strip())
    assert folder.parent == place.models and (place.models / "default").read_text() == folder.name + "\n"
    assert sorted(file.name for file in folder.iterdir()) == ["card.json", "tokenizer.json", "weights.safetensors"]
    found = checkpoint.load(folder)
    halves = {name: each.astype(np.float16) for name, each in rl.weights(recipe.load("tiny"), trained).items()}
    assert found.card["data"] == "tiny" and found.recipe == recipe.sizes(asdict(recipe.load("tiny")))
    assert np.array_equal(found.decoder._embedding, halves["t5.shared.weight"].astype(np.float32))

    A = matrices.load(place.matrices / REAL)
    x = np.random.default_rng(20265).standard_normal(A.shape[1])
    for model in (folder, "auto"):
        kernel = sparsegen.compile(A, budget=1.5, max_candidates=2, model=model, cache=False, threads=1, facts=None)
        report = kernel.report()
        assert report["model"]["checkpoint"] == folder.name and report["model"]["samples"] > 0
        assert report["model"]["distinct"] == 0 and report["model"]["illegal"] == report["model"]["samples"]
        assert {each["origin"] for each in report["candidates"]} == {"template"}
        assert f"learned model {folder.name}" in kernel.explain()
        right(kernel @ x, A, x)

    assert run("publish", "--trained", place.root / "tuned", *given) == 0  # a model of stage 2 does as well
    other = Path(capsys.readouterr().out.strip())
    assert other != folder and (place.models / "default").read_text() == other.name + "\n"
    assert not [each.name for each in place.models.iterdir() if each.name.startswith(".")]


def test_a_folder_of_another_stage_is_refused(place, pretrained, tuned, trained, tmp_path, capsys):
    def said(*command: object) -> str:
        assert run(*command) == 1
        return capsys.readouterr().err

    assert "expected one of sft" in said("rl", *rl_options(place, pretrained, pretrained, tmp_path / "a"))
    assert "earlier stage" in said("rl", *rl_options(place, pretrained, tuned, tuned))
    assert "reinforcement learning" in said("sft", *sft_options(place, pretrained, trained))
    tokens = ("--tokenizer", pretrained / "tokenizer.json")
    assert "expected one of pretrain" in said("sft", *sft_options(place, tuned, tmp_path / "b"), *tokens)
    (tmp_path / "empty").mkdir()
    nothing = ("--matrices", tmp_path / "empty", "--corpus", tmp_path / "c", "--per-family", "0")
    assert "no problem to measure" in said("corpus", *nothing)


def test_what_is_published_may_lie_between_two_stages(place, pretrained, tuned, trained, publishing):
    sizes = recipe.load("tiny")
    found = checkpoint.load(publishing(trained, "--tuned", tuned, "--share", "0.25"))
    assert found.card["share"] == 0.25
    first, last = (each["t5.shared.weight"] for each in (sft.weights(sizes, tuned), rl.weights(sizes, trained)))
    assert not np.array_equal(first, last)
    assert np.array_equal(found.decoder._embedding, (0.75 * first + 0.25 * last).astype(np.float16).astype(np.float32))
    assert "expected one of rl" in publishing(tuned, "--tuned", tuned, "--share", "0.25")
    assert "expected one of sft" in publishing(trained, "--tuned", pretrained, "--share", "0.25")
    assert "expected 0 to 1" in publishing(trained, "--tuned", tuned, "--share", "1.5")
    assert "expected 0 to 1" in publishing(trained, "--tuned", tuned, "--share", "nan")
    assert "the run of stage 2" in publishing(trained, "--share", "0.25")
    assert "a share below 1" in publishing(trained, "--tuned", tuned)
    assert "share" not in checkpoint.load(publishing(trained)).card


CARD = {"seed": 20261, "commit": "0", "data": "tiny", "evaluation": "none", "grammar": grammar.VERSION}


def stated(run: Path, out: Path, **changes: object) -> Path:
    """A copy of a run whose state says something else, or with None no more than other versions of it did."""
    shutil.copytree(run, out)
    file = next(out / name for name in ("state.pt", "checkpoint.pt") if (out / name).exists())
    state = torch.load(file, weights_only=True) | changes
    torch.save({name: value for name, value in state.items() if value is not None}, file)
    return out


def recorded(run: Path, **changes: object) -> dict:
    return torch.load(run / "checkpoint.pt", weights_only=True)["config"] | changes


@pytest.fixture
def publishing(place, pretrained, tmp_path, capsys) -> Callable[..., str]:
    """Publish a run and give what it said, one line; nothing is left behind where it was refused."""

    def publish(trained: Path, *options: object, card: object = CARD, tokenizer: Path | None = None) -> str:
        (tmp_path / "card.json").write_text(card if isinstance(card, str) else json.dumps(card))
        before = {each.name for each in place.models.iterdir()}
        given = ("--tokenizer", tokenizer or pretrained / "tokenizer.json", "--card", tmp_path / "card.json")
        ended = run("publish", "--trained", trained, *given, "--recipe", "tiny", *options)
        said = capsys.readouterr()
        (line,) = (said.out + said.err).splitlines()
        assert (ended == 0) is line.startswith(str(place.models))
        if ended:
            assert line.startswith("error: ") and {each.name for each in place.models.iterdir()} == before
        return line

    return publish


def test_a_run_that_is_not_at_its_end_is_published_when_asked(place, tuned, trained, tmp_path, publishing):
    fine = stated(tuned, tmp_path / "fine", step=13)
    assert "has come to 13 of 20 of the stage sft" in publishing(fine)
    card = checkpoint.load(publishing(fine, "--unfinished")).card
    assert card["unfinished"] == "13 of 20"
    short = stated(trained, tmp_path / "short", iteration=1)
    assert "has come to 1 of 2 of the stage rl" in publishing(short)
    assert checkpoint.load(publishing(short, "--unfinished")).card["unfinished"] == "1 of 2"
    old = stated(trained, tmp_path / "old", iteration=1, updates=None, recipe=None, tokenizer=None)
    assert "has come to 1 of 2 of the stage rl" in publishing(old)
    whole = stated(trained, tmp_path / "whole", updates=None, recipe=None, tokenizer=None)
    assert "unfinished" not in checkpoint.load(publishing(whole, "--unfinished")).card


def test_no_stage_goes_on_from_a_run_that_is_not_at_its_end(place, pretrained, tuned, tmp_path, capsys):
    short = stated(tuned, tmp_path / "short", step=13)
    assert run("rl", *rl_options(place, pretrained, short, tmp_path / "out")) == 1
    assert "short has come to 13 of 20 of the stage sft" in capsys.readouterr().err
    short = stated(pretrained, tmp_path / "before", step=7)
    assert run("sft", *sft_options(place, short, tmp_path / "out")) == 1
    assert "before has come to 7 of 20 of the stage pretrain" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_what_does_not_belong_together_is_not_published(place, pretrained, tuned, trained, tmp_path, publishing):
    assert "is a run of the stage pretrain" in publishing(pretrained)
    other = tmp_path / "tokenizer.json"
    Tokenizer.learn(["another text"] * 3, recipe.load("tiny").vocabulary).save(other)
    for each in (tuned, trained):
        assert "trained with another tokenizer" in publishing(each, tokenizer=other)
    moved = stated(tuned, tmp_path / "moved", config=recorded(tuned, tokenizer=str(tmp_path / "gone.json")))
    assert place.models.name in publishing(moved)
    sizes = asdict(recipe.load("tiny"))
    longer = recorded(tuned, recipe=sizes | {"longest": 400, "embedding": "raw"})
    message = "of a recipe with another embedding, longest"
    assert message in publishing(stated(tuned, tmp_path / "longer", config=longer))
    assert message in publishing(stated(trained, tmp_path / "long", recipe=longer["recipe"]))
    (tmp_path / "wide.toml").write_text((place.models / "tiny.toml").read_text().replace("d_ff = 64", "d_ff = 96"))
    silent = stated(trained, tmp_path / "silent", recipe=None)
    assert "is not of recipe wide" in publishing(silent, "--recipe", tmp_path / "wide.toml")


@pytest.mark.parametrize(
    ("card", "message"),
    [
        ([1, 2], "a card that is [1, 2]; expected a table of seed, commit, data, evaluation, grammar"),
        ("null", "a card that is None"),
        ("{", "is not JSON"),
        ("[" * 50_000, "is not JSON"),
        ("\ufeff{}", "is not JSON"),
        ({"seed": 3, "grammar": grammar.VERSION}, "a card without commit, data, evaluation"),
        (CARD | {"recipe": {}}, "a card with recipe, which save writes itself"),
        (CARD | {"grammar": grammar.VERSION + 1}, "the grammar version of checkpoint tiny-"),
        (CARD | {"grammar": str(grammar.VERSION)}, "the grammar version of checkpoint tiny-"),
        (CARD | {"data": "x" * 2_000_000}, "bytes; expected at most"),
        (json.dumps(CARD).replace('"none"', "NaN"), "the card is not JSON"),
    ],
)
def test_cards_that_are_none_are_one_error(tuned, publishing, card, message):
    assert message in publishing(tuned, card=card)


@pytest.mark.parametrize("name", ["checkpoint.pt", "state.pt"])
def test_a_damaged_run_is_one_error(tuned, trained, tmp_path, publishing, name):
    for place, content in enumerate((b"", b"\x80", (tuned / "checkpoint.pt").read_bytes()[:9000], "[]", "{}", None)):
        out = tmp_path / str(place)
        out.mkdir()
        if isinstance(content, bytes):
            (out / name).write_bytes(content)
        else:
            torch.save({"[]": [], "{}": {}, None: {"generator": {}, "step": 20}}[content], out / name)
        assert any(said in publishing(out) for said in ("is damaged", "is none", "lacks"))
    assert "no recipe My-Model" in publishing(tuned, "--recipe", "My-Model")
    shutil.copy(paths.data("models") / "tiny.toml", tmp_path / "My-Model.toml")
    assert "recipe.name = 'My-Model'" in publishing(tuned, "--recipe", tmp_path / "My-Model.toml")


def test_two_runs_in_one_folder_are_noticed(place, pretrained, tuned, tmp_path, capsys):
    corpus = tmp_path / "corpus"
    shutil.copytree(place.corpus, corpus)
    names = ("pretrained", "tuned", "trained")
    out = {name: tmp_path / name for name in names}
    commands = [
        ("corpus", "--corpus", corpus),
        ("pretrain", "--recipe", "tiny", "--out", out["pretrained"]),
        ("sft", *sft_options(place, pretrained, out["tuned"])),
        ("rl", *rl_options(place, pretrained, tuned, out["trained"])),
    ]
    with held(corpus / "measured.jsonl", *(each / "lock" for each in out.values())) as other:
        for command in commands:
            assert run(*command) == 1
            found = capsys.readouterr().err.strip().splitlines()
            assert len(found) == 1 and "another process is at work in" in found[0] and str(tmp_path) in found[0]
        other.kill()
    assert run(*commands[2]) == 0  # what held it is dead


def test_a_corpus_is_not_begun_without_a_compiler(place, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cpu, "available", lambda: "no C++ compiler found: install g++")
    assert run("corpus", "--matrices", place.matrices, "--corpus", tmp_path / "new") == 1
    assert "error: cpp kernels cannot be measured here: no C++ compiler found" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_rl_is_not_begun_without_a_compiler(place, pretrained, tuned, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cpu, "available", lambda: "no C++ compiler found: install g++")
    assert run("rl", *rl_options(place, pretrained, tuned, tmp_path / "new")) == 1
    assert "cpp kernels cannot be measured here" in capsys.readouterr().err and not (tmp_path / "new").exists()


GIVEN = ("--corpus", "{corpus}", "--matrices", "{matrices}", "--pretrained", "{pretrained}")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("sft", "--corpus", "nowhere", "--out", "x"), "no tokenizer"),
        (("sft", "--corpus", "nowhere", "--out", "x", "--tokenizer", "nowhere.json"), "nowhere.json"),
        (("rl", *GIVEN, "--tuned", "nowhere", "--out", "x"), "stage before"),
        (("rl", *GIVEN, "--tuned", "{tuned}", "--out", "x", "--reward", "speed"), "reward is 'speed'"),
        (("sft", "--corpus", "{corpus}", "--pretrained", "{pretrained}", "--out", "x"), "--matrices"),
        (("publish", "--trained", "nowhere", "--tokenizer", "x.json", "--card", "no.json"), "stage before"),
        (("publish", "--trained", "{tuned}", "--tokenizer", "x.json", "--card", "no.json"), "no.json"),
        (("pretrain", "--out", "x", "--recipe", "huge"), "no recipe huge"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_one_line(place, tuned, pretrained, tmp_path, monkeypatch, capsys, command, message):
    monkeypatch.chdir(tmp_path)
    folders = {"corpus": place.corpus, "matrices": place.matrices, "pretrained": pretrained, "tuned": tuned}
    if "{corpus}" in command and "{matrices}" not in command:  # as if nothing had been encoded yet
        (tmp_path / "corpus").mkdir()
        shutil.copy(place.corpus / "measured.jsonl", tmp_path / "corpus")
        folders["corpus"] = tmp_path / "corpus"
    stage, *options = (each.format(**folders) for each in command)
    assert run(stage, *options, *([] if "huge" in command else ["--recipe", "tiny"])) == 1
    found = capsys.readouterr().err.strip().splitlines()
    assert len(found) == 1 and found[0].startswith("error: ") and message in found[0]


def test_wrong_command_lines():
    numbers = [("pretrain", "--out", "x", "--texts", each) for each in ("0", "1", "-5", "many", "1e3", "9" * 30)]
    numbers += [("pretrain", "--out", "x", "--seed", each) for each in ("-1", str(2**32))]
    numbers += [("corpus", "--corpus", "x", "--per-family", each) for each in ("-1", "9" * 9)]
    numbers += [(stage, *needed, "--seed", "-1") for stage, *needed in (
        ("corpus", "--corpus", "x"), ("sft", "--corpus", "x", "--out", "x"),
        ("rl", "--corpus", "x", "--tuned", "x", "--out", "x"),
    )]  # fmt: skip
    for command in ([], ["nothing"], ["sft", "--out", "x"], ["rl", "--corpus", "x"], *map(list, numbers)):
        with pytest.raises(SystemExit) as ended:
            main(command)
        assert ended.value.code == 2
