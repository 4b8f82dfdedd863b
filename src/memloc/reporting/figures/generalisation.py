"""What models know of examples that they were not trained on."""

import altair as alt
import numpy as np
import pandas as pd

from memloc.reporting.figures.style import (
    BLUE,
    GREY,
    ORANGE,
    ROOM,
    faded,
    highlight,
    share,
    task_colour,
    task_fill,
    task_order,
    task_shape,
)
from memloc.seeds import generator

MARKS = (
    alt.Tooltip("n_never:Q", title="never, seeds"),
    alt.Tooltip("n_inseparable:Q", title="where classes cannot be told apart, seeds"),
)
MOST_POINTS = 300
"""Noisy examples, and clean ones, drawn of one task and model."""


def memorisation_map(table: pd.DataFrame) -> alt.Chart:
    """Probability of the label when trained on it against that when not; one point per example.

    Top left: memorised. Top right: learnt from others. Of many examples some are drawn at random.
    """
    named = table.assign(example_kind=table["is_noisy"].map({True: "noisy", False: "clean"}))
    keys = ["task", "model", "example_kind"]
    parts = [_some(part) for _, part in named.groupby(keys, sort=False)]
    means, counts = ("trained", "held_out", "counterfactual"), ("n_trained", "n_held_out")
    columns = [*keys, "example", *means, *counts]
    drawn = pd.concat(parts)[columns] if parts else pd.DataFrame(columns=columns)
    numbers = [alt.Tooltip(name, format=".2f") for name in means]
    return (
        alt.Chart(drawn)
        .mark_point(filled=True, size=32, opacity=0.75)
        .encode(
            x=alt.X(
                "held_out:Q",
                title="probability of the label when held out",
                axis=alt.Axis(format="%"),
                scale=alt.Scale(domain=[0, 1]),
            ),
            y=share("trained:Q", "probability when trained on it"),
            color=alt.Color(
                "example_kind:N",
                title=None,
                scale=alt.Scale(domain=["noisy", "clean"], range=[ORANGE, BLUE]),
                legend=alt.Legend(orient="bottom"),
            ),
            shape=alt.Shape(
                "example_kind:N",
                title=None,
                scale=alt.Scale(domain=["noisy", "clean"], range=["diamond", "circle"]),
            ),
            tooltip=["example_kind", "example", *numbers, *counts],
        )
        .properties(width=340, height=300)
    )


def depth_and_generalisation(table: pd.DataFrame) -> alt.Chart:
    """Depth of memorisation against how well a task generalises; one point per task and model.

    The table has `measure` (which depth), `depth`, `against` (which score) and `score`, and the
    ends of both as `depth_low`, `score_low` and so on. Points of which `n_inseparable` seeds have
    the event where classes cannot be told apart are hollow.
    """
    tasks, chosen = task_order(table["task"]), highlight()
    shown = ("score", "score_low", "score_high", "depth", "depth_low", "depth_high")
    base = alt.Chart(table).encode(
        color=task_colour(tasks),
        tooltip=["task", "model", *(alt.Tooltip(n, format=".2f") for n in shown), *MARKS],
    )
    x = alt.X("score:Q", title="how well it generalises", scale=ROOM)
    y = alt.Y("depth:Q", title="depth (layer)", scale=ROOM, axis=_depth_axis())
    rules = base.mark_rule().encode(opacity=faded(chosen, 0.65))
    across = rules.encode(x="score_low:Q", x2="score_high:Q", y=y)
    along = rules.encode(x=x, y="depth_low:Q", y2="depth_high:Q")
    points = base.mark_point(size=80).encode(
        x=x,
        y=y,
        shape=task_shape(tasks),
        opacity=faded(chosen),
        fill=task_fill(tasks),
        fillOpacity=alt.condition("datum.n_inseparable > 0", alt.value(0), alt.value(1)),
    )
    return alt.layer(across, along, points.add_params(chosen)).properties(width=380, height=300)


def _depth_axis() -> alt.Axis:
    """Whole layers, but for centres of gravity that are less than that apart."""
    step = alt.expr("domain('y')[1] - domain('y')[0] > 2 ? 1 : 0")
    return alt.Axis(format="~r", tickMinStep=step)


def _some(part: pd.DataFrame) -> pd.DataFrame:
    one: pd.DataFrame = part[part["seed"] == part["seed"].min()]
    if len(one) <= MOST_POINTS:
        return one
    first = one.iloc[0]
    rng = generator(0, "memorisation map", first["task"], first["model"], first["example_kind"])
    return one.take(np.sort(rng.choice(len(one), MOST_POINTS, replace=False)))


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
