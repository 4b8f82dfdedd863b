import numpy as np
import pandas as pd
import pytest

from memloc.reporting.means import (
    bootstrap_ends,
    layers_to_undo,
    over_groups,
    over_seeds,
)
from memloc.stats.windows import windows

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


def make_windows(error, depth=4, full=1.0):
    """One run; `error` says of a window (from 0) how much it undoes."""
    key = {"task": "a", "model": "m", "seed": 1, "method": "swapping"}
    rows = [
        {
            **key,
            "first": w.start + 1,
            "last": w.stop,
            "error": error(w),
            "normalised": error(w) / full,
        }
        for w in windows(depth)
    ]
    return pd.DataFrame(rows)


def test_the_best_window_and_windows_on_average_are_two_readings():
    """Everything is in layer 1: the best window has one layer, and only all four always hold it."""
    (row,) = layers_to_undo(make_windows(lambda w: float(0 in w))).to_dict("records")
    # Windows of three: layers 1-3 undo all, layers 2-4 nothing; by layer 1, 1/2, 1/2, 0.
    assert (row["best"], row["on_average"]) == (1, 4)


def test_both_are_a_share_of_what_all_layers_undo():
    (row,) = layers_to_undo(make_windows(lambda w: 0.2 * len(w), full=0.8)).to_dict("records")
    assert (row["best"], row["on_average"]) == (4, 4)  # all layers undo 80 %
    (row,) = layers_to_undo(make_windows(lambda w: float(len(w) > 1))).to_dict("records")
    assert (row["best"], row["on_average"]) == (2, 2)


def test_nothing_undone_takes_no_number_of_layers():
    (row,) = layers_to_undo(make_windows(lambda _w: 0.0, full=np.nan)).to_dict("records")
    assert np.isnan([row["best"], row["on_average"]]).all()
