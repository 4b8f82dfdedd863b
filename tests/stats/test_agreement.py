from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import roc_auc_score

from memloc.errors import ScoreError, UnknownName
from memloc.seeds import generator
from memloc.stats.agreement import (
    PERMUTATIONS,
    _weighted_pearson,
    accuracy_at_k,
    auroc,
    centre_error,
    chance_at_k,
    correlation,
    correlation_interval,
    distance_from_uniform,
    grouped_p,
    min_max,
    planted_mass,
    reciprocal_rank,
)
from memloc.stats.intervals import bootstrap_counts
from memloc.stats.windows import layer_weights, window_matrix

quick = settings(max_examples=50, deadline=None)  # a busy machine is no failure

WEIGHTS = np.array([0.1, 0.9, 0.4, 0.6, 0.4])


@st.composite
def planted_layers(draw):
    """Weights with many ties, and some but not all layers."""
    weights = np.array(draw(st.lists(st.integers(0, 4), min_size=2, max_size=7)), dtype=float)
    n_planted = draw(st.integers(1, len(weights) - 1))
    order = generator(draw(st.integers(0, 99))).permutation(len(weights))
    return weights, {int(layer) for layer in order[:n_planted]}


@pytest.mark.parametrize(
    ("planted", "k", "expected"),
    [
        ({1, 3}, 1, 1.0),
        ({1, 3}, 2, 1.0),
        ({0, 1}, 1, 1.0),
        ({0, 1}, 2, 0.5),
        (range(2, 4), 1, 0.0),
        (range(2, 4), 2, 0.5),
        (range(2, 4), 3, 0.75),  # layer 3 surely, layer 2 in half of the orders
        ({2, 4}, 3, 1 / 2),  # one of the tied two is in, and both are planted
        ({2, 4}, 4, 1.0),
        ({1}, 2, 1.0),  # one planted layer is all that there is to find
        ({3}, 2, 1.0),
        ({0}, 2, 0.0),
        ({0}, 5, 1.0),
    ],
)
def test_accuracy_is_the_expected_share_of_planted_layers_among_the_best(planted, k, expected):
    assert accuracy_at_k(WEIGHTS, planted, k) == pytest.approx(expected)


@pytest.mark.parametrize("k", range(1, 13))
def test_uniform_weights_give_chance_exactly(k):
    uniform = layer_weights(window_matrix(np.full(78, 0.3), 12))
    chance = pytest.approx(chance_at_k(12, 2, k), abs=1e-15)
    assert accuracy_at_k(uniform, range(5, 7), k) == chance
    assert accuracy_at_k(np.zeros(12), range(5, 7), k) == chance


@quick
@given(planted_layers(), st.integers(1, 7))
def test_ties_count_as_all_equally_good_choices_do(data, k):
    weights, planted = data
    k = min(k, len(weights))
    choices = list(combinations(range(len(weights)), k))
    best = max(sum(weights[list(c)]) for c in choices)
    most = min(k, len(planted))
    shares = [len(planted & set(c)) / most for c in choices if sum(weights[list(c)]) == best]
    assert accuracy_at_k(weights, planted, k) == pytest.approx(np.mean(shares))


def test_chance_is_the_share_of_planted_layers_or_of_the_k_where_they_are_fewer():
    assert chance_at_k(12, 2, 1) == chance_at_k(12, 2, 2) == pytest.approx(1 / 6)
    assert chance_at_k(12, 1, 2) == pytest.approx(2 / 12)


@pytest.mark.parametrize(
    ("planted", "expected"),
    [({1}, 1), ({3, 0}, 1 / 2), ({2}, 1 / 3.5), ({4, 0}, 1 / 3.5), ({0}, 1 / 5), ({2, 4}, 1 / 3)],
)
def test_the_reciprocal_rank_is_that_of_the_best_planted_layer(planted, expected):
    assert reciprocal_rank(WEIGHTS, planted) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("planted", "expected"),
    [({1, 3}, 1), ({0}, 0), ({2}, 1.5 / 4), ({3, 4}, 3.5 / 6), ({0, 1}, 3 / 6)],
)
def test_auroc_counts_the_pairs_in_the_right_order(planted, expected):
    assert auroc(WEIGHTS, planted) == pytest.approx(expected)


