"""The folder of a run: its settings, and one record for each job, to which a later process adds what is missing."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from sparsegen import engine, files
from sparsegen.batch import cluster, local
from sparsegen.batch.jobs import Job
from sparsegen.errors import SparsegenValueError
from sparsegen.record import Records

SETTINGS, RECORDS = "run.json", "records.jsonl"
ENVIRONMENT = "environment"  # the key of such a record begins so
LIMITS = ("timeout", "memory")  # settings that may be others when a run goes on


@dataclass(frozen=True)
class Settings:
    """Of all jobs of a run alike. budget: seconds of a search. threads: of a call, all cores by default. timeout:
    seconds of a job. memory: bytes that a job's process may allocate; a share of what is free by default."""

    target: str = "auto"
    budget: float = 2.0
    threads: int | None = None
    facts: str = "detect"
    max_candidates: int | None = None
    model: str | None = "auto"
    seed: int = 20260
    timeout: float = 900.0
    memory: int | None = None


@dataclass(frozen=True)
class Ended:
    """How a run ended. done: jobs with a record, of `jobs`; faults: those whose record is a fault, by its name."""

    jobs: int
    done: int
    faults: dict[str, int]
    stopped: bool

    def as_dict(self) -> dict:
        return asdict(self)


def run(
    folder: str | os.PathLike,
    jobs: Sequence[Job],
    settings: Settings,
    *,
    resume: bool = False,
    retry: bool = False,
    workers: int | None = None,
    ray: str | None = None,
    told: Callable[[dict, int], object] = lambda record, left: None,
) -> Ended:
    """Do the jobs that have no record yet, each record appended to `records.jsonl` as it is made.

    resume: go on with a folder that has records. retry: do jobs again whose record is a fault. workers: jobs at a time
    on a device, whose timing does not overlap; by default two where the threads of a call leave a core free. ray: the
    address of a cluster. told(record, jobs left) is called for each. SIGINT and SIGTERM end the run with what is done.

    Raises SparsegenValueError for a folder that has other settings, records without `resume`, or another process.
    """
    folder = Path(folder)
    _opened(folder, settings, resume)
    records = Records(folder / RECORDS, brief=_brief)
    left = [job for job in jobs if _undone(job, records.known.get(job.key), retry)]
    if workers is None:
        cores, threads = engine.allowed_threads(), settings.threads or engine.allowed_threads()
        workers = 2 if cores > threads else 1
    given = {**asdict(settings), "workers": workers}
    stopped: list[int] = []
    remaining = len(left)
    with files.told(lambda number, frame: stopped.append(number)):
        if ray:
            source = cluster.records(left, given, workers, lambda: bool(stopped), ray)
        else:
            source = local.records(left, given, workers, lambda: bool(stopped))
        try:
            for record in source:
                remaining -= 1
                records.append(_placed(record, records))
                told(record, remaining)
        finally:
            source.close()
    known = {job.key: records.known[job.key] for job in jobs if job.key in records.known}
    faults: dict[str, int] = {}
    for each in known.values():
        if each["fault"]:
            faults[each["fault"]] = faults.get(each["fault"], 0) + 1
    return Ended(len(jobs), len(known), faults, bool(stopped) and remaining > 0)


def _opened(folder: Path, settings: Settings, resume: bool) -> None:
    """Make the folder, or find that it is of such a run."""
    file, asked = folder / SETTINGS, asdict(settings)
    if (folder / RECORDS).exists() and not resume:
        raise SparsegenValueError(
            f"{folder} holds the records of a run; go on with it by --resume, or give another --out"
        )
    if not file.exists():
        files.whole(file, lambda part: part.write_text(json.dumps(asked, indent=2) + "\n"))
        return
    try:
        before = json.loads(file.read_text())
        asked = {name: value for name, value in asked.items() if name not in LIMITS and before.get(name) != value}
        other = [f"{name} = {before.get(name)!r}, not {value!r}" for name, value in asked.items()]
    except (ValueError, AttributeError):
        raise SparsegenValueError(f"{file} is damaged; expected the settings of a run") from None
    if other:
        raise SparsegenValueError(
            f"{folder} is a run with {', '.join(other)}; give it the same settings, or another --out"
        )


def _brief(record: dict) -> dict:
    """What this process remembers of a record, of which there may be many."""
    return {"fault": record.get("fault", "")}


def _undone(job: Job, known: dict | None, retry: bool) -> bool:
    if known is None:
        return True
    return bool(known["fault"]) and (retry or (known["fault"] == "missing" and bool(job.path)))


def _placed(record: dict, records: Records) -> dict:
    """The record with the name of its environment, whose own record is written where it is a new one."""
    about = record.pop("environment", None)
    if not about:
        return record
    digest = hashlib.blake2b(json.dumps(about, sort_keys=True).encode(), digest_size=5).hexdigest()
    key = f"{ENVIRONMENT} {digest}"
    if key not in records.known:
        records.append({"key": key, **about})
    return {**record, "environment": key}
