import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from flows.report import statistics

SCORES = arrays(np.float64, st.integers(2, 12), elements=st.floats(-1e4, 1e4, width=32))


def spread_out(scores: np.ndarray) -> bool:
    return bool(statistics.spread(scores) > 1e-3)


@given(SCORES)
def test_interval_of_a_mean_is_students_t(scores: np.ndarray) -> None:
    found = statistics.t_interval(scores, confidence=0.9)
    assert found is not None
    if spread_out(scores):
        expected = stats.t.interval(0.9, len(scores) - 1, loc=scores.mean(), scale=stats.sem(scores))
        assert (found.low, found.high) == pytest.approx(expected)


def test_one_seed_has_no_interval_and_no_difference() -> None:
    one, two = np.array([1.0]), np.array([1.0, 2.0])
    assert statistics.t_interval(one, confidence=0.95) is None
    assert statistics.welch(one, two) is None
    assert statistics.smallest_detectable(two, one, level=0.05) is None
    assert statistics.improvement_interval(one, two, confidence=0.95) is None
    _, low, high = statistics.t_band(one[None, :], confidence=0.95)
    assert np.isnan(low).all()
    assert np.isnan(high).all()


@given(SCORES, SCORES, st.floats(0.5, 0.99))
def test_difference_is_welchs(first: np.ndarray, second: np.ndarray, confidence: float) -> None:
    if not (spread_out(first) and spread_out(second)):
        return
    found, expected = statistics.welch(first, second), stats.ttest_ind(first, second, equal_var=False)
    assert found is not None
    assert found.p == pytest.approx(expected.pvalue, rel=1e-6, abs=1e-12)
    assert found.degrees == pytest.approx(expected.df)
    interval = expected.confidence_interval(confidence)
    assert found.interval(confidence).low == pytest.approx(interval.low, rel=1e-6, abs=1e-6)
    assert found.interval(confidence).high == pytest.approx(interval.high, rel=1e-6, abs=1e-6)


def test_welch_known_answer() -> None:
    # By hand: means 5/2 and 21/4, variances 5/3 and 107/12, so the squared error is 127/48.
    found = statistics.welch(np.array([1.0, 2, 3, 4]), np.array([2.0, 4, 6, 9]))
    assert found is not None
    assert found.value / found.standard_error == pytest.approx(-2.75 / (127 / 48) ** 0.5)
    assert found.degrees == pytest.approx((127 / 48) ** 2 * 3 / ((5 / 12) ** 2 + (107 / 48) ** 2))


def test_scores_that_differ_by_rounding_alone_have_no_spread() -> None:
    same = np.array([0.1 + 0.2, 0.3, 0.3])
    assert statistics.spread(same) == 0.0
    assert statistics.welch(same, same + 1) is None


def test_holm_known_answer() -> None:
    assert statistics.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert statistics.holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_never_lowers_a_p_value_and_keeps_their_order(p_values: list[float]) -> None:
    adjusted = statistics.holm(p_values)
    assert all(p <= new <= 1 for p, new in zip(p_values, adjusted, strict=True))
    order = np.argsort(p_values, kind="stable")
    assert (np.diff(np.array(adjusted)[order]) >= 0).all()


@given(st.lists(st.floats(1e-9, 1), min_size=1, max_size=12))
def test_an_interval_at_holms_level_excludes_zero_exactly_where_holm_rejects(p_values: list[float]) -> None:
    levels = statistics.holm_levels(p_values, alpha=0.05)
    for p, level, adjusted in zip(p_values, levels, statistics.holm(p_values), strict=True):
        if abs(adjusted - 0.05) > 1e-9:
            assert (p < level) == (adjusted < 0.05)


def test_iqm_known_answers() -> None:
    assert statistics.iqm(np.array([8.0, 1, 2, 3, 4, 5, 6, 7])) == (4.5, 4)
    assert statistics.iqm(np.array([1.0, 2, 9])) == (4.0, 3)
    assert statistics.iqm(np.array([100.0, 1, 2, 3])) == (2.5, 2)


