"""The folder of a training run: one checkpoint, replaced whole, and a log of JSON lines that agrees with it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import numpy as np
import torch

from sparsegen import files
from sparsegen.errors import SparsegenValueError
from sparsegen.model.generator import Generator
from sparsegen.model.recipe import Recipe

SAVE_SECONDS = 60.0
LOCK = "lock"  # in the folder of a run: held by the process that is at work in it
PLACES = ("corpus", "matrices", "pretrained", "tokenizer")  # settings that name a file or a folder


class Run:
    """Saves at intervals and when the process is told to end, so that a loop loses a minute at most.

    A loop draws all its randomness from (seed, step): a run that was interrupted goes on as if it had not been. The
    settings are in the checkpoint, and there is one from the beginning. Raises SparsegenValueError in a folder of a run
    with others, where a file is damaged, and where another process is at work.
    """

    def __init__(self, folder: str | os.PathLike, config: dict):
        self.folder = Path(folder)
        files.alone(self.folder / LOCK)
        self.stopping = False
        self.state: dict | None = None  # of the loop, where it has saved any
        self.step = 0
        self.config = settings(config)
        path = self.folder / "checkpoint.pt"
        if path.exists():
            state = load(path, "step", "config")
            before = settings(state["config"])
            if before != self.config:
                changed = sorted(key for key in self.config if before.get(key) != self.config[key])
                raise SparsegenValueError(
                    f"{self.folder} holds a run with another {', '.join(changed) or 'configuration'}; "
                    "expected the same settings to resume it, or another folder"
                )
            self.step = int(state["step"])
            self.state = state if self.step else None
        elif (self.folder / "state.pt").exists():
            raise SparsegenValueError(f"{self.folder} holds a run of reinforcement learning; expected another folder")
        else:
            self.save(0)
        self._trim()
        self._saved = time.monotonic()

    def stop(self, number: int = 0, frame: object = None) -> None:
        """Have the loop save and end: what `files.told` calls while it runs."""
        self.stopping = True

    def _trim(self) -> None:
        """Drop what was logged after the checkpoint: those steps are taken again."""
        log = self.folder / "log.jsonl"
        if log.exists():
            kept = [json.dumps(each) + "\n" for each in files.lines(log) if each.get("step", 0) <= self.step]
            files.whole(log, lambda path: path.write_text("".join(kept)))

    def log(self, **record) -> None:
        with open(self.folder / "log.jsonl", "a") as file:
            file.write(json.dumps(record) + "\n")

    def save(self, step: int, **state) -> None:
        made = {"step": step, "config": self.config, **state}
        files.whole(self.folder / "checkpoint.pt", lambda path: torch.save(made, path))
        self.step, self._saved = step, time.monotonic()

    def due(self) -> bool:
        """Whether it is time to save, or to save and end."""
        return self.stopping or time.monotonic() - self._saved > SAVE_SECONDS


def settings(config: dict) -> dict:
    """What a run is resumed with: places however they are spelled, and the run's own folder wherever it is."""
    found = {key: value for key, value in config.items() if key != "out"}
    found |= {key: os.path.realpath(found[key]) for key in PLACES if found.get(key)}
    if "folders" in found:
        found["folders"] = [os.path.realpath(each) for each in found["folders"]]
    return found


def load(file: Path, *needed: str) -> dict:
    """What torch.save left in a file of a run, which has all that is needed. Raises SparsegenValueError, OSError."""
    try:
        found = torch.load(file, weights_only=True)
    except Exception as error:  # whatever bytes that are damaged, cut short, or made up, lead to
        if isinstance(error, OSError) and error.filename:  # not read at all
            raise
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise SparsegenValueError(f"{file} is damaged: {reason}; train again, in another folder") from None
    if not isinstance(found, dict) or (missing := [name for name in needed if name not in found]):
        lacks = f"lacks {', '.join(missing)}" if isinstance(found, dict) else "is none"
        raise SparsegenValueError(f"{file} {lacks}; expected the checkpoint of a run that has begun")
    return found


def kept(recipe: Recipe, file: Path, name: str) -> dict[str, np.ndarray]:
    """The weights of one network in a file of a run. Raises SparsegenValueError where there are none of the recipe's
    sizes."""
    if not file.exists():
        raise SparsegenValueError(f"no {file}; expected the folder of a run of the stage before, and that it has run")
    state = load(file, name)[name]
    network = Generator(recipe)
    try:
        network.load_state_dict(state)
    except (RuntimeError, TypeError) as error:
        reason = str(error).splitlines()[-1].strip()
        raise SparsegenValueError(f"{file} is not of recipe {recipe.name}: {reason}; expected its own") from None
    return network.weights()
