"""What changing windows of layers does, on the whole and example by example."""

from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from memloc.records import BoolArray, FloatArray, IntArray
from memloc.reporting.figures.style import (
    faded,
    highlight,
    method_order,
    task_colour,
    task_order,
    task_shape,
)
from memloc.reporting.means import over_seeds
from memloc.stats.depth import centres_of_gravity
from memloc.stats.intervals import wilson
from memloc.stats.windows import layer_weights, window_matrix

MOST_EXAMPLES = 40
"""Rows of the picture of examples."""


def window_matrices(table: pd.DataFrame) -> alt.Chart:
    """Row = width of a window, column = layer: mean error of the windows that contain the layer.

    The error is divided by that of all layers where the layer weights are; mean over seeds, with
    what holds the seeds' Wilson intervals.
    """
    keys = ["task", "model", "method"]
    runs = [*keys, "seed"]
    parts = [_named(_cells(p), runs, key) for key, p in table.groupby(runs, sort=False)]
    columns = [*runs, "width", "layer", "error", "low", "high", "clean_error", "difference"]
    cells = pd.concat(parts) if parts else pd.DataFrame(columns=columns)
    drawn = _with_clean(cells, [*keys, "width", "layer"])
    return (
        alt.Chart(drawn)
        .mark_rect()
        .encode(
            x=alt.X("layer:O", title="layer", axis=alt.Axis(labelAngle=0)),
            y=alt.Y("width:O", title="layers changed at once", sort="descending"),
            color=alt.Color(
                "error:Q",
                title="memorisation error",
                scale=alt.Scale(scheme="viridis", domain=[0, 1], clamp=True),
                legend=alt.Legend(
                    orient="bottom", format="%", gradientLength=220, values=[0, 0.5, 1]
                ),
            ),
            tooltip=["layer", alt.Tooltip("width", title="layers changed"), *_errors(), "seeds"],
        )
        .properties(width=360, height=300)
    )


def single_layers(table: pd.DataFrame) -> alt.Chart:
    """The largest memorisation error that changing one layer brings; one point per task.

    The table is `Findings.single_layers`.
    """
    drawn = _with_clean(table, ["task", "category", "model", "method"])
    chosen, tasks = highlight(), task_order(drawn["task"])
    place = {
        "y": alt.Y("model:N", title=None),
        "yOffset": alt.YOffset("task:N", sort=tasks),
        "color": task_colour(tasks),
        "opacity": faded(chosen),
    }
    base = alt.Chart().encode(**place, tooltip=["task", "model", "method", *_errors(), "seeds"])
    rules = base.mark_rule().encode(x="low:Q", x2="high:Q")
    points = base.mark_point(filled=True, opacity=1, size=60).encode(
        x=alt.X(
            "error:Q",
            title="largest error, one layer changed",
            axis=alt.Axis(format="%", tickCount=5),
            scale=alt.Scale(domainMin=0),
        ),
        shape=task_shape(tasks),
    )
    chart = alt.layer(rules, points.add_params(chosen), data=drawn)
    panels = alt.Facet("method:N", title=None, sort=method_order(drawn["method"]))
    chart = chart.properties(width=300, height=240).facet(panels, columns=2)
    return chart.resolve_axis(x="independent")


def example_layers(table: pd.DataFrame) -> alt.Chart:
    """Noisy examples by layer: how much of what reverts an example contains the layer.

    A cell is the example's own layer weight: over window widths, the mean share of the windows with
    that layer that revert the example. The mean over examples is the layer's weight before it is
    normalised. Examples are ordered by where they are reverted; of many, evenly spaced ones are
    drawn. The table is `reverted` with the texts and labels of `examples`.
    """
    keys = ["task", "model", "method"]
    parts = [_named(_example_cells(p), keys, key) for key, p in table.groupby(keys, sort=False)]
    columns = ["example", "layer", "share", "text", "original", "assigned", "place", "row"]
    drawn = pd.concat(parts) if parts else pd.DataFrame(columns=[*keys, *columns])
    return (
        alt.Chart(drawn.reset_index(drop=True))
        .mark_rect()
        .encode(
            x=alt.X("layer:O", title="layer", axis=alt.Axis(labelAngle=0)),
            y=alt.Y(
                "row:N",
                title=None,
                sort=alt.EncodingSortField("place"),
                axis=alt.Axis(labelFontSize=9),
            ),
            color=alt.Color(
                "share:Q",
                title="reverted when the layer is changed",
                scale=alt.Scale(scheme="viridis", domain=[0, 1]),
                legend=alt.Legend(
                    orient="bottom",
                    format="%",
                    gradientLength=220,
                    titleLimit=400,
                    values=[0, 0.5, 1],
                ),
            ),
            tooltip=["text", "original", "assigned", "layer", alt.Tooltip("share", format=".0%")],
        )
        .properties(width=320, height=alt.Step(13))
    )


