"""The grammar of generated files: every template instance may be written, token by token, and hostile files may not."""

from __future__ import annotations

import random
import re
import string
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from sparsegen import candidate, engine, formats, gallery, templates
from sparsegen.model import expression
from sparsegen.model.grammar import Grammar, State
from sparsegen.model.tokenizer import written
from sparsegen.screen import cpp, cuda

HERE = Path(__file__).parent
HOSTILE_CPP = sorted((HERE / "kernels_cpp" / "hostile").glob("*.cpp"))
GOOD_CPP = sorted(path for kind in ("good", "faulty") for path in (HERE / "kernels_cpp" / kind).glob("*.cpp"))
HOSTILE_CUDA = sorted((HERE / "kernels" / "hostile").glob("*.cu"))
TARGETS = {"cpp": "cpu", "cuda": "cuda"}


def _dense_row() -> sp.csr_array:
    A = sp.lil_array((1201, 1201))
    A.setdiag(2.0)
    A[3, :] = 1.0
    return sp.csr_array(A)


MATRICES = {
    "blocks": sp.csr_array(sp.kron(sp.eye_array(31), np.ones((12, 12)))),  # a constant, every block size, few diagonals
    "dense row": _dense_row(),
    "opaque": gallery.uniform(811, 797, 6007),
}
_grammars: dict[tuple[str, str, str], Grammar] = {}


def grammar(matrix: str, language: str = "cpp", op: str = "spmv") -> Grammar:
    key = (matrix, language, op)
    if key not in _grammars:
        k = 7 if op == "spmm" else None
        _grammars[key] = Grammar(engine.problem_of(MATRICES[matrix], op=op, k=k, threads=1, target=TARGETS[language]))
    return _grammars[key]


def first_refused(state: State, text: str, step: int = 1) -> int | None:
    """Where in a text the first piece that is refused begins."""
    for at in range(0, len(text), step):
        if not state.may(text[at : at + step]):
            return at
        state.push(text[at : at + step])
    return None


@pytest.mark.parametrize("matrix", MATRICES)
@pytest.mark.parametrize("language", ["cpp", "cuda"])
@pytest.mark.parametrize("op", ["spmv", "spmm"])
def test_what_a_template_says_may_be_written(language, op, matrix):
    """Every feasible instance at every character, and in longer pieces."""
    of = grammar(matrix, language, op)
    count = 0
    for file in templates.load(language):
        for each in candidate.instances(file) if file.op == op else ():
            if templates.refusal(each, of.problem) is not None:
                continue
            count += 1
            text = written(each)
            for step in (1, 3, 11):
                state = of.start()
                at = first_refused(state, text, step)
                assert at is None, f"{each.label}: {text[max(0, (at or 0) - 60) : (at or 0) + step]!r}"
                assert not state.complete or state.refusal() is None
            assert state.done(), state.refusal()
            assert not of.start().push(text[:-9]).done()
    assert count >= 5


def header(*lines: str, entry: str = "spmv", items: str = "m") -> str:
    launch = ["[[launch]]", f'entry = "{entry}"', f'items = "{items}"', ""]
    return "\n".join(["/* sparsegen", 'op = "spmv"', *lines, *launch])


