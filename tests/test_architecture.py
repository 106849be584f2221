"""The rules of the tree: imports point down, heavy libraries stay where they belong, files stay readable."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "sparsegen"
LAYERS = """
    errors
    paths problem verdict timing arena model
    files formats ops canonical cache operands nvrtc mkl_library model.entries model.recipe
    readers gallery values checks fence explain model.statistics model.windows
    matrices candidate model.encoder
    inputs composite model.tokenizer model.decoder model.expression
    prelude templates model.generator
    metrics model.guesses
    screen model.checkpoint
    targets baselines model.vocabulary
    bandwidth
    worker evaluate record model.header model.body
    binding search model.grammar
    report model.sample
    kernel artifact model.beam
    model.proposal
    proposers
    store engine
    __init__
    judge doctor train train.rewards train.techniques train.policy train.families train.run
    train.measure train.texts train.log train.fit
    train.corpus
    train.lines
    train.examples train.verdicts
    train.pretrain train.sft train.rl
    train.publish
    __main__ train.__main__
"""  # lowest first; a module imports from the lines above its own; a folder is one name, its files may have their own
UPWARD = {  # imports inside functions that point up, and why
    ("kernel", "engine"): "a transposed kernel is searched for on first use",
    ("kernel", "store"): "save is a method",
    ("artifact", "store"): "save is a method",
}
NO_SIBLINGS = ("formats", "ops", "targets", "baselines")
EVERYWHERE = {"numpy", "scipy", "sparsegen"}
ONLY_IN = {
    "cuda": {"nvrtc", "targets.cuda"},
    "cupy": {"baselines.cupy", "baselines.cusparse"},
    "cupyx": {"baselines.cupy", "baselines.cusparse"},
    "fast_matrix_market": {"readers.matrix_market"},
    "h5py": {"readers.matlab"},
    "numba": {"baselines.numba"},
    "nvmath": {"baselines.cusparse"},
    "platformdirs": {"paths"},
    "pynvml": {"targets.cuda"},
    "safetensors": {"model.checkpoint"},
    "tokenizers": {"model.tokenizer"},
    "transformers": {"model.generator"},
    "torch": {
        "baselines.torch",
        "model.generator",
        "train.fit",
        "train.policy",
        "train.rl",
        "train.run",
        "train.texts",
    },
    "tqdm": {"__main__", "train.corpus", "train.examples", "train.fit", "train.rl"},
}
NOT_AT_IMPORT = {
    "torch", "cupy", "transformers", "cuda", "numba", "h5py", "fast_matrix_market", "tqdm", "nvmath", "mkl", "sparse",
    "tokenizers", "safetensors",
}  # fmt: skip
MOST_LINES = 400

RANK = {name: rank for rank, line in enumerate(LAYERS.split("\n")) for name in line.split()}
FILES = sorted(PACKAGE.rglob("*.py"))


def module(file: Path) -> str:
    """sparsegen/formats/csr.py -> formats.csr; the __init__ of a folder is the folder."""
    name = ".".join(file.relative_to(PACKAGE).with_suffix("").parts)
    return name.removesuffix(".__init__")


MODULES = {module(file) for file in FILES}


def imports(file: Path) -> list[tuple[str, bool]]:
    """(dotted name, whether inside a function) of all a file imports: a and a.b for `from a import b`.

    The package itself, in `import sparsegen`, is sparsegen.__init__.
    """
    found: list[tuple[str, bool]] = []

    def visit(node: ast.AST, inside: bool) -> None:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            found.extend(("sparsegen.__init__" if name == "sparsegen" else name, inside) for name in names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: a relative import"
            found.append((str(node.module), inside))
            found.extend((f"{node.module}.{alias.name}", inside) for alias in node.names)
        for child in ast.iter_child_nodes(node):
            visit(child, inside or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))

    visit(ast.parse(file.read_text()), False)
    return found


def own_imports(file: Path) -> list[tuple[str, bool]]:
    """(module of this package, whether inside a function)."""
    names = [(name.removeprefix("sparsegen."), late) for name, late in imports(file) if name.startswith("sparsegen.")]
    return [(name, late) for name, late in names if name in MODULES]


def layer(name: str) -> str:
    """The word of LAYERS that a module goes by: its own, else its folder's."""
    return name if name in RANK else name.split(".")[0]


def test_every_module_has_a_layer():
    assert {layer(name) for name in MODULES} - set(RANK) == set()


def test_imports_point_down():
    upward = set()
    for file in FILES:
        here = module(file)
        for name, late in own_imports(file):
            if layer(name) != layer(here) and RANK[layer(name)] >= RANK[layer(here)]:
                assert late, f"{here} imports {name}, which lies above it"
                upward.add((here, name))
    assert upward == set(UPWARD)


@pytest.mark.parametrize("folder", NO_SIBLINGS)
def test_siblings_do_not_know_each_other(folder):
    for file in sorted((PACKAGE / folder).glob("*.py")):
        for name, _ in own_imports(file):
            assert not name.startswith(f"{folder}."), f"{module(file)} imports its sibling {name}"


def test_libraries_stay_in_their_files():
    for file in FILES:
        for name, _ in imports(file):
            library = name.split(".")[0]
            if library not in EVERYWHERE and library not in sys.stdlib_module_names:
                assert module(file) in ONLY_IN.get(library, set()), f"{module(file)} imports {library}"


def test_importing_the_package_loads_nothing_heavy():
    code = "import sys, sparsegen; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = set(ran.stdout.split())
    assert "sparsegen" in loaded
    assert loaded & NOT_AT_IMPORT == set()


@pytest.mark.parametrize("file", FILES, ids=module)
def test_files_are_readable(file):
    text = file.read_text()
    assert ast.get_docstring(ast.parse(text)), "a module says in its docstring what it is"
    assert text.count("\n") <= MOST_LINES


def tracked() -> list[Path]:
    try:
        ran = subprocess.run(["git", "ls-files", "-z"], capture_output=True, text=True, check=True, cwd=ROOT)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    return [ROOT / name for name in ran.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_nothing_unfinished_and_no_paths_of_one_machine():
    wrong = re.compile(r"(?<![\w.~])/(?:w" r"ork|ro" r"ot|home/\w+)/|\b(?:TO" r"DO|FIX" r"ME|X" r"XX)\b")
    for file in tracked():
        for number, line in enumerate(file.read_bytes().decode("utf-8", "replace").splitlines(), 1):
            assert not wrong.search(line), f"{file.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
