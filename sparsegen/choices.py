"""The options of `compile` as users pass them: each checked, with what was got and what is expected in one sentence."""

from __future__ import annotations

import os

import numpy as np

from sparsegen import cache, ops
from sparsegen.errors import SparsegenTypeError, SparsegenValueError
from sparsegen.problem import Facts


def model(model: object) -> str:
    """The option as kept: "auto", "none", or the path of a folder."""
    if model is None or (isinstance(model, str) and model in ("auto", "none")):
        return model or "none"
    expected = "expected 'auto', None, or the folder of a checkpoint"
    if not isinstance(model, (str, os.PathLike)):
        raise SparsegenTypeError(f"model = {model!r}; {expected}")
    path = os.fsdecode(model)
    if not os.path.isdir(path):
        raise SparsegenValueError(f"model = {path!r}, which is no folder; {expected}")
    return os.path.abspath(path)


def validate(options: dict) -> None:
    if options["op"] not in ops.names():
        raise SparsegenValueError(f"op = {options['op']!r}; expected one of {', '.join(ops.names())}")
    if options["target"] not in ("auto", "cpu", "cuda", "emulator"):
        raise SparsegenValueError(f"target = {options['target']!r}; expected auto, cpu, cuda or emulator")
    for name, least, whole in (
        ("k", 1, True), ("budget", 0, False), ("expected_calls", 0, False), ("max_candidates", 0, True),
        ("threads", 1, True), ("seed", 0, True), ("device", 0, True),
    ):  # fmt: skip
        value = options[name]
        if value is None or (name == "device" and isinstance(value, str)):
            continue
        if isinstance(value, bool) or not isinstance(value, (int, np.integer) if whole else (int, float, np.number)):
            kind = "an integer" if whole else "a number"
            raise SparsegenTypeError(f"{name} = {value!r}; expected {kind}")
        if not value >= least or (name == "budget" and value == float("inf")):
            raise SparsegenValueError(f"{name} = {value!r}; expected a finite number of at least {least}")
    for name in ("deterministic", "cache"):
        if not isinstance(options[name], (bool, np.bool_)):
            raise SparsegenTypeError(f"{name} = {options[name]!r}; expected True or False")
    own = options["target"] in ("cpu", "emulator")
    if options["device"] is not None and not isinstance(options["device"], str) and own:
        got = f"device = {options['device']} with target = {options['target']!r}"
        raise SparsegenValueError(f"{got}; expected target = 'cuda'")
    if options["cache"]:
        cache.limit()  # a bad size limit is told before a search, not after it
    if options["budget"] is None:
        raise SparsegenTypeError("budget = None; expected seconds")
    if options["threads"] is not None and options["threads"] > 256:
        raise SparsegenValueError(f"threads = {options['threads']}; expected at most 256")
    if options["op"] == "spmm" and options["k"] is None:
        raise SparsegenValueError("op = 'spmm' without k; expected k, the number of columns of B")
    if options["op"] == "spmv" and options["k"] not in (None, 1):
        raise SparsegenValueError(f"op = 'spmv' with k = {options['k']}; expected op = 'spmm' for k columns")
    if not (options["facts"] in (None, "detect") or isinstance(options["facts"], Facts)):
        raise SparsegenTypeError(f"facts = {options['facts']!r}; expected 'detect', None or a sparsegen.Facts")
    if options["arch"] is not None and own:
        raise SparsegenValueError(f"arch with target = {options['target']!r}; expected target = 'cuda'")


def dtype(dtype) -> np.dtype:
    try:
        found = np.dtype(dtype)
    except TypeError:
        raise SparsegenTypeError(f"dtype = {dtype!r}; expected a numpy dtype such as 'float32'") from None
    if found.kind not in "biufc" or found.itemsize > (16 if found.kind == "c" else 8):
        raise SparsegenTypeError(f"dtype = {found}; expected real or complex numbers of at most double precision")
    return found.newbyteorder("=")