@pytest.mark.parametrize(
    ("matrix", "text", "at"),
    [
        ("opaque", '/* sparsegen\nop = "spmm"', '"spmm'),
        ("opaque", '/* sparsegen\nabout = "x"', "about"),
        ("opaque", '/* sparsegen\nop = "spmv"\nformat = "csx"', 'csx'),
        ("opaque", '/* sparsegen\nop = "spmv"\nformat = "dia"', "dia"),  # no diagonals to speak of
        ("opaque", '/* sparsegen\nop = "spmv"\nformat = "bsr"', "bsr"),  # 811 is prime
        ("opaque", '/* sparsegen\nop = "spmv"\n[[part]]', "[[part"),  # no row is dense
        ("opaque", '/* sparsegen\nop = "spmv"\nformat = "csr"\nzero = ["x"]', "x"),
        ("opaque", '/* sparsegen\nop = "spmv"\nformat = "csr"\n[tune]', "tune"),
        ("opaque", '/* sparsegen\nop = "spmv"\nformat = "csr"\n[scratch]', "scratch"),  # of CUDA
        ("opaque", '/* sparsegen\nop = "spmv"\nformat = "csr"\n[params]\n[[launch', "[[launch"),
        ("opaque", '/* sparsegen\nop = "spmv"\nformat = "csr"\n[params]\nvalues = "constant"', "constant"),
        ("opaque", '/* sparsegen\nop = "spmv"\nformat = "csr"\n[params]\nvalues = "half"', "half"),
        ("opaque", '/* sparsegen\nop = "spmv"\nformat = "csr"\n[params]\nACC = 3', " = 3"),
        ("opaque", '/* sparsegen\nop = "spmv"\nformat = "csr"\n[params]\nTILE = 3\nTILE = 3', " = 3"),
        ("opaque", '/* sparsegen\nop = "spmv"\nformat = "csr"\n[params]\nTILE = -1', "-1"),
        ("opaque", '/* sparsegen\nop = "spmv"\nformat = "csr"\n[params]\nTILE = 70000', "0"),
        ("opaque", '/* sparsegen\nop = "spmv"\nformat = "sell"\n[params]\nBITS = 8\n', "8"),
        ("opaque", header('format = "csr"', entry="static"), 'static"'),
        ("opaque", header('format = "csr"', entry="door_spmv"), 'door_spmv"'),
        ("opaque", header('format = "csr"', items="rows"), "rows"),
        ("opaque", header('format = "csr"', items="slice_count"), "slice"),
        ("opaque", header('format = "csr"', items="m / 2"), " 2"),
        ("opaque", header('format = "csr"', items="-m"), "-m"),
        ("opaque", header('format = "csr"', items="ceil_div(m))"), "))"),
        ("opaque", header('format = "csr"') + "entry", "entry"),
        ("blocks", header('format = "bsr"', "[params]", "R = 5", "S = 2", items="block_rows") + "*/", "5"),
        ("blocks", header('format = "csr"', "[params]", "WIDTH = 4"), " = 4"),  # the prelude's
    ],
)
def test_headers_that_cannot_be(matrix, text, at):
    """Refused at the last `at`, and not before."""
    refused = first_refused(grammar(matrix).start(), text)
    assert refused is not None
    assert text.rindex(at) <= refused <= text.rindex(at) + len(at)


@pytest.mark.parametrize("matrix", MATRICES)
@pytest.mark.parametrize("lines", [
    ("bsr", "R = "), ("bsr", "R = 3", "S = "), ("bsell", "SLICE = 8", "R = 4", "S = "), ("sell", "SLICE = "),
    ("sell", "SLICE = 8", "SIGMA = 1", "BITS = "), ("dia", "CHUNK = "),
])  # fmt: skip
def test_a_number_that_may_begin_may_end(matrix, lines):
    """Or a text, one token after the other, would come to where none may follow."""
    format, *rest = lines
    state = grammar(matrix).start()
    text = "\n".join(["/* sparsegen", 'op = "spmv"', f'format = "{format}"', "[params]", *rest])
    if first_refused(state, text, len(text)) is not None:
        pytest.skip("this format does not hold this matrix")

    def ends(number: str) -> bool:
        if grammar(matrix).may(text + number, "\n"):
            return True
        return any(ends(number + d) for d in "0123456789" if grammar(matrix).may(text + number, d))

    begun = [d for d in "0123456789" if state.may(d)]
    assert begun and all(ends(d) for d in begun)


CHARACTERS = string.ascii_letters + string.digits + ' \n"_+-*/%(),[]={}.'
CLOSING = '"\n]}*/)='


def fragments(of: Grammar) -> list[str]:
    """What a header may hold or clash with: words of all formats, and the lines of the templates."""
    words = {word for name in formats.names() for word in (*of.rules.words(name), *formats.get(name).PARAMS)}
    lines = {line for each in templates.load(of.language) for line in candidate.text(each).split("*/")[0].splitlines()}
    lines |= {f'format = "{name}"' for name in formats.names()} | {f'values = "{name}"' for name in of.rules.encodings}
    marks = ["params = { ", "door", *["64", " = ", '"', "\n"] * 9]
    return [*sorted(words), *(f"{line}\n" for line in sorted(lines)), *marks]


@pytest.mark.parametrize("matrix", MATRICES)
@pytest.mark.parametrize("language", ["cpp", "cuda"])
@pytest.mark.parametrize("op", ["spmv", "spmm"])
def test_no_header_comes_to_where_nothing_may_follow(language, op, matrix):
    """Wherever characters and fragments at random lead, something may follow until the header is closed."""
    of = grammar(matrix, language, op)
    known = fragments(of)
    for seed in (7001, 7019):
        rng = random.Random(f"{seed} {language} {op} {matrix}")
        state = of.start()
        while not state.in_body:
            tried = rng.sample(known, 12) if rng.random() < 0.4 else []
            tried += sorted(CHARACTERS, key=lambda each: (each not in CLOSING and rng.random() < 0.6, rng.random()))
            piece = next((each for each in tried if state.may(each)), None)
            assert piece is not None, f"nothing may follow {state.text[-200:]!r}"
            state.push(piece)


