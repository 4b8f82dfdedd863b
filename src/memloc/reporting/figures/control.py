"""How far each method can be trusted: labels planted in known layers."""

import altair as alt
import numpy as np
import pandas as pd

from memloc.reporting.figures.style import BLUE, GREY, method_order, task_order
from memloc.reporting.means import over_seeds
from memloc.stats.planted import mean_scores


def control_accuracy(table: pd.DataFrame, panel: str | None = None) -> alt.Chart:
    """Share of the k best layers that are planted ones, by method; one panel per task or model.

    The mean over planted windows, its interval, and chance as a mark.
    """
    by = ["method"] if panel is None else [panel, "method"]
    drawn = mean_scores(table, by)
    methods = method_order(drawn["method"])
    ks = sorted(drawn["k"].unique())
    place = {
        "y": alt.Y("method:N", title=None, sort=methods),
        "yOffset": alt.YOffset("k:O", sort=ks),
    }
    base = alt.Chart().encode(**place, tooltip=_tooltip(by))
    colour = alt.Color(
        "k:O",
        title="accuracy@k",
        scale=alt.Scale(domain=ks, range=["#7db8dd", BLUE, "#004c7a"][: len(ks)]),
        legend=alt.Legend(orient="bottom"),
    )
    x = alt.X(
        "accuracy:Q",
        title="planted layers found",
        axis=alt.Axis(format="%", tickCount=4),
        scale=alt.Scale(domain=[0, 1], clamp=True),
    )
    bars = base.mark_bar().encode(x=x, color=colour)
    ends = base.mark_rule(strokeWidth=1.5).encode(x="low:Q", x2="high:Q")
    chance = base.mark_tick(color=GREY, thickness=3).encode(x="chance:Q")
    chart = alt.layer(bars, ends, chance, data=drawn)
    if panel is None:
        return chart.properties(width=420, height=240)
    order = task_order(drawn[panel]) if panel == "task" else sorted(drawn[panel].unique())
    panels = alt.Facet(f"{panel}:N", title=None, sort=order)
    chart = chart.properties(width=170, height=110)
    return chart.facet(panels, columns=3).resolve_axis(x="independent")


def control_layers(table: pd.DataFrame) -> alt.Chart:
    """Layer weights of the control set-up, scaled to the largest; one line per planted window."""
    keys = ["task", "model", "method", "first", "last", "null"]
    largest = table.groupby([*keys, "seed"])["weight"].transform("max")
    scaled = {n: table[n] / largest.where(largest > 0) for n in ("weight", "low", "high")}
    drawn = over_seeds(table.assign(**scaled), [*keys, "layer"], "weight")
    null = drawn["null"].astype(bool)
    layers = drawn["first"].astype(str) + " to " + drawn["last"].astype(str)
    drawn["planted"] = np.where(null, "nothing in " + layers, "layers " + layers)
    drawn["inside"] = drawn["layer"].between(drawn["first"], drawn["last"]) & ~null
    order = list(dict.fromkeys(drawn.sort_values(["null", "first"])["planted"]))
    base = alt.Chart(drawn)
    encoded = base.encode(
        x=alt.X("layer:O", title="layer", axis=alt.Axis(labelAngle=0)),
        y=alt.Y("planted:N", title="planted in", sort=order),
        color=alt.Color(
            "weight:Q",
            title="weight / largest",
            scale=alt.Scale(scheme="viridis", domain=[0, 1]),
            legend=alt.Legend(orient="bottom"),
        ),
        tooltip=[
            "planted",
            "layer",
            *(alt.Tooltip(name, format=".2f") for name in ("weight", "low", "high")),
            "inside",
        ],
    )
    frame = encoded.transform_filter("datum.inside").mark_rect(
        filled=False, stroke="#ff6f3c", strokeWidth=2.5
    )
    cells = encoded.mark_rect()
    return alt.layer(cells, frame.encode(color=alt.value("transparent"))).properties(
        width=420, height=alt.Step(24)
    )


def _tooltip(by: list[str]) -> list[alt.Tooltip]:
    shares = ("accuracy", "low", "high", "chance")
    return [*by, "k", *(alt.Tooltip(name, format=".1%") for name in shares), "plants"]
