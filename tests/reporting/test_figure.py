"""A chart taken apart."""

import altair as alt
import numpy as np
import pandas as pd
import pytest

from memloc.reporting.figures.figure import DATA, Drawn

ROWS = pd.DataFrame({"model": ["m", "m", "n"], "task": ["a", "b", "a"], "y": [1.0, np.nan, 3.0]})


@pytest.fixture
def drawn():
    run = {"task": "a", "model": "m", "seed": 1}
    marked = pd.DataFrame([{**run, "remark": "Odd."}, {**run, "model": "n", "remark": "Odd."}])
    chart = alt.Chart(ROWS).mark_point().encode(x="task:N", y="y:Q")
    return Drawn.of(chart, marked)


def test_the_definition_has_no_rows_and_the_rows_are_all_there(drawn):
    assert drawn.spec["data"] == {"name": DATA}
    assert "datasets" not in drawn.spec
    pd.testing.assert_frame_equal(drawn.rows, ROWS)


def test_choices_are_the_combinations_that_have_rows(drawn):
    assert drawn.choices([]) == [{}]
    found = drawn.choices(["model", "task"])
    assert [tuple(choice.values()) for choice in found] == [("m", "a"), ("m", "b"), ("n", "a")]


def test_a_choice_has_its_rows_only_and_what_is_missing_is_none(drawn):
    whole = drawn.with_rows({"model": "m"})
    assert whole["datasets"][DATA] == [
        {"model": "m", "task": "a", "y": 1.0},
        {"model": "m", "task": "b", "y": None},
    ]


def test_remarks_are_those_of_the_choice(drawn):
    assert drawn.remarks({"model": "m", "method": "any"}) == "Odd (a · m · seed 1)."
    assert drawn.remarks({"model": "other"}) == ""
    assert "a · n · seed 1" in drawn.remarks({})