def test_planted_mass_is_the_share_of_the_positive_weight():
    assert planted_mass(WEIGHTS, [1, 3]) == pytest.approx(1.5 / 2.4)
    assert planted_mass(np.array([-0.5, 0.6, 0.2]), [1]) == pytest.approx(0.75)
    assert np.isnan(planted_mass(np.array([0.0, -1.0]), [1]))


def test_the_centre_of_the_weights_is_compared_with_that_of_the_planted_layers():
    assert centre_error(np.array([0.0, 1.0, 1.0, 0.0]), [1, 2]) == 0
    assert centre_error(np.array([-9.0, 1.0, 0.0, 1.0]), [0, 1]) == pytest.approx(1.5)
    assert np.isnan(centre_error(np.array([0.0, -1.0]), [1]))


@quick
@given(planted_layers())
def test_auroc_agrees_with_scikit_learn(data):
    weights, planted = data
    truth = [layer in planted for layer in range(len(weights))]
    assert auroc(weights, planted) == pytest.approx(roc_auc_score(truth, weights))


def test_equal_weights_that_differ_by_rounding_are_ties():
    weights = np.array([0.1 + 0.2, 0.3, 0.0])
    assert weights[0] != weights[1]
    assert accuracy_at_k(weights, {0}, 1) == 0.5
    assert reciprocal_rank(weights, {0}) == pytest.approx(1 / 1.5)
    assert auroc(weights, {0}) == pytest.approx(0.75)


@pytest.mark.parametrize("score", [auroc, reciprocal_rank, lambda w, p: accuracy_at_k(w, p, 1)])
@pytest.mark.parametrize("planted", [set(), {5}, {-1, 0}])
def test_planted_layers_must_be_layers(score, planted):
    with pytest.raises(ScoreError, match="must be some of 0 to 4"):
        score(WEIGHTS, planted)


@pytest.mark.parametrize("score", [auroc, reciprocal_rank, lambda w, p: accuracy_at_k(w, p, 1)])
def test_layers_without_a_weight_are_not_ranked(score):
    with pytest.raises(ScoreError, match="not a number"):
        score(np.array([0.1, np.nan]), {0})


def test_other_questions_without_an_answer_are_refused():
    with pytest.raises(ScoreError, match="All layers are planted"):
        auroc(WEIGHTS, range(5))
    for k in (0, 6):
        with pytest.raises(ScoreError, match=f"k cannot be {k}"):
            accuracy_at_k(WEIGHTS, {0}, k)


def test_spearman_is_computed_from_ranks():
    # Rank differences 0, 1, 1, 1, 1: rho = 1 - 6 * 4 / (5 * 24).
    found = correlation(np.array([1.0, 2, 3, 4, 5]), np.array([1.0, 30, 2, 500, 400]))
    assert (found.rho, found.n, found.why) == (pytest.approx(0.8), 5, "")
    # Of the 120 orders 16 have as small a sum of squared differences (at most 4) or as large a one.
    assert found.p == pytest.approx(16 / 120)


def test_pearson_is_computed_from_values():
    # Deviations (-1, 0, 1) and (-2, 1, 1): 3 / sqrt(2 * 6).
    found = correlation(np.array([1.0, 2, 3]), np.array([0.0, 3, 3]), "pearson")
    assert found.rho == pytest.approx(3 / np.sqrt(12))
    # 0 comes first, second or last: two orders each, of which the middle ones give 0.
    assert found.p == pytest.approx(4 / 6)


def test_few_pairs_have_an_exact_p():
    three, eight, nine = (np.arange(float(n)) for n in (3, 8, 9))
    # All orders of three: only the given one and its reverse are perfect.
    assert correlation(three, -three).p == pytest.approx(2 / 6)
    assert correlation(eight, eight).p == pytest.approx(2 / 40320)
    mixed = np.array([3.0, 0, 2, 1, 4, 8, 5, 7, 6])
    assert correlation(nine, mixed).p == stats.spearmanr(nine, mixed).pvalue


