"""How should a model be shown the nonzeros of a matrix?

    python experiments/ablate_embedding.py --matrices DIR --corpus FOLDER --out RUNS
    python experiments/ablate_embedding.py --smoke

Raw coordinates, coordinates scaled to [0, 1], the paper's sine and cosine of absolute coordinates, our windows of
relative and absolute ones, or none at all. Every arm has the condition and statistics tokens besides, which the paper
has not: "none" says what is left for the nonzeros to add. The paper finds sinusoidal > max-min > raw.
"""

from __future__ import annotations

from ablation import run
from arms import Arm

VARIANTS = {name: Arm(embedding=name) for name in ("windows", "sinusoidal", "max_min", "raw", "none")}

PAPER = {"sinusoidal": "48.75", "max_min": "43.25", "raw": "40.75"}  # pass@1000 %


def main(arguments: list[str] | None = None) -> None:
    print(run(__file__, __doc__, VARIANTS, PAPER, arguments=arguments).read_text())


if __name__ == "__main__":
    main()
