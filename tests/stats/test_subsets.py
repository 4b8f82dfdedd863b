"""Shapley values by hand, by all orders, and what they must add up to."""

import itertools
import math

import numpy as np
import pytest

from memloc.errors import ScoreError
from memloc.stats.subsets import (
    interactions,
    shapley_values,
    smallest_sets,
    subset_sizes,
    units_of,
)


def by_orders(values):
    """What each unit adds when it comes, over all orders."""
    n = int(math.log2(len(values)))
    found = np.zeros(n)
    for order in itertools.permutations(range(n)):
        before = 0
        for unit in order:
            found[unit] += values[before | 1 << unit] - values[before]
            before |= 1 << unit
    return found / math.factorial(n)


@pytest.mark.parametrize("n_units", [1, 2, 3, 5])
def test_values_are_those_of_all_orders(n_units):
    values = np.random.default_rng(n_units).normal(size=2**n_units)
    np.testing.assert_allclose(shapley_values(values), by_orders(values), atol=1e-12)


def test_values_sum_to_what_all_units_change():
    values = np.random.default_rng(0).normal(size=(7, 2**6))
    found = shapley_values(values)
    assert found.shape == (7, 6)
    np.testing.assert_allclose(found.sum(1), values[:, -1] - values[:, 0], atol=1e-12)


def test_two_units_that_are_needed_together_share_equally_and_interact():
    values = np.array([0.0, 0, 0, 1])
    np.testing.assert_allclose(shapley_values(values), [0.5, 0.5])
    np.testing.assert_allclose(interactions(values), [[0, 1], [1, 0]])


def test_two_units_of_which_either_does_interact_below_0():
    values = np.array([0.0, 1, 1, 1])
    np.testing.assert_allclose(shapley_values(values), [0.5, 0.5])
    np.testing.assert_allclose(interactions(values), [[0, -1], [-1, 0]])


def test_units_that_add_up_do_not_interact():
    worth = np.array([1.0, 2, 3, 4])
    bits = np.arange(16)[:, None] >> np.arange(4) & 1
    np.testing.assert_allclose(shapley_values(bits @ worth), worth)
    np.testing.assert_allclose(interactions(bits @ worth), 0, atol=1e-12)


def test_all_smallest_sets_are_named():
    # Either of units 0 and 2 does, unit 1 does nothing.
    values = np.array([0.0, 1, 0, 1, 1, 1, 1, 1])
    assert [units_of(s) for s in smallest_sets(values, 0.9)] == [[0], [2]]
    assert len(smallest_sets(np.ones(8), 0.9)) == 0


def test_sizes_count_bits():
    assert subset_sizes(3).tolist() == [0, 1, 1, 2, 1, 2, 2, 3]


def test_values_of_some_subsets_are_refused():
    with pytest.raises(ScoreError, match="12 subsets"):
        shapley_values(np.zeros(12))
