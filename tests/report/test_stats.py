"""The statistics: laws that hold for any figures, and the coverage that an interval promises."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from specbench import stats

FEW = 400  # resamples: enough for a law, quick enough for many examples
ZEROS = ([0, 0], [0, 0])


def _times(size: int) -> st.SearchStrategy[np.ndarray]:
    return arrays(np.float64, size, elements=st.floats(1e-3, 1e3))


def _tokens(size: int) -> st.SearchStrategy[np.ndarray]:
    return arrays(np.int64, size, elements=st.integers(1, 2000))


@st.composite
def pairs(draw: st.DrawFn) -> tuple[np.ndarray, ...]:
    """Baseline and method: times [s] and tokens of the same cases."""
    size = draw(st.integers(1, 40))
    return draw(_times(size)), draw(_tokens(size)), draw(_times(size)), draw(_tokens(size))


@given(pairs(), st.floats(1e-2, 1e2))
def test_slower_baseline_scales_the_speedup_and_its_interval(pair, factor):
    baseline_s, baseline_tokens, method_s, method_tokens = pair
    plain = stats.speedup(*pair, resamples=FEW)
    scaled = stats.speedup(
        factor * baseline_s, baseline_tokens, method_s, method_tokens, resamples=FEW
    )
    assert scaled.value == pytest.approx(factor * plain.value)
    if plain.low is not None:
        assert scaled.low == pytest.approx(factor * plain.low)
        assert scaled.high == pytest.approx(factor * plain.high)


@given(pairs())
def test_interval_holds_the_estimate(pair):
    estimate = stats.speedup(*pair, resamples=FEW)
    assert estimate.count == len(pair[0])
    assert (estimate.low is None) == (len(pair[0]) < stats.MIN_CASES)
    if estimate.low is not None:
        assert estimate.low <= estimate.value <= estimate.high


@given(pairs())
def test_identical_times_give_exactly_one(pair):
    baseline_s, tokens = pair[:2]
    estimate = stats.speedup(baseline_s, tokens, baseline_s, tokens, resamples=FEW)
    again = stats.retiming(baseline_s, tokens, baseline_s, tokens, resamples=FEW)
    assert (estimate.value, again.value) == (1.0, 1.0)
    if estimate.low is not None:
        assert (estimate.low, estimate.high, again.low, again.high) == (1.0, 1.0, 1.0, 1.0)


def test_speedups_of_few_cases_by_hand():
    estimate = stats.speedup([10.0, 1.0], [100, 10], [4.0, 1.0], [100, 10])
    assert estimate.value == pytest.approx((11 / 110) / (5 / 110))
    assert (estimate.low, estimate.high) == (None, None)
    assert stats.speedup([10.0], [100], [5.0], [25]).value == pytest.approx(0.5)
    for nothing in (
        stats.speedup([], [], [], []),
        stats.speedup([1.0], [0], [1.0], [5]),
        *stats.estimates([ZEROS]),
    ):
        assert np.isnan(nothing.value)
    assert stats.retiming([], [], [], []).count == 0
    with pytest.raises(ValueError, match=r"lengths \[2, 1\]"):
        stats.estimates([([1, 2], [1])])
    ratios = stats.case_ratios([4.0, 1.0, 1.0], [1, 1, 0], [1.0] * 3, [1] * 3)
    assert ratios == pytest.approx([4.0, 1.0, np.nan], nan_ok=True)
    first, ones = np.full(20, 2.0), np.ones(20)
    again = first.copy()
    again[4] = 9.0
    estimate = stats.retiming(first, ones, again, ones)
    assert (estimate.value, estimate.low, estimate.high) == (1.0, 1.0, 1.0)


def test_resampling_by_weights_is_resampling_by_index():
    generator = np.random.default_rng(5)
    columns = generator.uniform(1, 9, (4, 25))
    estimate = stats.speedup(*columns, resamples=2000, seed=9)
    index = np.random.default_rng(9).integers(0, 25, (2000, 25))
    totals = columns[:, index].sum(axis=2)
    low, high = np.quantile((totals[0] / totals[1]) / (totals[2] / totals[3]), [0.025, 0.975])
    assert (estimate.low, estimate.high) == (pytest.approx(low), pytest.approx(high))


@pytest.mark.parametrize(
    ("times", "tokens", "expected"),
    [
        ([3.0, 1.0, 2.0], [10, 10, 10], (2.0, 10.0)),
        ([1.0, 2.0, 10.0], [10, 20, 100], (13 / 3, 130 / 3)),  # 0.1 s a token in every round
        ([1.0, 5.0], [0, 10], (3.0, 5.0)),
        ([2.0], [7], (2.0, 7.0)),
    ],
)
def test_over_rounds(times, tokens, expected):
    assert stats.over_rounds(times, tokens) == pytest.approx(expected)


@pytest.mark.slow
@pytest.mark.parametrize(("cases", "least"), [(20, 0.89), (80, 0.925)])
def test_coverage_of_the_case_bootstrap(cases, least):
    """Of nominal 95 % intervals, about as many hold the true speedup; a bootstrap of few cases is a
    little narrow.
    """
    generator = np.random.default_rng(11)
    spread, trials, hits = 0.25, 1500, 0
    # ratio of expected totals when a case's method time is tb / (2 exp(z))
    truth = 2.0 * np.exp(-(spread**2) / 2)
    for _ in range(trials):
        tokens = generator.integers(20, 400, cases)
        baseline_s = 0.03 * tokens
        method_s = baseline_s / 2 * np.exp(generator.normal(0, spread, cases))
        estimate = stats.speedup(baseline_s, tokens, method_s, tokens, resamples=1000)
        hits += estimate.low <= truth <= estimate.high
    assert least <= hits / trials <= 0.985


@pytest.mark.slow
def test_coverage_of_retiming():
    generator = np.random.default_rng(12)
    trials, hits = 600, 0
    for _ in range(trials):
        work = generator.uniform(1, 20, 60)
        first, again = (work * np.exp(generator.normal(0, 0.01, 60)) for _ in range(2))
        estimate = stats.retiming(first, np.ones(60), again, np.ones(60), resamples=1000)
        hits += estimate.low <= 1.0 <= estimate.high
    assert 0.92 <= hits / trials <= 0.985
