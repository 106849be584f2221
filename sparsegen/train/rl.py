"""Stage 3, reinforcement learning of the generator: sample kernels, have them judged, update the policy.

The policy that is trained is the plain one: temperature 1, nothing masked, no top-k. Samples come from it sharpened by
temperature, top-k and perhaps a grammar; the ratio of PPO is taken between the plain policy now and at the start of the
iteration, both by torch and without dropout, so that it begins at 1 exactly. That treats what top-k and temperature
leave out as if it were never sampled, which is what they are for.

All randomness is drawn from (seed, iteration), and a checkpoint holds the state at the start of an iteration: a run
that is stopped at any moment and started again in the same folder does what it would have done, as far as the judge
remembers what it measured.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from sparsegen import candidate, files
from sparsegen.errors import SparsegenError, SparsegenValueError
from sparsegen.model import encoder, generator
from sparsegen.model.decoder import Decoder
from sparsegen.model.encoder import Structure
from sparsegen.model.generator import Generator
from sparsegen.model.grammar import Grammar
from sparsegen.model.recipe import Recipe
from sparsegen.model.sample import Sample, sample
from sparsegen.model.tokenizer import Tokenizer
from sparsegen.train import log, policy, techniques
from sparsegen.train.examples import Example
from sparsegen.train.fit import rate
from sparsegen.train.rewards import REWARDS, Outcome
from sparsegen.train.run import LOCK, kept, load
from sparsegen.train.texts import Texts, logits, texts_of, values
from sparsegen.verdict import Level

Judge = Callable[[str, Sequence[str]], list[Outcome]]  # (id of a problem, distinct texts) -> what is known of each
METHODS = ("group", "ppo")
CUDA_EVERY = 6
TOGETHER = 8  # samples of about one length that a network reads at once: little of it is padding


@dataclass(frozen=True)
class RLConfig:
    """The defaults of a recipe's [rl] table come in by `of`."""

    folder: str  # of the logs and the checkpoint; a run started in it again goes on
    method: str = "group"  # "group": leave-one-out baseline, batch-wide scale; "ppo": a critic, itself begun from SFT
    reward: str = "ladder"  # a name of rewards.REWARDS
    r_eff: float = 1.0  # of the reward "sparserl"
    r_penalty: float = 0.3  # of the reward "sparserl"
    updates: int = 300  # iterations
    problems: int = 16  # of one iteration
    group: int = 8  # samples of each
    epochs: int = 2  # passes over the samples of an iteration
    minibatch: int = 32  # samples of one gradient step
    learning_rate: float = 5e-5  # the highest
    warmup: int = 10  # iterations in which it rises; then it falls to a tenth
    weight_decay: float = 0.0  # AdamW's
    clip_norm: float = 1.0  # of the gradient
    clip_ratio: float = 0.2  # PPO's, of new to old probability
    kl: float = 0.05  # weight of the divergence from the SFT model
    value_weight: float = 0.5  # of the critic's loss
    gae: float = 0.95  # lambda
    temperature: float = 1.0  # of sampling
    top_k: int = 50  # of sampling
    stage_updates: int = 0  # iterations of each stage in which not all techniques are permitted; 0: all are, always
    keep: float = 0.9  # chance of each technique of a stage to be permitted to a problem
    watch_every: int = 20  # iterations
    save_every: int = 1  # iterations between checkpoints; an interruption writes one as well
    seed: int = 20260

    @classmethod
    def of(cls, recipe: Recipe, folder: str | os.PathLike, **changes) -> RLConfig:
        """The recipe's numbers, with changes by name."""
        return cls(**{"folder": str(folder), **dataclasses.asdict(recipe.rl), **changes})


@dataclass(frozen=True)
class Prompt:
    """What the model is asked: a problem by its id, as the encoder gives it with everything permitted, and a language.

    Its samples are compared with each other, so they are all judged in one way: measured, or compiled only.
    """

    problem: str
    language: str
    structure: Structure


def prompts(found: Sequence[Example]) -> list[Prompt]:
    """The problems of a corpus, those left out to watch the training by apart; in CUDA, which nothing here can time,
    one of CUDA_EVERY only."""
    kept = sorted((each for each in found if not each.validation), key=lambda each: each.task.key)
    chosen = [each for each in kept if each.language == "cpp"]
    chosen += [each for each in kept if each.language == "cuda"][::CUDA_EVERY]
    return [Prompt(f"{each.task.key} {each.language}", each.language, each.structures[0]) for each in chosen]


