"""How much each layer matters, and how deep that is."""

import altair as alt
import pandas as pd

from memloc.reporting.figures.style import (
    COLOURS,
    GREY,
    POINT,
    ROOM,
    category_order,
    faded,
    highlight,
    layer_axis,
    method_order,
    share,
    task_colour,
    task_order,
    task_shape,
    whole_numbers,
)
from memloc.reporting.means import over_groups, over_seeds
from memloc.reporting.terminal import CURVES

RUN = ["task", "category", "model"]


def layer_curves(table: pd.DataFrame) -> alt.Chart:
    """Layer weights with their intervals, one line per task, one panel per category."""
    drawn = over_seeds(table, [*RUN, "method", "layer"], "weight")
    return _curves(drawn, "weight", "layer weight")


def noise_probes(table: pd.DataFrame) -> alt.Chart:
    """F1 with which probes tell noisy examples from clean ones, layer by layer."""
    drawn = over_seeds(table, [*RUN, "layer"], "f1")
    chance = table.groupby([*RUN, "layer"], sort=False)["chance"].mean().reset_index()
    return _curves(drawn.merge(chance, on=[*RUN, "layer"]), "f1", "F1 of noisy examples", "chance")


def mcog_by_model(table: pd.DataFrame) -> alt.Chart:
    """The centre of gravity of every task, one panel per model."""
    drawn = over_seeds(table, [*RUN, "method"], "mcog")
    return _centres(drawn, "model", sorted(drawn["model"].unique()), "seeds")


def mcog_over_models(table: pd.DataFrame) -> alt.Chart:
    """The centre of gravity by method, mean over models with its interval."""
    drawn = over_groups(table, ["task", "category", "method"], "mcog", "model")
    drawn = drawn.rename(columns={"n": "models"})
    return _centres(drawn, "method", method_order(drawn["method"]), "models")


def mcog_over_methods(table: pd.DataFrame) -> alt.Chart:
    """The centre of gravity by model, mean over methods with its interval."""
    drawn = over_groups(table, RUN, "mcog", "method")
    drawn = drawn.rename(columns={"n": "methods"})
    return _centres(drawn, "model", sorted(drawn["model"].unique()), "methods")


def binarised(table: pd.DataFrame) -> alt.Chart:
    """The centre of gravity of tasks with all their classes against that with two of them."""
    is_binary = table["task"].str.endswith("-binary")
    keys = ["task", "method"]
    two = table[is_binary].assign(task=table["task"].str.removesuffix("-binary"))
    both = over_groups(table[~is_binary], keys, "mcog", "model").merge(
        over_groups(two, keys, "mcog", "model"), on=keys, suffixes=("", "_binary")
    )
    tasks = task_order(both["task"])
    ends = ("mcog", "low", "high", "mcog_binary", "low_binary", "high_binary")
    numbers = [alt.Tooltip(name, format=".2f") for name in ends]
    base = alt.Chart().encode(color=task_colour(tasks), tooltip=["task", "method", *numbers])
    x = alt.X("mcog:Q", title="M-CoG, all classes", scale=ROOM)
    y = alt.Y("mcog_binary:Q", title="M-CoG, two classes", scale=ROOM)
    points = base.mark_point(**POINT, size=90).encode(x=x, y=y, shape=task_shape(tasks))
    across = base.mark_rule().encode(x="low:Q", x2="high:Q", y=y)
    along = base.mark_rule().encode(x=x, y="low_binary:Q", y2="high_binary:Q")
    same = (
        alt.Chart()
        .transform_aggregate(least="min(mcog)", most="max(mcog)")
        .mark_rule(strokeDash=[5, 4], color=GREY)
        .encode(x="least:Q", x2="most:Q", y="least:Q", y2="most:Q")
    )
    return alt.layer(same, across, along, points, data=both).properties(width=320, height=320)


