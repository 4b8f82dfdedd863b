import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from memloc.errors import ScoreError
from memloc.seeds import generator
from memloc.stats import intervals
from memloc.stats.depth import centre_of_gravity
from memloc.stats.intervals import (
    Interval,
    bootstrap,
    bootstrap_counts,
    bootstrap_ends,
    resampled_means,
    t_ends,
    wilson,
    window_intervals,
)
from memloc.stats.windows import (
    layer_weights,
    normalised,
    window_matrix,
    windows,
)

quick = settings(max_examples=20, deadline=None)  # a busy machine is no failure


def random_wrong(n, depth, seed=0):
    """Wide windows undo more labels."""
    rates = np.array([len(window) / (depth + 1) for window in windows(depth)])
    return generator(seed, "wrong").random((n, len(rates))) < rates


def numbers(band):
    return np.concatenate([np.ravel(a) for a in (band.estimate, band.low, band.high)])


def test_every_resample_draws_as_many_examples_as_there_are():
    counts = bootstrap_counts(7, 500, generator(1))
    assert counts.shape == (500, 7)
    assert (counts.sum(axis=1) == 7).all()
    np.testing.assert_allclose(counts.mean(axis=0), 1, atol=0.2)
    np.testing.assert_allclose(counts.var(axis=0), 6 / 7, atol=0.3)


def test_resampled_means_are_the_means_of_the_examples_drawn():
    wrong = random_wrong(9, 3)
    expected = [wrong.mean(axis=0)]
    for counts in bootstrap_counts(9, 20, generator(2)):
        expected.append(np.repeat(wrong, counts, axis=0).mean(axis=0))
    np.testing.assert_allclose(resampled_means(wrong, 20, generator(2)), expected)


@pytest.mark.parametrize("chunk", [1, 30, 50])
def test_chunks_change_nothing(monkeypatch, chunk):
    wrong = random_wrong(10, 3)
    whole = resampled_means(wrong, 17, generator(3))
    monkeypatch.setattr(intervals, "CHUNK", chunk)
    np.testing.assert_array_equal(resampled_means(wrong, 17, generator(3)), whole)


@pytest.mark.parametrize("normalise", [False, True])
def test_estimates_are_those_of_the_data_themselves(normalise):
    wrong = random_wrong(50, 4)
    found, mcog = window_intervals(wrong, 4, normalise=normalise, rng=generator(1), n_resamples=20)
    errors = normalised(wrong.mean(axis=0)) if normalise else wrong.mean(axis=0)
    weights = layer_weights(window_matrix(errors, 4))
    np.testing.assert_allclose(found.estimate, weights)
    assert mcog.estimate == pytest.approx(centre_of_gravity(weights))


def test_limits_are_the_percentiles_of_the_scores_of_each_resample():
    wrong = random_wrong(30, 3)
    found, mcog = window_intervals(wrong, 3, normalise=True, rng=generator(4), n_resamples=40)
    resamples = normalised(resampled_means(wrong, 40, generator(4))[1:])
    weights = [layer_weights(window_matrix(errors, 3)) for errors in resamples]
    centres = [centre_of_gravity(row) for row in weights]
    np.testing.assert_allclose(found.low, np.quantile(weights, 0.025, axis=0))
    np.testing.assert_allclose(found.high, np.quantile(weights, 0.975, axis=0))
    assert mcog.low == pytest.approx(np.quantile(centres, 0.025))
    assert mcog.high == pytest.approx(np.quantile(centres, 0.975))
    assert mcog.level == 0.95


def test_the_centre_is_the_same_with_and_without_normalising():
    wrong = random_wrong(60, 4)
    (_, plain), (_, scaled) = (
        window_intervals(wrong, 4, normalise=normalise, rng=generator(1), n_resamples=50)
        for normalise in (False, True)
    )
    assert plain.low == pytest.approx(scaled.low)
    assert plain.high == pytest.approx(scaled.high)


@quick
@given(st.integers(0, 999), st.integers(1, 6), st.booleans())
def test_with_many_examples_intervals_contain_their_estimates(seed, depth, normalise):
    wrong = random_wrong(400, depth, seed)
    found = window_intervals(
        wrong, depth, normalise=normalise, rng=generator(seed), n_resamples=200
    )
    for band in found:
        assert (np.asarray(band.low) <= np.asarray(band.estimate) + 1e-12).all()
        assert (np.asarray(band.high) >= np.asarray(band.estimate) - 1e-12).all()


