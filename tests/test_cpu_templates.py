"""Every instance of every CPU template on every small matrix it can hold, and the prelude on every instruction set."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

from sparsegen import candidate, checks, composite, gallery, ops, paths, templates, values
from sparsegen.arena import Arena
from sparsegen.problem import Facts, Pattern, Problem
from sparsegen.screen import cpp
from sparsegen.targets import cpu

pytestmark = pytest.mark.skipif(cpu.available() is not None, reason="no compiler")

FILES = sorted(paths.data("cpu_templates").glob("*/*.cpp"))
LAYOUTS = [("row", "row"), ("column", "column"), ("row", "column"), ("column", "row")]
COLUMNS = [5, 8, 33, 3, 17, 1, 4]


def blocks() -> sp.csr_array:
    """Blocks that those of every template divide."""
    chain = sp.diags_array([np.ones(13)] * 3, offsets=[-1, 0, 2], shape=(13, 13))
    return sp.csr_array(sp.kron(chain, np.ones((24, 24))))


MATRICES = {**gallery.small(), "blocks": blocks(), "long row": gallery.dense_row(1301, 1299)}


def matrix(name: str, dtype, encoding: str) -> sp.csr_array:
    """With values that the encoding can store."""
    A = sp.csr_array(MATRICES[name])
    A.sum_duplicates()
    A.sort_indices()
    rng = np.random.default_rng(77)
    A.data = np.full(A.nnz, -1.75) if encoding == "constant" else rng.standard_normal(A.nnz)
    return A.astype(np.float32 if encoding == "f32" else dtype).astype(dtype)


def prepared(each: candidate.Candidate, problem: Problem, A: sp.csr_array):
    """(plan, arenas) of one candidate."""
    packs = composite.pack(each, problem)
    library = cpu.load(cpu.build(cpu.unit(each, problem, packs)))
    arenas = [Arena({**p.arrays, "data": values.encode(each.encoding, A.data, p, problem.dtype)}) for p in packs]
    return cpu.bind(library, each, problem, packs, [arena.arrays for arena in arenas], problem.threads), arenas


def judge(each: candidate.Candidate, A: sp.csr_array, **of) -> str | None:
    """Assert that one candidate multiplies A as it should; why it cannot hold it, or None."""
    problem = Problem(each.op, Pattern.of(A), Facts.of(A.data), A.dtype, **of)
    if reason := templates.refusal(each, problem):
        return reason
    op, rng = ops.get(each.op), np.random.default_rng(4099)
    plan, arenas = prepared(each, problem, A)
    x, shape = op.make(problem, rng), op.shapes(problem)[1]
    order = problem.order_c
    said = f"{each.label} on {A.shape} {A.dtype} {of}"
    for alpha, beta in ((1.0, 0.0), (-1.5, 0.5)):
        y0 = rng.standard_normal(shape).astype(A.dtype) if beta else np.full(shape, np.nan, A.dtype)
        # y lies between rows of a known value: what is written beside it shows
        frame = Arena({"y": np.array(y0, order=order).reshape(-1, order="A")})
        y = frame.arrays["y"].reshape(shape, order=order)
        assert plan.run(x, y, alpha, beta) == 0, said
        assert checks.worst(y, *checks.reference(problem, A, x, alpha, beta, y0)) <= 1, said
        assert frame.intact() and all(arena.intact() for arena in arenas), said
    if x.size and A.nnz:
        special(plan, problem, A, x, shape, order, said)
    return None


def special(plan, problem: Problem, A: sp.csr_array, x: np.ndarray, shape, order: str, said: str) -> None:
    """An x with an infinity and a NaN: reported, or as scipy has it."""
    x = x.copy(order="A")
    x[x.shape[0] // 2], x[0], x[-1] = np.nan, np.inf, -np.inf
    y = np.zeros(shape, A.dtype, order=order)
    status = plan.run(x, y, 1.0, 0.0)
    if status == 0:
        with np.errstate(all="ignore"):
            exact = A @ x
        np.testing.assert_array_equal(np.isnan(y), np.isnan(exact), err_msg=said)
        np.testing.assert_array_equal(y[np.isinf(exact)], exact[np.isinf(exact)], err_msg=said)
        assert np.isfinite(y[np.isfinite(exact)]).all(), said
    else:
        assert status == 1, said


def read(path) -> candidate.Candidate:
    return candidate.parse(path.read_text(), name=path.stem, origin="template", language="cpp")


def identity(path) -> str:
    return f"{path.parent.name}-{path.stem}"


def test_there_are_templates():
    assert {path.parent.name for path in FILES} == {"spmv", "spmm"}
    assert {part.format for path in FILES for part in read(path).parts} >= {"csr", "sell", "bsell", "dia", "bsr", "coo"}


@pytest.mark.parametrize("path", FILES, ids=identity)
def test_grammar(path):
    text, template = path.read_text(), read(path)
    assert template.op == path.parent.name and template.about and len(text.splitlines()) < 150
    assert len(template.parts) > 1 or path.stem.startswith(template.format + "_")
    assert candidate.parse(candidate.text(template), name=path.stem, origin="template") == template
    assert cpp.check(template) is None


@pytest.mark.parametrize("path", FILES, ids=identity)
def test_every_instance_is_right(path):
    """Element type, threads, layouts and columns take turns, so that each value of a parameter meets each of them."""
    template, refused = read(path), 0
    for number, each in enumerate(candidate.instances(template)):
        dtype = np.float64 if each.encoding == "f32" or number % 3 else np.float32
        of = {"threads": 1 + number % 2}
        if template.op == "spmm":
            layout_b, layout_c = LAYOUTS[number % 4]
            layout_b = "column" if each.params.get("TURN_B") else layout_b
            of |= {"k": COLUMNS[number % 7], "layout_b": layout_b, "layout_c": layout_c}
        reasons = [judge(each, matrix(name, dtype, each.encoding), **of) for name in MATRICES]
        assert None in reasons, each.label
        refused += sum(reason is not None for reason in reasons)
    holds_all = {part.format for part in template.parts} <= {"csr", "coo"}
    assert (refused == 0) == holds_all


@pytest.mark.parametrize("isa", ["avx2", "sse2"])
@pytest.mark.parametrize("path", FILES, ids=identity)
def test_narrower_machines(path, isa, monkeypatch):
    """Compiled for less than this processor offers: two lanes of a double, four, and no masked loads."""
    level = next((each for each in cpu.X86_LEVELS if each[0] == isa), None)
    if cpu.machine().isa not in [name for name, _, _ in cpu.X86_LEVELS[: cpu.X86_LEVELS.index(level)]]:
        pytest.skip(f"{cpu.machine().isa} does not run {isa} as something narrower")
    _, needed, width = level
    narrow = replace(cpu.machine(), isa=isa, flags=tuple(f"-m{flag}" for flag in needed), vector_bytes=width)
    monkeypatch.setattr(cpu, "machine", lambda: narrow)
    held = 0
    every = list(candidate.instances(read(path)))
    for number, each in enumerate(every[:: max(len(every) // 5, 1)]):
        dtype = np.float64 if each.encoding == "f32" or number % 2 else np.float32
        layout_b, layout_c = LAYOUTS[number % 4]
        of = {"k": COLUMNS[number % 7], "layout_b": layout_b, "layout_c": layout_c} if each.op == "spmm" else {}
        for name in ("blocks", "long row", "tridiagonal", "row_lengths"):
            held += judge(each, matrix(name, dtype, each.encoding), **of) is None
    assert held


@pytest.mark.parametrize("path", FILES, ids=identity)
def test_wide_indices(path, monkeypatch):
    """Rows, columns and positions in 64 bits, which only matrices too large for a test need."""
    monkeypatch.setattr(Problem, "index_dtype", np.dtype(np.int64))
    monkeypatch.setattr(Problem, "offset_dtype", np.dtype(np.int64))
    every, held = list(candidate.instances(read(path))), 0
    for number, each in enumerate(every[:: max(len(every) // 5, 1)]):
        dtype = np.float64 if each.encoding == "f32" or number % 2 else np.float32
        of = {"k": COLUMNS[number % 7]} if each.op == "spmm" else {}
        for name in ("blocks", "long row", "tridiagonal", "row_lengths"):
            held += judge(each, matrix(name, dtype, each.encoding), **of) is None
    assert held
