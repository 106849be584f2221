"""The translation unit: what the signature says, the macros say, and the door passes, in one order."""

from __future__ import annotations

import ctypes
import itertools
import re
from dataclasses import replace

import numpy as np
import pytest

from sparsegen import candidate, formats, ops, paths, prelude
from sparsegen.candidate import Candidate, Launch, Part
from sparsegen.problem import Facts, Pattern, Problem
from sparsegen.screen.names import of as names_of

OPS, FORMATS = ops.names(), formats.names()
TEMPLATES = sorted([*paths.data("cpu_templates").glob("*/*.cpp"), *paths.data("cuda_templates").glob("*/*.cu")])


def made(op: str, format: str, language: str = "cpp", **fields) -> Candidate:
    launch = Launch(op, items="m") if language == "cpp" else Launch(op, grid="m", block="32")
    return Candidate(language, op, (Part("all", format, (launch,)),), "", **fields)


def problem(op: str, dtype=np.float64, **fields) -> Problem:
    indptr, indices = np.array([0, 2, 3], np.int32), np.array([0, 2, 1], np.int32)
    return Problem(op, Pattern((2, 3), indptr, indices), Facts(), np.dtype(dtype), **fields)


def packs(kernel: Candidate, whole: Problem) -> list[formats.Packed]:
    modules = [formats.get(part.format) for part in kernel.parts]
    return [formats.Packed({}, 3, 3, baked=dict.fromkeys(module.BAKED, "7")) for module in modules]


def parameters(kernel: Candidate, whole: Problem, header: str) -> list[str]:
    """A parameter list with every macro in it replaced, as the preprocessor would."""
    defined = prelude.macros(kernel, whole, packs(kernel, whole))
    defined["EPILOGUE"] = re.search(r"#define EPILOGUE (.*)", prelude.text(kernel.language)).group(1)
    lists = re.compile(r"\b(EPILOGUE|SIZES|SCRATCH_ARRAYS|\w+_ARRAYS)\b")
    while lists.search(header):
        header = lists.sub(lambda found: defined[found.group()], header)
    return [" ".join(each.split()) for each in header.split(",") if each.strip()]


@pytest.mark.parametrize("op, format, language", list(itertools.product(OPS, FORMATS, prelude.PRELUDE)))
def test_signature_is_the_header_macros_in_order(op, format, language):
    scratch = {"carry": ("ACC", "m"), "seen": ("INDEX", "n")} if language == "cuda" else {}
    kernel, whole = made(op, format, language, scratch=scratch), problem(op)
    operands = ", ".join(f"{kind} {name}" for name, kind in ops.get(op).OPERANDS.items())
    header = f"SIZES, {format.upper()}_ARRAYS, {operands}, EPILOGUE"
    expected = [f"{kind} {name}" for name, kind in prelude.arguments(kernel, kernel.parts[0])]
    assert parameters(kernel, whole, header) == expected
    assert len(set(expected)) == len(expected)


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_templates_have_the_derived_signature(path):
    kernel = next(candidate.instances(candidate.parse(path.read_text(), name=path.stem)))
    for part, launch in prelude.entries(kernel):
        written = re.search(rf"\b{launch.entry}\s*\(([^)]*)\)", kernel.source).group(1)
        got = [re.sub(r"\*\s*__restrict__", "*", each) for each in parameters(kernel, problem(kernel.op), written)]
        extra = [("begin", "int64_t"), ("end", "int64_t")] if kernel.language == "cpp" else []
        assert got == [f"{kind} {name}" for name, kind in [*prelude.arguments(kernel, part), *extra]]


