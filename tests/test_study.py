"""The held-out study: what is scored was measured apart from what was chosen by."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from sparsegen.model import recipe

FOLDER = Path(__file__).resolve().parent.parent / "experiments"
torch = pytest.importorskip("torch")


@pytest.fixture(scope="module", autouse=True)
def experiments():
    sys.path.insert(0, str(FOLDER))
    yield
    sys.path.remove(str(FOLDER))


def test_the_second_measurement_speaks_for_the_second(tmp_path):
    """A text with the object code of a template instance is worth what that one was the second time."""
    import ablation
    import study

    ablation.pretend(tmp_path)
    found = study.problems(tmp_path)
    assert len(found) == 2
    made = study.Study(SimpleNamespace(recipe=recipe.load("tiny")), found, tmp_path, None)
    for each in found:
        name = f"{each.line['key']} cpp"
        for kernel in each.order:
            first, second = (kept.known(name, kernel)["speedup"] for kept in (made.first, made.second))
            assert (first, second) == (each.chosen[kernel], each.scored[kernel])
            assert first != second
