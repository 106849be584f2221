"""What the commands of the command line do: options in, results on stdout, an exit code out."""

from __future__ import annotations

import argparse
import json
import math
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

import sparsegen
from sparsegen.errors import SparsegenValueError


def _print(options: argparse.Namespace, value: Any, text: str) -> None:
    print(json.dumps(_plain(value), allow_nan=False) if options.json else text)


def _plain(value: Any) -> Any:
    """The same in the types of JSON, with null for what it has no number for."""
    if isinstance(value, dict):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


def compile(options: argparse.Namespace) -> int:
    if options.save is not None and (Path(options.save).is_dir() or not Path(options.save).parent.is_dir()):
        raise SparsegenValueError(f"cannot write {options.save!r}; expected a file in a folder that exists")
    kernel = sparsegen.compile(
        options.matrix, options.op, k=options.k, dtype=options.dtype, target=options.target, arch=options.arch,
        device=int(options.device) if (options.device or "").isdecimal() else options.device,
        budget=options.budget, expected_calls=options.expected_calls, max_candidates=options.max_candidates,
        threads=options.threads, facts=None if options.facts == "none" else "detect",
        deterministic=options.deterministic, cache=not options.no_cache, retune=options.retune, model=options.model,
        seed=options.seed,
    )  # fmt: skip
    if options.save:
        kernel.save(options.save)
    asked = {"matrix": options.matrix, "budget_s": options.budget, "seed": options.seed, "saved": options.save}
    report = type(kernel.report())({**asked, **kernel.report()})
    _print(options, report.as_dict(), str(report))
    return 0


def evaluate(options: argparse.Namespace) -> int:
    from tqdm import tqdm

    from sparsegen import judge

    records = []
    made = judge.instances(
        options.kernel, options.matrix, k=options.k, dtype=options.dtype, threads=options.threads,
        facts=None if options.facts == "none" else "detect", arch=options.arch, target=options.target,
        device=options.device,
    )  # fmt: skip
    for record in tqdm(made, disable=not sys.stderr.isatty(), file=sys.stderr, unit="kernel"):
        records.append(record)
        if not options.json:
            fault = f"{record['fault']}: {record['message'].splitlines()[0]}" if record["fault"] else ""
            time = ""
            if record.get("measured_us"):
                time = f"{record['measured_us']:.4g} us, scipy {record['scipy_us']:.4g} us"
            if found := record.get("estimate"):
                time = f"{record['estimated_us']:.4g} us on {found['device']}, {found['binds']} ({found['label']})"
            print(f"{record['label']}  {record['level']}  {time}{fault}", flush=True)
    if options.json:
        _print(options, {"kernel": options.kernel, "matrix": options.matrix, "instances": records}, "")
    wrong = [record for record in records if record["fault"] not in ("", "infeasible")]
    return 1 if wrong or all(record["fault"] for record in records) else 0


def explain(options: argparse.Namespace) -> int:
    kernel = sparsegen.load(options.file) if _is_saved(options.file) else sparsegen.compile(options.file)
    _print(options, {"file": options.file, "explanation": kernel.explain()}, kernel.explain())
    return 0


def _is_saved(path: str) -> bool:
    """Whether the file can be a saved kernel: an archive that holds `about`."""
    try:
        with zipfile.ZipFile(path) as archive:
            return "about.npy" in archive.namelist()
    except (OSError, ValueError, zipfile.BadZipFile):
        return Path(path).suffix == ".sgk"  # a damaged one: `load` says so


def show(options: argparse.Namespace) -> int:
    from sparsegen import baselines, formats, matrices, ops, targets, templates

    if options.what == "templates":
        found = [
            {"language": each.language, "op": each.op, "name": each.name, "format": each.format, "about": each.about}
            for language in templates.FOLDERS
            for each in templates.load(language)
        ]
        text = "\n".join(f"{each['language']:<5} {each['op']:<5} {each['name']:<18} {each['about']}" for each in found)
        _print(options, found, text)
    elif options.what == "collections":
        lists: dict[str, Any] = {
            name: {"matrices": len(matrices.collection(name)), "about": matrices.about(name)}
            for name in matrices.collections()
        }
        text = "\n".join(f"{name:<13} {each['matrices']:>4}  {each['about']}" for name, each in lists.items())
        _print(options, lists, text)
    else:
        registry: Any = {"formats": formats, "targets": targets, "baselines": baselines, "ops": ops}[options.what]
        about = {name: (registry.get(name).__doc__ or "").strip().splitlines()[0] for name in registry.names()}
        _print(options, about, "\n".join(f"{name:<10} {line}" for name, line in about.items()))
    return 0


def fetch(options: argparse.Namespace) -> int:
    from tqdm import tqdm

    from sparsegen import fetch, index, matrices

    if options.offline and not options.dry_run:
        raise SparsegenValueError("--offline fetches nothing; it goes with --dry-run")
    query = _query(options)
    names = None if options.collection is None else matrices.listed(options.collection)
    if query or options.limit is not None:
        entries = index.known() if options.offline or names is not None else index.full(mirror=options.mirror)
        names = index.chosen(query, entries, names, options.limit)
    items, bar = [], tqdm(disable=not sys.stderr.isatty(), file=sys.stderr, unit="B", unit_scale=True)

    def progress(name: str, done: int, whole: int | None) -> None:
        bar.set_description(name, refresh=False)
        bar.total, bar.n = whole, done
        bar.refresh()

    found = fetch.plan(names or [], options.mirror)
    for item in found if options.dry_run else fetch.fetch(names or [], options.mirror, progress):
        items.append(item)
        if not options.json:
            more = item.reason or (item.url if item.state == "missing" else str(item.path))
            bar.write(f"{item.state:<8} {item.name}" + f"  {more}" * (more != item.name), file=sys.stdout)
    bar.close()
    _print(options, [item.as_dict() for item in items], f"{len(items)} matrices")
    return 1 if any(item.state == "failed" for item in items) else 0


