"""What the records of a run say: speedups over each library by size, domain and structure, limits, who wins where."""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sparsegen import index, metrics
from sparsegen.batch.run import ENVIRONMENT, RECORDS
from sparsegen.errors import SparsegenValueError
from sparsegen.record import known

SIZES = ((1e3, "under 1k"), (1e4, "1k to 10k"), (1e5, "10k to 100k"), (1e6, "100k to 1M"), (1e7, "1M to 10M"))
LARGEST = "over 10M"
TIE = 0.03  # placement of arrays alone moves times by as much
BEST = "best library"


@dataclass(frozen=True)
class Run:
    """records: by key, of the folders together; environments: what they were made in, by name."""

    folders: tuple[str, ...]
    records: dict[str, dict]
    environments: dict[str, dict]

    @property
    def measured(self) -> list[dict]:
        """The records that have a time."""
        return [each for each in self.records.values() if not each["fault"] and each.get("measured_us")]


def read(*folders: str | os.PathLike) -> Run:
    """The records of runs; of one key in several the last one counts. Raises SparsegenValueError."""
    records: dict[str, dict] = {}
    environments: dict[str, dict] = {}
    for folder in folders:
        file = Path(folder) / RECORDS
        if not file.is_file():
            raise SparsegenValueError(
                f"{folder} is no run: it has no {RECORDS}; expected the --out of `sparsegen batch`"
            )
        for key, record in known(file).items():
            (environments if key.startswith(f"{ENVIRONMENT} ") else records)[key] = record
    if damaged := [key for key, each in records.items() if "fault" not in each or "matrix" not in each]:
        raise SparsegenValueError(
            f"{folders[0]}: the record {damaged[0]!r} is none of a batch; expected those of a run"
        )
    return Run(tuple(map(str, folders)), records, environments)


def of(run: Run) -> dict:
    """The whole summary, in the types of JSON."""
    faults = Counter(each["fault"] for each in run.records.values() if each["fault"])
    products = dict.fromkeys(product(each) for each in run.measured)
    return {
        "runs": list(run.folders),
        "environments": {name: dict(about) for name, about in run.environments.items()},
        "records": len(run.records),
        "matrices": len({each["matrix"] for each in run.records.values()}),
        "faults": dict(faults),
        "failed": {key: f"{each['fault']}: {each['message']}" for key, each in run.records.items() if each["fault"]},
        "products": {name: _product([each for each in run.measured if product(each) == name]) for name in products},
    }


def product(record: dict) -> str:
    """As "spmm k=32 float64"."""
    wide = f" k={record['k']}" if record["op"] == "spmm" else ""
    return f"{record['op']}{wide} {record['dtype']}"


def times(record: dict) -> dict[str, float]:
    """Microseconds of each library that was measured, by name."""
    return {name: each["measured_us"] for name, each in record["baselines"].items() if each.get("measured_us")}


def gain(record: dict, over: str = BEST) -> float | None:
    """The time of a library, or of the best of them, over that of what `compile` returned."""
    found = times(record)
    if over == BEST:
        return min(found.values()) / record["measured_us"] if found else None
    return found[over] / record["measured_us"] if over in found else None


def size(record: dict) -> str:
    return next((label for most, label in SIZES if record["nnz"] < most), LARGEST)


def structure(record: dict) -> str:
    """A word for the pattern, by rules over its statistics; the first that fits."""
    found = record.get("statistics") or {}
    if not found.get("mean"):
        return "empty"
    if found["skew"] >= 8:
        return "long rows"
    if found["shift"] >= 0.8:
        return "diagonals"
    if found["clustering"] >= 1 and found["similarity"] >= 0.5:
        return "blocks"
    if found["mean"] < 3:
        return "short rows"
    return "banded" if found["bandwidth"] + found["drift"] <= 0.1 else "scattered"


def domain(record: dict) -> str:
    """The domain of a matrix of SuiteSparse, or its kind; "other" where it is not known."""
    parts = Path(record["matrix"]).name.split(".")[0].replace("__", "/").split("/")
    if len(parts) < 2:
        parts = [*Path(record["matrix"]).parent.parts[-1:], *parts]
    entry = _entries().get("/".join(parts))
    return (entry.domain or entry.kind) if entry else "other"


@functools.cache
def _entries() -> dict[str, index.Entry]:
    return {entry.key: entry for entry in index.known()}


def spread(values: Sequence[float], names: Sequence[str], limits: Sequence[float] | None = None) -> dict:
    """Geometric mean, percentiles, losses (below 1 by over `limits`) and the worst, with its matrix."""
    p10, median, p90 = np.percentile(values, [10, 50, 90])
    worst = int(np.argmin(values))
    lost = [value < 1 - limit for value, limit in zip(values, limits, strict=True)] if limits is not None else []
    return {
        "count": len(values), "geomean": metrics.geomean(values), "p10": float(p10),
        "median": float(median), "p90": float(p90), "losses": sum(lost), "worst": float(values[worst]),
        "worst_matrix": names[worst],
    }  # fmt: skip


