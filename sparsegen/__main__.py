"""The command line. Results go to stdout (with --json as one JSON value), progress and logs to stderr.

Exit codes: 0, done; 1, it could not be done (a file, a matrix, a kernel that is not correct); 2, the command is wrong.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import re
import sys
import warnings
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

import sparsegen
from sparsegen.errors import SparsegenError, SparsegenValueError, sentence

DTYPES = {"f32": "float32", "f64": "float64"}  # what there are kernels for
MOST_SHOWN = 4000  # characters of one message


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code. `--help`, `--version` and a wrong command line raise SystemExit."""
    options = _parser().parse_args(arguments)
    level = logging.INFO if options.verbose else logging.WARNING
    logging.basicConfig(level=level, format="sparsegen: %(message)s", stream=sys.stderr)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            warnings.showwarning = lambda message, *_, **__: _say(f"warning: {message}")
            status = options.run(options)
        print(end="", flush=True)
        return status
    except BrokenPipeError:  # the reader has seen enough; what is left in the buffer goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (SparsegenError, OSError) as error:
        return _fail(sentence(error))
    except MemoryError:
        return _fail("out of memory; a smaller matrix or k, or a machine with more, is needed")
    except KeyboardInterrupt:
        return _fail("interrupted")


def _fail(message: str) -> int:
    _say(message)
    return 1


def _say(message: str) -> None:
    print("sparsegen:", " ".join(message.split())[:MOST_SHOWN], file=sys.stderr)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser("sparsegen", description="Verified sparse kernels made for one matrix.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=sparsegen.__version__)
    parser.add_argument("--verbose", action="store_true", help="say on stderr what is tried")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, run: Callable, text: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        made.set_defaults(run=run)
        made.add_argument("--json", action="store_true", help="one JSON value on stdout")
        return made

    def problem(made: argparse.ArgumentParser) -> None:
        made.add_argument("--k", type=_integer(1), help="columns of B, for spmm")
        made.add_argument("--dtype", type=_dtype, metavar="f32|f64", help="of the values; those of the file by default")
        made.add_argument("--threads", type=_integer(1, 256), help="that a call may use; all cores by default")
        made.add_argument("--facts", default="detect", choices=["detect", "none"], help="what to assume of the values")
        made.add_argument("--arch", type=_arch, help="cross-compile CUDA for this architecture, e.g. sm_90")

    made = command("compile", _compile, "search for the fastest verified kernel of a matrix")
    made.add_argument("matrix", metavar="A.mtx", help="a matrix file")
    made.add_argument("--op", default="spmv", choices=["spmv", "spmm"])
    problem(made)
    made.add_argument("--target", default="auto", choices=["auto", "cpu", "cuda"])
    made.add_argument("--budget", type=_number, default=2.0, help="seconds for the search (%(default)s)")
    made.add_argument("--expected-calls", type=_number, help="spend no more than so many calls win back")
    made.add_argument("--max-candidates", type=_integer(0))
    made.add_argument("--model", default="auto", help="auto, none (templates alone), or the folder of a checkpoint")
    made.add_argument("--deterministic", action="store_true", help="bitwise equal results of equal calls")
    made.add_argument("--seed", type=_integer(0), default=20260, help="of the order of timing (%(default)s)")
    made.add_argument("--retune", action="store_true", help="search again though a choice is cached")
    made.add_argument("--no-cache", action="store_true", help="neither use nor keep a choice")
    made.add_argument("--save", metavar="K.sgk", help="write the kernel to a file")

    made = command("evaluate", _evaluate, "judge a kernel file on a matrix: every instance of it")
    made.add_argument("kernel", metavar="KERNEL_FILE", help="a kernel file, .cpp or .cu")
    made.add_argument("matrix", metavar="A.mtx", help="a matrix file")
    problem(made)

    made = command("explain", _explain, "say in words what a saved kernel is, or what a matrix gets")
    made.add_argument("file", help="a kernel written by --save, or a matrix file")

    made = command("list", _list, "what there is")
    made.add_argument("what", choices=["formats", "templates", "targets", "baselines", "ops", "collections"])

    made = command("cache", _cache, "look at the cache or empty it")
    made.add_argument("what", choices=["info", "clear"])

    command("doctor", _doctor, "what this machine offers, and what to install for what is missing")
    return parser


def _integer(least: int, most: int = 2**31 - 1) -> Callable[[str], int]:
    def convert(text: str) -> int:
        if not re.fullmatch(r"[+-]?\d{1,18}", text) or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not an integer from {least} to {most}")
        return int(text)

    return convert


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 0")
    return value


def _dtype(text: str) -> str:
    name = DTYPES.get(text, text)
    if name not in DTYPES.values():
        raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(DTYPES)}")
    return name


def _arch(text: str) -> str:
    if not re.fullmatch(r"sm_\d{2,3}[af]?", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a CUDA architecture such as sm_90")
    return text


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


def _compile(options: argparse.Namespace) -> int:
    if options.save is not None and (Path(options.save).is_dir() or not Path(options.save).parent.is_dir()):
        raise SparsegenValueError(f"cannot write {options.save!r}; expected a file in a folder that exists")
    kernel = sparsegen.compile(
        options.matrix, options.op, k=options.k, dtype=options.dtype, target=options.target, arch=options.arch,
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


def _evaluate(options: argparse.Namespace) -> int:
    from tqdm import tqdm

    from sparsegen import judge

    records = []
    made = judge.instances(
        options.kernel, options.matrix, k=options.k, dtype=options.dtype, threads=options.threads,
        facts=None if options.facts == "none" else "detect", arch=options.arch,
    )  # fmt: skip
    for record in tqdm(made, disable=not sys.stderr.isatty(), file=sys.stderr, unit="kernel"):
        records.append(record)
        if not options.json:
            fault = f"{record['fault']}: {record['message'].splitlines()[0]}" if record["fault"] else ""
            time = ""
            if record.get("measured_us"):
                time = f"{record['measured_us']:.4g} us, scipy {record['scipy_us']:.4g} us"
            print(f"{record['label']}  {record['level']}  {time}{fault}", flush=True)
    if options.json:
        _print(options, {"kernel": options.kernel, "matrix": options.matrix, "instances": records}, "")
    wrong = [record for record in records if record["fault"] not in ("", "infeasible")]
    return 1 if wrong or all(record["fault"] for record in records) else 0


def _explain(options: argparse.Namespace) -> int:
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


def _list(options: argparse.Namespace) -> int:
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
        sizes = {name: len(matrices.collection(name)) for name in matrices.collections()}
        _print(options, sizes, "\n".join(f"{name:<10} {size} matrices" for name, size in sizes.items()))
    else:
        registry: Any = {"formats": formats, "targets": targets, "baselines": baselines, "ops": ops}[options.what]
        about = {name: (registry.get(name).__doc__ or "").strip().splitlines()[0] for name in registry.names()}
        _print(options, about, "\n".join(f"{name:<10} {line}" for name, line in about.items()))
    return 0


def _cache(options: argparse.Namespace) -> int:
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


def _doctor(options: argparse.Namespace) -> int:
    from sparsegen import doctor

    found = doctor.examine()
    _print(options, found, "\n".join(f"{name:<20} {value}" for name, value in found.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
