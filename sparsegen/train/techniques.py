"""Which optimisation techniques a kernel uses, and the sets a policy is permitted, widening in stages.

Staged quality-diversity (arXiv 2602.12049) varies the permitted set per problem and widens it in stages; its stage
list is unpublished, so this one is ours.

may_vector    sums in vector registers (C++), or lanes of a warp that pass sums on (CUDA)
may_slice     rows stored side by side in slices (sell, bsell)
may_sort      rows sorted by their length
may_block     blocks of entries with one index (bsr, bsell)
may_diagonal  diagonals, without column indices
may_compress  narrower indices or values, or one value for all
may_pad       every row as long as the longest (ell)
may_split     the matrix in parts of different formats
may_unroll    loops that take several steps at once
may_atomic    atomic additions
may_shared    shared memory
"""

from __future__ import annotations

import re

import numpy as np

from sparsegen.candidate import Candidate, normalised
from sparsegen.model.encoder import TECHNIQUES

_FIRST = frozenset({"may_vector", "may_unroll"})
_SECOND = _FIRST | {"may_slice", "may_pad", "may_atomic"}
STAGES = (_FIRST, _SECOND, _SECOND | {"may_sort", "may_block", "may_shared"}, frozenset(TECHNIQUES))

_IN_SOURCE = {
    "cpp": {
        "may_vector": re.compile(r"\bvector\b|\bVALUES_AT\b|\bSTORE_LANES\b|\b__builtin_ia32_"),
        "may_unroll": re.compile(r"#pragma GCC unroll\b|\+= ?[2-8]\b|\+= ?WAYS\b"),
    },
    "cuda": {
        "may_vector": re.compile(r"\b__shfl_\w+|\b__reduce_\w+|\b(float|double|int)[24]\b"),
        "may_unroll": re.compile(r"#pragma unroll\b|\+= ?[2-8]\b"),
        "may_atomic": re.compile(r"\bATOMIC_ADD(_C)?\b|\batomic[A-Z]\w*"),
        "may_shared": re.compile(r"\b__shared__\b"),
    },
}


def of(candidate: Candidate) -> frozenset[str]:
    """The techniques that an instance (no [tune]) uses."""
    source = normalised(candidate.source)
    used = {word for word, pattern in _IN_SOURCE[candidate.language].items() if pattern.search(source)}
    for part in candidate.parts:
        params = candidate.format_params(part)
        if "SLICE" in params:
            used.add("may_slice")
        if params.get("SIGMA", 1) != 1:
            used.add("may_sort")
        if "R" in params:
            used.add("may_block")
        if part.format == "dia":
            used.add("may_diagonal")
        if params.get("BITS", 32) < 32:
            used.add("may_compress")
        if part.format == "ell":
            used.add("may_pad")
        if any(launch.shared_bytes.strip() != "0" for launch in part.launches):
            used.add("may_shared")
    if candidate.encoding != "full":
        used.add("may_compress")
    if len(candidate.parts) > 1:
        used.add("may_split")
    return frozenset(used)


def permitted(candidate: Candidate, allowed: frozenset[str] | None) -> bool:
    """Whether the kernel uses nothing outside `allowed`; None allows everything."""
    return allowed is None or of(candidate) <= allowed


def draw(stage: int, rng: np.random.Generator, keep: float = 1.0) -> frozenset[str]:
    """The permitted set of one problem: each technique of the stage, kept with this probability.

    A stage past the last is the last, which permits everything whatever `keep` is: there the policy is tuned for what
    it is used for.
    """
    if stage >= len(STAGES) - 1:
        return STAGES[-1]
    return frozenset(word for word in sorted(STAGES[stage]) if rng.random() < keep)
