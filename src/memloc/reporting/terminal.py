"""Small pictures made of characters, for the terminal."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from memloc.methods.result import LayerScores

BARS = " ▁▂▃▄▅▆▇█"

CURVES = {
    "clean_accuracy": "clean examples, their label",
    "noisy_accuracy": "noisy examples, assigned (wrong) label",
    "noisy_as_original": "noisy examples, original (right) label",
    "validation_accuracy": "unseen examples, their label",
}
"""Columns of a training table, and what they are for people."""


def sparkline(values: Sequence[float]) -> str:
    """A row of bars, 0 empty and 1 full; a dot where there is no number."""
    last = len(BARS) - 1
    return "".join(
        "·" if math.isnan(value) else BARS[round(min(1.0, max(0.0, value)) * last)]
        for value in values
    )


def memorisation_curve(table: "pd.DataFrame") -> str:
    """How a training on noisy labels went: one line a group of examples, one bar an epoch."""
    noisy = table[table["training"] == "noisy"].sort_values("epoch").dropna(subset=[*CURVES])
    label_width = max(map(len, CURVES.values()))
    first, last = noisy["epoch"].iloc[0], noisy["epoch"].iloc[-1]
    lines = [f"{f'predicted correctly, epoch {first} to {last}':{label_width}}"]
    for column, label in CURVES.items():
        values = noisy[column].tolist()
        lines.append(f"{label:{label_width}} |{sparkline(values)}| {values[-1]:.0%}")
    return "\n".join(lines)


def layer_bars(scores: "LayerScores", width: int = 30) -> str:
    """One line per layer: a bar for its weight, the number and its interval."""
    top = float(scores.weights.max()) or 1.0
    lines = [f"{scores.method}, weight of each layer"]
    for number, (weight, low, high) in enumerate(
        zip(scores.weights, scores.low, scores.high, strict=True), start=1
    ):
        bar = "█" * round(width * max(0.0, float(weight)) / top)
        interval = "" if math.isnan(low) else f"  [{low:.3f}, {high:.3f}]"
        lines.append(f"{number:>3} {bar:<{width}} {weight:.3f}{interval}")
    return "\n".join(lines)
