"""Figures: charts taken apart, and as files."""

import altair as alt
import numpy as np
import pandas as pd
import pytest

from memloc.errors import StoreError, UnknownName
from memloc.reporting.figures.figure import DATA, FIGURES, Drawn, save_figure, write_figures

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


def test_figures_are_written_one_a_choice(findings, tmp_path):
    names = ["mcog-models", "control-methods"]
    written, missing = write_figures(findings.results, tmp_path, "svg", names)
    methods = ("gradients", "probing", "retraining", "shares", "swapping")
    expected = {"control-methods.svg", *(f"mcog-models-{m}.svg" for m in methods)}
    assert {path.name for path in written} == expected == {p.name for p in tmp_path.iterdir()}
    assert missing == []
    assert "tiny-acceptability" in (tmp_path / "mcog-models-swapping.svg").read_text()


def test_figures_without_results_are_named(nothing, tmp_path):
    written, missing = write_figures(nothing.results, tmp_path, "png")
    assert written == []
    assert [figure.name for figure in missing] == [figure.name for figure in FIGURES]


@pytest.mark.parametrize(
    ("kind", "only", "words"),
    [("gif", [], "No figure format"), ("png", ["layer"], "Did you mean 'layers'")],
    ids=["format", "name"],
)
def test_unknown_formats_and_figures_are_refused(nothing, tmp_path, kind, only, words):
    with pytest.raises(UnknownName, match=words):
        write_figures(nothing.results, tmp_path, kind, only)


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


@pytest.mark.parametrize(
    ("kind", "start"), [("png", b"\x89PNG\r\n"), ("svg", b"<svg"), ("pdf", b"%PDF-")]
)
def test_a_figure_is_written_by_its_ending(tmp_path, kind, start):
    path = tmp_path / "new" / f"curve.{kind}"
    save_figure("training", TABLE, path)
    assert path.read_bytes().startswith(start)
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_an_unknown_ending_is_refused(tmp_path):
    with pytest.raises(UnknownName, match="Did you mean 'png'"):
        save_figure("training", TABLE, tmp_path / "curve.pngg")
    assert not list(tmp_path.iterdir())


def test_a_figure_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="Cannot write"):
        save_figure("training", TABLE, tmp_path / "file" / "curve.png")