@pytest.mark.parametrize("most", [(1 << 63) - 1, 1024])
def test_no_launch_expression_comes_to_where_nothing_may_follow(most):
    """Up to the longest; and each may be ended where it is said to be one."""
    names = {"m": 100_003, "n": 7, "nnz": 0, "rows": 1 << 40}
    least = int(most == 1024)
    for seed in range(7001, 7005):
        rng, text = random.Random(seed), ""
        while not expression.is_one(text, names, least, most) or (len(text) < 195 and rng.random() < 0.99):
            tried = sorted([*"0123456789+-*/%(), acdeilmnorsvwxz_", "ceil_div("], key=lambda _: rng.random())
            piece = next((each for each in tried if expression.begins(text + each, names, least, most)), None)
            assert piece is not None or expression.is_one(text, names, least, most), text
            if piece is None:
                break
            text += piece
        assert least <= candidate.evaluate(text, names) <= most


@pytest.mark.parametrize(
    ("text", "begun", "one"),
    [
        ("", True, False),
        (" ", True, False),
        ("m", True, True),
        ("ro", True, False),
        ("rox", False, False),
        ("m /", True, False),
        ("m / ", False, False),
        ("m // 0", False, False),  # divided by zero, whatever follows
        ("m // (0", False, False),
        ("m // nnz", False, False),
        ("m % n", True, True),
        ("ceil_div", True, False),
        ("ceil_div(m", True, False),
        ("ceil_div(m, n", True, False),
        ("ceil_div(m, n)", True, True),
        ("ceil_div(m)", False, False),
        ("ceil_div(m, n, n", False, False),
        ("min m", False, False),
        ("m n", False, False),
        ("m\n", False, False),
        ("7m", False, False),
        ("007", False, False),
        ("0x1f", False, False),
        ("1_0", False, False),
        ("-m", False, False),  # candidate.evaluate knows no sign
        ("n - m", True, False),  # negative so far
        ("n - m + 100000", True, True),
        ("m * 9223372036854775807", False, False),
        ("m ** 2", False, False),
        ("m */", False, False),
        ("m)", False, False),
        ("(m", True, False),
        ("()", False, False),
        ("(" * 101, False, False),  # and as many to close
        ("m, n", False, False),
        ("+".join(["m"] * 30), True, True),
        ("+".join(["m"] * 40), False, False),  # nested too deeply
        ("1" * 201, False, False),
    ],
)  # fmt: skip
def test_launch_expressions(text, begun, one):
    names = {"m": 100_003, "n": 7, "nnz": 0, "rows": 1 << 40}
    assert expression.begins(text, names, 0, (1 << 63) - 1) is begun
    assert expression.is_one(text, names, 0, (1 << 63) - 1) is one


OP = '/* sparsegen\nop = "spmv"\n'
ENTRY = OP + 'format = "csr"\n{}[[launch]]\nentry = "'
REST = OP + '[params]\n{} = 4\n[[part]]\nselect = "rest"\n'


