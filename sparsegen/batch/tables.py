"""Records as tables: a line for each time, as kernel databanks take them, or one for each record."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np

from sparsegen import files
from sparsegen.batch.summary import Run, domain, gain, structure, times
from sparsegen.errors import SparsegenValueError

LONG = (
    "Kernel",
    "Machine&Compiler",
    "DataType",
    "Baseline tag",
    "openSource",
    "time phase",
    "Matrix-all",
    "Matrix",
    "Time",
)
COLUMNS = (
    "key", "matrix", "op", "k", "asked", "dtype", "fault", "message", "m", "n", "nnz", "domain", "structure", "kernel",
    "format", "schedule", "origin", "measured_us", "measured_p20_us", "measured_p80_us", "gain", "speedup",
    "speedup_is_over", "resolution", "rounds", "gflop_per_s", "bytes_moved", "limit_us", "fraction_of_limit",
    "limit_is", "break_even_calls", "load_ms", "pack_ms", "compile_ms", "search_ms", "total_ms", "threads", "device",
    "seed", "environment", "verified",
)  # fmt: skip
CLOSED = ("mkl", "mkl_noopt", "cusparse")  # libraries whose source is not open
NAMES = {"float32": "float", "float64": "double"}


def write_times(path: Path, run: Run) -> None:
    """Long form, one line per time in microseconds: what was returned, packing it, searching it, and each library."""
    rows = []
    for each in run.measured:
        about = run.environments.get(each.get("environment", ""), {})
        machine = f"{each['device']} / {about.get('compiler') or 'no compiler'}"
        op = each["op"] + (f" k={each['k']}" if each["op"] == "spmm" else "")
        phases = {"solve_only": each["measured_us"]}
        for phase, name in (("preprocess", "pack_ms"), ("search", "total_ms")):
            if each.get(name) is not None:
                phases[phase] = each[name] * 1e3
        arms = [(f"sparsegen {op}", "F", "Y", phase, time) for phase, time in phases.items()]
        arms += [
            (f"{name} {op}", "T", "N" if name in CLOSED else "Y", "solve_only", time)
            for name, time in times(each).items()
        ]
        for kernel, tag, source, phase, time in arms:
            dtype = NAMES.get(each["dtype"], each["dtype"])
            rows.append([kernel, machine, dtype, tag, source, phase, each["nnz"], each["matrix"], f"{time:.6g}"])
    _csv(path, LONG, rows)


def write_records(path: Path, run: Run) -> None:
    """One row per record: .csv, or .h5 with a data set for each column."""
    rows = [_flat(each) for each in run.records.values()]
    if path.suffix == ".csv":
        _csv(path, COLUMNS, [["" if row[name] is None else row[name] for name in COLUMNS] for row in rows])
        return
    if path.suffix not in (".h5", ".hdf5"):
        raise SparsegenValueError(f"--table {path}; expected a name that ends in .csv or .h5")
    import h5py

    def write(part: Path) -> None:
        with h5py.File(part, "w") as file:
            for name in COLUMNS:
                column = [row[name] for row in rows]
                numbers = all(isinstance(value, (int, float)) or value is None for value in column)
                if numbers and any(value is not None for value in column):
                    file[name] = np.array([np.nan if value is None else value for value in column], np.float64)
                else:
                    file.create_dataset(name, data=["" if each is None else str(each) for each in column],
                                        dtype=h5py.string_dtype())  # fmt: skip

    files.whole(path, write)


def _flat(record: dict) -> dict:
    found = {name: record.get(name) for name in COLUMNS}
    if "shape" in record:
        found["m"], found["n"] = record["shape"]
    found["domain"] = domain(record)
    if not record["fault"]:
        found |= {"structure": structure(record), "gain": gain(record) if record.get("measured_us") else None}
    return found


def _csv(path: Path, head: tuple[str, ...], rows: list[list]) -> None:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    files.whole(path, lambda part: part.write_text(out.getvalue(), "utf-8"))
