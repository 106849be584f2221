"""What several tests need: an exact product to compare with, and kernels without a search."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import scipy.io
import scipy.sparse as sp

from sparsegen import engine, fence, gallery, templates, timing
from sparsegen.candidate import Candidate, instances, parse
from sparsegen.kernel import Kernel
from sparsegen.problem import Facts, Problem

BUDGET = 0.3
ROOT = Path(__file__).resolve().parent.parent


def right(y, A, x, alpha=1.0, beta=0.0, y0=None, dtype=None) -> None:
    """Assert y = alpha A x + beta y0 componentwise, within what sums of that length in dtype may be off by.

    Where the exact result is NaN or infinite, y must be the same.
    """
    y, x, B = np.asarray(y), np.asarray(x), sp.csr_array(A)
    whole = y.dtype.kind in "biu"  # sums wrap, or saturate at true
    wide = y.dtype if whole else np.dtype(np.clongdouble if "c" in (A.dtype.kind, x.dtype.kind) else np.longdouble)
    exact = np.zeros((A.shape[0], *x.shape[1:]), wide)
    size = np.zeros(exact.shape, np.longdouble)
    lengths = np.diff(B.indptr).reshape(-1, *[1] * (x.ndim - 1))
    rows = np.repeat(np.arange(A.shape[0]), np.diff(B.indptr))
    with np.errstate(all="ignore"):
        terms = B.data.astype(wide).reshape(-1, *[1] * (x.ndim - 1)) * x[B.indices].astype(wide)
        np.add.at(exact, rows, terms)
        np.add.at(size, rows, np.abs(terms).astype(np.longdouble))
        if alpha != 1:
            exact, size = alpha * exact, abs(alpha) * size
        if beta:
            exact = exact + beta * y0.astype(wide)
            size = size + abs(beta) * np.abs(y0).astype(np.longdouble)
    assert y.shape == exact.shape
    if whole:
        np.testing.assert_array_equal(y, exact)
        return
    info = np.finfo(dtype or y.dtype)
    finite = np.isfinite(exact)
    bound = ((lengths + 4) * float(info.eps) * size + float(info.smallest_subnormal) * (lengths + 4))[finite]
    if y.dtype == np.float16:
        bound = bound + float(np.finfo(np.float16).eps) * np.abs(exact[finite])
    error = np.abs(y[finite].astype(wide) - exact[finite])
    assert (error <= bound).all(), f"off by {np.nanmax(error / np.where(bound > 0, bound, 1)):.3g} times the bound"
    if not finite.all():
        special = exact[~finite]
        if special.dtype.kind == "c":
            assert not np.isfinite(y[~finite]).any()
        else:
            np.testing.assert_array_equal(y[~finite], special.astype(y.dtype))


@contextmanager
def asked_in_turns(lock: Path, monkeypatch) -> Iterator[set[tuple[str, bool]]]:
    """Share `lock` meanwhile; gives what workers were asked, each with whether this process had the turn."""
    asked: set[tuple[str, bool]] = set()
    ask = fence.Session.ask

    def noted(self, request, seconds, **details):
        asked.add((request, bool(timing._turn)))
        return ask(self, request, seconds, **details)

    monkeypatch.setattr(fence.Session, "ask", noted)
    timing.share(lock)
    try:
        yield asked
    finally:
        timing.share(None)


def template(name: str, **wanted) -> Candidate:
    """The first instance of a CPU template with these parameters."""
    found = (each for each in instances(templates.get(name)) if wanted.items() <= each.params.items())
    return next(found)


def kernel_of(A, candidate: Candidate | None, *, facts="detect", threads=1, baseline="scipy", k=None) -> Kernel:
    """A kernel of this very candidate, without a search."""
    op = "spmv" if k is None else "spmm"
    problem = engine.problem_of(A, op=op, k=k, threads=threads, facts=facts)
    return Kernel(A, problem, candidate, baseline, {"notes": []}, threads, {"budget": 0.0, "threads": threads})


LOOP = """for (int64_t row = begin; row < end; ++row) {
    ACC sum = 0;
    for (OFFSET p = indptr[row]; p < indptr[row + 1]; ++p) sum += VALUE_AT(p) * ACC(x[indices[p]]);
    STORE(y, row, sum);
}"""


def user_kernel(body: str = LOOP, name: str = "csr_user", header: str = "") -> Candidate:
    """A CSR kernel file as a user, or a model, would write it."""
    return parse(
        f"""/* sparsegen
op = "spmv"
format = "csr"
{header}
[[launch]]
entry = "spmv"
items = "m"
*/
extern "C" void spmv(SIZES, CSR_ARRAYS, const VALUE* x, VALUE* y, EPILOGUE, int64_t begin, int64_t end) {{
{body}
}}
""",
        name=name,
    )


def problem_of(A, op="spmv", **options) -> Problem:
    return engine.problem_of(A, op=op, **{"threads": 1, **options})


def checksum(A) -> str:
    """Of everything a caller handed over: any sparse format, or an array."""
    digest = hashlib.sha256()
    if isinstance(A, np.ndarray):
        parts = [A]
    elif A.format == "lil":
        parts = [np.array([repr(A.rows.tolist()), repr(A.data.tolist())])]
    elif A.format == "dok":
        return repr(list(A.items()))
    else:
        names = ("data", "indices", "indptr", "row", "col", "offsets")
        parts = [getattr(A, name) for name in names if hasattr(A, name)]
    for part in parts:
        digest.update(repr((part.dtype, part.shape, part.strides)).encode() + part.tobytes())
    return digest.hexdigest()


def together(count: int, call) -> list:
    """call(0) ... call(count - 1) in threads that start at once; their results, or the first exception."""
    results: list = [None] * count
    errors: list[BaseException] = []
    gate = threading.Barrier(count)

    def run(number: int) -> None:
        gate.wait()
        try:
            results[number] = call(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


__all__ = ["BUDGET", "Facts", "checksum", "kernel_of", "problem_of", "right", "template", "together", "user_kernel"]


def folder_of(tmp_path: Path, count: int) -> Path:
    """So many small matrices, each another one."""
    folder = tmp_path / "set"
    folder.mkdir()
    for number in range(count):
        scipy.io.mmwrite(folder / f"m{number:03}.mtx", gallery.uniform(31 + number, 29, 97, seed=7100 + number))
    return folder


@contextmanager
def held(*paths: Path) -> Iterator[subprocess.Popen]:
    """Another process that holds files, as one that is at work on them does."""
    hold = "[files.alone(pathlib.Path(each)) for each in sys.argv[1:]]; print(flush=True); sys.stdin.read()"
    code = f"import sys, pathlib; from sparsegen import files; {hold}"
    command = [sys.executable, "-c", code, *map(str, paths)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as other:
        assert other.stdout and other.stdout.readline()
        try:
            yield other
        finally:
            other.kill()
