"""Splitting a matrix into the parts of a candidate: each part has every column and some of the rows' entries.

A whole matrix is the composite with the one part "all". A split is a permutation of the entries, so that new values
are still one gather.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import replace
from weakref import WeakKeyDictionary

import numpy as np

from sparsegen import formats
from sparsegen.candidate import Candidate
from sparsegen.problem import Pattern, Problem

DENSE_ROWS = 16  # a row is dense when it has this many times the mean, and LEAST_DENSE entries
LEAST_DENSE = 256
MOST_PARAM = 1 << 16  # of a format: a window or a chunk this long is as good as the whole matrix

# every candidate with parts splits a pattern in the same way
_SPLITS: MutableMapping[Pattern, dict[str, tuple[Pattern, np.ndarray]]] = WeakKeyDictionary()


def split(candidate: Candidate, pattern: Pattern) -> list[tuple[Pattern, np.ndarray | None]]:
    """For each part its pattern (of A's shape) and the positions of its entries in A.data; None is all in order."""
    if [part.select for part in candidate.parts] == ["all"]:
        return [(pattern, None)]
    if pattern not in _SPLITS:
        dense = dense_rows(pattern)
        _SPLITS[pattern] = {"dense_rows": _rows(pattern, dense), "rest": _rows(pattern, ~dense)}
    return [_SPLITS[pattern][part.select] for part in candidate.parts]


def _rows(pattern: Pattern, rows: np.ndarray) -> tuple[Pattern, np.ndarray]:
    """The pattern with these rows alone, and the positions of its entries."""
    positions = np.flatnonzero(np.repeat(rows, pattern.lengths)).astype(pattern.indptr.dtype)
    indptr = np.concatenate([[0], np.cumsum(np.where(rows, pattern.lengths, 0))]).astype(pattern.indptr.dtype)
    return Pattern(pattern.shape, indptr, pattern.indices[positions]), positions


def dense_rows(pattern: Pattern) -> np.ndarray:
    """Which rows are dense, bool (m,)."""
    mean = pattern.nnz / max(pattern.m, 1)
    return pattern.lengths > max(DENSE_ROWS * mean, LEAST_DENSE)


def feasible(candidate: Candidate, problem: Problem) -> str | None:
    """One sentence why this candidate cannot hold this matrix, or None."""
    if any(part.select == "dense_rows" for part in candidate.parts) and not dense_rows(problem.pattern).any():
        return f"no row is dense (over {DENSE_ROWS} times the mean and {LEAST_DENSE} entries)"
    for part, (pattern, _) in zip(candidate.parts, split(candidate, problem.pattern), strict=True):
        format = formats.get(part.format)
        params = candidate.format_params(part)
        if large := [f"{name} = {value}" for name, value in params.items() if value > MOST_PARAM]:
            return f"{part.format}: {large[0]}; at most {MOST_PARAM}"
        try:
            reason = format.feasible(pattern, **params)
        except (ArithmeticError, ValueError) as error:
            return f"{part.format}: no matrix fits {params} ({error})"
        if reason:
            return f"{part.format}: {reason}"
        zeros = candidate.encoding == "constant" and format.PADS == "zero"
        if zeros and format.stored(pattern, **params) > pattern.nnz:
            return f"{part.format}: padding has no value of its own with values = 'constant'"
    return None


def pack(candidate: Candidate, problem: Problem) -> list[formats.Packed]:
    """The arrays of each part. Their source maps point into A.data."""
    packs = []
    for part, (pattern, positions) in zip(candidate.parts, split(candidate, problem.pattern), strict=True):
        packed = formats.get(part.format).pack(
            pattern, problem.index_dtype, problem.offset_dtype, **candidate.format_params(part)
        )
        if positions is not None:
            source = positions
            if packed.source is not None:
                source = formats.through(packed.source, positions, -1)
            packed = replace(packed, source=source)
        packs.append(packed)
    return packs


def literals(candidate: Candidate, problem: Problem) -> list[formats.Packed]:
    """What `pack` would bake into the source of each part, without building any array."""
    found = []
    for part, (pattern, _) in zip(candidate.parts, split(candidate, problem.pattern), strict=True):
        format = formats.get(part.format)
        baked = format.baked(pattern, **candidate.format_params(part)) if hasattr(format, "baked") else {}
        found.append(formats.Packed({}, 0, 0, baked=baked))
    return found