def _query(options: argparse.Namespace):
    from sparsegen import index

    asked = ("rows", "cols", "nnz", "kind", "group", "name", "field")
    query = index.Query(**{name: getattr(options, name) for name in asked})
    if not query and options.collection is None:
        raise SparsegenValueError(
            "that would be the whole of SuiteSparse; name a collection (sparsegen list collections) or give a size, "
            "a kind or a group"
        )
    return query


def batch(options: argparse.Namespace) -> int:
    from tqdm import tqdm

    from sparsegen import choices, index, matrices
    from sparsegen.batch import jobs, run

    model = choices.model(options.model)
    query = _query(options)
    names = None if options.collection is None else matrices.listed(options.collection)
    if query:
        names = index.chosen(query, index.known(), names)
    asked = jobs.products(options.op, options.dtype)
    planned = jobs.planned(names or [], asked, options.collection, options.shard, options.limit)
    absent = sum(not job.path for job in planned) // len(asked)
    if not planned:
        raise SparsegenValueError("no matrix is asked for; expected a collection or a query that holds some")
    if options.dry_run:
        keys = [job.key for job in planned]
        _print(options, keys, "\n".join([*keys, f"{len(planned)} jobs, {absent} matrices are not here"]))
        return 0
    if absent:
        print(f"sparsegen: {absent} matrices are not here; `sparsegen fetch` downloads them", file=sys.stderr)
    settings = run.Settings(
        options.target, options.budget, options.threads, options.facts, options.max_candidates, model,
        options.seed, options.timeout, int(options.memory * 1e9) if options.memory else None,
    )  # fmt: skip
    bar = tqdm(total=len(planned), disable=not sys.stderr.isatty(), file=sys.stderr, unit="job")

    def told(record: dict, left: int) -> None:
        if not bar.n:
            bar.initial = len(planned) - left - 1  # of an earlier process: no part of the speed of this one
        bar.n = len(planned) - left
        bar.write(_line(record), file=sys.stderr)
        bar.refresh()

    ended = run.run(
        options.out, planned, settings, resume=options.resume, retry=options.retry, workers=options.workers,
        ray=options.ray, told=told,
    )  # fmt: skip
    bar.close()
    failed = "".join(f", {count} {fault}" for fault, count in ended.faults.items())
    stopped = "; stopped: give the command again with --resume" if ended.stopped else ""
    echo = {"out": options.out, "limit": options.limit, "seed": options.seed, "shard": options.shard}
    _print(options, {**echo, **ended.as_dict()}, f"{ended.done} of {ended.jobs} jobs have a record{failed}{stopped}")
    return 1 if ended.stopped or ended.done < ended.jobs else 0


def _line(record: dict) -> str:
    """One record in a line of a log."""
    if record["fault"]:
        return f"{record['key']}: {record['fault']}: {' '.join(record['message'].split())[:200]}"
    time, speedup = record.get("measured_us"), record.get("speedup")
    measured = f", {time:.4g} us" if time else ""
    gain = f", {speedup:.2f} times {record['speedup_is_over']}" if speedup else ""
    return f"{record['key']}: {record['kernel']}{measured}{gain}"


def report(options: argparse.Namespace) -> int:
    from sparsegen.batch import compare, page, summary, tables

    runs = summary.read(*options.runs)
    found = summary.of(runs)
    against = compare.of(runs, summary.read(options.against)) if options.against else None
    if options.html:
        page.write(Path(options.html), runs, found, against)
    if options.csv:
        tables.write_times(Path(options.csv), runs)
    if options.table:
        tables.write_records(Path(options.table), runs)
    shown = {**found, **({"against": against} if against else {})}
    _print(options, shown, summary.text(found) + (compare.text(against) if against else ""))
    return 1 if against and against["slower"] else 0


def export(options: argparse.Namespace) -> int:
    from sparsegen import export

    written = export.write(sparsegen.load(options.kernel), Path(options.folder))
    _print(options, {"kernel": options.kernel, "files": written}, "\n".join(written))
    return 0


def cache(options: argparse.Namespace) -> int:
    from sparsegen import cache

    if options.what == "clear":
        removed = cache.clear()
        _print(options, {"removed": removed}, f"{removed} entries removed")
        return 0
    info = cache.info()
    lines = [f"{kind:<10} {info[kind]['entries']} entries, {info[kind]['bytes']} bytes" for kind in cache.KINDS]
    rest = [f"{name:<10} {value}" for name, value in info.items() if name not in cache.KINDS]
    _print(options, info, "\n".join(rest + lines))
    return 0


def doctor(options: argparse.Namespace) -> int:
    from sparsegen import doctor

    found = doctor.examine()
    _print(options, found, "\n".join(f"{name:<20} {value}" for name, value in found.items()))
    return 0
