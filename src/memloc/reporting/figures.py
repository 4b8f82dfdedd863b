"""Draws figures, each with its words, table and chart in one of five shapes, and writes them.

`figures.yaml` describes each figure. Its `Look` says which columns are drawn and how axes are
named; colours and orders are in `style`.
"""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any, Literal

import altair as alt
import pandas as pd

from memloc.errors import lookup
from memloc.methods.registry import brought
from memloc.methods.views import CASE
from memloc.progress import track
from memloc.reporting import style
from memloc.reporting.results import Results
from memloc.reporting.rows import ROWS
from memloc.reporting.sentences import marked, remark_on, remarks_on
from memloc.reporting.style import GREY, Theirs, theirs_of
from memloc.settings import Settings
from memloc.stats.claims import over_seeds
from memloc.store.files import whole_file

QUANTITY = "{quantity}"
"""Placeholder in a title that is replaced by the rows' column `quantity`."""
DATA = "drawn"
"""Name of a chart's table in its specification."""
WIDTH = 90
"""Number of characters per line below the title of a file."""


class Look(Settings):
    """Columns of a figure's rows and where they are drawn."""

    x: str
    y: str
    x_title: str | None = None
    y_title: str | None = None
    colour: str = "task"
    colour_title: str | None = None
    hover: dict[str, str | None]
    """Columns shown on hover, each with the format of its number."""
    format: str | None = None
    """Format of the numbers along the value axis, or in the legend of cells."""
    limits: list[float] | None = None
    """Limits of the value axis, or of the colours of cells."""
    panel: str | None = None
    """Column whose values get one panel each."""
    columns: int = 2
    width: int = 420
    height: int | None = 280
    """Height in pixels; if None, each row has the height `step`."""
    step: int = 18
    tallest: int | None = None
    """Largest height of all rows, which become lower if there are many."""
    intervals: tuple[str, ...] = ("low", "high")
    """Columns of lower and upper ends (of points, along x, then along y); empty for none."""
    rules: tuple[str, str] | None = None
    """Ends of a second interval of curves, drawn as a rule."""
    chance: str | None = None
    line: float | str | None = None
    """Height of a dashed line; for points, `diagonal`."""
    whole: bool = False
    """True if both axes of points are layers; otherwise the vertical axis may be, if values are far
    apart.
    """
    hollow: str | None = None
    """Expression that is true for points drawn without filling."""
    apart: str | None = None
    """Column whose values are drawn next to each other in a row of bars, or as lines of their
    own.
    """
    bars: bool = False
    """True for bars instead of points."""
    frame: str | None = None
    """Expression that is true for the cells that get a frame."""
    text: str | None = None
    """Column with the text of each cell, whose colour is in the column `ink`."""
    small: str | None = None
    """Column with a second, smaller line of each cell."""
    above: dict[str, str] = {}
    """Columns drawn as lines above the cells, over the same x, with their names."""


