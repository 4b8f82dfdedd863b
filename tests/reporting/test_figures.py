import pandas as pd
import pytest

from memloc.errors import StoreError, UnknownName
from memloc.reporting.figures import save_figure, training_curves
from memloc.reporting.terminal import CURVES

TABLE = pd.DataFrame(
    {
        "training": ["noisy", "noisy", "original"],
        "epoch": [1, 2, 1],
        "accuracy": [0.5, 0.9, 0.1],
        "clean_accuracy": [0.5, 1.0, 0.11],
        "noisy_accuracy": [0.2, 0.7, 0.12],
        "noisy_as_original": [0.8, 0.3, 0.13],
        "validation_accuracy": [0.6, 0.65, 0.14],
    }
)


def drawn(chart):
    spec = chart.to_dict()
    (rows,) = spec["datasets"].values()
    return {(row["group"], row["epoch"]): row["accuracy"] for row in rows}


def test_the_values_drawn_are_those_of_the_table():
    noisy = TABLE[TABLE["training"] == "noisy"]
    expected = {
        (label, row["epoch"]): row[column]
        for column, label in CURVES.items()
        for _, row in noisy.iterrows()
    }
    assert drawn(training_curves(TABLE)) == expected


def test_the_table_is_not_changed_by_drawing():
    before = TABLE.copy()
    training_curves(TABLE)
    pd.testing.assert_frame_equal(TABLE, before)


def test_the_axis_shows_everything_from_0_to_1():
    assert '"domain": [0, 1]' in training_curves(TABLE).to_json(indent=None)


@pytest.mark.parametrize(
    ("kind", "start"), [("png", b"\x89PNG\r\n"), ("svg", b"<svg"), ("pdf", b"%PDF-")]
)
def test_a_figure_is_written_by_its_ending(tmp_path, kind, start):
    path = tmp_path / "new" / f"curve.{kind}"
    save_figure(training_curves(TABLE), path)
    assert path.read_bytes().startswith(start)
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_an_unknown_ending_is_refused(tmp_path):
    with pytest.raises(UnknownName, match="Did you mean 'png'"):
        save_figure(training_curves(TABLE), tmp_path / "curve.pngg")
    assert not list(tmp_path.iterdir())


def test_a_figure_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="Cannot write"):
        save_figure(training_curves(TABLE), tmp_path / "file" / "curve.png")
