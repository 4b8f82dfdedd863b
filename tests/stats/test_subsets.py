"""Shapley values by hand, by all orders, and what they must add up to."""

import itertools
import math

import numpy as np
import pytest

from memloc.errors import ScoreError
from memloc.stats.subsets import (
    control,
    count_layers,
    interactions,
    passed_subsets,
    rotated_orders,
    sampled_values,
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


def sampled(values, orders):
    passed = np.array([passed_subsets(draw) for draw in orders])
    return sampled_values(values[..., passed], orders)


def test_all_orders_give_the_exact_values():
    values = np.random.default_rng(1).normal(size=(3, 2**4))
    every = np.array(list(itertools.permutations(range(4))))
    first = every[every[:, 0] < every[:, -1]]  # the others are their reverses
    orders = np.stack([first, first[:, ::-1]], axis=1)
    np.testing.assert_allclose(sampled(values, orders)[0], shapley_values(values), atol=1e-12)


def test_an_order_goes_through_its_subsets():
    assert passed_subsets(np.array([[2, 0, 1]])) == [[0, 4, 5, 7]]


def test_sampled_values_are_as_near_as_their_errors_say():
    values = np.random.default_rng(2).normal(size=2**8)
    draws = [sampled(values, rotated_orders(8, 10, np.random.default_rng(s))) for s in range(200)]
    estimates, errors = (np.array(each) for each in zip(*draws, strict=True))
    np.testing.assert_allclose(estimates.mean(0), shapley_values(values), atol=0.08)
    np.testing.assert_allclose(np.sqrt((errors**2).mean(0)), estimates.std(0), rtol=0.2)
    np.testing.assert_allclose(estimates.sum(1), values[-1] - values[0], atol=1e-12)


def test_an_order_and_its_reverse_are_exact_for_pairs_of_units():
    """Where no three units interact, one pair of orders is enough."""
    rng = np.random.default_rng(3)
    bits = (np.arange(2**5)[:, None] >> np.arange(5) & 1).astype(float)
    values = bits @ rng.normal(size=5) + ((bits @ rng.normal(size=(5, 5))) * bits).sum(1)
    orders = rotated_orders(5, 2, rng)
    found, errors = sampled(values, orders)
    np.testing.assert_allclose(found, shapley_values(values), atol=1e-12)
    np.testing.assert_allclose(errors, 0, atol=1e-12)


def test_subsets_share_their_beginnings():
    # All of three units: 2 + 4 + 8; where the second has two layers: 2 + 4 + 4 + 8.
    assert count_layers([1, 2, 4], range(8)) == 14
    assert count_layers([1, 2, 2, 4], range(8)) == 18
    assert count_layers([3, 3], range(4)) == 8
    assert count_layers([1, 2, 4], [0, 7]) == 6
    windows = [sum(1 << i for i in range(a, b)) for a in range(12) for b in range(a + 1, 13)]
    assert count_layers([1 << i for i in range(12)], [*windows, 0]) == 376


def test_values_of_some_subsets_are_refused():
    with pytest.raises(ScoreError, match="12 subsets"):
        shapley_values(np.zeros(12))


def test_nested_orders_keep_the_parts_of_a_layer_next_to_each_other():
    orders = rotated_orders(8, 50, np.random.default_rng(0), nest=2).reshape(-1, 8)
    assert (np.sort(orders, axis=1) == np.arange(8)).all()
    layers = orders.reshape(-1, 4, 2) // 2
    assert (layers[..., 0] == layers[..., 1]).all()
    assert 0.3 < (orders.reshape(-1, 4, 2)[..., 0] % 2).mean() < 0.7


def test_control_is_what_mixtures_keep_of_labels_that_should_survive():
    lost = np.array([[0, 0, 1, 0], [0, 1, 1, 1], [1, 0, 0, 0]], dtype=float)
    # The last is wrong without any change. By size: 1, (.5 + 0) / 2, .5; the worst keeps none.
    assert control(lost, np.array([0, 1, 1, 2])) == pytest.approx(
        {"kept": (1 + 0.25 + 0.5) / 3, "worst": 0}
    )
