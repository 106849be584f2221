"""Do runs over collections survive what happens to them?

    python experiments/batch_runs.py interrupted --matrices DIR [--limit N]
    python experiments/batch_runs.py nodes --matrices DIR [--limit N]      # needs Ray
    python experiments/batch_runs.py many [--count 10000]

interrupted: the same jobs once in peace, and once killed at three random moments (SIGKILL) and resumed. nodes: the
same over a Ray cluster of two nodes on this machine, one of which is killed on the way. Of both, records must be those
of the first run apart from what a clock decides. many: tiny matrices, all done by one process, whose memory and open
files must not grow.

Results: results/batch_<which>.md. --smoke: a few matrices and no search, in seconds.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import scipy.io

from sparsegen import gallery, matrices
from sparsegen.batch import bench, compare, jobs, run, summary
from sparsegen.record import environment

HERE = Path(__file__).resolve().parent
KILLS = 3
SMOKE = 9  # matrices
GROWTH_MB = 16.0  # that counts as none: the allocator's


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("which", choices=["interrupted", "nodes", "many"])
    parser.add_argument("--matrices", type=Path, metavar="DIR", help="a folder of matrix files")
    parser.add_argument("--limit", type=int, help="only the first so many matrices")
    parser.add_argument("--count", type=int, default=10_000, help="of tiny matrices")
    parser.add_argument("--op", default="spmv,spmm:k=32")
    parser.add_argument("--dtype", default="f64,f32")
    parser.add_argument("--budget", type=float, help="seconds of a search; 1, for many 0: no search")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=20260)
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("--smoke", action="store_true", help="check that it runs")
    options = parser.parse_args(arguments)
    if options.budget is None:
        options.budget = 0.0 if options.which == "many" else 1.0
    with tempfile.TemporaryDirectory(prefix="sparsegen-runs-") as made:
        work = Path(made)
        if options.smoke:
            options.budget, options.op, options.dtype, options.count = 0.0, "spmv", "f64", SMOKE
        if options.smoke or options.which == "many":
            options.matrices = tiny(work / "set", options.count, options.seed)
        if options.matrices is None:
            parser.error("--matrices DIR is needed")
        rows = {"interrupted": interrupted, "nodes": nodes, "many": many}[options.which](options, work)
    lines = [f"# Runs: {options.which}", ""]
    lines += [f"- {name}: {value}" for name, value in environment(options.seed).items()]
    lines += ["", "| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())]
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"batch_{options.which}.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    return 0 if rows["as expected"] else 1


def tiny(folder: Path, count: int, seed: int) -> Path:
    folder.mkdir()
    for number in range(count):
        A = gallery.uniform(5 + number % 37, 7 + number % 41, 3 + number % 29, seed + number)
        scipy.io.mmwrite(folder / f"m{number:05}.mtx", A)
    return folder


def settings(options: argparse.Namespace) -> run.Settings:
    return run.Settings("cpu", options.budget, options.threads, model="none", seed=options.seed)


def planned(options: argparse.Namespace) -> list[jobs.Job]:
    asked = jobs.products(options.op, options.dtype)
    return jobs.planned(matrices.listed(options.matrices), asked, options.matrices, None, options.limit)


def in_peace(options: argparse.Namespace, folder: Path) -> tuple[summary.Run, float]:
    """A run that nothing disturbs, and its seconds."""
    begun = time.monotonic()
    run.run(folder, planned(options), settings(options))
    return summary.read(folder), time.monotonic() - begun


def interrupted(options: argparse.Namespace, work: Path) -> dict:
    whole, seconds = in_peace(options, work / "whole")
    given = ["--op", options.op, "--dtype", options.dtype, "--budget", str(options.budget), "--model", "none"]
    given += ["--threads", str(options.threads), "--seed", str(options.seed), "--target", "cpu", "--resume"]
    given += ["--limit", str(options.limit)] if options.limit else []
    command = [sys.executable, "-m", "sparsegen", "batch", str(options.matrices), "--out", str(work / "cut"), *given]
    rng, after = np.random.default_rng(options.seed), []
    for _ in range(KILLS):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=HERE.parent)
        time.sleep(1.0 + float(rng.uniform(0.1, 0.9)) * seconds / KILLS)
        process.kill()
        process.wait()
        after.append((work / "cut" / run.RECORDS).read_bytes().count(b"\n") if (work / "cut").exists() else 0)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=HERE.parent)
    return compared(whole, work / "cut") | {"lines after each kill": after}


def nodes(options: argparse.Namespace, work: Path) -> dict:
    import ray
    from ray.cluster_utils import Cluster

    whole, _ = in_peace(options, work / "whole")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    second, seen = cluster.add_node(num_cpus=1), []
    cluster.wait_for_nodes()

    def told(record: dict, left: int) -> None:
        seen.append(record["key"])
        if len(seen) == len(whole.records) // 3:
            threading.Thread(target=cluster.remove_node, args=(second, False)).start()

    try:
        run.run(work / "nodes", planned(options), settings(options), ray=cluster.address, told=told)
    finally:
        ray.shutdown()
        cluster.shutdown()
    return compared(whole, work / "nodes") | {"records before a node was killed": len(whole.records) // 3}


def compared(whole: summary.Run, folder: Path) -> dict:
    other = summary.read(folder)
    found = compare.differences(whole, other)
    lines = (folder / run.RECORDS).read_bytes().count(b"\n") - len(other.environments)
    kernels = sum(each.get("kernel") == whole.records[key].get("kernel") for key, each in other.records.items())
    return {
        "as expected": not found and lines == len(other.records),
        "jobs": len(whole.records),
        "differences that no clock explains": found[:20] or "none",
        "jobs done twice": lines - len(other.records),
        "the same kernel was chosen for": kernels,
        "faults": summary.of(other)["faults"] or "none",
    }


def many(options: argparse.Namespace, work: Path) -> dict:
    bench.JOBS = options.count + 1  # one child does all
    options.op, options.dtype = "spmv", "f64"
    before = held()
    begun = time.monotonic()
    run.run(work / "run", planned(options), settings(options))
    seconds, after = time.monotonic() - begun, held()
    found = summary.read(work / "run")
    records = list(found.records.values())
    first, last = records[len(records) // 10], records[-1]
    grown = last["rss_mb"] - first["rss_mb"]
    shutil.rmtree(work / "run")
    return {
        "as expected": grown < GROWTH_MB and last["open_files"] == first["open_files"] and after[1] <= before[1] + 1,
        "jobs": len(records), "budget of each, s": options.budget, "seconds": f"{seconds:.1f}",
        "faults": summary.of(found)["faults"] or "none",
        "memory of the child after a tenth, and at the end, MB": f"{first['rss_mb']:.1f}, {last['rss_mb']:.1f}",
        "its open files": f"{first['open_files']}, {last['open_files']}",
        "memory of the driver before and after, MB": f"{before[0]:.1f}, {after[0]:.1f}",
        "its open files before and after": f"{before[1]}, {after[1]}",
    }  # fmt: skip


def held() -> tuple[float, int]:
    from sparsegen.batch.measured import memory

    found = memory()
    return found.get("rss_mb", 0.0), found.get("open_files", 0)


if __name__ == "__main__":
    sys.exit(main())
