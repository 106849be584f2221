"""Supervised training: it learns, and a run that is interrupted goes on as if it had not been."""

from __future__ import annotations

import dataclasses
import itertools
import json
import signal

import numpy as np
import pytest
from support import held

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from sparsegen.errors import SparsegenValueError  # noqa: E402
from sparsegen.model import encoder  # noqa: E402
from sparsegen.model.generator import Generator  # noqa: E402
from sparsegen.model.recipe import Fit, load  # noqa: E402
from sparsegen.model.tokenizer import CPP, CUDA, END  # noqa: E402
from sparsegen.train import fit as fits  # noqa: E402
from sparsegen.train.fit import cross_entropy, fit, initial, rate  # noqa: E402
from sparsegen.train.run import Run, kept  # noqa: E402

SETTINGS = Fit(steps=14, batch=3, learning_rate=3e-3, warmup=2, weight_decay=0.01, clip_norm=1.0)
TEXTS = {"cpu": [CPP, 17, 300, 23, 5, END], "cuda": [CUDA, 9, 9, 400, END]}


def generator() -> Generator:
    torch.manual_seed(7013)
    return Generator(dataclasses.replace(load("tiny"), dropout=0.1))


def draw(rng: np.random.Generator):
    picks = [str(each) for each in rng.choice(["cpu", "cuda"], SETTINGS.batch)]
    return [encoder.pretraining(each, ["kind:map"]) for each in picks], [TEXTS[each] for each in picks]


def weights(made: Generator) -> dict[str, np.ndarray]:
    return made.weights()


def test_the_loss_falls_to_what_the_text_leaves_open(tmp_path):
    made = generator()
    before = float(cross_entropy(made.eval(), *draw(np.random.default_rng(7013))).detach())
    run = Run(tmp_path, {"name": "a"})
    assert fit(made, run, draw, dataclasses.replace(SETTINGS, steps=240), 7013)
    after = float(cross_entropy(made, *draw(np.random.default_rng(7013))).detach())
    assert before > 5 and after < 0.5
    logged = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert logged[-1]["step"] == 240 and logged[-1]["loss"] < logged[0]["loss"]


def test_what_has_learned_nothing_depends_on_its_seed_alone():
    before = torch.random.get_rng_state()
    one, again, other = (initial(load("tiny"), seed).weights() for seed in (7013, 7013, 7014))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(np.array_equal(one[name], again[name]) for name in one)
    assert not np.array_equal(one["head.weight"], other["head.weight"])


def test_padding_and_the_other_texts_of_a_batch_do_not_change_the_loss():
    made = generator().eval()
    structures, texts = [encoder.pretraining(each, []) for each in TEXTS], list(TEXTS.values())
    together = float(cross_entropy(made, structures, texts).detach())
    alone = [float(cross_entropy(made, [each], [text]).detach()) for each, text in zip(structures, texts, strict=True)]
    lengths = [len(text) - 1 for text in texts]  # tokens that are predicted
    assert together == pytest.approx(np.average(alone, weights=lengths), rel=1e-4)


def test_a_run_that_was_stopped_goes_on_exactly(tmp_path, monkeypatch):
    whole = generator()
    assert fit(whole, Run(tmp_path / "whole", {}), draw, SETTINGS, 7013)
    stopped, run = generator(), Run(tmp_path / "parts", {})
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    seen = []

    def draw_and_stop(rng):
        seen.append(None)
        if len(seen) == 6:
            signal.raise_signal(signal.SIGTERM)
        return draw(rng)

    assert not fit(stopped, run, draw_and_stop, SETTINGS, 7013)
    again = Run(tmp_path / "parts", {})
    assert again.step == 6
    resumed = generator()
    assert fit(resumed, again, draw, SETTINGS, 7013)
    for name, array in weights(whole).items():
        assert np.array_equal(array, weights(resumed)[name]), name
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before  # given back


def test_what_was_logged_after_the_checkpoint_is_dropped_with_a_line_cut_short(tmp_path):
    run = Run(tmp_path, {"name": "a"})
    run.save(4)
    for step in (2, 4, 6):
        run.log(step=step)
    with open(tmp_path / "log.jsonl", "a") as file:
        file.write('{"step": 7')
    Run(tmp_path, {"name": "a"})
    assert [json.loads(line)["step"] for line in (tmp_path / "log.jsonl").read_text().splitlines()] == [2, 4]


@pytest.mark.parametrize("saved", [False, True])
def test_another_configuration_is_not_mixed_into_a_run(tmp_path, saved):
    run = Run(tmp_path, {"seed": 7, "label": "any"})
    if saved:
        run.save(3)
    with pytest.raises(SparsegenValueError, match="label"):  # from the beginning
        Run(tmp_path, {"seed": 7, "label": "softmax"})
    assert Run(tmp_path, {"seed": 7, "label": "any"}).step == (3 if saved else 0)


