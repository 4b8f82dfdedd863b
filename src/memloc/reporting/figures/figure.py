"""What a figure is: its words, its table, and its chart taken apart; figures as files."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from textwrap import wrap
from typing import Any, Literal

import altair as alt
import pandas as pd
import yaml
from pydantic import BaseModel, ConfigDict

from memloc.errors import lookup
from memloc.progress import track
from memloc.records import whole_file
from memloc.reporting.figures.rows import ROWS
from memloc.reporting.figures.shapes import Look, draw
from memloc.reporting.findings import Findings
from memloc.reporting.sentences import marked, remarks_on
from memloc.results import Results

DATA = "drawn"
"""What a chart's table is called in its specification."""
WIDTH = 90
"""Characters of a line below the title of a file."""


class Figure(BaseModel):
    """A figure of the report and of `memloc figures`, as `figures.yaml` describes it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    """Its files begin with this."""
    section: Literal["answer", "where", "how", "examples", "trust", "paper"]
    """Where the page shows it."""
    title: str
    caption: str
    """At most two sentences."""
    more: str = ""
    """What else there is to know, folded away on the page."""
    number: str = ""
    """The paper's number; empty where the paper has none."""
    table: str
    """Where its table is: see `Findings.table`."""
    choose: tuple[str, ...] = ()
    """Columns of what is drawn, of which one value is shown at a time."""
    part: str = "localise"
    """Whose results it needs."""
    shape: Literal["curves", "points", "bars", "cells"]
    look: Look

    def __hash__(self) -> int:
        return hash(self.name)

    def draw(self, table: pd.DataFrame) -> alt.TopLevelMixin:
        """The chart of such a table."""
        return draw(self.shape, ROWS[self.name](table), self.look)

    def drawn(self, findings: Findings) -> "Drawn | None":
        """The chart with everything that can be chosen in it; None without results."""
        table = findings.table(self.table)
        return None if table.empty else Drawn.of(self.draw(table), marked(table))


@dataclass(frozen=True)
class Drawn:
    """A chart taken apart: its definition, and the rows that it shows."""

    spec: dict[str, Any]
    rows: pd.DataFrame
    marked: pd.DataFrame
    """Those of the results behind them that have a remark."""

    @classmethod
    def of(cls, chart: Any, marked: pd.DataFrame) -> "Drawn":
        """The parts of a chart, which must have one table."""
        rows = chart.data
        chart = chart.copy(deep=False)
        chart.data = rows.head(1)  # Altair reads the columns' types off it
        spec = dict(chart.to_dict(validate=False))  # slow; the tests compile every chart
        del spec["datasets"]
        return cls({**spec, "data": {"name": DATA}}, rows, marked)

    def choices(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """Every combination of the columns `names` that has rows."""
        if not names:
            return [{}]
        found = self.rows[list(names)].drop_duplicates()
        return [{str(k): v for k, v in row.items()} for row in found.to_dict("records")]

    def remarks(self, choice: Mapping[str, Any]) -> str:
        """What the results of one choice say against themselves."""
        known = {name: value for name, value in choice.items() if name in self.marked.columns}
        return remarks_on(_chosen(self.marked, known))

    def with_rows(self, choice: Mapping[str, Any]) -> dict[str, Any]:
        """The whole specification with the rows of one choice."""
        rows = _chosen(self.rows, choice)
        plain = rows.astype(object).where(rows.notna(), None).to_dict("records")
        return {**self.spec, "datasets": {DATA: plain}}


def _chosen(rows: pd.DataFrame, choice: Mapping[str, Any]) -> pd.DataFrame:
    for name, value in choice.items():
        rows = rows[rows[name] == value]
    return rows


def read_figures() -> tuple[Figure, ...]:
    """Every figure, in the order of the page."""
    text = (files("memloc.reporting") / "assets/figures.yaml").read_text(encoding="utf-8")
    return tuple(Figure(name=name, **words) for name, words in yaml.safe_load(text).items())


FIGURES = read_figures()
FORMATS = ("png", "svg", "pdf")
PRINT = {
    "background": "white",
    "font": "sans-serif",
    "axis": {"labelFontSize": 11, "titleFontSize": 12, "titleFontWeight": "normal"},
    "axisY": {"labelLimit": 300},
    "legend": {"labelFontSize": 11, "titleFontSize": 11, "titleFontWeight": "normal"},
    "header": {"labelFontSize": 12, "labelFontWeight": "bold"},
    "title": {"fontSize": 14, "subtitleFontSize": 11, "anchor": "start", "offset": 12},
}
"""White, so that it can be read in print and on dark screens."""


def write_figures(
    results: Results, folder: Path, kind: str = "png", only: Sequence[str] = ()
) -> tuple[list[Path], list[Figure]]:
    """Write what can be drawn, or those called `only`; the files, and figures without results."""
    lookup("figure format", kind, {name: name for name in FORMATS})
    known = {figure.name: figure for figure in FIGURES}
    chosen = [lookup("figure", name, known) for name in only] or list(FIGURES)
    findings = Findings(results)
    drawn = {figure: figure.drawn(findings) for figure in chosen}
    jobs = [(f, d, c) for f, d in drawn.items() if d is not None for c in d.choices(f.choose)]
    written = []
    with track("figures", len(jobs)) as advance:
        for figure, chart, choice in jobs:
            path = folder / f"{'-'.join(_words(figure.name, choice))}.{kind}"
            save_spec(_titled(figure, chart, choice), path)
            written.append(path)
            advance(1)
    return written, [figure for figure, found in drawn.items() if found is None]


def save_figure(name: str, table: pd.DataFrame, path: Path) -> None:
    """Draw one table as the figure of this name; PNG, SVG or PDF by the file's ending."""
    (figure,) = [each for each in FIGURES if each.name == name]
    drawn = Drawn.of(figure.draw(table), table.head(0))
    save_spec({**drawn.with_rows({}), "title": figure.title}, path)


def save_spec(spec: Mapping[str, Any], path: Path) -> None:
    """Write a chart that is a plain Vega-Lite specification."""
    import vl_convert

    kind = lookup("figure format", path.suffix.lstrip("."), {name: name for name in FORMATS})
    plain = {**spec, "config": {**spec.get("config", {}), **PRINT}}
    convert: dict[str, Callable[[], bytes]] = {
        "png": lambda: vl_convert.vegalite_to_png(plain, scale=2),
        "svg": lambda: str(vl_convert.vegalite_to_svg(plain)).encode(),
        "pdf": lambda: vl_convert.vegalite_to_pdf(plain),
    }
    with whole_file(path) as draft:
        draft.write_bytes(convert[kind]())


def _titled(figure: Figure, drawn: Drawn, choice: Mapping[str, Any]) -> dict[str, Any]:
    lines = [" · ".join(map(str, choice.values())), *wrap(drawn.remarks(choice), WIDTH)]
    title = {"text": figure.title, "subtitle": lines}
    return {**drawn.with_rows(choice), "title": title}


def _words(name: str, choice: Mapping[str, Any]) -> Iterator[str]:
    yield name
    for value in choice.values():
        yield re.sub(r"[^\w.]+", "-", str(value)).strip("-").lower()
