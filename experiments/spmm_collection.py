"""How fast is every feasible SpMM instance of the templates on chosen matrices, beside the libraries?

    python experiments/spmm_collection.py --matrices DIR [--problems 8rr 32rr 3rr 8cc ...] [--resume]

On the CPU in float64, values opaque, one thread. A problem is k and the layouts of B and C, r by rows or c by columns.
The matrices are the first of each family, by name, with --least to --most entries, thinned to --limit over sizes.
Whatever the shortlist rule says, all instances take part, in interleaved rounds with a null pair; those far behind keep
a rough time. Records go to results/spmm_collection_1t.jsonl (resumed from); the fastest instance of each template on
each matrix, as speed over the fastest library, and what the first of the shortlist would have reached, to the .tsv, and
its summary to the .md beside them. Differences under 5 % are ties on a machine that does other work.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from tqdm import tqdm

from sparsegen import engine, matrices, templates
from sparsegen.problem import Problem
from sparsegen.record import Records, environment
from sparsegen.train import corpus
from sparsegen.train.measure import measure

HERE = Path(__file__).resolve().parent
LIBRARIES = ("scipy", "torch", "mkl", "mkl_noopt", "numba")
LAYOUT = {"r": "row", "c": "column"}
PROBLEMS = ("8rr", "32rr", "128rr", "3rr", "8cc", "32cc")
FIRST = 8  # of the shortlist: what a search tries


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--matrices", required=True, metavar="DIR")
    parser.add_argument("--problems", nargs="*", default=list(PROBLEMS), help="k, and r or c for B and for C")
    parser.add_argument("--least", type=int, default=40_000, help="only matrices of at least so many entries")
    parser.add_argument("--most", type=int, default=1_000_000)
    parser.add_argument("--limit", type=int, default=40, help="so many matrices")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seed", type=int, default=20260)
    parser.add_argument("--out", default=str(HERE / "results"))
    parser.add_argument("--resume", action="store_true", help="keep the records that are there")
    options = parser.parse_args()
    path, folder = Path(options.out) / "spmm_collection_1t.jsonl", Path(options.matrices)
    if not options.resume:
        path.unlink(missing_ok=True)
    records = Records(path)
    now = environment(options.seed)
    if "environment" not in records.known:
        records.append({"key": "environment", **now})
    for problem in options.problems:
        for name in tqdm(chosen(folder, options), file=sys.stderr, disable=not sys.stderr.isatty()):
            if (key := f"{name} {problem}") not in records.known:
                A = matrices.load(folder / name).astype(np.float64)
                about = {"key": key, "matrix": name, "problem": problem, "commit": now["commit"]}
                records.append({**about, **record(A, problem, options)})
                print(line(records.known[key]), file=sys.stderr, flush=True)
    rows = [each for key, each in records.known.items() if key != "environment"]
    said = f"python experiments/spmm_collection.py --matrices DIR --problems {' '.join(options.problems)}"
    said += f" --limit {options.limit} --rounds {options.rounds} --seed {options.seed}"
    write(path, folder, rows, {"command": said, **records.known["environment"]})


def chosen(folder: Path, options) -> list[str]:
    """File names: one of each family, spread evenly over sizes."""
    families: dict[str, tuple[int, str]] = {}
    for name, family, nnz in sorted(corpus.real(folder)):
        if options.least <= nnz <= options.most:
            families.setdefault(family.split(":")[0], (nnz, name))
    ranked = [name for _, name in sorted(families.values())]
    return [ranked[i] for i in np.unique(np.linspace(0, len(ranked) - 1, min(options.limit, len(ranked))).astype(int))]


def posed(A, problem: str) -> Problem:
    k, layout_b, layout_c = int(problem[:-2]), LAYOUT[problem[-2]], LAYOUT[problem[-1]]
    found = engine.problem_of(A, op="spmm", k=k, threads=1, facts=None)
    return replace(found, layout_b=layout_b, layout_c=layout_c)


def record(A, problem: str, options) -> dict:
    wanted = posed(A, problem)
    found = measure(
        wanted, A, list(templates.propose(wanted)), seed=options.seed, trusted=True, libraries=LIBRARIES,
        rounds=options.rounds,
    )  # fmt: skip
    kernels = [
        {"label": each.candidate.label, "template": each.candidate.name, "us": each.us, "speedup": each.speedup,
         "raced": each.raced, "fault": each.verdict.fault}
        for each in found.measured
    ]  # fmt: skip
    return {"m": A.shape[0], "n": A.shape[1], "nnz": int(A.nnz), "best": found.best, "baselines": found.baselines,
            "spread": found.spread, "rounds": found.rounds, "kernels": kernels}  # fmt: skip


def timed(row: dict) -> list[dict]:
    """The kernels that have a speed, fastest first; rounds before rough times."""
    known = [each for each in row["kernels"] if each["speedup"]]
    return sorted(known, key=lambda each: (not each["raced"], -each["speedup"]))


def line(row: dict) -> str:
    best: dict[str, dict] = {}
    for each in timed(row):
        best.setdefault(each["template"], each)
    shown = "; ".join(f"{each['label']} {each['speedup']:.2f}x" for each in list(best.values())[:3])
    return f"{row['key'][:44]} {row['nnz']} {row['best']} {row['baselines'][row['best']]:.0f} us: {shown}"


def reached(row: dict, folder: Path, count: int) -> float:
    """Speed of the fastest of the first `count` that the rule proposes now, over that of the fastest of all."""
    known = {each["label"]: each["speedup"] for each in timed(row)}
    A = matrices.load(folder / row["matrix"]).astype(np.float64)
    order = [each.label for each in templates.propose(posed(A, row["problem"])) if each.label in known]
    return max(known[label] for label in order[:count]) / timed(row)[0]["speedup"]


def write(path: Path, folder: Path, rows: list[dict], about: dict) -> None:
    names = sorted({each.name for each in templates.load("cpp") if each.op == "spmm"})
    lines = [f"# {key}: {value}" for key, value in about.items() if key != "key"]
    heads = ["matrix", "problem", "commit", "m", "n", "nnz", "library", "library_us", "spread", f"first{FIRST}"]
    lines.append("\t".join([*heads, "fastest", *names]))
    groups: dict[str, list[tuple[float, float, float, dict]]] = {}
    for row in rows:
        ranked = timed(row)
        first, own = reached(row, folder, FIRST), {name: [e for e in ranked if e["template"] == name] for name in names}
        before = [each["speedup"] for each in ranked if each["template"] in OLD]
        groups.setdefault(row["problem"], []).append((ranked[0]["speedup"], max(before), first, row))
        cells = [row["matrix"], row["problem"], row["commit"], row["m"], row["n"], row["nnz"], row["best"],
                 f"{row['baselines'][row['best']]:.1f}", f"{row['spread']:.3f}", f"{first:.3f}", ranked[0]["label"]]
        cells += [f"{own[name][0]['speedup']:.3f}" if own[name] else "" for name in names]  # fmt: skip
        lines.append("\t".join(map(str, cells)))
    path.with_suffix(".tsv").write_text("\n".join(lines) + "\n")
    table = ["| problem | matrices | over the best library | p10 | median | p90 | under 1 | under 1 by more than the "
             "spread | csr_row, bsr_row, sell_columns alone | first 8 of the shortlist | worst |", "|---" * 11 + "|"]
    for problem, found in groups.items():
        best, old, first = (np.array([each[i] for each in found]) for i in range(3))
        lost = sum(each[0] < 1 - max(each[3]["spread"], 0.03) for each in found)
        cells = [problem, len(found), mean(best), *np.percentile(best, [10, 50, 90]), int((best < 1).sum()), lost,
                 mean(old), mean(first), first.min()]
        shown = [f"{each:.2f}" if isinstance(each, float) else str(each) for each in cells]
        table.append("| " + " | ".join(shown) + " |")
    commits = ", ".join(dict.fromkeys(str(row["commit"]) for row in rows))
    head = f"`{about['command']}`\n\nCommits {commits}, seed {about['seed']}, {about['device']}.\n\n"
    path.with_suffix(".md").write_text(head + "\n".join(table) + "\n")
    print("\n".join(table))


OLD = ("csr_row", "bsr_row", "sell_columns")  # what there was before


def mean(ratios: np.ndarray) -> float:
    return float(np.exp(np.log(ratios).mean()))


if __name__ == "__main__":
    main()
