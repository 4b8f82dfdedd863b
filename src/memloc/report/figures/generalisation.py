"""What models know of examples that they were not trained on."""

import altair as alt
import numpy as np
import pandas as pd

from memloc.report.figures.style import BLUE, ORANGE, share, task_colour, task_order, task_shape
from memloc.seeds import generator

MOST_POINTS = 300
"""Noisy examples, and clean ones, drawn of one task and model."""


def memorisation_map(table: pd.DataFrame) -> alt.Chart:
    """Probability of the label when trained on it against that when not; a point an example.

    Top left: memorised. Top right: learnt from others. Of many examples some are drawn at random.
    """
    named = table.assign(example_kind=table["is_noisy"].map({True: "noisy", False: "clean"}))
    keys = ["task", "model", "example_kind"]
    parts = [_some(part) for _, part in named.groupby(keys, sort=False)]
    columns = [*keys, "example", "held_out", "trained", "counterfactual"]
    drawn = pd.concat(parts)[columns] if parts else pd.DataFrame(columns=columns)
    numbers = [alt.Tooltip(n, format=".2f") for n in ("trained", "held_out", "counterfactual")]
    return (
        alt.Chart(drawn)
        .mark_point(filled=True, size=32, opacity=0.75)
        .encode(
            x=alt.X(
                "held_out:Q",
                title="probability of the label when held out",
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
            tooltip=["example_kind", "example", *numbers],
        )
        .properties(width=340, height=300)
    )


def depth_and_generalisation(table: pd.DataFrame) -> alt.Chart:
    """Depth of memorisation against how well a task generalises; a point a task and model.

    The table has `measure` (which depth), `depth`, `against` (which score) and `score`.
    """
    tasks = task_order(table["task"])
    numbers = [alt.Tooltip(name, format=".2f") for name in ("score", "depth")]
    return (
        alt.Chart(table)
        .mark_point(filled=True, opacity=1, size=80)
        .encode(
            x=alt.X("score:Q", title="how well it generalises", scale=alt.Scale(zero=False)),
            y=alt.Y("depth:Q", title="depth of memorisation (layer)", scale=alt.Scale(zero=False)),
            color=task_colour(tasks),
            shape=task_shape(tasks),
            tooltip=["task", "model", *numbers, "measure", "against"],
        )
        .properties(width=380, height=300)
    )


def _some(part: pd.DataFrame) -> pd.DataFrame:
    one: pd.DataFrame = part[part["seed"] == part["seed"].min()]
    if len(one) <= MOST_POINTS:
        return one
    first = one.iloc[0]
    rng = generator(0, "memorisation map", first["task"], first["model"], first["example_kind"])
    return one.take(np.sort(rng.choice(len(one), MOST_POINTS, replace=False)))
