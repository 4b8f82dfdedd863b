import numpy as np
import pandas as pd
import pytest

from memloc.report.means import bootstrap_ends, over_groups, over_seeds, wilson_ends
from memloc.score.planted import wilson

TABLE = pd.DataFrame(
    {
        "task": ["a"] * 4,
        "model": ["m", "m", "n", "n"],
        "seed": [1, 2, 1, 2],
        "value": [1.0, 3.0, 6.0, 6.0],
        "low": [0.0, 2.5, 5.0, 5.5],
        "high": [1.5, 4.0, 6.5, 7.0],
    }
)


def test_seeds_are_averaged_and_their_intervals_held():
    found = over_seeds(TABLE, ["task", "model"], "value").to_dict("records")
    assert found[0] == {
        "task": "a",
        "model": "m",
        "value": 2.0,
        "low": 0.0,
        "high": 4.0,
        "seeds": 2,
    }


def test_models_are_resampled_after_their_seeds_are_averaged():
    (row,) = over_groups(TABLE, ["task"], "value", "model").to_dict("records")
    assert row == {"task": "a", "value": 4.0, "low": 2.0, "high": 6.0, "n": 2}


def test_of_one_model_the_seeds_intervals_are_held():
    (row,) = over_groups(TABLE.head(2), ["task"], "value", "model").to_dict("records")
    assert row == {"task": "a", "value": 2.0, "low": 0.0, "high": 4.0, "n": 1}


def test_models_without_a_number_do_not_count():
    table = TABLE.assign(value=[np.nan, np.nan, 6.0, 6.0])
    (row,) = over_groups(table, ["task"], "value", "model").to_dict("records")
    assert (row["value"], row["n"]) == (6.0, 1)


def test_the_interval_of_a_mean_is_about_two_standard_errors_wide():
    values = np.random.default_rng(0).normal(size=400)
    low, high = bootstrap_ends(values)
    assert (high - low) / 2 == pytest.approx(1.96 * values.std() / 20, rel=0.1)
    assert bootstrap_ends(values) == (low, high)


def test_groups_are_drawn_as_a_whole():
    values, groups = np.repeat([0.0, 1.0, 2.0, 3.0], 100), np.repeat(list("abcd"), 100)
    together, alone = bootstrap_ends(values, groups), bootstrap_ends(values)
    assert together[1] - together[0] > 5 * (alone[1] - alone[0])


@pytest.mark.parametrize("n", [0, 1])
def test_of_less_than_two_there_is_no_interval(n):
    assert np.isnan(bootstrap_ends(np.ones(n))).all()
    assert np.isnan(bootstrap_ends(np.ones(3), ["a"] * 3)).all()


@pytest.mark.parametrize(("share", "n"), [(0.0, 5), (1.0, 40), (0.3, 12)])
def test_many_wilson_intervals_are_those_of_each(share, n):
    low, high = wilson_ends(np.array([share, np.nan]), np.array([float(n), 3.0]))
    expected = wilson(share, n)
    assert (low[0], high[0]) == pytest.approx((expected.low, expected.high))
    assert np.isnan([low[1], high[1]]).all()
