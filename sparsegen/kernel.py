"""`Kernel`: a verified product one can call, holding a candidate or the name of the baseline that nothing beat.

`Artifact`: a candidate compiled for a device that is not here; it says so when it is called.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as spla

from sparsegen import baselines, checks, composite, inputs, ops, prelude, screen_cpp, values
from sparsegen.arena import Arena
from sparsegen.candidate import Candidate, text
from sparsegen.errors import SparsegenError, SparsegenTypeError, SparsegenValueError
from sparsegen.problem import Facts, Problem
from sparsegen.report import Report
from sparsegen.targets import cpu

CERTIFICATE_SEED = 20266


class CertificateError(SparsegenError):
    """A kernel that was believed correct missed the reference on this matrix."""


@dataclass
class _Packed:
    """A candidate bound to A's arrays in this process."""

    candidate: Candidate
    problem: Problem
    packs: list
    arenas: list[Arena]
    library: object
    threads: int

    @staticmethod
    def make(candidate: Candidate, problem: Problem, data: np.ndarray, threads: int) -> _Packed:
        if reason := screen_cpp.check(candidate):
            raise SparsegenValueError(f"the kernel {candidate.name} is refused by the screen: {reason}")
        packs = composite.pack(candidate, problem)
        library = cpu.load(cpu.compile(cpu.unit(candidate, problem, packs)))
        arenas = [
            Arena({**packed.arrays, "data": values.encode(candidate.encoding, data, packed, problem.dtype)})
            for packed in packs
        ]
        return _Packed(candidate, problem, packs, arenas, library, threads)

    def with_values(self, data: np.ndarray) -> _Packed:
        """The same structure with new values; the arrays in use are left alone, so that running calls finish."""
        arenas = [
            Arena({**packed.arrays, "data": values.encode(self.candidate.encoding, data, packed, self.problem.dtype)})
            for packed in self.packs
        ]
        return replace(self, arenas=arenas)

    def plan(self, k: int, layout_b: str, layout_c: str):
        problem = replace(self.problem, k=k, layout_b=layout_b, layout_c=layout_c)
        library = self.library
        if (layout_b, layout_c) != (self.problem.layout_b, self.problem.layout_c):
            library = cpu.load(cpu.compile(cpu.unit(self.candidate, problem, self.packs)))
        return cpu.bind(library, self.candidate, problem, self.packs, [a.arrays for a in self.arenas], self.threads)


