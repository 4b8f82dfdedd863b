"""One function a figure: a tidy table in, an Altair chart out, for the page and for files alike."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memloc.errors import lookup
from memloc.records import whole_file
from memloc.report.terminal import CURVES

if TYPE_CHECKING:
    import altair as alt
    import pandas as pd

COLOURS = ("#0072B2", "#D55E00", "#CC79A7", "#009E73")
"""Okabe and Ito's, which people with any colour vision can tell apart."""
FORMATS = ("png", "svg", "pdf")


def training_curves(table: "pd.DataFrame") -> "alt.Chart":
    """Accuracy by epoch of the training on noisy labels, noisy and clean examples apart."""
    import altair as alt

    noisy = table.loc[table["training"] == "noisy", ["epoch", *CURVES]]
    long = noisy.melt("epoch", list(CURVES), var_name="group", value_name="accuracy")
    long["group"] = long["group"].map(CURVES)
    names = list(CURVES.values())
    base = alt.Chart(long).encode(
        x=alt.X("epoch:Q", title="epoch", scale=alt.Scale(nice=False)),
        y=alt.Y(
            "accuracy:Q",
            title="predicted",
            axis=alt.Axis(format="%"),
            scale=alt.Scale(domain=[0, 1]),
        ),
        color=alt.Color(
            "group:N",
            title=None,
            sort=names,
            scale=alt.Scale(domain=names, range=list(COLOURS)),
            legend=alt.Legend(orient="bottom", columns=2, labelLimit=400),
        ),
        strokeDash=alt.StrokeDash("group:N", title=None, sort=names, legend=None),
        tooltip=["group", "epoch", alt.Tooltip("accuracy", format=".1%")],
    )
    return (base.mark_line(strokeWidth=2.5)).properties(
        width=520, height=260, title="What is predicted, epoch by epoch"
    )


def save_figure(chart: Any, path: Path) -> None:
    """Write a chart as PNG, SVG or PDF, by the file's ending."""
    import vl_convert

    kind = lookup("figure format", path.suffix.lstrip("."), {name: name for name in FORMATS})
    spec = chart.to_json()
    convert: dict[str, Callable[[], bytes]] = {
        "png": lambda: vl_convert.vegalite_to_png(spec, scale=2),
        "svg": lambda: str(vl_convert.vegalite_to_svg(spec)).encode(),
        "pdf": lambda: vl_convert.vegalite_to_pdf(spec),
    }
    with whole_file(path) as draft:
        draft.write_bytes(convert[kind]())
