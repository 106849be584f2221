"""What the ablations have in common: their command line, their table and their plot.

    python experiments/ablate_<factor>.py --matrices DIR --corpus FOLDER --out RUNS [--minutes 20] [--only VARIANT ...]
    python experiments/ablate_<factor>.py --smoke

FOLDER holds what `python -m sparsegen.train corpus` measured: to learn from, --held-out and --again. Every variant is
trained with SEEDS (arms.py) and scored (scores.py). Runs are kept in RUNS, for all factors together; a command that was
stopped goes on when it is given again. Results: results/ablate_<factor>.md, .svg, and .jsonl with a record per arm.
--smoke: a minute at most, with a model that learns nothing, on a few small matrices whose times are made up.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from arms import Arm, Bench, scaled
from scores import HeldOut

from sparsegen import metrics
from sparsegen.errors import SparsegenError
from sparsegen.model import recipe
from sparsegen.record import Records, environment
from sparsegen.train import corpus, examples
from sparsegen.train.corpus import Task
from sparsegen.train.measure import Measured, Rounds
from sparsegen.verdict import Level, Verdict

HERE = Path(__file__).resolve().parent
SEEDS = (20260, 20267, 20281)
MINUTES = 20.0  # that an arm of models/arm.toml takes on two cores, all stages
COLUMNS = {
    "parse": "parse %", "compile": "compile %", "pass_1": "right %", "pass_8": "pass@8 %", "speed": "speed, right ones",
    "fraction_1": "of optimum, 1", "fraction_4": "of optimum, 4", "median_4": "median speed, 4",
    "p10_4": "p10 speed, 4", "losses": "losses, 4", "gflops": "GFLOP/s", "distinct": "distinct of 16", "kl": "KL",
}  # fmt: skip
SHARES = ("parse", "compile", "pass_1", "pass_8")
LEGEND = """Cells are means over seeds (least to most). A text is a sample at temperature 1, nothing masked. right %: \
pass@1. speed: over the best library, of the texts that are right, geometric mean. of optimum: speed over that of the \
fastest template instance, of one text and of the fastest of four, the library serving where none is right. median, \
p10, losses: over problems, of the fastest of four; a loss is slower than the best library by over 3 % and the null \
pair. KL: from the fine-tuned model. over the first: ratio of "of optimum, 1", 95 % interval over matrices."""


def run(
    file: str, about: str, variants: Mapping[str, Arm], paper: Mapping[str, str] | None = None,
    arguments: list[str] | None = None,
) -> Path:  # fmt: skip
    """Train and score what is missing, write the results, return the table's path. paper: its figures, by variant."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("--matrices", type=Path, metavar="DIR")
    parser.add_argument("--corpus", type=Path, metavar="FOLDER")
    parser.add_argument("--out", type=Path, metavar="RUNS")
    parser.add_argument("--results", type=Path, help="by default experiments/results, of --smoke RUNS")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="of an arm on two cores: scales its steps")
    parser.add_argument("--seeds", type=int, default=len(SEEDS), choices=range(1, len(SEEDS) + 1), help="how many")
    parser.add_argument("--only", action="append", choices=list(variants), metavar="VARIANT", help="may be repeated")
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args(arguments)
    if not options.smoke and not (options.corpus and options.out and options.minutes > 0):
        parser.error("expected --corpus, --out and minutes over 0, or --smoke")
    try:
        return _run(Path(file).stem, about, variants, paper or {}, options)
    except SparsegenError as error:
        parser.error(str(error))


def _run(stem: str, about: str, variants: Mapping[str, Arm], paper: Mapping[str, str], options) -> Path:
    bench, held_out = _small(options) if options.smoke else _full(options)
    results = options.results or (bench.out if options.smoke else HERE / "results")
    records = Records(results / f"{stem}.jsonl")
    chosen = {name: arm for name, arm in variants.items() if not options.only or name in options.only}
    rows: dict[str, list[dict]] = {name: [] for name in chosen}
    for seed in SEEDS[: 1 if options.smoke else options.seeds]:  # all variants once, before any twice
        for name, arm in chosen.items():
            trained = bench.train(arm, seed)
            key = f"{name} {trained.name}"
            if key not in records.known:
                found = held_out.score(trained)
                records.append(
                    {
                        "key": key, "variant": name, "rewards": trained.rewards, "kl": trained.kl, **found,
                        "problems_scored": len(found["problems"]), "environment": environment(seed),
                    }
                )  # fmt: skip
            rows[name].append(records.known[key])
            write(results / stem, about, rows, paper, bench)
    return results / f"{stem}.md"


def _full(options) -> tuple[Bench, HeldOut]:
    sizes = scaled(recipe.load("arm"), options.minutes / MINUTES)
    bench = Bench(sizes, options.corpus, options.matrices, options.out)
    return bench, HeldOut(bench)


def _small(options) -> tuple[Bench, HeldOut]:
    out = options.out or Path(tempfile.mkdtemp(prefix="ablation-"))
    sizes = scaled(recipe.load("tiny"), 0.1)
    sizes = replace(sizes, rl=replace(sizes.rl, group=2))
    pretend(out / "corpus")
    bench = Bench(sizes, out / "corpus", None, out, texts=40)
    return bench, HeldOut(bench, count=2, samples=8)


