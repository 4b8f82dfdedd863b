"""The four shapes of figures: valid, with the axes, frames and marks that were asked for."""

import json
import re

import pandas as pd
import pytest
import vl_convert

from memloc.reporting.figures.figure import FIGURES
from memloc.reporting.figures.shapes import Look, draw

BY_NAME = {figure.name: figure for figure in FIGURES}
EACH = pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.name)


@EACH
def test_a_figure_is_valid_for_every_choice(figure, findings):
    drawn = figure.drawn(findings)
    for choice in drawn.choices(figure.choose)[:2]:
        spec = drawn.with_rows(choice)
        json.dumps(spec, allow_nan=False)
        assert vl_convert.vegalite_to_vega(spec)["marks"]


LAYERS = {"events": ("x", "y"), "layers": ("x",), "centroids": ("x",), "label-probes": ("x",)}


@pytest.mark.parametrize(("name", "axis"), [(n, a) for n, axes in LAYERS.items() for a in axes])
def test_axes_of_layers_have_whole_numbers_only(findings, name, axis):
    drawn = BY_NAME[name].drawn(findings)
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


def test_a_look_with_a_word_that_nobody_knows_is_refused():
    with pytest.raises(ValueError, match="colur"):
        Look(x="x", y="y", hover={}, colur="task")


@EACH
def test_everything_shown_on_hover_is_named_in_words(figure, findings):
    text = json.dumps(figure.drawn(findings).spec, ensure_ascii=False)
    titles = re.findall(r'"title": "([^"]*)"', text)
    assert titles
    assert not [title for title in titles if "_" in title]
