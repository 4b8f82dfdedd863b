"""How the labels were learnt."""

import altair as alt
import pandas as pd

from memloc.reporting.figures.style import COLOURS, share, whole_numbers
from memloc.reporting.terminal import CURVES


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
