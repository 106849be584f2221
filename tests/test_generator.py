"""The generator in torch and in NumPy are one function; it learns; the NumPy one checks what it is given."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sparsegen import gallery
from sparsegen.errors import SparsegenValueError
from sparsegen.model import decoder, encoder, recipe, statistics
from sparsegen.model.decoder import Decoder
from sparsegen.model.tokenizer import CPP, CUDA
from sparsegen.problem import Pattern, Problem

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from sparsegen.model import generator  # noqa: E402
from sparsegen.model.generator import Generator, tensors  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
TINY = recipe.load("tiny")
# Sizes that no two dimensions share; longer than the furthest relative position
ODD = replace(TINY, d_model=36, heads=3, d_kv=10, d_ff=52, encoder_layers=3, vocabulary=301, longest=150)


def batch(read: recipe.Recipe, lengths: list[tuple[int, int]], seed: int) -> encoder.Batch:
    """Random problems with so many (conditions, coordinates) each, padded as the encoder pads."""
    rng = np.random.default_rng(seed)
    B, C, T, S = len(lengths), max(c for c, _ in lengths), max(t for _, t in lengths), len(statistics.NAMES)
    coordinates = rng.uniform(-1, 1, (B, T, encoder.width(read.embedding))).astype(np.float32)
    conditions = rng.integers(1, len(encoder.CONDITIONS), (B, C))
    mask = np.ones((B, C + S + T), bool)
    for b, (c, t) in enumerate(lengths):
        conditions[b, c:] = 0
        mask[b, c:C] = mask[b, C + S + t :] = False
    numbers = rng.uniform(-2, 2, (B, S, statistics.STATISTIC)).astype(np.float32)
    return encoder.Batch(conditions, numbers, coordinates, mask)


def shaken(read: recipe.Recipe, seed: int) -> Generator:
    """A generator whose every parameter matters: the head, the norms and the critic too."""
    torch.manual_seed(seed)
    model = Generator(read).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3 if "norm" in name or "value" in name else 0.05)
    return model


@pytest.fixture(scope="module")
def model() -> Generator:
    return shaken(ODD, 7013)


LENGTHS = [(9, 20), (7, 31), (11, 1)]


def taught(model: Generator, given: encoder.Batch, rows: list[int], tokens: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return model(tensors(given), torch.from_numpy(tokens), torch.tensor(rows)).numpy()


@pytest.mark.parametrize("rows", [[0, 1, 2], [2, 0, 2, 1, 2, 0], [1], [2, 2, 0]], ids=str)
def test_torch_and_numpy_agree(model, rows):
    given = batch(ODD, LENGTHS, 31)
    tokens = np.random.default_rng(5).integers(0, ODD.vocabulary, (len(rows), ODD.longest))
    tokens[:, 0] = CPP
    expected = taught(model, given, rows, tokens)
    assert np.ptp(expected) > 1
    numpy_model = Decoder(ODD, model.weights())
    state = numpy_model.start(numpy_model.remember(given), np.array(rows))
    for t in range(ODD.longest):
        logits = numpy_model.step(state, tokens[:, t])
        assert logits.dtype == np.float32
        np.testing.assert_allclose(logits, expected[:, t], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("parts", [(150,), (1, 149), (1, 13, 1, 2, 100, 33)], ids=str)
def test_tokens_may_be_read_together_forgotten_and_read_again(model, parts):
    rows, rng = [2, 0, 1, 2], np.random.default_rng(7027)
    given = batch(ODD, LENGTHS, 31)
    tokens = rng.integers(0, ODD.vocabulary, (len(rows), ODD.longest))
    expected = taught(model, given, rows, tokens)
    numpy_model = Decoder(ODD, model.weights())
    state = numpy_model.start(numpy_model.remember(given), np.array(rows))
    done = 0
    for part in parts:
        wrong = rng.integers(0, ODD.vocabulary, (len(rows), min(part + 3, ODD.longest - done)))
        numpy_model.read(state, wrong)
        numpy_model.back(state, done)
        logits = numpy_model.read(state, tokens[:, done : done + part])
        np.testing.assert_allclose(logits, expected[:, done : done + part], atol=1e-4, rtol=1e-4)
        done += part
    assert state.position == done == ODD.longest
    numpy_model.back(state, done + 7)
    assert state.position == done


def test_a_fork_goes_its_own_way(model):
    """And what it came from goes on as if there were none."""
    rows, given = [0, 2], batch(ODD, LENGTHS, 37)
    tokens = np.random.default_rng(7043).integers(0, ODD.vocabulary, (3, 30))
    whole = np.stack([tokens[0], tokens[1], [*tokens[1, :11], *tokens[2, 11:]]])
    expected = taught(model, given, [0, 2, 2], whole)
    numpy_model = Decoder(ODD, model.weights())
    state = numpy_model.start(numpy_model.remember(given), np.array(rows))
    numpy_model.read(state, tokens[:2, :11])
    forked = numpy_model.fork(state, np.array([1]))
    for t in range(11, 30):
        np.testing.assert_allclose(numpy_model.step(forked, tokens[2:, t])[0], expected[2, t], atol=1e-4, rtol=1e-4)
        np.testing.assert_allclose(numpy_model.step(state, tokens[:2, t]), expected[:2, t], atol=1e-4, rtol=1e-4)
    alone = numpy_model.fork(forked, np.array([0]))
    assert alone is not forked and not np.shares_memory(alone.keys, forked.keys)


def test_what_is_dropped_does_not_change_what_is_kept(model):
    """Whether slots lie idle, are moved, permuted or repeated."""
    given = batch(ODD, LENGTHS, 37)
    rows = [0, 1, 1, 2, 0, 1, 2, 2, 0, 1, 1]
    rng = np.random.default_rng(11)
    tokens = rng.integers(0, ODD.vocabulary, (len(rows), 40))
    expected = taught(model, given, rows, tokens)
    numpy_model = Decoder(ODD, model.weights())
    state = numpy_model.start(numpy_model.remember(given), np.array(rows))
    alive = np.arange(len(rows))
    drops = {3: [0, 1, 2, 4, 5, 6, 7, 8, 9, 10], 5: [0, 1, 2, 3, 4, 5, 6, 8, 9], 9: [8, 1, 4, 2], 14: [3, 2, 1, 0]}
    drops |= {20: [1, 1, 3], 25: [0, 1, 2], 30: [2]}
    for t in range(40):
        logits = numpy_model.step(state, tokens[alive, t])
        assert logits.shape == (len(alive), ODD.vocabulary)
        np.testing.assert_allclose(logits, expected[alive, t], atol=1e-4, rtol=1e-4)
        if t in drops:
            state = numpy_model.keep(state, np.array(drops[t]))
            alive = alive[drops[t]]


def test_padding_does_not_matter(model):
    numpy_model = Decoder(ODD, model.weights())
    many = batch(ODD, LENGTHS, 41)
    alone = encoder.Batch(many.conditions[1:2], many.statistics[1:2], many.coordinates[1:2], many.mask[1:2])
    bare = alone.mask[0]
    conditions = alone.conditions[:, bare[: alone.conditions.shape[1]]]
    alone = encoder.Batch(conditions, alone.statistics, alone.coordinates, bare[bare][None])
    tokens = np.random.default_rng(13).integers(0, ODD.vocabulary, (20, 1))
    first = numpy_model.start(numpy_model.remember(many), np.array([1]))
    second = numpy_model.start(numpy_model.remember(alone), np.array([0]))
    changed = many.coordinates.copy()
    changed[2, 1:] += 5  # the third problem has one coordinate
    third = numpy_model.start(numpy_model.remember(replace(many, coordinates=changed)), np.array([2]))
    fourth = numpy_model.start(numpy_model.remember(many), np.array([2]))
    for token in tokens:
        a, b = numpy_model.step(first, token), numpy_model.step(second, token)
        # the relative positions of the encoder see padded conditions, so the two are alike and not equal
        assert np.isfinite(a).all() and np.isfinite(b).all()
        np.testing.assert_array_equal(numpy_model.step(third, token), numpy_model.step(fourth, token))


@pytest.mark.parametrize("name", ["small", "tiny"])
def test_recipes_agree(name):
    read = recipe.load(name)
    network = shaken(read, 7019)
    given = batch(read, [(12, read.tokens), (10, read.tokens)], 43)
    tokens = np.random.default_rng(17).integers(0, read.vocabulary, (2, 60))
    expected = taught(network, given, [0, 1], tokens)
    numpy_model = Decoder(read, network.weights())
    state = numpy_model.start(numpy_model.remember(given), np.arange(2))
    found = np.stack([numpy_model.step(state, tokens[:, t]) for t in range(60)], 1)
    np.testing.assert_allclose(found, expected, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("embedding", encoder.EMBEDDINGS)
def test_what_the_encoder_makes_is_taken(embedding):
    """Problems of any size beside texts that are for no matrix at all."""
    read = replace(ODD, embedding=embedding)
    network = shaken(read, 7039)
    matrices = [gallery.stencil2d(13, 11), gallery.uniform(70, 35, 210), gallery.uniform(3, 5, 0)]
    problems = [Problem("spmv", Pattern.of(matrix)) for matrix in matrices]
    structures = [encoder.encode(each, embedding, read.tokens) for each in problems]
    given = encoder.batch([*structures, encoder.pretraining("cpp", [], embedding)])
    tokens = np.random.default_rng(19).integers(0, read.vocabulary, (4, 12))
    expected = taught(network, given, [0, 1, 2, 3], tokens)
    numpy_model = Decoder(read, network.weights())
    state = numpy_model.start(numpy_model.remember(given), np.arange(4))
    found = np.stack([numpy_model.step(state, tokens[:, t]) for t in range(12)], 1)
    np.testing.assert_allclose(found, expected, atol=1e-4, rtol=1e-4)


def test_every_input_matters(model):
    """A control for the tests above: another matrix, another op, another statistic are other logits."""
    numpy_model = Decoder(ODD, model.weights())
    given = batch(ODD, [(9, 20)], 47)

    def logits(changed: encoder.Batch) -> np.ndarray:
        return numpy_model.step(numpy_model.start(numpy_model.remember(changed), np.array([0])), np.array([CUDA]))

    base = logits(given)
    conditions, numbers = given.conditions.copy(), given.statistics.copy()
    conditions[0, 3] = 1 + conditions[0, 3] % (len(encoder.CONDITIONS) - 1)
    numbers[0, -1, -1] += 1
    for changed in (
        replace(given, conditions=conditions),
        replace(given, statistics=numbers),
        replace(given, coordinates=given.coordinates + 1),
    ):
        assert np.abs(logits(changed) - base).max() > 1e-3


def test_shapes_are_those_of_the_network(model):
    assert {name: array.shape for name, array in model.weights().items()} == decoder.shapes(ODD)
    names = {name for name, _ in model.named_parameters()}
    assert names - set(generator.TIED) == set(decoder.shapes(ODD))
    assert generator.parameters(ODD) == sum(parameter.numel() for parameter in model.parameters())
    assert 3_000_000 < generator.parameters(recipe.load("small")) < 10_000_000


def test_buckets_are_those_of_transformers():
    from transformers.models.t5.modeling_t5 import T5Attention

    offsets = np.arange(-700, 701)
    for both in (False, True):
        expected = T5Attention._relative_position_bucket(torch.from_numpy(offsets), bidirectional=both)
        np.testing.assert_array_equal(decoder.buckets(offsets, both=both), expected)


def test_weights_go_from_one_network_to_another(model):
    other = Generator(ODD).eval()
    other.load(model.weights())
    for name, array in other.weights().items():
        np.testing.assert_array_equal(array, model.weights()[name])
    given, tokens = batch(ODD, LENGTHS, 53), np.full((3, 5), CPP)
    np.testing.assert_array_equal(taught(other, given, [0, 1, 2], tokens), taught(model, given, [0, 1, 2], tokens))


def test_values_come_beside_the_logits(model):
    given, tokens = tensors(batch(ODD, LENGTHS, 59)), torch.full((3, 6), CPP)
    with torch.no_grad():
        logits, values = model(given, tokens, with_values=True)
        assert values.shape == (3, 6)
        torch.testing.assert_close(logits, model(given, tokens))
    assert values.std() > 0
    fresh = Generator(ODD).eval()
    assert not fresh(given, tokens, with_values=True)[1].any()  # a critic that begins by expecting nothing


def test_a_later_token_changes_nothing_before_it(model):
    given, tokens = tensors(batch(ODD, LENGTHS, 61)), torch.randint(4, 300, (3, 30))
    changed = tokens.clone()
    changed[:, 20] += 1
    with torch.no_grad():
        difference = (model(given, tokens) - model(given, changed)).abs().amax((0, 2))
    assert difference[:20].max() < 1e-5 < difference[20:].min()


def test_it_begins_unsure_and_learns():
    torch.manual_seed(7027)
    network = Generator(TINY)
    given = tensors(batch(TINY, [(8, 16)] * 4, 67))
    texts = torch.randint(4, TINY.vocabulary, (4, 30))
    tokens = torch.cat([torch.full((4, 1), CPP), texts], 1)
    optimizer = torch.optim.AdamW(network.parameters(), lr=TINY.sft.learning_rate)
    losses = []
    for _ in range(60):
        logits = network(given, tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), texts.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert abs(losses[0] - np.log(TINY.vocabulary)) < 0.1
    assert losses[-1] < 0.7 * losses[0]
    for name, parameter in network.named_parameters():
        assert name.startswith("value") or (parameter.grad is not None and parameter.grad.abs().max() > 0), name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("head.weight"), r"weights without head\.weight"),
        (lambda w: w.update(more=np.zeros(3)), r"weights with more, which recipe tiny has not"),
        (lambda w: w.update({"value.bias": np.zeros(2)}), r"value\.bias is \(2,\); recipe tiny has \(1,\)"),
    ],
)
def test_weights_of_another_recipe_are_refused(model, change, message):
    weights = model.weights()
    change(weights)
    with pytest.raises(SparsegenValueError, match=message):
        Decoder(ODD, weights)
    with pytest.raises(SparsegenValueError, match=message):
        Generator(ODD).load(weights)


def test_misuse_is_one_clear_error(model):
    numpy_model = Decoder(ODD, model.weights())
    memory = numpy_model.remember(batch(ODD, LENGTHS, 71))
    for rows in (np.array([3]), np.array([-1]), np.array([], int), np.array([0.0]), np.zeros((2, 2), int)):
        with pytest.raises(SparsegenValueError, match="rows"):
            numpy_model.start(memory, rows)
    state = numpy_model.start(memory, np.array([0, 2]))
    with pytest.raises(SparsegenValueError, match="1 tokens for 2 samples"):
        numpy_model.step(state, np.array([CPP]))
    for _ in range(ODD.longest):
        numpy_model.step(state, np.array([CPP, CPP]))
    with pytest.raises(SparsegenValueError, match="150 tokens at most"):
        numpy_model.step(state, np.array([CPP, CPP]))
    numpy_model.back(state, 140)
    with pytest.raises(SparsegenValueError, match="150 tokens at most"):
        numpy_model.read(state, np.full((2, 11), CPP))
    with pytest.raises(SparsegenValueError, match="no samples"):
        numpy_model.keep(state, np.array([], int))


def test_the_decoder_needs_neither_torch_nor_transformers():
    heavy = {"torch", "transformers", "tokenizers"}
    code = f"import sys, sparsegen.model.decoder; print(sorted({heavy} & set(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert ran.stdout.strip() == "[]"
