"""What using the package costs beside the kernels: import, call, load, pack, memory.

    python experiments/overhead.py [--nnz 5000000] [--seed 20260]

Reports, never asserts: each figure is printed with its spread and kept in results/overhead.json.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import scipy.sparse as sp

import sparsegen
from sparsegen import matrices, parsed, timing
from sparsegen.record import environment

HERE = Path(__file__).resolve().parent
MIB = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nnz", type=int, default=5_000_000)
    parser.add_argument("--seed", type=int, default=20260)
    parser.add_argument("--out", default=str(HERE / "results" / "overhead.json"))
    parser.add_argument("--stage", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.stage == "memory":
        print(json.dumps(memory(options.nnz, options.seed)))
        return
    found = {"environment": environment(options.seed), "import": imports(), "calls": calls(options.seed)}
    found["load"] = load(options.nnz, options.seed)
    found["memory"] = json.loads(stage("memory", options))
    for name, value in found.items():
        print(f"{name}: {json.dumps(value, indent=2)}")
    path = Path(options.out)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=2) + "\n")


def imports(repeats: int = 9) -> dict:
    """Seconds of `import sparsegen` beside `import scipy.sparse.linalg`, each in fresh interpreters, in turn."""
    taken: dict[str, list[float]] = {"scipy.sparse.linalg": [], "sparsegen": []}
    for _ in range(repeats):
        for name, times in taken.items():
            code = f"import time; t = time.perf_counter(); import {name}; print(time.perf_counter() - t)"
            command = [sys.executable, "-c", code]
            ran = subprocess.run(command, capture_output=True, text=True, check=True, env=_environment())
            times.append(float(ran.stdout))
    result = {name: _spread(times) for name, times in taken.items()}
    result["difference of medians"] = float(np.median(taken["sparsegen"]) - np.median(taken["scipy.sparse.linalg"]))
    return result


def calls(seed: int) -> dict:
    """Nanoseconds of a call on a matrix of about 100 entries, interleaved: ours, and scipy's A @ x."""
    A = sp.random_array((53, 47), density=0.04, rng=np.random.default_rng(seed), dtype=np.float64).tocsr()
    kernel = sparsegen.compile(A, threads=1, cache=False)
    x, y = np.random.default_rng(seed).standard_normal(A.shape[1]), np.empty(A.shape[0])
    arms = {
        "kernel(x, out=y)": lambda: kernel(x, out=y), "kernel @ x": lambda: kernel @ x, "scipy A @ x": lambda: A @ x,
        "nothing": lambda: None,
    }  # fmt: skip
    rounds = timing.interleaved(arms, 1, 60, seed)
    return {"nnz": A.nnz, "kernel": kernel.report()["kernel"]} | {
        name: _spread([each[name] for each in rounds]) for name in arms
    }


def load(nnz: int, seed: int) -> dict:
    """Seconds to read a coordinate real general .mtx of nnz entries, and to load it from the store of parsed ones."""
    A = _matrix(nnz, seed).tocoo()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.mtx"
        import fast_matrix_market

        fast_matrix_market.mmwrite(str(path), A)
        taken = []
        for _ in range(3):
            begun = time.perf_counter()
            matrices.load(path)
            taken.append(time.perf_counter() - begun)
        found = {"nnz": A.nnz, "file_mb": path.stat().st_size / 1e6, "seconds": _spread(taken)}
        os.environ["SPARSEGEN_HOME"] = folder
        parsed.load(path)
        taken = []
        for _ in range(9):
            begun = time.perf_counter()
            parsed.load(path)
            taken.append(time.perf_counter() - begun)
        return {**found, "parsed_seconds": _spread(taken)}


def memory(nnz: int, seed: int) -> dict:
    """Peak memory of a compile over what was there before it, in multiples of the matrix, and where the time goes."""
    sparsegen.compile(sp.eye_array(2003, format="csr") * 2.5, threads=1, cache=False)  # imports and the worker
    A = _matrix(nnz, seed)
    size = A.data.nbytes + A.indices.nbytes + A.indptr.nbytes
    _reset_peak()
    before = _status("VmRSS")
    begun = time.perf_counter()
    kernel = sparsegen.compile(A, threads=1, cache=False, budget=2.0)
    taken = time.perf_counter() - begun
    own = (_status("VmHWM") - before) / size
    report = kernel.report()
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / size
    begun = time.perf_counter()
    sparsegen.compile(A, threads=1, budget=2.0)
    first = time.perf_counter() - begun
    begun = time.perf_counter()
    cached = sparsegen.compile(A, threads=1, budget=2.0)
    return {
        "nnz": A.nnz, "matrix_mib": size / MIB, "kernel": report["kernel"],
        "peak_of_this_process_over_the_matrix": own, "budget_s": 2.0, "compile_s": taken,
        "beyond_the_budget_s": taken - 2.0, "first_with_cache_s": first, "cached_s": time.perf_counter() - begun,
        "cached": cached.report()["cached"], "largest_child_over_the_matrix": children or None,
    }  # fmt: skip


def _matrix(nnz: int, seed: int) -> sp.csr_array:
    m = nnz // 20 + 3
    rng = np.random.default_rng(seed)
    rows = np.repeat(np.arange(m), 20)[:nnz]
    near = rows + rng.integers(-2000, 2000, nnz)
    return sp.coo_array((rng.standard_normal(nnz), (rows, np.clip(near, 0, m - 1))), shape=(m, m)).tocsr()


def stage(name: str, options) -> str:
    command = [sys.executable, __file__, "--stage", name, "--nnz", str(options.nnz), "--seed", str(options.seed)]
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run(
            command, capture_output=True, text=True, check=True, env={**_environment(), "SPARSEGEN_CACHE_DIR": folder}
        ).stdout


def _environment() -> dict:
    root = str(HERE.parent)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))}


def _spread(values) -> dict:
    p20, median, p80 = np.percentile(values, [20, 50, 80])
    return {"median": float(median), "p20": float(p20), "p80": float(p80), "repeats": len(values)}


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    return 0


def _reset_peak() -> None:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        print("the peak of before cannot be cleared here: it counts as this one's", file=sys.stderr)


if __name__ == "__main__":
    main()
