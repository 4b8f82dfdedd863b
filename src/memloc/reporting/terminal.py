"""Small pictures made of characters, for the terminal."""

import math
from typing import TYPE_CHECKING

from memloc.methods.registry import methods
from memloc.methods.result import Result
from memloc.methods.views import text_curves
from memloc.reporting.style import WORDS

if TYPE_CHECKING:
    import pandas as pd

    from memloc.methods.result import Result

SHORT = ("layers", "events", "summary", "models")
"""Tables that do not have one row per example."""


def memorisation_curve(table: "pd.DataFrame") -> str:
    """Draw the training on noisy labels: one line per group of examples, one bar per epoch."""
    noisy = table[table["training"] == "noisy"].sort_values("epoch")
    known = {column: name for column, name in WORDS["curve"].items() if noisy[column].notna().any()}
    noisy = noisy.dropna(subset=list(known))
    first, last = noisy["epoch"].iloc[0], noisy["epoch"].iloc[-1]
    return text_curves(
        f"predicted correctly, epoch {first} to {last}",
        [(name, noisy[c].tolist(), f"{noisy[c].iloc[-1]:.0%}") for c, name in known.items()],
    )


def layer_bars(scores: "Result", width: int = 30) -> str:
    """Draw one line per layer: a bar for its weight, the number and its interval."""
    top = float(scores.weights.max()) or 1.0
    lines = [f"{scores.method}, weight of each layer"]
    for number, (weight, low, high) in enumerate(
        zip(scores.weights, scores.low, scores.high, strict=True), start=1
    ):
        bar = "█" * round(width * max(0.0, float(weight)) / top)
        interval = "" if math.isnan(low) else f"  [{low:.3f}, {high:.3f}]"
        lines.append(f"{number:>3} {bar:<{width}} {weight:.3f}{interval}")
    return "\n".join(lines)


def picture(found: Result) -> str:
    """Draw an analysis in the way its method does; empty if the method draws nothing."""
    return methods()[found.method].picture(found) if found.method in methods() else ""