def profile(records: Sequence[dict]) -> dict[str, list[tuple[float, float]]]:
    """The performance profile (Dolan & More, 2002): of each solver the share of matrices on which it takes at most
    tau times the best time, as (tau, share) where it steps."""
    solvers = dict.fromkeys(name for each in records for name in times(each))
    taken = [{"sparsegen": each["measured_us"], **times(each)} for each in records]
    curves = {}
    for solver in ("sparsegen", *sorted(solvers)):
        ratios = sorted(each[solver] / min(each.values()) for each in taken if solver in each)
        curves[solver] = [(ratio, (place + 1) / len(taken)) for place, ratio in enumerate(ratios)]
    return curves


def _product(records: list[dict]) -> dict:
    libraries = sorted({name for each in records for name in times(each)})
    return {
        "count": len(records),
        "library_serves": sum(each["origin"] == "baseline" for each in records),
        "over": {name: found for name in (BEST, *libraries) if (found := _gains(records, name))},
        "by_size": _grouped(records, size, [*(label for _, label in SIZES), LARGEST]),
        "by_structure": _grouped(records, structure),
        "by_domain": _grouped(records, domain),
        "of_limit": _limits(records),
        "break_even_calls": _optional([each["break_even_calls"] for each in records], records),
        "search_s": _optional([(each["total_ms"] or 0) / 1e3 for each in records], records),
        "origins": dict(Counter(each["origin"] for each in records)),
        "formats": _formats(records),
    }  # fmt: skip


def _gains(records: Iterable[dict], over: str = BEST) -> dict | None:
    some = [(found, each) for each in records if (found := gain(each, over))]
    if not some:
        return None
    limits = [max(each["resolution"] or 0.0, TIE) for _, each in some]
    return spread([found for found, _ in some], [each["matrix"] for _, each in some], limits)


def _grouped(records: list[dict], label: Callable[[dict], str], order: Sequence[str] | None = None) -> dict[str, dict]:
    labels = [label(each) for each in records]
    found = {}
    for name in order or sorted(set(labels)):
        if rows := _gains(each for each, own in zip(records, labels, strict=True) if own == name):
            found[name] = rows
    return found


def _limits(records: list[dict]) -> dict[str, dict]:
    """Fractions of what the memory allows, by the level the product fits in; those of caches say little."""
    found: dict[str, list[dict]] = {}
    for each in records:
        if each.get("fraction_of_limit"):
            level = "a cache" if "cache-resident" in each["limit_is"] else "memory"
            found.setdefault(level, []).append(each)
    return {
        level: spread([each["fraction_of_limit"] for each in rows], [each["matrix"] for each in rows])
        for level, rows in sorted(found.items())
    }


def _optional(values: Sequence[float | None], records: Sequence[dict]) -> dict | None:
    known = [(value, each["matrix"]) for value, each in zip(values, records, strict=True) if value]
    return spread(*map(list, zip(*known, strict=True))) if known else None


def _formats(records: list[dict]) -> dict[str, dict[str, int]]:
    """Structure -> how often each format won; a library that serves is named."""
    found: dict[str, Counter] = {}
    for each in records:
        won = each["format"] or each["kernel"].replace("baseline ", "")
        found.setdefault(structure(each), Counter())[won] += 1
    return {name: dict(found[name].most_common()) for name in sorted(found)}


def text(found: dict) -> str:
    """The summary as tables for a terminal."""
    lines = [f"{found['matrices']} matrices, {found['records']} records" + "".join(
        f", {count} {fault}" for fault, count in found["faults"].items()
    )]  # fmt: skip
    head = f"{'':<32}{'count':>6}{'geomean':>9}{'p10':>7}{'median':>8}{'p90':>7}{'losses':>8}{'worst':>7}"
    for name, each in found["products"].items():
        lines += [
            "",
            f"{name}: speedup of what compile returned; a library served {each['library_serves']} times",
            head,
        ]
        for label, rows in (
            ("over", each["over"]), ("size", each["by_size"]), ("structure", each["by_structure"]),
            ("domain", each["by_domain"]),
        ):  # fmt: skip
            lines += [_row(f"{label} {group}", row) for group, row in rows.items()]
        lines += [_row(f"share of limit, {level}", row) for level, row in each["of_limit"].items()]
        if row := each["break_even_calls"]:
            lines.append(
                f"won back after {row['median']:.3g} calls (median; p10 {row['p10']:.3g}, p90 {row['p90']:.3g})"
            )
        for group, wins in each["formats"].items():
            lines.append(f"on {group}: " + ", ".join(f"{format} {count}" for format, count in wins.items()))
    return "\n".join(lines)


def _row(label: str, row: dict) -> str:
    numbers = f"{row['geomean']:>9.2f}{row['p10']:>7.2f}{row['median']:>8.2f}{row['p90']:>7.2f}"
    return f"{label[:32]:<32}{row['count']:>6}{numbers}{row['losses']:>8}{row['worst']:>7.2f}  {row['worst_matrix']}"
