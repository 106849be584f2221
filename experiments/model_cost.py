"""What does the model cost a user: where does the time of `compile(A)` go with a million nonzeros, cold and warm?

    python experiments/model_cost.py [--repeats 7] [--threads 1]

Cold is the first `compile` of a new process, warm one more of another matrix in it; neither uses cached choices.
Three structures of about a million entries: a 2-D grid, uniform rows, a power-law graph. Medians, with the smallest and
the largest, in milliseconds. Results: results/model_cost.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from sparsegen.record import environment

HERE = Path(__file__).resolve().parent
MATRICES = {
    "grid": "gallery.stencil2d(449, 447, variable=True, seed={seed})",
    "uniform": "gallery.uniform(100003, 99991, 1000003, seed={seed})",
    "power law": "gallery.powerlaw(100003, 100003, 1100003, seed={seed})",
}
PARTS = ("total_ms", "startup_ms", "search_ms", "pack_ms", "model_ms")
MODEL = ("encode_ms", "sample_ms", "samples", "distinct", "unfinished")

CHILD = """
import json, sys, time
begun = time.perf_counter()
import sparsegen
from sparsegen import gallery
imported = (time.perf_counter() - begun) * 1e3
for seed, when in ((7013, "cold"), (7027, "warm")):
    A = {matrix}
    begun = time.perf_counter()
    kernel = sparsegen.compile(A, threads={threads}, cache=False, facts=None)
    wall = (time.perf_counter() - begun) * 1e3
    report = kernel.report().as_dict()
    model = report["model"] or {{}}
    row = {{name: report[name] for name in {parts}}} | {{name: model.get(name) for name in {model}}}
    row |= {{"when": when, "wall_ms": wall, "import_ms": imported, "origin": report["origin"]}}
    row |= {{"kernel": report["kernel"], "skipped": model.get("skipped")}}
    print(json.dumps(row))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "model_cost.json")
    options = parser.parse_args()
    found = []
    for name, matrix in MATRICES.items():
        for _ in range(options.repeats):
            child = CHILD.format(
                matrix=matrix.format(seed="seed"), threads=options.threads, parts=PARTS, model=MODEL
            )  # fmt: skip
            ran = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, check=True)
            found += [{"matrix": name, **json.loads(line)} for line in ran.stdout.splitlines()]
    summary = {}
    for name in MATRICES:
        for when in ("cold", "warm"):
            rows = [row for row in found if row["matrix"] == name and row["when"] == when]
            summary[f"{name}, {when}"] = {
                part: _spread([row[part] for row in rows if row[part] is not None])
                for part in ("wall_ms", *PARTS, *MODEL)
            } | {"origins": sorted({row["origin"] for row in rows}), "skipped": rows[0]["skipped"]}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    facts = {**environment(7013), "repeats": options.repeats, "threads": options.threads}
    options.out.write_text(json.dumps({"environment": facts, "milliseconds": summary}, indent=1) + "\n")
    print(json.dumps(summary, indent=1))


def _spread(values: list[float]) -> list[float] | None:
    """Median, least, most."""
    return [round(float(each), 2) for each in (np.median(values), min(values), max(values))] if values else None


if __name__ == "__main__":
    main()
