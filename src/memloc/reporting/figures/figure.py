"""What a figure is: its words, its table, and its chart taken apart."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd

from memloc.errors import lookup
from memloc.records import whole_file
from memloc.reporting.findings import Findings
from memloc.reporting.sentences import marked, remarks_on

DATA = "drawn"
"""What a chart's table is called in its specification."""


@dataclass(frozen=True)
class Figure:
    """A figure of the report and of `memloc figures`."""

    name: str
    """Its files begin with this."""
    section: str
    """control, layers, depth, run or examples: where the page shows it."""
    title: str
    caption: str
    number: str
    """The paper's number; empty where the paper has none."""
    table: Callable[[Findings], pd.DataFrame]
    draw: Callable[[pd.DataFrame], alt.TopLevelMixin]
    choose: tuple[str, ...] = ()
    """Columns of what is drawn, of which one value is shown at a time."""
    part: str = "localise"
    """Whose results it needs."""

    def drawn(self, findings: Findings) -> "Drawn | None":
        """The chart with everything that can be chosen in it; None without results."""
        table = self.table(findings)
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


def save_figure(chart: alt.TopLevelMixin, path: Path) -> None:
    """Write a chart as PNG, SVG or PDF, by the file's ending."""
    with alt.data_transformers.enable("default", max_rows=None):
        save_spec(chart.to_dict(), path)


def save_spec(spec: Mapping[str, Any], path: Path) -> None:
    """The same for a chart that is a plain Vega-Lite specification."""
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
