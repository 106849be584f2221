"""The kernel files of cpu_templates/ and cuda_templates/, and which of them to try for a problem, best guess first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache, cached_property

import numpy as np

from sparsegen import candidate, composite, formats, paths, values
from sparsegen.candidate import Candidate
from sparsegen.errors import SparsegenValueError
from sparsegen.problem import Pattern, Problem

FOLDERS = {"cpp": ("cpu_templates", ".cpp"), "cuda": ("cuda_templates", ".cu")}
REPEAT = 1.06  # a further instance of a template counts as slower by this: the first few should differ
VECTOR, CACHE = 64, 1 << 20  # bytes of a vector and of a cache of one core that the guesses for SpMM assume
LOOKS, LOOK = 16, 48  # where block fill and diagonals are sampled: so many times so many rows
MOST_LOOKED = 1 << 14  # entries, each time


@cache
def load(language: str) -> tuple[Candidate, ...]:
    """Every template of a language, "cpp" or "cuda", by op and name."""
    if language not in FOLDERS:
        raise SparsegenValueError(f"language is {language!r}; templates are written in {', '.join(FOLDERS)}")
    folder, suffix = FOLDERS[language]
    files = sorted(paths.data(folder).glob(f"*/*{suffix}"))
    return tuple(
        candidate.parse(file.read_text(), name=file.stem, origin="template", language=language) for file in files
    )


def get(name: str, op: str = "spmv", language: str = "cpp") -> Candidate:
    """The template `name`. Raises SparsegenValueError when there is no such file."""
    found = {each.name: each for each in load(language) if each.op == op}
    if name not in found:
        raise SparsegenValueError(f"no {language} template {name!r} for {op}; there are {', '.join(found)}")
    return found[name]


def propose(problem: Problem) -> Iterator[Candidate]:
    """Instances of templates that can compute `problem`, the most promising first.

    The order is that of a guess from cheap features of the pattern; whether an instance is feasible is asked only when
    its turn comes.
    """
    left = _guessed(problem)
    offered: Counter[str] = Counter()
    while left:
        best = min(range(len(left)), key=lambda i: left[i][0] * REPEAT ** offered[left[i][1].name])
        _, each = left.pop(best)
        if refusal(each, problem) is None:
            offered[each.name] += 1
            yield each


def refusals(problem: Problem) -> list[tuple[str, str]]:
    """(label, reason) of every instance that `propose` leaves out."""
    found = ((each.label, refusal(each, problem)) for _, each in _guessed(problem))
    return [(label, reason) for label, reason in found if reason]


def refusal(each: Candidate, problem: Problem) -> str | None:
    """One sentence why this candidate cannot be used for the problem, or None."""
    if problem.deterministic and each.atomic:
        return "the order of its atomic additions is not the same in every run"
    if each.turns and problem.layout_b == "row":
        return "B is stored by rows already"
    return values.feasible(each.encoding, problem) or composite.feasible(each, problem)


class Features:
    """What the guesses know of a pattern. Each is computed when first asked for and costs a product or two at most."""

    def __init__(self, pattern: Pattern):
        self.pattern = pattern
        self._slots: dict[tuple[int, int, bool], int] = {}
        self._fill: dict[tuple[int, int], float] = {}

    def slots(self, SLICE: int, SIGMA: int, rest: bool = False) -> int:
        """Of SELL-C-sigma; of the rows that are not dense alone, with `rest`."""
        key = (SLICE, SIGMA, rest)
        if key not in self._slots:
            lengths = self.pattern.lengths
            kept = np.where(self.dense, 0, lengths) if rest else lengths
            self._slots[key] = int(formats.sliced(kept, SLICE, SIGMA)[1][-1])
        return self._slots[key]

    @cached_property
    def dense(self) -> np.ndarray:
        return composite.dense_rows(self.pattern)

    @cached_property
    def dense_entries(self) -> int:
        return int(self.pattern.lengths[self.dense].sum())

    @cached_property
    def _samples(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """(row, column) of the entries in some runs of rows, which begin at multiples of LOOK."""
        pattern, samples = self.pattern, []
        starts = range(0, pattern.m, max(pattern.m // LOOKS // LOOK, 1) * LOOK)
        for first in starts:
            stop = min(first + LOOK, pattern.m)
            begin, end = int(pattern.indptr[first]), int(pattern.indptr[stop])
            columns = pattern.indices[begin : min(end, begin + MOST_LOOKED)].astype(np.int64)
            rows = np.repeat(np.arange(first, stop), pattern.lengths[first:stop])[: len(columns)]
            samples.append((rows, columns))
        return samples

    def fill(self, R: int, S: int) -> float:
        """Entries per slot of R x S blocks, in the sample."""
        if (R, S) not in self._fill:
            width = self.pattern.n // S + 1
            blocks = sum(len(np.unique(rows // R * width + columns // S)) for rows, columns in self._samples)
            self._fill[R, S] = sum(len(rows) for rows, _ in self._samples) / (blocks * R * S) if blocks else 1.0
        return self._fill[R, S]

    @cached_property
    def scatter(self) -> float:
        """Columns per entry, in the runs of the sample: near 0 where neighbouring rows share columns, 1 at most."""
        entries = sum(len(columns) for _, columns in self._samples)
        return sum(len(np.unique(columns)) for _, columns in self._samples) / max(entries, 1)

    @cached_property
    def diagonals(self) -> int:
        """In the sample, and so at least."""
        return len(set().union(*(np.unique(columns - rows).tolist() for rows, columns in self._samples)))


def _guessed(problem: Problem) -> list[tuple[float, Candidate]]:
    """Every instance of every template of the problem's op and language, with its guessed time, least first."""
    language = "cpp" if problem.target == "cpu" else "cuda"
    features = Features(problem.pattern)
    guess = {("cpp", "spmv"): _cpu_spmv, ("cpp", "spmm"): _cpu_spmm}.get((language, problem.op), _cuda)
    found = []
    for file in load(language):
        if file.op == problem.op:
            found += [(guess(each, problem, features), each) for each in candidate.instances(file)]
    return sorted(found, key=lambda pair: pair[0])


