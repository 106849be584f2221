"""Which reward makes a generator of kernels better, and how much should speed weigh in it?

    python experiments/ablate_reward.py --matrices DIR --corpus FOLDER --out RUNS
    python experiments/ablate_reward.py --smoke

Ours (ladder), the paper's (sparserl; r_eff weighs the speed, 1.0 in the paper and 0.2 in its public code), failure
tiers with GFLOP/s (tiered, arXiv 2602.12049), and correctness alone, which is the paper's reward without its
efficiency. All go on from the same fine-tuned models. r_penalty is for shared memory over the limit, which a kernel for
the CPU cannot ask for: its two arms can differ from sparserl only by what is not reproducible, and show how much that
is.
"""

from __future__ import annotations

from ablation import run
from arms import Arm

SPARSERL = {"reward": "sparserl", "r_eff": 1.0, "r_penalty": 0.3}
VARIANTS = {
    "ladder": Arm(),
    "sparserl": Arm(reinforced=SPARSERL),
    "tiered": Arm(reinforced={"reward": "tiered"}),
    "correctness": Arm(reinforced={"reward": "correctness"}),
    **{f"sparserl, r_eff {r_eff}": Arm(reinforced={**SPARSERL, "r_eff": r_eff}) for r_eff in (0.2, 5.0)},
    **{f"sparserl, r_penalty {r}": Arm(reinforced={**SPARSERL, "r_penalty": r}) for r in (0.0, 1.0)},
}


def main(arguments: list[str] | None = None) -> None:
    print(run(__file__, __doc__, VARIANTS, arguments=arguments).read_text())


if __name__ == "__main__":
    main()
