"""Figures of windows of layers, from tables made by hand."""

import numpy as np
import pandas as pd
import pytest

from memloc.reporting.figures.windows import (
    MOST_EXAMPLES,
    example_layers,
    example_weights,
    spread,
    window_matrices,
)
from memloc.stats.intervals import wilson

ENDS = np.array([(1, 1), (2, 2), (1, 2)])


def make_table(errors, full, clean=(0.0, 0.0, 0.1)):
    key = {"task": "t", "model": "m", "method": "swapping", "seed": 1, "n_noisy": 10}
    rows = [
        {**key, "first": a, "last": b, "error": e, "normalised": e / full, "clean_error": c}
        for (a, b), e, c in zip(ENDS, errors, clean, strict=True)
    ]
    return pd.DataFrame(rows)


def test_cells_are_shares_of_what_all_layers_undo_but_differences_are_plain():
    drawn = window_matrices(make_table((0.2, 0.4, 0.8), full=0.8)).data
    cells = drawn.set_index(["width", "layer"])
    assert cells["error"].to_dict() == pytest.approx(
        {(1, 1): 0.25, (1, 2): 0.5, (2, 1): 1, (2, 2): 1}
    )
    assert cells.loc[(1, 2), "low"] == pytest.approx(wilson(0.4, 10).low / 0.8)
    assert cells.loc[(2, 1), "difference"] == pytest.approx(0.7)


def test_without_any_error_cells_are_empty_and_not_divided():
    drawn = window_matrices(make_table((0.0, 0.0, 0.0), full=np.nan)).data
    assert drawn["error"].tolist() == [0.0] * 4


def test_an_examples_weight_is_the_share_of_windows_with_a_layer_that_revert_it():
    wrong = np.array([[True, False, True], [False, False, True], [False, False, False]])
    found = example_weights(wrong, ENDS)
    # By layer: the mean of its window of one layer and that of both.
    assert found.tolist() == [[1.0, 0.5], [0.5, 0.5], [0.0, 0.0]]
    assert spread(found).tolist() == [0, 1, 2]  # what is never reverted comes last


def test_of_many_examples_evenly_spaced_ones_are_drawn():
    n = 3 * MOST_EXAMPLES
    weights = np.column_stack([np.linspace(1, 0.1, n), np.linspace(0.1, 1, n)])
    drawn = spread(weights)
    assert len(drawn) == MOST_EXAMPLES
    assert (drawn[0], drawn[-1]) == (0, n - 1)


def test_examples_with_the_same_text_have_rows_of_their_own():
    key = {"task": "t", "model": "m", "method": "swapping", "seed": 1}
    texts = {"text": "same", "original": "a", "assigned": "b"}
    rows = [
        {**key, **texts, "example": e, "first": a, "last": b, "wrong": True}
        for e in (3, 8)
        for a, b in ENDS
    ]
    assert set(example_layers(pd.DataFrame(rows)).data["row"]) == {"same  #3", "same  #8"}
