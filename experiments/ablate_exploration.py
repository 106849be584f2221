"""How widely should kernels be sampled while they are reinforced?

    python experiments/ablate_exploration.py --matrices DIR --corpus FOLDER --out RUNS
    python experiments/ablate_exploration.py --smoke

Temperature, and how many of the most likely tokens are drawn from (top-k). The scored texts are drawn at temperature 1
from all tokens whatever the arm, so that the learned policy is compared and not the decoding. The paper sweeps
both; the values here are ours.
"""

from __future__ import annotations

from ablation import run
from arms import Arm

EVERY = 1 << 16  # more than the vocabulary
VARIANTS = {
    "T 1.0, top 50": Arm(),
    "T 0.6, top 50": Arm(reinforced={"temperature": 0.6}),
    "T 1.4, top 50": Arm(reinforced={"temperature": 1.4}),
    "T 1.0, top 5": Arm(reinforced={"top_k": 5}),
    "T 1.0, all": Arm(reinforced={"top_k": EVERY}),
}


def main(arguments: list[str] | None = None) -> None:
    print(run(__file__, __doc__, VARIANTS, arguments=arguments).read_text())


if __name__ == "__main__":
    main()
