"""Written kernels: every kind compiles, ours keep to the kernel language, draws differ; and kernels out of folders."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace

import numpy as np
import pytest

from sparsegen import candidate, nvrtc, paths
from sparsegen.errors import SparsegenValueError
from sparsegen.model import encoder, tokenizer
from sparsegen.screen import cpp, cuda
from sparsegen.screen import names as known
from sparsegen.targets import cpu
from sparsegen.train import compiles, folders, writer
from sparsegen.train.idioms import Pen
from sparsegen.train.writer import Text

HEADER = re.compile(r"\A/\* sparsegen\n(.*?)\*/\n", re.DOTALL)

needs = {
    "cpp": pytest.mark.skipif(cpu.available() is not None, reason="no compiler"),
    "cuda": pytest.mark.skipif(nvrtc.available() is not None, reason="no NVRTC"),
}
LANGUAGES = [pytest.param(language, marks=needs[language]) for language in writer.LANGUAGES]


def drawn(language: str, count: int, seed: int = 6007) -> list[Text]:
    """As many of every kind, as nearly as can be."""
    rng = np.random.default_rng(seed)
    return [writer.write(language, rng, writer.names()[number % len(writer.names())]) for number in range(count)]


def header(text: str) -> dict | None:
    found = HEADER.match(text)
    return tomllib.loads(found.group(1)) if found else None


@pytest.mark.parametrize("language", LANGUAGES)
def test_all_compile(language):
    assert compiles.check(drawn(language, 67)) == [None] * 67


@needs["cpp"]
def test_code_is_made_of_them_in_single_precision():
    texts = drawn("cpp", 33, 811)
    assert compiles.check(texts, "float", whole=True) == [None] * 33


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_one_that_does_not_compile_is_found(language):
    texts = drawn(language, 23)
    broken = texts[13].text.replace(") {", ") { missing();", 1)
    unbalanced = texts[5].text.rstrip()[:-1]
    texts[13], texts[5] = replace(texts[13], text=broken), replace(texts[5], text=unbalanced)
    said = compiles.check(texts)
    assert [place for place, reason in enumerate(said) if reason] == [5, 13]
    assert "missing" in said[13]


def test_kinds_are_the_folder():
    assert {"map", "reduce", "scan", "gather", "scatter", "stencil", "transpose", "segmented"} < set(writer.names())
    assert {"rows", "sliced", "blocks", "diagonals", "columns", "histogram", "chain"} < set(writer.names())
    for kind in writer.names():
        text = writer.write("cpp", np.random.default_rng(31), kind)
        assert set(text.words) <= set(encoder.CONDITIONS)
    assert "kind:scan" in writer.write("cuda", np.random.default_rng(31), "scan").words


def test_draws_differ_and_a_seed_repeats():
    for language in writer.LANGUAGES:
        rng = np.random.default_rng(5113)
        texts = [writer.write(language, rng).text for _ in range(1500)]
        assert len({candidate.normalised(text) for text in texts}) > 0.97 * len(texts)
        assert 300 < np.mean([len(text) for text in texts]) < 1500
        assert max(map(len, texts)) < 4000
        again = np.random.default_rng(5113)
        assert [writer.write(language, again).text for _ in range(9)] == texts[:9]


@pytest.mark.parametrize("language", writer.LANGUAGES)
def test_two_thirds_are_files_of_ours(language):
    texts = drawn(language, 331)
    headers = [header(each.text) for each in texts]
    assert 0.55 < np.mean([each is not None for each in headers]) < 0.8
    for each, found in zip(texts, headers, strict=True):
        assert tokenizer.spelled(HEADER.sub("", each.text)) + "\n" == HEADER.sub("", each.text)
        if found is None:
            assert not re.search(r"\b(VALUE|ACC|INDEX|STORE|EPILOGUE)\b", each.text)
            continue
        assert list(found)[:2] == ["op", "format"] and found["op"] in writer.names()
        (launch,) = found["launch"]
        assert set(launch) == ({"entry", "items"} if language == "cpp" else {"entry", "grid", "block"})
        assert re.search(rf"\b{launch['entry']}\(", each.text)
        for name in found.get("params", {}):
            assert re.search(rf"\b{name}\b", HEADER.sub("", each.text) + str(launch)), name


def test_cuda_kernels_pass_the_screen():
    for each in drawn("cuda", 331):
        assert cuda.check(HEADER.sub("", each.text)) is None, each.text


class Unsigned(cpp._File):
    """Reads a kernel whose signature is not that of an operation."""

    def entry(self, wanted):
        self.take()
        self.take("void")
        self.entries.add(self.take().text)
        self.params()
        self.body()


def test_cpp_kernels_of_ours_are_in_the_kernel_language():
    read = 0
    for each in drawn("cpp", 331):
        found = header(each.text)
        if found is None or (found["format"] == "dense" and "EPILOGUE" in each.text):  # SCALED names data
            continue
        form = found["format"] if found["format"] != "dense" else "csr"
        part = candidate.Part("all", form, (candidate.Launch(found["launch"][0]["entry"], items="m"),))
        kernel = candidate.Candidate(
            "cpp", "spmv", (part,), HEADER.sub("", each.text), params=found.get("params", {})
        )  # fmt: skip
        names = known.of(kernel)
        for tokens in known.variants(kernel.source, names):
            Unsigned(kernel, names, tokens).read_all()
        read += 1
    assert read > 100


def test_unknown_kinds_and_languages():
    rng = np.random.default_rng(9)
    with pytest.raises(SparsegenValueError, match="kinds are blocks, chain"):
        writer.write("cpp", rng, "fourier")
    with pytest.raises(SparsegenValueError, match="cpp and cuda"):
        writer.write("rust", rng)


def test_a_formula_uses_every_leaf():
    rng = np.random.default_rng(17)
    for _ in range(200):
        pen = Pen("cpp", rng)
        text = pen.render(pen.formula(3), ["u1", "v2", "w3"])
        assert all(re.search(rf"\b{leaf}\b", text) for leaf in ("u1", "v2", "w3")), text


# Folders


def test_functions_of_a_folder(tmp_path):
    body = " ".join(f"a += {i};" for i in range(9))
    one, two = f"void one(int a) {{ {body} }}", f"// says\nvoid two(int a) {{\n    {body}\n}}"
    (tmp_path / "deep").mkdir()
    (tmp_path / "a.cu").write_text(f"{one}\n\n{two}\n")
    (tmp_path / "deep" / "b.h").write_text(one.replace(" ", "  ") + "\n")  # the same in other blank space
    (tmp_path / "c.py").write_text(one.replace("one", "python"))
    (tmp_path / "long.cpp").write_text(one.replace("one", "long_") + "/*" + "x" * folders.MOST_BYTES + "*/")
    (tmp_path / "binary.cpp").write_bytes(b"\x00\x01" + one.encode())
    (tmp_path / "latin.cpp").write_bytes("void é".encode("latin-1") + one.encode())
    (tmp_path / "link.cu").symlink_to(tmp_path / "a.cu")
    assert list(folders.texts(tmp_path, most=120)) == [f"{one}\n", f"void two(int a) {{\n {body}\n}}\n"]
    assert list(folders.texts(tmp_path)) == [f"{one}\nvoid two(int a) {{\n {body}\n}}\n", f"{one}\n"]
    assert list(folders.texts(tmp_path, most=60)) == []


def test_our_own_folders_are_read_whole():
    texts = "".join(folders.texts(paths.data("cuda_templates")))
    files = paths.data("cuda_templates").glob("*/*.cu")
    assert texts.count("__global__") == sum(file.read_text().count("__global__") for file in files)
    assert "/*" not in texts and "//" not in texts


@pytest.mark.parametrize("text", ["", "{", "}", "((", "#define A {\n", "void f(int a) {", '"', "/*", "\\\n", "x" * 99])
def test_text_that_is_no_kernel(text):
    for piece in folders.pieces(text):
        assert len(piece) <= folders.MOST


def test_no_folder(tmp_path):
    with pytest.raises(SparsegenValueError, match="no folder"):
        next(folders.texts(tmp_path / "missing"))
