"""What do the model's first, best of two and best of four kernels reach on matrices of families it never saw?

    python -m sparsegen.train corpus --matrices DIR --corpus FOLDER --held-out    # every instance, to choose by
    python -m sparsegen.train corpus --matrices DIR --corpus FOLDER --again       # and again, to score by
    python experiments/held_out.py --matrices DIR --corpus FOLDER [--checkpoint models/NAME] [--other LABEL=FOLDER ...]

The unit is a problem: a matrix with spmv f64, spmv f32 or spmm k = 32 f64, values opaque, one thread. A method is an
ordered list of kernels for it; at a budget of k the fastest of its first k is taken by the first measurement, and is
worth its speed in the second, made by another process with other rounds. A text that is no correct kernel is a spent
try; where all k are, the best library serves. The optimum is the fastest template instance, chosen and scored in the
same way. What the model wrote that is no template instance is measured twice as well. Figures are geometric means of
speed over the optimum's, with 95 % bootstrap intervals over matrices.

Results: results/held_out.md (tables), held_out.tsv (a row per problem), held_out.json (the figures), held_out.svg.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import rivals
from study import BUDGETS, Problem, Study, levels, problems, raw

from sparsegen import metrics
from sparsegen.errors import SparsegenError, SparsegenValueError
from sparsegen.model import checkpoint
from sparsegen.record import environment
from sparsegen.train import sft

HERE = Path(__file__).resolve().parent
LEAST_INSTANCES = 20
SEED = 20260
METHODS = ("model", "random", "fixed list", "rule", "boosted trees")
CONTROLS = ("another matrix", "coordinates only", "statistics only")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--matrices", type=Path, metavar="DIR")
    parser.add_argument("--corpus", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--checkpoint", type=Path, metavar="FOLDER", help="by default the one that ships")
    parser.add_argument("--other", action="append", default=[], metavar="LABEL=FOLDER", help="checkpoints to compare")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("--limit", type=int, help="only so many problems, drawn at random")
    options = parser.parse_args(arguments)
    if options.limit is not None and options.limit < 1:
        parser.error(f"--limit is {options.limit}; expected at least 1 problem")
    if wrong := [each for each in options.other if "=" not in each]:
        parser.error(f"--other is {wrong[0]!r}; expected LABEL=FOLDER")
    try:
        report(options)
    except (SparsegenError, OSError) as error:
        parser.error(str(error))


def report(options: argparse.Namespace) -> None:
    """Write what was found. Raises SparsegenError, OSError."""
    found = problems(options.corpus)
    if options.limit:
        picks = np.random.default_rng(SEED).permutation(len(found))[: options.limit]
        found = [found[each] for each in sorted(picks)]
    shipped = checkpoint.load(options.checkpoint) if options.checkpoint else checkpoint.default()
    if isinstance(shipped, str):
        raise SparsegenValueError(f"{shipped}; expected --checkpoint with the folder of one")
    study = Study(shipped, found, options.corpus, options.matrices)
    orders = {"model": study.written(max(BUDGETS)), **others(found, study, options)}
    said = [f"# Held-out families\n\n{about(options, shipped, found)}"]
    said += ["## Raw samples\n", table(samples(study))]
    figures: dict = {"environment": environment(SEED), "checkpoint": shipped.path.name}
    for wide in (False, True):
        for synthetic in (False, True):
            rows, kept = fractions(found, orders, wide, synthetic)
            if not kept:
                continue
            head = f"## {'Synthetic' if synthetic else 'Real'} matrices" + (
                f" with at least {LEAST_INSTANCES} feasible instances" if wide else ""
            )
            said += [f"{head}\n", table(rows)]
            figures[head.removeprefix("## ")] = kept
    said += ["## The model against each rival, same budget\n", table(against(found, orders))]
    controls = {name: study.controlled(name) for name in CONTROLS}
    said += ["## Controls: the first kernel, with other tokens\n", table(controlled(found, orders["model"], controls))]
    compared = {
        label: Study(checkpoint.load(path), found, options.corpus, options.matrices).written(1)
        for label, path in pairs(options.other)
    }
    if compared:
        said += ["## First kernels of other checkpoints\n", table(stages(found, orders["model"], compared))]
    said += [
        "## Variety of the first kernels\n",
        variety(study),
        "## Kernels that no template gives\n",
        novel(found, orders["model"], study),
    ]
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "held_out.md").write_text("\n".join(said) + "\n")
    (options.out / "held_out.json").write_text(json.dumps(figures, indent=1, default=str) + "\n")
    plot(figures, options.out / "held_out.svg")
    (options.out / "held_out.tsv").write_text(per_problem(found, orders))
    print("\n".join(said))


def pairs(given: Sequence[str]) -> list[tuple[str, str]]:
    return [(label, path) for label, _, path in (each.partition("=") for each in given)]


def about(options, shipped, found: list[Problem]) -> str:
    facts = environment(SEED)
    lines = [f"- {name}: {value}" for name, value in facts.items()] + [f"- checkpoint: {shipped.path.name}"]
    real = {each.line["matrix"] for each in found if not each.synthetic}
    large = {each.line["matrix"] for each in found if not each.synthetic and each.line["nnz"] > 40_000}
    lines.append(
        f"- {len(found)} problems of {len(real)} real matrices ({len(large)} over 40,000 entries) and of "
        f"{len({each.line['matrix'] for each in found}) - len(real)} synthetic ones"
    )
    return "\n".join(lines) + "\n"


def others(found: list[Problem], study: Study, options) -> dict[str, list[list[str]]]:
    """Ordered lists of the rivals for every problem."""
    folder = options.matrices and str(options.matrices)
    learned = sft.problems(sft.SftConfig(study.model.recipe, str(options.corpus), folder, None, "", ""))
    training = [each for each in learned if each.language == "cpp"]
    lists = {}
    for kind in sorted({each.kind for each in found}):
        alike = [each for each in training if Problem.kind_of(each.task) == kind]
        lists[kind] = rivals.fixed_list(alike, max(BUDGETS))
    selector = rivals.Selector([each for each in training if each.task.facts == "none"])
    orders: dict[str, list[list[str]]] = {name: [] for name in ("fixed list", "rule", "boosted trees")}
    for each, example in zip(found, study.shown, strict=True):
        orders["fixed list"].append(lists[each.kind])
        orders["rule"].append(each.order)
        orders["boosted trees"].append(selector.order(example, each.order))
    return orders


def value(found: list[Problem], orders: dict, name: str, k: int) -> np.ndarray:
    """Per problem, the fraction of the optimum; of random orders the geometric mean over draws."""
    if name == "random":
        rng = np.random.default_rng(SEED)
        draws = [
            [each.fraction(rivals.random_order(each.order, rng)[:k]) for each in found] for _ in range(rivals.DRAWS)
        ]
        return np.exp(np.log(draws).mean(axis=0))
    return np.array([each.fraction(order[:k]) for each, order in zip(found, orders[name], strict=True)])


def fractions(found: list[Problem], orders: dict, wide: bool, synthetic: bool) -> tuple[list[list[str]], dict]:
    rows = [["problem", "matrices", "instances (median)", "method", *(f"best of {k}" for k in BUDGETS)]]
    kept: dict = {}
    for kind in sorted({each.kind for each in found}):
        some = [
            place for place, each in enumerate(found)
            if each.kind == kind and each.synthetic == synthetic and (not wide or len(each.order) >= LEAST_INSTANCES)
        ]  # fmt: skip
        if not some:
            continue
        part = [found[place] for place in some]
        median = f"{np.median([len(each.order) for each in part]):g}"
        for name in METHODS:
            own = {key: [order[place] for place in some] for key, order in orders.items()}
            reached = [value(part, own, name, k) for k in BUDGETS]
            shown = [interval(metrics.bootstrap(each, [one.line["matrix"] for one in part])) for each in reached]
            rows.append([kind, str(len(part)), median, name, *shown])
            kept[f"{kind}, {name}"] = [metrics.geomean(each) for each in reached]
    return rows, kept


def against(found: list[Problem], orders: dict) -> list[list[str]]:
    """Geometric mean of the model's speed over a rival's on the real matrices."""
    rows = [["problem", "rival", *(f"best of {k}" for k in BUDGETS)]]
    real = [place for place, each in enumerate(found) if not each.synthetic]
    for kind in [*sorted({each.kind for each in found}), "all"]:
        some = [place for place in real if kind in ("all", found[place].kind)]
        if not some:
            continue
        part = [found[place] for place in some]
        own = {key: [order[place] for place in some] for key, order in orders.items()}
        for name in ("random", "fixed list", "rule", "boosted trees"):
            ratios = [value(part, own, "model", k) / value(part, own, name, k) for k in BUDGETS]
            shown = [interval(metrics.bootstrap(each, [one.line["matrix"] for one in part])) for each in ratios]
            rows.append([kind, name, *shown])
    return rows


def controlled(found: list[Problem], model: list[list[str]], controls: dict[str, list[list[str]]]) -> list[list[str]]:
    rows = [["what the model was given", "speed of its first kernel over that with its own tokens"]]
    real = [place for place, each in enumerate(found) if not each.synthetic]
    names = [found[place].line["matrix"] for place in real]
    for name, written in controls.items() if real else ():
        ratios = [found[place].value(written[place][:1]) / found[place].value(model[place][:1]) for place in real]
        rows.append([name, interval(metrics.bootstrap(ratios, names))])
    return rows


def stages(found: list[Problem], model: list[list[str]], compared: dict[str, list[list[str]]]) -> list[list[str]]:
    """First-kernel speed over another checkpoint's, and the share of that one's gap to the optimum that is closed."""
    rows = [["other checkpoint", "its fraction of the optimum", "speed over it", "share of its gap closed"]]
    real = [place for place, each in enumerate(found) if not each.synthetic]
    names = [found[place].line["matrix"] for place in real]
    ours = np.array([found[place].fraction(model[place][:1]) for place in real])
    for label, written in compared.items() if real else ():
        theirs = np.array([found[place].fraction(written[place][:1]) for place in real])
        gap, closed = -np.log(theirs).mean(), np.log(ours / theirs).mean()
        share = f"{100 * closed / gap:.0f} %" if gap > 0 else "no gap"
        shown = [interval(metrics.bootstrap(each, names)) for each in (theirs, ours / theirs)]
        rows.append([label, *shown, share])
    return rows


def samples(study: Study) -> list[list[str]]:
    rows = [["language", "decoding", "texts", "parse %", "compile %", "correct % (CUDA: format feasible %)"]]
    for language in ("cpp", "cuda"):
        for name, options in (
            ("one sample at temperature 1", {}), ("greedy", {"greedy": True}),
            ("greedy, masked", {"greedy": True, "masked": True}),
        ):  # fmt: skip
            outcomes = study.judged(language, raw(study, language, **options))
            rows.append([language, name, str(len(outcomes)), *levels(outcomes, language == "cuda")])
    return rows


def variety(study: Study) -> str:
    said = []
    for language in ("cpp", "cuda"):
        kernels = study.first_kernels(language)
        for what, names in (
            ("formats", [k.format for k in kernels]),
            ("schedules", [metrics.schedule(k) for k in kernels]),
        ):
            counted = Counter(names).most_common()
            said.append(
                f"- {language}, {len(counted)} {what}: " + ", ".join(f"{name} {count}" for name, count in counted)
            )
    return "\n".join(said) + "\n"


def novel(found: list[Problem], model: list[list[str]], study: Study) -> str:
    """Kernels of the model whose machine code no template instance has, and those that beat the optimum by over 5 %."""
    new, beating = 0, []
    for each, written in zip(found, model, strict=True):
        for key in dict.fromkeys(written):
            if key and study.is_new(each, key):
                new += 1
                ratio = each.scored[key] / each.optimum
                if ratio > max(1.05, 1 + 2 * each.line["spread"]):
                    beating.append((ratio, each.line["key"], study.texts[each.line["key"], key]))
    beating.sort(reverse=True)
    said = [
        f"{new} kernels that no template instance compiles to; {len(beating)} beat the optimum by over 5 % and twice "
        "the null pair's spread."
    ]
    said += [f"\n{ratio:.2f} times the optimum on {key}:\n\n```cpp\n{text}\n```" for ratio, key, text in beating[:3]]
    return "\n".join(said) + "\n"


def per_problem(found: list[Problem], orders: dict) -> str:
    heads = [
        "matrix",
        "problem",
        "m",
        "n",
        "nnz",
        "instances",
        "optimum_speedup",
        *(f"model_{k}" for k in BUDGETS),
        "fixed_1",
        "rule_1",
        "trees_1",
    ]
    lines = ["\t".join(heads)]
    for place, each in enumerate(found):
        shown = [each.fraction(orders["model"][place][:k]) for k in BUDGETS]
        shown += [each.fraction(orders[name][place][:1]) for name in ("fixed list", "rule", "boosted trees")]
        line = each.line
        cells = [line["matrix"], each.kind, line["m"], line["n"], line["nnz"], len(each.order), f"{each.optimum:.3f}"]
        lines.append("\t".join(map(str, [*cells, *(f"{one:.3f}" for one in shown)])))
    return "\n".join(lines) + "\n"


def plot(figures: dict, path: Path) -> None:
    """Fraction of the optimum by budget, a panel for each kind of problem, on the real matrices."""
    try:
        import matplotlib
    except ImportError:
        return
    reached = figures.get("Real matrices")
    if not reached:
        return
    matplotlib.use("svg")
    from matplotlib import pyplot

    kinds = sorted({name.rpartition(", ")[0] for name in reached})
    figure, axes = pyplot.subplots(1, len(kinds), figsize=(3.4 * len(kinds), 2.8), layout="constrained", squeeze=False)
    for axis, kind in zip(axes[0], kinds, strict=True):
        for method in METHODS:
            axis.plot(BUDGETS, reached[f"{kind}, {method}"], marker="o", markersize=3, linewidth=1, label=method)
        axis.set_xscale("log", base=2)
        axis.set_xticks(BUDGETS, [str(each) for each in BUDGETS])
        axis.set_title(kind, fontsize=9)
        axis.set_xlabel("kernels tried")
    axes[0][0].set_ylabel("speed / optimum's")
    axes[0][-1].legend(fontsize=7)
    figure.savefig(path, metadata={"Date": None})


def interval(found: metrics.Interval) -> str:
    return f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}]"


def table(rows: list[list[str]]) -> str:
    heads, *body = rows
    return "\n".join("| " + " | ".join(row) + " |" for row in (heads, ["---"] * len(heads), *body)) + "\n"


if __name__ == "__main__":
    main()
