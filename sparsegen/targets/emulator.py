"""CUDA without a GPU: the kernels of the target cuda as PTX, executed by `sparsegen.ptx` with every access checked.

x and y are NumPy arrays. A call is exact about faults; what it might take on a GPU, `Plan.estimate` guesses.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from sparsegen import cache, nvrtc, ops, prelude, ptx
from sparsegen.candidate import Candidate, evaluate
from sparsegen.errors import SparsegenValueError
from sparsegen.formats import Packed
from sparsegen.nvrtc import CompileFailure as CompileFailure
from sparsegen.problem import Problem
from sparsegen.ptx import counters as counting
from sparsegen.ptx import estimate, gpus
from sparsegen.ptx.estimate import Estimate
from sparsegen.screen import cuda as cuda_screen
from sparsegen.targets import Fault

LANGUAGE = "cuda"
COPIES = False  # bind leaves the arrays where they are
NS_PER_ENTRY = 20_000.0  # of a very slow kernel
ARCH = "sm_80"  # what kernels are compiled for: the oldest that has all they may use


def available() -> str | None:
    """None when kernels can be compiled and executed here; else one sentence why not and what to do."""
    return ptx.available()


def device() -> str:
    """What a choice made here is for."""
    return f"emulator {ARCH} NVRTC {nvrtc.version()}"


def screen(candidate: Candidate) -> str | None:
    """One sentence why the source must not be compiled, or None."""
    return cuda_screen.check(candidate.source)


def unit(candidate: Candidate, problem: Problem, packs: Sequence[Packed]) -> str:
    """The translation unit of a candidate."""
    return prelude.assemble(candidate, problem, packs, {})


def build(text: str, ordinal: int = 0) -> Path:
    """The PTX of a translation unit, from the cache or compiled into it. Raises CompileFailure."""
    key = hashlib.blake2b("\0".join([nvrtc.version(), "ptx", ARCH, text]).encode(), digest_size=20).hexdigest()

    def write(path: Path) -> None:
        path.write_bytes(ptx.compile(text, ARCH).encode() + b"\0")  # the cache adds its checksum

    return cache.binary_path(key, write)


@functools.lru_cache(maxsize=64)
def image(text: str, arch: str) -> nvrtc.Image:
    """The CUBIN of a translation unit, with registers and shared memory of its kernels. Raises CompileFailure."""
    return nvrtc.compile(text, arch)


def load(path: Path) -> str:
    """The PTX that `bind` takes."""
    return Path(path).read_bytes().partition(b"\0")[0].decode()


def bind(
    handle: str,
    candidate: Candidate,
    problem: Problem,
    packs: Sequence[Packed],
    arrays: Sequence[Mapping[str, np.ndarray]],
    threads: int = 1,
) -> Plan:
    """A kernel ready to run; `arrays` holds for each part those of its format, data included."""
    return Plan(handle, candidate, problem, packs, arrays)


class Plan:
    """plan.run(x, y, alpha, beta) -> status: y = alpha A x + beta y; status 1 if a sum was not finite.

    Raises targets.Fault for what a kernel may not do, and SparsegenValueError for a launch that no GPU can make.
    """

    def __init__(self, text: str, candidate: Candidate, problem: Problem, packs, arrays):
        self.text, self.candidate, self.problem = text, candidate, problem
        self.packs, self.arrays = packs, arrays
        self.checks = prelude.checks_finite(candidate)
        self.outcomes: list[ptx.Outcome] = []  # of the launches of the last call
        self.shapes: list[tuple[str, int, int]] = []  # entry, block, dynamic shared memory of each

    def estimate(self, x: np.ndarray, y: np.ndarray, gpu: gpus.GPU, resources: Mapping) -> Estimate:
        """Of a call of which the operands that fit the L2 of the GPU are there. resources: of the kernels built for it.

        Of a large problem some blocks are run, where none needs what others leave in scratch memory.
        """
        launches = self.estimates(x, y, gpu, resources)
        if not launches:
            raise SparsegenValueError("the kernel launches nothing on this matrix: there is no time to estimate")
        return estimate.joined(launches, cleared=bool(self.candidate.zero))

    def estimates(self, x: np.ndarray, y: np.ndarray, gpu: gpus.GPU, resources: Mapping) -> list[Estimate]:
        """As `estimate`, of each launch."""
        nbytes = x.nbytes + y.nbytes + sum(array.nbytes for own in self.arrays for array in own.values())

        def device(entry: str, block: int, shared_bytes: int) -> counting.Device:
            return estimate.device(gpu, resources[entry], block, shared_bytes, nbytes)

        self.run(x, y, counters=device, sampled=True)
        return [
            estimate.launch(gpu, outcome.counters, resources[entry], block, shared, first=not turn)
            for turn, (outcome, (entry, block, shared)) in enumerate(zip(self.outcomes, self.shapes, strict=True))
            if outcome.counters is not None
        ]

    def run(
        self, x: np.ndarray, y: np.ndarray, alpha: float = 1.0, beta: float = 0.0,
        counters: bool | counting.Device | Callable[[str, int, int], counting.Device] = False, sampled: bool = False,
    ) -> int:  # fmt: skip
        """x: (n,) or (n, k), y: (m,) or (m, k), in the problem's dtype and layouts; y is overwritten.

        counters: as `ptx.launch` takes them, or the device for an entry, block and dynamic shared memory; they are then
        in `outcomes`. sampled: of a large problem, run some blocks alone, so that y is not all computed; not where one
        launch needs what the blocks of another have left.
        """
        problem, candidate = self.problem, self.candidate
        self._fits(x, y)
        input_name, output_name = ops.get(candidate.op).OPERANDS
        status = np.zeros(1, np.uint32)
        wanted = prelude.scratch(candidate, problem, self.packs)
        scratch = {name: np.empty(count, dtype) for name, (dtype, count) in wanted.items()}
        for array in scratch.values():
            array.view(np.uint8)[:] = 255  # NaN, or an index far away
        unwritten = set(scratch)
        self.outcomes, self.shapes = [], []
        if candidate.zero:
            y[...] = 0 if beta == 0 else y * problem.dtype.type(beta)
        elif beta == 0:
            unwritten.add(output_name)
        for turn, (part, packed, own) in enumerate(zip(candidate.parts, self.packs, self.arrays, strict=True)):
            sizes, names = prelude.sizes(problem, packed), prelude.names(candidate, part, problem, packed)
            later = bool(candidate.zero) or turn > 0
            known = {**sizes, **own, **scratch, input_name: x, output_name: y, "status": status}
            known |= {"alpha": alpha, "beta": 1.0 if later else beta}
            order = [name for name, _ in prelude.arguments(candidate, part)]
            for launch in part.launches:
                grid = evaluate(launch.grid, names)
                if not grid:  # nothing to do: no rows, say
                    continue
                shape = launch.entry, evaluate(launch.block, names), evaluate(launch.shared_bytes, names)
                device = counters(*shape) if callable(counters) else counters
                entries = problem.pattern.nnz * problem.k if sampled and not candidate.scratch else 0
                processors = device.multiprocessors if isinstance(device, counting.Device) else 1
                outcome = ptx.execute(
                    self.text, launch.entry, grid, shape[1], [known[name] for name in order],
                    writable=[order.index(name) for name in (output_name, "status", *scratch)],
                    shared_bytes=shape[2], counters=device, stride=estimate.stride(entries, grid, processors),
                    uninitialised=[order.index(name) for name in unwritten],
                )  # fmt: skip
                self.outcomes.append(outcome)
                self.shapes.append(shape)
                if not outcome.ok:
                    raise Fault(outcome.kind, outcome.message)
                unwritten.clear()
        return int(status[0])

    __call__ = run

    def _fits(self, x: np.ndarray, y: np.ndarray) -> None:
        op = ops.get(self.candidate.op)
        for name, array, shape in zip(op.OPERANDS, (x, y), op.shapes(self.problem), strict=True):
            if array.shape != shape or array.dtype != self.problem.dtype:
                got = f"{name} is {array.shape} of {array.dtype}"
                raise SparsegenValueError(f"{got}; expected {shape} of {self.problem.dtype}")
