"""The command line. Results go to stdout (JSON with --json), progress and logs to stderr; exit codes are 0, 1 and 2.

0: done. 1: what was asked could not be done (a file, a kernel that is not correct). 2: the command line is wrong.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Sequence

import sparsegen
from sparsegen.errors import SparsegenError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO if options.verbose else logging.WARNING, format="%(message)s", stream=sys.stderr)
    try:
        return options.run(options)
    except SparsegenError as error:
        print(f"sparsegen: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    except KeyboardInterrupt:
        print("sparsegen: interrupted", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("sparsegen", description="Verified sparse kernels made for one matrix.")
    parser.add_argument("--version", action="version", version=sparsegen.__version__)
    parser.add_argument("--verbose", action="store_true", help="what is tried, on stderr")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, run, text: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, description=text)
        made.set_defaults(run=run)
        made.add_argument("--json", action="store_true", help="one JSON object on stdout")
        return made

    def problem(made: argparse.ArgumentParser) -> None:
        made.add_argument("--op", default="spmv", choices=["spmv", "spmm"])
        made.add_argument("--k", type=int, help="columns of B, for spmm")
        made.add_argument("--dtype", help="of the values: float32 or float64 (f32, f64)")
        made.add_argument("--threads", type=int, help="that a call may use; all cores by default")
        made.add_argument("--facts", default="detect", choices=["detect", "none"])

    made = command("compile", _compile, "search for the fastest verified kernel of a matrix")
    made.add_argument("matrix", help="a matrix file")
    problem(made)
    made.add_argument("--target", default="auto", choices=["auto", "cpu", "cuda"])
    made.add_argument("--arch", help="cross-compile CUDA for this architecture, e.g. sm_90")
    made.add_argument("--budget", type=float, default=2.0, help="seconds for the search")
    made.add_argument("--expected-calls", type=float, help="spend no more than so many calls win back")
    made.add_argument("--max-candidates", type=int)
    made.add_argument("--deterministic", action="store_true", help="bitwise equal results of equal calls")
    made.add_argument("--seed", type=int, default=20260)
    made.add_argument("--retune", action="store_true", help="search again though a choice is cached")
    made.add_argument("--no-cache", action="store_true")
    made.add_argument("--save", metavar="K.sgk", help="write the kernel to a file")

    made = command("evaluate", _evaluate, "judge one kernel file on a matrix: every instance of it")
    made.add_argument("kernel", help="a kernel file, .cpp or .cu")
    made.add_argument("matrix", help="a matrix file")
    problem(made)
    made.add_argument("--arch", default=None, help="for CUDA files: compile for this architecture (sm_90)")

    made = command("explain", _explain, "say in words what a saved kernel is, or what a matrix would get")
    made.add_argument("file", help="a kernel written by --save, or a matrix file")

    made = command("list", _list, "what there is")
    made.add_argument("what", choices=["formats", "templates", "targets", "baselines", "ops", "collections"])

    made = command("cache", _cache, "look at the cache or empty it")
    made.add_argument("what", choices=["info", "clear"])

    command("doctor", _doctor, "what this machine offers, and what to install for what is missing")
    return parser


DTYPES = {"f16": "float16", "f32": "float32", "f64": "float64", "c64": "complex64", "c128": "complex128"}


def _dtype(name: str | None) -> str | None:
    return DTYPES.get(name, name) if name else None


def _print(options, report, text: str) -> None:
    if options.json:
        print(json.dumps(report, default=str, allow_nan=False))
    else:
        print(text)


def _finite(value):
    """The same with None for what JSON has no number for."""
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and (value != value or abs(value) == float("inf")) else value


def _compile(options) -> int:
    A = sparsegen.matrices.load(options.matrix)
    kernel = sparsegen.compile(
        A, options.op, k=options.k, dtype=_dtype(options.dtype), target=options.target, arch=options.arch,
        budget=options.budget, expected_calls=options.expected_calls, max_candidates=options.max_candidates,
        threads=options.threads, facts=None if options.facts == "none" else "detect",
        deterministic=options.deterministic, cache=not options.no_cache, retune=options.retune, seed=options.seed,
    )  # fmt: skip
    if options.save:
        kernel.save(options.save)
    report = {**_finite(kernel.report().as_dict()), "matrix": options.matrix, "saved": options.save, "seed": options.seed}
    _print(options, report, str(kernel.report()))
    return 0


def _evaluate(options) -> int:
    from tqdm import tqdm

    from sparsegen import judge

    records = []
    made = judge.instances(
        options.kernel, options.matrix, op=options.op, k=options.k, dtype=_dtype(options.dtype), threads=options.threads,
        facts=None if options.facts == "none" else "detect", arch=options.arch,
    )  # fmt: skip
    for record in tqdm(made, disable=not sys.stderr.isatty(), file=sys.stderr, unit="kernel"):
        records.append(record)
        if options.json:
            print(json.dumps(_finite(record), default=str, allow_nan=False), flush=True)
        else:
            fault = f"{record['fault']}: {record['message'].splitlines()[0]}" if record["fault"] else ""
            time = f"{record['measured_us']:.4g} us" if record.get("measured_us") else ""
            print(f"{record['label']}  {record['level']}  {time}{fault}", flush=True)
    wrong = [record for record in records if record["fault"] not in ("", "infeasible")]
    return 1 if wrong or not records or all(record["fault"] for record in records) else 0


def _explain(options) -> int:
    if zipfile_like(options.file):
        kernel = sparsegen.load(options.file)
        _print(options, {"explanation": kernel.explain()}, kernel.explain())
    else:
        kernel = sparsegen.compile(options.file)
        _print(options, {"explanation": kernel.explain()}, kernel.explain())
    return 0


def zipfile_like(path: str) -> bool:
    """Whether the file can be a saved kernel: an archive that holds `about`."""
    import zipfile

    try:
        with zipfile.ZipFile(path) as archive:
            return "about.npy" in archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return False


def _list(options) -> int:
    from sparsegen import baselines, formats, matrices, ops, targets, templates

    if options.what == "templates":
        found = [
            {"language": each.language, "op": each.op, "name": each.name, "format": each.format, "about": each.about}
            for language in ("cpp", "cuda")
            for each in templates.load(language)
        ]
        text = "\n".join(f"{each['language']:<5} {each['op']:<5} {each['name']:<18} {each['about']}" for each in found)
        _print(options, found, text)
        return 0
    if options.what == "collections":
        names = matrices.collections()
    else:
        registry = {"formats": formats, "targets": targets, "baselines": baselines, "ops": ops}[options.what]
        names = registry.names()
        about = [(registry.get(name).__doc__ or "").strip().splitlines()[0] for name in names]
        _print(options, dict(zip(names, about, strict=True)), "\n".join(map("{:<10} {}".format, names, about)))
        return 0
    _print(options, names, "\n".join(names))
    return 0


def _cache(options) -> int:
    from sparsegen import cache

    if options.what == "clear":
        removed = cache.clear()
        _print(options, {"removed": removed}, f"{removed} entries removed")
    else:
        info = cache.info()
        _print(options, info, "\n".join(f"{name:<10} {value}" for name, value in info.items()))
    return 0


def _doctor(options) -> int:
    from sparsegen import doctor

    found = doctor.examine()
    _print(options, found, "\n".join(f"{name:<20} {value}" for name, value in found.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main(list(sys.argv[1:])))


