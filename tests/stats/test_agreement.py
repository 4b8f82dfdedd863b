from itertools import permutations

import numpy as np
import pytest
from scipy import stats

from memloc.seeds import generator
from memloc.stats.agreement import (
    PERMUTATIONS,
    _weighted_pearson,
    correlation,
    correlations,
    grouped_p,
)


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
    found = grouped_p(x.ravel(), y.ravel(), group, member, kind)
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
    found = grouped_p(x[there], y[there], group, member, "pearson")
    plain = []
    for order in permutations(range(3)):
        moved = y[list(order)]
        both = there & np.isfinite(moved)
        plain.append(abs(np.corrcoef(x[both], moved[both])[0, 1]))
    assert found == pytest.approx(np.mean(np.array(plain) >= plain[0] - 1e-9))


def test_orders_of_many_groups_are_drawn():
    x = generator(1).normal(size=(12, 2))
    group, member = (index.ravel() for index in np.indices(x.shape))
    alike = grouped_p(x.ravel(), x.ravel(), group, member, "spearman")
    assert alike == pytest.approx(1 / (PERMUTATIONS + 1))
    single = x[:, 0], generator(3).normal(size=12)
    drawn = grouped_p(*single, np.arange(12), np.zeros(12, int), "spearman")
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
    assert np.isnan([found.rho, found.p, found.low, found.high]).all()
    assert why in found.why


@pytest.mark.parametrize("kind", ["spearman", "pearson"])
def test_the_interval_of_a_correlation_is_about_as_wide_as_fisher_says(kind):
    x = generator(1).normal(size=150)
    y = x + generator(2).normal(size=150)
    found = correlation(x, y, kind)
    low, high = np.tanh(np.arctanh(found.rho) + np.array([-1.96, 1.96]) / np.sqrt(147))
    assert found.low == pytest.approx(low, abs=0.06)
    assert found.high == pytest.approx(high, abs=0.06)


def test_fishers_interval_by_hand():
    """Five pairs, ρ = .8: z = 1.0986, its error √((1 + .32) / 2) = .8124, ends at ± 1.96 errors."""
    found = correlation(np.arange(5.0), np.array([0.0, 2, 1, 4, 3]))
    assert found.rho == pytest.approx(0.8)
    assert found.low == pytest.approx(np.tanh(1.098612 - 1.959964 * 0.812404), abs=1e-6)
    assert found.high == pytest.approx(np.tanh(1.098612 + 1.959964 * 0.812404), abs=1e-6)


def test_a_perfect_order_of_few_pairs_is_not_sure():
    """ρ = 1 of five pairs counts as 1 - 6 / 120 = .95, so z = 1.8318; its error is √(1.5 / 2)."""
    found = correlation(np.arange(5.0), np.arange(5.0))
    assert found.low == pytest.approx(np.tanh(1.831781 - 1.959964 * 0.866025), abs=1e-6)
    assert found.high == found.rho == pytest.approx(1)


@pytest.mark.parametrize("kind", ["spearman", "pearson"])
def test_the_interval_over_groups_is_the_jackknife_of_fishers_z(kind):
    """The coefficients without each group are those of scipy, ties included."""
    x = np.array([1.0, 2, 2, 3, 5, 4, 7, 7, 6, 5])
    y = np.array([2.0, 1, 4, 4, 3, 8, 6, 9, 9, 5])
    groups = np.array(list("aabbccddee"))
    found = correlation(x, y, kind, groups, np.array(list("mn" * 5)))
    coefficient = {"spearman": stats.spearmanr, "pearson": stats.pearsonr}[kind]
    kept = [groups != name for name in "abcde"]
    z = np.arctanh([coefficient(x[there], y[there]).statistic for there in kept])
    half = stats.t.ppf(0.975, 4) * np.sqrt(4 / 5 * np.square(z - z.mean()).sum())
    ends = np.tanh(np.arctanh(found.rho) + np.array([-half, half]))
    assert (found.low, found.high) == pytest.approx(tuple(ends))


def test_groups_without_which_there_is_no_coefficient_are_not_counted():
    x, y = np.array([0.0, 0, 0, 0, 1]), np.arange(5.0)
    found = correlation(x, y, "pearson")  # without the last pair, x is constant
    assert np.isnan([found.low, found.high]).all()


def test_four_groups_are_too_few_for_an_interval():
    x = np.arange(8.0)
    found = correlation(x, x, "spearman", np.array(list("aabbccdd")), np.array(list("mnmnmnmn")))
    assert found.rho == pytest.approx(1)
    assert found.p == pytest.approx(1 / 24)  # of all orders of the groups, the given one
    assert np.isnan([found.low, found.high]).all()


def test_the_mean_over_pairs_of_columns_is_drawn_over_rows():
    x = generator(1).normal(size=6)
    values = np.column_stack([x, x, -x, np.zeros(6)])
    found, low, high = correlations(values, "pearson")
    assert found == pytest.approx([1, -1, -1])  # a constant column has no coefficient
    assert (low, high) == pytest.approx((-1 / 3, -1 / 3))
    assert np.isnan(correlations(values[:4], "pearson")[1:]).all()
    assert correlations(values[:0], "pearson")[0] == []


def test_a_draw_in_which_nothing_has_both_numbers_has_no_coefficient():
    x, counts = np.arange(3.0), np.array([[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]])
    np.testing.assert_equal(_weighted_pearson(x, 2 * x, counts), [1.0, np.nan])
