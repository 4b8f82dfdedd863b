import pandas as pd
import pytest

import memloc
from memloc.errors import ScoreError
from memloc.methods.result import Result


@pytest.fixture
def found(memorised_run):
    return memloc.localise(memorised_run, ["shares", "swapping"])


def test_results_and_runs_draw_themselves_as_the_report_does(found, memorised_run):
    one = found["shares"].plot().to_dict()
    assert "shares" in one["title"]
    assert len(found.plot().to_dict()["concat"]) == 2
    assert memorised_run.plot().to_dict()["title"] == "How the labels or texts were learnt"


def test_a_result_without_a_table_of_layers_says_that_it_is_not_drawn():
    with pytest.raises(ScoreError, match="odd left no table"):
        Result("odd", {"words": pd.DataFrame({"word": ["a"]})}).plot()
