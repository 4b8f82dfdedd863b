"""Figures: their four shapes, charts taken apart, and as files."""

import json
import re

import altair as alt
import numpy as np
import pandas as pd
import pytest
import vl_convert

from fixtures.studies import CURVE
from memloc.errors import StoreError, UnknownName
from memloc.reporting.figures import (
    DATA,
    FIGURES,
    Drawn,
    Figure,
    Look,
    draw,
    save_figure,
    write_figures,
)
from memloc.stats.calibration import weakness

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


def test_figures_are_written_one_a_choice(results, tmp_path):
    names = ["mcog-models", "control-methods"]
    written, missing = write_figures(results, tmp_path, "svg", names)
    methods = ("gradients", "probing", "retraining", "shares", "swapping")
    expected = {"control-methods.svg", *(f"mcog-models-{m}.svg" for m in methods)}
    assert {path.name for path in written} == expected == {p.name for p in tmp_path.iterdir()}
    assert missing == []
    drawn = {method: (tmp_path / f"mcog-models-{method}.svg").read_text() for method in methods}
    assert "tiny-acceptability" in drawn["swapping"]
    # Below a figure is what the measured error rates say against its method.
    accused = [m for m in methods if "calibration" in weakness(m)]
    assert {"gradients", "probing"} <= set(accused) < set(methods)
    assert [m for m in methods if "calibration" in drawn[m]] == accused


def test_figures_without_results_are_named(nothing, tmp_path):
    written, missing = write_figures(nothing, tmp_path, "png")
    assert written == []
    assert [figure.name for figure in missing] == [figure.name for figure in FIGURES]


@pytest.mark.parametrize(
    ("kind", "only", "words"),
    [("gif", [], "No figure format"), ("png", ["layer"], "Did you mean 'layers'")],
    ids=["format", "name"],
)
def test_unknown_formats_and_figures_are_refused(nothing, tmp_path, kind, only, words):
    with pytest.raises(UnknownName, match=words):
        write_figures(nothing, tmp_path, kind, only)


@pytest.mark.parametrize(
    ("kind", "start"), [("png", b"\x89PNG\r\n"), ("svg", b"<svg"), ("pdf", b"%PDF-")]
)
def test_a_figure_is_written_by_its_ending(tmp_path, kind, start):
    path = tmp_path / "new" / f"curve.{kind}"
    save_figure("training", CURVE, path)
    assert path.read_bytes().startswith(start)
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_an_unknown_ending_is_refused(tmp_path):
    with pytest.raises(UnknownName, match="Did you mean 'png'"):
        save_figure("training", CURVE, tmp_path / "curve.pngg")
    assert not list(tmp_path.iterdir())


def test_a_figure_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="Cannot write"):
        save_figure("training", CURVE, tmp_path / "file" / "curve.png")


BY_NAME = {figure.name: figure for figure in FIGURES}
EACH = pytest.mark.parametrize(
    "figure", [f for f in FIGURES if f.name != "timeline"], ids=lambda figure: figure.name
)
"""The study of the fixtures has no timeline; tests/methods/test_timeline.py draws one."""


@EACH
def test_a_figure_is_valid_for_every_choice(figure, results):
    drawn = figure.drawn(results)
    for choice in drawn.choices(figure.choose)[:2]:
        spec = drawn.with_rows(choice)
        json.dumps(spec, allow_nan=False)
        assert vl_convert.vegalite_to_vega(spec)["marks"]


LAYERS = {"events": ("x", "y"), "layers": ("x",), "centroids": ("x",), "label-probes": ("x",)}


@pytest.mark.parametrize(("name", "axis"), [(n, a) for n, axes in LAYERS.items() for a in axes])
def test_axes_of_layers_have_whole_numbers_only(results, name, axis):
    drawn = BY_NAME[name].drawn(results)
    few = {**drawn.spec, "datasets": {"drawn": drawn.rows.head(2).to_dict("records")}}
    axes = [a for a in _axes(vl_convert.vegalite_to_vega(few)) if a["scale"] == axis]
    labelled = [a for a in axes if a.get("labels", True)]
    assert labelled
    assert all(a["tickMinStep"] == 1 for a in labelled)


def _axes(part):
    """Every axis of a Vega specification."""
    found = list(part.get("axes", []))
    for mark in part.get("marks", []):
        found += _axes(mark)
    return found


@pytest.mark.parametrize(("low", "whole"), [(1.0, True), (5.6, False)], ids=["events", "centres"])
def test_depths_that_are_far_apart_get_whole_numbers(low, whole):
    depths = {"depth": [low, 6.0], "depth_low": [low, 6.0], "depth_high": [low, 6.0]}
    scores = {"score": [0.1, 0.2], "score_low": [0.1, 0.2], "score_high": [0.1, 0.2]}
    table = pd.DataFrame({"task": ["a", "b"], "model": "m", **depths, **scores})
    table = table.assign(n_never=0, n_inseparable=0)
    svg = vl_convert.vegalite_to_svg(BY_NAME["generalisation"].draw(table).to_dict())
    labels = re.findall(r">(\d+(?:\.\d+)?)</text>", svg.split("Y-axis")[1].split("X-axis")[0])
    assert labels
    assert all(label.isdigit() for label in labels) == whole


def marks_of(shape, rows, **look):
    spec = draw(shape, pd.DataFrame(rows), Look(**look)).to_dict()
    return [layer["mark"]["type"] for layer in spec["layer"]]


PAIR = [{"task": "a", "x": 1, "y": 2.0, "low": 1.0, "high": 3.0, "chance": 0.1}]


