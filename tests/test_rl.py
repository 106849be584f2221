"""The loop of reinforcement learning: it learns what a judge rewards, and goes on after an interruption as if there were none."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from support import user_kernel

from sparsegen import gallery
from sparsegen.candidate import parse
from sparsegen.engine import problem_of
from sparsegen.errors import SparsegenValueError
from sparsegen.model import encoder, recipe
from sparsegen.model.tokenizer import CPP, CUDA, END, PAD, START, Tokenizer, written
from sparsegen.train import techniques
from sparsegen.train.rewards import Outcome
from sparsegen.verdict import Level

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("tokenizers")
from sparsegen.model.generator import Generator, tensors  # noqa: E402
from sparsegen.model.sample import Sample  # noqa: E402
from sparsegen.train import rl  # noqa: E402
from sparsegen.train.rl import Prompt, RLConfig, train  # noqa: E402

CHOICES = (1, 2, 4, 8)
TEXTS = [
    written(user_kernel(header=f"[params]\nSTEPS = {n}", body="    for (int64_t row = begin; row < end; ++row) STORE(y, row, 0);"))
    for n in CHOICES
]
TOKENIZER = Tokenizer.learn(TEXTS * 3, 330)
RECIPE = replace(
    recipe.load("tiny"), d_model=24, d_ff=48, d_kv=12, encoder_layers=1, decoder_layers=1, vocabulary=TOKENIZER.size,
    longest=max(len(TOKENIZER.encode(text)) for text in TEXTS) + 8,
)  # fmt: skip
PROBLEMS = {
    f"banded {m}": problem_of(gallery.banded(m, m, [-3, 0, 1]), facts=None, threads=1) for m in (211, 307, 401)
}
PROMPTS = [
    Prompt(name, "cpp", encoder.encode(problem, RECIPE.embedding, RECIPE.tokens)) for name, problem in PROBLEMS.items()
]


def steps_of(text: str) -> int:
    return int(parse(text).params["STEPS"])


def judge(problem: str, texts) -> list[Outcome]:
    """The more steps a kernel takes, the faster it is said to be."""
    assert problem in PROBLEMS and len(set(texts)) == len(texts)
    return [Outcome(Level.TIMED, speedup=steps_of(each) / 2, best=4.0) for each in texts]


@pytest.fixture(scope="module")
def fitted() -> dict[str, np.ndarray]:
    """A model that writes the four texts, each about as often."""
    torch.manual_seed(20267)
    model = Generator(RECIPE)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    batch = tensors(encoder.batch([each.structure for each in PROMPTS]))
    ids = [[START["cpp"], *TOKENIZER.encode(text), END] for text in TEXTS]
    whole = torch.full((len(ids), max(map(len, ids))), PAD)
    for i, each in enumerate(ids):
        whole[i, : len(each)] = torch.tensor(each)
    for _ in range(150):
        logits = model(batch, whole[:, :-1], torch.tensor([0, 1, 2, 0]))
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), whole[:, 1:].flatten(), ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.weights()


def config(folder, **changes) -> RLConfig:
    tiny = {
        "updates": 6, "problems": 2, "group": 8, "minibatch": 8, "learning_rate": 1e-2, "warmup": 0, "save_every": 2,
        "stage_updates": 2, "seed": 20268,
    }  # fmt: skip
    return RLConfig.of(RECIPE, folder, **{**tiny, **changes})


def run(settings: RLConfig, weights, judge=judge, prompts=PROMPTS) -> dict[str, np.ndarray]:
    return train(settings, prompts, judge, RECIPE, TOKENIZER, weights)


def lines(folder, name: str) -> list[dict]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


@pytest.mark.parametrize("method", ["group", "ppo"])
def test_the_reward_rises(fitted, tmp_path, method):
    trained = run(config(tmp_path, method=method, updates=12), fitted)
    found = lines(tmp_path, "iterations.jsonl")
    rewards = [each["reward"] for each in found]
    print(rewards)
    assert np.mean(rewards[-3:]) > np.mean(rewards[:3]) + 0.1
    assert any((trained[name] != fitted[name]).any() for name in fitted)
