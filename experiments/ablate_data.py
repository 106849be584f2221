"""How much measured data does a generator of kernels need?

    python experiments/ablate_data.py --matrices DIR --corpus FOLDER --out RUNS
    python experiments/ablate_data.py --smoke

Fractions of the matrices of the corpus, drawn at random, for fine-tuning and reinforcement learning alike; pretraining
and the number of steps are the same. HPC-Coder-V2 (arXiv 2412.15178) finds a plateau.
"""

from __future__ import annotations

from ablation import run
from arms import Arm

VARIANTS = {f"{fraction:.0%} of the corpus": Arm(fraction=fraction) for fraction in (1.0, 0.5, 0.25, 0.1)}


def main(arguments: list[str] | None = None) -> None:
    print(run(__file__, __doc__, VARIANTS, arguments=arguments).read_text())


if __name__ == "__main__":
    main()
