"""Metrics: hand-worked numbers, and what a wrong sort order would give."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsegen import metrics, templates
from sparsegen.candidate import instances
from sparsegen.errors import SparsegenValueError


def test_pass_at_k_by_hand():
    assert metrics.pass_at_k([[True, False, False, False]], 1) == pytest.approx(0.25)
    assert metrics.pass_at_k([[True, True, False, False]], 2) == pytest.approx(5 / 6)  # 1 - C(2,2) / C(4,2)
    assert metrics.pass_at_k([[True, False], [False, False]], 1) == pytest.approx(0.25)
    assert metrics.build_at_k([[True, True], [False, True]], 1) == pytest.approx(0.75)
    assert metrics.pass_at_k([[False] * 999 + [True]], 1000) == 1.0  # binomials beyond float64


@given(st.lists(st.booleans(), min_size=1, max_size=7), st.integers(1, 7))
def test_pass_at_k_is_the_mean_over_all_draws(passed, k):
    if k > len(passed):
        with pytest.raises(SparsegenValueError, match=f"k is {k}"):
            metrics.pass_at_k([passed], k)
        return
    drawn = [any(each) for each in itertools.combinations(passed, k)]
    assert metrics.pass_at_k([passed], k) == pytest.approx(sum(drawn) / len(drawn))


def test_speedup_at_k_by_hand():
    """1, 2, 4, two of three: pairs have the best 2, 4, 4, on average 10/3. The wrong order gives 1, 1, 2: 4/3."""
    assert metrics.speedup_at_k([[4.0, 1.0, 2.0]], 2) == pytest.approx(10 / 3)
    assert metrics.speedup_at_k([[1.0, 2.0, 4.0]], 1) == pytest.approx(7 / 3)
    assert metrics.speedup_at_k([[2.0, 1.0, 4.0]], 3) == 4.0
    assert metrics.speedup_at_k([[4.0, 1.0, 2.0], [1.0, 1.0, 1.0]], 2) == pytest.approx(13 / 6)
    assert metrics.efficiency_at_k([[4.0, 1.0, 2.0]], 2, threads=4) == pytest.approx(10 / 12)


def test_failures_count():
    """None, 3 and None: 3 is drawn in two pairs of three."""
    assert metrics.speedup_at_k([[None, 3.0, None]], 2) == pytest.approx(2.0)
    assert metrics.speedup_at_k([[None, 3.0, None]], 2, failure=1.0) == pytest.approx(7 / 3)
    assert metrics.speedup_at_k([[None, 0.5]], 2, failure=1.0) == 1.0  # the fallback is faster
    assert metrics.speedup_at_k([[None, None]], 1) == 0.0


@given(st.lists(st.none() | st.floats(0, 100), min_size=1, max_size=7), st.data())
def test_speedup_at_k_is_the_mean_best_of_all_draws(speedups, data):
    k = data.draw(st.integers(1, len(speedups)))
    best = [max(each or 0.0 for each in drawn) for drawn in itertools.combinations(speedups, k)]
    assert metrics.speedup_at_k([speedups], k) == pytest.approx(sum(best) / len(best))


def test_what_cannot_be_summed_up_is_refused():
    for wrong in ([[float("nan")]], [[float("inf"), 1.0]]):
        with pytest.raises(SparsegenValueError, match="finite"):
            metrics.speedup_at_k(wrong, 1)
    for call in (lambda: metrics.pass_at_k([], 1), lambda: metrics.speedup_at_k([], 1)):
        with pytest.raises(SparsegenValueError, match="no problems"):
            call()
    with pytest.raises(SparsegenValueError, match="k is 0"):
        metrics.speedup_at_k([[1.0]], 0)
    for wrong in ([], [1.0, -1.0], [float("nan")]):
        with pytest.raises(SparsegenValueError, match="geometric mean"):
            metrics.geomean(wrong)
    for wrong in ([], [0.0, 1.0], [float("inf")]):
        with pytest.raises(SparsegenValueError, match="ratios"):
            metrics.bootstrap(wrong)
    with pytest.raises(SparsegenValueError, match="1 cluster labels for 2"):
        metrics.bootstrap([1.0, 2.0], ["one"])


def test_times_and_threads_that_are_none_are_refused():
    for time in (0.0, -1.0, float("nan"), float("inf")):
        for call in (
            lambda: metrics.gflops(2e6, time),  # noqa: B023
            lambda: metrics.fraction_of_optimum([3.0, time], [1.0, 1.0]),  # noqa: B023
            lambda: metrics.fraction_of_optimum([3.0, None], [1.0, time]),  # noqa: B023
        ):
            with pytest.raises(SparsegenValueError, match="a time of"):
                call()
    with pytest.raises(SparsegenValueError, match="threads is 0"):
        metrics.efficiency_at_k([[1.0]], 1, threads=0)
    for changes in ({"repeats": 0}, {"level": 1.0}, {"level": 0.0}):
        with pytest.raises(SparsegenValueError, match="repeats = "):
            metrics.bootstrap([1.0, 2.0], **changes)


def test_small_figures_by_hand():
    assert metrics.gflops(2e6, 500.0) == pytest.approx(4.0)
    assert metrics.geomean([1.0, 4.0]) == pytest.approx(2.0)
    assert metrics.geomean([0.0, 4.0]) == 0.0
    np.testing.assert_allclose(metrics.fraction_of_optimum([10.0, None, 4.0], [5.0, 5.0, 5.0]), [0.5, 0.0, 1.25])


def test_bootstrap_by_hand():
    """Two problems, 1 and 4: the mean of a draw is 1, 2 or 4, the outer two a quarter of the time each."""
    assert metrics.bootstrap([1.0, 4.0]) == pytest.approx((2.0, 1.0, 4.0))
    assert metrics.bootstrap([1.0, 4.0], level=0.2) == pytest.approx((2.0, 2.0, 2.0))
    assert metrics.bootstrap([3.0, 3.0, 3.0]) == pytest.approx((3.0, 3.0, 3.0))


def test_bootstrap_covers():
    """Log-normal ratios: a standard error of 0.1 gives an interval of 1.96 of it to both sides."""
    rng = np.random.default_rng(20262)
    ratios = np.exp(0.2 + rng.standard_normal(397))
    found = metrics.bootstrap(ratios)
    error = np.log(ratios).std(ddof=1) / np.sqrt(397)
    expected = np.log(found.value) + np.array([-1.96, 1.96]) * error
    np.testing.assert_allclose(np.log([found.low, found.high]), expected, atol=0.01)
    assert found == metrics.bootstrap(ratios) != metrics.bootstrap(ratios, seed=7)


def test_clusters_widen_the_interval():
    """Ten copies of each ratio know no more than one of each."""
    rng = np.random.default_rng(20263)
    ratios = np.exp(rng.standard_normal(37))
    copies, matrix = np.repeat(ratios, 10), np.repeat(np.arange(37), 10)
    one, clustered, naive = (metrics.bootstrap(*each) for each in ((ratios,), (copies, matrix.tolist()), (copies,)))
    assert clustered == pytest.approx(one)
    assert np.log(naive.high / naive.low) < 0.5 * np.log(one.high / one.low)


@pytest.mark.parametrize("language", ["cpp", "cuda"])
def test_templates_have_their_own_schedules(language):
    for template in templates.load(language):
        assert {metrics.schedule(each) for each in instances(template)} == {template.name}
    texts = [(each.op, metrics.tokens(each)) for each in templates.load(language)]
    assert len(set(texts)) == len(texts)


def renamed(candidate, **names):
    """Names replaced in the source, the launches and the parameters."""

    def of(text: str) -> str:
        return re.sub(r"\w+", lambda found: names.get(found.group(), found.group()), text)

    def launch(each):
        return replace(each, **{field: of(getattr(each, field)) for field in ("entry", "items", "grid", "block")})

    parts = tuple(replace(part, launches=tuple(map(launch, part.launches))) for part in candidate.parts)
    params = {of(name): value for name, value in candidate.params.items()}
    return replace(candidate, source=of(candidate.source), parts=parts, params=params, name="")


def test_names_comments_and_space_do_not_make_a_schedule():
    vector = next(instances(templates.get("csr_vector")))
    other = renamed(vector, row="r", p="at", past="stop", rest="sum", sum="wide", spmv="product")
    other = replace(other, source=other.source.replace("{", " {  // a comment\n"))
    assert other.source != vector.source and metrics.schedule(other) == "csr_vector"
    lanes = next(instances(templates.get("csr_vector", language="cuda")))
    assert metrics.schedule(renamed(lanes, THREADS_PER_ROW="SHARE", BLOCK="COUNT", end="past")) == "csr_vector"
    merge = next(instances(templates.get("csr_merge", language="cuda")))
    assert metrics.schedule(renamed(merge, rows="count", row="line", TILE="STEPS", carry="left")) == "csr_merge"
    split = next(instances(templates.get("dense_rows_slice")))
    assert metrics.schedule(renamed(split, sum="total_of", p="q", dense="long_rows")) == "dense_rows_slice"


def test_names_that_are_swapped_make_another():
    dense = next(instances(templates.get("csr_scalar")))
    other = replace(dense, source=dense.source.replace("STORE(y, row, sum)", "STORE(y, sum, row)"))
    assert metrics.schedule(other) == "new:csr_scalar"


def test_new_schedules_name_the_nearest():
    slices = next(instances(templates.get("sell_slice")))
    fewer = replace(slices, source=slices.source.replace("first = slices[slice], past", "past"))
    assert fewer.source != slices.source and metrics.schedule(fewer) == "new:sell_slice"
    launch = replace(slices.parts[0].launches[0], items="m")
    other = replace(slices, parts=(replace(slices.parts[0], launches=(launch,)),))
    assert metrics.schedule(other) == "new:sell_slice"