# nanoseconds per slot, per byte of A and per row, fitted to measured times of about a hundred matrices in float64
CPU_COST = {
    "sell_slice": (0.180, 0.0080, 0.83),
    "bsell_slice": (0.117, 0.0050, 0.82),
    "bsr_row": (0.060, 0.0145, 3.0),
    "dia_chunk": (0.085, 0.0031, 0.40),
    "dense_rows_slice": (0.150, 0.0112, 0.69),
    "csr_vector": (0.220, 0.0080, 1.7),
    "csr_scalar": (0.450, 0.0150, 0.3),
    "coo_runs": (0.530, 0.0250, 0.36),
    "ell_vector": (0.200, 0.0200, 0.6),
}


def cpu_work(each: Candidate, problem: Problem, features: Features) -> tuple[float, float, float]:
    """Slots multiplied by what was gathered for them, bytes of A, and rows, that a SpMV instance goes through."""
    pattern, params = problem.pattern, {name: v for name, v in each.params.items() if isinstance(v, int)}
    SLICE, SIGMA, R, S = (params.get(name, 1) for name in ("SLICE", "SIGMA", "R", "S"))
    slots, rows, index_bytes, gathered = float(pattern.nnz), float(pattern.m), 4.0, 1.0
    match each.parts[0].format:
        case "sell" if len(each.parts) == 2:
            rest = features.slots(SLICE, each.format_params(each.parts[0])["SIGMA"], rest=True)
            slots = features.dense_entries + rest
        case "sell":
            slots, index_bytes = features.slots(SLICE, SIGMA), params["BITS"] / 8
            gathered = 1.08 if params["BITS"] == 16 else 1.0  # an index to add a base to
            rows *= 0.65 if SIGMA == 1 else 1.0  # stored in order
        case "bsell":
            slots = features.slots(SLICE, SIGMA) / features.fill(R, S)
            index_bytes, gathered = 4 / (R * S), 0.4 + 1 / R
        case "bsr":
            slots, index_bytes = pattern.nnz / features.fill(R, S), 4 / (R * S)
        case "dia":
            slots, index_bytes = features.diagonals * pattern.m, 0.0
        case "ell":
            slots = pattern.m * int(pattern.lengths.max(initial=0))
    bytes_ = slots * (values.stored_bytes(each.encoding, problem.dtype) + index_bytes)
    return slots * gathered, bytes_, rows


def _cpu_spmv(each: Candidate, problem: Problem, features: Features) -> float:
    costs = CPU_COST.get(each.name, (1.0, 0.01, 1.0))
    return sum(cost * count for cost, count in zip(costs, cpu_work(each, problem, features), strict=True))


# nanoseconds, fitted to measured times of all instances on some dozens of matrices in float64
SPMM_COST = {
    "unit": 0.15, "slot": 0.12, "wait": 0.4, "row": 1.5, "ways": 0.25, "tail": 0.3,  # what vectors do not add to
    "load": 0.06, "multiply": 0.1, "gather": 0.25, "pass": 0.05,  # of a vector, or a number of B stored by columns
    "far": 0.25, "ahead": 0.5, "fetch": 0.1,  # of B beyond a cache; what is left of it where it was fetched ahead
    "store_row": 0.5, "store": 0.6, "stream": 1.2, "stream_far": 0.7, "scatter": 0.4, "sell_store": 0.2,
    "turn": 0.35, "turn_far": 0.85, "scalar": 0.25, "scalar_pass": 0.2, "diagonal": 0.12, "diagonal_store": 0.1,
}  # fmt: skip


