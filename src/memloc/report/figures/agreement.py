"""How far methods agree with each other, and models."""

import altair as alt
import pandas as pd


def agreement(table: pd.DataFrame) -> alt.Chart:
    """Coefficients between all pairs as a matrix; a star where p is above the limit.

    The table is what `method_agreement` and `model_agreement` return, a row a pair.
    """
    turned = table.rename(columns={"one": "other", "other": "one"})
    drawn = pd.concat([table, turned], ignore_index=True)
    drawn["label"] = [
        "–" if pd.isna(rho) else f"{rho:.2f}{'' if sure else '*'}"
        for rho, sure in zip(drawn["rho"], drawn["significant"], strict=True)
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
    bright = alt.condition("datum.rho > 0.55", alt.value("#111111"), alt.value("#ffffff"))
    words = base.mark_text(fontSize=12).encode(text="label:N", color=bright)
    return alt.layer(cells, words).properties(width=300, height=260)
