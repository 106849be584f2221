"""Lines of measured kernels, by key, as the stages of training rely on them: a corpus, and verdicts kept since.

A line that was made by other hands and is not what it should be is refused with its number, before any work is done.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from sparsegen import ops
from sparsegen.record import known
from sparsegen.train import corpus
from sparsegen.verdict import Level

TASK = {"matrix": str, "family": str, "held_out": bool, "op": str, "k": int, "dtype": str, "facts": str}
KERNEL = {"kernel": str, "binary": str, "level": str, "fault": str}
DTYPES = ("float32", "float64")
FACTS = ("none", "constant", "exact_f32")


def measured(path: Path) -> list[dict]:
    """The measured problems of a corpus. Raises SparsegenValueError for a damaged line, OSError."""
    return [line for line in known(path, problem_fault).values() if "kernels" in line]


def problem_fault(line: Mapping) -> str | None:
    """One sentence why a line, where it has kernels, is none that `corpus.record` wrote; or None."""
    if "kernels" not in line:  # of a problem that failed, or of the environment
        return None
    kinds = {**TASK, "nnz": int, "best": str, "baselines": dict, "kernels": list}
    if reason := _kinds(line, kinds) or _numbers(line, "spread", zero=True):
        return reason
    choices = {"op": tuple(ops.names()), "dtype": DTYPES, "facts": FACTS, "best": tuple(line["baselines"])}
    for name, expected in choices.items():
        if line[name] not in expected:
            return f"{name} is {line[name]!r}; expected one of {', '.join(expected) or 'the baselines'}"
    if line["k"] < 1 or line["nnz"] < 0:
        return f"k is {line['k']} and nnz {line['nnz']}; expected k of at least 1 and nnz of at least 0"
    if reason := _numbers(line["baselines"], *line["baselines"]):
        return f"of the baselines, {reason}"
    if line["key"] != (key := corpus.task_of(dict(line)).key):
        return f"key is {line['key']!r}; expected {key!r}, what the line is about"
    faults = ((number, kernel_fault(each)) for number, each in enumerate(line["kernels"], 1))
    return next((f"of kernel {number}, {reason}" for number, reason in faults if reason), None)


def verdict_fault(line: Mapping) -> str | None:
    """One sentence why a line is no verdict that `Verdicts` kept, or None."""
    return _kinds(line, {"problem": str}) or kernel_fault(line) or _numbers(line, "baseline_us", "spread", zero=True)


def kernel_fault(kernel: object) -> str | None:
    """One sentence why this is not what is known of a measured kernel, or None."""
    if not isinstance(kernel, Mapping):
        return f"there is {kernel!r:.40}; expected an object"
    if reason := _kinds(kernel, KERNEL):
        return reason
    if kernel["level"] not in Level.__members__:
        return f"level is {kernel['level']!r}; expected one of {', '.join(Level.__members__)}"
    return _numbers(kernel, *(name for name in ("us", "speedup") if kernel.get(name) is not None))


def _kinds(line: Mapping, kinds: Mapping[str, type]) -> str | None:
    for name, kind in kinds.items():
        value = line.get(name)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            return f"{name} is {value!r:.40}; expected {kind.__name__}"
    return None


def _numbers(line: Mapping, *names: str, zero: bool = False) -> str | None:
    """zero: whether a number may be 0."""
    for name in names:
        value = line.get(name)
        if not isinstance(value, int | float) or isinstance(value, bool) or not (0 <= value < math.inf):
            return f"{name} is {value!r:.40}; expected a number of at least 0"
        if value == 0 and not zero:
            return f"{name} is 0; expected a number over 0"
    return None