def test_reserved_parameters_are_the_macros_of_the_signature():
    """candidate.py keeps the list, which it cannot import."""
    for op, format in itertools.product(OPS, FORMATS):
        kernel = made(op, format)
        own = formats.get(format).PARAMS
        for name in prelude.macros(kernel, problem(op), packs(kernel, problem(op))):
            if name in (*own, *formats.get(format).BAKED):
                continue
            assert name == "SCRATCH_ARRAYS" or candidate._RESERVED.fullmatch(name), name
    assert candidate._RESERVED.fullmatch("LANES") and candidate._RESERVED.fullmatch("SCRATCH_ARRAYS")


@pytest.mark.parametrize("dtype, real", [(np.float64, "double"), (np.float32, "float")])
def test_macros_follow_the_problem(dtype, real):
    whole = problem("spmm", dtype, layout_b="column")
    defined = prelude.macros(made("spmm", "csr"), whole, [formats.Packed({}, 3, 3)])
    assert (defined["VALUE"], defined["ACC"], defined["STORED"]) == (real, real, real)
    assert (defined["INDEX"], defined["OFFSET"], defined["LOCAL"]) == ("int32_t", "int32_t", "INDEX")
    assert (defined["B_BY_ROW"], defined["C_BY_ROW"]) == ("0", "1")
    assert (defined["CONSTANT_VALUES"], defined["CHECK_FINITE"]) == ("0", "0")
    assert defined["SIZES"] == "int64_t m, int64_t n, int64_t nnz, int64_t k, int64_t ldb, int64_t ldc"


def test_macros_follow_the_encoding_the_format_and_the_parameters():
    kernel = made("spmv", "sell", params={"values": "f32", "SLICE": 16, "DEEP": 3})
    defined = prelude.macros(kernel, problem("spmv"), [formats.Packed({}, 3, 16, baked={"LOCAL": "uint16_t"})])
    assert defined["STORED"] == "float" and defined["LOCAL"] == "uint16_t"
    assert (defined["SLICE"], defined["SIGMA"], defined["BITS"], defined["DEEP"]) == ("16", "1", "32", "3")
    assert "values" not in defined
    constant = prelude.macros(
        replace(kernel, params={"values": "constant"}), problem("spmv"), [formats.Packed({}, 3, 3)]
    )
    assert (constant["CONSTANT_VALUES"], constant["CHECK_FINITE"], constant["STORED"]) == ("1", "1", "double")
    assert prelude.checks_finite(made("spmv", "dia")) and not prelude.checks_finite(made("spmv", "csr"))


def test_the_unit_in_its_order():
    kernel = replace(made("spmv", "csr"), source="/* the kernel */")
    text = prelude.assemble(kernel, problem("spmv"), [formats.Packed({}, 3, 3)], {"LANES": "8"})
    marks = [
        "#define VALUE double", "#define LANES 8", "visibility push(hidden)", '#line 1 "prelude"', '#line 1 "kernel"',
        "/* the kernel */", "visibility pop", 'extern "C" void door_spmv(',
    ]  # fmt: skip
    places = [text.index(mark) for mark in marks]
    assert places == sorted(places)
    twice = replace(kernel, parts=(replace(kernel.parts[0], launches=kernel.parts[0].launches * 2),))
    assert prelude.assemble(twice, problem("spmv"), [formats.Packed({}, 3, 3)], {}).count("void door_spmv(") == 1
    cuda = prelude.assemble(made("spmv", "csr", "cuda"), problem("spmv"), [formats.Packed({}, 3, 3)], {})
    assert "door" not in cuda and "visibility" not in cuda


def test_the_screen_knows_the_whole_prelude():
    names = names_of(made("spmv", "csr"))
    text = prelude.text("cpp")
    assert set(re.findall(r"#define (\w+)", text)) <= set(names.macros)
    for name in re.findall(r"^typedef .*?(\w+)(?: __attribute__.*)?;$", text, flags=re.MULTILINE):
        assert name in names.types
    assert names.types["int64_t"] is False and names.types["VALUE"] is False
    if "vector_size" in text:
        assert names.types["vector"] and names.types["lanes"]
        assert names.functions["load"].params == (("p", True),) and names.functions["load"].result.vector
        assert names.functions["store"].params == (("p", True), ("a", False))


