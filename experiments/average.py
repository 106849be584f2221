"""How far from the fine-tuned weights to the reinforced ones should the checkpoint lie that ships?

    python experiments/average.py --matrices DIR --corpus FOLDER --pretrained RUN --tuned RUN --trained RUN

Scored on the C++ problems that training is watched by (families of the corpus that are not learned from; no held-out
one is looked at): the greedy text, and SAMPLES of each problem at temperature 1, nothing masked. Known: texts that are
kernels measured to be right for their problem. Speed: geometric mean over that of the fastest kernel known, the best
library serving where a text is no known one. Results: results/average.md.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from sparsegen import candidate
from sparsegen.errors import SparsegenError
from sparsegen.model import recipe
from sparsegen.model.decoder import Decoder
from sparsegen.model.sample import sample
from sparsegen.model.tokenizer import Tokenizer
from sparsegen.record import environment
from sparsegen.train import rl, sft
from sparsegen.train.examples import Example
from sparsegen.train.publish import between

HERE = Path(__file__).resolve().parent
SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0)
SAMPLES = 3
SEED = 20263
TOGETHER = 32  # problems decoded at once
HEADS = ("share", "greedy: known %", "speed", "formats", "sampled: known %", "speed", "formats")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for option in ("corpus", "pretrained", "tuned", "trained"):
        parser.add_argument(f"--{option}", type=Path, required=True, metavar="PATH")
    parser.add_argument("--matrices", type=Path, metavar="DIR")
    parser.add_argument("--recipe", default="small")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    options = parser.parse_args()
    try:
        sizes = recipe.load(options.recipe)
        tokens = options.pretrained / "tokenizer.json"
        learned, folder = Tokenizer.load(tokens), options.matrices and str(options.matrices)
        asked = sft.problems(sft.SftConfig(sizes, str(options.corpus), folder, None, str(tokens), ""))
        watched = [each for each in asked if each.validation and each.language == "cpp"]
        tuned, reinforced = sft.weights(sizes, options.tuned), rl.weights(sizes, options.trained)
    except SparsegenError as error:
        parser.error(str(error))
    rows = [HEADS, ("---",) * len(HEADS)]
    for share in SHARES:
        decoder = Decoder(sizes, between(tuned, reinforced, share))
        cells = [*score(decoder, learned, watched, greedy=True), *score(decoder, learned, watched, greedy=False)]
        rows.append((f"{share:g}", *cells))
        print(*rows[-1], sep="\t", flush=True)
    facts = {**environment(SEED), "problems": len(watched), "samples": SAMPLES}
    said = ["# Between fine-tuning and reinforcement learning", "\n".join(f"- {key}: {facts[key]}" for key in facts)]
    said.append("\n".join("| " + " | ".join(row) + " |" for row in rows))
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "average.md").write_text("\n\n".join(said) + "\n")


def score(decoder: Decoder, learned: Tokenizer, watched: list[Example], greedy: bool) -> tuple[str, str, str]:
    """Known texts in per cent, geometric mean of speed, and formats among the known ones."""
    ratios: list[float] = []
    formats: list[str] = []
    for first in range(0, len(watched), TOGETHER):
        part = watched[first : first + TOGETHER]
        groups = sample(
            decoder, learned, [each.structures[0] for each in part], [each.language for each in part],
            [1 if greedy else SAMPLES] * len(part), temperature=1.0, top_k=1 if greedy else None, seed=SEED,
        )  # fmt: skip
        for example, group in zip(part, groups, strict=True):
            speeds = {each.key: each.speedup for each in example.kernels}
            for text in group:
                try:
                    kernel = candidate.parse(text.text)
                except SparsegenError:
                    kernel = None
                speed = speeds.get(kernel.key) if kernel else None
                ratios.append((speed or 1.0) / example.best)
                formats += [kernel.format] if kernel and speed else []
    known = f"{100 * len(formats) / len(ratios):.1f}"
    return known, f"{np.exp(np.mean(np.log(ratios))):.3f}", str(len(set(formats)))


if __name__ == "__main__":
    main()
