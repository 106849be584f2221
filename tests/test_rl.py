"""The loop of reinforcement learning: it learns what is rewarded, and goes on where it was interrupted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from support import held, template, user_kernel

from sparsegen import gallery
from sparsegen.engine import problem_of
from sparsegen.errors import SparsegenValueError
from sparsegen.model import encoder, recipe
from sparsegen.model.tokenizer import CPP, CUDA, END, PAD, START, Tokenizer, written
from sparsegen.train.rewards import Outcome
from sparsegen.verdict import Level

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("tokenizers")
from sparsegen.model.generator import Generator, tensors  # noqa: E402
from sparsegen.model.sample import Sample  # noqa: E402
from sparsegen.train import rl  # noqa: E402
from sparsegen.train.rl import Prompt, RLConfig, train  # noqa: E402
from sparsegen.train.texts import texts_of  # noqa: E402

CHOICES = (1, 2, 4, 8)
TEXTS = [
    written(
        user_kernel("for (int64_t row = begin; row < end; ++row) STORE(y, row, 0);", header=f"[params]\nSTEPS = {n}")
    )
    for n in CHOICES
]
TOKENIZER = Tokenizer.learn(TEXTS * 3, 460)
RECIPE = replace(
    recipe.load("tiny"), d_model=24, d_ff=48, d_kv=12, encoder_layers=1, decoder_layers=1, vocabulary=TOKENIZER.size,
    longest=max(len(TOKENIZER.encode(text)) for text in TEXTS) + 8,
)  # fmt: skip
MATRICES = {f"banded {m}": gallery.banded(m, m, [-3, 0, 1]) for m in (211, 307, 401)}
PROMPTS = [
    Prompt(name, "cpp", encoder.encode(problem_of(A), RECIPE.embedding, RECIPE.tokens)) for name, A in MATRICES.items()
]


FAST = TEXTS[-1]


def judge(problem: str, texts) -> list[Outcome]:
    """One of the kernels is fast, the others are slow, and anything else is wrong."""
    assert problem in MATRICES and len(set(texts)) == len(texts)
    fast, slow = Outcome(Level.TIMED, speedup=4.0, best=4.0), Outcome(Level.TIMED, speedup=0.5)
    known = dict.fromkeys(TEXTS, slow) | {FAST: fast}
    return [known.get(each, Outcome(Level.RAN, "wrong")) for each in texts]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """A model this small is slower with more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def fitted(one_thread) -> dict[str, np.ndarray]:
    """A model that writes the four texts, each about as often."""
    torch.manual_seed(20267)
    model = Generator(RECIPE)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    batch = tensors(encoder.batch([each.structure for each in PROMPTS]))
    ids = [[START["cpp"], *TOKENIZER.encode(text), END] for text in TEXTS for _ in PROMPTS]
    whole = torch.full((len(ids), max(map(len, ids))), PAD)
    for i, each in enumerate(ids):
        whole[i, : len(each)] = torch.tensor(each)
    for _ in range(200):
        logits = model(batch, whole[:, :-1], torch.arange(12) % 3)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), whole[:, 1:].flatten(), ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.weights()


def config(folder, **changes) -> RLConfig:
    small = {
        "updates": 4, "problems": 2, "group": 4, "minibatch": 5, "learning_rate": 2e-3, "warmup": 2,
        "stage_updates": 2, "seed": 20268,
    }  # fmt: skip
    return RLConfig.of(RECIPE, folder, **{**small, **changes})


def run(settings: RLConfig, weights, judge=judge) -> dict[str, np.ndarray]:
    return train(settings, PROMPTS, judge, RECIPE, TOKENIZER, weights)


def lines(folder, name: str) -> list[dict]:
    """Of a log, without the times, which no two runs share."""
    found = [json.loads(line) for line in (folder / name).read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in found]


def same(one, other) -> bool:
    return one.keys() == other.keys() and all((one[name] == other[name]).all() for name in one)


@pytest.mark.parametrize("method", ["group", "ppo"])
def test_the_reward_rises(fitted, tmp_path, method):
    learned = run(config(tmp_path, method=method, updates=14, problems=3, group=16, minibatch=12), fitted)
    rewards = [each["reward"] for each in lines(tmp_path, "iterations.jsonl")]
    assert np.mean(rewards[-4:]) > np.mean(rewards[:3]) + 0.12
    assert not same(learned, fitted)


