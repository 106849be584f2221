"""The supervised half of training: next-token cross-entropy, AdamW, warm-up and cosine decay."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence

import numpy as np
import torch
from tqdm import tqdm

from sparsegen import files
from sparsegen.model import encoder
from sparsegen.model.generator import Generator, tensors
from sparsegen.model.recipe import Fit, Recipe
from sparsegen.model.tokenizer import PAD
from sparsegen.train.run import Run

LOG_EVERY = 20
STEP = 16  # tokens that a batch's length is a multiple of

Draw = Callable[[np.random.Generator], tuple[Sequence[encoder.Structure], Sequence[Sequence[int]]]]


def initial(recipe: Recipe, seed: int) -> Generator:
    """A generator that has learned nothing, its weights drawn from the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Generator(recipe)


def cross_entropy(generator: Generator, structures, texts: Sequence[Sequence[int]]) -> torch.Tensor:
    """Mean loss of each token of `texts` given those before it; the first is the language token, END is the last of
    a text that is whole."""
    longest = -(-max(len(text) for text in texts) // STEP) * STEP + 1  # of few lengths: each has kernels of its own
    tokens = np.full((len(texts), longest), PAD, np.int64)
    for row, text in enumerate(texts):
        tokens[row, : len(text)] = text
    device = next(generator.parameters()).device
    whole = torch.from_numpy(tokens).to(device)
    batch = {name: each.to(device) for name, each in tensors(encoder.batch(structures)).items()}
    logits = generator(batch, whole[:, :-1])
    return torch.nn.functional.cross_entropy(
        logits.reshape(-1, logits.shape[-1]).float(), whole[:, 1:].reshape(-1), ignore_index=PAD
    )


def bfloat16(device: torch.device) -> bool:
    """Whether the device multiplies bfloat16 faster than float32: a GPU, or a processor with instructions for it."""
    return device.type == "cuda" or bool(torch.cpu.get_capabilities().get("avx512_bf16"))


def rate(step: int, steps: int, warmup: int, highest: float) -> float:
    """Of learning: linear to the highest over the warm-up, then half a cosine down to a tenth of it."""
    if step < warmup:
        return highest * (step + 1) / warmup
    done = (step - warmup) / max(steps - warmup, 1)
    return highest * (0.55 + 0.45 * math.cos(math.pi * done))


def fit(
    generator: Generator,
    run: Run,
    draw: Draw,
    settings: Fit,
    seed: int,
    watch: Callable[[Generator, int], dict] | None = None,
    watch_every: int = 0,
) -> bool:
    """Train `generator` on batches of draw(rng) for settings.steps; whether that was reached (else: told to stop).

    The batch and the dropout of a step depend on (seed, step) alone.
    """
    device = next(generator.parameters()).device
    decayed = [each for each in generator.parameters() if each.dim() > 1]
    plain = [each for each in generator.parameters() if each.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": settings.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=settings.learning_rate, betas=(0.9, 0.98))
    if run.state is not None:
        generator.load_state_dict(run.state["generator"])
        optimizer.load_state_dict(run.state["optimizer"])
    generator.train()
    steps, half = settings.steps, bfloat16(device)
    losses: list[float] = []
    progress = tqdm(total=steps, initial=run.step, file=sys.stderr, disable=not sys.stderr.isatty())
    with files.told(run.stop):
        for step in range(run.step, steps):
            torch.manual_seed(seed * 1_000_003 + step)
            structures, texts = draw(np.random.default_rng([seed, step]))
            for group in optimizer.param_groups:
                group["lr"] = rate(step, steps, settings.warmup, settings.learning_rate)
            with torch.autocast(device.type, torch.bfloat16, enabled=half):
                loss = cross_entropy(generator, structures, texts)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(generator.parameters(), settings.clip_norm)
            optimizer.step()
            losses.append(float(loss.detach()))
            done = step + 1
            progress.update()
            if done % LOG_EVERY == 0 or done == steps:
                progress.set_postfix(loss=f"{np.mean(losses):.3f}")
                run.log(step=done, loss=float(np.mean(losses)), rate=optimizer.param_groups[0]["lr"])
                losses = []
            if watch is not None and watch_every and (done % watch_every == 0 or done == steps):
                generator.eval()
                run.log(step=done, **watch(generator, done))
                generator.train()
            if run.due() or done == steps:
                run.save(done, generator=generator.state_dict(), optimizer=optimizer.state_dict())
            if run.stopping:
                break
    generator.eval()
    return run.step == steps