@given(SCORES)
def test_iqm_is_the_trimmed_mean(scores: np.ndarray) -> None:
    assert statistics.iqm(scores)[0] == pytest.approx(stats.trim_mean(scores, 0.25))


@pytest.mark.parametrize(("n", "deviations"), [(3, 3.1), (5, 2.0), (10, 1.3), (20, 0.9)])
def test_smallest_detectable_effect_known_answers(n: int, deviations: float) -> None:
    scores = np.linspace(-1, 1, n)
    scores /= scores.std(ddof=1)
    assert statistics.smallest_detectable(scores, scores, level=0.05) == pytest.approx(deviations, abs=0.05)


def test_the_smallest_detectable_effect_is_detected_in_four_of_five_experiments() -> None:
    random, n = np.random.default_rng(0), 5
    scores = np.linspace(-1, 1, n)
    scores /= scores.std(ddof=1)
    effect = statistics.smallest_detectable(scores, scores, level=0.05)
    drawn = random.standard_normal((2, 20_000, n))
    found = stats.ttest_ind(drawn[0] + effect, drawn[1], axis=1, equal_var=False).pvalue < 0.05
    assert found.mean() == pytest.approx(0.8, abs=0.03)


@given(SCORES, SCORES)
def test_probability_of_improvement_is_mann_whitneys(first: np.ndarray, second: np.ndarray) -> None:
    expected = stats.mannwhitneyu(first, second).statistic / (len(first) * len(second))
    assert statistics.probability_of_improvement(first, second) == pytest.approx(expected)
    assert statistics.probability_of_improvement(second, first) == pytest.approx(1 - expected)


def test_resampling_repeats_for_the_same_data_and_not_for_others() -> None:
    a, b = np.array([1.0, 3, 5, 7]), np.array([2.0, 4, 6, 1])
    first = statistics.improvement_interval(a, b, confidence=0.95)
    assert first == statistics.improvement_interval(a.copy(), b.copy(), confidence=0.95)
    assert statistics.generator(a).random() != statistics.generator(a + 1e-9).random()
    assert statistics.generator(a, b).random() != statistics.generator(b, a).random()


def test_a_clean_sweep_has_no_bootstrap_interval() -> None:
    assert statistics.improvement_interval(np.array([5.0, 6]), np.array([1.0, 2]), confidence=0.95) is None


@given(st.lists(st.lists(st.integers(0, 1000), min_size=1, max_size=40, unique=True), min_size=1, max_size=5))
def test_the_common_grid_stays_inside_what_all_seeds_share(lists: list[list[int]]) -> None:
    xs = [np.array(sorted(values), dtype=np.float64) for values in lists]
    grid = statistics.common_grid(xs, points=25)
    assert len(grid) <= 25
    assert all(x[0] <= place <= x[-1] for x in xs for place in grid)
    for x in xs:
        assert np.isfinite(statistics.on_grid(grid, x, np.ones(len(x)))).all()


def test_seeds_that_agree_on_their_places_are_not_interpolated() -> None:
    x = np.array([10.0, 20, 50])
    assert statistics.common_grid([x, x.copy()], points=300) is x
    y = np.array([1.0, 7, 3])
    assert np.array_equal(statistics.on_grid(x, x, y), y)


def test_a_gap_is_not_bridged() -> None:
    x, y = np.array([0.0, 1, 2, 3]), np.array([0.0, np.nan, 2, 3])
    assert np.isnan(statistics.on_grid(np.array([0.5, 1.0, 1.5]), x, y)).all()
    assert statistics.on_grid(np.array([0.0, 2.5]), x, y).tolist() == [0.0, 2.5]
    mean, _, _ = statistics.t_band(np.stack([y, x]), confidence=0.95)
    assert np.isnan(mean[1])


def test_thinning_keeps_ends_and_invents_nothing() -> None:
    x = np.arange(1000.0)
    thin, values = statistics.thinned(x, x**2, points=300)
    assert len(thin) <= 300
    assert (thin[0], thin[-1]) == (0.0, 999.0)
    assert np.array_equal(values, thin**2)