@pytest.mark.parametrize("method", ["group", "ppo"])
def test_an_interrupted_run_goes_on_as_if_it_had_not_been(fitted, tmp_path, method):
    whole = run(config(tmp_path / "whole", method=method), fitted)
    left = [5]  # calls before the third iteration is interrupted

    def impatient(problem: str, texts) -> list[Outcome]:
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        return judge(problem, texts)

    with pytest.raises(KeyboardInterrupt):
        run(config(tmp_path / "cut", method=method, save_every=100), fitted, impatient)
    assert len(lines(tmp_path / "cut", "iterations.jsonl")) == 2
    with open(tmp_path / "cut/rewards.jsonl", "a") as file:  # what a kill may leave
        file.write('{"iteration": 2, "problem": "banded 211"}\n{"iterat')
    resumed = run(config(tmp_path / "cut", method=method), fitted)
    assert same(resumed, whole)
    for name in ("iterations.jsonl", "rewards.jsonl"):
        assert lines(tmp_path / "cut", name) == lines(tmp_path / "whole", name)


def test_a_kill_costs_the_iterations_since_the_last_checkpoint(fitted, tmp_path):
    """A checkpoint of the second iteration, logs of the third: as a killed process leaves them."""
    whole = run(config(tmp_path / "whole"), fitted)
    left = [4]  # calls before the third iteration

    def killed(problem: str, texts) -> list[Outcome]:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return judge(problem, texts)

    with pytest.raises(KeyboardInterrupt):
        run(config(tmp_path / "cut"), fitted, killed)
    for name in ("iterations.jsonl", "rewards.jsonl"):
        text = (tmp_path / "whole" / name).read_text()
        (tmp_path / "cut" / name).write_text(text[: len(text) - 9])
    assert same(run(config(tmp_path / "cut"), fitted), whole)
    assert lines(tmp_path / "cut", "iterations.jsonl") == lines(tmp_path / "whole", "iterations.jsonl")
    assert same(run(config(tmp_path / "cut"), fitted), whole)  # nothing left to do


def test_the_logs(fitted, tmp_path):
    run(config(tmp_path, group=6), fitted)
    found, samples = lines(tmp_path, "iterations.jsonl"), lines(tmp_path, "rewards.jsonl")
    assert [each["iteration"] for each in found] == [0, 1, 2, 3]
    assert [each["stage"] for each in found] == [0, 0, 1, 1]
    for line in found:
        own = [each for each in samples if each["iteration"] == line["iteration"]]
        assert len(own) == line["samples"] == sum(line["levels"].values()) == 12
        assert line["reward"] == pytest.approx(np.mean([each["reward"] for each in own]))
        assert {each["problem"] for each in own} <= set(MATRICES)
        assert {"kl", "entropy", "clip_fraction", "distinct", "speedup", "loss"} <= line.keys()
        for problem in {each["problem"] for each in own}:  # one text, one reward
            rewards = {(each["sample"], each["reward"]) for each in own if each["problem"] == problem}
            assert len(rewards) == len({sample for sample, _ in rewards})


def test_the_policy_is_watched(fitted, tmp_path):
    """Every so many iterations and after the last, as it is then."""
    seen = []

    def watch(actor, iteration: int) -> dict:
        seen.append(iteration)
        return {"watched": float(next(actor.parameters()).detach().sum())}

    settings = config(tmp_path, updates=5, watch_every=2)
    train(settings, PROMPTS, judge, RECIPE, TOKENIZER, fitted, watch=watch)
    logged = {
        each["iteration"] + 1: each["watched"] for each in lines(tmp_path, "iterations.jsonl") if "watched" in each
    }
    assert seen == list(logged) == [2, 4, 5]
    assert len(set(logged.values())) == 3


def test_the_first_step_is_taken_from_the_policy_itself(fitted, tmp_path):
    """The ratio begins at 1 and the divergence at 0, whatever top-k and temperature did to the samples."""
    settings = config(tmp_path, updates=1, epochs=1, minibatch=100, top_k=3, temperature=0.6)
    run(settings, fitted)
    (line,) = lines(tmp_path, "iterations.jsonl")
    assert line["kl"] == pytest.approx(0, abs=1e-9) and line["clip_fraction"] == 0
    assert line["loss"] == pytest.approx(0, abs=0.2) and line["gradient"] > 0