def pretend(folder: Path) -> None:
    """A corpus for --smoke: the CSR instances on a few small matrices, with times that are made up."""
    learned = ("stencil3d:3", "powerlaw:4", "block:5", "runs:1", "clustered:1")
    held_out = ("powerlaw_mild:3", "arrow:2")
    rng = np.random.default_rng(20260)
    csr = [each for (op, _), each in examples.instances("cpp").items() if op == "spmv" and each.format == "csr"]
    for name, matrices in (("measured", learned), ("held_out", held_out), ("held_out_again", held_out)):
        records = Records(folder / f"{name}.jsonl")
        for each in matrices:
            matrix = f"{corpus.SYNTHETIC}:{each}"
            task = Task(matrix, matrix.rpartition(":")[0], name != "measured", "spmv", 1, "float64")
            if task.key in records.known:
                continue
            speeds = rng.uniform(0.5, 2.0, len(csr)).tolist()
            kernels = [
                Measured(kernel, Verdict(Level.TIMED), "", 10 / speed, speed, True)
                for kernel, speed in zip(csr, speeds, strict=True)
                if kernel.encoding == "full"
            ]
            found = Rounds(kernels, {"scipy": 10.0}, "scipy", 0.02, 12, 0.0)
            records.append(corpus.record(task, corpus.matrix(task, None), found))


def write(stem: Path, about: str, rows: Mapping[str, list[dict]], paper: Mapping[str, str], bench: Bench) -> None:
    """The table and the plot of what there is by now."""
    there = {name: found for name, found in rows.items() if found}
    first = next(iter(there.values()))[0]
    facts = {**first["environment"], "seed": ", ".join(map(str, SEEDS[: max(map(len, there.values()))]))}
    sizes = bench.recipe
    steps = f"{sizes.pretrain.steps} steps of pretraining, {sizes.sft.steps} of fine-tuning, {sizes.rl.updates} updates"
    facts["arm"] = f"recipe {sizes.name}, {steps} of {sizes.rl.problems} x {sizes.rl.group} samples"
    facts["scored on"] = f"{first['problems_scored']} held-out problems"
    said = [f"# {about.strip()}", "\n".join(f"- {name}: {value}" for name, value in facts.items()), table(there, paper)]
    stem.with_suffix(".md").write_text("\n\n".join([*said, LEGEND]) + "\n")
    plot(there, stem.with_suffix(".svg"))


def table(rows: Mapping[str, list[dict]], paper: Mapping[str, str]) -> str:
    first = next(iter(rows))
    heads = ["variant", "seeds", *COLUMNS.values(), f"over {first}", *(["paper"] if paper else [])]
    lines = [heads, ["---"] * len(heads)]
    for name, found in rows.items():
        cells = [name, str(len(found)), *(_cell([each[column] for each in found], column) for column in COLUMNS)]
        cells.append("" if name == first else _against(found, rows[first]))
        lines.append(cells + ([paper.get(name, "")] if paper else []))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(values: list[float | None], column: str) -> str:
    some = [each * (100 if column in SHARES else 1) for each in values if each is not None]
    if not some:
        return "none"
    digits = 1 if column in (*SHARES, "losses", "distinct") else 3
    mean = f"{np.mean(some):.{digits}f}"
    return mean if len(some) == 1 else f"{mean} ({min(some):.{digits}f} to {max(some):.{digits}f})"


def _against(found: list[dict], reference: list[dict]) -> str:
    """Geometric mean over seeds of the ratio of each problem, with an interval over matrices."""
    pairs = list(zip(found, reference, strict=False))
    logs = [
        [np.log(mine["fraction_1"] / its["fraction_1"]) for mine, its in zip(a["problems"], b["problems"], strict=True)]
        for a, b in pairs
    ]
    matrices = [each["matrix"] for each in found[0]["problems"]]
    ratio = metrics.bootstrap(np.exp(np.mean(logs, axis=0)), matrices)
    return f"{ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"


def plot(rows: Mapping[str, list[dict]], path: Path) -> None:
    """A point for each arm and a bar for the mean of its variant; nothing without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        print("no plot: matplotlib is not installed; pip install 'sparsegen[experiments]'")
        return
    matplotlib.use("svg")
    from matplotlib import pyplot

    shown = ("compile", "pass_1", "fraction_1", "fraction_4")
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": path.stem, "font.size": 8}):
        size = (10, 0.8 + 0.28 * len(rows))
        figure, axes = pyplot.subplots(1, len(shown), figsize=size, sharey=True, layout="constrained")
        for axis, column in zip(axes, shown, strict=True):
            for place, found in enumerate(rows.values()):
                values = [each[column] * (100 if column in SHARES else 1) for each in found]
                axis.barh(place, np.mean(values), height=0.6, color="0.85")
                axis.plot(values, [place] * len(values), ".", color="tab:blue", markersize=5)
            axis.set_title(COLUMNS[column], fontsize=9)
        axes[0].set_yticks(range(len(rows)), list(rows))
        axes[0].invert_yaxis()
        figure.savefig(path, metadata={"Date": None})
        pyplot.close(figure)
