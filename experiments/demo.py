"""The main job on one matrix: compile it, say why, time it beside scipy, and use it inside scipy's conjugate gradients.

    python experiments/demo.py [MATRIX] [--budget SECONDS]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import scipy.sparse.linalg as spla

import sparsegen
from sparsegen import inputs

MATRIX = Path(__file__).resolve().parent.parent / "matrices" / "tiny" / "diffusion2d.mtx"
SEED = 7013
ROUNDS = 41
TOLERANCE = 1e-10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("matrix", nargs="?", default=MATRIX, help="a symmetric positive definite matrix")
    parser.add_argument("--budget", type=float, default=10.0, help="seconds for the search")
    options = parser.parse_args()
    A = inputs.as_csr(options.matrix)
    kernel = sparsegen.compile(A, budget=options.budget, cache=False, seed=SEED)

    _title("report()")
    print(kernel.report())
    _title("explain()")
    print(kernel.explain())

    rng = np.random.default_rng(SEED)
    x = rng.standard_normal(A.shape[1]).astype(A.dtype)
    _title(f"one product (seed {SEED}, median of {ROUNDS} rounds in turn)")
    difference = np.abs(kernel @ x - A @ x).max() / np.abs(A @ x).max()
    scipy_us, ours_us = _in_turn(lambda: A @ x, lambda: kernel @ x)
    print(f"A @ x        {scipy_us:8.2f} us")
    print(f"kernel @ x   {ours_us:8.2f} us, {scipy_us / ours_us:.2f} times as fast; they differ by {difference:.1e}")

    _title(f"scipy.sparse.linalg.cg (rtol {TOLERANCE:g})")
    b = rng.standard_normal(A.shape[0]).astype(A.dtype)
    for name, operator in (("A", A), ("kernel", kernel)):
        steps, residual, seconds = _solve(operator, A, b)
        print(f"cg({name}, b){'':<{8 - len(name)}} {steps} iterations, residual {residual:.1e}, {seconds * 1e3:.1f} ms")


def _title(text: str) -> None:
    print(f"\n== {text}")


def _in_turn(*calls) -> list[float]:
    """Microseconds of one call of each, the median over rounds that alternate between them."""
    times = np.empty((ROUNDS, len(calls)))
    for row in times:
        for i, call in enumerate(calls):
            repeats, begun = 0, time.perf_counter()
            while (spent := time.perf_counter() - begun) < 1e-3:
                call()
                repeats += 1
            row[i] = spent / repeats
    return list(np.median(times, axis=0) * 1e6)


def _solve(operator, A, b: np.ndarray) -> tuple[int, float, float]:
    """Iterations, relative residual and seconds (the best of five) of conjugate gradients."""
    best, steps = float("inf"), 0

    def count(_) -> None:
        nonlocal steps
        steps += 1

    for _ in range(5):
        steps, begun = 0, time.perf_counter()
        solution, status = spla.cg(operator, b, rtol=TOLERANCE, maxiter=10 * len(b), callback=count)
        best = min(best, time.perf_counter() - begun)
        if status != 0:
            raise SystemExit(f"cg did not converge in {steps} iterations: is the matrix symmetric positive definite?")
    return steps, float(np.linalg.norm(A @ solution - b) / np.linalg.norm(b)), best


if __name__ == "__main__":
    main()
