"""What the screen of CUDA sources lets through, and what it refuses and why."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparsegen import candidate, paths
from sparsegen.screen import cuda

KERNELS = Path(__file__).parent / "kernels"
BODY = 'extern "C" __global__ void f(int* p) { *p = 1; }\n'
COMPILER_REFUSES = {"biglocal", "bigshared", "giant_shared"}  # by their size, see nvrtc


def read(path: Path) -> str:
    return path.read_bytes().decode()


def listed(folder: str) -> list[Path]:
    return sorted((KERNELS / folder).glob("*.cu"))


@pytest.mark.parametrize("path", listed("hostile"), ids=lambda path: path.stem)
def test_hostile_sources(path):
    """Each is refused as a kernel, but for a comment that only looks hostile, and three that the compiler refuses."""
    refusal = cuda.check(read(path))
    if path.stem == "rawstr" or path.stem in COMPILER_REFUSES:
        assert refusal is None
    else:
        assert refusal and "\n" not in refusal and len(refusal) < 200


@pytest.mark.parametrize("path", listed("hostile"), ids=lambda path: path.stem)
def test_foreign_sources_are_held_to_the_same_directives(path):
    stem = path.stem
    if any(word in stem for word in ("inc", "embed", "asm", "bomb", "stdin", "devzero", "deep", "huge", "nul")):
        assert cuda.check(read(path), fp_headers=True)


@pytest.mark.parametrize("path", listed("good"), ids=lambda path: path.stem)
def test_good_sources(path):
    source = read(path)
    assert cuda.check(source, fp_headers=True) is None
    assert (cuda.check(source) is None) == ("#include" not in source)


@pytest.mark.parametrize("path", listed("faulty"), ids=lambda path: path.stem)
def test_faulty_sources(path):
    """Refused as kernels: allocation, printing, kept state and host functions. The other faults show at run time."""
    refused = path.stem.split("__")[0] in ("assert_printf", "malloc", "spinlock", "syscall")
    assert (cuda.check(read(path)) is not None) == refused


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("#include <cuda_fp16.h>\n", "#include"),
        ("#\n", "directive"),
        ("#define X(a) #a\n", "'#' inside"),
        ("#define X(a, b) a##b\n", "'##' inside"),
        ("#pragma once\n", "#pragma once"),
        ("#pragma unroll 100000\n", "#pragma"),
        ("#define STORE(y, row, sum) (y)[row] = 0\n", "the prelude's"),
        ("#undef ACC\n", "the prelude's"),
        ("#define DEVICE __device__\nDEVICE int kept;\n", "declares"),
        ("#define X X\nconst int a = X;\n", "expands to itself"),
        ("#define X Y\n#define Y X\nconst int a = X;\n", "expands to itself"),
        ("int a = 1 \\ \n;\n", "backslash"),
        ("const char a = '\\\n'; $", "not a token"),
        ('const char* a = "no end;\n', "not a token"),
        ("__device__ int kept;\n", "stand only functions"),
        ("__device__ __align__(8) int kept{1};\n", "stand only functions"),
        ("__constant__ int kept;\n", "__constant__"),
        ("extern __device__ int kept;\n", "extern"),
        ("__device__ int f();\n", "stand only functions"),
        ("struct S { __device__ int kept; };\n", "stand only functions"),
        ('extern "C" { __device__ int kept; }\n', "stand only functions"),
        ('extern "C" int system(const char*);\n', "stand only functions"),
        ("template <class T> struct S {};\n", "template"),
        ("__device__ int f() { return B_AT(" * 24 + "0" + ", 0)" * 24 + "; }\n", "expand"),
        ("__device__ int f() { static int kept; return ++kept; }\n", "static"),
    ],
)
def test_refusals_say_what(source, told):
    assert told in str(cuda.check(source + BODY))


@pytest.mark.parametrize(
    "source",
    [
        '// #include "/etc/passwd"\n/* asm */\n',
        '__device__ const char* f() { return "asm #include // /*"; }\n',
        "#define TILE (BLOCK * 4) /* over\ntwo lines */\n#if TILE > 512 && defined(BLOCK)\n#endif\n",
        "#define SQUARE(x) ((x) * (x))\n__device__ int g(int a) { return SQUARE(SQUARE(a)); }\n",
        "const int table[2][2] = {{1, 2}, {3, 4}};\ntypedef int four[4];\n",
        "struct pair { int a, b; };\nenum { A = 3 };\n",
        "__device__ __forceinline__ int g(int a, int b = 2) { if (a) { return a; } return b; }\n",
        'extern "C" { __device__ int g() { return 1; } }\n',
        "__device__ int g() { extern __shared__ int s[]; return s[0] + 1'000 + 0x1fu + 1e-3f; }\n",
        "__device__ int g() {\n#pragma unroll\nfor (int i = 0; i < 8; ++i) {}\n#pragma unroll 4\n"
        "for (int i = 0; i < 90000; ++i) {}\nreturn 0; }\n",
        "__device__ int g(int a) { return [=](int b) { return a + b; }(3); } // é\n",
    ],
)
def test_what_kernels_need_is_let_through(source):
    assert cuda.check(source + BODY) is None


def test_lines_are_counted_through_splices_and_comments():
    assert "line 5:" in str(cuda.check("/*\n\n*/ int a; \\\n\nasm(1);\n" + BODY))


def test_templates_pass():
    for path in paths.data("cuda_templates").glob("*/*.cu"):
        assert cuda.check(candidate.parse(read(path), name=path.stem).source) is None


def test_length():
    assert "characters" in str(cuda.check(BODY + "// nothing\n" * 7000))
    assert "deep" in str(cuda.check("const int a = " + "(" * 9000 + "1" + ")" * 9000 + ";\n" + BODY))
