"""Does a critic pay: PPO, or advantages relative to the other samples of a group?

    python experiments/ablate_method.py --matrices DIR --corpus FOLDER --out RUNS
    python experiments/ablate_method.py --smoke

PPO has an actor and a critic, both begun from the fine-tuned model, and generalised advantages; a group has a
leave-one-out baseline and one scale for the batch. Both see as many samples; the critic is a second network to train.
The paper has PPO, and says that GRPO, which has another baseline and scale, came out about 0.7 % worse.
"""

from __future__ import annotations

from ablation import run
from arms import Arm

VARIANTS = {"group": Arm(), "ppo": Arm(reinforced={"method": "ppo"})}


def main(arguments: list[str] | None = None) -> None:
    print(run(__file__, __doc__, VARIANTS, arguments=arguments).read_text())


if __name__ == "__main__":
    main()
