"""A candidate bound to A's arrays in this process: packed, compiled, checked by one reference product, ready to run."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from sparsegen import checks, composite, evaluate, fence, operands, ops, prelude, targets, values
from sparsegen.arena import Arena
from sparsegen.candidate import Candidate
from sparsegen.errors import SparsegenError, SparsegenValueError
from sparsegen.formats import Packed
from sparsegen.problem import Problem
from sparsegen.verdict import Level

logger = logging.getLogger("sparsegen")

CERTIFICATE_SEED = 20266


class CertificateError(SparsegenError):
    """A kernel that was believed correct missed the reference on this matrix."""


@dataclass
class Binding:
    """One candidate with one set of values. Its arrays are never written again, so that any thread may run it."""

    candidate: Candidate
    problem: Problem
    data: np.ndarray  # A's values in the problem's dtype, (nnz,)
    packs: list[Packed]
    library: Any  # what the target loaded
    threads: int
    pack_ms: float = 0.0  # of arranging the pattern and copying the values
    _arenas: list[Arena] = field(init=False)
    _plans: dict = field(init=False, default_factory=dict)
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)

    def __post_init__(self) -> None:
        encoding, dtype, started = self.candidate.encoding, self.problem.dtype, time.perf_counter()
        self._arenas = [
            Arena({**packed.arrays, "data": values.encode(encoding, self.data, packed, dtype)}) for packed in self.packs
        ]
        self.pack_ms += (time.perf_counter() - started) * 1e3
        problem = self.problem
        key = (problem.k, problem.layout_b, problem.layout_c)
        self._plans[key] = self._made(problem)

    @staticmethod
    def make(
        candidate: Candidate, problem: Problem, data: np.ndarray, threads: int, image: bytes | None = None
    ) -> Binding:
        """Screen, pack, compile, check. Raises SparsegenValueError, CompileFailure, CertificateError.

        image: machine code for a GPU that is there already.
        """
        target = targets.get(problem.target)
        if reason := target.screen(candidate):
            raise SparsegenValueError(f"the kernel {candidate.name} is refused by the screen: {reason}")
        started = time.perf_counter()
        packs = composite.pack(candidate, problem)
        pack_ms = (time.perf_counter() - started) * 1e3
        library: Any = image
        if image is None:
            library = target.load(target.build(target.unit(candidate, problem, packs), problem.ordinal))
        return Binding(candidate, problem, data, packs, library, threads, pack_ms)

    def with_values(self, data: np.ndarray, problem: Problem) -> Binding:
        """The same structure and code with other values, checked. Raises CertificateError."""
        return Binding(self.candidate, problem, data, self.packs, self.library, self.threads)

    @property
    def checks_finite(self) -> bool:
        """Whether a call may report a sum that is not finite, with y then not to be trusted."""
        return prelude.checks_finite(self.candidate)

    def plan(self, k: int, layout_b: str, layout_c: str):
        """The native plan for a width and a layout; None when it failed.

        The one that was searched for is checked by one product in this process. Another is checked in a worker at first
        sight: a kernel that is right for 32 columns may write anywhere for 5.
        """
        key = (k, layout_b, layout_c)
        if key not in self._plans:
            with self._lock:
                if key not in self._plans:
                    problem = replace(self.problem, k=k, layout_b=layout_b, layout_c=layout_c)
                    try:
                        plan = self._made(problem) if self._right(problem) else None
                    except (SparsegenError, targets.get(self.problem.target).CompileFailure):
                        plan = None
                    self._plans[key] = plan
        return self._plans[key]

    def run(self, x: np.ndarray, out: np.ndarray, alpha: float, beta: float) -> bool:
        """out = alpha A x + beta out for operands of any layout and of dtypes that cast to the problem's.

        False when this kernel cannot compute it; out is then to be computed again, and still holds its y for beta.
        """
        problem = self.problem
        if not x.size or not out.size or (problem.op == "spmv" and x.size != len(x)):
            return False
        shape = (-1,) if problem.op == "spmv" else (len(x), -1)
        x, y = x.reshape(shape), out.reshape((-1,) if problem.op == "spmv" else (len(out), -1))
        x = np.require(x, problem.dtype, [operands.order(x), "A"])
        y = np.require(y, problem.dtype, [operands.order(y), "A"])
        if problem.op == "spmv":
            plan = self.plan(1, problem.layout_b, problem.layout_c)
        else:
            plan = self.plan(x.shape[1], _layout(x), _layout(y))
        if plan is None:
            return False
        if np.may_share_memory(x, y):
            x = x.copy(order="K")
        in_place = np.may_share_memory(y, out)
        before = y.copy(order="K") if in_place and self.checks_finite and beta != 0 else None
        if plan.run(x, y, alpha, beta) != 0:
            if before is not None:
                y[...] = before
            return False
        if not in_place:
            with np.errstate(over="ignore"):
                out[...] = y.reshape(out.shape)
        return True

    def _right(self, problem: Problem) -> bool:
        """Whether the kernel passes every check of a problem that it was not searched for."""
        pattern = problem.pattern
        A = sp.csr_array((self.data, pattern.indices, pattern.indptr), shape=pattern.shape)
        try:
            with fence.session(problem, A) as session:
                references = checks.References(problem)
                verdict = evaluate.evaluate(self._reading(problem), problem, session, references, "other")
        except (fence.Died, OSError) as error:
            logger.info("%s: k = %d is left to the baseline: %s", self.candidate.label, problem.k, error)
            return False
        return verdict.level >= Level.CORRECT

    def _made(self, problem: Problem):
        library, target, candidate = self.library, targets.get(problem.target), self._reading(problem)
        if (problem.layout_b, problem.layout_c) != (self.problem.layout_b, self.problem.layout_c):
            library = target.load(target.build(target.unit(candidate, problem, self.packs), problem.ordinal))
        arrays = [arena.arrays for arena in self._arenas]
        plan = target.bind(library, candidate, problem, self.packs, arrays, self.threads)
        self._certify(problem, plan)
        return plan

    def _reading(self, problem: Problem) -> Candidate:
        """The candidate for a layout: where it was searched for a B by rows, the host makes rows of columns."""
        searched = self.candidate.language == "cpp" and self.problem.layout_b == "row"
        if problem.op == "spmm" and problem.layout_b == "column" and searched:
            return replace(self.candidate, params={**self.candidate.params, "TURN_B": 1})
        return self.candidate

    def _certify(self, problem: Problem, plan) -> None:
        """One product with A's own values against the reference."""
        op, pattern = ops.get(problem.op), problem.pattern
        x = op.make(problem, np.random.default_rng(CERTIFICATE_SEED))
        y = np.full(op.shapes(problem)[1], np.nan, problem.dtype, order=problem.order_c)
        try:
            status = plan.run(x, y, 1.0, 0.0)
        except targets.Fault as fault:
            raise CertificateError(f"the kernel {self.candidate.label} is at fault: {fault}") from None
        if status == 1 and self.checks_finite:
            return  # every such call is computed again
        A = sp.csr_array((self.data, pattern.indices, pattern.indptr), shape=pattern.shape)
        worst = checks.worst(y, *checks.reference(problem, A, x))
        if status != 0 or not worst <= 1:
            raise CertificateError(
                f"the kernel {self.candidate.label} misses the reference by {worst:.3g} times the bound on this matrix"
            )


def _layout(x: np.ndarray) -> str:
    return "row" if x.flags.c_contiguous else "column"
