"""Problems to learn from: the split by family, facts, and measuring each once."""

from __future__ import annotations

import itertools

import pytest
from support import template

from sparsegen import gallery, matrices, paths, templates
from sparsegen.errors import SparsegenValueError
from sparsegen.problem import Facts
from sparsegen.record import Records
from sparsegen.train import corpus
from sparsegen.train.corpus import Task

TINY = paths.data("matrices") / "tiny"


@pytest.fixture
def folder(tmp_path):
    """Five matrices of four families, one of them held out, one complex, one too small."""
    rows = ["file\tfamily\tnnz_full\tfield"]
    held = sorted(name for name in corpus.held_out_families() if not name.startswith("synthetic"))[0]
    source = (TINY / "diffusion2d.mtx").read_text()
    for name, family, nnz, field in (
        ("a.mtx", "somewhere:a", 12255, "real"), ("b.mtx", held, 12255, "real"),
        ("c.mtx", "somewhere:c", 12255, "complex"),
        ("d.mtx", "somewhere:d", 13, "real"), ("e.mtx", "somewhere:e", 2_000_000, "pattern"),
    ):  # fmt: skip
        (tmp_path / name).write_text(source)
        rows.append(f"{name}\t{family}\t{nnz}\t{field}")
    (tmp_path / "manifest.tsv").write_text("\n".join(rows) + "\n")
    return tmp_path


def test_no_family_is_learned_from_and_evaluated_on(folder):
    learned = corpus.tasks(folder, 2, False, 7013)
    evaluated = corpus.tasks(folder, 2, True, 7013)
    assert not {each.family for each in learned} & {each.family for each in evaluated}
    assert {each.matrix for each in evaluated if each.matrix.endswith("mtx")} == {"b.mtx"}
    assert {each.matrix for each in learned if each.matrix.endswith("mtx")} == {"a.mtx", "e.mtx"}
    assert len({each.key for each in learned}) == len(learned)


def test_every_matrix_has_the_three_problems_and_large_ones_no_spmm_to_learn_from(folder):
    wanted = {(each.op, each.k, each.dtype) for each in corpus.tasks(folder, 0, False, 7013) if each.matrix == "a.mtx"}
    assert set(corpus.CORE) <= wanted and len(wanted) <= 4
    large = [each for each in corpus.tasks(folder, 0, False, 7013) if each.matrix == "e.mtx"]
    assert {each.op for each in large} == {"spmv"}


def test_a_folder_without_a_manifest_is_read_file_by_file():
    found = {name: (family, nnz) for name, family, nnz in corpus.real(TINY)}
    for name, (family, nnz) in found.items():
        assert family == name.split(".")[0] and corpus.LEAST <= nnz <= corpus.MOST
        assert nnz == matrices.info(TINY / name).nnz
    assert "diffusion2d.mtx" in found


