"""Examples to fine-tune on: which kernels they hold, which of them is the answer, and what a batch is made of."""

from __future__ import annotations

import itertools
import json
import os
import pickle
from collections import Counter
from dataclasses import replace

import numpy as np
import playback
import pytest

from sparsegen import candidate, composite
from sparsegen.errors import SparsegenValueError
from sparsegen.model import encoder, recipe
from sparsegen.model.encoder import CONDITIONS, TECHNIQUES, Structure
from sparsegen.model.tokenizer import END, START, Tokenizer
from sparsegen.record import Records
from sparsegen.train import corpus, examples, techniques
from sparsegen.train.corpus import Task
from sparsegen.train.examples import LABELS, Example, Kernel

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("tokenizers")
from sparsegen.train import sft

RECIPE = recipe.load("tiny")


def task(family: str = "block", number: int = 3, op: str = "spmv", k: int = 1) -> Task:
    return Task(f"synthetic:{family}:{number}", f"synthetic:{family}", False, op, k, "float64")


def line(of: Task, speeds: dict[str, float | None], **more) -> dict:
    """A line of a corpus with these template instances."""
    fields = ("matrix", "family", "held_out", "op", "k", "dtype", "facts")
    kernels = [
        {
            "label": label, "speedup": speedup, "kernel": label, "binary": "", "fault": "",
            "level": "TIMED" if speedup else "RAN",
        }
        for label, speedup in speeds.items()
    ]  # fmt: skip
    measured = {"nnz": 3001, "baselines": {"scipy": 9.0}, "best": "scipy", "spread": 0.01}
    return {"key": of.key, **{name: getattr(of, name) for name in fields}, **measured, "kernels": kernels, **more}


SPEEDS = {
    "csr_scalar values=full": 1.25, "sell_slice SLICE=8 SIGMA=1 BITS=16 values=full": 2.5,
    "csr_vector values=full": 2.0, "coo_runs values=full": None, "no_such_template values=full": 9.0,
}  # fmt: skip


def built(lines, kept, **changes) -> list[Example]:
    options = {"embedding": "windows", "tokens": 16, "variants": 2, "seed": 20263, **changes}
    return examples.build(lines, None, kept, **options)


# ---- which kernels


def test_an_example_holds_the_right_kernels_fastest_first(tmp_path):
    of = task()
    cuda, cpp = built([line(of, SPEEDS), {"key": "broken", "failed": "no file"}], tmp_path / "kept.npz")
    assert (cpp.task, cpp.language, cuda.task, cuda.language) == (of, "cpp", of, "cuda")
    assert [each.speedup for each in cpp.kernels] == [2.5, 2.0, 1.25] and cpp.best == 2.5
    for each, label in zip(
        cpp.kernels, ("sell_slice SLICE=8 SIGMA=1 BITS=16", "csr_vector", "csr_scalar"), strict=True
    ):
        instance = examples.instances("cpp")["spmv", f"{label} values=full"]
        assert each.key == instance.key == candidate.parse(each.text).key
        assert each.techniques == techniques.of(instance)
    assert len(cpp.structures) == 2
    first, second = cpp.structures
    assert not np.array_equal(first.coordinates, second.coordinates)  # the sampling rule has another seed
    assert np.array_equal(first.conditions, second.conditions)
    assert first.coordinates is cuda.structures[0].coordinates


@pytest.mark.parametrize(
    ("family", "op", "k"), [("dense_rows", "spmv", 1), ("block", "spmm", 32), ("banded", "spmv", 1)]
)
def test_cuda_kernels_hold_their_matrix(tmp_path, family, op, k):
    of = task(family, op=op, k=k)
    (cuda,) = built([line(of, {"coo_runs values=full": None})], tmp_path / "kept.npz")  # nothing is right in C++
    problem = corpus.problem(of, corpus.matrix(of, None), "cuda")
    assert problem.target == "cuda" and "target:cuda" in words(cuda.structures[0])
    assert 1 < len({each.key for each in cuda.kernels}) == len(cuda.kernels) <= examples.CUDA_KERNELS
    for each in cuda.kernels:
        found = candidate.parse(each.text, language="cuda")
        assert found.op == op and each.speedup is None
        assert composite.feasible(found, problem) is None


