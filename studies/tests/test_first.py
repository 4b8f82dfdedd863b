"""Whether clean labels are learnt first, from training curves of which the answer is known."""

from types import SimpleNamespace

import pandas as pd
import pytest

from studies.first import gaps, learning


@pytest.fixture(scope="module")
def found():
    """Five tasks; a run with twice the epochs has its quarter twice as late."""
    rows = [
        {"task": f"task-{i}", "model": "m", "seed": 1, "training": "noisy", "epoch": epoch * length}
        | {"noisy_accuracy": known, "clean_accuracy": 1.0, "noisy_as_original": 1 - known}
        for i, length in enumerate((1, 1, 1, 1, 2))
        for epoch, known in ((3, 0.1), (4, 0.2), (8, 0.5), (12, 0.75), (16, 1.0))
    ]
    others = [{**row, "training": "original", "noisy_accuracy": 0.0} for row in rows]
    return SimpleNamespace(memorised=lambda _: pd.DataFrame([*rows, *others]))


def test_quarters_are_those_of_each_training_on_noisy_labels(found):
    table = gaps(found)
    assert sorted(table["quarter"].unique()) == [0.25, 0.5, 0.75, 1]
    assert table.query("quarter == 0.25")["gap"].tolist() == pytest.approx([0.8] * 5)


def test_accuracies_are_means_over_tasks(found):
    table = learning(found).set_index("of all epochs")
    assert table.loc["25%", "wrong labels known"] == "0.20 [0.20, 0.20]"
    assert table.loc["100%", "clean minus wrong"] == "0.00 [0.00, 0.00]"
