import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from memloc.errors import ScoreError
from memloc.stats.depth import (
    centre_of_gravity,
    centres_of_gravity,
    event,
    event_depth,
    event_depths,
    first_true,
    last_crossing,
    last_uninterrupted,
)

quick = settings(max_examples=50, deadline=None)  # a busy machine is no failure

WEIGHTS = arrays(np.float64, st.integers(1, 30), elements=st.floats(0, 1e6, allow_subnormal=False))
POSITIVE = WEIGHTS.filter(lambda weights: weights.sum() > 1e-100)


@pytest.mark.parametrize(
    ("weights", "centre"),
    [([1, 0, 0], 1), ([0, 0, 2], 3), ([1, 1, 2], 9 / 4), ([0.5], 1), ([1, 2, 3, 4], 3)],
)
def test_the_centre_is_the_mean_layer_number(weights, centre):
    assert centre_of_gravity(np.array(weights, dtype=float)) == pytest.approx(centre)


@quick
@given(st.integers(1, 50), st.floats(1e-6, 1e6))
def test_uniform_weights_have_their_centre_in_the_middle(depth, weight):
    assert centre_of_gravity(np.full(depth, weight)) == pytest.approx((depth + 1) / 2)


@quick
@given(POSITIVE)
def test_the_centre_lies_among_the_layers(weights):
    assert 1 - 1e-9 <= centre_of_gravity(weights) <= len(weights) + 1e-9


@quick
@given(POSITIVE, st.floats(1e-3, 1e3))
def test_the_centre_does_not_depend_on_the_scale(weights, factor):
    assert centre_of_gravity(factor * weights) == pytest.approx(centre_of_gravity(weights))


@quick
@given(POSITIVE)
def test_reversed_weights_mirror_the_centre(weights):
    mirrored = len(weights) + 1 - centre_of_gravity(weights)
    assert centre_of_gravity(weights[::-1]) == pytest.approx(mirrored)


@pytest.mark.parametrize("weights", [[0, 0], [-1, 0.5], [np.nan, 1], []])
def test_layers_without_a_positive_sum_cannot_be_weighed(weights):
    with pytest.raises(ScoreError, match="cannot be weighed"):
        centre_of_gravity(np.array(weights, dtype=float))


def test_in_a_batch_such_layers_are_marked():
    batch = np.array([[[1, 0], [0, 0]], [[-1, 0], [1, 3]]], dtype=float)
    np.testing.assert_allclose(centres_of_gravity(batch), [[1, np.nan], [np.nan, 1.75]])


NEVER = np.nan


@pytest.mark.parametrize(
    ("curve", "first", "crossing", "uninterrupted"),
    [
        ("....", NEVER, NEVER, NEVER),
        ("xxxx", 1, 1, 1),
        ("x...", 1, 1, NEVER),
        (".xxx", 2, 2, 2),
        ("...x", 4, 4, 4),
        (".x.x", 2, 4, 4),
        ("x.xx", 1, 3, 3),
        (".xx.x.", 2, 5, NEVER),
        ("x.x.", 1, 3, NEVER),
    ],
)
def test_events_are_the_first_the_last_and_the_lasting_beginning(
    curve, first, crossing, uninterrupted
):
    condition = np.array([mark == "x" for mark in curve], dtype=bool)
    found = [rule(condition) for rule in (first_true, last_crossing, last_uninterrupted)]
    np.testing.assert_array_equal(found, [first, crossing, uninterrupted])


@quick
@given(arrays(np.bool_, st.integers(1, 30)))
def test_events_come_in_order_and_where_the_condition_holds(condition):
    first, crossing = first_true(condition), last_crossing(condition)
    assert np.isnan(first) == np.isnan(crossing) == (not condition.any())
    if condition.any():
        assert first <= crossing
        assert condition[int(crossing) - 1]
    lasting = last_uninterrupted(condition)
    np.testing.assert_equal(lasting, crossing if condition[-1] else np.nan)
    if condition[-1]:
        assert condition[int(lasting) - 1 :].all()


def curves(*texts):
    return np.array([[mark == "x" for mark in text] for text in texts], dtype=bool)


@pytest.mark.parametrize("rule", [first_true, last_crossing, last_uninterrupted])
def test_events_of_many_rows_are_those_of_each(rule):
    rows = curves("....", ".x..", "...x", "x.xx", "xx..")
    np.testing.assert_array_equal(rule(rows), [rule(row) for row in rows])


def test_an_event_has_an_interval_of_layers_that_occur():
    resampled = curves(*[".x.."] * 50, *["..x."] * 50)
    found = event(curves(".x..")[0], resampled, first_true)
    assert (found.layer, found.low, found.high, found.never) == (2, 2, 3, 0)


def test_never_is_deeper_than_any_layer():
    resampled = curves(*["x..."] * 10, *["...x"] * 80, *["...."] * 10)
    seldom = curves(*["x..."] * 10, *["...x"] * 88, *["...."] * 2)
    found = event(curves("....")[0], resampled, first_true)
    assert np.isnan(found.layer)
    assert (found.low, found.never) == (1, 0.1)
    assert np.isnan(found.high)
    assert event(curves("...x")[0], seldom, first_true).high == 4


@pytest.mark.parametrize("depth", [4, 6, 12, 24])
def test_never_counts_as_the_layer_after_the_last(depth):
    layers = np.array([1, np.nan, depth])
    np.testing.assert_array_equal(event_depth(layers, depth), [1, depth + 1, depth])


def test_ends_beyond_the_last_layer_are_told_from_ends_that_nobody_measured():
    rows = [
        (2, 1, np.nan, 0.1),  # up to beyond the last layer
        (2, np.nan, np.nan, 0.99),  # nearly all resamples are there
        (np.nan, np.nan, np.nan, 1.0),
        (2, np.nan, np.nan, np.nan),  # without resamples
        (np.nan, np.nan, np.nan, np.nan),
    ]
    events = pd.DataFrame(rows, columns=["layer", "low", "high", "never"])
    found = event_depths(events, np.full(5, 4.0))
    np.testing.assert_array_equal(found["layer"], [2, 2, 5, 2, 5])
    np.testing.assert_array_equal(found["low"], [1, 5, 5, np.nan, np.nan])
    np.testing.assert_array_equal(found["high"], [5, 5, 5, np.nan, np.nan])
