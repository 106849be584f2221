"""Every instance of every CUDA template compiles, and keeps to the grammar. No GPU is needed."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from sparsegen import candidate, composite, formats, nvrtc, ops, paths, prelude
from sparsegen.problem import Facts, Pattern, Problem
from sparsegen.screen import cuda

ARCHS = ("sm_80", "sm_90", "sm_100")
FILES = sorted(paths.data("cuda_templates").glob("*/*.cu"))
LAYOUTS = {"spmv": [("row", "row")], "spmm": [("row", "row"), ("column", "column")]}

needs_nvrtc = pytest.mark.skipif(nvrtc.available() is not None, reason=str(nvrtc.available()))


def read(path: Path) -> candidate.Candidate:
    return candidate.parse(path.read_text(), name=path.stem, origin="template")


def pattern(composed: bool = False) -> Pattern:
    """36 x 36 of dense 12 x 12 blocks but one entry, which every format can hold; or one dense row among short ones."""
    if composed:
        return Pattern.of(sp.csr_array(sp.vstack([sp.eye_array(67, 601), np.ones((1, 601))])))
    A = sp.block_diag([np.ones((12, 12))] * 3, format="lil")
    A[5, 7] = 0
    return Pattern.of(sp.csr_array(A))


def problem(template: candidate.Candidate, dtype: str, layouts=("row", "row")) -> Problem:
    facts = Facts(constant=True, exact_f32=dtype == "float64")
    k = 5 if template.op == "spmm" else 1
    whole = pattern(len(template.parts) > 1)
    return Problem(template.op, whole, facts, np.dtype(dtype), k, *layouts, target="cuda")


def variants(path: Path):
    """Every instance with every problem that its source differs for."""
    template = read(path)
    for instance in candidate.instances(template):
        for dtype in ("float32", "float64"):
            if instance.encoding == "f32" and dtype == "float32":
                continue
            for layouts in LAYOUTS[template.op]:
                yield instance, problem(template, dtype, layouts)


def sizes(case: candidate.Candidate, part: candidate.Part, of: Problem, packed: formats.Packed) -> dict[str, int]:
    known = {"m": of.pattern.m, "n": of.pattern.n, "nnz": packed.nnz, "k": of.k, "ldb": of.k, "ldc": of.k}
    params = {name: value for name, value in case.params.items() if name != "values"}
    return {**known, **packed.sizes, **case.format_params(part), **params}


def test_there_are_templates():
    assert {path.parent.name for path in FILES} == {"spmv", "spmm"}
    assert len(FILES) >= 15


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_grammar(path):
    text = path.read_text()
    template = read(path)
    assert template.op == path.parent.name and template.about and template.language == "cuda"
    assert len(text.splitlines()) < 150
    assert len(template.parts) > 1 or path.stem.startswith(template.format + "_")
    assert candidate.parse(candidate.text(template), name=path.stem, origin="template") == template
    assert cuda.check(template.source) is None
    assert ("atomicAdd" in template.source or "ATOMIC_ADD" in template.source) <= bool(template.zero)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_signatures_are_the_derived_ones(path):
    """The parameter list of every entry, its macros expanded, is what `prelude.arguments` says."""
    template = read(path)
    case = next(candidate.instances(template))
    of = problem(template, "float64")
    defined = prelude.macros(case, of, composite.pack(case, of))
    assert re.search(r"#define EPILOGUE SCRATCH_ARRAYS ACC alpha, ACC beta, uint32_t\* status\n", prelude.text("cuda"))
    defined["EPILOGUE"] = defined["SCRATCH_ARRAYS"] + "ACC alpha, ACC beta, uint32_t* status"
    for part, launch in prelude.entries(case):
        found = re.search(rf"\b{launch.entry}\s*\(([^)]*)\)\s*{{", template.source)
        assert found, launch.entry
        words = re.sub(r"\b(SIZES|EPILOGUE|[A-Z]+_ARRAYS)\b", lambda word: defined[word[0]], found[1])
        listed = [re.sub(r"__restrict__\s*", "", each).strip() for each in words.split(",")]
        assert listed == [f"{kind} {name}" for name, kind in prelude.arguments(case, part)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_launches_evaluate(path):
    """Grids, blocks and scratch counts are numbers a GPU can launch, whatever is tuned."""
    for case in candidate.instances(read(path)):
        of = problem(case, "float64")
        for part, packed in zip(case.parts, composite.pack(case, of), strict=True):
            names = sizes(case, part, of, packed)
            for launch in part.launches:
                block, grid = candidate.evaluate(launch.block, names), candidate.evaluate(launch.grid, names)
                assert block % 32 == 0 and 0 < block <= 1024
                assert 0 < grid < 2**31
                assert candidate.evaluate(launch.shared_bytes, names) <= 48 << 10
            for _, count in case.scratch.values():
                assert candidate.evaluate(count, names) > 0


@needs_nvrtc
@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_instance_compiles(path):
    """For three generations, without spilling and without a warning about the kernel."""
    count = 0
    for case, of in variants(path):
        source = prelude.assemble(case, of, composite.pack(case, of), {})
        for arch in ARCHS if of.layout_b == "row" else ARCHS[1:2]:
            image = nvrtc.compile(source, arch)
            entries = {launch.entry for _, launch in prelude.entries(case)}
            assert set(image.resources) == entries
            assert image.data[:4] == b"\x7fELF" and image.log == ""
            for used in image.resources.values():
                assert used["spill_bytes"] == 0 and used["stack_bytes"] == 0 and used["shared_bytes"] <= 48 << 10
            count += 1
    assert count


@needs_nvrtc
@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_wide_indices_compile(path):
    """INDEX and OFFSET of 64 bits, as a matrix beyond 2^31 needs."""
    case = next(candidate.instances(read(path)))
    of = problem(case, "float64")
    source = prelude.assemble(case, of, composite.pack(case, of), {})
    for macro in ("INDEX", "OFFSET"):
        source, changed = re.subn(rf"#define {macro} int32_t", f"#define {macro} int64_t", source)
        assert changed == 1
    for used in nvrtc.compile(source, "sm_90").resources.values():
        assert used["spill_bytes"] == 0 and used["shared_bytes"] <= 48 << 10


def test_ops_are_covered():
    assert {path.parent.name for path in FILES} == set(ops.names())