def weights(recipe: Recipe, run: Path) -> dict[str, np.ndarray]:
    """The policy that a run has learned. Raises SparsegenValueError."""
    return kept(recipe, run / "state.pt", "actor")


def train(
    config: RLConfig,
    prompts: Sequence[Prompt],
    judge: Judge,
    recipe: Recipe,
    tokenizer: Tokenizer,
    weights: Mapping[str, np.ndarray],
    grammar: Callable[[str], Grammar] | None = None,
    watch: Callable[[Generator, int], dict] | None = None,
) -> dict[str, np.ndarray]:
    """Train from `weights`, those of SFT, and return the trained ones; they are in config.folder's state.pt as well.

    judge gets the id of a problem and distinct texts that parse and use what was permitted. grammar, if given, makes
    the sampler's grammar of a problem's id. watch, if given, is asked every config.watch_every iterations what to log
    of the policy. config.folder gets iterations.jsonl, a line per iteration, and rewards.jsonl, a line per sample.
    Raises SparsegenValueError for a config that cannot be run, in a folder where another run was started or another
    process is at work, and where a file in it is damaged.
    """
    _check(config, prompts)
    run = _Run(config, prompts, judge, recipe, tokenizer, weights, grammar)
    run.resume()
    quiet = not sys.stderr.isatty()
    with tqdm(total=config.updates, initial=run.iteration, file=sys.stderr, disable=quiet, unit="update") as bar:
        while run.iteration < config.updates:
            start = run.state()
            try:
                line, samples = run.update()
                done = run.iteration + 1
                if watch is not None and (done % config.watch_every == 0 or done == config.updates):
                    line |= watch(run.actor, done)
            except BaseException:  # an interruption first of all: what was done of this iteration is done again
                run.write(start)
                raise
            run.iteration = done
            run.record(line, samples)
            if run.iteration % config.save_every == 0 or run.iteration == config.updates:
                run.write(run.state())
            bar.set_postfix(reward=f"{line['reward']:.3f}", kl=f"{line['kl']:.4f}")
            bar.update()
    return run.actor.weights()


def judged(judge: Judge, prompt: Prompt, group: Sequence[Sample], allowed: frozenset[str]) -> list[Outcome]:
    """What is known of each sample of a group. Only what may be run, and each text once, is handed to the judge."""
    known: dict[str, Outcome] = {}
    asked: list[str] = []
    for text in dict.fromkeys(each.text for each in group if each.finished):
        try:
            kernel = candidate.parse(text, origin="model", language=prompt.language)
            permitted = not kernel.tune and techniques.permitted(kernel, allowed)
        except SparsegenError:
            known[text] = Outcome(Level.NONE, "header")
            continue
        if permitted:
            asked.append(text)
        else:
            known[text] = Outcome(Level.PARSED, permitted=False)
    known |= zip(asked, judge(prompt.problem, asked) if asked else [], strict=True)
    return [known[each.text] if each.finished else Outcome(Level.NONE, "unfinished") for each in group]


