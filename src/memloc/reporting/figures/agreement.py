"""How far methods agree with each other, and models."""

import altair as alt
import pandas as pd

from memloc.reporting.figures.style import GREY


def agreement(table: pd.DataFrame) -> alt.Chart:
    """Coefficients between all pairs as a matrix, with their intervals; a star: p above the limit.

    The table is what `method_agreement` and `model_agreement` return, one row per pair.
    """
    turned = table.rename(columns={"one": "other", "other": "one"})
    drawn = pd.concat([table, turned], ignore_index=True)
    drawn["label"] = [
        "–" if pd.isna(rho) else f"{rho:.2f}{'' if sure else '*'}"
        for rho, sure in zip(drawn["rho"], drawn["significant"], strict=True)
    ]
    drawn["ends"] = [
        "" if pd.isna(low) else f"{low:.2f} to {high:.2f}"
        for low, high in zip(drawn["low"], drawn["high"], strict=True)
    ]
    order = list(dict.fromkeys(table["one"])) + list(dict.fromkeys(table["other"]))
    order = list(dict.fromkeys(order))
    numbers = [alt.Tooltip(name, format=".3g") for name in ("rho", "low", "high", "p", "n")]
    base = alt.Chart(drawn).encode(
        x=alt.X("one:N", title=None, sort=order, axis=alt.Axis(labelAngle=-30)),
        y=alt.Y("other:N", title=None, sort=order),
        tooltip=["one", "other", *numbers, "why"],
    )
    cells = base.mark_rect().encode(
        color=alt.Color(
            "rho:Q",
            title="ρ",
            scale=alt.Scale(scheme="viridis", domain=[-0.5, 1], clamp=True),
            legend=alt.Legend(orient="bottom", gradientLength=200),
        )
    )
    dark, none = alt.value("#111111"), alt.value(GREY)
    ink = alt.when("datum.rho == null").then(none).when("datum.rho > 0.35").then(dark)
    colour = ink.otherwise(alt.value("#ffffff"))
    words = base.mark_text(fontSize=13).encode(text="label:N", color=colour)
    ends = base.mark_text(fontSize=10, dy=15).encode(text="ends:N", color=colour)
    return alt.layer(cells, words, ends).properties(width=340, height=260)
