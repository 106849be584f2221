"""Does it help to permit a few optimisation techniques at first, and more from stage to stage?

    python experiments/ablate_techniques.py --matrices DIR --corpus FOLDER --out RUNS
    python experiments/ablate_techniques.py --smoke

Staged quality-diversity (arXiv 2602.12049): the permitted set is part of what the model is told, differs from problem
to problem, and widens; a kernel outside it scores as an illegal one. Against it: everything permitted from the start.
What it is for is variety, so "distinct" counts here beside speed. The stages are ours, the published ones are unknown.
"""

from __future__ import annotations

from ablation import run
from arms import Arm

VARIANTS = {"all permitted": Arm(), "staged": Arm(staged=True)}


def main(arguments: list[str] | None = None) -> None:
    print(run(__file__, __doc__, VARIANTS, arguments=arguments).read_text())


if __name__ == "__main__":
    main()