def test_an_interval_is_as_wide_as_theory_says():
    wrong = np.zeros((1000, 1), dtype=bool)
    wrong[:300] = True
    error = window_intervals(wrong, 1, normalise=False, rng=generator(5))[0]
    half = 1.96 * np.sqrt(0.3 * 0.7 / 1000)
    assert error.low == pytest.approx([0.3 - half], abs=0.005)
    assert error.high == pytest.approx([0.3 + half], abs=0.005)


def test_results_depend_on_the_generator_alone():
    wrong = random_wrong(40, 4)
    first, again, other = (
        window_intervals(wrong, 4, normalise=True, rng=generator(s), n_resamples=30)
        for s in (1, 1, 2)
    )
    np.testing.assert_array_equal(numbers(first[0]), numbers(again[0]))
    assert first[1] == again[1]
    assert first[1] != other[1]


def test_resamples_in_which_nothing_was_undone_are_dropped_and_counted():
    wrong = np.zeros((5, 3), dtype=bool)
    wrong[0] = [True, False, True]
    found, mcog = window_intervals(wrong, 2, normalise=True, rng=generator(6), n_resamples=400)
    n_dropped = np.count_nonzero(bootstrap_counts(5, 400, generator(6))[:, 0] == 0)
    assert n_dropped > 0
    assert found.n_dropped == mcog.n_dropped == n_dropped
    np.testing.assert_array_equal(found.low, [1, 0.5])


def test_plain_weights_keep_all_resamples_and_only_the_centre_drops_some():
    wrong = np.zeros((5, 3), dtype=bool)
    wrong[0] = [True, False, True]
    found, mcog = window_intervals(wrong, 2, normalise=False, rng=generator(6), n_resamples=400)
    assert found.n_dropped == 0
    assert mcog.n_dropped > 0
    np.testing.assert_array_equal(found.low, [0, 0])


def test_without_any_error_the_centre_is_nan_and_the_weights_are_zero():
    wrong = np.zeros((8, 3), dtype=bool)
    found, mcog = window_intervals(wrong, 2, normalise=False, rng=generator(1), n_resamples=10)
    assert np.isnan([mcog.estimate, mcog.low, mcog.high]).all()
    assert not numbers(found).any()
    with pytest.raises(ScoreError, match="undid no memorised label"):
        window_intervals(wrong, 2, normalise=True, rng=generator(1), n_resamples=10)


def test_where_no_resample_is_left_the_limits_are_nan():
    wrong = np.zeros((50, 1), dtype=bool)
    wrong[0] = True
    seed = next(s for s in range(99) if bootstrap_counts(50, 1, generator(s))[0, 0] == 0)
    found, mcog = window_intervals(wrong, 1, normalise=True, rng=generator(seed), n_resamples=1)
    assert mcog.estimate == mcog.n_dropped == 1
    assert np.isnan([mcog.low, found.high[0]]).all()


def test_some_widths_are_enough():
    known = [window for window in windows(4) if len(window) in (1, 4)]
    wrong = random_wrong(60, 4)[:, [0, 1, 2, 3, 9]]
    found, mcog = window_intervals(
        wrong, 4, normalise=True, rng=generator(1), n_resamples=30, known=known
    )
    assert np.isfinite(numbers(found)).all()
    assert found.n_dropped == mcog.n_dropped == 0
    with pytest.raises(ScoreError, match="window of all 4 layers"):
        window_intervals(
            wrong[:, :4], 4, normalise=True, rng=generator(1), n_resamples=3, known=known[:4]
        )


@pytest.mark.parametrize("shape", [(0, 3), (4, 2)])
def test_what_cannot_be_resampled_is_refused(shape):
    with pytest.raises(ScoreError, match="found"):
        window_intervals(np.zeros(shape, dtype=bool), 2, normalise=False, rng=generator(1))


def test_memory_stays_small_for_many_examples_and_windows():
    wrong = np.tile(random_wrong(1000, 24), (10, 1))
    tracemalloc.start()
    try:
        window_intervals(wrong, 24, normalise=True, rng=generator(1), n_resamples=150)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 100e6  # 1,000 resamples add 20 MB


