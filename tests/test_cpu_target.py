"""The host's compiler: which is found, what it is asked for, how it is fenced."""

from __future__ import annotations

import ctypes
import shutil

import pytest
from support import LOOP, problem_of, user_kernel

from sparsegen import evaluate, gallery
from sparsegen.targets import cpu

pytestmark = pytest.mark.skipif(cpu.available() is not None, reason="no compiler")


@pytest.fixture
def refusing(tmp_path, monkeypatch):
    """A compiler that is g++ until it is asked for one of some words."""

    def made(*words: str) -> cpu.Compiler:
        script = tmp_path / "compiler"
        patterns = "|".join(f"*{word}*" for word in words)
        real = " ".join(cpu.compiler().command)
        script.write_text(f'#!/bin/sh\ncase "$*" in {patterns}) exit 1;; esac\nexec {real} "$@"\n')
        script.chmod(0o755)
        found = cpu.Compiler((str(script),), f"refuses {words}, Free Software Foundation")
        monkeypatch.setattr(cpu, "compiler", lambda: found)
        return found

    return made


def test_a_compiler_that_does_not_know_an_instruction_set_gets_a_lower_one(refusing):
    whole = cpu.machine.__wrapped__()
    if whole.isa != "avx512":
        pytest.skip("no AVX-512 here to be refused")
    refusing("avx512")
    assert cpu.machine.__wrapped__().isa == "avx2"
    refusing("avx512", "avx2")
    assert cpu.machine.__wrapped__().isa == "sse2"


def test_cxx_names_the_compiler(monkeypatch, tmp_path):
    for name in ("CXX", "CC"):
        monkeypatch.delenv(name, raising=False)
    script = tmp_path / "my compiler"
    script.write_text("#!/bin/sh\necho mine 7.1\n")
    script.chmod(0o755)
    monkeypatch.setenv("CXX", f"'{script}' --wrapped")
    assert cpu.compiler.__wrapped__() == cpu.Compiler((str(script), "--wrapped"), "mine 7.1")
    monkeypatch.setenv("CXX", str(tmp_path / "missing"))
    found = cpu.compiler.__wrapped__()
    assert found is not None and found.command[0] in ("g++", "clang++", "c++")


def test_a_syntax_error_is_told_by_the_kernels_own_line():
    with pytest.raises(cpu.CompileFailure) as failure:
        cpu.build('#line 1 "kernel"\nint f() {\n  return nothing;\n}\n')
    assert "kernel:2" in str(failure.value) and "nothing" in str(failure.value)


def test_nothing_can_be_linked_in():
    with pytest.raises(cpu.CompileFailure, match="system"):
        cpu.build('extern "C" int system(const char*);\nextern "C" int f() { return system(0); }\n')


def test_a_compiler_that_hangs_is_ended(monkeypatch, tmp_path):
    script = tmp_path / "hangs"
    script.write_text("#!/bin/sh\nsleep 600\n")
    script.chmod(0o755)
    monkeypatch.setattr(cpu, "compiler", lambda: cpu.Compiler((str(script),), "hangs"))
    monkeypatch.setattr(cpu, "machine", lambda: cpu.Machine("none", (), 16, "test"))
    monkeypatch.setattr(cpu, "COMPILE_SECONDS", 0.5)
    with pytest.raises(cpu.CompileFailure, match="took over"):
        cpu.build("int f;")


def test_a_binary_is_built_once(monkeypatch):
    text = 'extern "C" long answer() { return 20260; }\n'
    path = cpu.build(text)
    monkeypatch.setattr(cpu, "_fenced", lambda *arguments: pytest.fail("it was compiled again"))
    again = cpu.build(text)
    assert path == again
    assert ctypes.CDLL(str(path)).answer() == 20260
    assert shutil.which(cpu.compiler().command[0])


def test_code_is_equal_for_kernels_that_differ_in_spelling_alone():
    problem = problem_of(gallery.uniform(37, 41, 211), facts=None)

    def code(kernel):
        compiled = evaluate.compile(kernel, problem)
        assert isinstance(compiled, evaluate.Compiled)
        return cpu.code(compiled.path)

    plain = code(user_kernel())
    assert code(user_kernel(LOOP.replace("sum", "row_total"))) == plain
    assert code(user_kernel(LOOP.replace("ACC sum = 0;", "ACC sum = 3;"))) != plain


def test_code_of_a_file_that_is_not_elf_is_that_of_its_bytes(tmp_path):
    for number, raw in enumerate((b"", b"mach-o", b"mach-o 2")):
        (tmp_path / str(number)).write_bytes(raw)
    assert len({cpu.code(tmp_path / str(number)) for number in range(3)}) == 3