def test_places_are_the_same_however_they_are_spelled(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = {"out": "run", "corpus": "c", "pretrained": None, "tokenizer": "p/t.json", "folders": ("a", "b")}
    Run("run", config).save(3)
    (tmp_path / "run").rename(tmp_path / "moved")
    other = {
        "out": f"{tmp_path}/moved/", "corpus": f"{tmp_path}/c/", "pretrained": None, "tokenizer": "./p/../p/t.json",
        "folders": (f"{tmp_path}/a", "b/"),
    }  # fmt: skip
    assert Run(f"{tmp_path}/moved/", other).step == 3
    monkeypatch.chdir("/")
    other |= {"tokenizer": f"{tmp_path}/p/t.json", "folders": (tmp_path / "a", tmp_path / "b")}
    assert Run(tmp_path / "moved", other).step == 3
    for changes in ({"corpus": "d"}, {"folders": ("b", "a")}, {"pretrained": "c"}):
        with pytest.raises(SparsegenValueError, match=next(iter(changes))):
            Run(tmp_path / "moved", {**other, **changes})


def test_a_checkpoint_of_before_is_resumed(tmp_path):
    """Until now its settings were as they had been spelled, the folder of the run among them."""
    spelled = {"seed": 7, "out": "elsewhere/", "corpus": str(tmp_path / "c")}
    torch.save({"step": 5, "config": spelled, "generator": {}, "optimizer": {}}, tmp_path / "checkpoint.pt")
    run = Run(tmp_path, {**spelled, "out": str(tmp_path), "corpus": f"{tmp_path}/./c"})
    assert run.step == 5 and run.state is not None


@pytest.mark.parametrize("how", ["empty", "cut", "text", "a list", "no step"])
def test_a_damaged_checkpoint_is_one_clear_error(tmp_path, how):
    file = tmp_path / "checkpoint.pt"
    Run(tmp_path, {"seed": 7}).save(3, generator=generator().state_dict())
    if how in ("a list", "no step"):
        torch.save([3] if how == "a list" else {"config": {"seed": 7}}, file)
    else:
        file.write_bytes({"empty": b"", "cut": file.read_bytes()[:-999], "text": b"no checkpoint"}[how])
    for read in (lambda: Run(tmp_path, {"seed": 7}), lambda: kept(load("tiny"), file, "generator")):
        with pytest.raises(SparsegenValueError, match=r"checkpoint\.pt (is damaged|lacks|is none)"):
            read()


def test_a_run_that_has_only_begun_has_no_weights(tmp_path):
    Run(tmp_path, {"seed": 7})
    with pytest.raises(SparsegenValueError, match="lacks generator"):
        kept(load("tiny"), tmp_path / "checkpoint.pt", "generator")


def test_a_damaged_line_of_the_log_is_named(tmp_path):
    run = Run(tmp_path, {})
    run.log(step=0)
    with open(tmp_path / "log.jsonl", "a") as file:
        file.write("{\n")
    run.log(step=0)
    with pytest.raises(SparsegenValueError, match=r"log\.jsonl, line 2, is damaged"):
        Run(tmp_path, {})


def test_a_folder_has_one_run_at_a_time(tmp_path):
    with held(tmp_path / "lock"), pytest.raises(SparsegenValueError, match="another process is at work in"):
        Run(tmp_path, {})
    assert Run(tmp_path, {}).step == 0


def test_a_checkpoint_is_replaced_whole(tmp_path, monkeypatch):
    run = Run(tmp_path, {})
    run.save(3)

    def full(state, path):
        path.write_bytes(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="space"):
        run.save(9)
    monkeypatch.undo()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["checkpoint.pt", "lock"]
    assert Run(tmp_path, {}).step == 3


def test_the_rate_rises_and_falls_to_a_tenth():
    rates = [rate(step, steps=100, warmup=10, highest=0.02) for step in range(101)]
    assert rates[9] == pytest.approx(0.02) and rates[0] == pytest.approx(0.002)
    assert rates[100] == pytest.approx(0.002)
    assert all(later < earlier for earlier, later in itertools.pairwise(rates[10:]))


def test_the_watch_sees_the_model_without_dropout(tmp_path):
    seen = []

    def watch(made, step):
        seen.append((step, made.training))
        return {"known": 0.5}

    assert fit(generator(), Run(tmp_path, {}), draw, SETTINGS, 7013, watch, 7)
    assert seen == [(7, False), (14, False)] and fits.LOG_EVERY > 0