class Figure(style.Exhibit):
    """A figure of the report and of `memloc figures`, as `figures.yaml` describes it."""

    caption: str
    """Sentences below the title, at most two."""
    more: str = ""
    """Further explanation, folded away on the page."""
    choose: tuple[str, ...] = ()
    """Columns of which the page shows one value at a time."""
    compares: bool = False
    """True if the page shows the figure only with several panels; another figure shows a single
    one.
    """
    as_it_is: bool = False
    """True if the table is drawn unchanged and not averaged over seeds."""
    points_at_least: int = 0
    """Smallest number of points for the page; a table shows fewer points better."""
    noisy_at_least: int = 0
    """Smallest number of noisy examples of a run for the page; fewer only show chance."""
    shape: Literal["curves", "points", "bars", "cells", "stacks"]
    look: Look

    def draw(self, table: pd.DataFrame) -> alt.TopLevelMixin:
        """Draw the chart of a table."""
        return draw(self.shape, self.rows(table), self.look)

    def rows(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return the rows that the figure draws from a table of results."""
        known: Mapping[str, Callable[[pd.DataFrame], pd.DataFrame]] = {**ROWS, **brought("rows")}
        if self.name in known:
            return known[self.name](table)
        return table.copy() if self.as_it_is else self._means(table)

    def _means(self, table: pd.DataFrame) -> pd.DataFrame:
        """Average the drawn column, and the numbers shown on hover, over seeds."""
        look, names = self.look, list(self.look.hover)
        value = look.x if self.shape == "bars" else look.y
        at = names.index(value)
        by = dict.fromkeys([*CASE, *self.choose, *names[:at]])
        others = [*names[at + 1 :], *([look.chance] if look.chance else [])]
        means = [name for name in others if name in table and name not in {"low", "high"}]
        return over_seeds(table, list(by), value, list(dict.fromkeys(means)))

    def says_something(self, drawn: "Drawn", results: Results) -> bool:
        """Return whether the figure has enough rows to be worth its place on the page."""
        if self.compares and drawn.rows[self.look.panel].nunique() == 1:
            return False
        if results["runs"]["noisy"].max() < self.noisy_at_least:
            return False
        value = {"bars": self.look.x, "cells": self.look.colour}.get(self.shape, self.look.y)
        known = drawn.rows.dropna(subset=[value])
        sizes = known.groupby(list(self.choose)).size() if self.choose else [len(known)]
        return max(sizes, default=0) >= max(1, self.points_at_least)

    def drawn(self, results: Results) -> "Drawn | None":
        """Draw the chart with all choices in it; None without results."""
        table = self.shown(results)
        if table.empty or self.rows(table).empty:
            return None
        return Drawn.of(self.draw(table), marked(table))


@dataclass(frozen=True)
class Drawn:
    """Specification of a chart, and the rows that it shows."""

    spec: dict[str, Any]
    rows: pd.DataFrame
    marked: pd.DataFrame
    """Results behind the rows that have a remark, such as a weak reference."""

    @classmethod
    def of(cls, chart: Any, marked: pd.DataFrame) -> "Drawn":
        """Separate a chart's specification from its table."""
        rows = chart.data
        chart = chart.copy(deep=False)
        chart.data = rows.head(1)  # Altair reads the columns' types off it
        spec = dict(chart.to_dict(validate=False))  # slow; the tests compile every chart
        del spec["datasets"]
        return cls({**spec, "data": {"name": DATA}}, rows, marked)

    def choices(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """Return every combination of the columns `names` that has rows."""
        if not names:
            return [{}]
        distinct = self.rows[list(names)].drop_duplicates()
        return [{str(k): v for k, v in row.items()} for row in distinct.to_dict("records")]

    def remarks(self, choice: Mapping[str, Any]) -> str:
        """Return the remarks of the results behind one choice."""
        known = {name: value for name, value in choice.items() if name in self.marked.columns}
        return remarks_on(_chosen(self.marked, known))

    def with_rows(self, choice: Mapping[str, Any]) -> dict[str, Any]:
        """Return the whole specification with the rows of one choice."""
        rows = _chosen(self.rows, choice)
        plain = rows.astype(object).where(rows.notna(), None).to_dict("records")
        spec = self.spec
        if "quantity" in rows and len(rows):  # the unit may depend on the choice
            text = json.dumps(spec).replace(QUANTITY, str(rows["quantity"].iloc[0]))
            spec = json.loads(text)
        return {**spec, "datasets": {DATA: plain}}


def _chosen(tidy: pd.DataFrame, choice: Mapping[str, Any]) -> pd.DataFrame:
    for name, value in choice.items():
        tidy = tidy[tidy[name] == value]
    return tidy


FIGURES = Figure.read("figures")


def figures_of(results: Results) -> list[Figure]:
    """Return the described figures, and one for the layers of each method of another package."""
    theirs = [table for table in theirs_of(results) if "layer" in table.table and table.numbers]
    return [*FIGURES, *map(layers_of, theirs)]


def layers_of(theirs: Theirs) -> Figure:
    """Return a figure of the first number in another package's table by layer, as curves."""
    value, *others = theirs.numbers
    ends = theirs.ends
    apart: dict[str, Any] = {"colour": "task", "panel": "category", "height": 240}
    choose = ["model"]
    if theirs.texts:
        apart, choose = {"colour": theirs.texts[0]}, ["model", "task", *theirs.texts[1:]]
    hover = dict.fromkeys(["task", "model", *theirs.texts, "layer"])
    numbers = dict.fromkeys([value, *ends, *others], ".3g")
    chance = "chance" if "chance" in others else None
    apart |= {"x": "layer", "y": value, "y_title": value.replace("_", " "), "chance": chance}
    sentence = "Mean over seeds" + ("; bands hold the seeds' intervals." if ends else ".")
    return Figure(
        **theirs.words,
        caption=f"{theirs.about} {sentence}".strip(),
        choose=tuple(choose),
        shape="curves",
        look=Look(**apart, intervals=tuple(ends), hover={**hover, **numbers, "seeds": None}),
    )


FORMATS = ("png", "svg", "pdf")
SCALED = {"png": {"scale": 2}}


def write_figures(
    results: Results, folder: Path, file_format: str = "png", only: Sequence[str] = ()
) -> tuple[list[Path], list[Figure]]:
    """Write all figures, or only some; return the files, and the figures without results.

    Args:
        results: Results of a study.
        folder: Folder of the files.
        file_format: Format: png, svg or pdf.
        only: Names of the figures to write; all by default.
    """
    lookup("figure format", file_format, {name: name for name in FORMATS})
    chosen = Figure.chosen(figures_of(results), only)
    drawn = {figure: figure.drawn(results) for figure in chosen}
    jobs = [(f, d, c) for f, d in drawn.items() if d is not None for c in d.choices(f.choose)]
    written = []
    with track("figures", len(jobs)) as advance:
        for figure, chart, choice in jobs:
            varied = {n: v for n, v in choice.items() if chart.rows[n].nunique() > 1}
            path = folder / f"{'-'.join(_words(figure.name, varied))}.{file_format}"
            save_spec(_titled(figure, chart, choice), path)
            written.append(path)
            advance(1)
    return written, [figure for figure, content in drawn.items() if content is None]


def save_figure(name: str, table: pd.DataFrame, path: Path) -> None:
    """Draw one table as the figure of this name; PNG, SVG or PDF by the file's ending."""
    (figure,) = Figure.chosen(FIGURES, [name])
    drawn = Drawn.of(figure.draw(table), table.head(0))
    save_spec({**drawn.with_rows({}), "title": figure.title}, path)


def save_spec(spec: Mapping[str, Any], path: Path) -> None:
    """Write a chart that is a plain Vega-Lite specification."""
    import vl_convert

    kind = lookup("figure format", path.suffix.lstrip("."), {name: name for name in FORMATS})
    plain = {**spec, "config": {**spec.get("config", {}), **style.PRINT}}
    image = getattr(vl_convert, f"vegalite_to_{kind}")(plain, **SCALED.get(kind, {}))
    with whole_file(path) as draft:
        draft.write_bytes(image.encode() if kind == "svg" else image)


def _titled(figure: Figure, drawn: Drawn, choice: Mapping[str, Any]) -> dict[str, Any]:
    against = remark_on(choice["method"]) if "method" in choice else ""
    caption = f"{against} {drawn.remarks(choice)}".strip()
    lines = [" · ".join(map(str, choice.values())), *wrap(caption, WIDTH)]
    title = {"text": figure.title, "subtitle": lines}
    return {**drawn.with_rows(choice), "title": title}


def _words(name: str, choice: Mapping[str, Any]) -> Iterator[str]:
    yield name
    for value in choice.values():
        yield re.sub(r"[^\w.]+", "-", str(value)).strip("-").lower()


def draw(shape: str, tidy: pd.DataFrame, look: Look) -> alt.TopLevelMixin:
    """Draw a chart of this shape, with its table at the top."""
    chart = SHAPES[shape](tidy, look)
    height = look.height if look.height is not None else alt.Step(_step(tidy, look))
    chart = chart.properties(width=look.width, height=height)
    if look.above:
        lines = _above(tidy, look).properties(width=look.width, height=ABOVE)
        both = alt.vconcat(lines, chart, spacing=6, data=tidy)
        return both.resolve_scale(color="independent")
    if look.panel is None:
        return chart.properties(data=tidy)
    order = style.order(look.panel, tidy[look.panel])
    panels = alt.Facet(f"{look.panel}:N", title=None, sort=order)
    faceted = chart.facet(panels, columns=look.columns, data=tidy).resolve_axis(x="independent")
    return faceted.resolve_scale(y="independent") if look.apart == "seed" else faceted


def _step(tidy: pd.DataFrame, look: Look) -> int:
    """Return the height of a row: many rows share the space, but stay legible."""
    room = look.tallest or math.inf
    return int(max(LOWEST, min(look.step, room / tidy[look.y].nunique())))


def curves(tidy: pd.DataFrame, look: Look) -> alt.LayerChart:
    """Draw lines over layers or epochs with bands, one colour for each task or series."""
    fade, chosen = _fading(look)
    x_scale, x_axis = alt.Scale(nice=False, zero=False), style.whole_numbers(grid=False)
    x = alt.X(f"{look.x}:Q", title=look.x_title or look.x, axis=x_axis, scale=x_scale)
    base = _base(tidy, look).encode(x=x)
    scale = alt.Scale(zero=False)
    if look.limits is not None:
        scale = alt.Scale(domain=look.limits, clamp=True, nice=False)
    axis = alt.Axis(format=look.format or alt.Undefined)
    y = alt.Y(f"{look.y}:Q", title=look.y_title, scale=scale, axis=axis)
    if look.apart is not None:
        base = base.encode(detail=f"{look.apart}:N")
    parts: list[Any] = []
    if look.intervals:
        low, high = look.intervals
        band = base.mark_area(strokeOpacity=0, clip=True)
        shade = min(BAND, ALL_BANDS / tidy[look.colour].nunique())
        parts.append(band.encode(y=f"{low}:Q", y2=f"{high}:Q", opacity=fade(shade)))
    if look.chance is not None:
        dashed = base.mark_line(strokeDash=[4, 4], strokeWidth=1)
        parts.append(dashed.encode(y=f"{look.chance}:Q", opacity=fade(0.7)))
    if look.line is not None:
        parts.append(alt.Chart().mark_rule(**DASHED).encode(y=alt.datum(look.line)))
    parts.append(base.mark_line(strokeWidth=2.5).encode(y=y, opacity=fade(1)))
    if look.rules is not None:
        low, high = look.rules
        parts.append(base.mark_rule(strokeWidth=2).encode(y=f"{low}:Q", y2=f"{high}:Q"))
    marks = _marks(base, tidy, look, opacity=fade(1), size=45).encode(y=y)
    return alt.layer(*parts, marks.add_params(*chosen))


def points(tidy: pd.DataFrame, look: Look) -> alt.LayerChart:
    """Draw points of two numbers, each with its interval."""
    fade, chosen = _fading(look)
    base = _base(tidy, look)
    scale = style.ROOM if look.limits is None else alt.Scale(domain=look.limits)
    axes = {name: _number_axis(look, name) for name in "xy"}
    x = alt.X(f"{look.x}:Q", title=look.x_title, scale=scale, axis=axes["x"])
    y = alt.Y(f"{look.y}:Q", title=look.y_title, scale=scale, axis=axes["y"])
    parts: list[Any] = []
    if look.line == "diagonal":
        ends = alt.Chart().transform_aggregate(least=f"min({look.x})", most=f"max({look.x})")
        same = {"x": "least:Q", "x2": "most:Q", "y": "least:Q", "y2": "most:Q"}
        parts.append(ends.mark_rule(**DASHED).encode(**same))
    rules = base.mark_rule().encode(opacity=fade(0.65))
    lows, highs = look.intervals[::2], look.intervals[1::2]
    for axis, low, high in zip("xy"[: len(lows)], lows, highs, strict=True):
        ends = {axis: f"{low}:Q", f"{axis}2": f"{high}:Q"}
        parts.append(rules.encode(**{"x": x, "y": y, **ends}))
    marks = _marks(base, tidy, look, opacity=fade(1), size=90).encode(x=x, y=y)
    parts.append(marks.add_params(*chosen))
    return alt.layer(*parts)


def bars(tidy: pd.DataFrame, look: Look) -> alt.LayerChart:
    """Draw one row per name: a bar or a point with its interval, and chance as a tick."""
    fade, chosen = _fading(look)
    base = _base(tidy, look).encode(
        y=alt.Y(f"{look.y}:N", title=look.y_title, sort=style.order(look.y, tidy[look.y]))
    )
    if look.apart is not None:
        order = style.order(look.apart, tidy[look.apart])
        base = base.encode(yOffset=alt.YOffset(f"{look.apart}:N", sort=order))
    scale = style.ROOM if look.limits is None else alt.Scale(domain=look.limits, clamp=True)
    axis = alt.Axis(tickCount=5, format=look.format or alt.Undefined)
    x = alt.X(f"{look.x}:Q", title=look.x_title, scale=scale, axis=axis)
    low, high = look.intervals
    ends = base.mark_rule(strokeWidth=2).encode(x=f"{low}:Q", x2=f"{high}:Q", opacity=fade(1))
    if not look.bars:
        marks = _marks(base, tidy, look, opacity=fade(1), size=80).encode(x=x)
        return alt.layer(ends, marks.add_params(*chosen))
    ends.encoding.color = alt.Undefined  # the page's own ink, which is light or dark
    chance = base.mark_tick(thickness=3).encode(x=f"{look.chance}:Q", color=alt.value(GREY))
    parts = [base.mark_bar(opacity=0.6).encode(x=x), ends, chance]
    if look.line is not None:
        best = base.transform_filter(alt.datum[look.y] == look.line)
        lines = best.mark_rule(strokeDash=DASHES, strokeWidth=2)
        lines.encoding.y = lines.encoding.yOffset = alt.Undefined
        parts.append(lines.encode(x=x))
    return alt.layer(*parts)


def cells(tidy: pd.DataFrame, look: Look) -> alt.LayerChart:
    """Draw a coloured cell for each pair of x and y, perhaps framed or with a number in it."""
    diverging = look.limits is not None and look.limits[0] < 0
    scheme = {"scheme": "purpleorange", "domainMid": 0} if diverging else {"scheme": "viridis"}
    base = alt.Chart().encode(
        x=_discrete(tidy, look.x, look.x_title, alt.X),
        y=_discrete(tidy, look.y, look.y_title, alt.Y),
        tooltip=_hover(tidy, look),
    )
    ends = look.limits and [look.limits[0], sum(look.limits) / 2, look.limits[1]]
    legend = alt.Legend(
        orient="bottom",
        gradientLength=220,
        titleLimit=400,
        format=look.format or alt.Undefined,
        values=ends or alt.Undefined,
    )
    limits = {"domainMin": 0} if look.limits is None else {"domain": look.limits, "clamp": True}
    scale = alt.Scale(**limits, **scheme)
    colour = alt.Color(f"{look.colour}:Q", title=look.colour_title, scale=scale, legend=legend)
    parts: list[Any] = [base.mark_rect().encode(color=colour)]
    if look.frame is not None:
        framed = base.transform_filter(look.frame)
        parts.append(framed.mark_rect(filled=False, stroke=FRAME, strokeWidth=2.5))
    below = alt.ExprRef(f"min(10, bandwidth('x') / {INTERVAL})")
    for field, size, dy in ((look.text, 13, 0), (look.small, below, 15)):
        if field is not None:
            ink = alt.condition("datum.ink == 'light'", alt.value("#ffffff"), alt.value("#111111"))
            written = base.mark_text(fontSize=size, dy=dy).encode(text=f"{field}:N", color=ink)
            parts.append(written)
    return alt.layer(*parts)


def _above(tidy: pd.DataFrame, look: Look) -> alt.Chart:
    """Draw lines of some columns over the x of cells, from 0 to 1."""
    x = _discrete(tidy, look.x, None, alt.X)
    names = list(look.above.values())
    named = " : ".join(f"datum.column == '{c}' ? '{name}'" for c, name in look.above.items())
    scale = alt.Scale(domain=names, range=[style.MEANINGS[n] for n in names])
    return (
        alt.Chart()
        .transform_fold(list(look.above), as_=["column", "line"])
        .transform_calculate(named=f"{named} : ''")
        .mark_line(point=True)
        .encode(
            x=x,
            y=alt.Y(
                "mean(line):Q",
                title="accuracy",
                scale=alt.Scale(domain=[0, 1]),
                axis=alt.Axis(format="%"),
            ),
            color=alt.Color("named:N", title=None, scale=scale, legend=alt.Legend(orient="top")),
        )
    )


def stacks(tidy: pd.DataFrame, look: Look) -> alt.LayerChart:
    """Draw one bar for each layer, split by the shares of its parts."""
    axis = alt.Axis(format=look.format or alt.Undefined)
    y = alt.Y(f"{look.y}:Q", title=look.y_title, stack="zero", axis=axis)
    x = _discrete(tidy, look.x, look.x_title, alt.X).axis(labelAngle=0)
    return alt.layer(_base(tidy, look).mark_bar().encode(x=x, y=y))


SHAPES = {shape.__name__: shape for shape in (curves, points, bars, cells, stacks)}
ABOVE = 90
"""Height in pixels of lines above cells."""
LOWEST = 14
"""Smallest height of a row in pixels at which its number is legible."""
BAND = 0.15
"""Opacity of a band that is alone."""
ALL_BANDS = 0.3
"""Sum of the opacities of all bands; more would hide the lines."""
INTERVAL = 7
"""Width of an interval written into a cell, in sizes of its font."""
DASHES = [5, 4]
DASHED = {"strokeDash": DASHES, "color": GREY}
FRAME = "#ff6f3c"


def _base(tidy: pd.DataFrame, look: Look) -> alt.Chart:
    return alt.Chart().encode(color=alt.Color(**_named(tidy, look)), tooltip=_hover(tidy, look))


def _named(tidy: pd.DataFrame, look: Look, scale: Any = style.colours) -> dict[str, Any]:
    """Return the colours (or markers) of names; names along the left axis need no legend."""
    encoding = style.channel(look.colour, tidy[look.colour], look.colour_title, scale)
    return {**encoding, "legend": None} if look.colour == look.y else encoding


def _number_axis(look: Look, name: str) -> alt.Axis:
    """Return an axis with whole layers, unless centres of gravity differ by less than a layer."""
    if look.whole:
        return style.whole_numbers()
    step = {"tickMinStep": alt.expr("domain('y')[1] - domain('y')[0] > 2 ? 1 : 0")}
    return alt.Axis(format=look.format or "~r", **(step if name == "y" else {"tickCount": 10}))


def _marks(base: alt.Chart, tidy: pd.DataFrame, look: Look, *, opacity: Any, size: int) -> Any:
    """Draw filled points with the marker of their task or series; hollow ones where requested."""
    shape = alt.Shape(**_named(tidy, look, style.markers))
    fill = alt.Fill(**_named(tidy, look))
    filled = alt.condition(look.hollow, alt.value(0), alt.value(1)) if look.hollow else alt.value(1)
    return base.mark_point(size=size, strokeOpacity=1).encode(
        shape=shape, fill=fill, fillOpacity=filled, opacity=opacity
    )


def _fading(look: Look) -> tuple[Callable[[float], Any], list[alt.Parameter]]:
    """Return a selection that fades all tasks but the one clicked in the legend."""
    if look.colour != "task" or look.y == "task":
        return alt.value, []
    chosen = alt.selection_point(fields=["task"], bind="legend")

    def fade(full: float) -> Any:
        clicked = alt.when(chosen, empty=False).then(alt.value(max(full, BAND)))
        return clicked.when(chosen).then(alt.value(full)).otherwise(alt.value(0.08 * full))

    return fade, [chosen]


def _hover(tidy: pd.DataFrame, look: Look) -> list[alt.Tooltip]:
    """Return every hovered column with its title in words."""
    tooltips = []
    for name, form in look.hover.items():
        kind = "Q" if style.is_number(tidy[name]) else "N"
        title = style.TITLES.get(name, name.replace("_", " "))
        tooltips.append(alt.Tooltip(f"{name}:{kind}", title=title, format=form or alt.Undefined))
    return tooltips


def _discrete(tidy: pd.DataFrame, name: str, title: str | None, channel: Any) -> Any:
    slant = 0 if style.is_number(tidy[name]) or channel is alt.Y else -30
    axis = alt.Axis(labelAngle=slant)
    sort = style.order(name, tidy[name])
    kind = "O" if style.is_number(tidy[name]) else "N"
    return channel(f"{name}:{kind}", title=title, sort=sort, axis=axis)