def test_what_cannot_be_run_is_refused(fitted, tmp_path):
    for changes, message in (
        ({"method": "grpo"}, "method is 'grpo'"),
        ({"reward": "speed"}, "reward is 'speed'; expected one of sparserl"),
        ({"group": 1}, "group is 1; expected at least 2"),
        ({"epochs": 0}, "epochs is 0"),
        ({"watch_every": 0}, "watch_every is 0"),
    ):
        with pytest.raises(SparsegenValueError, match=message):
            run(config(tmp_path, **changes), fitted)
    with pytest.raises(SparsegenValueError, match="no prompts"):
        train(config(tmp_path), [], judge, RECIPE, TOKENIZER, fitted)
    assert not list(tmp_path.iterdir())


def test_another_run_needs_another_folder(fitted, tmp_path):
    run(config(tmp_path, updates=1), fitted)
    for changes in ({"kl": 0.1}, {"updates": 2}):  # the rate of learning falls over the updates
        with pytest.raises(SparsegenValueError, match="holds another run"):
            run(config(tmp_path, **{"updates": 1, **changes}), fitted)
    other = {**fitted, "value.bias": fitted["value.bias"] + 1}
    with pytest.raises(SparsegenValueError, match="holds another run"):
        run(config(tmp_path), other)


def test_a_folder_has_one_run_at_a_time(fitted, tmp_path):
    with held(tmp_path / "lock"), pytest.raises(SparsegenValueError, match="another process is at work in"):
        run(config(tmp_path), fitted)
    assert [each.name for each in tmp_path.iterdir()] == ["lock"]


def test_a_damaged_file_of_a_run_is_one_clear_error(fitted, tmp_path):
    run(config(tmp_path, updates=1), fitted)
    state, log = (tmp_path / name for name in ("state.pt", "iterations.jsonl"))
    whole = state.read_bytes()
    state.write_bytes(whole[:-2000])
    for read in (lambda: run(config(tmp_path, updates=1), fitted), lambda: rl.weights(RECIPE, tmp_path)):
        with pytest.raises(SparsegenValueError, match=r"state\.pt is damaged"):
            read()
    torch.save({"iteration": 1}, state)
    with pytest.raises(SparsegenValueError, match=r"state\.pt lacks identity, actor"):
        run(config(tmp_path, updates=1), fitted)
    state.write_bytes(whole)
    log.write_text('{"reward": 3}\n' + log.read_text())
    with pytest.raises(SparsegenValueError, match=r"iterations\.jsonl, line 1, is damaged"):
        run(config(tmp_path, updates=1), fitted)


def test_texts_as_tensors():
    groups = [
        [Sample("", [7, END], [], True), Sample("", [8, 9, 9], [], False, "too long")],
        [Sample("", [], [], False)],
    ]
    found = texts_of(groups, ["cpp", "cuda"])
    assert found.tokens.tolist() == [[CPP, 7, END], [CPP, 8, 9], [CUDA, PAD, PAD]]
    assert found.targets.tolist() == [[7, END, PAD], [8, 9, 9], [PAD, PAD, PAD]]
    assert found.mask.tolist() == [[True, True, False], [True, True, True], [False, False, False]]
    assert found.rows.tolist() == [0, 0, 1]
    part = found.of(torch.tensor([2, 0]))
    assert part.tokens.tolist() == [[CUDA, PAD], [CPP, 7]] and part.rows.tolist() == [1, 0]


def test_only_what_may_be_run_is_judged():
    """Twice the same text is asked once; what is unfinished, no kernel file, or not permitted, never."""
    vector = written(template("csr_vector", values="full"))
    asked: list[list[str]] = []

    def record(problem: str, texts) -> list[Outcome]:
        asked.append(list(texts))
        return [Outcome(Level.CORRECT, speedup=1.0 + i) for i, _ in enumerate(texts)]

    many = written(template("csr_scalar")).replace('[params]\nvalues = "full"', '[tune]\nvalues = ["full"]')
    group = [Sample(each, [5], [], True) for each in (TEXTS[0], vector, "int x;", TEXTS[1], TEXTS[0], many)]
    group.append(Sample(TEXTS[2], [5], [], False, "too long"))
    found = rl.judged(record, PROMPTS[0], group, frozenset({"may_unroll"}))
    assert asked == [[TEXTS[0], TEXTS[1]]]
    assert [each.speedup for each in found] == [1.0, None, None, 2.0, 1.0, None, None]
    assert [each.fault for each in found] == ["", "", "header", "", "", "", "unfinished"]
    assert [each.permitted for each in found] == [True, False, True, True, True, False, True]
    rl.judged(record, PROMPTS[0], group[:2], frozenset({"may_vector"}))
    assert asked[1] == [TEXTS[0], vector]
    assert rl.judged(record, PROMPTS[0], group[2:3], frozenset())[0].fault == "header" and len(asked) == 2