@pytest.mark.parametrize(
    ("matrix", "language", "text", "piece", "allowed"),
    [
        ("opaque", "cpp", ENTRY.format(""), "a__", False),  # no name is continued so
        ("opaque", "cpp", ENTRY.format(""), "door", False),
        ("opaque", "cpp", ENTRY.format(""), "a" * 39 + "_", False),
        ("opaque", "cpp", ENTRY.format(""), "a" * 38 + "_", True),
        ("opaque", "cpp", ENTRY.format(""), 'STORE"', False),  # the prelude's
        ("opaque", "cpp", ENTRY.format("[params]\nTILE = 3\n"), 'TILE"', False),
        ("opaque", "cpp", OP + 'format = "csr"\n[params]\n', "T" * 41, False),
        ("opaque", "cpp", OP + 'format = "csr"\n[params]\n', "T" * 39 + "_", False),
        ("opaque", "cpp", OP + 'format = "csr"\n[params]\n', "STORE =", False),
        ("opaque", "cpp", OP + 'format = "csr"\n[params]\n', "".join(f"A{i} = 3\n" for i in range(24)), True),
        ("opaque", "cpp", OP + 'format = "csr"\n[params]\n', "".join(f"A{i} = 3\n" for i in range(24)) + "B", False),
        ("opaque", "cpp", OP + 'format = "ell"\n[params]\n', 'values = "full"', True),
        ("opaque", "cpp", OP, "zero", False),  # no row is dense, so a format has to come first
        ("dense row", "cpp", OP, "zero", True),
        ("opaque", "cpp", OP, "[params]", False),
        ("opaque", "cuda", OP, "[scratch]", False),
        ("opaque", "cuda", OP + 'format = "csr"\n[scratch]\n', "carry", True),
        ("opaque", "cuda", OP + 'format = "csr"\n[scratch]\n', "a__", False),
        ("opaque", "cuda", OP + 'format = "csr"\n[scratch]\n', "int =", False),
        ("blocks", "cpp", OP + 'format = "ell"\n[params]\n', 'values = "constant"\n', True),  # no row is padded
        ("blocks", "cpp", OP + 'format = "bsell"\n[params]\nR = 2\nS = 2\nSLICE = 8\n', 'values = "full"\n', True),
        ("blocks", "cpp", OP + 'format = "bsell"\n[params]\nR = 2\nS = 2\nSLICE = 8\n', 'values = "constant', False),
        ("dense row", "cpp", REST.format("TILE"), 'format = "dia"', True),
        ("dense row", "cpp", REST.format("DIAGONALS"), 'format = "dia"', False),  # which has this word
        ("dense row", "cpp", REST.format("DIAGONALS"), 'format = "csr"', True),
    ],
)  # fmt: skip
def test_no_name_or_table_is_begun_that_the_rest_cannot_have(matrix, language, text, piece, allowed):
    state = grammar(matrix, language).start()
    assert state.may(text)
    assert state.push(text).may(piece) is allowed


def test_a_composite_is_two_parts():
    text = written(next(candidate.instances(templates.get("dense_rows_slice"))))
    head = text[: text.index("*/")]
    assert grammar("dense row").may(head, "*/")
    once = head[: head.rindex("[[part]]")]
    assert not grammar("dense row").may(once, "*/")
    twice = once + once[once.index("[[part]]") :]
    assert first_refused(grammar("dense row").start(), twice) is not None
    assert not grammar("opaque").may("", head)


CSR = '/* sparsegen\nop = "spmv"\nformat = "csr"\n[[launch]]\nentry = "spmv"\nitems = "m"\n*/\n'
HEAD = 'extern "C" void spmv(SIZES, CSR_ARRAYS, const VALUE* x, VALUE* y, EPILOGUE, int64_t begin, int64_t end) {\n'


@pytest.mark.parametrize(
    ("body", "piece", "allowed"),
    [
        ("", "#include", False),
        ("", "// a comment", False),
        ("", "static ", False),
        ("", "int64_t kept = 0", False),
        ("", "inline ACC more(ACC a) {", True),
        ("", 'extern "C" void spmv(SIZES, CSR_ARRAYS', True),
        ("", 'extern "C" void spmv(SIZES, ELL', False),
        ("", 'extern "C" void other', False),
        ("", 'extern "C" int', False),
        ("", HEAD.replace("x, VALUE*", "x, const VALUE*"), False),
        (HEAD, HEAD, False),  # an entry inside another
        (HEAD, "for (int64_t row = begin; row < end; ++row) {", True),
        (HEAD, "for (int64_t row = begin; row < end; ++col", False),
        (HEAD, "ACC sum = 0, more = sum;", True),
        (HEAD, "ACC sum = 0; sum += ACC(data[p", False),  # p is not declared
        (HEAD, "ACC sum = 0; sum = other", False),
        (HEAD, "ACC sum = 0; su", True),
        (HEAD, "ACC sum = 0; sux", False),
        (HEAD, "ACC _sum", False),
        (HEAD, "ACC load", True),  # may become loaded
        (HEAD, "ACC load =", False),
        (HEAD, "y[0) ", False),
        (HEAD, "y[0;", False),
        (HEAD, "}}", False),
        (HEAD, "goto", False),
        (HEAD, "asm", False),
        (HEAD, "x.", True),  # of a number such as x * .5, where the blank is missing
        (HEAD, "y[0] = 0x1fu;", True),
        (HEAD, "y[0] = 12ab", False),
        (HEAD, "y[0] = __builtin_fma(", True),
        (HEAD, "y[0] = __builtin_alloca(", False),
        (HEAD, "y[0] = '", False),
        (HEAD, "y[0] = \"", False),
        (HEAD, "y[0] = \u00e9", False),
        (HEAD, "y[0] = 1; \\\n", False),
        (HEAD, "#pragma GCC unroll 8\nfor (", True),
        (HEAD, "#pragma omp", False),
        (HEAD, "#define A", False),
        (HEAD, "#if CONSTANT_VALUES\ny[0] = 1;\n#else\ny[0] = 2;\n#endif\n}", True),
        (HEAD, "#if WRONG\n", False),
        (HEAD, "#endif\n", False),
        (HEAD, "ACC a b", False),
        (HEAD, "if y", False),
    ],
)
def test_sources(body, piece, allowed):
    assert grammar("opaque").may(CSR + body, piece) is allowed


