"""The README does what it says: its example and its commands run, its tree is the tree."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from sparsegen import nvrtc
from sparsegen.targets import cpu

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
EXAMPLE = next(block for kind, block in BLOCKS if kind == "python")
OUTPUT = next(block for kind, block in BLOCKS if kind == "text")
SHELL = [line.split("#")[0].strip() for kind, block in BLOCKS if kind == "sh" for line in block.splitlines()]
LISTED = (  # with a line for each file
    "readers", "screen", "ptx", "formats", "ops", "targets", "baselines", "batch", "model", "train",
)  # fmt: skip


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """A folder where the README's relative paths hold, with a cache of its own."""
    for folder in ("matrices", "cpu_templates", "cuda_templates"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    monkeypatch.setenv("SPARSEGEN_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path


def ran(place: Path, *command: str) -> str:
    result = subprocess.run([sys.executable, *command], cwd=place, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, f"{command}: {result.stderr}"
    return result.stdout


@pytest.mark.skipif(cpu.available() is not None, reason="the output shown is that of a compiled kernel")
def test_the_example_prints_what_is_shown(place):
    found, shown = ran(place, "-c", EXAMPLE).splitlines(), OUTPUT.splitlines()
    assert found[:2] == [found[0], shown[1]]  # the structure of the matrix is the same everywhere
    assert found[0].split(": ")[0] == shown[0].split(": ")[0]
    assert found[-1].split(", ")[0] == shown[-1].split(", ")[0] == "cg: failed = 0"
    assert float(found[-1].split()[-1]) < 1.1e-10


def test_the_commands_run(place):
    commands = [shlex.split(line) for line in SHELL if line.startswith("sparsegen ")]
    assert len(commands) >= 6
    for command in commands:
        if "--arch" not in command or nvrtc.available() is None:
            assert ran(place, "-m", *command)


def test_the_make_commands_exist():
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {line.split()[1] for line in SHELL if line.startswith("make ")} <= set(targets)


def tree() -> list[str]:
    """Paths of the tree section."""
    block = TEXT.split("## The tree")[1].split("```")[1]
    paths, folder = [], ""
    for line in block.splitlines()[1:]:
        name = line.split()[0]
        paths.append(folder + name if line.startswith(" ") else name)
        folder = folder if line.startswith(" ") else name
    return paths


def test_the_tree_is_the_tree():
    paths = tree()
    assert len(set(paths)) == len(paths)
    assert [path for path in paths if not (ROOT / path).exists()] == []
    package = ROOT / "sparsegen"
    modules = {f"sparsegen/{file.name}" for file in package.glob("*.py")} | {f"sparsegen/{name}/" for name in LISTED}
    assert modules <= set(paths)
    folders = {file.parent.name for file in package.glob("*/__init__.py")}
    assert folders <= set(LISTED)


def test_paths_and_variables_that_are_named_exist():
    files = re.findall(r"`(?:python )?((?:experiments|sparsegen|matrices|tests)/[\w./]*)", TEXT)
    assert files
    for name in files:
        assert name == "experiments/results/" or name.endswith("/") or (ROOT / name).exists(), name
    sources = "".join(file.read_text() for file in (ROOT / "sparsegen").rglob("*.py"))
    for variable in re.findall(r"`(SPARSEGEN_\w+|OMP_\w+)`", TEXT):
        assert f'"{variable}"' in sources
