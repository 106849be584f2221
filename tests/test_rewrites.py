"""Rewritten kernels: each rewrite does what it says, passes the screen, compiles and still computes the same."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from support import user_kernel
from test_cpu_templates import COLUMNS, LAYOUTS, judge, matrix
from test_cuda_templates import problem as cuda_problem

from sparsegen import candidate, checks, composite, evaluate, fence, gallery, nvrtc, prelude, templates
from sparsegen.errors import SparsegenValueError
from sparsegen.targets import cpu
from sparsegen.train import rewrites
from sparsegen.train.source import Source, tidy
from sparsegen.verdict import Level

TEMPLATES = [pytest.param(each, id=f"{each.op}-{each.name}") for each in templates.load("cpp")]
CUDA = [pytest.param(each, id=f"{each.op}-{each.name}") for each in templates.load("cuda")]


def drawn(template: candidate.Candidate, rng: np.random.Generator) -> candidate.Candidate:
    every = list(candidate.instances(template))
    return every[rng.integers(len(every))]


def once(name: str, body: str, seed: int = 23) -> str | None:
    """The body of a CSR kernel after one rewrite, on one line."""
    done = rewrites.apply(user_kernel(body), name, np.random.default_rng(seed))
    if done is None:
        return None
    assert rewrites.screened(done) is None, done.source
    lines = done.source.split("\n")
    return " ".join(" ".join(lines[1:-1]).split())


@pytest.mark.skipif(cpu.available() is not None, reason="no compiler")
@pytest.mark.parametrize("template", TEMPLATES)
def test_rewritten_cpu_templates_are_right(template):
    """Many rewrites one after the other, and each alone, over matrices of several structures."""
    rng = np.random.default_rng(4021)
    changed = 0
    for number in range(5):
        each = drawn(template, rng)
        done = rewrites.rewrite(each, rng, count=8)
        changed += done.key != each.key
        assert rewrites.screened(done) is None
        dtype = np.float64 if done.encoding == "f32" or number % 3 else np.float32
        of = {"k": COLUMNS[number % 7], "layout_b": LAYOUTS[number % 4][0], "layout_c": LAYOUTS[number % 4][1]}
        if done.turns:  # what is by rows already, nothing turns
            of["layout_b"] = "column"
        of = of if done.op == "spmm" else {"threads": 1 + number % 2}
        names = ("blocks", "long row", "tridiagonal", "row_lengths")
        held = [judge(done, matrix(name, dtype, done.encoding), **of) is None for name in names]
        assert any(held)
    assert changed >= 4


@pytest.mark.skipif(cpu.available() is not None, reason="no compiler")
def test_the_engine_finds_them_correct():
    """Through refusal, compiler, worker and references, as a sampled kernel is judged."""
    from support import problem_of

    A = gallery.small()["uniform"]
    problem = problem_of(A, threads=2, facts=None)
    rng = np.random.default_rng(71)
    seen = 0
    with fence.session(problem, A) as session:
        references = checks.References(problem)
        for number, template in enumerate(each for each in templates.load("cpp") if each.op == "spmv"):
            first = next(candidate.instances(template))
            if templates.refusal(first, problem):
                continue
            done = rewrites.rewrite(first, rng, count=7)
            verdict = evaluate.evaluate(done, problem, session, references, f"rewritten {number}")
            assert verdict.level == Level.CORRECT, (verdict, done.source)
            seen += 1
    assert seen >= 4


@pytest.mark.skipif(nvrtc.available() is not None, reason="no NVRTC")
@pytest.mark.parametrize("template", CUDA)
def test_rewritten_cuda_templates_compile(template):
    rng = np.random.default_rng(733)
    changed = 0
    for number in range(4):
        each = drawn(template, rng)
        done = rewrites.rewrite(each, rng, count=9)
        changed += done.key != each.key
        assert rewrites.screened(done) is None
        of = cuda_problem(done, "float64" if done.encoding == "f32" or number % 2 else "float32", ("row", "row"))
        source = prelude.assemble(done, of, composite.pack(done, of), {})
        image = nvrtc.compile(source, "sm_90", kind="ptx")
        assert all(launch.entry.encode() in image.data for _, launch in prelude.entries(done))
    assert changed >= 3


def test_two_lists_hold_every_rewrite():
    assert not set(rewrites.SPELLING) & set(rewrites.SCHEDULE)
    assert rewrites.names() == [*rewrites.SPELLING, *rewrites.SCHEDULE]
    assert {"unroll", "split_sum"} == set(rewrites.SCHEDULE)


@pytest.mark.parametrize("name", rewrites.names())
def test_every_rewrite_finds_work_in_the_templates(name):
    rng = np.random.default_rng(91)
    done = []
    for language in ("cpp", "cuda"):
        for template in templates.load(language):
            each = drawn(template, rng)
            if (other := rewrites.apply(each, name, rng)) is not None:
                assert rewrites.screened(other) is None, other.source
                assert replace(other, source=each.source) == each
                done.append(candidate.normalised(other.source) != candidate.normalised(each.source))
    assert len(done) >= 3
    assert name == "comment" or all(done)


ROW = "for (int64_t row = begin; row < end; ++row) {{ {} }}"
LOOP = "for (OFFSET p = indptr[row]; p < indptr[row + 1]; ++p) sum += VALUE_AT(p) * ACC(x[indices[p]]);"
SUM = f"ACC sum = 0; {LOOP} STORE(y, row, sum);"


def test_rename_leaves_the_signature():
    text = once("rename", ROW.format(SUM))
    assert text != ROW.format(SUM)
    assert re.search(r"STORE\(y, (\w+), (\w+)\);", text)
    assert "indptr[" in text and "x[indices[" in text and "< end" in text and "= begin" in text


def test_step():
    assert re.search(r"row \+= 1|row\+\+|p \+= 1|p\+\+", once("step", ROW.format(SUM)))
    assert once("step", "vector a = {}; a += 1; store(y, a);") is None  # no integer


def test_loop_keeps_the_body_and_its_step():
    text = once("loop", "for (int64_t row = begin; row < end; ++row) y[row] = 0;")
    assert text == "{ int64_t row = begin; while (row < end) { y[row] = 0; ++row; } }"
    assert once("loop", "int64_t row = begin; while (row < end) { y[row] = 0; ++row; }") == (
        "int64_t row = begin; for (; row < end;) { y[row] = 0; ++row; }"
    )
    assert once("loop", "for (int64_t i = begin; i < end; ++i) { if (i == 3) continue; y[i] = 0; }") is None
    assert once("loop", "int64_t p = begin; do { ++p; } while (p < end);") is None


def test_name_part_keeps_away_from_guards():
    assert once("name_part", ROW.format("y[row] = row > 0 ? ACC(x[row - 1]) : ACC(0);")) is None
    assert once("name_part", ROW.format("y[row] = VALUE(indptr[row]);")) == ROW.format(
        "const OFFSET bound = indptr[row]; y[row] = VALUE(bound);"
    ).replace(
        "bound", re.search(r"const OFFSET (\w+)", once("name_part", ROW.format("y[row] = VALUE(indptr[row]);")))[1]
    )


def test_inline_casts_to_the_type_that_goes():
    text = once("inline", ROW.format("const int64_t at = row * 2; y[at] = 0;"))
    assert text == ROW.format("y[int64_t(row * 2)] = 0;")
    assert once("inline", ROW.format("const int64_t at = row * 2; y[at] = 0; y[at + 1] = 1;")) is None
    assert once("inline", ROW.format("const ACC a = y[row]; y[row] = 0; y[row + 1] = a;")) is None


def test_swap_only_what_is_independent():
    text = once("swap", ROW.format("const OFFSET a = indptr[row]; const OFFSET b = indptr[row + 1]; y[row] = b - a;"))
    assert "b = indptr[row + 1]; const OFFSET a = indptr[row];" in text
    assert once("swap", ROW.format("const OFFSET a = indptr[row]; const OFFSET b = a + 1; y[row] = b;")) is None
    assert once("swap", ROW.format("OFFSET q = 0; const OFFSET a = q++; const OFFSET b = q; y[row] = a + b;")) is None


def test_const_is_given_to_what_nothing_changes():
    for seed in range(3, 9):
        text = once("const", ROW.format("ACC a = x[row]; ACC b = 0; b += a; vector d = {}; y[row] = b + d[0];"), seed)
        assert text == ROW.format("const ACC a = x[row]; ACC b = 0; b += a; vector d = {}; y[row] = b + d[0];")
    helper = "void more(ACC& a) { a += 1; }\n"
    kernel = user_kernel(ROW.format("ACC a = x[row]; more(a); y[row] = a;"))
    kernel = replace(kernel, source=helper + kernel.source)
    assert rewrites.apply(kernel, "const", np.random.default_rng(3)) is None


def test_accumulate_and_commute():
    assert "sum = sum + VALUE_AT(p) * ACC(x[indices[p]]);" in once("accumulate", ROW.format(SUM))
    assert "sum += ACC(x[indices[p]]) * VALUE_AT(p);" in once("commute", ROW.format(SUM))
    assert once("commute", ROW.format("y[row] = VALUE_AT(row) / ACC(3) * ACC(x[row]);")) is None  # not the same product


def test_split_sum_takes_every_entry_once():
    text = once("split_sum", ROW.format(SUM))
    other = re.search(r"(\w+) \+= VALUE_AT\(p \+ 1\)", text)[1]
    assert f"ACC {other} = 0;" in text and "p + 1 < indptr[row + 1]; p += 2" in text and f"sum += {other};" in text
    assert once("split_sum", ROW.format(SUM.replace("sum += VALUE_AT(p)", "sum = sum * VALUE_AT(p)"))) is None
    assert once("split_sum", ROW.format(SUM.replace("ACC sum", "int64_t sum"))) is None


def test_unroll_adds_changes_and_removes():
    body = "#pragma GCC unroll 4\n" + ROW.format("y[row] = 0;")
    seen = {once("unroll", body, seed) for seed in range(3, 30)}
    assert ROW.format("y[row] = 0;") in seen and any("unroll 8" in text for text in seen)
    assert once("unroll", ROW.format("y[row] = 0;")).startswith("#pragma GCC unroll")


def test_resolve_keeps_what_the_parameters_say():
    for sigma, stored in ((1, "STORE_LANES"), (256, "rows[")):
        every = candidate.instances(templates.get("sell_slice"))
        each = next(each for each in every if each.params["SIGMA"] == sigma and each.params["BITS"] == 32)
        done = rewrites.apply(each, "resolve", np.random.default_rng(3))
        assert "#if" not in done.source and stored in done.source
        assert ("STORE_LANES" in done.source) == (sigma == 1) and "bases" not in done.source


def test_rewrite_is_repeatable_and_takes_what_it_is_given():
    each = next(candidate.instances(templates.get("csr_scalar")))
    one, two = (rewrites.rewrite(each, np.random.default_rng(77)) for _ in range(2))
    assert one == two
    assert rewrites.rewrite(each, np.random.default_rng(5), only=["comment"], count=3).key == each.key
    assert "unroll" in rewrites.rewrite(each, np.random.default_rng(5), only=["unroll"], count=1).source
    assert rewrites.rewrite(each, np.random.default_rng(5), count=0) == each


def test_what_cannot_be_rewritten():
    template = templates.get("csr_scalar")
    with pytest.raises(SparsegenValueError, match="template"):
        rewrites.rewrite(template, np.random.default_rng(5))
    with pytest.raises(SparsegenValueError, match="unknown rewrites"):
        rewrites.rewrite(next(candidate.instances(template)), np.random.default_rng(5), only=["faster"])


@pytest.mark.parametrize(
    "body", ["for (;;)", "if (", "}", "#if A\nfor (int i = 0; i < 3; ++i)\n#endif\n;", "((((", "do", "int"]
)
@pytest.mark.parametrize("name", rewrites.names())
def test_broken_sources_are_left_alone(name, body):
    kernel = replace(user_kernel(), source='extern "C" void spmv(int a) {\n' + body + "\n")
    rewrites.rewrite(kernel, np.random.default_rng(12), only=[name], count=2)


def test_tidy_gives_the_templates_back():
    """Each template as it stands, but for blank lines and lines that go on."""
    for language in ("cpp", "cuda"):
        for template in templates.load(language):
            lines = [line for line in template.source.split("\n") if line.strip()]
            assert tidy("\n".join(line.strip() for line in lines)) == "\n".join(lines), template.name


def test_a_source_is_read():
    source = Source("void f(int a) { if (a) { a = 1; } else a = 2; for (int i = 0, j = 1; i < 3; ++i) a += j; }")
    assert source.bodies == [(7, len(source.tokens) - 1)]
    assert Source("void f() { const long long a = 1, b = 2; }").declaration(5).type == "long long"
    (declared,) = source.declarations()
    assert [name for name, _, _ in declared.names] == ["i", "j"]
    assert source.changed("i") and not source.changed("j") and source.changed("a")
    assert source.edited([(7, 8, "while")]).startswith("void f(int a) { while (a)")