def test_problems_are_encoded_once_and_speeds_are_those_of_the_corpus(tmp_path, monkeypatch):
    kept, of, other = tmp_path / "kept.npz", task(), task("runs")
    _, before = built([line(of, SPEEDS)], kept)
    encoded = []
    real = encoder.encode
    monkeypatch.setattr(encoder, "encode", lambda problem, *a, **b: encoded.append(problem) or real(problem, *a, **b))
    again = line(of, {**SPEEDS, "csr_scalar values=full": 3.5})
    found = built([again, line(other, {"coo_runs values=full": None})], kept)
    assert [(each.task, each.language) for each in found] == [(of, "cuda"), (of, "cpp"), (other, "cuda")]
    assert found[1].best == 3.5 and found[1].kernels[0].text == before.kernels[-1].text
    assert len(encoded) == 2  # variants of the other's CUDA problem: in C++ nothing is right for it
    encoded.clear()
    assert len(built([again], kept)) == 2 and not encoded
    assert built([line(of, {"coo_runs values=full": None})], kept)[0].language == "cuda"


def test_what_was_encoded_before_is_the_same(tmp_path):
    kept = tmp_path / "kept.npz"
    lines = [line(task(), SPEEDS), line(task("runs"), {"coo_runs values=full": None}), line(task("mesh"), SPEEDS)]
    before = built(lines, kept)
    digest = json.loads(about_of(kept).tobytes())["digest"]
    again = list(examples.read(kept, digest).values())
    for one, other in zip(before, [each for each in again if each.kernels], strict=True):
        assert (one.task, one.language) == (other.task, other.language)
        if one.language == "cuda":
            assert one.kernels == other.kernels
        for a, b in zip(one.structures, other.structures, strict=True):
            for part in examples.PARTS:
                x, y = getattr(a, part), getattr(b, part)
                assert x.dtype == y.dtype and np.array_equal(x, y)
    assert again[0].structures[0].coordinates is again[1].structures[0].coordinates  # once on disk as well


class Trap:
    """Makes a folder where it is unpickled."""

    def __init__(self, place: str):
        self.place = place

    def __reduce__(self):
        return os.mkdir, (self.place,)


def about_of(kept) -> np.ndarray:
    with np.load(kept) as file:
        return file["about"]


def spoil(kept, how: str, trap) -> None:
    if how == "pickle":
        kept.write_bytes(pickle.dumps({"key": Trap(str(trap))}))
    elif how == "object array":
        np.savez(kept, about=about_of(kept), conditions=np.array([Trap(str(trap))], object), conditions_lengths=[1])
    elif how == "truncated":
        kept.write_bytes(kept.read_bytes()[:-700])
    elif how == "another archive":
        np.savez(kept, about=np.frombuffer(b"[]", np.uint8))
    else:
        kept.write_bytes(b"")


@pytest.mark.parametrize("how", ["pickle", "object array", "truncated", "another archive", "empty"])
def test_a_file_of_examples_that_is_damaged_is_made_again_and_none_is_executed(tmp_path, how, caplog):
    kept, trap = tmp_path / "kept.npz", tmp_path / "trap"
    before, whole = built([line(task(), SPEEDS)], kept), kept.read_bytes()
    spoil(kept, how, trap)
    again = built([line(task(), SPEEDS)], kept)
    assert not trap.exists() and "damaged" in caplog.text
    assert [each.task for each in again] == [each.task for each in before]
    assert np.array_equal(again[1].structures[0].coordinates, before[1].structures[0].coordinates)
    assert len(kept.read_bytes()) == len(whole) and [each.name for each in tmp_path.iterdir()] == ["kept.npz"]


