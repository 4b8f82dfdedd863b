"""Layer scores as tables: everything comes back as it was."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from memloc.errors import ScoreError, StoreError
from memloc.localise.scores import LayerScores, Outcomes, from_outcomes
from memloc.records import write_json, write_table
from memloc.score.matrix import windows
from memloc.score.uncertainty import Interval


def outcomes(depth: int = 3) -> Outcomes:
    rng = np.random.default_rng(0)
    known = tuple(windows(depth))
    share = np.array([len(window) / depth for window in known])
    return Outcomes(
        known,
        np.array([1, 4, 5, 9]),
        np.tile(share, (4, 1)) > np.array([[0.2], [0.4], [0.7], [0.9]]),
        np.array([0, 2]),
        rng.random((2, len(known))) < 0.3,
    )


def scores() -> LayerScores:
    found = from_outcomes("swapping", outcomes(), 3, normalise=True, about={"subject": "made up"})
    details = {"f1": np.arange(8.0).reshape(4, 2), "norm": np.array([0.5, np.nan, 0.25])}
    return replace(found, details=details)


def test_weights_are_column_means_of_the_normalised_matrix():
    # Windows of width 1 undo 1 of 4 labels, of width 2 two, the full one all four.
    found = scores()
    assert np.allclose(outcomes().errors, [0.25] * 3 + [0.5] * 2 + [1.0])
    assert np.allclose(found.matrix(), [[0.25] * 3, [0.5] * 3, [1.0] * 3])
    assert np.allclose(found.weights, (0.25 + 0.5 + 1) / 3)
    assert found.mcog.estimate == pytest.approx(2.0)


def test_scores_read_back_equal(tmp_path):
    path, found = tmp_path / "swapping.parquet", scores()
    found.write(path)
    back = LayerScores.read(path)
    pd.testing.assert_frame_equal(back.to_table(), found.to_table())
    assert (back.method, back.about, back.mcog) == (found.method, found.about, found.mcog)
    assert np.array_equal(back.details["f1"], found.details["f1"])
    assert np.array_equal(back.details["norm"], found.details["norm"], equal_nan=True)
    assert back.outcomes.windows == found.outcomes.windows
    for name in ("noisy_rows", "noisy_wrong", "clean_rows", "clean_wrong"):
        assert np.array_equal(getattr(back.outcomes, name), getattr(found.outcomes, name))


def test_scores_without_windows_and_without_intervals_read_back_equal(tmp_path):
    unknown = np.full(2, np.nan)
    nowhere = Interval(np.nan, np.nan, np.nan, 0.95, 7)
    found = LayerScores("mine", np.array([0.25, 0.5]), unknown, unknown, nowhere)
    found.write(tmp_path / "mine.parquet")
    back = LayerScores.read(tmp_path / "mine.parquet")
    assert back.outcomes is None
    assert back.matrix() is None
    assert np.array_equal(back.weights, found.weights)
    assert np.isnan(back.low).all()
    assert np.isnan(back.mcog.estimate)
    assert back.mcog.n_dropped == 7


def test_the_table_counts_layers_from_one_and_what_comes_before_as_zero():
    table = scores().to_table()
    assert table.loc[table["quantity"] == "weight", "layer"].tolist() == [1, 2, 3]
    f1 = table[table["quantity"] == "detail f1"]
    assert f1["layer"].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    wrong = table[table["quantity"] == "noisy wrong"]
    full = wrong[(wrong["first"] == 1) & (wrong["last"] == 3)]
    assert full["example"].tolist() == [1, 4, 5, 9]
    assert full["value"].tolist() == [1.0] * 4


def test_partial_windows_keep_their_names(tmp_path):
    known = (range(0, 1), range(1, 2), range(2, 3), range(0, 3))
    wrong = np.array([[1, 0, 0, 1], [0, 0, 1, 1]], dtype=bool)
    some = Outcomes(known, np.arange(2), wrong, np.arange(1), np.zeros((1, 4), bool))
    found = from_outcomes("retraining", some, 3, normalise=True, about={})
    found.write(tmp_path / "x.parquet")
    assert LayerScores.read(tmp_path / "x.parquet").outcomes.windows == known
    assert np.allclose(found.weights, [0.75, 0.5, 0.75])


def test_windows_that_undo_nothing_cannot_be_normalised():
    nothing = replace(outcomes(), noisy_wrong=np.zeros((4, 6), dtype=bool))
    with pytest.raises(ScoreError, match="undid no memorised label"):
        from_outcomes("swapping", nothing, 3, normalise=True, about={})


def test_a_table_of_something_else_is_refused(tmp_path):
    write_table(tmp_path / "x.parquet", pd.DataFrame({"a": [1]}), {})
    with pytest.raises(StoreError, match="holds no layer scores"):
        LayerScores.read(tmp_path / "x.parquet")
    write_json(tmp_path / "y.parquet", {})
    with pytest.raises(StoreError, match="not Parquet"):
        LayerScores.read(tmp_path / "y.parquet")


@pytest.mark.parametrize("quantity", ["weight", "weight low", "mcog", "mcog resamples dropped"])
def test_scores_that_lack_a_quantity_are_refused(tmp_path, quantity):
    table = scores().to_table()
    about = {"method": "swapping", "scores": {}}
    write_table(tmp_path / "swapping.parquet", table[table["quantity"] != quantity], about)
    with pytest.raises(StoreError, match=f"does not hold what it should.*{quantity}"):
        LayerScores.read(tmp_path / "swapping.parquet")
