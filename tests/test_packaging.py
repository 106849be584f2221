"""What a wheel must carry: every package, every data folder, and pins for what the Makefile installs."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from sparsegen import __version__, paths

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SETUPTOOLS = PROJECT["tool"]["setuptools"]
DATA = ("cpu_templates", "cuda_templates", "matrices", "models")


def test_every_package_is_listed():
    packages = {".".join(file.parent.relative_to(ROOT).parts) for file in (ROOT / "sparsegen").rglob("*.py")}
    listed = set(SETUPTOOLS["packages"])
    assert {name for name in listed if not name.startswith("sparsegen._data")} == packages


@pytest.mark.parametrize("folder", [name for name in DATA if (ROOT / name).is_dir()])
def test_every_data_file_is_in_the_wheel(folder):
    name = f"sparsegen._data.{folder}"
    assert name in SETUPTOOLS["packages"]
    assert SETUPTOOLS["package-dir"][name] == folder
    carried = {file for pattern in SETUPTOOLS["package-data"][name] for file in (ROOT / folder).glob(pattern)}
    assert carried == {file for file in (ROOT / folder).rglob("*") if file.is_file()}
    assert paths.data(folder) == ROOT / folder


def test_every_header_of_an_extension_makes_it_again():
    for extension in SETUPTOOLS["ext-modules"]:
        folder = (ROOT / extension["sources"][0]).parent
        assert {ROOT / name for name in extension.get("depends", [])} == set(folder.glob("*.h"))


def test_version_is_said_once_more_and_the_same():
    assert PROJECT["project"]["version"] == __version__


def test_everything_the_makefile_installs_is_pinned():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][0-9.]*", pin) for pin in pins), "names with exact public versions"
    pinned = {pin.split("==")[0].lower() for pin in pins}
    extras = set(re.findall(r"[a-z]+", " ".join(re.findall(r"extras = (.*)", (ROOT / "Makefile").read_text()))))
    needed = list(PROJECT["project"]["dependencies"])
    for extra in extras:
        needed += PROJECT["project"]["optional-dependencies"][extra]
    assert {re.match(r"[A-Za-z0-9._-]+", each)[0].lower() for each in needed} <= pinned
