"""Tables for people, from numbers made by hand."""

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import save_file

from memloc.reporting import layouts
from memloc.reporting.findings import Findings
from memloc.reporting.layouts import layer_parameters, pretraining, rounded
from memloc.reporting.tables import TABLES
from memloc.results import load_results
from study_support import write_adopted


def test_numbers_have_marks_and_intervals_where_there_are_some():
    values = pd.Series([0.5, 0.25, np.nan])
    low, high = np.array([0.4, np.nan, 0.1]), np.array([0.6, 0.9, 0.2])
    found = layouts.estimates(values, low, high, ["*", "", ""])
    assert found == ["0.50* [0.40, 0.60]", "0.25", "–"]


def test_what_was_adopted_is_own_data_without_an_accuracy_on_unseen_ones(tmp_path):
    findings = Findings(load_results(write_adopted(tmp_path / "mine").folder))
    (task,) = layouts.tasks(findings).to_dict("records")
    assert (task["dataset"], task["task"], task["size"]) == ("mine", "own data", 40)
    (table,) = [table for table in TABLES if table.name == "runs"]
    (run,) = table.layout(table.tidy(findings)).to_dict("records")
    assert run["validation_accuracy"] == "–"
    assert run["memorised"]
    (model,) = layouts.table_3(layouts.models(findings)).to_dict("records")
    assert (model["layers"], model["parameters"], model["tokens"]) == (4, "–", "–")


def test_parameters_of_blocks_are_counted_without_embeddings_and_head(tmp_path):
    weights = {
        "model.layers.0.fc.weight": np.zeros((3, 4), np.float32),
        "model.layers.11.fc.bias": np.zeros(5, np.float32),
        "model.embed.weight": np.zeros((7, 7), np.float32),
        "score.weight": np.zeros((2, 2), np.float32),
    }
    place = tmp_path / "checkpoints" / "final"
    place.mkdir(parents=True)
    save_file(weights, place / "model.safetensors")
    assert layer_parameters("somebody/model", tmp_path) == 17


def test_without_weights_nothing_is_counted(tmp_path):
    assert layer_parameters("somebody/model", tmp_path) is None
    assert pretraining("somebody/model") == {}


@pytest.mark.parametrize(
    ("number", "text"),
    [(None, "–"), (12, "12"), (1_500, "1.5k"), (1_234_000, "1.2M"), (180e9, "180B")],
)
def test_large_numbers_are_short(number, text):
    assert rounded(number) == text
