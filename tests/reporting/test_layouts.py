"""Tables for people, from numbers made by hand."""

import numpy as np
import pandas as pd
import pytest

from memloc.reporting import layouts
from memloc.reporting.findings import Findings
from memloc.results import load_results
from study_support import write_adopted


def test_numbers_have_marks_and_intervals_where_there_are_some():
    values = pd.Series([0.5, 0.25, np.nan])
    low, high = np.array([0.4, np.nan, 0.1]), np.array([0.6, 0.9, 0.2])
    found = layouts.estimates(values, low, high, ["*", "", ""])
    assert found == ["0.50* [0.40, 0.60]", "0.25", "–"]


@pytest.mark.parametrize(
    ("methods", "words"),
    [
        ("probing", "that of probing"),
        ("probing, swapping", "the mean over swapping and probing, for tasks and models that have"),
    ],
)
def test_a_mean_names_its_methods(methods, words):
    assert layouts.averaged(methods).startswith(words)


def test_a_note_names_what_the_coefficients_have():
    row = {"rho": 0.5, "low": np.nan, "high": np.nan, "significant": False, "n_inseparable": 0}
    alone = layouts.coefficient_note(pd.DataFrame([row]))
    assert layouts.NO_INTERVAL in alone
    assert "In brackets" not in alone
    both = layouts.coefficient_note(pd.DataFrame([row, {**row, "low": 0.1, "n_inseparable": 2}]))
    assert "In brackets: 95 % bootstrap interval over tasks." in both
    assert layouts.DAGGER in both


def test_what_was_adopted_is_own_data_without_an_accuracy_on_unseen_ones(tmp_path):
    findings = Findings(load_results(write_adopted(tmp_path / "mine").folder))
    (task,) = layouts.tasks(findings).to_dict("records")
    assert (task["dataset"], task["task"], task["size"]) == ("mine", "own data", 40)
    (run,) = layouts.runs(findings.results.runs).to_dict("records")
    assert run["validation_accuracy"] == "–"
    assert run["memorised"]
    (model,) = layouts.table_3(layouts.models(findings)).to_dict("records")
    assert (model["layers"], model["parameters"], model["tokens"]) == (4, "–", "–")