def test_what_was_encoded_in_another_way_is_encoded_again(tmp_path, monkeypatch):
    kept, encoded = tmp_path / "kept.npz", []
    built([line(task(), SPEEDS)], kept)
    real = encoder.encode
    monkeypatch.setattr(encoder, "encode", lambda *a, **b: encoded.append(a) or real(*a, **b))
    for changes in ({"embedding": "raw"}, {"tokens": 8}, {"variants": 1}, {"seed": 20269}):
        encoded.clear()
        (_, cpp) = built([line(task(), SPEEDS)], kept, **changes)
        assert encoded and len(cpp.structures) == changes.get("variants", 2)
    newer = tmp_path / "encoder.py"
    newer.write_text("# other numbers for the same words")
    for module, name, value in ((encoder, "CONDITIONS", encoder.CONDITIONS[:-1]), (encoder, "__file__", str(newer))):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, value)
            assert examples.read(kept, examples._digest("windows", 8, 2, 20263)) == {}
    encoded.clear()
    assert built([line(task(), SPEEDS)], kept) and encoded


# ---- which is the answer


def kernel(name: str, speedup: float | None, used: frozenset[str] = frozenset()) -> Kernel:
    return Kernel(name, name, speedup, used)


MEASURED = [kernel("a", 2.0), kernel("b", 1.92), kernel("c", 1.0)]
PROPOSED = [kernel("p", None), kernel("q", None), kernel("r", None)]
EXAMPLE = Example(task(), "cpp", (), tuple(MEASURED))
DRAWS = 3000


def drawn(label: str, kernels: list[Kernel]) -> dict[str, float]:
    rng = np.random.default_rng(20264)
    counts = Counter(LABELS[label](EXAMPLE, kernels, rng).key for _ in range(DRAWS))
    return {each.key: counts[each.key] / DRAWS for each in kernels}


def close(found: dict[str, float], expected: list[float]) -> None:
    weights = np.array(expected) / sum(expected)
    assert list(found.values()) == pytest.approx(weights, abs=5 * 0.5 / DRAWS**0.5)


def test_any_is_whichever_right_kernel():
    close(drawn("any", MEASURED), [1, 1, 1])
    close(drawn("any", PROPOSED), [1, 1, 1])


def test_fastest_is_the_fastest():
    assert drawn("fastest", MEASURED) == {"a": 1, "b": 0, "c": 0}
    assert drawn("fastest", PROPOSED) == {"p": 1, "q": 0, "r": 0}
    assert LABELS["fastest"](EXAMPLE, MEASURED[1:], np.random.default_rng(7)).key == "b"


def test_softmax_is_by_speed():
    """1.92 is 4 % less than 2.0: 0.96 to the power of 25 is 0.36, and half as fast is never seen."""
    close(drawn("softmax", MEASURED), [1, 0.96**25, 0.5**25])
    close(drawn("softmax", PROPOSED), [4, 2, 1])
    assert drawn("softmax", MEASURED[2:]) == {"c": 1}


def test_one_family_in_twelve_is_watched_and_always_the_same():
    found = [Example(task(name), "cpp", (), ()) for name in corpus.families.names()]
    watched = {each.task.family for each in found if each.validation}
    assert 1 <= len(watched) < len(found) / 4
    for one, other in ((task("block", 1), task("block", 77)), (task("mesh"), task("mesh", 3, "spmm", 32))):
        assert Example(one, "cpp", (), ()).validation == Example(other, "cuda", (), ()).validation


# ---- what sft makes of them


def words(structure: Structure) -> set[str]:
    return {CONDITIONS[each] for each in structure.conditions}


FAMILY = next(name for name in corpus.families.names() if not Example(task(name), "cpp", (), ()).validation)
LONG = max(
    (written for written in examples.instances("cpp").values() if written.op == "spmv"), key=lambda c: len(c.source)
)
LABELLED = {  # label -> speed, over four techniques
    "csr_scalar values=full": 1.5, "csr_vector values=full": 1.75,
    "sell_slice SLICE=8 SIGMA=0 BITS=32 values=full": 2.0, LONG.label: 2.25,
}  # fmt: skip


