"""The kernel file: text and Candidate are one thing; what breaks the grammar is one clear error; launch arithmetic."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsegen import formats, ops, paths, values
from sparsegen.candidate import Candidate, Launch, Part, evaluate, instances, normalised, parse, text
from sparsegen.errors import SparsegenValueError

FILES = sorted([*paths.data("cpu_templates").glob("*/*.cpp"), *paths.data("cuda_templates").glob("*/*.cu")])
SOURCE = 'extern "C" void spmv(SIZES, CSR_ARRAYS) { }\n'
HEADER = 'op = "spmv"\nformat = "csr"\n[[launch]]\nentry = "spmv"\nitems = "m"\n'


def file(header: str = HEADER, source: str = SOURCE) -> str:
    return f"/* sparsegen\n{header}*/\n{source}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_templates_come_back_from_their_text(path):
    read = parse(path.read_text(), name=path.stem, origin="template")
    assert parse(text(read), name=path.stem, origin="template") == read
    assert read.op == path.parent.name
    assert read.language == {".cpp": "cpp", ".cu": "cuda"}[path.suffix]
    for one in instances(read):
        assert parse(text(one), name=path.stem, origin="template") == one


NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)
PARAMETERS = st.from_regex(r"[A-Z]{2}[0-9]{0,3}", fullmatch=True)
WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=20)
NUMBERS = st.integers(0, 2**31 - 1)
EXPRESSIONS = WORDS.filter(str.strip)


@st.composite
def candidates(draw) -> Candidate:
    cuda = draw(st.booleans())
    entries = draw(st.lists(NAMES, min_size=1, max_size=3, unique=True))

    def launches() -> tuple[Launch, ...]:
        def one(entry: str) -> Launch:
            if cuda:
                shared = draw(st.just("0") | EXPRESSIONS)
                return Launch(entry, grid=draw(EXPRESSIONS), block=draw(EXPRESSIONS), shared_bytes=shared)
            return Launch(entry, items=draw(EXPRESSIONS))

        return tuple(one(entry) for entry in draw(st.lists(st.sampled_from(entries), min_size=1, max_size=3)))

    def part(select: str) -> Part:
        format = draw(st.sampled_from(formats.names()))
        own = {name: draw(NUMBERS) for name in formats.get(format).PARAMS if select != "all" and draw(st.booleans())}
        return Part(select, format, launches(), own)

    op = draw(st.sampled_from(ops.names()))
    tune: dict = draw(st.dictionaries(PARAMETERS, st.lists(NUMBERS, min_size=1, max_size=3).map(tuple), max_size=3))
    params: dict = draw(st.dictionaries(PARAMETERS.filter(lambda name: name not in tune), NUMBERS, max_size=3))
    encodings = st.sampled_from(values.NAMES)
    where = draw(st.sampled_from(["params", "tune", "neither"]))
    if where == "params":
        params["values"] = draw(encodings)
    elif where == "tune":
        tune["values"] = tuple(draw(st.lists(encodings, min_size=1, max_size=3)))
    kinds = st.tuples(st.sampled_from(["ACC", "INDEX", "OFFSET", "VALUE"]), WORDS)
    head = "__global__ " if cuda else ""
    body = draw(WORDS.filter(lambda words: "/*" not in words)).strip("\n")
    return Candidate(
        language="cuda" if cuda else "cpp",
        op=op,
        parts=(part("all"),) if draw(st.booleans()) else (part("rest"), part("dense_rows")),
        source="\n".join([*(f"{head}void {entry}(SIZES);" for entry in entries), "// " + body]).strip("\n"),
        params=params,
        tune=tune,
        zero=draw(st.sampled_from([(), (ops.get(op).OUTPUT,)])),
        scratch=draw(st.dictionaries(NAMES, kinds, max_size=2)) if cuda else {},
        about=draw(WORDS),
        name=draw(WORDS),
        origin="template",
    )


@settings(max_examples=300, deadline=None)
@given(candidates())
def test_candidates_come_back_from_their_text(made):
    assert parse(text(made), name=made.name, origin=made.origin) == made


@settings(max_examples=100, deadline=None)
@given(candidates(), candidates())
def test_instances_cover_the_product_once(made, other):
    got = list(instances(made))
    names = list(made.tune)
    assert [tuple(one.params[name] for name in names) for one in got] == list(itertools.product(*made.tune.values()))
    for one in got:
        assert not one.tune
        assert {name: value for name, value in one.params.items() if name not in names} == made.params
    assert replace(got[0], params=other.params) == replace(got[-1], params=other.params)


SPMV = 'op = "spmv"\n'
CSR = 'format = "csr"\n'
LAUNCH = '[[launch]]\nentry = "spmv"\nitems = "m"\n'
PART = '[[part]]\nselect = "{}"\nformat = "csr"\n[[part.launch]]\nentry = "spmv"\nitems = "m"\n'


@pytest.mark.parametrize(
    "whole, rule",
    [
        ("", "to begin with a comment"),
        (SOURCE, "to begin with a comment"),
        ("/* sparse */" + SOURCE, "to begin with a comment"),
        ("/* sparsegen\n" + HEADER, "to begin with a comment"),
        ("int a;\n" + file(), "to begin with a comment"),
        (file(source="x" * (1 << 16)), "at most 65536"),
        (file("op = spmv\n"), "not TOML"),
        (file("a = " + "[" * 5000 + "\n"), "not TOML"),
        (file("a = " + "9" * 5000 + "\n"), "not TOML"),
        (file("op = 'spmv'\nop = 'spmv'\n"), "not TOML"),
        (file("colour = 3\n" + HEADER), "unknown header fields ['colour']"),
        (file(CSR + LAUNCH), "op = None"),
        (file('op = "spgemm"\n' + CSR + LAUNCH), "op = 'spgemm'"),
        (file("op = ['spmv']\n" + CSR + LAUNCH), "op = ['spmv']"),
        (file("about = 3\n" + HEADER), "about = 3"),
        (file("params = 3\n" + HEADER), "params = 3"),
        (file("tune = [3]\n" + HEADER), "tune = [3]"),
        (file(HEADER + "[params]\nblock = 3\n"), "parameter block"),
        (file(HEADER + "[params]\n__AVX2__ = 3\n"), "parameter __AVX2__"),
        (file(HEADER + "[params]\nVALUE = 3\n"), "parameter VALUE"),
        (file(HEADER + "[params]\nCHECK_FINITE = 0\n"), "parameter CHECK_FINITE"),
        (file(HEADER + "[params]\nCSR_ARRAYS = 0\n"), "parameter CSR_ARRAYS"),
        (file(HEADER + "[params]\nLANES = 8\n"), "parameter LANES"),
        (file(HEADER + "[params]\nBLOCK = -1\n"), "parameter BLOCK = -1"),
        (file(HEADER + "[params]\nBLOCK = 2147483648\n"), "parameter BLOCK = 2147483648"),
        (file(HEADER + "[params]\nBLOCK = true\n"), "parameter BLOCK = True"),
        (file(HEADER + "[params]\nBLOCK = 1.5\n"), "parameter BLOCK = 1.5"),
        (file(HEADER + '[params]\nBLOCK = "8"\n'), "parameter BLOCK = '8'"),
        (file(HEADER + f"[params]\n{'B' * 50} = 8\n"), "the name 'BBB"),
        (file(HEADER + '[params]\n"Ä" = 8\n'), "the name 'Ä'"),
        (file(HEADER + '[params]\nvalues = "f16"\n'), "values = 'f16'"),
        (file(HEADER + "[tune]\nBLOCK = 8\n"), "tune BLOCK = 8"),
        (file(HEADER + "[tune]\nBLOCK = []\n"), "tune BLOCK = []"),
        (file(HEADER + '[tune]\nBLOCK = [8, "a"]\n'), "parameter BLOCK = 'a'"),
        (file(HEADER + "[params]\nBLOCK = 8\n[tune]\nBLOCK = [8]\n"), "['BLOCK'] in [params] and in [tune]"),
        (file(HEADER + f"[tune]\nP = {list(range(20))}\nQ = {list(range(20))}\n"), "400 instances"),
        (file('zero = "y"\n' + HEADER), "zero = 'y'"),
        (file('zero = ["x"]\n' + HEADER), "zero = ['x']"),
        (file(HEADER + '[scratch]\ncarry = ["ACC", "m"]\n'), "[scratch]"),
        (file(SPMV + CSR), "launch = None"),
        (file(SPMV + CSR + "launch = []\n"), "launch = []"),
        (file(SPMV + CSR + LAUNCH * 9), "one to eight"),
        (file(SPMV + CSR + 'launch = ["spmv"]\n'), "launch = 'spmv'"),
        (file(SPMV + CSR + '[[launch]]\nentry = "spmv"\n'), "launch fields ['entry']"),
        (file(SPMV + CSR + LAUNCH + 'block = "3"\n'), "launch fields ['block', 'entry', 'items']"),
        (file(SPMV + CSR + LAUNCH.replace('"m"', "3")), "launch items = 3"),
        (file(SPMV + CSR + LAUNCH.replace('"m"', '""')), "launch items = ''"),
        (file(SPMV + CSR + LAUNCH.replace("spmv", "a b")), "the name 'a b'"),
        (file(SPMV + CSR + LAUNCH.replace("spmv", "other")), "no function ['other']"),
        (file(SPMV + LAUNCH), "neither or both"),
        (file(SPMV + CSR + PART.format("all")), "neither or both"),
        (file(SPMV + 'format = "csc"\n' + LAUNCH), "format = 'csc'"),
        (file(SPMV + "format = []\n" + LAUNCH), "format = []"),
        (file(SPMV + LAUNCH + PART.format("all")), "[[launch]] beside [[part]]"),
        (file(SPMV + "part = []\n"), "part = []"),
        (file(SPMV + 'part = "all"\n'), "part = 'all'"),
        (file(SPMV + "part = [3]\n"), "part = 3"),
        (file(SPMV + PART.format("all") * 5), "one to four"),
        (file(SPMV + PART.format("most")), "select = 'most'"),
        (file(SPMV + PART.format("rest")), "parts ['rest']"),
        (file(SPMV + PART.format("dense_rows")), "parts ['dense_rows']"),
        (file(SPMV + PART.format("all") * 2), "parts ['all', 'all']"),
        (file(SPMV + PART.format("all") + PART.format("rest")), "parts ['all', 'rest']"),
        (file(SPMV + PART.format("all").replace('"csr"', '"csr"\ncolour = 3')), "unknown part fields ['colour']"),
        (file(SPMV + PART.format("all").replace('"csr"', '"csr"\nparams = { R = 3 }')), "part params ['R']"),
    ],
)
def test_a_broken_rule_is_one_clear_error(whole, rule):
    with pytest.raises(SparsegenValueError) as error:
        parse(whole, name="my_kernel")
    message = str(error.value)
    assert message.startswith("kernel file my_kernel: ") and rule in message and "; expected " in message
    assert len(message) < 700


def test_cuda_kernels_have_grids_and_scratch():
    source = '// one thread\nextern "C" __global__ void spmv(SIZES) { }'
    header = SPMV + CSR + '[scratch]\ncarry = ["ACC", "ceil_div(nnz, 4)"]\n[[launch]]\nentry = "spmv"\n'
    read = parse(file(header + 'grid = "m"\nblock = "64"\n', source))
    assert read.language == "cuda" and read.scratch == {"carry": ("ACC", "ceil_div(nnz, 4)")}
    assert read.parts[0].launches[0] == Launch("spmv", grid="m", block="64", shared_bytes="0")
    for wrong in ('["HALF", "m"]', '["ACC"]', '["ACC", 3]', '"ACC"', '["ACC", "m", "n"]'):
        with pytest.raises(SparsegenValueError, match="scratch"):
            parse(file(header.replace('["ACC", "ceil_div(nnz, 4)"]', wrong) + 'grid = "m"\nblock = "64"\n', source))
    with pytest.raises(SparsegenValueError, match="launch fields"):
        parse(file(header + 'items = "m"\n', source))


def test_a_word_in_a_comment_does_not_make_a_kernel_cuda():
    assert parse(file(source="// unlike __global__ functions\n" + SOURCE)).language == "cpp"


def test_composites():
    header = SPMV + PART.format("rest").replace('"csr"', '"sell"\nparams = { SLICE = 16, SIGMA = 0 }')
    read = parse(file(header + PART.format("dense_rows") + "[params]\nSLICE = 4\nBITS = 16\n"), name="rest_and_dense")
    rest, dense = read.parts
    assert read.format == "sell+csr" and read.schedule == "rest_and_dense"
    assert read.format_params(rest) == {"SLICE": 16, "SIGMA": 0, "BITS": 16}
    assert read.format_params(dense) == {}
    assert parse(text(read), name=read.name) == read


def test_names_and_labels():
    read = parse(file(HEADER + "[params]\nWIDE = 3\nvalues = 'constant'\n"), name="csr_scalar")
    assert (read.format, read.schedule, read.encoding) == ("csr", "scalar", "constant")
    assert read.label == "csr_scalar WIDE=3 values=constant"
    assert parse(file(), name="csr").schedule == "csr" and parse(file()).encoding == "full"


def test_key_ignores_comments_space_name_and_origin():
    one = "// words\nvoid spmv(int a)  {\n\n\treturn; /* more\nwords */ }"
    two = "void   spmv(int a) {\nreturn; }\n// end"
    first = parse(file("about = 'a'\n" + HEADER, one), name="a")
    second = parse(file("about = 'b'\n" + HEADER, two), name="b", origin="checkpoint")
    assert first.key == second.key and first != second


@pytest.mark.parametrize(
    "change",
    [
        {"source": "void spmv(int b) { return; }"},
        {"source": "void spmv(int a) { return;; }"},
        {"source": "void spmv(int a) {\\\nreturn; // }"},
        {"params": {"WIDE": 4}},
        {"params": {"WIDE": 3, "values": "f32"}},
        {"tune": {"DEEP": (1,)}},
        {"zero": ("y",)},
        {"op": "spmm"},
        {"parts": (Part("all", "csr", (Launch("spmv", items="n"),)),)},
        {"parts": (Part("all", "ell", (Launch("spmv", items="m"),)),)},
        {"parts": (Part("all", "csr", (Launch("spmv", items="m"),) * 2),)},
        {"scratch": {"carry": ("ACC", "m")}},
    ],
)
def test_key_sees_everything_else(change):
    made = parse(file(HEADER + "[params]\nWIDE = 3\n", "void spmv(int a) { return; }"))
    assert replace(made, **change).key != made.key


def test_a_spliced_comment_is_a_comment():
    assert normalised("a; // b \\\nc;\nd;") == "a;\nd;"
    assert normalised("a /* b // c */ d // e /* f\ng") == "a d\ng"


LEAVES = st.integers(0, 10**6).map(str) | st.sampled_from(["m", "nnz", "BLOCK"])
SIZES = {"m": 613, "nnz": 9001, "BLOCK": 128}
ARITHMETIC = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "//", "%"]), inner).map(lambda each: f"({' '.join(each)})"),
        st.tuples(st.sampled_from(["ceil_div", "min", "max"]), inner, inner).map("{0[0]}({0[1]}, {0[2]})".format),
    ),
    max_leaves=12,
)


@settings(max_examples=500, deadline=None)
@given(ARITHMETIC)
def test_arithmetic_is_that_of_python(expression):
    known = {"__builtins__": {}, "min": min, "max": max, "ceil_div": lambda a, b: -(-a // b), **SIZES}
    try:
        expected = eval(expression, known)
    except ZeroDivisionError:
        expected = None
    if expected is not None and expected >= 0 and len(expression) <= 200:
        try:
            assert evaluate(expression, SIZES) == expected
        except SparsegenValueError as error:
            assert "leaves 64 bits" in str(error) and expression.count(" * ") >= 3
    else:
        with pytest.raises(SparsegenValueError):
            evaluate(expression, SIZES)


@pytest.mark.parametrize(
    "expression, fault",
    [
        ("rows", "uses 'rows'; known are BLOCK, m, nnz"),
        ("__import__", "uses '__import__'"),
        ("print(m)", "may hold"),
        ("abs(m, m)", "may hold"),
        ("min(m)", "may hold"),
        ("min(m, nnz, BLOCK)", "may hold"),
        ("min(*m)", "may hold"),
        ("min(a=m)", "may hold"),
        ("m.real", "may hold"),
        ("m[0]", "may hold"),
        ("m ** 2", "may hold"),
        ("m / 2", "may hold"),
        ("-m", "may hold"),
        ("m if m else 1", "may hold"),
        ("m and 1", "may hold"),
        ("m, m", "may hold"),
        ("(m for m in m)", "may hold"),
        ("m < 2", "may hold"),
        ("m << 2", "may hold"),
        ("lambda: 1", "may hold"),
        ("'m'", "may hold"),
        ("True", "may hold"),
        ("1.5", "may hold"),
        ("m\n+ 1", "may hold"),
        ("m + \u0661", "may hold"),
        ("m + 1; m", "may hold"),
        ("m = 1", "may hold"),
        ("", "is not an expression"),
        ("m +", "is not an expression"),
        ("1if", "is not an expression"),
        ("0777", "is not an expression"),
        ("m n", "is not an expression"),
        ("m // 0", "divides by zero"),
        ("m % (m - m)", "divides by zero"),
        ("ceil_div(m, 0)", "divides by zero"),
        ("m - nnz", "is negative"),
        ("9223372036854775807 + 1", "leaves 64 bits"),
        ("9223372036854775808", "leaves 64 bits"),
        ("9" * 190, "leaves 64 bits"),
        ("nnz * nnz * nnz * nnz * nnz", "leaves 64 bits"),
        ("(" * 90 + "m" + ")" * 90 + " - nnz", "is negative"),
        ("+".join(["m"] * 60), "is nested too deeply"),
        ("(" * 150, "is not an expression"),
        ("m" * 201, "is longer than 200 characters"),
    ],
)
def test_other_expressions_are_refused(expression, fault):
    with pytest.raises(SparsegenValueError, match="the launch expression") as error:
        evaluate(expression, SIZES)
    assert fault in str(error.value)


def test_the_largest_result():
    assert evaluate("9223372036854775806 + 1", {}) == 2**63 - 1
    assert evaluate("  ceil_div(m * 4, BLOCK) ", SIZES) == 20


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=40))
def test_any_text_is_a_number_or_a_clear_error(expression):
    with contextlib.suppress(SparsegenValueError):
        assert 0 <= evaluate(expression, SIZES) < 2**63


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=80), st.sampled_from([HEADER, ""]))
def test_any_header_is_read_or_a_clear_error(words, rest):
    try:
        parse(file(words + "\n" + rest))
    except SparsegenValueError as error:
        assert str(error).startswith("kernel file (unnamed): ")