def _curves(drawn: pd.DataFrame, value: str, title: str, chance: str | None = None) -> alt.Chart:
    tasks, chosen = task_order(drawn["task"]), highlight()
    numbers = [alt.Tooltip(name, format=".3f") for name in (value, "low", "high")]
    base = alt.Chart().encode(
        x=layer_axis(),
        color=task_colour(tasks),
        tooltip=["task", "model", "layer", *numbers, "seeds"],
    )
    y = alt.Y(f"{value}:Q", title=title, scale=alt.Scale(zero=False))
    band = base.mark_area().encode(y="low:Q", y2="high:Q", opacity=faded(chosen, 0.14))
    line = base.mark_line(strokeWidth=2).encode(y=y, opacity=faded(chosen))
    points = base.mark_point(**POINT, size=45).encode(
        y=y, shape=task_shape(tasks), opacity=faded(chosen)
    )
    parts = [band, line, points.add_params(chosen)]
    if chance is not None:
        by_chance = base.mark_line(strokeDash=[4, 4], strokeWidth=1)
        parts.insert(0, by_chance.encode(y=f"{chance}:Q", opacity=faded(chosen, 0.7)))
    panels = alt.Facet("category:N", title=None, sort=category_order(drawn["category"]))
    chart = alt.layer(*parts, data=drawn).properties(width=320, height=200)
    return chart.facet(panels, columns=2).resolve_axis(x="independent")


def _centres(drawn: pd.DataFrame, panel: str, order: list[str], count: str) -> alt.Chart:
    tasks = task_order(drawn["task"])
    numbers = [alt.Tooltip(name, format=".2f") for name in ("mcog", "low", "high")]
    base = alt.Chart().encode(
        y=alt.Y("task:N", title=None, sort=tasks),
        color=task_colour(tasks).legend(None),
        tooltip=["task", panel, *numbers, count],
    )
    ends = base.mark_rule(strokeWidth=2).encode(x="low:Q", x2="high:Q")
    x = alt.X("mcog:Q", title="M-CoG (layer)", scale=ROOM, axis=alt.Axis(tickCount=5))
    points = base.mark_point(**POINT, size=80).encode(x=x, shape=task_shape(tasks).legend(None))
    panels = alt.Facet(f"{panel}:N", title=None, sort=order)
    chart = alt.layer(ends, points, data=drawn).properties(width=260, height=alt.Step(18))
    return chart.facet(panels, columns=2).resolve_axis(x="independent")


def training_curves(table: pd.DataFrame) -> alt.Chart:
    """Accuracy by epoch of the training on noisy labels, noisy and clean examples apart.

    Of several seeds the mean is drawn, and their range behind it.
    """
    keys = [name for name in ("task", "model") if name in table.columns]
    noisy = table.loc[table["training"] == "noisy", [*keys, "epoch", *CURVES]]
    long = noisy.melt([*keys, "epoch"], list(CURVES), var_name="group", value_name="accuracy")
    long = long.dropna(subset="accuracy")  # not every epoch need be measured
    long["group"] = long["group"].map(CURVES)
    grouped = long.groupby([*keys, "group", "epoch"], sort=False)["accuracy"]
    drawn = grouped.agg(accuracy="mean", low="min", high="max").reset_index()
    names = list(CURVES.values())
    base = alt.Chart(drawn).encode(
        x=alt.X(
            "epoch:Q",
            title="epoch",
            axis=whole_numbers(),
            scale=alt.Scale(nice=False),
        ),
        color=alt.Color(
            "group:N",
            title=None,
            sort=names,
            scale=alt.Scale(domain=names, range=list(COLOURS)),
            legend=alt.Legend(orient="bottom", columns=2, labelLimit=400, symbolOpacity=1),
        ),
        tooltip=[
            alt.Tooltip("group", title="who"),
            "epoch",
            alt.Tooltip("accuracy", format=".1%"),
            alt.Tooltip("low", format=".1%", title="least of the seeds"),
            alt.Tooltip("high", format=".1%", title="most of the seeds"),
        ],
    )
    band = base.mark_area(opacity=0.15, strokeOpacity=0).encode(y="low:Q", y2="high:Q")
    line = base.mark_line(strokeWidth=2.5, point=alt.OverlayMarkDef(size=18)).encode(
        y=share("accuracy:Q", "predicted"),
        strokeDash=alt.StrokeDash("group:N", title=None, sort=names, legend=None),
    )
    return alt.layer(band, line).properties(
        width=520, height=260, title="What is predicted, epoch by epoch"
    )