class Kernel(spla.LinearOperator):
    """y = kernel @ x, or kernel(x, out=None, alpha=1, beta=0) = alpha A x + beta out.

    A `scipy.sparse.linalg.LinearOperator`. x: (n,), (n, 1) or (n, k), anything numpy makes an array of; the result has
    numpy's result type and x's dimensions. A must not be changed in place afterwards: see `update_values`. Entries
    stored in A propagate NaN and infinity, entries it does not have do not, as in scipy. Safe to call from threads.
    """

    def __init__(
        self,
        A: sp.csr_array,
        problem: Problem,
        candidate: Candidate | None,
        baseline: str,
        report: Mapping,
        threads: int = 1,
        options: Mapping | None = None,
    ):
        """For `compile` and `load`: A canonical, in the dtype the user sees; baseline names what serves without candidate.

        Raises CertificateError when the candidate misses the reference on A's own values.
        """
        super().__init__(A.dtype, A.shape)
        self._A, self.problem, self.candidate, self.baseline = A, problem, candidate, baseline
        self.options = dict(options or {})
        self._report = Report(report)
        self._lock = threading.Lock()
        self._transposed: Kernel | None = None
        self._threads = threads
        self._checked = candidate is not None and prelude.checks_finite(candidate)
        self._data = A.data.astype(problem.dtype, copy=False)
        self._packed = None
        if candidate is not None:
            self._install(_Packed.make(candidate, problem, self._data, threads))
        else:
            self._install(None)

    # ---- calls

    def __matmul__(self, x):
        if self._native is not None and type(x) is np.ndarray and x.dtype == self._plain and x.ndim == 1:
            y = np.empty(self.shape[0], self._plain)
            if self._native(x, y, 1.0, 0.0) == 0:
                return y
        return self(x)

    def __call__(self, x, out=None, alpha=1.0, beta=0.0):
        """alpha A x + beta out, in out when it is given. Raises SparsegenValueError, SparsegenTypeError."""
        if out is not None and self._native is not None and type(out) is np.ndarray and not (beta and self._checked):
            try:
                if self._native(x, out, alpha, beta) == 0:
                    return out
            except TypeError:
                pass  # alpha or beta is no real number: said below
        return self._call(x, out, alpha, beta)

    def matvec(self, x, out=None, alpha=1.0, beta=0.0):
        """A x for a vector, (n,) or (n, 1)."""
        if getattr(x, "ndim", 1) == 2 and x.shape[1] != 1:
            raise SparsegenValueError(f"matvec got x of shape {x.shape}; expected ({self.shape[1]},) or ({self.shape[1]}, 1)")
        return self(x, out, alpha, beta)

    def matmat(self, X, out=None, alpha=1.0, beta=0.0):
        """A X for a matrix of columns, (n, k)."""
        if getattr(X, "ndim", 2) != 2:
            raise SparsegenValueError(f"matmat got X of {np.ndim(X)} dimensions; expected ({self.shape[1]}, k)")
        return self(X, out, alpha, beta)

    def __rmatmul__(self, x):
        x = np.asarray(x)
        return self.T(x) if x.ndim == 1 else self.T(x.T).T

    def _matvec(self, x):
        return self(x)

    def _matmat(self, X):
        return self(X)

    def _call(self, x, out, alpha, beta):
        x = _operand(x)
        if x.ndim not in (1, 2) or x.shape[0] != self.shape[1]:
            raise SparsegenValueError(
                f"x has shape {x.shape}; A is {self.shape[0]} x {self.shape[1]}, so ({self.shape[1]},) or ({self.shape[1]}, k) is expected"
            )
        for name, value in (("alpha", alpha), ("beta", beta)):
            if np.ndim(value) != 0 or np.asarray(value).dtype.kind not in "biufc":
                raise SparsegenTypeError(f"{name} = {value!r}; expected a number")
        result = np.result_type(self.dtype, x.dtype)
        shape = (self.shape[0], *x.shape[1:])
        if np.iscomplexobj(alpha) or np.iscomplexobj(beta):
            result = np.result_type(result, np.complex64)
        if out is None:
            if beta != 0:
                raise SparsegenValueError(f"beta = {beta} without out; expected out, the y that beta multiplies")
            out = np.empty(shape, result, order=_order(x))
        elif not isinstance(out, np.ndarray):
            raise SparsegenTypeError(f"out is a {type(out).__name__}; expected a numpy array")
        elif out.shape != shape or out.dtype != result or not out.flags.writeable:
            state = "" if out.flags.writeable else ", read-only"
            raise SparsegenValueError(f"out is {out.dtype} {out.shape}{state}; expected a writable {result} {shape}")
        plain = self._plain
        wide = plain is None or np.result_type(result, plain) != plain
        if wide or not _run(self, x, out, alpha, beta):
            product = self._exact(x)
            with np.errstate(invalid="ignore", over="ignore"):
                scaled = product if alpha == 1 else alpha * product
                out[...] = scaled if beta == 0 else scaled + beta * out
        return out

    def _exact(self, x: np.ndarray) -> np.ndarray:
        """A @ x by the baseline, or by scipy where no baseline was prepared for such an x."""
        if self._baseline is not None and x.dtype == self.problem.dtype and x.dtype == self.dtype:
            expected = ops.get(self.problem.op).shapes(self.problem)[0]
            if x.shape == expected and x.flags["C_CONTIGUOUS" if self.problem.layout_b == "row" else "F_CONTIGUOUS"]:
                return self._baseline(x, None)
        A = self._A
        if np.float16 in (A.dtype, x.dtype):  # scipy has no half precision: widen, and round once at the end
            return A.astype(np.result_type(A.dtype, np.float32)) @ x.astype(np.result_type(x.dtype, np.float32))
        return A @ x

    # ---- other products

    def _transpose(self) -> Kernel:
        with self._lock:
            if self._transposed is None:
                from sparsegen import engine

                self._transposed = engine.compile(self._A.T.tocsr(), **self.options)
                self._transposed._transposed = self
        return self._transposed

    def _adjoint(self) -> spla.LinearOperator:
        if not np.issubdtype(self.dtype, np.complexfloating):
            return self.T
        from sparsegen import engine

        return engine.compile(self._A.conj().T.tocsr(), **self.options)

    @property
    def T(self):
        """A transposed, a Kernel of its own, searched for on first use."""
        return self._transpose()

    @property
    def H(self):
        """The adjoint of A; A transposed when A is real."""
        return self._adjoint()

    # ---- values

    def update_values(self, data) -> None:
        """New values for the same pattern, without a search or a recompilation.

        data: (nnz,), in the order of A in canonical CSR (rows ascending, columns sorted), or a sparse matrix of A's
        pattern. When a fact the kernel leans on no longer holds, it is replaced by its opaque form, else by the
        baseline, and the report says so. The new kernel is checked by one reference product.
        """
        if sp.issparse(data):
            matrix = inputs.as_csr(data)
            if matrix.shape != self.shape or not (
                np.array_equal(matrix.indptr, self._A.indptr) and np.array_equal(matrix.indices, self._A.indices)
            ):
                raise SparsegenValueError(
                    f"the new matrix ({matrix.shape[0]} x {matrix.shape[1]}, {matrix.nnz} entries) has another pattern than A; compile it"
                )
            data = matrix.data
        data = np.array(data)
        if data.shape != (self._A.nnz,):
            raise SparsegenValueError(f"data has shape {data.shape}; expected ({self._A.nnz},), a value per stored entry")
        if not np.can_cast(data.dtype, self.dtype, "same_kind"):
            raise SparsegenTypeError(f"data is {data.dtype}; expected what casts to A's {self.dtype}")
        data = data.astype(self.dtype, copy=False)
        A = sp.csr_array((data, self._A.indices, self._A.indptr), shape=self.shape)
        with self._lock:
            self._replace_values(A)
            self._transposed = None

    def _replace_values(self, A: sp.csr_array) -> None:
        old = (self._A, self._data, self.problem, self.candidate)
        self._A, self._data = A, A.data.astype(self.problem.dtype, copy=False)
        packed, notes = self._packed, []
        if packed is not None:
            if broken := self.problem.facts.broken_by(self._data):
                notes.append(f"new values break the fact {' and '.join(broken)}")
                self.problem = replace(self.problem, facts=Facts())
                needed = values.FACT.get(packed.candidate.encoding)
                if needed in broken:
                    self.candidate = replace(packed.candidate, params={**packed.candidate.params, "values": "full"})
                    packed = _Packed.make(self.candidate, self.problem, self._data, self._threads)
                    notes.append("the values are stored in full now")
                else:
                    packed = replace(packed, problem=self.problem).with_values(self._data)
            elif prelude.checks_finite(packed.candidate) and not np.isfinite(self._data).all():
                notes.append("new values are not finite, which padding cannot bear")
                packed = None
            else:
                packed = packed.with_values(self._data)
        try:
            self._install(packed)
        except CertificateError as error:
            notes.append(f"the kernel failed its check with the new values ({error})")
            packed = None
            self._install(None)
        except BaseException:
            self._A, self._data, self.problem, self.candidate = old
            raise
        if packed is None and self.candidate is not None:
            self.candidate = None
            notes.append(f"{self.baseline} serves now")
        self._report = self._report.noted(notes)

    def _install(self, packed: _Packed | None) -> None:
        """Take a packed candidate (or the baseline alone) into use, after one reference product."""
        plan = packed.plan(self.problem.k, self.problem.layout_b, self.problem.layout_c) if packed else None
        if packed is not None and plan is not None:
            _certify(packed, plan, self._A)
            self._baseline: Callable | None = None
        else:
            self._baseline = self._prepare_baseline()
        self._packed = packed
        self._checked = packed is not None and prelude.checks_finite(packed.candidate)
        self._plans = {(self.problem.k, self.problem.layout_b, self.problem.layout_c): plan} if plan else {}
        vector = plan is not None and self.problem.op == "spmv" and self.dtype == self.problem.dtype
        self._plain = self.problem.dtype if packed is not None else None
        self._native = plan.run if vector else None

    def _prepare_baseline(self) -> Callable | None:
        module = baselines.get(self.baseline)
        if module.available(self.problem) is not None or self.baseline == "scipy":
            return None  # self._exact calls scipy itself
        return module.prepare(sp.csr_array((self._data, self._A.indices, self._A.indptr), shape=self.shape), self.problem)

    def _plan(self, k: int, layout_b: str, layout_c: str):
        """The plan for another width or layout of the same candidate: checked once, or None when it fails."""
        key = (k, layout_b, layout_c)
        if key not in self._plans:
            with self._lock:
                if key not in self._plans and self._packed is not None:
                    problem = replace(self._packed.problem, k=k, layout_b=layout_b, layout_c=layout_c)
                    try:
                        plan = self._packed.plan(k, layout_b, layout_c)
                        _certify(replace(self._packed, problem=problem), plan, self._A)
                    except (CertificateError, cpu.CompileFailure, SparsegenError):
                        plan = None
                    self._plans = {**self._plans, key: plan}
        return self._plans.get(key)

    # ---- what it is

    @property
    def source(self) -> str | None:
        """The kernel file, header and source; None when the kernel is a baseline."""
        return text(self.candidate) if self.candidate is not None else None

    @property
    def nnz(self) -> int:
        return self._A.nnz

    def report(self) -> Report:
        """What was measured: a mapping that prints as a table."""
        return self._report

    def explain(self) -> str:
        """In words: the structure found, the bytes saved, why this kernel, how far from the limit."""
        from sparsegen import explain

        return explain.of(self)

    def __repr__(self) -> str:
        what = self.candidate.label if self.candidate is not None else f"baseline {self.baseline}"
        return f"<sparsegen.Kernel {self.shape[0]} x {self.shape[1]}, {self.nnz} entries, {self.dtype}, {self.problem.op}: {what}>"

    def save(self, path) -> None:
        """Write A, the kernel file and the report to `path`. No native code is stored; `load` compiles and checks."""
        from sparsegen import store

        store.save(self, path)

    def __reduce__(self):
        from sparsegen import store

        return store.loads, (store.dumps(self),)

    def close(self) -> None:
        """Release packed arrays and handles; later calls are answered by scipy."""
        with self._lock:
            self._packed = self._native = self._baseline = self._plain = None
            self._plans = {}

    def __enter__(self) -> Kernel:
        return self

    def __exit__(self, *details) -> None:
        self.close()