@pytest.mark.parametrize("kind", ["spearman", "pearson"])
def test_the_exact_p_is_that_of_a_permutation_test(kind):
    """Ties included, and pairs in whatever order."""
    x, y = np.array([1.0, 4, 4, 2, 9, 3]), np.array([2.0, 2, 7, 1, 3, 3])
    coefficient = {"spearman": stats.spearmanr, "pearson": stats.pearsonr}[kind]
    plain = stats.permutation_test(
        (x,),
        lambda moved: abs(coefficient(moved, y).statistic),
        permutation_type="pairings",
        alternative="greater",
        n_resamples=np.inf,
    )
    assert correlation(x, y, kind).p == pytest.approx(plain.pvalue, abs=1e-12)
    assert correlation(x[::-1], y[::-1], kind).p == pytest.approx(plain.pvalue, abs=1e-12)


@pytest.mark.parametrize("kind", ["spearman", "pearson"])
def test_groups_are_permuted_whole(kind):
    """Against the plain way: every order of the groups, and the coefficient of what then pairs."""
    x = generator(1).normal(size=(4, 3))
    y = x + generator(2).normal(size=(4, 3))
    group, member = (index.ravel() for index in np.indices(x.shape))
    found = grouped_p(x.ravel(), y.ravel(), group, member, rng=generator(3), kind=kind)
    plain = [
        abs(correlation(x.ravel(), y[list(order)].ravel(), kind).rho)
        for order in permutations(range(4))
    ]
    assert found == pytest.approx(np.mean(np.array(plain) >= plain[0] - 1e-9))
    assert found >= 1 / 24


def test_groups_without_some_members_pair_what_they_have():
    x = np.array([[1.0, 2], [3, np.nan], [5, 6]])
    y = np.array([[2.0, 1], [4, np.nan], [3, 9]])
    group, member = np.nonzero(np.isfinite(x))
    there = np.isfinite(x)
    found = grouped_p(x[there], y[there], group, member, rng=generator(1), kind="pearson")
    plain = []
    for order in permutations(range(3)):
        moved = y[list(order)]
        both = there & np.isfinite(moved)
        plain.append(abs(np.corrcoef(x[both], moved[both])[0, 1]))
    assert found == pytest.approx(np.mean(np.array(plain) >= plain[0] - 1e-9))


def test_orders_of_many_groups_are_drawn():
    x = generator(1).normal(size=(12, 2))
    group, member = (index.ravel() for index in np.indices(x.shape))
    alike = grouped_p(x.ravel(), x.ravel(), group, member, rng=generator(2))
    assert alike == pytest.approx(1 / (PERMUTATIONS + 1))
    single = x[:, 0], generator(3).normal(size=12)
    drawn = grouped_p(*single, np.arange(12), np.zeros(12, int), rng=generator(4))
    assert drawn == pytest.approx(stats.spearmanr(*single).pvalue, abs=0.03)


@pytest.mark.parametrize("kind", ["spearman", "pearson"])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("n", [3, 12])
def test_a_straight_line_correlates_fully_and_quietly(kind, sign, n):
    x = np.arange(float(n))
    assert correlation(x, sign * x, kind).rho == pytest.approx(sign)


def test_pairs_with_a_missing_number_are_dropped_and_counted():
    x = np.array([1.0, np.nan, 2, 3, 4, np.inf])
    y = np.array([1.0, 5, 2, np.nan, 3, 1])
    found = correlation(x, y)
    assert (found.rho, found.n) == (pytest.approx(1), 3)


@pytest.mark.parametrize("kind", ["spearman", "pearson"])
@pytest.mark.parametrize(
    ("x", "y", "why"),
    [
        ([], [], "only 0 pairs"),
        ([1, 2], [1, 2], "only 2 pairs"),
        ([1, 2, np.nan], [1, 2, 3], "only 2 pairs"),
        ([2, 2, 2], [1, 2, 3], "all values of x are equal"),
        ([1, 2, 3], [0, 0, 0], "all values of y are equal"),
        ([1, 2, 3], [0.3, 0.3, 0.1 + 0.2], "all values of y are equal"),
    ],
)
def test_where_there_is_no_coefficient_a_reason_is_given(x, y, why, kind):
    pair = np.array(x, dtype=float), np.array(y, dtype=float)
    found = correlation(*pair, kind)
    assert np.isnan([found.rho, found.p]).all()
    assert why in found.why
    interval = correlation_interval(*pair, rng=generator(1), kind=kind)
    assert np.isnan([interval.estimate, interval.low, interval.high]).all()


