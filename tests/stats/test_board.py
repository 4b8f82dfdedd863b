"""The board's table, from weights that are known."""

import pandas as pd
import pytest

from memloc.stats.board import by_kind, by_method, disguised

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


def test_a_method_that_sees_functions_is_not_moved_by_a_disguise(layers):
    assert disguised(layers) == {"sees functions": 0, "sees weights": 1}


def test_nulls_are_called_by_the_distance_of_weights_where_there_is_no_answer(layers):
    none = pd.DataFrame(columns=["method", "null", "word", "right"])
    table = by_method(layers, none).set_index("method")
    assert table["called"].to_dict() == {"sees functions": 0, "sees weights": 1}
    assert table.loc["sees weights", "changed_by_disguise"] == 1


def test_a_board_without_decoys_or_nulls_has_no_such_numbers(layers):
    easy = layers[(layers["planted"] == "1-2") & ~layers["null"]]
    none = pd.DataFrame(columns=["method", "null", "word", "right"])
    assert disguised(easy) == {}
    assert by_method(easy, none).empty
