"""Draws single runs and results like the report's figures, for notebooks."""

from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd

from memloc.errors import ScoreError
from memloc.methods.apply import Found
from memloc.methods.result import Result
from memloc.reporting.figures import FIGURES, Figure, draw, layers_of
from memloc.reporting.reading import Stored
from memloc.reporting.style import Theirs
from memloc.run.folder import Run

ONE: dict[str, Any] = {"category": "", "model": "", "seed": 1, "remark": ""}
"""Values of the columns that distinguish runs, for a table of a single run."""
IN_A_ROW = 2
"""Number of charts in one row."""


def chart_of(shown: Any) -> alt.TopLevelMixin:
    """Return the chart of a run (its training), of a result, or of all results of a run."""
    if isinstance(shown, Run):
        if shown.table.empty:
            raise ScoreError(f"{shown.name} was adopted without training curves to draw.")
        return drawn_as("training", shown.table)
    if isinstance(shown, Found):
        charts = map(chart_of, shown.results.values())
        scales = dict.fromkeys(("color", "fill", "shape"), "independent")
        return alt.concat(*charts, columns=IN_A_ROW).resolve_scale(**scales)
    assert isinstance(shown, Result)
    return _result_chart(shown)


def drawn_as(figure: str | Figure, table: pd.DataFrame, run: str = "this run") -> Any:
    """Draw the table of a single run as a figure of the report."""
    (known,) = Figure.chosen(FIGURES, [figure]) if isinstance(figure, str) else (figure,)
    usual = {"task": run, **ONE}
    missing = {name: value for name, value in usual.items() if name not in table}
    rows = known.rows(table.assign(**missing))
    for column in known.choose:  # the report shows one value at a time: the first
        if column in rows:
            rows = rows[rows[column] == rows[column].iloc[0]]
    look = known.look
    if look.panel is not None and rows[look.panel].nunique() == 1:
        look = look.replace({"panel": None})
    return draw(known.shape, rows, look).properties(title=known.title)


def _result_chart(found: Result) -> alt.TopLevelMixin:
    """Draw the weights of layers, or the first figure of an analysis."""
    key = {"task": found.about.get("run", "this run")}
    tables = list(found.tables)
    called = Stored(key, Path(), found.method, found.about, tables).called
    named = {
        called[name]: table.assign(method=found.method)
        for name, table in found.tables.items()
        if name in called
    }
    if found.weighs_layers:
        (figure,) = Figure.chosen(FIGURES, ["layers"])
        title = f"{figure.title}: {found.method}"
        by_method = figure.replace({"look.colour": "method", "title": title})
        return drawn_as(by_method, named["layers"], key["task"])
    for figure in FIGURES:
        if figure.part == found.method and figure.table in named:
            return drawn_as(figure, named[figure.table], key["task"])
    for name, table in named.items():
        theirs = Theirs(name, table.assign(**key, **ONE))
        if "layer" in table and theirs.numbers:
            return drawn_as(layers_of(theirs), table, key["task"])
    raise ScoreError(f"{found.method} left no table that the report draws.")
