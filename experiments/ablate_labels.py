"""Which of the right kernels should be the answer in fine-tuning?

    python experiments/ablate_labels.py --matrices DIR --corpus FOLDER --out RUNS
    python experiments/ablate_labels.py --smoke

Any of them, as in SparseRL; the fastest (Nichols et al., arXiv 2404.18864); or one drawn in proportion to a power of
its speed (softmax). Scored after fine-tuning, where the label is all there is, and after reinforcement learning, which
may make up for it.
"""

from __future__ import annotations

from ablation import run
from arms import Arm

VARIANTS = {
    **{f"{label}, SFT": Arm(("pretrain", "sft"), label=label) for label in ("softmax", "fastest", "any")},
    **{f"{label}, SFT + RL": Arm(label=label) for label in ("softmax", "fastest", "any")},
}


def main(arguments: list[str] | None = None) -> None:
    print(run(__file__, __doc__, VARIANTS, arguments=arguments).read_text())


if __name__ == "__main__":
    main()