def test_lists_of_different_length_and_other_coefficients_are_refused():
    with pytest.raises(ScoreError, match="one length"):
        correlation(np.zeros(3), np.zeros(4))
    with pytest.raises(UnknownName, match="spearman"):
        correlation(np.arange(3.0), np.arange(3.0), "spearmann")


@pytest.mark.parametrize("kind", ["spearman", "pearson"])
def test_the_interval_of_a_correlation_is_about_as_wide_as_fisher_says(kind):
    x = generator(1).normal(size=150)
    y = x + generator(2).normal(size=150)
    found = correlation_interval(x, y, rng=generator(3), kind=kind, n_resamples=300)
    assert found.estimate == correlation(x, y, kind).rho
    low, high = np.tanh(np.arctanh(found.estimate) + np.array([-1.96, 1.96]) / np.sqrt(147))
    assert found.low == pytest.approx(low, abs=0.06)
    assert found.high == pytest.approx(high, abs=0.06)


def test_resamples_with_a_constant_side_are_dropped_from_the_interval():
    five = np.arange(5.0)
    found = correlation_interval(five, five, rng=generator(1), n_resamples=4000)
    assert found.n_dropped > 0
    # A resample that uses two pairs has a coefficient; of one, it has none.
    assert found.low == found.high == pytest.approx(1)


@pytest.mark.parametrize("kind", ["spearman", "pearson"])
def test_resampled_coefficients_are_those_of_the_repeated_pairs(kind):
    """The interval's ends are quantiles of what plain resampling gives, ties included."""
    x = np.array([1.0, 2, 2, 3, 5, 4, 7, 7, 6, 5])
    y = np.array([2.0, 1, 4, 4, 3, 8, 6, 9, 9, 5])
    groups = np.array(list("aabbccddee"))
    found = correlation_interval(x, y, rng=generator(5), groups=groups, kind=kind, n_resamples=50)
    drawn = bootstrap_counts(5, 50, generator(5))[:, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]]
    plain = [correlation(np.repeat(x, c), np.repeat(y, c), kind).rho for c in drawn]
    low, high = np.nanquantile(plain, [0.025, 0.975])
    assert (found.low, found.high) == pytest.approx((low, high))


def test_four_groups_are_too_few_for_an_interval():
    x = np.arange(8.0)
    found = correlation_interval(x, x, rng=generator(1), groups=np.array(list("aabbccdd")))
    assert found.estimate == pytest.approx(1)
    assert np.isnan([found.low, found.high]).all()


def test_min_max_reaches_from_zero_to_one():
    np.testing.assert_allclose(min_max(np.array([2.0, 4.0, 3.0])), [0, 1, 0.5])
    with pytest.raises(ScoreError, match=r"all are 0\.5"):
        min_max(np.full(3, 0.5))


@pytest.mark.parametrize(
    ("weights", "distance"),
    [([3, 3, 3], 0), ([1, 0, 0, 0], 0.75), ([2, 1, 1, 0], 0.25), ([5], 0)],
)
def test_the_distance_from_uniform_is_half_the_sum_of_differences(weights, distance):
    assert distance_from_uniform(np.array(weights, dtype=float)) == pytest.approx(distance)


@pytest.mark.parametrize("weights", [[0, 0], [2, -1], [np.nan, 1]])
def test_weights_that_are_no_distribution_have_no_distance(weights):
    with pytest.raises(ScoreError, match="no distribution"):
        distance_from_uniform(np.array(weights, dtype=float))


@quick
@given(planted_layers(), st.floats(0.01, 100))
def test_scores_of_planted_layers_do_not_depend_on_the_scale(data, factor):
    weights, planted = data
    for score in (auroc, reciprocal_rank):
        assert score(factor * weights, planted) == pytest.approx(score(weights, planted))


def test_a_draw_in_which_nothing_has_both_numbers_has_no_coefficient():
    x, counts = np.arange(3.0), np.array([[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]])
    np.testing.assert_equal(_weighted_pearson(x, 2 * x, counts), [1.0, np.nan])
