"""How did reward, divergence and speed go in reinforcement learning?

    python experiments/curves.py --trained RUN

Reads RUN/iterations.jsonl and RUN/rewards.jsonl, and writes results/rl_curves.tsv, a row per iteration, and
results/rl_curves.svg. `measured` counts kernels that were timed for the iteration; a kernel that the corpus or an
earlier iteration timed on the same problem is rewarded by that time.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from sparsegen import files
from sparsegen.errors import SparsegenError
from sparsegen.record import environment

HERE = Path(__file__).resolve().parent
COLUMNS = ("iteration", "samples", "measured", "reward", "reward_best", "speedup", "kl", "entropy", "distinct")
CURVES = {"reward": "mean reward", "kl": "KL to the fine-tuned model", "speedup": "speed over the best library"}
SMOOTH = 9  # iterations of a running mean


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trained", type=Path, required=True, metavar="RUN")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    options = parser.parse_args(arguments)
    try:
        rows = files.lines(options.trained / "iterations.jsonl", "iteration", "measured", *CURVES)
        rewards = files.lines(options.trained / "rewards.jsonl", "problem", "sample", "speedup")
    except (SparsegenError, OSError) as error:
        parser.error(f"{error}; expected --trained with the folder of a run of reinforcement learning")
    if not rows:
        parser.error(f"{options.trained} has no iteration yet; expected a run that has done some")
    lines = [f"# {name}: {value}" for name, value in environment(20260).items()]
    timed = [each for each in rewards if each["speedup"] is not None]
    different = len({(each["problem"], each["sample"]) for each in timed})
    fresh = sum(row["measured"] for row in rows)
    lines.append(f"# rewards: {len(rewards)}, of them of a measured time {len(timed)}")
    lines.append(f"# different kernels of a problem among those: {different}, timed during this run: {fresh}")
    lines += ["\t".join(COLUMNS), *("\t".join(_cell(row.get(name)) for name in COLUMNS) for row in rows)]
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "rl_curves.tsv").write_text("\n".join(lines) + "\n")
    plot(rows, options.out / "rl_curves.svg")


def plot(rows: list[dict], path: Path) -> None:
    """Nothing without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        print("no plot: matplotlib is not installed; pip install 'sparsegen[experiments]'")
        return
    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(10, 2.8), layout="constrained")
    for axis, (name, said) in zip(axes, CURVES.items(), strict=True):
        values = np.array([row[name] if row[name] is not None else np.nan for row in rows], float)
        at = np.array([row["iteration"] for row in rows])
        axis.plot(at, values, linewidth=0.5, color="0.7")
        axis.plot(at, _smooth(values), linewidth=1.2, color="tab:blue")
        axis.set_xlabel("iteration")
        axis.set_title(said, fontsize=9)
    figure.savefig(path, metadata={"Date": None})


def _smooth(values: np.ndarray) -> np.ndarray:
    """Mean of the iterations around each that have a value."""
    reach = SMOOTH // 2
    near = [values[max(at - reach, 0) : at + reach + 1] for at in range(len(values))]
    return np.array([np.nan if np.isnan(each).all() else np.nanmean(each) for each in near])


def _cell(value) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
