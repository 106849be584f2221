"""What the model is compared with at the same budgets: lists of template instances for a problem, best guess first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sparsegen.errors import SparsegenError
from sparsegen.train import examples
from sparsegen.train.examples import Example

DRAWS = 64  # of a random order
NEAREST = 1e-3  # what an instance that a problem has not counts as, of the fastest


def random_order(order: Sequence[str], rng: np.random.Generator) -> list[str]:
    return [order[place] for place in rng.permutation(len(order))]


def fixed_list(training: Sequence[Example], length: int, baseline: float = 1.0) -> list[str]:
    """The instances that do best together on the problems learned from: each the one that adds most to the geometric
    mean speed of the fastest of the list, where a list of which nothing fits is as fast as the baseline."""
    keys = sorted({each.key for example in training for each in example.kernels})
    place = {key: number for number, key in enumerate(keys)}
    speeds = np.full((len(training), len(keys)), NEAREST)
    for row, example in enumerate(training):
        for each in example.kernels:
            speeds[row, place[each.key]] = each.speedup
    chosen: list[int] = []
    reached = np.full(len(training), NEAREST)
    for _ in range(min(length, len(keys))):
        gains = np.log(np.maximum(np.maximum(reached[:, None], speeds), NEAREST))
        gains = np.where(gains == np.log(NEAREST), np.log(baseline), gains).mean(axis=0)
        gains[chosen] = -np.inf
        chosen.append(int(gains.argmax()))
        reached = np.maximum(reached, speeds[:, chosen[-1]])
    return [keys[each] for each in chosen]


class Selector:
    """Gradient-boosted trees on the statistics that the model sees: speed of an instance over that of the fastest."""

    def __init__(self, training: Sequence[Example], seed: int = 20260):
        try:
            from sklearn.ensemble import HistGradientBoostingRegressor
        except ImportError:
            raise SparsegenError("boosted trees need scikit-learn; pip install 'sparsegen[experiments]'") from None
        self.kernels = {each.key: each for example in training for each in example.kernels}
        names = sorted({self._name(key) for key in self.kernels})
        self.names = {name: number for number, name in enumerate(names)}
        self.params = sorted({name for key in self.kernels for name in self._instance(key).params if name != "values"})
        rows, targets = [], []
        for example in training:
            for each in example.kernels:
                rows.append(self._row(example, each.key))
                targets.append(np.log(each.speedup / example.best))
        if not rows:
            return  # nothing is known, and nothing is guessed
        self.trees = HistGradientBoostingRegressor(max_iter=400, learning_rate=0.05, random_state=seed)
        self.trees.fit(np.array(rows), np.maximum(targets, np.log(0.2)))

    def order(self, example: Example, feasible: Sequence[str]) -> list[str]:
        """The feasible instances, fastest by prediction first; those never learned from last."""
        known = [each for each in feasible if each in self.kernels]
        if not known:
            return list(feasible)
        guesses = self.trees.predict(np.array([self._row(example, each) for each in known]))
        ranked = [known[place] for place in np.argsort(-guesses, kind="stable")]
        return ranked + [each for each in feasible if each not in self.kernels]

    def _row(self, example: Example, key: str) -> np.ndarray:
        instance = self._instance(key)
        own = [float(self.names[self._name(key)])]
        own += [float(instance.params.get(name, -1)) for name in self.params]  # type: ignore[arg-type]
        return np.concatenate([example.structures[0].statistics.ravel(), own])

    @staticmethod
    def _instance(key: str):
        return _by_key()[key]

    def _name(self, key: str) -> str:
        return self._instance(key).name


def _by_key() -> dict:
    if not _known:
        _known.update({each.key: each for each in examples.instances("cpp").values()})
    return _known


_known: dict = {}