def _with_clean(table: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Means over seeds of the memorisation error, the error on clean examples, the difference."""
    others = table.groupby(keys, sort=False)[["clean_error", "difference"]].mean().reset_index()
    return over_seeds(table, keys, "error").merge(others, on=keys)


def _errors() -> list[alt.Tooltip]:
    return [alt.Tooltip(name, title=title, format=".1%") for name, title in ERRORS.items()]


ERRORS = {
    "error": "memorisation error",
    "low": "low",
    "high": "high",
    "clean_error": "clean error",
    "difference": "difference",
}


def example_weights(wrong: BoolArray, ends: IntArray) -> FloatArray:
    """Layer weights (n, L) of each example from what windows (W, 2) revert it: `wrong` (n, W)."""
    known = [range(int(first) - 1, int(last)) for first, last in ends]
    depth = int(ends.max())
    return layer_weights(window_matrix(wrong.astype(np.float64), depth, known))


def spread(weights: FloatArray) -> IntArray:
    """Rows of examples from those reverted in low layers to high ones; of many, evenly spaced."""
    order = np.argsort(centres_of_gravity(weights), kind="stable")  # never reverted: NaN, last
    if len(order) > MOST_EXAMPLES:
        order = order[np.linspace(0, len(order) - 1, MOST_EXAMPLES).round().astype(int)]
    return order


def _named(part: pd.DataFrame, names: list[str], key: Any) -> pd.DataFrame:
    return part.assign(**dict(zip(names, key, strict=True)))


def _cells(part: pd.DataFrame) -> pd.DataFrame:
    """The matrix of one run; a share of windows varies less than a yes or no, so ends are wide."""
    depth = int(part["last"].max())
    known = [range(int(a) - 1, int(b)) for a, b in part[["first", "last"]].itertuples(index=False)]
    errors, shares = (part[n].to_numpy(np.float64) for n in ("error", "normalised"))
    most = int(errors.argmax())
    # Shares are errors over one number, the error of all layers; NaN where that undid nothing.
    divisor = errors[most] / shares[most] if shares[most] > 0 else 1.0
    matrix = window_matrix(errors, depth, known)
    found = wilson(matrix.ravel(), part["n_noisy"].iloc[0])
    width, layer = (index.ravel() + 1 for index in np.indices(matrix.shape))
    named = {"error": found.estimate, "low": found.low, "high": found.high}
    values = {name: value / divisor for name, value in named.items()}
    clean = window_matrix(part["clean_error"].to_numpy(np.float64), depth, known).ravel()
    # The difference is of plain errors: what clean examples lose is not a share of anything.
    others = {"clean_error": clean, "difference": matrix.ravel() - clean}
    cells = pd.DataFrame({"width": width, "layer": layer, **values, **others})
    return cells.dropna(subset=list(values))


def _example_cells(part: pd.DataFrame) -> pd.DataFrame:
    one = part[part["seed"] == part["seed"].min()]
    wide = one.pivot(index="example", columns=["first", "last"], values="wrong")
    weights = example_weights(wide.to_numpy(bool), np.array(wide.columns.to_list()))
    texts = one.drop_duplicates("example").set_index("example")
    order = spread(weights)
    place, layer = np.indices((len(order), weights.shape[1]))
    named = texts.loc[wide.index[order]].reset_index()
    wanted = ["example", "text", "original", "assigned"]
    rows: pd.DataFrame = named[wanted].take(place.ravel()).reset_index(drop=True)
    short = rows["text"].str.slice(0, 60) + "  #" + rows["example"].astype(str)
    return rows.assign(
        layer=layer.ravel() + 1, share=weights[order].ravel(), place=place.ravel(), row=short
    )