def _run(kernel: Kernel, x: np.ndarray, out: np.ndarray, alpha, beta) -> bool:
    """Let the candidate compute out; False when it cannot, with out as it was."""
    dtype, op = kernel._plain, kernel.problem.op
    if np.iscomplexobj(alpha) or np.iscomplexobj(beta):
        return False
    x = x.astype(dtype, copy=False)
    vector = x.ndim == 1 or x.shape[1] == 1
    target = out if out.dtype == dtype else out.astype(dtype)
    if op == "spmv":
        if not vector:
            return False
        plan = kernel._plan(1, kernel.problem.layout_b, kernel.problem.layout_c)
        x, y = np.ascontiguousarray(x.reshape(-1)), target.reshape(-1)
    else:
        x, y = x.reshape(len(x), -1), target.reshape(len(out), -1)
        if not (x.flags.c_contiguous or x.flags.f_contiguous):
            x = np.ascontiguousarray(x)
        k = x.shape[1]
        plan = kernel._plan(k, _layout(x), _layout(y) if y.flags.forc else "row")
    if plan is None:
        return False
    y = np.ascontiguousarray(y) if not y.flags.forc else y
    if np.may_share_memory(x, y):
        x = x.copy(order="K")
    before = y.copy(order="K") if kernel._checked and beta != 0 else None
    status = plan.run(x, y, float(alpha), float(beta))
    if status != 0:
        if before is not None:
            out[...] = before.reshape(out.shape)
        return False
    if not np.shares_memory(y, out) or target is not out:
        with np.errstate(over="ignore"):
            out[...] = y.reshape(out.shape)
    return True