def _cpu_spmm(each: Candidate, problem: Problem, features: Features) -> float:
    """As `_cpu_spmv`, of all k columns: what is loaded, multiplied, waited for, fetched from afar, stored, turned."""
    pattern, k, cost = problem.pattern, problem.k, SPMM_COST
    params = {name: value for name, value in each.params.items() if isinstance(value, int)}
    format, turned, item = each.parts[0].format, each.turns, problem.dtype.itemsize
    by_row, stored_by_row = problem.layout_b == "row" or turned, problem.layout_c == "row"
    R, S, tile = params.get("R", 1), params.get("S", 1), params.get("TILE", 1)
    bytes_b, results = pattern.n * k * item, pattern.m * k
    outside = 0.0 if stored_by_row else results * cost["scatter"]
    if turned:
        outside += pattern.n * k * cost["turn" if bytes_b <= CACHE else "turn_far"]
    columns = params.get("COLUMNS", 1)
    passes = -(-k // columns)
    match format:
        case "sell":
            slots = features.slots(params["SLICE"], params["SIGMA"])
            multiplied = slots * (k * cost["gather"] * (4 if by_row else 1) + passes * cost["pass"])
            return multiplied + results * cost["sell_store"] + 0.3 * outside
        case "dia":
            slots = features.diagonals * pattern.m
            return slots * cost["diagonal"] * (k * (10 if by_row else 1) + passes) + results * cost["diagonal_store"]
        case "csr" if columns > 1:
            return pattern.nnz * passes * (columns * cost["scalar"] + cost["scalar_pass"]) + results * cost["scatter"]
    lanes = min(params.get("NARROW") or VECTOR, VECTOR // item)
    width = lanes * item / VECTOR
    passes = -(-k // (tile * lanes))
    vectors = passes * tile
    filled = pattern.nnz / features.fill(R, S) if format in ("bsr", "strip") else float(pattern.nnz)
    ways = 2 if "AHEAD" in params else params.get("WAYS", 1)
    # of each row of B that R rows of A share: its vectors, and sums of one vector that wait for each other
    shared = passes * (cost["unit"] / S + cost["wait"] / min(tile * R * ways, 4))
    shared += vectors * (cost["load"] * (1 + width) / 2 if by_row else cost["gather"] * lanes)
    time = filled / R * shared + filled * (passes * cost["slot"] + vectors * (1 + width) / 2 * cost["multiply"])
    if R * tile * ways > 24:  # registers
        time += filled * vectors * 0.15
    if k % (tile * lanes):
        time *= 1 + cost["tail"]
    far = filled / R * k * item / VECTOR * features.scatter * min(max(np.log2(max(bytes_b, 1) / CACHE) + 1, 0), 4) / 2
    time += far * cost["far"] * (cost["ahead"] if params.get("AHEAD") else 1)
    time += filled / R * vectors * cost["fetch"] if params.get("AHEAD") else 0
    stored = pattern.m * (passes * cost["store_row"] + vectors * width * cost["store"])
    if params.get("STREAM") and stored_by_row:
        stored *= cost["stream_far" if bytes_b + results * item > 3 * CACHE else "stream"]
    return time + pattern.m / R * passes * cost["row"] * (1 + cost["ways"] * (ways - 1)) + stored + outside


def _cuda(each: Candidate, problem: Problem, features: Features) -> float:
    """Slots, and what a schedule costs where it does not fit: lanes that idle, rows that one thread walks alone."""
    pattern, params = problem.pattern, each.params
    mean = pattern.nnz / max(pattern.m, 1)
    longest = int(pattern.lengths.max(initial=0))
    skew = min(longest / max(mean, 1.0), 64.0)
    lanes = int(params.get("THREADS_PER_ROW", 32 if each.schedule.startswith(("vector", "warp")) else 1))
    slots, cost = float(pattern.nnz), 1.0
    match each.parts[0].format:
        case "sell":
            slots = features.slots(int(params.get("SLICE", 32)), int(params.get("SIGMA", 1)))
        case "ell":
            slots = float(pattern.m * longest)
        case "bsr":
            R, S = int(params.get("R", 2)), int(params.get("S", 2))
            slots, cost = pattern.nnz / features.fill(R, S), 0.5 + 0.5 / (R * S)
        case "dia":
            slots, cost = float(features.diagonals * pattern.m), 0.6
        case "coo":
            cost = 1.5
        case "csr":
            if each.schedule in ("scalar", "vector"):
                steps = max(mean / lanes, 1.0)
                cost = (1.0 + 0.02 * skew) * (steps * lanes / max(mean, 1.0)) * (1.0 + 0.05 * max(8.0 - lanes, 0.0))
            else:
                cost = 1.2
    if len(each.parts) > 1:
        cost *= 1.05 if features.dense_entries else 2.0
    bytes_ = values.stored_bytes(each.encoding, problem.dtype) + 4
    return slots * cost * (bytes_ + 8)