class _Run:
    def __init__(self, config, prompts, judge, recipe, tokenizer, weights, grammar):
        self.config, self.prompts, self.judge, self.grammar = config, prompts, judge, grammar
        self.recipe, self.tokenizer = recipe, tokenizer
        self.folder = Path(config.folder)
        self.iteration = 0
        self.actor, self.reference = _network(recipe, weights), _network(recipe, weights)
        self.critic = _network(recipe, weights) if config.method == "ppo" else None
        self.trained = [*self.actor.parameters(), *(self.critic.parameters() if self.critic else ())]
        self.optimizer = torch.optim.AdamW(self.trained, config.learning_rate, weight_decay=config.weight_decay)
        self.reward = REWARDS[config.reward]
        if config.reward == "sparserl":
            self.reward = partial(self.reward, r_eff=config.r_eff, r_penalty=config.r_penalty)
        self.identity = _identity(config, prompts, tokenizer, weights)

    # state

    def state(self) -> dict:
        """All that an iteration changes, copied."""
        critic = self.critic.state_dict() if self.critic else {}
        networks = {"actor": self.actor.state_dict(), "critic": critic, "optimizer": self.optimizer.state_dict()}
        of = {"updates": self.config.updates, "recipe": dataclasses.asdict(self.recipe)}  # for who publishes it
        of |= {"tokenizer": self.tokenizer.digest}
        return copy.deepcopy({"identity": self.identity, "iteration": self.iteration, **of, **networks})

    def write(self, state: dict) -> None:
        """state.pt, whole or not at all."""
        files.whole(self.folder / "state.pt", lambda part: torch.save(state, part))

    def resume(self) -> None:
        """Take over what config.folder holds, and cut the logs to it."""
        files.alone(self.folder / LOCK)
        file = self.folder / "state.pt"
        if file.exists():
            state = load(file, "identity", "iteration", "actor", "critic", "optimizer")
            if state["identity"] != self.identity:
                fix = "expected the same config, prompts and weights, or another folder"
                raise SparsegenValueError(f"{self.folder} holds another run; {fix}")
            self.iteration = state["iteration"]
            self.actor.load_state_dict(state["actor"])
            if self.critic:
                self.critic.load_state_dict(state["critic"])
            self.optimizer.load_state_dict(state["optimizer"])
        elif (self.folder / "checkpoint.pt").exists():
            raise SparsegenValueError(f"{self.folder} holds a run of an earlier stage; expected another folder")
        for name in ("iterations.jsonl", "rewards.jsonl"):
            log.cut(self.folder / name, self.iteration)

    def record(self, line: dict, samples: list[dict]) -> None:
        log.append(self.folder / "rewards.jsonl", samples)
        log.append(self.folder / "iterations.jsonl", [line])

    # one iteration

    def update(self) -> tuple[dict, list[dict]]:
        """Sample, judge, and step; the line of the iteration's log and those of its samples."""
        config, begun = self.config, time.perf_counter()
        rng = np.random.default_rng([config.seed, self.iteration])
        count = min(config.problems, len(self.prompts))
        chosen = [self.prompts[i] for i in rng.choice(len(self.prompts), count, replace=False)]
        stage = self.iteration // config.stage_updates if config.stage_updates else len(techniques.STAGES)
        allowed = [techniques.draw(stage, rng, config.keep) for _ in chosen]
        languages = [each.language for each in chosen]
        structures = [encoder.permit(each.structure, those) for each, those in zip(chosen, allowed, strict=True)]
        groups = sample(
            Decoder(self.recipe, self.actor.weights()), self.tokenizer, structures, languages, [config.group] * count,
            grammars=[self.grammar(each.problem) for each in chosen] if self.grammar else None,
            temperature=config.temperature, top_k=config.top_k, seed=int(rng.integers(1, 2**31)),
            longest=self.recipe.longest,
        )  # fmt: skip
        sampled = time.perf_counter()
        outcomes = [judged(self.judge, *each) for each in zip(chosen, groups, allowed, strict=True)]
        found = [[self.reward(each) for each in group] for group in outcomes]
        measured = time.perf_counter()
        learned = self.step(generator.tensors(encoder.batch(structures)), texts_of(groups, languages), found, rng)
        seconds = {"sample": sampled - begun, "judge": measured - sampled, "step": time.perf_counter() - measured}
        samples = [
            log.sample(self.iteration, prompt.problem, *each)
            for prompt, *three in zip(chosen, groups, outcomes, found, strict=True)
            for each in zip(*three, strict=True)
        ]
        line = log.iteration(groups, outcomes, found) | learned | {"seconds": seconds}
        return {"iteration": self.iteration, "stage": min(stage, len(techniques.STAGES) - 1), **line}, samples

    def step(self, batch: dict, written: Texts, rewards: list[list[float]], rng: np.random.Generator) -> dict:
        """Some epochs of gradient steps; their means, and the entropy before them."""
        config, lengths = self.config, written.mask.sum(1)
        pieces = lengths.argsort(stable=True).split(TOGETHER)
        with torch.no_grad():
            old, spread = self.over(pieces, written, lambda part: _told(logits(self.actor, batch, part), part))
            advantages, returns = self.advantages(batch, written, torch.tensor(rewards, dtype=torch.float32), pieces)
        for group in self.optimizer.param_groups:
            group["lr"] = rate(self.iteration, config.updates, config.warmup, config.learning_rate)
        totals: Counter[str] = Counter()
        for _ in range(config.epochs):
            for chosen in torch.from_numpy(rng.permutation(len(lengths))).split(config.minibatch):
                self.optimizer.zero_grad()
                count = lengths[chosen].sum().clamp_min(1)
                for some in chosen[lengths[chosen].argsort(stable=True)].split(TOGETHER):
                    part, share = written.of(some), lengths[some].sum() / count
                    now = logits(self.actor, batch, part)
                    with torch.no_grad():
                        first = logits(self.reference, batch, part)
                    new = policy.token_logprobs(now, part.targets)
                    before, gain, goal = (each[some, : new.shape[1]] for each in (old, advantages, returns))
                    loss = policy.clipped(new, before, gain, part.mask, config.clip_ratio)
                    kl = policy.divergence(now, first, part.mask)
                    value = torch.zeros(())
                    if self.critic:
                        value = policy.value_loss(values(self.critic, batch, part), goal, part.mask)
                    ((loss + config.kl * kl + config.value_weight * value) * share).backward()
                    outside = policy.clip_fraction(new.detach(), before, part.mask, config.clip_ratio)
                    found = {"loss": loss, "kl": kl, "clip_fraction": outside, "value_loss": value}
                    totals.update({name: (each * share).item() for name, each in found.items()})
                norm = torch.nn.utils.clip_grad_norm_(self.trained, config.clip_norm)
                self.optimizer.step()
                totals.update({"gradient": norm.item(), "steps": 1})
        steps = totals.pop("steps")
        means = {name: total / steps for name, total in totals.items()}
        return {"entropy": policy.masked_mean(spread, written.mask).item(), **means}

    def advantages(
        self, batch: dict, written: Texts, rewards: torch.Tensor, pieces: Iterable[torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Of each token (B, L), and the returns that the critic learns; zeros without a critic."""
        mask = written.mask
        critic = self.critic
        if critic is None:
            scaled = policy.batch_scaled(policy.leave_one_out(rewards)).reshape(-1, 1)
            return scaled.expand(mask.shape), torch.zeros(mask.shape)
        at_end = torch.zeros(mask.shape)
        last = (mask.sum(1) - 1).clamp_min(0)
        at_end[torch.arange(len(last)), last] = rewards.reshape(-1)
        expected, _ = self.over(pieces, written, lambda part: (values(critic, batch, part), None))
        found, returns = policy.gae(at_end, expected, mask, self.config.gae)
        centred = (found - policy.masked_mean(found, mask)) * mask
        return centred / policy.masked_mean(centred.square(), mask).sqrt().clamp_min(1e-4), returns

    @staticmethod
    def over(
        pieces: Iterable[torch.Tensor], written: Texts, of: Callable[[Texts], tuple[torch.Tensor, torch.Tensor | None]]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Two (B, L) of all samples, computed piece by piece; zeros for what `of` leaves out."""
        whole, more = torch.zeros(written.mask.shape), torch.zeros(written.mask.shape)
        for chosen in pieces:
            part = written.of(chosen)
            length = part.tokens.shape[1]
            first, second = of(part)
            whole[chosen, :length] = first
            if second is not None:
                more[chosen, :length] = second
        return whole, more


def _network(recipe: Recipe, weights: Mapping[str, np.ndarray]) -> Generator:
    """Without dropout: the policy that is updated is the one that wrote the samples."""
    with torch.random.fork_rng(devices=[]):
        network = Generator(recipe)
    network.load(weights)
    return network.eval()


def _told(found: torch.Tensor, part: Texts) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities of the targets (B, L), and the entropy before each, from logits."""
    return policy.token_logprobs(found, part.targets), policy.entropy(found)


def _check(config: RLConfig, prompts: Sequence[Prompt]) -> None:
    if config.method not in METHODS:
        raise SparsegenValueError(f"method is {config.method!r}; expected one of {', '.join(METHODS)}")
    if config.reward not in REWARDS:
        raise SparsegenValueError(f"reward is {config.reward!r}; expected one of {', '.join(REWARDS)}")
    if not prompts:
        raise SparsegenValueError("no prompts; expected at least one problem to write kernels for")
    for name in ("updates", "problems", "group", "epochs", "minibatch", "watch_every", "save_every"):
        least = 2 if name == "group" else 1
        if getattr(config, name) < least:
            raise SparsegenValueError(f"{name} is {getattr(config, name)}; expected at least {least}")


def _identity(config: RLConfig, prompts, tokenizer: Tokenizer, weights: Mapping[str, np.ndarray]) -> str:
    """Equal for runs that may go on from each other, in whatever folder they lie."""
    same = replace(config, folder="", watch_every=0, save_every=0)
    digest = hashlib.blake2b(repr((same, [(each.problem, each.language) for each in prompts])).encode(), digest_size=16)
    digest.update(tokenizer.digest.encode())
    for name in sorted(weights):
        digest.update(name.encode() + np.ascontiguousarray(weights[name]).tobytes())
    return digest.hexdigest()
