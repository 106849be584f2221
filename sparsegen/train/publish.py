"""What ships: the weights of a run that came to its end, with its tokenizer and a card.

Reinforcement learning makes nearly every text a right kernel, and forgets kernels that are seldom the best. Weights on
the line from the fine-tuned ones to its own keep most of both (Wortsman et al., "Robust fine-tuning of zero-shot
models", 2022); experiments/average.py measures where.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sparsegen import files, paths
from sparsegen.errors import SparsegenValueError
from sparsegen.model import checkpoint, grammar
from sparsegen.model.recipe import Recipe
from sparsegen.model.tokenizer import Tokenizer
from sparsegen.train import rl, sft
from sparsegen.train.run import load


@dataclass(frozen=True)
class Trained:
    """What the folder of a run says of it. None: it does not say."""

    stage: str
    done: int
    steps: int  # or updates, at its end
    recipe: Mapping[str, Any] | None
    tokenizer: str | None  # digest


def publish(
    recipe: Recipe, run: Path, tokenizer: Path, card: Path, *,
    unfinished: bool = False, tuned: Path | None = None, share: float = 1.0,
) -> Path:  # fmt: skip
    """Write models/<name>-<hash>/ from a run of stage 2 or 3, name it in models/default, and return it.

    unfinished: take a run that is not at its end, and say so in the card. tuned, share: the run of stage 2 that a run
    of stage 3 began from, and how far to go from its weights; the card says it. Raises SparsegenValueError when run,
    recipe, tokenizer and card do not belong together or to this grammar, OSError for a file that is not there.
    """
    stages = ("sft", "rl") if tuned is None else ("rl",)
    found = ended(recipe, run, *stages, unfinished=unfinished)
    sizes = {name: value for name, value in asdict(recipe).items() if name != "name" and not isinstance(value, dict)}
    if other := [name for name, value in sizes.items() if found.recipe and found.recipe.get(name) != value]:
        raise SparsegenValueError(f"{run} is of a recipe with another {', '.join(other)}; expected --recipe to name it")
    weights = (rl if found.stage == "rl" else sft).weights(recipe, run)
    if (tuned is None) != (share == 1.0):
        raise SparsegenValueError(f"share {share:g} and tuned {tuned}; expected a share below 1 and the run of stage 2")
    if tuned is not None:
        ended(recipe, tuned, "sft")
        weights = between(sft.weights(recipe, tuned), weights, share)
    content = paths.read(card, checkpoint.MOST_CARD)
    try:
        said = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise SparsegenValueError(f"{card} is not JSON: {error}") from None
    learned = Tokenizer.load(tokenizer)
    if found.tokenizer not in (None, learned.digest):
        raise SparsegenValueError(f"{run} was trained with another tokenizer than {tokenizer}; expected that one")
    if found.done < found.steps and isinstance(said, dict):
        said["unfinished"] = f"{found.done} of {found.steps}"
    if tuned is not None and isinstance(said, dict):
        said["share"] = share
    folder = paths.data("models")
    made = checkpoint.save(folder, recipe.name, recipe, learned, weights, said, grammar.VERSION)
    files.whole(folder / "default", lambda part: part.write_text(made.name + "\n"))
    return made


def between(
    tuned: Mapping[str, np.ndarray], reinforced: Mapping[str, np.ndarray], share: float
) -> dict[str, np.ndarray]:
    """Weights a share, 0 to 1, of the way from the first to the second. Raises SparsegenValueError."""
    if not 0 <= share <= 1:
        raise SparsegenValueError(f"share is {share:g}; expected 0 to 1")
    return {name: (1 - share) * each + share * reinforced[name] for name, each in tuned.items()}


def ended(recipe: Recipe, run: Path, *stages: str, unfinished: bool = False) -> Trained:
    """What a run says of itself. Raises SparsegenValueError when it is none of these stages, or not at its end."""
    found = _trained(recipe, run)
    if found.stage not in stages:
        raise SparsegenValueError(f"{run} is a run of the stage {found.stage}; expected one of {' or '.join(stages)}")
    if found.done < found.steps and not unfinished:
        reached = f"{found.done} of {found.steps} of the stage {found.stage}"
        raise SparsegenValueError(f"{run} has come to {reached}; expected it to be run to its end")
    return found


def _trained(recipe: Recipe, run: Path) -> Trained:
    file = next((run / name for name in ("state.pt", "checkpoint.pt") if (run / name).exists()), run / "checkpoint.pt")
    if not file.exists():
        raise SparsegenValueError(f"no {file}; expected the folder of a run of the stage before, and that it has run")
    if file.name == "state.pt":
        state = load(file, "iteration", "actor")
        steps = state.get("updates", recipe.rl.updates)
        return Trained("rl", state["iteration"], steps, state.get("recipe"), state.get("tokenizer"))
    state = load(file, "step", "config")
    config = state["config"]
    path = Path(config.get("tokenizer", ""))  # of a run that was moved, it may not be there any more
    digest = Tokenizer.load(path).digest if path.is_file() else None
    return Trained(config["stage"], state["step"], config["recipe"][config["stage"]]["steps"], config["recipe"], digest)