def reporting(kernel: Candidate) -> Candidate:
    """With a source whose entry writes every size to y, then what pointers point to, then alpha, beta, begin, end."""
    part = kernel.parts[0]
    lines, count = [], 0
    listed = [*prelude.arguments(kernel, part), ("begin", "int64_t"), ("end", "int64_t")]
    output = ops.get(kernel.op).OUTPUT
    for name, kind in listed:
        if name in (output, "status"):
            continue
        lines.append(f"{output}[{count}] = VALUE({name}{'[0]' if kind.endswith('*') else ''});")
        count += 1
    written = ", ".join(f"{kind} {name}" for name, kind in listed)
    source = f'extern "C" void {kernel.op}({written}) {{ {" ".join(lines)} *status = {count}; }}'
    return replace(kernel, source=source)


@pytest.mark.parametrize("op, format", list(itertools.product(OPS, FORMATS)))
def test_the_door_forwards_every_word_in_order(op, format, tmp_path, monkeypatch):
    pytest.importorskip("sparsegen.cache")
    from sparsegen.targets import cpu

    if cpu.available():
        pytest.skip(cpu.available())
    monkeypatch.setenv("SPARSEGEN_CACHE_DIR", str(tmp_path))
    kernel, whole = reporting(made(op, format)), problem(op)
    part = kernel.parts[0]
    listed = [*prelude.arguments(kernel, part), ("begin", "int64_t"), ("end", "int64_t")]
    types = {"INDEX": np.int32, "LOCAL": np.int32, "OFFSET": np.int32, "STORED": np.float64}
    arrays, sizes, expected = {}, {}, []
    operands = ops.get(op).OPERANDS
    for number, (name, kind) in enumerate(listed):
        value = 101 + 7 * number
        if name in formats.get(format).ARRAYS:
            arrays[name] = np.full(3, value, types[formats.get(format).ARRAYS[name]])
        elif kind == "int64_t" and name not in ("begin", "end"):
            sizes[name] = value
        if name not in (ops.get(op).OUTPUT, "status"):
            expected.append(float(value))
    x = np.full(3, 101 + 7 * [name for name, _ in listed].index(next(iter(operands))), np.float64)
    y, status = np.full(64, np.nan), np.zeros(1, np.uint32)
    library = cpu.load(cpu.build(cpu.unit(kernel, whole, packs(kernel, whole))))
    words = prelude.words(kernel, part, sizes, arrays)
    alpha, beta, begin, end = (101.0 + 7 * [each for each, _ in listed].index(name) for name in
                               ("alpha", "beta", "begin", "end"))  # fmt: skip
    door = getattr(library, f"door_{op}")
    door.restype = None
    real, pointer, integer = ctypes.c_double, ctypes.c_void_p, ctypes.c_int64
    door.argtypes = [pointer, pointer, pointer, real, real, pointer, integer, integer]
    door(words.ctypes.data, x.ctypes.data, y.ctypes.data, alpha, beta, status.ctypes.data, int(begin), int(end))
    assert y[: len(expected)].tolist() == expected
    assert np.isnan(y[len(expected) :]).all() and status[0] == len(expected)


