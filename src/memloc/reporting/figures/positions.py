"""How noisy examples move from one class to another, layer by layer."""

import altair as alt
import numpy as np
import pandas as pd

from memloc.reporting.figures.style import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    ROOM,
    layer_axis,
    task_colour,
    task_fill,
    task_order,
    task_shape,
    whole_numbers,
)
from memloc.reporting.means import counted_events, over_groups, usual_depth
from memloc.reporting.terminal import PROBES

KINDS = {
    "noisy": "noisy examples",
    "clean a": "clean, class assigned to them",
    "clean b": "clean, class they had",
}
EVENTS = {"centroids": ("initiation", "crossing"), "label probes": ("ninety", "memorisation")}
"""By source: the event of the class, along the bottom, and that of memorisation."""
ALL = "all models"
UNCLEAR = {
    "x": "told apart no better than by chance, runs",
    "y": "wrong label wins where they cannot be told apart, runs",
}


def centroid_trajectories(table: pd.DataFrame) -> alt.Chart:
    """Mean positions between the class centroids with the central 75 %; 0.5 is half way.

    Where classes are not further apart than by chance, points are hollow and nothing can be read
    off. Of several seeds, means are drawn.
    """
    keys = ["task", "model", "variant", "layer", "kind"]
    numbers = ["mean", "low", "high", "separability", "by_chance"]
    means = table.groupby(keys, sort=False)[numbers].mean()
    ends = {"mean_low": ("mean_low", "min"), "mean_high": ("mean_high", "max")}
    others = table.groupby(keys, sort=False).agg(**ends, separable=("separable", "all"))
    drawn = means.join(others).reset_index()
    drawn["kind"] = drawn["kind"].map(KINDS)
    names = list(KINDS.values())
    shown = ("mean", "mean_low", "mean_high", "low", "high", "separability", "by_chance")
    base = alt.Chart().encode(
        x=layer_axis(),
        color=_colour("kind:N", names),
        tooltip=["kind", "layer", *(alt.Tooltip(n, format=".2f") for n in shown), "separable"],
    )
    y = alt.Y(
        "mean:Q", title="position", scale=alt.Scale(domain=[-0.75, 1.75], clamp=True, nice=False)
    )
    band = base.mark_area(opacity=0.15, clip=True).encode(y="low:Q", y2="high:Q")
    half = alt.Chart().mark_rule(strokeDash=[5, 4], color=GREY).encode(y=alt.datum(0.5))
    line = base.mark_line(strokeWidth=2.5).encode(y=y)
    sure = base.mark_rule(strokeWidth=2).encode(y="mean_low:Q", y2="mean_high:Q")
    points = base.mark_point(opacity=1, size=45).encode(
        y=y,
        fillOpacity=alt.condition("datum.separable", alt.value(1), alt.value(0)),
        fill=alt.Fill("kind:N", sort=names, title=None, scale=_kind_scale(names)),
    )
    return alt.layer(band, half, line, sure, points, data=drawn).properties(width=420, height=260)


def label_probes(table: pd.DataFrame) -> alt.Chart:
    """F1 of probes for the class, by the examples and the labels that they are tested on."""
    what = pd.Series(list(zip(table["examples"], table["labels"], strict=True)), dtype=object)
    named = table.assign(what=what.map(PROBES).to_numpy())
    grouped = named.groupby(["task", "model", "what", "layer"], sort=False)
    ends = {"f1": ("f1", "mean"), "low": ("low", "min"), "high": ("high", "max")}
    drawn = grouped.agg(**ends, chance=("chance", "mean")).reset_index()
    names = list(PROBES.values())
    base = alt.Chart().encode(
        x=layer_axis(),
        color=_colour("what:N", names),
        tooltip=[
            "what",
            "layer",
            *(alt.Tooltip(n, format=".2f") for n in ("f1", "low", "high", "chance")),
        ],
    )
    band = base.mark_area(opacity=0.15, strokeOpacity=0).encode(y="low:Q", y2="high:Q")
    line = base.mark_line(strokeWidth=2.5, point=alt.OverlayMarkDef(size=30)).encode(
        y=alt.Y("f1:Q", title="F1", scale=alt.Scale(domain=[0, 1], clamp=True)),
        strokeDash=alt.StrokeDash("what:N", title=None, sort=names, legend=None),
    )
    chance = (
        alt.Chart()
        .mark_line(strokeWidth=1, strokeDash=[2, 3], color=GREY)
        .encode(x=layer_axis(), y="chance:Q", detail="what:N")
    )
    return alt.layer(band, chance, line, data=drawn).properties(width=420, height=260)


def event_pairs(table: pd.DataFrame) -> pd.DataFrame:
    """One row a task, source, variant and model (and all models): where its two events happen.

    The table is `events` with the model's `depth`; `never` counts as the layer after the last.
    """
    filled = counted_events(table)
    of_all = filled[filled["depth"] == usual_depth(filled)]
    everywhere = pd.concat([of_all.assign(models=ALL), filled.assign(models=filled["model"])])
    keys = ["task", "category", "source", "variant", "models"]
    parts = []
    for source, names in EVENTS.items():
        of = everywhere[everywhere["source"] == source]
        along, up = (_event(of[of["event"] == name], keys) for name in names)
        parts.append(along.merge(up, on=keys, suffixes=("_x", "_y")))
    found = pd.concat(parts, ignore_index=True)
    found["set"] = np.where(found["task"].str.endswith("-binary"), "two classes", "all classes")
    return found


def events(table: pd.DataFrame) -> alt.Chart:
    """Where memorisation wins against where the classes are told apart; one point per task."""
    drawn = event_pairs(table)
    tasks = task_order(drawn["task"])
    look = {"scale": ROOM, "axis": whole_numbers()}
    x = alt.X("layer_x:Q", title="layer at which classes are told apart", **look)
    y = alt.Y("layer_y:Q", title="layer at which the wrong label wins", **look)
    ends = ("layer_x", "low_x", "high_x", "layer_y", "low_y", "high_y")
    base = alt.Chart(drawn).encode(
        color=task_colour(tasks),
        tooltip=[
            "task",
            "models",
            *(alt.Tooltip(name, format=".1f") for name in ends),
            alt.Tooltip("never_x", title="never told apart, runs"),
            alt.Tooltip("never_y", title="never memorised here, runs"),
            *(alt.Tooltip(f"unclear_{axis}", title=UNCLEAR[axis]) for axis in UNCLEAR),
        ],
    )
    across = base.mark_rule().encode(x="low_x:Q", x2="high_x:Q", y=y)
    along = base.mark_rule().encode(x=x, y="low_y:Q", y2="high_y:Q")
    points = base.mark_point(opacity=1, size=110).encode(
        x=x,
        y=y,
        shape=task_shape(tasks),
        fill=task_fill(tasks),
        fillOpacity=alt.condition(
            "datum.unclear_x + datum.unclear_y > 0", alt.value(0), alt.value(1)
        ),
    )
    return alt.layer(across, along, points).properties(width=380, height=320)


def _event(table: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    counts = table.groupby(keys, sort=False)[["never", "unclear"]].sum().reset_index()
    return over_groups(table, keys, "layer", "model").merge(counts, on=keys)


def _kind_scale(names: list[str]) -> alt.Scale:
    return alt.Scale(domain=names, range=[ORANGE, BLUE, GREEN])


def _colour(field: str, names: list[str]) -> alt.Color:
    legend = alt.Legend(orient="bottom", columns=1, labelLimit=400, symbolOpacity=1)
    return alt.Color(field, title=None, sort=names, scale=_kind_scale(names), legend=legend)