@pytest.fixture(scope="module")
def learned() -> Tokenizer:
    texts = [*(k.text for k in examples.kernels_of(line(task(FAMILY), LABELLED)))]
    return Tokenizer.learn(texts * 2, 700)


@pytest.fixture
def batches(tmp_path, monkeypatch, learned):
    """batches(**changes of the config): what `sft.train` hands to `fit` as its draw, and the generator it trains."""
    learned.save(tmp_path / "tokenizer.json")
    folder, runs = tmp_path / "corpus", itertools.count()
    records = Records(folder / "measured.jsonl")
    for number in (1, 2):
        records.append(line(task(FAMILY, number), LABELLED))

    def of(**changes):
        longest = changes.pop("longest", 1000)
        sizes = replace(RECIPE, vocabulary=learned.size, longest=longest)
        out = tmp_path / f"run {next(runs)}"
        config = sft.SftConfig(sizes, str(folder), None, None, str(tmp_path / "tokenizer.json"), str(out))
        taken = []
        monkeypatch.setattr(sft, "fit", lambda generator, run, draw, *rest: taken.append(draw) or True)
        assert sft.train(replace(config, **changes)) is not None
        return taken[0]

    return of


def pairs(draw, learned, count: int = 40):
    """(structure, language, text, whether it is whole) of everything in some batches."""
    found = []
    for seed in range(7013, 7013 + count):
        structures, texts = draw(np.random.default_rng(seed))
        assert len(structures) == len(texts) == RECIPE.sft.batch
        whole = {ids[-1] == END for ids in texts}
        assert len(whole) == 1  # a batch is of headers, or of whole texts
        for structure, ids in zip(structures, texts, strict=True):
            language = {id: name for name, id in START.items()}[ids[0]]
            found.append((structure, language, learned.decode(ids), whole == {True}))
    return found


def test_a_batch_of_headers_ends_where_they_end(batches, learned):
    found = pairs(batches(), learned)
    heads = [text for *_, text, whole in found if not whole]
    assert len(heads) / len(found) == pytest.approx(sft.HEADERS, abs=5 * 0.5 / 40**0.5)
    for text in heads:
        assert text.rstrip().endswith("*/") and text.count("*/") == 1
    for _, language, text, whole in found:
        if whole:
            assert candidate.parse(text, language=language)
    assert any(text.startswith(head.rstrip()) for head in heads for *_, text, whole in found if whole)


def test_both_languages_are_drawn_and_said(batches, learned):
    found = pairs(batches(), learned)
    cuda = sum(language == "cuda" for _, language, _, _ in found)
    assert cuda / len(found) == pytest.approx(sft.CUDA_SHARE, abs=5 * 0.5 / len(found) ** 0.5)
    for structure, language, text, whole in found:
        assert (f"target:{'cuda' if language == 'cuda' else 'cpu'}") in words(structure)
        if whole:
            assert ("__global__" in text) == (language == "cuda")


def test_a_permitted_set_restricts_the_answer(batches, learned):
    restricted, answers = 0, set()
    for structure, language, text, whole in pairs(batches(label="fastest"), learned, 120):
        allowed = words(structure) & set(TECHNIQUES)
        restricted += allowed != set(TECHNIQUES)
        if whole:
            assert techniques.of(candidate.parse(text, language=language)) <= allowed
            if language == "cpp":
                answers.add((len(allowed), text))
    assert restricted / (120 * RECIPE.sft.batch) == pytest.approx(0.75 * sft.RESTRICTED, abs=0.06)  # the last is all
    fastest = {size: {text for count, text in answers if count == size} for size, _ in answers}
    assert len(fastest) > 1 and all(len(texts) == 1 for texts in fastest.values())
    assert len({text for texts in fastest.values() for text in texts}) > 1  # the answer changes with the set


def test_other_threads_are_said(batches, learned):
    said = Counter(
        word for each, *_ in pairs(batches(), learned) for word in words(each) if word.startswith("threads:")
    )
    total = sum(said.values())
    assert said["threads:1"] / total == pytest.approx(1 - sft.OTHER_THREADS, abs=5 * 0.5 / total**0.5)
    assert set(said) == {"threads:1", "threads:2", "threads:3-4", "threads:5-8", "threads:9+"}