def test_the_mean_is_the_usual_statistic_and_others_may_be_given():
    values = generator(1).normal([0.0, 5.0], 1.0, size=(400, 2))
    mean = bootstrap(values, rng=generator(2), n_resamples=300)
    assert mean.estimate == pytest.approx(values.mean(axis=0))
    assert (mean.low < mean.estimate).all()
    assert (mean.estimate < mean.high).all()
    np.testing.assert_allclose(mean.high - mean.low, 2 * 1.96 / 20, rtol=0.25)
    largest = bootstrap(values, rng=generator(2), statistic=np.max, n_resamples=50)
    assert largest.estimate == largest.high == values.max()


def test_a_statistic_is_given_rows_of_the_values():
    values = np.arange(12.0).reshape(4, 3)
    seen = []
    bootstrap(values, rng=generator(1), statistic=lambda v: seen.append(v) or 0.0, n_resamples=5)
    assert len(seen) == 6
    np.testing.assert_array_equal(seen[0], values)
    assert all(set(map(tuple, rows)) <= set(map(tuple, values)) for rows in seen)


def test_resamples_without_a_value_are_dropped_and_counted():
    values = np.array([0.0, 1.0])
    band = bootstrap(
        values, rng=generator(1), statistic=lambda v: np.nan if np.ptp(v) == 0 else 1.0
    )
    assert band == Interval(1.0, 1.0, 1.0, 0.95, band.n_dropped)
    assert band.n_dropped == pytest.approx(500, abs=60)


def test_a_bootstrap_without_examples_is_refused():
    with pytest.raises(ScoreError, match="An interval needs"):
        bootstrap(np.zeros(0), rng=generator(1))


def test_scores_load_neither_torch_nor_pandas():
    code = "import sys, memloc.stats.agreement; print({'torch', 'pandas'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"


def test_wilson_by_hand():
    # 36 of 36: low = 1 / (1 + z²/n) with z = 1.959964.
    whole = wilson(1.0, 36)
    assert whole.low == pytest.approx(1 / (1 + 1.959964**2 / 36), abs=1e-6)
    assert whole.high == 1.0
    # 2 of 4, symmetric about a half.
    half = wilson(0.5, 4)
    assert half.low + half.high == pytest.approx(1)
    assert half.low == pytest.approx(0.150036, abs=1e-5)


@pytest.mark.parametrize(("share", "n"), [(0.0, 5), (1.0, 40), (0.3, 12)])
def test_many_wilson_intervals_are_those_of_each(share, n):
    found = wilson(np.array([share, np.nan]), np.array([float(n), 3.0]))
    one = wilson(share, n)
    assert (found.low[0], found.high[0]) == (one.low, one.high)
    assert np.isnan([found.low[1], found.high[1]]).all()


@pytest.mark.parametrize("share", [0.5, np.nan])
def test_of_no_trials_there_is_no_wilson_interval(share):
    """Warnings are errors here: nothing is divided by zero."""
    found = wilson(np.array([share, 0.5]), np.array([0.0, 4.0]))
    assert np.isnan([found.low[0], found.high[0]]).all()
    assert found.low[1] == wilson(0.5, 4).low


def test_the_interval_of_a_mean_is_about_two_standard_errors_wide():
    values = np.random.default_rng(0).normal(size=400)
    low, high = bootstrap_ends(values)
    assert (high - low) / 2 == pytest.approx(1.96 * values.std() / 20, rel=0.1)
    assert bootstrap_ends(values) == (low, high)


def test_the_t_interval_of_a_mean_is_that_of_scipy():
    values = np.array([0.2, 0.5, 0.1, 0.9, 0.4])
    found = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert t_ends(values) == pytest.approx((found.low, found.high))


def test_values_of_a_group_count_once():
    values = np.array([0.2, 0.5, 0.1, 0.9, 0.4])
    tripled = t_ends(np.repeat(values, 3), list(np.repeat(list("abcde"), 3)))
    assert tripled == pytest.approx(t_ends(values))


def test_groups_of_different_size_by_hand():
    """Mean 2, deviations summed by group 2, 0 and -2; error √(3 / 2 · 8) / 4."""
    half = stats.t.ppf(0.975, 2) * np.sqrt(12) / 4
    found = t_ends(np.array([3.0, 3.0, 2.0, 0.0]), ["a", "a", "b", "c"])
    assert found == pytest.approx((2 - half, 2 + half))


@pytest.mark.parametrize("n", [0, 1])
def test_of_less_than_two_there_is_no_interval(n):
    assert np.isnan(bootstrap_ends(np.ones(n))).all()
    assert np.isnan(t_ends(np.ones(n))).all()
    assert np.isnan(t_ends(np.ones(3), ["a"] * 3)).all()
