"""Is `compile` right, and never slower, on every matrix of a folder?

    python experiments/spmv_collection.py --matrices DIR [--threads 1] [--resume]

Every matrix is compiled for SpMV on the CPU in its stored dtype (float64 for pattern and integer files), once with
facts=None and once with facts="detect". Then, in this process and apart from the search, the kernel races the raw
calls of every baseline in interleaved rounds, with a null pair: the same kernel under two names. A loss is a ratio to
the best baseline under 1 by more than the null pair's departure and spread. Records go to
results/spmv_collection_<threads>t.jsonl (resumed from), the table and its summary beside them as .tsv and .md, names
and checksums of the matrices to results/matrices.tsv.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from pathlib import Path

import numpy as np
from tqdm import tqdm

import sparsegen
from sparsegen import baselines, checks, matrices, timing
from sparsegen.record import Records, environment

HERE = Path(__file__).resolve().parent
ROUNDS = 24
SECONDS = 1.2
TIE = 0.03  # placement of arrays alone moves times by as much, in this process and for its life
LIBRARIES = ("scipy", "torch", "mkl", "mkl_noopt", "numba")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--matrices", required=True, metavar="DIR")
    parser.add_argument("--out", default=str(HERE / "results"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--budget", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=20260)
    parser.add_argument("--limit", type=int, help="only the first so many matrices")
    parser.add_argument("--least", type=int, default=0, help="only matrices of at least so many entries")
    parser.add_argument("--resume", action="store_true", help="keep the records that are there")
    parser.add_argument("--no-torch", action="store_true")
    options = parser.parse_args()
    if not options.no_torch:
        import torch

        torch.set_num_threads(options.threads)
    stem = f"spmv_collection_{options.threads}t"
    path = Path(options.out) / f"{stem}.jsonl"
    if not options.resume:
        path.unlink(missing_ok=True)
    records = Records(path)
    files = sorted(each for each in Path(options.matrices).iterdir() if ".mtx" in each.name)[: options.limit]
    about = environment(options.seed)
    if "environment" not in records.known:
        records.append({"key": "environment", **about, "budget": options.budget, "threads": options.threads})
    for file in tqdm(files, file=sys.stderr, disable=not sys.stderr.isatty()):
        wanted = [facts for facts in ("none", "detect") if f"{file.name} {facts}" not in records.known]
        if not wanted:
            continue
        A = matrices.load(file)
        if A.nnz < options.least:
            continue
        if A.dtype.kind in "iub":
            A = A.astype(np.float64)
        for facts in wanted:
            found = measure(A, facts, options)
            key = {"key": f"{file.name} {facts}", "matrix": file.name, "facts": facts, "commit": about["commit"]}
            record = {**key, **found}
            records.append(record)
            print(line(record), file=sys.stderr, flush=True)
    rows = [record for key, record in records.known.items() if key != "environment"]
    write_tables(Path(options.out), stem, rows, files, records.known["environment"])
    run = f"--threads {options.threads} --budget {options.budget:g} --seed {options.seed} --least {options.least}"
    said = f"`python experiments/spmv_collection.py --matrices DIR {run} --limit {options.limit}`\n\n{summary(rows)}\n"
    (Path(options.out) / f"{stem}.md").write_text(said)
    print(said)


def measure(A, facts: str, options) -> dict:
    begun = time.perf_counter()
    kernel = sparsegen.compile(
        A, target="cpu", facts=None if facts == "none" else "detect", threads=options.threads, budget=options.budget,
        cache=False, seed=options.seed,
    )  # fmt: skip
    report = kernel.report()
    record = {
        "m": A.shape[0], "n": A.shape[1], "nnz": A.nnz, "dtype": str(A.dtype), "compile_s": time.perf_counter() - begun,
        "kernel": report["kernel"], "origin": report["origin"], "facts_found": report["facts"],
        "tried": len(report["candidates"]), "notes": report["notes"],
    }  # fmt: skip
    problem, rng = kernel.problem, np.random.default_rng([options.seed, 1])
    inputs = [rng.standard_normal(A.shape[1]).astype(A.dtype) for _ in range(2)]
    x, y = inputs[0].copy(), np.empty(A.shape[0], A.dtype)
    result = kernel(x, out=y)
    own = A.astype(np.float64) if A.dtype.kind == "f" else A
    exact, bound = checks.reference(problem, own, x) if A.dtype.kind == "f" else (A @ x, None)
    difference = float(np.abs(result - exact).max(initial=0))
    record["worst"] = checks.worst(result, exact, bound) if bound is not None else difference
    arms = {"kernel": lambda: kernel(x, out=y), "null": lambda: kernel(x, out=y)}
    for name in LIBRARIES:
        module = baselines.get(name)
        if A.nnz and problem.dtype == A.dtype and module.available(problem) is None:
            call = module.prepare(A, problem)
            arms[name] = lambda call=call: call(x, y)  # the same x and y for all: where they lie moves times by a tenth
    if "scipy" not in arms:
        arms["scipy"] = lambda: A @ x

    def prepare(which: int) -> None:
        x[...] = inputs[which]

    rounds = timing.interleaved(arms, options.threads, ROUNDS, options.seed, SECONDS, prepare=prepare)
    ratios = {name: [each[name] / each["kernel"] for each in rounds] for name in arms if name != "kernel"}
    record |= {"rounds": len(rounds), "kernel_us": float(np.median([each["kernel"] for each in rounds])) / 1e3}
    record["null"] = float(np.median(ratios["null"]))
    record["null_spread"] = float(np.subtract(*np.percentile(ratios["null"], [80, 20])) / 2)
    record["speedup"] = {name: float(np.median(each)) for name, each in ratios.items() if name != "null"}
    best = min(record["speedup"], key=record["speedup"].get)
    record |= {"best": best, "over_best": record["speedup"][best]}
    record["loss"] = bool(record["over_best"] < 1 - max(TIE, abs(record["null"] - 1), record["null_spread"]))
    return record



def line(record: dict) -> str:
    speed = " ".join(f"{name} {ratio:.2f}" for name, ratio in record["speedup"].items())
    flag = "  LOSS" if record["loss"] else ""
    return f"{record['key']}: {record['kernel']} {record['kernel_us']:.4g} us, null {record['null']:.3f}; {speed}{flag}"


def write_tables(out: Path, stem: str, rows: list[dict], files: list[Path], about: dict) -> None:
    columns = ["matrix", "facts", "m", "n", "nnz", "dtype", "kernel", "kernel_us", *LIBRARIES]
    columns += ["over_best", "null", "null_spread", "rounds", "worst", "loss", "commit"]
    lines = [f"# {name}: {value}" for name, value in about.items() if name != "key"] + ["\t".join(columns)]
    for row in sorted(rows, key=lambda row: (row["matrix"], row["facts"])):
        flat = {**row, **row["speedup"]}
        lines.append("\t".join(_cell(flat.get(column)) for column in columns))
    (out / f"{stem}.tsv").write_text("\n".join(lines) + "\n")
    names = [f"{file.name}\t{hashlib.sha256(file.read_bytes()).hexdigest()}" for file in files]
    (out / "matrices.tsv").write_text("\n".join(["file\tsha256", *names]) + "\n")


def _cell(value) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def summary(rows: list[dict]) -> str:
    """Geometric mean, p10, median, p90 and losses over each library and the best of them, by facts and size."""
    heads = ["facts", "nonzeros", "matrices", "over", "geomean", "p10", "median", "p90", "losses"]
    lines = [" | ".join(["", *heads, ""]).strip(), "|---" * len(heads) + "|"]
    sizes = {"all": (0, 1e18), "under 1k": (0, 1e3), "1k-40k": (1e3, 4e4), "40k-3M": (4e4, 3e6)}
    for facts in ("none", "detect"):
        for label, (low, high) in sizes.items():
            real = [row for row in rows if row["facts"] == facts and row["dtype"][0] == "f"]
            some = [row for row in real if low <= row["nnz"] < high]
            for name in (*LIBRARIES, "best"):
                ratios = [row["over_best"] if name == "best" else row["speedup"].get(name) for row in some]
                ratios = [ratio for ratio in ratios if ratio]
                if not ratios or (label != "all" and name != "best"):
                    continue
                p10, median, p90 = np.percentile(ratios, [10, 50, 90])
                losses = sum(ratio < 1 - TIE for ratio in ratios)
                if name == "best":
                    losses = sum(row["loss"] for row in some)
                mean = float(np.exp(np.mean(np.log(ratios))))
                numbers = [f"{each:.2f}" for each in (mean, p10, median, p90)]
                lines.append(" | ".join(["", facts, label, str(len(ratios)), name, *numbers, str(losses), ""]).strip())
    wrong = [row["key"] for row in rows if not row["worst"] <= 1]
    lost = [row["key"] for row in rows if row["loss"]]
    return "\n".join([*lines, f"wrong: {wrong or 'none'}", f"losses: {lost or 'none'}"])


if __name__ == "__main__":
    main()
