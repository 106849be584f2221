"""Which stages of training does a generator of kernels need: pretraining, fine-tuning, reinforcement learning?

    python experiments/ablate_stages.py --matrices DIR --corpus FOLDER --out RUNS
    python experiments/ablate_stages.py --smoke

The paper's two by three grid (SparseRL, ICLR 2026): with pretraining or from scratch, then fine-tuning, reinforcement
learning or both. It finds each stage worth having, and fine-tuning worth more than reinforcement learning alone. An arm
with fewer stages takes fewer steps, as in the paper. Arms from scratch use the tokenizer of the pretraining text.
"""

from __future__ import annotations

from ablation import run
from arms import Arm

VARIANTS = {
    "pretrained, SFT + RL": Arm(("pretrain", "sft", "rl")),
    "pretrained, SFT": Arm(("pretrain", "sft")),
    "pretrained, RL": Arm(("pretrain", "rl")),
    "from scratch, SFT + RL": Arm(("sft", "rl")),
    "from scratch, SFT": Arm(("sft",)),
    "from scratch, RL": Arm(("rl",)),
}

PAPER = {  # pass@1000 %, compile %, GFLOP/s of SpMV on an A100; it has no RL alone from scratch
    "pretrained, SFT + RL": "49.25, 57.50, 116.20",
    "pretrained, SFT": "32.75, 41.25, 89.25",
    "pretrained, RL": "15.25, 22.50, 50.36",
    "from scratch, SFT + RL": "40.75, 53.50, 95.22",
    "from scratch, SFT": "12.00, 13.25, 30.83",
}


def main(arguments: list[str] | None = None) -> None:
    print(run(__file__, __doc__, VARIANTS, PAPER, arguments=arguments).read_text())


if __name__ == "__main__":
    main()
