"""The screen of C++ kernels: hostile files are refused with a sentence, honest ones pass, and nothing makes it fail."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsegen import candidate, composite, ops, paths, prelude, values
from sparsegen.problem import Facts, Pattern, Problem
from sparsegen.screen import cpp
from sparsegen.screen import tokens as tokens_module
from sparsegen.screen.words import BUILTINS

KERNELS = Path(__file__).parent / "kernels_cpp"
HOSTILE = sorted((KERNELS / "hostile").glob("*.cpp"))
GOOD = sorted((KERNELS / "good").glob("*.cpp"))
FAULTY = sorted((KERNELS / "faulty").glob("*.cpp"))
TEMPLATES = sorted(paths.data("cpu_templates").glob("*/*.cpp"))
REPORTS = ("timeout", "wrong", "wrong items", "out of bounds", "crash", "compile fault")
VECTORS = """
typedef ACC vector __attribute__((vector_size(LANES * sizeof(ACC))));
template <class T> static inline __attribute__((always_inline)) vector load(const T* p) { return *(const vector*)p; }
static inline ACC total(vector a) { return a[0]; }
"""


@pytest.fixture(autouse=True)
def vectors_in_the_prelude(monkeypatch):
    """The prelude with vectors, where it does not define any of its own."""
    whole = prelude.text("cpp")
    monkeypatch.setattr(prelude, "text", lambda language: whole if "vector_size" in whole else whole + VECTORS)


def read(path: Path) -> candidate.Candidate:
    return candidate.parse(path.read_bytes().decode(), name=path.stem)


def spmv(body: str, before: str = "", header: str = "") -> candidate.Candidate:
    """A CSR kernel with `body` inside its loop over rows."""
    return candidate.parse(
        f'/* sparsegen\nop = "spmv"\nformat = "csr"\n[[launch]]\nentry = "spmv"\nitems = "m"\n{header}\n*/\n{before}'
        'extern "C" void spmv(SIZES, CSR_ARRAYS, const VALUE* x, VALUE* y, EPILOGUE, int64_t begin, int64_t end) {\n'
        f"for (int64_t row = begin; row < end; ++row) {{ ACC sum = 0; {body}\nSTORE(y, row, sum); }} }}\n",
        language="cpp",
    )


@pytest.mark.parametrize("path", HOSTILE, ids=lambda path: path.stem)
def test_hostile_is_refused(path):
    reason = cpp.check(read(path))
    assert reason is not None
    assert (
        re.match(r"line \d+: .+|the source ends inside an #if$", reason) and "\n" not in reason and len(reason) < 1000
    )


def test_there_are_hostile_files_of_every_kind():
    assert len(HOSTILE) >= 200
    for path in HOSTILE:
        after_header = path.read_bytes().decode().partition("*/\n")[2]
        assert after_header.startswith("// "), f"{path.stem} does not say what it attempts"


@pytest.mark.parametrize("path", [*GOOD, *FAULTY, *TEMPLATES], ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_honest_and_merely_wrong_pass(path):
    template = read(path)
    assert cpp.check(template) is None
    assert cpp.check(next(candidate.instances(template))) is None


@pytest.mark.parametrize("path", FAULTY, ids=lambda path: path.stem)
def test_faulty_says_how_it_is_reported(path):
    comment = path.read_text().partition("*/\n")[2].splitlines()[0]
    assert re.fullmatch(rf"// Reported as ({'|'.join(REPORTS)}): .+", comment)


@pytest.mark.parametrize(
    "body, reason",
    [
        ("sum += system(0);", "line 2: 'system' is not declared"),
        ("static int calls;", "line 2: 'static' is not in the kernel language"),
        ("const VALUE* p = 0;", "line 2: 'p' would make a pointer of a number, or a number of a pointer"),
        ("\nVALUE* p = (VALUE*)x;", "line 3: '(' casts const away"),
        ("sum = y - x;", "line 2: '-' does not apply to pointers"),
        ("{ const VALUE* x = x; sum = x[0]; }", "line 2: 'x' is used in its own declaration"),
        ("*status = 0;", "line 2: 'status' is the prelude's; it may only be passed to a helper that takes EPILOGUE"),
        ("int64_t sum;", "line 2: 'sum' is already the name of something else here"),
        ("int before;", "line 2: 'before' needs an initialiser"),
        ("for (int i; i < 3; ++i) sum += 0;", "line 2: 'i' needs an initialiser"),
        ("ACC parts[2] = {}, rest[3];", "line 2: 'rest' needs an initialiser"),
        ("goto out;", "line 2: 'goto' is not in the kernel language"),
        ("sum += __builtin_trap();", "line 2: '__builtin_trap' is not declared"),
        (
            "ACC many[1 << 20];",
            "line 2: 'many' is not an array of numbers or vectors of constant size",
        ),
        ("/* a\nb */ sum += $;", "line 3: '$;' is not a token of the kernel language"),
        ("sum += 'a';", 'line 2: "\'a" is not a token of the kernel language'),
    ],
)
def test_the_sentence_names_line_and_token(body, reason):
    assert cpp.check(spmv(body)) == reason


@pytest.mark.parametrize(
    "body",
    [
        "{ ACC sum = 1; const VALUE* x = y; sum += x[row]; }",  # hiding an outer name is legal and harmless
        "for (int i = 0, j = 3; i < j; ++i, --j) sum += i * 0;",
        "if constexpr (CONSTANT_VALUES) sum += 0; else if (row) { } else sum -= 0;",
        "ACC grid[2][3] = {{0, 0, 0}, {0, 0, 0}}; sum += grid[1][2];",
        "const int N = 4; ACC a[2 * N / 3 + 1] = {}; sum += a[N / 2];",
        "auto p = &x[0]; const auto q = x + 1; sum += p == q;",
        "unsigned long long bits = 0x7fULL >> 3 & ~1u; sum += bits * 0;",
        "sum += bool(row) ? 1e-3f * 0 : .0;",
        "y[row] += 0; (y + row)[0] *= 1; *(y + row) -= 0; ++y[row]; y[row]--;",
        "while (sum != sum) break;",
        "return;",
        ";;{ }",
    ],
)
def test_the_language_is_comfortable(body):
    assert cpp.check(spmv(body)) is None


@pytest.mark.parametrize(
    "body, passes",
    [
        ("vector v = *(const vector*)(x + row); sum += v[0] + total(v);", True),
        ("vector v = *(const vector*)&x[row]; *(vector*)&y[row] = v;", True),
        ("vector v = {1, 2}, w = vector{} + 1; sum += (v > w ? v : w)[0];", True),
        ("vector parts[3] = {}; parts[2] += load(x + row); sum += parts[2][0];", True),
        ("sum += __builtin_convertvector(load(indices), vector)[0];", True),
        ("sum += __builtin_ia32_gathersiv8df(load(x), x, load(x), 255, 8)[0];", True),
        ("vector v = *(const vector*)row;", False),
        ("vector v = *(const vector*)(x == y);", False),
        ("vector* v = (vector*)x;", False),
        ("vector* v = (vector*)(row ? x : y);", False),
        ("const vector* v = 0;", False),
        ("sum += load(0)[0];", False),
        ("sum += load(row)[0];", False),
        ("vector v = load(x); VALUE* p = (VALUE*)v;", False),
        ("vector v = load(x); sum += &v[0] == x;", False),
        ("ACC grid[2][3] = {}; auto p = grid; sum += ACC(int64_t(p[0]));", False),
        ("const vector* v = (const vector*)x; const VALUE* p = (const VALUE*)v;", False),
        ("sum += __builtin_ia32_gathersiv8df(load(x), 0, load(x), 255, 8)[0];", False),
        ("__builtin_ia32_scattersiv8df(row, 255, load(x), load(x), 8);", False),
    ],
)
def test_pointers_become_vectors_and_nothing_else(body, passes):
    assert (cpp.check(spmv(body)) is None) == passes


@pytest.mark.parametrize(
    "name, passes",
    [
        ("__builtin_ia32_vfmaddpd512_mask", True),
        ("__builtin_ia32_permvarsf256", True),
        ("__builtin_ia32_pmovzxwd512_mask", True),
        ("__builtin_ia32_sfence", True),
        ("__builtin_fma", True),
        ("__builtin_convertvector", True),
        ("__builtin_ia32_pmovqd512mem_mask", False),
        ("__builtin_ia32_addcarryx_u64", False),
        ("__builtin_ia32_rdtscp", False),
        ("__builtin_ia32_rdseed_di_step", False),
        ("__builtin_ia32_ldmxcsr", False),
        ("__builtin_ia32_vbroadcastf128_pd256", False),
        ("__builtin_ia32_xbegin", False),
        ("__builtin_ia32_enqcmd", False),
        ("__builtin_memcpy", False),
        ("__builtin_cpu_init", False),
        ("__builtin_nan", False),
        ("__builtin_fma_", False),
    ],
)
def test_builtins(name, passes):
    assert any(pattern.fullmatch(name) for pattern, _ in BUILTINS) == passes


def test_conditions_are_followed_for_every_value_of_the_tune_lists():
    branch = "\n#if WIDE > 2 && LANES < 8\nsum += hidden;\n#endif\n"
    assert cpp.check(spmv(branch, header="[tune]\nWIDE = [1, 2]")) is None
    assert "'hidden' is not declared" in cpp.check(spmv(branch, header="[tune]\nWIDE = [1, 2, 3]"))
    assert "not known" in cpp.check(spmv("\n#if defined(__linux__)\n#endif\n"))
    many = "".join(f"#if {name}\n#endif\n" for name in "PQRS")
    lists = "[tune]\n" + "".join(f"{name} = [0, 1, 2, 3]\n" for name in "PQRS")
    assert cpp.check(spmv("\n" + many, header=lists)) is None
    assert "combinations" in cpp.check(spmv("\n" + many + "#if LANES\n#endif\n", header=lists))


def test_a_parameter_may_not_take_a_name_of_the_prelude():
    assert "macro of the prelude" in cpp.check(spmv("", header="[params]\nSTORE = 3"))


def test_entries_take_their_part_of_a_composite():
    text = (KERNELS / "good" / "composite.cpp").read_text()
    swapped = text.replace("CSR_ARRAYS", "X").replace("DCSR_ARRAYS", "CSR_ARRAYS").replace("X", "DCSR_ARRAYS")
    assert "'rest' takes" in cpp.check(candidate.parse(swapped))


def test_cuda_and_long_sources_are_refused():
    cuda = sorted(paths.data("cuda_templates").glob("*/*.cu"))[0]
    assert cpp.check(read(cuda)) == "the language is cuda; this reads cpp"
    assert "characters" in cpp.check(
        candidate.Candidate("cpp", "spmv", read(GOOD[0]).parts, "\n" * (cpp.MOST_SOURCE + 1))
    )


def test_the_reading_of_many_tokens_ends():
    stores = "STORE(y, row, sum);"
    assert cpp.check(spmv(stores * 200)) is None
    assert "beyond the 100000 tokens" in cpp.check(spmv(stores * 3000))
    nested = ("sum = " + "SCALED(" * 9 + "sum" + ")" * 9 + ";") * 80
    assert "beyond the 100000 tokens" in cpp.check(spmv(nested))
    variants = "\n#if P - LANES > 40\n" + stores * 200 + "\n#endif\n#if P + LANES == 5\n;\n#endif\n" + stores * 200
    lists = f"[tune]\nP = {list(range(60))}\n"
    assert cpp.check(spmv(variants, header=lists)) is None


TOKENS = re.findall(r"[A-Za-z_]\w*|\d+|[^\w\s]", "".join(path.read_text() for path in GOOD).replace("/*", ""))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(sorted(set(TOKENS))), max_size=40), st.sampled_from(["", "\n"]))
def test_any_sequence_of_tokens_is_read_or_refused(words, separator):
    reason = cpp.check(spmv(" ".join(words) + separator))
    assert reason is None or ("line" in reason or "#if" in reason)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text):
    reason = cpp.check(spmv("\n" + text))
    assert reason is None or isinstance(reason, str)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(GOOD), st.data())
def test_a_lost_token_never_passes_unnoticed_as_an_exception(path, data):
    template = read(path)
    pieces = re.findall(r"\s+|[A-Za-z_]\w*|\d+|[^\w\s]", template.source)
    del pieces[data.draw(st.integers(0, len(pieces) - 1))]
    changed = candidate.Candidate("cpp", template.op, template.parts, "".join(pieces), template.params, template.tune)
    cpp.check(changed)


OPERATORS = ["||", "&&", "|", "^", "&", "==", "!=", "<", ">", "<=", ">=", "+", "-", "*", "/", "%"]
EXPRESSIONS = st.recursive(
    st.integers(0, 9).map(str) | st.sampled_from(["defined(A)", "A", "B", "1000000007"]),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(OPERATORS), inner).map(" ".join),
        st.tuples(st.sampled_from(["!", "-", "+"]), inner).map(" ".join),
        inner.map("({})".format),
    ),
    max_leaves=8,
)


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to compare with")
@settings(max_examples=8, deadline=None)
@given(st.lists(EXPRESSIONS, min_size=60, max_size=60))
def test_conditions_mean_what_the_preprocessor_takes_them_for(expressions):
    known = {"A": 3, "B": -2}
    lines, expected = ["#define A 3", "#define B -2"], []
    for number, expression in enumerate(expressions):
        tokens = tokens_module.words(tokens_module.Directive("if", expression, 1))
        try:
            value = tokens_module.fold(tokens, lambda token: known[token.text], known.__contains__)
        except tokens_module.Refused:  # a division by zero, or beyond 64 bits
            continue
        lines += [f"#if {expression}", f"{number} 1", "#else", f"{number} 0", "#endif"]
        expected.append(f"{number} {int(value != 0)}")
    command = ["g++", "-E", "-P", "-w", "-x", "c++", "-"]
    said = subprocess.run(command, input="\n".join(lines) + "\n", capture_output=True, text=True, check=True)
    assert said.stdout.split("\n")[:-1] == expected


@pytest.mark.parametrize("path", GOOD, ids=lambda path: path.stem)
def test_good_kernels_compile_and_compute(path, tmp_path, monkeypatch):
    pytest.importorskip("sparsegen.cache")
    from sparsegen.arena import Arena
    from sparsegen.targets import cpu

    if cpu.available():
        pytest.skip(cpu.available())
    monkeypatch.setenv("SPARSEGEN_CACHE_DIR", str(tmp_path))
    rng = np.random.default_rng(20261)
    A = sp.random_array((613, 587), density=0.02, rng=rng).tolil()
    A[7] = rng.standard_normal(587)
    if "dia" in read(path).format:
        A = sp.diags_array([np.full(299, 2.5), np.arange(1.0, 302), np.ones(301)], offsets=[-2, 0, 1], shape=(301, 302))
    A = sp.csr_array(A)
    A.sort_indices()
    for one in list(candidate.instances(read(path)))[:4]:
        k = 1 if one.op == "spmv" else 5
        problem = Problem(one.op, Pattern.of(A), Facts.of(A.data), k=k, threads=2)
        if values.feasible(one.encoding, problem) or composite.feasible(one, problem):
            continue
        packs = composite.pack(one, problem)
        library = cpu.load(cpu.build(cpu.unit(one, problem, packs)))
        arenas = [
            Arena({**pack.arrays, "data": values.encode(one.encoding, A.data, pack, problem.dtype)}) for pack in packs
        ]
        plan = cpu.bind(library, one, problem, packs, [arena.arrays for arena in arenas], 2)
        op = ops.get(one.op)
        x = op.make(problem, rng)
        y0 = rng.standard_normal(op.shapes(problem)[1])
        y = y0.copy()
        assert plan.run(x, y, 1.5, -0.5) == 0
        exact = 1.5 * op.reference(A, x) - 0.5 * y0
        assert (np.abs(y - exact) <= op.bound(A, x, exact, problem.dtype, 1.5, -0.5, y0)).all()
        assert all(arena.intact() for arena in arenas)