@pytest.mark.parametrize(
    ("more", "marks"),
    [
        ({}, ["area", "line", "point"]),
        ({"intervals": ()}, ["line", "point"]),
        ({"chance": "chance", "line": 0.5}, ["area", "line", "rule", "line", "point"]),
        ({"rules": ("low", "high")}, ["area", "line", "rule", "point"]),
    ],
    ids=["band", "no interval", "chance and half", "rules"],
)
def test_curves_have_what_is_asked_for(more, marks):
    assert marks_of("curves", PAIR, x="x", y="y", hover={"task": None}, **more) == marks


def test_points_have_a_rule_along_each_axis_and_a_diagonal_where_asked():
    ends = {"intervals": ("low", "high", "low", "high"), "line": "diagonal"}
    found = marks_of("points", PAIR, x="x", y="y", hover={"y": ".2f"}, **ends)
    assert found == ["rule", "rule", "rule", "point"]


def test_correlations_have_a_scale_around_0():
    look = Look(x="x", y="task", colour="y", limits=[-1, 1], hover={}, text="y")
    cells, words = draw("cells", pd.DataFrame(PAIR), look).to_dict()["layer"]
    assert cells["encoding"]["color"]["scale"]["domainMid"] == 0
    assert words["mark"]["type"] == "text"


def test_intervals_of_bars_have_the_ink_of_the_page():
    look = {"x": "y", "y": "task", "bars": True, "chance": "chance", "hover": {}}
    layers = draw("bars", pd.DataFrame(PAIR), Look(**look)).to_dict()["layer"]
    assert [layer["mark"]["type"] for layer in layers] == ["bar", "rule", "tick"]
    assert ["color" in layer["encoding"] for layer in layers] == [True, False, True]


def test_one_bar_goes_on_as_a_line_that_others_have_to_beat():
    look = {"x": "y", "y": "task", "bars": True, "chance": "chance", "hover": {}, "line": "a"}
    *_, line = draw("bars", pd.DataFrame(PAIR), Look(**look)).to_dict()["layer"]
    assert line["mark"]["type"] == "rule"
    assert line["transform"] == [{"filter": "(datum['task'] === 'a')"}]
    assert line["encoding"]["x"]["field"] == "y"
    assert not {"y", "yOffset", "x2"} & {*line["encoding"]}


@pytest.mark.parametrize(("rows", "step"), [(1, 24), (20, 18), (26, 14), (90, 14)])
def test_many_rows_share_the_first_screen(rows, step):
    table = pd.DataFrame({"row": [f"task {i}" for i in range(rows)], "layer": 1, "weight": 0.5})
    look = Look(x="layer", y="row", colour="weight", hover={}, height=None, step=24, tallest=360)
    assert draw("cells", table, look).to_dict()["height"] == {"step": step}


def test_many_bands_do_not_hide_the_lines():
    def shades(n):
        rows = pd.DataFrame([{**PAIR[0], "task": f"task {i}"} for i in range(n)])
        look = Look(x="x", y="y", hover={"task": None})
        band = draw("curves", rows, look).to_dict()["layer"][0]
        opacity = band["encoding"]["opacity"]
        clicked, usual = (c["value"] for c in opacity["condition"])
        return clicked, usual, opacity["value"]

    assert shades(12)[1] < shades(3)[1]
    for clicked, usual, other in (shades(3), shades(12)):
        assert clicked >= usual > other


def test_a_look_with_a_word_that_nobody_knows_is_refused():
    with pytest.raises(ValueError, match="colur"):
        Look(x="x", y="y", hover={}, colur="task")


@EACH
def test_everything_shown_on_hover_is_named_in_words(figure, results):
    text = json.dumps(figure.drawn(results).spec, ensure_ascii=False)
    titles = re.findall(r'"title": "([^"]*)"', text)
    assert titles
    assert not [title for title in titles if "_" in title]


def test_the_parts_of_a_layer_are_a_split_of_its_bar():
    parts = pd.DataFrame(
        {
            **{"task": "t", "category": "c", "model": "m", "method": "shares", "remark": ""},
            **{"seed": [1, 1, 1, 2], "value": "labels", "share": [0.1, 0.3, 0.2, 0.5]},
            **{"unit": ["attention 1", "mlp 1", "mlp 10", "mlp 1"], "first": [1, 1, 10, 1]},
            **{"last": [1, 1, 10, 1], "low": 0.0, "high": 1.0},
        }
    )
    (figure,) = Figure.chosen(FIGURES, ["units"])
    rows = figure.rows(parts)
    assert rows["layers"].tolist() == ["1", "1", "10"]
    assert rows["kind"].tolist() == ["attention", "mlp", "mlp"]
    assert rows["share"].tolist() == [0.1, 0.4, 0.2]
    chart = figure.draw(parts).to_dict()
    assert chart["layer"][0]["encoding"]["y"]["stack"] == "zero"


def test_what_layers_do_alone_is_drawn_by_layer():
    ends = {f"{n}{e}": 0.5 for n in ("alone_out", "alone_in") for e in ("", "_low", "_high")}
    keys = {"task": "t", "category": "c", "model": "m", "seed": 1, "value": "labels"}
    (figure,) = Figure.chosen(FIGURES, ["alone"])
    rows = figure.rows(pd.DataFrame([{**keys, "layer": n, **ends} for n in (1, 2)]))
    assert rows.groupby("what").size().tolist() == [2, 2]


def test_file_names_leave_out_what_all_files_share(results, tmp_path):
    alone = results.only(model="tiny-bert")
    written, _ = write_figures(alone, tmp_path, "svg", ["layers"])
    assert {path.name for path in written} == {
        f"layers-{method}.svg" for method in alone.layers["method"].unique()
    }
