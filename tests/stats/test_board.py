"""The board's table, from weights that are known."""

import pandas as pd
import pytest

from memloc.stats.board import by_kind, by_method, disguised
from memloc.stats.planted import BASELINE

HALF = [0.5, 0.5, 0, 0]
FLAT = [0.25] * 4


def rows(method, planted, weights, null=False):
    key = {"task": "t", "category": "c", "model": "m", "seed": 1, "planted": planted}
    key |= {"first": 1, "last": 2, "null": null, "method": method, "undone": 1.0}
    return [{**key, "layer": layer, "weight": w} for layer, w in enumerate(weights, 1)]


@pytest.fixture
def layers():
    found = [
        *rows("sees functions", "1-2", HALF),
        *rows("sees functions", "decoy 1-2", HALF),
        *rows("sees functions", "1-2", FLAT, null=True),
        *rows("sees weights", "1-2", HALF),
        *rows("sees weights", "decoy 1-2", HALF[::-1]),
        *rows("sees weights", "1-2", HALF, null=True),
    ]
    return pd.DataFrame(found)


def test_kinds_of_plants_are_scored_apart(layers):
    table = by_kind(layers).set_index(["method", "kind"])
    assert table.loc[("sees functions", "decoy"), "planted_mass"] == 1
    assert table.loc[("sees weights", "easy"), "planted_mass"] == 1
    assert table.loc[("sees weights", "decoy"), "planted_mass"] == 0
    assert table.loc[("sees functions", "easy"), ["accuracy_1", "accuracy_2"]].tolist() == [1, 1]


def test_the_best_trivial_baseline_is_a_line_of_its_own(layers):
    even = [row for name in ("1-2", "decoy 1-2") for row in rows("even", name, FLAT)]
    every = pd.concat([layers, pd.DataFrame(even)])
    trivial = ["sees weights", "even"]
    line = by_kind(every, trivial).set_index(["method", "kind"]).loc[BASELINE]
    assert line["planted_mass"].to_dict() == {"easy": 1, "decoy": 0.5}
    assert line.loc["decoy", "accuracy_1"] == 0.5
    none = pd.DataFrame(columns=["method", "null", "word", "right"])
    table = by_method(every, none, trivial).set_index("method")
    assert table.loc[BASELINE, ["called", "changed_by_disguise"]].tolist() == [1, 0]
    assert BASELINE not in {*by_kind(every)["method"], *by_method(every, none)["method"]}


def test_a_method_that_sees_functions_is_not_moved_by_a_disguise(layers):
    assert disguised(layers) == {"sees functions": 0, "sees weights": 1}


def test_nulls_are_called_by_the_distance_of_weights_where_there_is_no_answer(layers):
    none = pd.DataFrame(columns=["method", "null", "word", "right"])
    table = by_method(layers, none).set_index("method")
    assert table["called"].to_dict() == {"sees functions": 0, "sees weights": 1}
    assert table.loc["sees weights", "changed_by_disguise"] == 1


def test_the_null_of_a_decoy_counts_only_where_it_looks_different(layers):
    nulls = [
        *rows("sees functions", "decoy 1-2", FLAT, null=True),
        *rows("sees weights", "decoy 1-2", HALF[::-1], null=True),
    ]
    none = pd.DataFrame(columns=["method", "null", "word", "right"])
    table = by_method(pd.concat([layers, pd.DataFrame(nulls)]), none).set_index("method")
    assert table["nulls"].to_dict() == {"sees functions": 1, "sees weights": 2}


def test_a_board_without_decoys_or_nulls_has_no_such_numbers(layers):
    easy = layers[(layers["planted"] == "1-2") & ~layers["null"]]
    none = pd.DataFrame(columns=["method", "null", "word", "right"])
    assert disguised(easy) == {}
    assert by_method(easy, none).empty
