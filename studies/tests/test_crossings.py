"""Crossings by other rules, on curves made by hand."""

import numpy as np
import pandas as pd
import pytest

from memloc.errors import UnknownName
from studies.crossings import crossings


def make_table(means, highs=None, separable=None, task="a"):
    n = len(means)
    own = pd.DataFrame(
        {
            "task": task,
            "model": "m",
            "seed": 1,
            "variant": "plain",
            "layer": np.arange(n),
            "kind": "noisy",
            "mean": means,
            "mean_high": means if highs is None else highs,
            "separable": True if separable is None else separable,
        }
    )
    return pd.concat([own, own.assign(kind="clean a", mean=0.0, mean_high=0.0)])


@pytest.mark.parametrize(
    ("means", "highs", "first", "last", "sure"),
    [
        ([1, 0.48, 0.6, 0.4, 0.2], [1, 0.7, 0.7, 0.55, 0.3], 1, 3, 4),
        ([0.1, 0.9, 0.8, 0.7, 0.6], None, np.nan, np.nan, np.nan),
        ([1, 0.3, 0.2, 0.2, 0.1], [1, 0.4, 0.3, 0.3, 0.2], 1, 1, 1),
        ([1, 0.9, 0.8, 0.7, 0.4], [1, 1, 0.9, 0.8, 0.6], 4, 4, np.nan),
    ],
    ids=["by-chance-first", "never", "layer-1", "not-sure"],
)
def test_rules_differ_where_the_mean_is_unsure(means, highs, first, last, sure):
    table = make_table(means, highs)
    for which, expected in (("first", first), ("last", last), ("sure", sure)):
        found = crossings(table, which)
        np.testing.assert_equal(found["layer"].tolist(), [expected])
        assert found["separable"].tolist() == [not np.isnan(expected)]


def test_a_sure_crossing_is_where_classes_are_apart():
    table = make_table([1, 0.2, 0.2, 0.1], separable=[False, False, True, True])
    assert crossings(table, "first")[["layer", "separable"]].to_numpy().tolist() == [[1, False]]
    assert crossings(table, "sure")[["layer", "separable"]].to_numpy().tolist() == [[2, True]]


@pytest.mark.parametrize("depth", [4, 6, 12, 24])
def test_every_run_has_its_own(depth):
    late = [1.0] * depth + [0.1]
    table = pd.concat([make_table(late), make_table([0.0] * (depth + 1), task="b")])
    found = crossings(table, "last")
    assert found["task"].tolist() == ["a", "b"]
    assert found["layer"].tolist() == [depth, 1]


def test_the_order_of_rows_does_not_matter():
    table = make_table([1, 0.4, 0.6, 0.2])
    pd.testing.assert_frame_equal(crossings(table, "first"), crossings(table[::-1], "first"))


def test_an_unknown_rule_is_named():
    with pytest.raises(UnknownName, match="No kind of crossing is called 'second'"):
        crossings(make_table([1, 0]), "second")


def test_no_runs_have_no_crossings():
    assert len(crossings(make_table([1, 0]).iloc[:0], "sure")) == 0
