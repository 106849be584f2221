"""Do kernels rank on a synthetic twin of a matrix as they do on the matrix?

    python experiments/twins.py --matrices DIR [--limit N] [--smoke]

Every feasible template instance is measured (SpMV, float64, one thread, values opaque) on the matrix, on its twin
(`gallery.twin` of `gallery.statistics`: ten numbers), and, to know what sizes alone would give, on a matrix with as
many rows, columns and entries placed uniformly at random. Reported are, against the order on the matrix, Spearman's
rank correlation over the instances that are feasible on both, and what choosing by the other matrix would cost: the
speed on the matrix of the kernel that is fastest on the other one, as a share of the best. The matrix itself, measured
a second time, says how much of that is noise.

Results: results/twins.jsonl (resumed from), twins.md (the summary, and a row per matrix). --smoke: two small synthetic
matrices and a few instances of each, in seconds; its figures say nothing.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from scipy.stats import spearmanr
from tqdm import tqdm

from sparsegen import engine, gallery, matrices, metrics, templates, twins
from sparsegen.batch import summary
from sparsegen.errors import SparsegenError
from sparsegen.fence import Died
from sparsegen.record import Records, environment
from sparsegen.train.measure import measure

HERE = Path(__file__).resolve().parent
OTHERS = ("again", "twin", "uniform")
LEAST, MOST = 5_000, 2_000_000  # entries
FEWEST = 4  # instances that a correlation is taken over
SMOKE_INSTANCES = 6


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--matrices", type=Path, metavar="DIR", help="a folder of matrix files")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("--limit", type=int, help="look at so many files only, drawn at random")
    parser.add_argument("--seed", type=int, default=20260)
    parser.add_argument("--smoke", action="store_true", help="check that it runs")
    options = parser.parse_args(arguments)
    if not options.smoke and options.matrices is None:
        parser.error("--matrices DIR is needed")
    records = Records(options.out / "twins.jsonl")
    if "environment" not in records.known:
        records.append({"key": "environment", **environment(options.seed)})
    given = smoke() if options.smoke else real(options.matrices, options.limit, options.seed)
    for name, A in tqdm(given, file=sys.stderr, disable=not sys.stderr.isatty()):
        if name not in records.known:
            records.append(compared(name, A, options.seed, SMOKE_INSTANCES if options.smoke else None))
    rows = [record for key, record in records.known.items() if key != "environment"]
    text = report(rows, records.known["environment"])
    (options.out / "twins.md").write_text(text)
    print(text)


def smoke() -> Iterator[tuple[str, sp.csr_array]]:
    yield "stencil2d", gallery.stencil2d(37, 41, variable=True)
    yield "powerlaw", gallery.powerlaw(1501, 1501, 9001)


def real(folder: Path, limit: int | None, seed: int) -> Iterator[tuple[str, sp.csr_array]]:
    """The matrices of a folder that take part, in an order drawn with `seed`."""
    names = matrices.collection(folder)
    for place in np.random.default_rng(seed).permutation(len(names))[:limit]:
        A = matrices.load(names[place])
        if A.format == "csr" and A.dtype.kind != "c" and LEAST <= A.nnz <= MOST:
            yield Path(names[place]).name, A.astype(np.float64)


def compared(name: str, A: sp.csr_array, seed: int, most: int | None) -> dict:
    """One record: times of each instance on A and on the others, and how the others' order compares."""
    asked = gallery.statistics(A)
    others = {"again": A, "twin": gallery.twin(asked, seed), "uniform": gallery.uniform(*A.shape, A.nnz, seed)}
    record = {"key": name, "m": A.shape[0], "n": A.shape[1], "nnz": A.nnz, "statistics": asked.as_dict()}
    record["twin_statistics"] = gallery.statistics(others["twin"]).as_dict()
    try:
        record["us"] = {"matrix": times(A, seed, most)}
        for other, B in others.items():
            record["us"][other] = times(B, seed + 1, most)
    except (SparsegenError, Died, MemoryError) as error:
        return {**record, "failed": str(error)[:500]}
    for other in OTHERS:
        record[other] = agreement(record["us"]["matrix"], record["us"][other])
    return record


def times(A: sp.csr_array, seed: int, most: int | None) -> dict[str, float]:
    """Microseconds of each correct instance."""
    problem = engine.problem_of(A, op="spmv", threads=1, facts=None)
    proposed = itertools.islice(templates.propose(problem), most)
    found = measure(problem, A, proposed, seed=seed, trusted=True)
    return {each.candidate.label: each.us for each in found.measured if each.us}


def agreement(own: dict[str, float], other: dict[str, float]) -> dict[str, float | int | None]:
    """correlation: of the ranks, None over fewer than FEWEST instances. kept: the share of the best speed."""
    both = sorted(own.keys() & other.keys())
    correlation = None
    if len(both) >= FEWEST:
        correlation = float(spearmanr([own[label] for label in both], [other[label] for label in both]).statistic)
    chosen = [label for label in sorted(other, key=lambda label: other[label]) if label in own]
    kept = min(own.values()) / own[chosen[0]] if chosen else None
    return {"instances": len(both), "correlation": correlation, "kept": kept}


def report(rows: list[dict], about: dict) -> str:
    lines = ["# Twins", "", *(f"- {name}: {value}" for name, value in about.items() if name != "key"), ""]
    done = [row for row in rows if "failed" not in row]
    lines += ["| order of | matrices | rank correlation, median | p10 | speed kept, geometric mean | p10 |"]
    lines += ["|---|---|---|---|---|---|"]
    for other in OTHERS:
        ranks = [row[other]["correlation"] for row in done if row[other]["correlation"] is not None]
        kept = [row[other]["kept"] for row in done if row[other]["kept"] is not None]
        if ranks and kept:
            lines.append(
                f"| {other} | {len(done)} | {np.median(ranks):.3f} | {np.percentile(ranks, 10):.3f} | "
                f"{metrics.geomean(kept):.3f} | {np.percentile(kept, 10):.3f} |"
            )
    lines += ["", "| structure | matrices | twin's rank correlation, median | its speed kept, geometric mean |"]
    lines += ["|---|---|---|---|"]
    for kind in sorted({summary.structure(row) for row in done}):
        rows_of = [row["twin"] for row in done if summary.structure(row) == kind and row["twin"]["kept"] is not None]
        ranks = [row["correlation"] for row in rows_of if row["correlation"] is not None]
        if ranks:
            kept = metrics.geomean([row["kept"] for row in rows_of])
            lines.append(f"| {kind} | {len(rows_of)} | {np.median(ranks):.3f} | {kept:.3f} |")
    lines += ["", "distance: of the twin's statistics from those asked for, as a share of their size or range.", ""]
    heads = ["matrix", "entries", "distance", "instances", *(f"{other} correlation, kept" for other in OTHERS)]
    lines += [f"| {' | '.join(heads)} |"]
    lines += ["|---|---|---|---|" + "---|" * len(OTHERS)]
    for row in sorted(done, key=lambda row: row["key"]):
        cells = [f"{_said(row[other]['correlation'])}, {_said(row[other]['kept'])}" for other in OTHERS]
        asked, found = (gallery.Statistics(**row[name]) for name in ("statistics", "twin_statistics"))
        about = f"{row['key']} | {row['nnz']} | {twins.distance(found, asked):.3f} | {row['twin']['instances']}"
        lines.append(f"| {about} | {' | '.join(cells)} |")
    lines += [f"\n{row['key']}: {row['failed']}" for row in rows if "failed" in row]
    return "\n".join(lines) + "\n"


def _said(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


if __name__ == "__main__":
    main()
