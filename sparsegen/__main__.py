"""The command line. Results go to stdout (with --json as one JSON value), progress and logs to stderr.

Exit codes: 0, done; 1, it could not be done (a file, a matrix, a kernel that is not correct); 2, the command is wrong.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import NoReturn

import sparsegen
from sparsegen import commands
from sparsegen.errors import SparsegenError, sentence

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
    parsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, run: Callable, text: str) -> argparse.ArgumentParser:
        made = parsers.add_parser(name, help=text, description=text, allow_abbrev=False)
        made.set_defaults(run=run)
        made.add_argument("--json", action="store_true", help="one JSON value on stdout")
        return made

    def shared(made: argparse.ArgumentParser) -> None:
        made.add_argument("--threads", type=_integer(1, 256), help="that a call may use; all cores by default")
        made.add_argument("--facts", default="detect", choices=["detect", "none"], help="what to assume of the values")

    def problem(made: argparse.ArgumentParser) -> None:
        made.add_argument("--k", type=_integer(1), help="columns of B, for spmm")
        made.add_argument("--dtype", type=_dtype, metavar="f32|f64", help="of the values; those of the file by default")
        shared(made)
        made.add_argument("--arch", type=_arch, help="cross-compile CUDA for this architecture, e.g. sm_90")

    def search(made: argparse.ArgumentParser) -> None:
        made.add_argument("--budget", type=_number, default=2.0, help="seconds for each search (%(default)s)")
        made.add_argument("--max-candidates", type=_integer(0))
        made.add_argument("--model", default="auto", help="auto, none (templates alone), or the folder of a checkpoint")
        made.add_argument("--seed", type=_integer(0), default=20260, help="of the order of timing (%(default)s)")

    def query(made: argparse.ArgumentParser) -> None:
        for name in ("rows", "cols", "nnz"):
            made.add_argument(f"--{name}", metavar="FROM:TO", help="only such sizes, as 1e4:1e6, :1e7 or 400")
        made.add_argument("--kind", help="only kinds with these words, as structural")
        made.add_argument("--group", help="only this group, as HB; * and ? stand for letters")
        made.add_argument("--name", help="only such names")
        made.add_argument("--field", help="real, complex, integer or pattern")

    made = command("compile", commands.compile, "search for the fastest verified kernel of a matrix")
    made.add_argument("matrix", metavar="A.mtx", help="a matrix file")
    made.add_argument("--op", default="spmv", choices=["spmv", "spmm"])
    problem(made)
    made.add_argument("--target", default="auto", choices=["auto", "cpu", "cuda", "emulator"])
    made.add_argument("--device", help="a GPU whose times are estimated, e.g. A100, or the number of one that is here")
    search(made)
    made.add_argument("--expected-calls", type=_number, help="spend no more than so many calls win back")
    made.add_argument("--deterministic", action="store_true", help="bitwise equal results of equal calls")
    made.add_argument("--retune", action="store_true", help="search again though a choice is cached")
    made.add_argument("--no-cache", action="store_true", help="neither use nor keep a choice")
    made.add_argument("--save", metavar="K.sgk", help="write the kernel to a file")

    made = command("evaluate", commands.evaluate, "judge a kernel file on a matrix: every instance of it")
    made.add_argument("kernel", metavar="KERNEL_FILE", help="a kernel file, .cpp or .cu")
    made.add_argument("matrix", metavar="A.mtx", help="a matrix file")
    made.add_argument("--target", choices=["cpu", "cuda", "emulator"], help="emulator: CUDA, executed without a GPU")
    made.add_argument("--device", help="with --target emulator: the GPU whose times are estimated, e.g. H200 (A100)")
    problem(made)

    made = command("explain", commands.explain, "say in words what a saved kernel is, or what a matrix gets")
    made.add_argument("file", help="a kernel written by --save, or a matrix file")

    made = command("list", commands.show, "what there is")
    made.add_argument("what", choices=["formats", "templates", "targets", "baselines", "ops", "collections"])

    made = command("fetch", commands.fetch, "download the matrices of a collection that are not here yet")
    made.add_argument("collection", nargs="?", help="a list, a file or a folder; without one, the whole of SuiteSparse")
    query(made)
    made.add_argument("--limit", type=_integer(0), help="no more than so many, the smallest first")
    made.add_argument("--dry-run", action="store_true", help="say what would be downloaded")
    made.add_argument("--mirror", metavar="URL", help="a site that is laid out as https://sparse.tamu.edu")
    made.add_argument("--offline", action="store_true", help="connect to nothing; for --dry-run")

    made = command("batch", commands.batch, "compile every matrix of a collection, one record for each product of each")
    made.add_argument("collection", nargs="?", help="a list, a file or a folder; without one, a query of SuiteSparse")
    query(made)
    made.add_argument("--limit", type=_integer(0), help="no more than so many matrices, the first ones")
    made.add_argument("--out", required=True, metavar="RUN", help="the folder of the run")
    made.add_argument("--op", default="spmv", metavar="spmv,spmm:k=32", help="products (%(default)s)")
    made.add_argument("--dtype", metavar="f64,f32", help="of the values; those of the file by default")
    made.add_argument("--target", default="auto", choices=["auto", "cpu", "cuda"])
    shared(made)
    search(made)
    made.add_argument("--resume", action="store_true", help="go on with the run that is in RUN")
    made.add_argument("--retry", action="store_true", help="with --resume: what failed as well")
    made.add_argument("--shard", metavar="I/N", help="every Nth matrix, from the Ith on")
    made.add_argument("--workers", type=_integer(1, 64), help="jobs at a time on a device; timing never overlaps")
    made.add_argument("--ray", metavar="ADDRESS", help="use the machines of a Ray cluster: auto, local or HOST:PORT")
    made.add_argument("--timeout", type=_number, default=900.0, help="seconds of one job (%(default)s)")
    made.add_argument("--memory", type=_number, metavar="GB", help="of one job; a share of what is free by default")
    made.add_argument("--dry-run", action="store_true", help="say what would be done")

    made = command("report", commands.report, "what the records of a run say, in tables, or as a page")
    made.add_argument("runs", nargs="+", metavar="RUN", help="folders of runs; shards of one are read together")
    made.add_argument("--against", metavar="RUN2", help="an earlier run: what is slower since; exit code 1 if any")
    made.add_argument("--html", metavar="FILE", help="write a page that needs nothing else")
    made.add_argument("--csv", metavar="FILE", help="write a line for each time, as kernel databanks take them")
    made.add_argument("--table", metavar="FILE", help="write a line for each record, as .csv, or as .h5 by column")

    made = command("export", commands.export, "write a saved kernel as a stand-alone C++ or CUDA project")
    made.add_argument("kernel", metavar="K.sgk", help="a kernel written by --save")
    made.add_argument("folder", metavar="DIR", help="a folder to make, or an empty one")

    made = command("cache", commands.cache, "look at the cache or empty it")
    made.add_argument("what", choices=["info", "clear"])

    command("doctor", commands.doctor, "what this machine offers, and what to install for what is missing")
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


if __name__ == "__main__":
    sys.exit(main())