def test_texts_that_are_too_long_are_left_out(batches, learned):
    def written(draw) -> set[str]:
        return {text for _, language, text, whole in pairs(draw, learned, 120) if whole and language == "cpp"}

    every = written(batches(label="any"))
    lengths = sorted(len(learned.encode(text)) + 2 for text in every)
    assert len(lengths) == len(LABELLED)
    kept = written(batches(label="any", longest=lengths[-2]))
    assert {len(learned.encode(text)) + 2 for text in kept} == set(lengths[:-1])
    with pytest.raises(SparsegenValueError, match="at most 20 tokens"):
        batches(longest=20)


def test_what_cannot_be_trained_on_is_one_clear_error(batches, tmp_path):
    with pytest.raises(SparsegenValueError, match="label is 'best'; expected one of any, fastest, softmax"):
        batches(label="best")
    with pytest.raises(SparsegenValueError, match="nothing to learn from"):
        batches(corpus=str(tmp_path / "empty"))
    with pytest.raises(SparsegenValueError, match="the stage before"):
        batches(pretrained=str(tmp_path / "nowhere"))


def test_a_fraction_of_the_problems(batches, learned):
    def seen(draw) -> int:
        return len({each.coordinates.tobytes() for each, *_ in pairs(draw, learned)})

    assert seen(batches()) == 2 * sft.VARIANTS and seen(batches(fraction=0.5)) == sft.VARIANTS


def test_held_out_families_are_not_even_looked_at(batches, tmp_path, monkeypatch):
    held = sorted(name for name in corpus.held_out_families() if not name.startswith("synthetic"))[0]
    records = Records(tmp_path / "corpus" / "measured.jsonl")
    for name, family, flag in (("x.mtx", "new:family", True), ("y.mtx", held, False), ("z.mtx", held, True)):
        records.append(line(Task(name, family, flag, "spmv", 1, "float64"), LABELLED))
    seen = []
    real = corpus.matrix
    monkeypatch.setattr(corpus, "matrix", lambda of, folder: seen.append(of) or real(of, folder))
    batches()
    assert {each.family for each in seen} == {f"synthetic:{FAMILY}"}


def test_the_watch_counts_known_answers_and_their_speed(monkeypatch):
    """The model writes csr_scalar for everything: half as fast as the best, the best, and not known to be right."""
    known = {each.label: each for each in examples.instances("cpp").values() if each.op == "spmv"}
    scalar, vector = ((known[f"csr_{name} values=full"]) for name in ("scalar", "vector"))
    text, other = (examples.tokenizer.written(each) for each in (scalar, vector))
    structure = encoder.pretraining("cpu", [])

    def example(number: int, *kernels: Kernel, language: str = "cpp") -> Example:
        return Example(task(FAMILY, number), language, (structure,), kernels)

    found = [
        example(1, Kernel(other, vector.key, 3.0, frozenset()), Kernel(text, scalar.key, 1.5, frozenset())),
        example(2, Kernel(text, scalar.key, 1.2, frozenset())),
        example(3, Kernel(other, vector.key, 2.0, frozenset())),
        example(4, Kernel("no C++", "0", None, frozenset()), language="cuda"),
    ]

    class Nothing:
        def weights(self) -> dict:
            return {}

    def measured(played: str) -> dict:
        monkeypatch.setattr(sft, "Decoder", lambda sizes, weights: playback.Playback([played]))
        return sft.watch(found, replace(RECIPE, longest=4000), playback.Characters())(Nothing(), 7)

    assert measured(text) == pytest.approx({"watched": 3, "known": 2 / 3, "fraction": 0.5**0.5})
    assert measured("no kernel") == {"watched": 3, "known": 0.0, "fraction": 0.0}
    assert sft.watch([], RECIPE, playback.Characters())(Nothing(), 7) == {"watched": 0, "known": 0.0, "fraction": 0.0}