def test_a_name_ends_with_its_function():
    more = "inline ACC more(ACC a) {\n return a + a;\n}\n"
    loop = "for (int64_t row = begin; row < end; ++row) {\n ACC sum = 0;\n STORE(y, row, "
    assert grammar("opaque").done(CSR + more + HEAD + loop + "more(sum));\n}\n}\n")
    assert not grammar("opaque").may(CSR + more + HEAD + loop, "a);")
    assert not grammar("opaque").may(CSR + HEAD + loop + "sum);\n}\n", "sum =")


def test_what_a_deterministic_problem_forbids():
    problem = replace(grammar("opaque", "cuda").problem, deterministic=True)
    text = written(next(candidate.instances(templates.get("coo_atomic", language="cuda"))))
    refused = first_refused(Grammar(problem).start(), text)
    assert refused is not None and "ATOMIC_ADD".startswith(text[text.index("ATOMIC_ADD") : refused + 1])
    assert first_refused(grammar("opaque", "cuda").start(), text) is None


def test_pushing_what_is_refused_is_told():
    state = grammar("opaque").start()
    with pytest.raises(candidate.SparsegenValueError, match="may"):
        state.push("# nothing")
    assert state.push("/* sparsegen\n").may("op")


# ---- the hostile files


def place(reason: str) -> int | None:
    found = re.match(r"line (\d+)", reason)
    return int(found[1]) if found else None


def without_first_comments(source: str) -> str:
    return re.sub(r"\A(\s*//[^\n]*\n)+", "", source)


def stopped_at(each: candidate.Candidate) -> tuple[bool, int | None, State]:
    """Whether the header is refused; the line of the source that is; the state after what was taken."""
    text = candidate.text(replace(each, about=""))
    head = text[: text.index("*/") + 3]
    for matrix in MATRICES:
        state = grammar(matrix, "cpp", each.op).start()
        if state.may(head):
            state.push(head)
            refused = first_refused(state, text[len(head) :])
            return False, None if refused is None else text[len(head) :].count("\n", 0, refused) + 1, state
    return True, None, state


@pytest.mark.parametrize("path", HOSTILE_CPP, ids=lambda path: path.stem)
def test_hostile_cpp_is_never_let_through(path):
    each = candidate.parse(path.read_bytes().decode(), name=path.stem)
    each = replace(next(candidate.instances(each)), source=without_first_comments(each.source))
    header_refused, line, state = stopped_at(each)
    assert header_refused or line is not None or not state.done()


def test_most_hostile_cpp_is_refused_where_the_screen_refuses():
    early = 0
    for path in HOSTILE_CPP:
        each = candidate.parse(path.read_bytes().decode(), name=path.stem)
        each = replace(next(candidate.instances(each)), source=without_first_comments(each.source))
        header_refused, line, _ = stopped_at(each)
        screened = place(cpp.check(each) or "")
        early += header_refused or (line is not None and (screened is None or line <= screened))
    assert early >= 180  # types, pointers and sizes are left to the screen


@pytest.mark.parametrize("path", GOOD_CPP, ids=lambda path: path.stem)
def test_good_and_merely_wrong_cpp_may_be_written(path):
    each = candidate.parse(path.read_bytes().decode(), name=path.stem)
    each = candidate.parse(written(next(candidate.instances(each))), language="cpp")
    header_refused, line, state = stopped_at(each)
    assert not header_refused
    assert line is None, each.source.splitlines()[(line or 1) - 1]
    assert state.done()


@pytest.mark.parametrize("path", HOSTILE_CUDA, ids=lambda path: path.stem)
def test_hostile_cuda_is_refused_where_the_screen_refuses(path):
    head = '/* sparsegen\nop = "spmv"\nformat = "csr"\n[[launch]]\nentry = "f"\ngrid = "m"\nblock = "128"\n*/\n'
    source = without_first_comments(path.read_bytes().decode())
    state = grammar("opaque", "cuda").start().push(head)
    refused = first_refused(state, source)
    assert refused is not None
    screened = place(cuda.check(source) or "")
    assert screened is None or source.count("\n", 0, refused) + 1 <= screened
