"""How far each method can be trusted: labels planted in known layers."""

import altair as alt
import numpy as np
import pandas as pd

from memloc.reporting.figures.style import BLUE, COLOURS, GREY, layer_axis, method_order, task_order
from memloc.reporting.means import over_seeds
from memloc.stats.planted import mean_scores
from memloc.stats.windows import planted_layers


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
    keys = ["task", "model", "method", "planted", "first", "last", "null"]
    largest = table.groupby([*keys, "seed"])["weight"].transform("max")
    scaled = {n: table[n] / largest.where(largest > 0) for n in ("weight", "low", "high")}
    drawn = over_seeds(table.assign(**scaled), [*keys, "layer"], "weight")
    null, layers = drawn["null"].astype(bool), drawn["planted"]
    inside = [n - 1 in planted_layers(w) for n, w in zip(drawn["layer"], layers, strict=True)]
    drawn["inside"] = np.array(inside, dtype=bool) & ~null
    drawn["planted"] = np.where(null, "nothing in " + layers, "layers " + layers)
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


STEPS = (
    "a frozen weights",
    "b clean examples",
    "c noisy examples",
    "d noisy, sum 1",
    "e noisy − clean",
    "f noisy / frozen",
    "g (noisy − clean) / frozen",
)
KEYS = ["task", "model", "norm", "planted", "seed"]


def gradient_steps(table: pd.DataFrame) -> alt.Chart:
    """Norms of the mean gradients by layer: raw (a to c), then scaled to sum 1 (d to g).

    The table is `gradients`, or `control_gradients`, whose planted windows are drawn apart.
    """
    drawn = pd.concat([_step(table, step) for step in STEPS], ignore_index=True)
    ordered = table.sort_values(["null", "first"]) if "first" in table.columns else table
    planted = list(dict.fromkeys(_planted(ordered)))
    some = {"range": COLOURS} if len(planted) <= len(COLOURS) else {"scheme": "viridis"}
    base = alt.Chart().encode(
        x=layer_axis(),
        y=alt.Y("value:Q", title="norm, or share", scale=alt.Scale(zero=False)),
        color=alt.Color(
            "planted:N",
            title="labels in",
            sort=planted,
            scale=alt.Scale(domain=planted, **some),
            legend=alt.Legend(orient="bottom", columns=4, labelLimit=180),
        ),
        detail="seed:N",
        tooltip=["step", "planted", "layer", alt.Tooltip("value", format=".3g"), "seed"],
    )
    line = base.mark_line(strokeWidth=2, point=alt.OverlayMarkDef(size=25))
    return (
        alt.layer(line, data=drawn)
        .properties(width=180, height=130)
        .facet(alt.Facet("step:N", title=None, sort=list(STEPS)), columns=4)
        .resolve_scale(y="independent")
        .resolve_axis(x="independent")
    )


def _step(table: pd.DataFrame, step: str) -> pd.DataFrame:
    wide = _wide(table)
    noisy, difference = wide.get("noisy"), wide.get("difference")
    made = {
        "a": wide.get("frozen noisy"),
        "b": wide.get("clean"),
        "c": noisy,
        "d": _scaled(noisy),
        "e": _scaled(difference),
        "f": _scaled(_over(noisy, wide.get("frozen noisy"))),
        "g": _scaled(_over(difference, wide.get("frozen difference"))),
    }[step[0]]
    columns = [*KEYS, "layer", "value", "step"]
    if made is None:  # without frozen weights nothing is divided by theirs
        return pd.DataFrame(columns=columns)
    return made.rename("value").reset_index().assign(step=step)[columns]


def _wide(table: pd.DataFrame) -> pd.DataFrame:
    named = table.assign(planted=_planted(table))
    return named.pivot_table(index=[*KEYS, "layer"], columns="kind", values="value", sort=False)


def _planted(table: pd.DataFrame) -> "pd.Series":
    if "first" not in table.columns:
        return pd.Series("the whole model", index=table.index)
    layers = table["planted"]
    return ("layers " + layers).where(~table["null"].astype(bool), "nothing in " + layers)


def _over(norms: "pd.Series | None", frozen: "pd.Series | None") -> "pd.Series | None":
    return None if norms is None or frozen is None else norms / frozen.replace(0, np.nan)


def _scaled(norms: "pd.Series | None") -> "pd.Series | None":
    return None if norms is None else norms / norms.groupby(KEYS, sort=False).transform("sum")
