"""Options that point at data too large to be shipped; the tests that need them skip where they are absent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("sparsegen", deadline=None)  # no test judges time
settings.load_profile("sparsegen")


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory) -> Iterator[Path]:
    """A cache and a home of the tests' own, whatever the user has."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("SPARSEGEN_CACHE_DIR", str(folder))
        patch.setenv("SPARSEGEN_HOME", str(tmp_path_factory.mktemp("home")))
        yield folder


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cases", metavar="DIR", help="folder of odd files (matrix_files/cases.tsv) and wrong kernels")
    parser.addoption("--matrices", metavar="DIR", help="folder of matrix files with their manifest.tsv")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for name, option, table in (
        ("matrix_case", "--cases", "matrix_files/cases.tsv"),
        ("manifest_row", "--matrices", "manifest.tsv"),
    ):
        if name in metafunc.fixturenames:
            folder = metafunc.config.getoption(option)
            rows = _table(Path(folder) / table) if folder else []
            skip = [pytest.param(None, marks=pytest.mark.skip(f"needs {option} DIR"), id=option)]
            metafunc.parametrize(name, [pytest.param(row, id=row["file"]) for row in rows] or skip)


def _table(path: Path) -> list[dict[str, str]]:
    """The rows of a tab-separated table, each with the folder it lies in."""
    heads, *lines = (line.split("\t") for line in path.read_text("utf-8").splitlines())
    return [{**dict(zip(heads, line, strict=False)), "folder": str(path.parent)} for line in lines]
