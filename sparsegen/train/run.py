"""The folder of a training run: one checkpoint, replaced whole, and a log of JSON lines that agrees with it."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import torch

from sparsegen.errors import SparsegenValueError
from sparsegen.model.generator import Generator
from sparsegen.model.recipe import Recipe

SAVE_SECONDS = 60.0


class Run:
    """Saves at intervals and when the process is told to end, so that a loop loses a minute at most.

    A loop draws all its randomness from (seed, step): a run that was interrupted goes on as if it had not been.
    """

    def __init__(self, folder: str | os.PathLike, config: dict):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.stopping = False
        self.state: dict | None = None
        path = self.folder / "checkpoint.pt"
        if path.exists():
            self.state = torch.load(path, weights_only=True)
            if self.state["config"] != config:
                changed = sorted(key for key in config if self.state["config"].get(key) != config[key])
                raise SparsegenValueError(
                    f"{self.folder} holds a run with another {', '.join(changed) or 'configuration'}; "
                    "expected the same settings to resume it, or another folder"
                )
        self.config = config
        self.step = int(self.state["step"]) if self.state else 0
        self._trim()
        self._saved = time.monotonic()
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, self._stop)

    def _stop(self, number, frame) -> None:
        self.stopping = True

    def _trim(self) -> None:
        """Drop what was logged after the checkpoint: those steps are taken again."""
        log = self.folder / "log.jsonl"
        if log.exists():
            lines = [line for line in log.read_text().splitlines() if line.endswith("}")]
            kept = [line for line in lines if json.loads(line).get("step", 0) <= self.step]
            _replace(log, lambda path: path.write_text("".join(f"{line}\n" for line in kept)))

    def log(self, **record) -> None:
        with open(self.folder / "log.jsonl", "a") as file:
            file.write(json.dumps(record) + "\n")

    def save(self, step: int, **state) -> None:
        _replace(
            self.folder / "checkpoint.pt",
            lambda path: torch.save({"step": step, "config": self.config, **state}, path),
        )
        self.step, self._saved = step, time.monotonic()

    def due(self) -> bool:
        """Whether it is time to save, or to save and end."""
        return self.stopping or time.monotonic() - self._saved > SAVE_SECONDS


def kept(recipe: Recipe, file: Path, name: str) -> dict[str, np.ndarray]:
    """The weights of one network in a file of a run. Raises SparsegenValueError where there are none of the recipe's
    sizes."""
    if not file.exists():
        raise SparsegenValueError(f"no {file}; expected the folder of a run of the stage before, and that it has run")
    network = Generator(recipe)
    try:
        network.load_state_dict(torch.load(file, weights_only=True)[name])
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise SparsegenValueError(f"{file} is not of recipe {recipe.name}: {reason}; expected its own") from None
    return network.weights()


def _replace(path: Path, write) -> None:
    part = path.with_name(path.name + ".part")
    write(part)
    os.replace(part, path)
