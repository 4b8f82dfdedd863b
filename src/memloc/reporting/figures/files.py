"""Charts as files."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import altair as alt

from memloc.errors import lookup
from memloc.records import whole_file

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