def test_a_damaged_file_of_a_folder_without_a_manifest_is_left_out_and_said(tmp_path, caplog):
    source = (TINY / "diffusion2d.mtx").read_bytes()
    (tmp_path / "good.mtx").write_bytes(source)
    for name, content in (("cut.mtx", source[: len(source) // 2]), ("bad.mtx", b"nothing"), ("z.mtx.gz", b"\x1f\x8b3")):
        (tmp_path / name).write_bytes(content)
    (tmp_path / "folder.mtx").mkdir()
    assert [name for name, *_ in corpus.real(tmp_path)] == ["good.mtx"]
    assert all(name in caplog.text for name in ("cut.mtx", "bad.mtx", "z.mtx.gz", "folder.mtx"))
    assert {each.matrix for each in corpus.tasks(tmp_path, 0, False, 7013)} == {"good.mtx"}


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        (b"file\tfamily\tnnz_full\na.mtx\tx\t12255\n", 2),
        (b"file\tfamily\tnnz_full\tfield\na.mtx\tx\t12255\treal\nb.mtx\tx\tmany\treal\n", 3),
        (b"file\tfamily\tnnz_full\tfield\na.mtx\tx\n", 2),
        (b"file\tfamily\tnnz_full\tfield\n\xff\xfe\n", 0),
    ],
)
def test_a_manifest_that_lacks_something_is_one_clear_error(folder, wrong, line):
    (folder / "manifest.tsv").write_bytes(wrong)
    with pytest.raises(SparsegenValueError, match=rf"manifest\.tsv, line {line}: .*expected the columns file, family"):
        corpus.tasks(folder, 0, False, 7013)


@pytest.mark.parametrize(
    ("facts", "dtype", "expected"),
    [
        ("none", "float32", Facts()),
        ("exact_f32", "float64", Facts(exact_f32=True)),
        ("constant", "float32", Facts(constant=True)),
    ],
)
def test_values_obey_the_facts_that_the_problem_declares(facts, dtype, expected):
    task = Task("synthetic:stencil2d:3", "synthetic:stencil2d", False, "spmv", 1, dtype, facts)
    A = corpus.matrix(task, None)
    problem = corpus.problem(task, A)
    assert A.dtype == dtype and problem.dtype == A.dtype
    assert problem.facts == expected and not expected.broken_by(A.data) and problem.threads == 1


def test_a_real_matrix_without_its_folder_is_one_clear_error():
    with pytest.raises(SparsegenValueError, match="--matrices"):
        corpus.matrix(Task("nowhere.mtx", "nowhere", False, "spmv", 1, "float64"), None)


def test_collecting_measures_each_problem_once_and_goes_on_where_it_was_cut(tmp_path, monkeypatch):
    asked, propose = [], templates.propose

    def few(problem):
        asked.append(problem.key)
        return itertools.islice(propose(problem), 3)

    monkeypatch.setattr(corpus.templates, "propose", few)
    tasks = [
        Task(f"synthetic:{name}:5", f"synthetic:{name}", False, "spmv", 1, "float64") for name in ("runs", "block")
    ]
    broken = Task("missing.mtx", "missing", False, "spmv", 1, "float64")
    corpus.collect([tasks[0], broken], tmp_path, Records(tmp_path / "measured.jsonl"), 7013)
    with open(tmp_path / "measured.jsonl", "a") as file:
        file.write('{"key": "cut sho')
    records = Records(tmp_path / "measured.jsonl")
    corpus.collect([tasks[0], broken, tasks[1]], tmp_path, records, 7013)
    assert len(asked) == 2
    again = Records(tmp_path / "measured.jsonl").known
    assert set(again) == {tasks[0].key, broken.key, tasks[1].key}
    assert "missing.mtx" in again[broken.key]["failed"]
    line = again[tasks[1].key]
    assert corpus.task_of(line) == tasks[1]
    assert line["best"] in line["baselines"] and len(line["kernels"]) == 3
    fastest = min(line["kernels"], key=lambda each: each["us"])
    assert fastest["level"] == "TIMED" and fastest["raced"]
    ratio = line["baselines"][line["best"]] / fastest["us"]
    assert fastest["speedup"] == pytest.approx(ratio, rel=0.5)  # a median of ratios, not a ratio of medians


def test_operands_beyond_memory_are_not_measured(tmp_path, monkeypatch):
    """Ten million rows with few entries and 32 columns would be gigabytes of B and C."""
    monkeypatch.setattr(corpus, "MOST_NUMBERS", 5_000)
    task = Task("synthetic:runs:5", "synthetic:runs", False, "spmm", 32, "float64")
    records = Records(tmp_path / "measured.jsonl")
    corpus.collect([task], None, records, 7013)
    assert "expected at most 5000" in records.known[task.key]["failed"]


def test_the_papers_json_lines_are_written_and_read(tmp_path):
    A, kernel = gallery.block(13, 11, 2, 3), template("csr_scalar", values="full")
    corpus.write_paper([(A, kernel)], tmp_path / "pairs.jsonl")
    ((B, format, code),) = corpus.read_paper(tmp_path / "pairs.jsonl")
    assert B.shape == A.shape and ((A != 0) != B).nnz == 0
    assert format == "csr" and "STORE" in code


@pytest.mark.parametrize(
    "line", ["{", '{"rows": [1]}', '{"rows": [5], "cols": [0], "shape": [2, 2], "format": "CSR", "code": ""}']
)
def test_a_bad_line_of_the_papers_format_is_named(tmp_path, line):
    (tmp_path / "pairs.jsonl").write_text(line + "\n")
    with pytest.raises(SparsegenValueError, match="line 1"):
        list(corpus.read_paper(tmp_path / "pairs.jsonl"))
