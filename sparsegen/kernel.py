"""`Kernel`: a verified product one can call, holding a candidate or the name of the baseline that nothing beat."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as spla

from sparsegen import baselines, device_arrays, inputs, on_device, operands, ops, prelude, values
from sparsegen.binding import Binding, CertificateError
from sparsegen.candidate import Candidate, text
from sparsegen.errors import SparsegenTypeError, SparsegenValueError
from sparsegen.problem import Facts, Problem
from sparsegen.report import Report
from sparsegen.targets import cpu

_REAL = frozenset((int, float))  # types of alpha and beta that need no look


class Kernel(operands.Call, spla.LinearOperator):
    """y = kernel @ x, or kernel(x, out=None, alpha=1, beta=0) = alpha A x + beta out.

    A `scipy.sparse.linalg.LinearOperator`. x: (n,), (n, 1) or (n, k), anything numpy makes an array of; the result has
    numpy's result type and x's dimensions. A kernel on a GPU takes arrays that lie there too, of CuPy, PyTorch or what
    has `__cuda_array_interface__` or DLPack, in their stream, and the result stays there. A must not be changed in
    place afterwards: see `update_values`. Entries stored in A propagate NaN and infinity, entries it does not have do
    not, as in scipy. Safe to call from threads.
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
        image: bytes | None = None,
    ):
        """For `compile` and `load`: A canonical, in the dtype the user sees; without candidate, baseline serves.
        image: the candidate's machine code for a GPU, where it is there already.

        Raises CertificateError when the candidate misses the reference on A's own values.
        """
        super().__init__(A.dtype, A.shape)
        self.problem, self.baseline = problem, baseline
        self.options = dict(options or {})
        self._report = Report(report)
        self._threads = threads
        self._lock = threading.RLock()  # of changes; calls take none
        self._resting: Binding | None = None  # what served before values came that it cannot bear
        self._twin: Kernel | None = None  # A transposed
        self._adjoint_twin: Kernel | None = None
        data = A.data.astype(problem.dtype, copy=False)
        self._serve(A, None if candidate is None else Binding.make(candidate, problem, data, threads, image))

    # ---- calls

    def __matmul__(self, x):
        if type(x) is np.ndarray and x.ndim == 1:
            if (native := self._native) is not None:
                y = np.empty(self._rows, self._plain)
                if native(x, y, 1.0, 0.0) == 0:
                    return y
            elif (direct := self._direct) is not None and len(x) == self.shape[1] and x.flags.forc and x.flags.aligned:
                return direct(x, None) if x.dtype == self._plain else self(x)
        if isinstance(x, spla.LinearOperator):
            return super().dot(x)
        return self(x)

    def _other(self, x, out, alpha, beta):
        if type(alpha) in _REAL and type(beta) in _REAL:
            native, y = self._accumulating if beta else self._native, out
            if native is not None:
                if out is None and type(x) is np.ndarray and x.ndim == 1 and not beta:
                    y = np.empty(self._rows, self._plain)
                try:
                    if type(y) is np.ndarray and native(x, y, alpha, beta) == 0:
                        return y
                except OverflowError:
                    pass  # an integer beyond floating point: said below
        return self._call(x, out, alpha, beta)

    def matvec(self, x, out=None, alpha=1, beta=0):
        """A x for a vector, (n,) or (n, 1)."""
        if getattr(x, "ndim", 1) == 2 and x.shape[1] != 1:
            n = self.shape[1]
            raise SparsegenValueError(f"matvec got x of shape {x.shape}; expected ({n},) or ({n}, 1)")
        return self(x, out, alpha, beta)

    def matmat(self, X, out=None, alpha=1, beta=0):
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
        if type(x) is not np.ndarray and (there := device_arrays.seen(x)) is not None:
            return on_device.call(self, x, there, out, alpha, beta)
        x = operands.dense(x, self.shape)
        alpha, beta = operands.scalar("alpha", alpha), operands.scalar("beta", beta)
        result = operands.result_dtype(self.dtype, x.dtype, alpha, beta)
        out = operands.output(out, (self.shape[0], *x.shape[1:]), result, x, beta)
        binding = self._binding
        narrow = np.result_type(result, self.problem.dtype) == self.problem.dtype
        if narrow and binding is not None and binding.run(x, out, float(alpha), float(beta)):
            return out
        product = self._exact(x)
        with np.errstate(invalid="ignore", over="ignore"):
            if not (isinstance(alpha, int) and alpha == 1):
                product = alpha * product
            out[...] = product if beta == 0 else product + beta * out.astype(np.result_type(product, out), copy=False)
        return out

    def _exact(self, x: np.ndarray) -> np.ndarray:
        """A @ x by the baseline, or by scipy where no baseline was prepared for such an x."""
        whole, A, problem = self._whole, self._A, self.problem
        if whole is not None and np.result_type(A.dtype, x.dtype) == A.dtype:
            shape = ops.get(problem.op).shapes(problem)[0]
            if x.shape in (shape, (*shape, 1)):
                order = problem.order_b
                product = whole(np.require(x.reshape(shape), A.dtype, [order, "A"]), None)
                return product.reshape(len(product), *x.shape[1:])
        if np.float16 in (A.dtype, x.dtype):  # scipy has no half precision: widen, and round once at the end
            return A.astype(np.result_type(A.dtype, np.float32)) @ x.astype(np.result_type(x.dtype, np.float32))
        return A @ x

    def graph(self, x, out, alpha=1.0, beta=0.0) -> Callable:
        """A callable that computes out = alpha A x + beta out for these very arrays on the GPU, as one CUDA graph.

        It takes the stream (0, the default one), allocates nothing and starts all launches at once. Raises
        SparsegenValueError where the kernel is none for a GPU, or waits for its own status.
        """
        return on_device.graph(self, x, out, float(alpha), float(beta))

    # ---- other products

    def _transpose(self) -> Kernel:
        with self._lock:
            if self._twin is None:
                self._twin = self._compiled(self._A.T)
                self._twin._twin = self
            return self._twin

    def _adjoint(self) -> Kernel:
        if self.dtype.kind != "c":
            return self._transpose()
        with self._lock:
            if self._adjoint_twin is None:
                self._adjoint_twin = self._compiled(self._A.conj().T)
                self._adjoint_twin._adjoint_twin = self
            return self._adjoint_twin

    def _compiled(self, A: sp.sparray) -> Kernel:
        from sparsegen import engine

        declared = isinstance(self.options.get("facts"), Facts)
        options = {**self.options, "facts": self.problem.facts} if declared else self.options
        made = engine.compile(A, **options)
        assert isinstance(made, Kernel)
        return made

    @property
    def T(self) -> Kernel:
        """A transposed, a Kernel of its own, searched for on first use."""
        return self._transpose()

    @property
    def H(self) -> Kernel:
        """The adjoint of A; A transposed when A is real."""
        return self._adjoint()

    # ---- values

    def update_values(self, data) -> None:
        """New values for the same pattern, without a search or a recompilation.

        data: (nnz,), in the order of A in canonical CSR (rows ascending, columns sorted), or a sparse matrix of A's
        pattern. When a fact the kernel leans on no longer holds, it is replaced by its opaque form, else by the
        baseline, and the report says so. The new kernel is checked by one reference product. Calls that run meanwhile
        see the old values or the new; kernels got from .T and .H before keep the old.
        """
        pattern = self.problem.pattern
        if sp.issparse(data):
            matrix = inputs.as_csr(data)
            same = matrix.shape == pattern.shape and np.array_equal(matrix.indptr, pattern.indptr)
            if not (same and np.array_equal(matrix.indices, pattern.indices)):
                m, n = matrix.shape
                raise SparsegenValueError(
                    f"the new matrix ({m} x {n}, {matrix.nnz} entries) has another pattern than A; compile it"
                )
            data = matrix.data
        try:
            data = np.array(data)
        except (TypeError, ValueError) as error:
            raise SparsegenTypeError(f"data is no array of numbers: {error}") from None
        if data.shape != (pattern.nnz,):
            raise SparsegenValueError(f"data has shape {data.shape}; expected ({pattern.nnz},), a value per entry")
        if data.dtype.kind not in "biufc" or not np.can_cast(data.dtype, self.dtype, "same_kind"):
            raise SparsegenTypeError(f"data is {data.dtype}; expected what casts to A's {self.dtype}")
        A = sp.csr_array((data.astype(self.dtype, copy=False), self._A.indices, self._A.indptr), shape=self.shape)
        with self._lock:
            self._replace_values(A)
            for name in ("_twin", "_adjoint_twin"):
                if (twin := getattr(self, name)) is not None:
                    setattr(twin, name, None)
                    setattr(self, name, None)

    def _replace_values(self, A: sp.csr_array) -> None:
        data, problem, binding, notes = A.data.astype(self.problem.dtype, copy=False), self.problem, self._binding, []
        if binding is None and self._resting is not None and np.isfinite(data).all():
            binding, self._resting = self._resting, None
            notes.append("all values are finite again")
        if broken := problem.facts.broken_by(A.data):
            notes.append(f"new values break the fact {' and '.join(broken)}")
            problem = replace(problem, facts=replace(problem.facts, **dict.fromkeys(broken, False)))
        if binding is not None:
            candidate = binding.candidate
            opaque = values.FACT.get(candidate.encoding) in broken
            if opaque:
                candidate = replace(candidate, params={**candidate.params, "values": "full"})
            if prelude.checks_finite(candidate) and not np.isfinite(data).all():
                notes.append("new values are not finite, which padding cannot bear")
                self._resting, binding = binding, None
            else:
                try:
                    if opaque:
                        binding = Binding.make(candidate, problem, data, self._threads)
                        notes.append("the values are stored in full now")
                    else:
                        binding = binding.with_values(data, problem)
                except CertificateError as error:
                    notes.append(f"the kernel failed its check with the new values ({error})")
                    binding = None
            if binding is None:
                notes.append(f"{self.baseline} serves now")
        before, self.problem = self.candidate, problem
        self._serve(A, binding)
        report = self._report if self.candidate is before else self._report.unmeasured(self.candidate, self.baseline)
        self._report = report.valued(problem.facts, notes)

    def _serve(self, A: sp.csr_array, binding: Binding | None) -> None:
        """Take values and what computes with them into use; a call that runs meanwhile may see any mixture."""
        problem, whole, run, plan = self.problem, None, None, None
        vector = problem.op == "spmv" and A.dtype == problem.dtype
        if binding is None and A.dtype == problem.dtype:
            module = baselines.get(self.baseline)
            limited = replace(problem, threads=problem.useful_threads)
            whole = module.prepare(A, limited) if module.available(limited) is None else None
        key = (problem.k, problem.layout_b, problem.layout_c)
        here = problem.target == "cpu"  # other targets' plans look at their operands themselves
        if here and binding is not None and A.dtype == problem.dtype and (plan := binding.plan(*key)) is not None:
            run = plan.run
        elif here and binding is None and problem.dtype == A.dtype and whole is not None:
            in_place = baselines.get("scipy").into(A, problem) if self.baseline == "scipy" else None
            run = _as_plan(in_place or whole, problem)
        self._A, self._binding = A, binding
        self._plain, self._rows = A.dtype, A.shape[0]  # of an x that needs no conversion, and of its y
        self._whole: Callable | None = whole  # A @ x for a whole operand of the problem
        self._whole_shape, shape_y = ops.get(problem.op).shapes(problem)
        self._vector: tuple | None = None  # the fast path of vectors on a GPU
        if problem.target == "cuda" and binding is not None and vector and A.shape[0] and not binding.checks_finite:
            there = binding.plan(1, problem.layout_b, problem.layout_c)
            self._vector = None if there is None else (there, self._whole_shape, shape_y, problem.dtype)
        self._direct: Callable | None = whole if vector else None
        self._native: Callable | None = run  # the fast path of whole operands
        self._plan = plan if plan is not None else run  # the same, without Python between
        accumulates = binding is not None and not binding.checks_finite
        self._accumulating: Callable | None = run if accumulates else None

    # ---- what it is

    @property
    def candidate(self) -> Candidate | None:
        """The kernel file as read; None when a baseline serves."""
        return self._binding.candidate if self._binding is not None else None

    @property
    def source(self) -> str | None:
        """The kernel file, header and source; None when the kernel is a baseline."""
        return text(self.candidate) if self.candidate is not None else None

    @property
    def pack_ms(self) -> float:
        """What packing A took; 0 where a baseline serves."""
        return self._binding.pack_ms if self._binding is not None else 0.0

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
        m, n = self.shape
        return f"<sparsegen.Kernel {m} x {n}, {self.nnz} entries, {self.dtype}, {self.problem.op}: {what}>"

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
            self.baseline, self._resting = "scipy", None
            self._twin = self._adjoint_twin = None
            self._serve(self._A, None)

    def __enter__(self) -> Kernel:
        return self

    def __exit__(self, *details) -> None:
        self.close()


def _as_plan(call: Callable, problem: Problem) -> Callable | None:
    """A library's call(x, y) as the run of a plan: y = A x for whole plain operands, -1 for others, y untouched."""
    fits = cpu.fits(problem)
    if fits is None:
        return None

    def run(x, y, alpha: float = 1.0, beta: float = 0.0) -> int:
        if alpha != 1 or beta or fits(x, y, 1.0, 0.0) != 0:
            return -1
        result = call(x, y)
        if result is not y:
            y[...] = result
        return 0

    return run