def test_an_entry_named_as_a_function_of_the_library_is_our_own(tmp_path, monkeypatch):
    pytest.importorskip("sparsegen.cache")
    from sparsegen.targets import cpu

    if cpu.available():
        pytest.skip(cpu.available())
    monkeypatch.setenv("SPARSEGEN_CACHE_DIR", str(tmp_path))
    kernel, whole = reporting(made("spmv", "csr")), problem("spmv")
    named = replace(kernel, parts=(Part("all", "csr", (Launch("getpid", items="m"),)),))
    named = replace(named, source=kernel.source.replace("void spmv(", "void getpid("))
    library = cpu.load(cpu.build(cpu.unit(named, whole, packs(named, whole))))
    three, y, status = np.full(3, 5.0), np.full(64, np.nan), np.zeros(1, np.uint32)
    arrays = {"indptr": three.astype(np.int32), "indices": three.astype(np.int32), "data": three}
    words = prelude.words(named, named.parts[0], {"m": 5, "n": 5, "nnz": 5}, arrays)
    real, pointer, integer = ctypes.c_double, ctypes.c_void_p, ctypes.c_int64
    library.door_getpid.restype = None
    library.door_getpid.argtypes = [pointer, pointer, pointer, real, real, pointer, integer, integer]
    library.door_getpid(words.ctypes.data, three.ctypes.data, y.ctypes.data, 5.0, 5.0, status.ctypes.data, 5, 5)
    assert status[0] == 11 and (y[:11] == 5).all()


def test_columns_turned_by_the_host_are_rows_to_the_kernel():
    kernel, whole = made("spmm", "csr", params={"TURN_B": 1}), problem("spmm", layout_b="column", layout_c="column")
    defined = prelude.macros(kernel, whole, packs(kernel, whole))
    assert (defined["B_BY_ROW"], defined["C_BY_ROW"], defined["TURN_B"]) == ("1", "0", "1")
    assert prelude.macros(replace(kernel, params={"TURN_B": 0}), whole, packs(kernel, whole))["B_BY_ROW"] == "0"
    foreign = made("spmm", "csr", "cuda", params={"TURN_B": 1})
    assert prelude.macros(foreign, whole, packs(foreign, whole))["B_BY_ROW"] == "0"


@pytest.mark.parametrize("source, fenced", [
    ("STREAM_ROW(row, 0, sum, doubt);", True), ("stream(C, sum);", True), ("__builtin_ia32_movntpd(C, a);", True),
    ("STORE_ROW(row, 0, sum, doubt);", False), ("downstream = 1;", False),
])  # fmt: skip
def test_doors_of_kernels_that_store_past_the_caches_end_with_a_fence(source, fenced):
    kernel = replace(made("spmm", "csr"), source=source)
    door = prelude.door(kernel, kernel.parts[0], kernel.parts[0].launches[0])
    assert ("STREAM_FENCE; }" in door) == fenced


def test_a_splat_is_the_number_itself(tmp_path, monkeypatch):
    from sparsegen.targets import cpu

    if cpu.available():
        pytest.skip(cpu.available())
    monkeypatch.setenv("SPARSEGEN_CACHE_DIR", str(tmp_path))
    source = 'extern "C" void spmv(SIZES, CSR_ARRAYS, const VALUE* x, VALUE* y, EPILOGUE, int64_t begin, int64_t end) '
    kernel, whole = replace(made("spmv", "csr"), source=source + "{ store(y, splat(x[begin])); }"), problem("spmv")
    library = cpu.load(cpu.build(cpu.unit(kernel, whole, packs(kernel, whole))))
    x, y, three = np.array([-0.0, 0.0, -7.25, np.inf, 5e-324]), np.full(16, np.nan), np.zeros(3, np.int32)
    words = prelude.words(
        kernel, kernel.parts[0], {"m": 1, "n": 1, "nnz": 1}, {"indptr": three, "indices": three, "data": x}
    )
    real, pointer, integer = ctypes.c_double, ctypes.c_void_p, ctypes.c_int64
    library.door_spmv.restype = None
    library.door_spmv.argtypes = [pointer, pointer, pointer, real, real, pointer, integer, integer]
    lanes = cpu.machine().vector_bytes // 8
    for begin, expected in enumerate(x):
        library.door_spmv(words.ctypes.data, x.ctypes.data, y.ctypes.data, 1.0, 0.0, y.ctypes.data, begin, 5)
        assert y[:lanes].tobytes() == np.full(lanes, expected).tobytes()
