"""Counts of answers over runs, and what the calibration says of each method."""

import numpy as np
import pandas as pd
import pytest

from memloc.stats.calibration import over_plants, over_runs, rates, weakness


def test_over_runs_each_run_counts_once():
    words = ["concentrated", "even", "cannot tell", "concentrated", "uneven"]
    rows = {"method": "shares", "word": words, "finding": [True, True, False, False, True]}
    more = {"method": "swapping", "word": words[:3], "agrees": ["yes", "", "no"]}
    primary = pd.DataFrame(rows).assign(primary=True, agrees="")
    found = over_runs(pd.concat([primary, pd.DataFrame(more).assign(primary=False, finding=False)]))
    row = found.iloc[0]
    counts = row[["runs", "n_concentrated", "n_uneven", "n_even", "n_cannot_tell", "findings"]]
    assert counts.tolist() == [5, 2, 1, 1, 1, "3"]
    assert row["agrees"] == "–"
    assert found.iloc[1][["findings", "agrees"]].tolist() == ["–", "1 of 2"]
    assert row["concentrated"] == 0.4
    assert 0.1 < row["concentrated_low"] < 0.2


def test_over_plants_right_layers_and_called_nulls_are_counted():
    rows = {
        "method": "shares",
        "null": [False, False, False, True, True],
        "word": ["concentrated", "concentrated", "even", "concentrated", "cannot tell"],
        "right": [True, False, False, False, False],
    }
    row = over_plants(pd.DataFrame(rows)).iloc[0]
    assert (row["plants"], row["nulls"]) == (3, 2)
    assert (row["right"], row["called"]) == (pytest.approx(1 / 3), 0.5)
    real = pd.DataFrame(rows).iloc[:3]
    assert np.isnan(over_plants(real).iloc[0]["called"])


def test_plants_without_any_answer_have_no_share_of_right_ones():
    rows = {"method": "shares", "null": [False, True], "word": "cannot tell", "right": False}
    row = over_plants(pd.DataFrame(rows)).iloc[0]
    assert (row["plants"], row["told"]) == (1, 0)
    assert np.isnan(row["right"])


def test_what_speaks_against_a_method_is_what_was_measured():
    assert weakness("shares") == ""
    assert weakness("retraining") == "How often retraining is right has not been measured."
    assert f"{rates()['probing']['false_concentrated']:.0%} of" in weakness("probing")
