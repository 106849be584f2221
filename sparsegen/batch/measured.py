"""One job done: a matrix is read, its product compiled, and all that was measured is one record."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from sparsegen import bandwidth, engine, inputs, matrices, parsed, record, targets, twins
from sparsegen.batch.jobs import Job
from sparsegen.errors import SparsegenError, sentence
from sparsegen.kernel import Kernel

STORED_BYTES = 1 << 20  # of a file that the store of parsed matrices is worth it for
SPY = 32  # places of a record's image of the matrix, in either direction
DIGITS = "0123456789"
MOST_MESSAGE = 300  # characters of what is said of a candidate


def measured(job: Job, settings: dict) -> dict:
    """The record of a job. What is wrong with a matrix is its `fault`, in words its `message`; both empty else."""
    about = {"key": job.key, "matrix": job.name, "op": job.product.op, "k": job.product.k, "asked": job.product.dtype}
    if not job.path or not Path(job.path).is_file():
        return {**about, "fault": "missing", "message": "its file is not here; `sparsegen fetch` downloads matrices"}
    try:
        return {**about, **_measured(job, settings), "fault": "", "message": ""}
    except MemoryError as error:
        return {**about, "fault": "memory", "message": f"out of the memory allowed: {error}"[:MOST_MESSAGE]}
    except (SparsegenError, OSError) as error:
        said = " ".join(sentence(error).replace(job.path, job.name).split())
        return {**about, "fault": "refused", "message": said[: 3 * MOST_MESSAGE]}
    except Exception as error:  # whatever else: the run goes on, and the record tells of it
        return {**about, "fault": "error", "message": f"{type(error).__name__}: {error}"[: 3 * MOST_MESSAGE]}


def environment(settings: dict) -> dict:
    """Where records were made: seed, commit, device, versions, and what the memory gives."""
    made = record.environment(settings["seed"])
    made["target"] = engine.target_of(settings["target"])
    made["target_device"] = targets.get(made["target"]).device()
    if made["target"] == "cpu":
        made["threads"] = settings["threads"] or engine.allowed_threads()
        try:
            made["bandwidth"] = [
                [each.name, each.size_bytes, each.bytes_per_s] for each in bandwidth.levels(made["threads"])
            ]
        except (RuntimeError, ImportError):
            made["bandwidth"] = []
    return made


def _measured(job: Job, settings: dict) -> dict:
    begun = time.perf_counter()
    A = inputs.as_csr(_loaded(job.path))
    load_ms = (time.perf_counter() - begun) * 1e3
    product = job.product
    with _compiled(A, product, settings) as kernel:
        found = kernel.report().as_dict()
        held = memory()
    found["candidates"] = [{**each, "message": each["message"][:MOST_MESSAGE]} for each in found["candidates"]]
    return {
        **found, "load_ms": load_ms, "statistics": twins.statistics(A).as_dict(), "spy": spy(A),
        "seed": settings["seed"], **held,
    }  # fmt: skip


def _loaded(path: str) -> sp.csr_array | sp.coo_array:
    if os.path.getsize(path) < STORED_BYTES:
        return matrices.load(path)
    try:
        return parsed.load(path)
    except SparsegenError:  # of the matrix, or of a store that has no room for it
        return matrices.load(path)


def _compiled(A: sp.csr_array, product, settings: dict) -> Kernel:
    dtype = product.dtype
    if dtype is None and A.dtype.kind in "iub":
        dtype = "float64"  # as a pattern: there are no kernels for integers
    kernel = engine.compile(
        A, product.op, k=product.k, dtype=dtype, target=settings["target"], budget=settings["budget"],
        max_candidates=settings["max_candidates"], threads=settings["threads"],
        facts=None if settings["facts"] == "none" else "detect", cache=False, model=settings["model"],
        seed=settings["seed"],
    )  # fmt: skip
    assert isinstance(kernel, Kernel)
    return kernel


def spy(A: sp.csr_array) -> list[str]:
    """A as SPY lines of SPY digits: 0 where a part of it is empty, else 1 to 9 by the logarithm of its entries."""
    (m, n), counts = A.shape, np.zeros((SPY, SPY))
    step = 1 << 20
    for first in range(0, A.nnz, step):
        entries = np.arange(first, min(first + step, A.nnz))
        rows = np.searchsorted(A.indptr, entries, side="right") - 1
        columns = A.indices[entries].astype(np.int64)
        np.add.at(counts, (rows * SPY // m, columns * SPY // n), 1)
    most = max(counts.max(initial=0), 2)
    shades = np.where(counts > 0, 1 + np.rint(8 * np.log(np.maximum(counts, 1)) / np.log(most)), 0).astype(int)
    return ["".join(DIGITS[shade] for shade in row) for row in shades]


def memory() -> dict:
    """What this process holds: memory in use, MB, and open files; nothing where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return {"rss_mb": pages * os.sysconf("SC_PAGE_SIZE") / 1e6, "open_files": len(os.listdir("/proc/self/fd"))}
    except OSError:
        return {}
