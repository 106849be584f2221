"""Exported projects: they build with CMake alone, check themselves, and notice a wrong file."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support import kernel_of, problem_of, template

import sparsegen
from sparsegen import export, gallery, nvrtc, templates
from sparsegen.__main__ import main
from sparsegen.artifact import Artifact
from sparsegen.candidate import instances
from sparsegen.errors import SparsegenValueError
from sparsegen.kernel import Kernel
from sparsegen.problem import Problem
from sparsegen.targets import cpu

needs_cmake = pytest.mark.skipif(
    shutil.which("cmake") is None or shutil.which("g++") is None or cpu.available() is not None,
    reason="needs CMake and a compiler",
)


def built(folder: Path) -> Path:
    """The program of a project."""
    for command in (
        ["cmake", "-S", str(folder), "-B", str(folder / "build")],
        ["cmake", "--build", str(folder / "build")],
    ):
        ran = subprocess.run(command, capture_output=True, text=True)
        assert ran.returncode == 0 and "warning" not in ran.stderr.lower(), ran.stdout + ran.stderr
    return folder / "build" / "check"


def checked(program: Path, data: Path) -> subprocess.CompletedProcess:
    return subprocess.run([str(program), str(data)], capture_output=True, text=True, timeout=60)


@needs_cmake
@pytest.mark.parametrize("name", ["sell_slice", "coo_runs", "dense_rows_slice"])
def test_a_project_builds_and_is_right(tmp_path, name):
    A = (
        gallery.dense_row(457, 461, 3, seed=7141)
        if name == "dense_rows_slice"
        else gallery.powerlaw(457, 461, 3001, seed=7141)
    )
    names = export.write(kernel_of(A, template(name)), tmp_path / "out")
    assert {"CMakeLists.txt", "kernel.cpp", "product.cpp", "product.h", "main.cpp", "data/csr_data.bin"} <= set(names)
    ran = checked(built(tmp_path / "out"), tmp_path / "out" / "data")
    assert ran.returncode == 0 and "worst error" in ran.stdout
    for text in (tmp_path / "out").glob("*.*"):
        assert "@" not in text.read_text().replace("@ ", "")


@needs_cmake
def test_a_project_of_many_columns_finds_a_wrong_value_and_a_short_file(tmp_path):
    A = gallery.uniform(331, 337, 1999, seed=7142).astype(np.float32)
    names = export.write(kernel_of(A, _spmm(), k=7), tmp_path / "out")
    data = tmp_path / "out" / "data"
    program = built(tmp_path / "out")
    assert checked(program, data).returncode == 0
    packed = next(data / Path(name).name for name in names if name.endswith("part0_data.bin"))
    values = np.fromfile(packed, np.float32)
    values[3] += 1.0
    values.tofile(packed)
    assert checked(program, data).returncode == 1
    packed.write_bytes(packed.read_bytes()[:-4])
    ran = checked(program, data)
    assert ran.returncode == 2 and "not the file of this project" in ran.stderr


@needs_cmake
def test_a_project_takes_by_rows_what_the_host_would_have_turned(tmp_path):
    A = gallery.uniform(331, 337, 1999, seed=7142)
    problem = replace(problem_of(A, "spmm", k=7), layout_b="column", layout_c="column")
    turned = Kernel(A, problem, _spmm("csr_ahead", TURN_B=1), "scipy", {"notes": []}, 1, {"threads": 1})
    export.write(turned, tmp_path / "out")
    assert checked(built(tmp_path / "out"), tmp_path / "out" / "data").returncode == 0
    assert "row after row" in (tmp_path / "out" / "product.h").read_text()


def _spmm(name: str = "csr_row", **params):
    return next(
        each
        for file in templates.load("cpp")
        if (file.op, file.name) == ("spmm", name)
        for each in instances(file)
        if params.items() <= each.params.items()
    )


def test_a_library_has_no_project_and_a_full_folder_is_left_alone(tmp_path):
    A = gallery.uniform(31, 37, 101, seed=7143)
    with pytest.raises(SparsegenValueError, match="a call of scipy, which has no source"):
        export.write(kernel_of(A, None), tmp_path / "out")
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").write_text("mine")
    if cpu.available() is None:
        with pytest.raises(SparsegenValueError, match="not empty"):
            export.write(kernel_of(A, template("csr_scalar")), tmp_path / "used")
    assert [each.name for each in (tmp_path / "used").iterdir()] == ["file"]


@pytest.mark.skipif(nvrtc.available() is not None, reason="needs NVRTC")
@pytest.mark.parametrize("name", ["coo_atomic", "csr_merge"])
def test_a_cuda_project_compiles(tmp_path, name):
    from sparsegen import candidate, composite, engine, templates
    from sparsegen.targets import cuda

    A = gallery.uniform(331, 337, 1999, seed=7144)
    problem: Problem = engine.problem_of(A, target="cuda")
    chosen = next(candidate.instances(next(e for e in templates.load("cuda") if e.op == "spmv" and e.name == name)))
    unit = cuda.unit(chosen, problem, composite.literals(chosen, problem))
    made = Artifact(A, problem, chosen, cuda.compile(unit, "sm_90"), "sm_90", {"notes": []})
    names = export.write(made, tmp_path / "out")
    assert {"kernel.cu", "product.cu", "main.cu", "product.h", "CMakeLists.txt"} <= set(names)
    cuda.compile((tmp_path / "out" / "kernel.cu").read_text(), "sm_90")
    assert "CMAKE_CUDA_ARCHITECTURES 90" in (tmp_path / "out" / "CMakeLists.txt").read_text()
    texts = [(tmp_path / "out" / file).read_text() for file in ("kernel.cu", "product.cu")]
    scaled = [text.count("void sparsegen_scale(") for text in texts]
    assert scaled == ([1, 1] if chosen.zero else [0, 0]), "defined in the one, declared in the other"
    if shutil.which("nvcc"):
        for file in ("kernel.cu", "product.cu", "main.cu"):
            command = ["nvcc", "-std=c++17", "-arch=sm_90", "-c", str(tmp_path / "out" / file), "-o", "/dev/null"]
            ran = subprocess.run(command, capture_output=True, text=True)
            assert ran.returncode == 0, ran.stderr


@pytest.mark.skipif(cpu.available() is not None, reason="needs a compiler")
def test_the_command_writes_a_project(tmp_path, capsys):
    A = gallery.uniform(31, 37, 101, seed=7145)
    kernel_of(A, template("csr_scalar")).save(tmp_path / "K.sgk")
    assert isinstance(sparsegen.load(tmp_path / "K.sgk"), Kernel)
    assert main(["export", str(tmp_path / "K.sgk"), str(tmp_path / "out")]) == 0
    assert "kernel.cpp" in capsys.readouterr().out.splitlines()
    assert main(["export", str(tmp_path / "K.sgk"), str(tmp_path / "out")]) == 1