def _certify(packed: _Packed, plan, A: sp.csr_array) -> None:
    """One product with A's own values against the reference. Raises CertificateError."""
    problem = packed.problem
    rng, op = np.random.default_rng(CERTIFICATE_SEED), ops.get(problem.op)
    x = op.make(problem, rng)
    y = np.full(op.shapes(problem)[1], np.nan, problem.dtype, order="C" if problem.layout_c == "row" else "F")
    status = plan.run(x, y, 1.0, 0.0)
    if status == 1 and prelude.checks_finite(packed.candidate):
        return  # reported: every such call is computed again
    own = sp.csr_array((A.data.astype(problem.dtype, copy=False), A.indices, A.indptr), shape=A.shape)
    exact, bound = checks.reference(problem, own, x)
    worst = checks.worst(y, exact, bound)
    if status != 0 or not worst <= 1:
        raise CertificateError(
            f"the kernel {packed.candidate.label} differs from the reference by {worst:.3g} times the bound on this matrix"
        )


def _operand(x) -> np.ndarray:
    if sp.issparse(x):
        raise SparsegenTypeError("x is sparse; expected a dense vector or matrix (x.toarray())")
    try:
        x = np.asarray(x)
    except Exception as error:  # whatever an object's own conversion raises
        raise SparsegenTypeError(f"x is a {type(x).__name__} that numpy cannot read: {error}") from None
    if x.dtype.kind not in "biufc" or x.dtype.itemsize > (16 if x.dtype.kind == "c" else 8):
        raise SparsegenTypeError(f"x is {x.dtype}; expected real or complex numbers of at most double precision")
    return x if x.dtype.isnative else x.astype(x.dtype.newbyteorder("="))


def _layout(x: np.ndarray) -> str:
    return "row" if x.flags.c_contiguous else "column"


def _order(x: np.ndarray) -> str:
    return "F" if x.ndim == 2 and x.flags.f_contiguous and not x.flags.c_contiguous else "C"
