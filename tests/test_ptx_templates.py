"""Every CUDA template, executed: right, in bounds, without a race, and nothing is read before it is written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from sparsegen import candidate, composite, ops, paths, prelude, ptx, values
from sparsegen.problem import Facts, Pattern, Problem

pytestmark = pytest.mark.skipif(ptx.available() is not None, reason=str(ptx.available()))

FILES = sorted(paths.data("cuda_templates").glob("*/*.cu"))
BYTES = {"INDEX": np.int32, "OFFSET": np.int32}


def matrices() -> dict[str, sp.csr_array]:
    """Of a few structures: sizes are no multiples of a block; empty, full and long rows are among them."""
    rng = np.random.default_rng(7013)
    random = sp.random_array((205, 187), density=0.05, rng=rng).tocsr()
    long = sp.random_array((67, 1201), density=0.01, rng=rng).tolil()
    long[5], long[66] = rng.standard_normal(1201), rng.standard_normal(1201)
    blocks = sp.kron(sp.random_array((13, 11), density=0.3, rng=rng), np.ones((12, 12))).tocsr()
    banded = sp.diags_array([np.ones(140 - abs(k)) for k in (-9, -1, 0, 1, 9)], offsets=[-9, -1, 0, 1, 9]).tocsr()
    found = {"random": random, "long": long.tocsr(), "blocks": blocks, "banded": banded}
    for A in found.values():
        A.data = rng.uniform(0.25, 1, len(A.data)) * rng.choice([-1.0, 1.0], len(A.data))
        A.sort_indices()
    return found


MATRICES = matrices()


def first_variants(path: Path):
    """One instance for every value of every parameter, not every combination of them."""
    template = candidate.parse(path.read_text(), name=path.stem, origin="template")
    seen: set = set()
    for case in candidate.instances(template):
        told = {(name, value) for name, value in case.params.items()}
        if told - seen or not seen:
            seen |= told
            yield case


def multiply(case: candidate.Candidate, A: sp.csr_array, dtype, alpha: float, beta: float):
    """The verdict of every launch, y and what it should be; None where the format cannot hold the matrix."""
    rng = np.random.default_rng(90210)
    A = sp.csr_array((A.data.astype(dtype), A.indices.astype(np.int32), A.indptr.astype(np.int32)), shape=A.shape)
    facts = Facts(constant=True, exact_f32=True)
    if case.encoding == "constant":
        A.data[:] = 0.75
    elif case.encoding == "f32":
        A.data[:] = A.data.astype(np.float32)
    k = 5 if case.op == "spmm" else 1
    of = Problem(case.op, Pattern.of(A), facts, np.dtype(dtype), k, target="cuda")
    if composite.feasible(case, of):
        return None
    op = ops.get(case.op)
    input_name, output_name = op.OPERANDS
    shape_in, shape_out = op.shapes(of)
    x, y0 = rng.standard_normal(shape_in).astype(dtype), rng.standard_normal(shape_out).astype(dtype)
    packs = composite.pack(case, of)
    source = prelude.assemble(case, of, packs, {})
    y = y0.copy() if beta else np.full(shape_out, np.nan, dtype)
    if case.zero:
        y = (beta * y0).astype(dtype) if beta else np.zeros(shape_out, dtype)
    status, scratch, outcomes = np.zeros(1, np.uint32), {}, []
    for turn, (part, packed) in enumerate(zip(case.parts, packs, strict=True)):
        data = values.encode(case.encoding, A.data, packed, np.dtype(dtype))
        sizes = {"m": A.shape[0], "n": A.shape[1], "nnz": packed.nnz, "k": k, "ldb": k, "ldc": k, **packed.sizes}
        params = {name: value for name, value in case.params.items() if isinstance(value, int)}
        names = {**sizes, **case.format_params(part), **params}
        fresh = set()
        for name, (kind, count) in case.scratch.items():
            if name not in scratch:
                scratch[name] = np.zeros(candidate.evaluate(count, names), BYTES.get(kind, dtype))
                fresh.add(name)
        later = bool(case.zero) or turn > 0
        known = {
            **sizes, **packed.arrays, "data": data, **scratch, input_name: x, output_name: y,
            "alpha": alpha, "beta": 1.0 if later else beta, "status": status,
        }  # fmt: skip
        order = [name for name, _ in prelude.arguments(case, part)]
        if not later and not beta:
            fresh.add(output_name)
        for launch in part.launches:
            grid = candidate.evaluate(launch.grid, names)
            if not grid:
                continue
            outcomes.append(
                ptx.execute(
                    ptx.compile(source, "sm_80"), launch.entry, grid, candidate.evaluate(launch.block, names),
                    [known[name] for name in order],
                    writable=[order.index(name) for name in (output_name, "status", *scratch)],
                    shared_bytes=candidate.evaluate(launch.shared_bytes, names),
                    uninitialised=[order.index(name) for name in fresh],
                )
            )  # fmt: skip
            fresh -= set(scratch)
            fresh.discard(output_name)
    exact = alpha * (A.astype(np.float64) @ x.astype(np.float64)) + (beta * y0.astype(np.float64) if beta else 0)
    size = abs(alpha) * (abs(A.astype(np.float64)) @ abs(x.astype(np.float64))) + (abs(beta * y0) if beta else 0)
    lengths = np.diff(A.indptr).reshape(-1, *[1] * (x.ndim - 1))
    return outcomes, y, exact, (lengths + 6) * np.finfo(dtype).eps * size


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_template_is_right(path, dtype):
    ran = 0
    for turn, case in enumerate(first_variants(path)):
        if case.encoding == "f32" and dtype == np.float32:
            continue
        for name, A in MATRICES.items():
            alpha, beta = ((1.0, 0.0), (-1.5, 0.25))[(turn + ran) % 2]
            answer = multiply(case, A, dtype, alpha, beta)
            if answer is None:
                continue
            outcomes, y, exact, bound = answer
            for outcome in outcomes:
                assert outcome.ok, f"{name} {case.params}: {outcome.message}"
            assert (abs(y - exact) <= bound).all(), f"{name} {case.params}"
            ran += 1
    assert ran
