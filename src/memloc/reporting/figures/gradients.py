"""What the gradients' post-processing does, step by step."""

import altair as alt
import numpy as np
import pandas as pd

from memloc.reporting.figures.style import COLOURS, layer_axis

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
    layers = table["first"].astype(str) + " to " + table["last"].astype(str)
    return ("layers " + layers).where(~table["null"].astype(bool), "nothing in " + layers)


def _over(norms: "pd.Series | None", frozen: "pd.Series | None") -> "pd.Series | None":
    return None if norms is None or frozen is None else norms / frozen.replace(0, np.nan)


def _scaled(norms: "pd.Series | None") -> "pd.Series | None":
    return None if norms is None else norms / norms.groupby(KEYS, sort=False).transform("sum")
