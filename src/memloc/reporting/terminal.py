"""Small pictures made of characters, for the terminal."""

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from memloc.methods.result import Result
from memloc.reporting.sentences import layer_name
from memloc.reporting.style import WORDS

if TYPE_CHECKING:
    import pandas as pd

    from memloc.methods.result import Result

BARS = " ▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float]) -> str:
    """A row of bars, 0 empty and 1 full; a dot where there is no number."""
    last = len(BARS) - 1
    return "".join(
        "·" if math.isnan(value) else BARS[round(min(1.0, max(0.0, value)) * last)]
        for value in values
    )


def _curves(title: str, curves: "Iterable[tuple[str, Sequence[float], str]]") -> str:
    """One line per curve: what it is, a bar for each of its values, what to say of its end."""
    every = list(curves)
    width = max(len(label) for label, _, _ in every)
    lines = (f"{label:{width}} |{sparkline(values)}| {end}" for label, values, end in every)
    return "\n".join([title, *lines])


def memorisation_curve(table: "pd.DataFrame") -> str:
    """How a training on noisy labels went: one line a group of examples, one bar an epoch."""
    noisy = table[table["training"] == "noisy"].sort_values("epoch")
    known = {column: name for column, name in WORDS["curve"].items() if noisy[column].notna().any()}
    noisy = noisy.dropna(subset=list(known))
    first, last = noisy["epoch"].iloc[0], noisy["epoch"].iloc[-1]
    return _curves(
        f"predicted correctly, epoch {first} to {last}",
        [(name, noisy[c].tolist(), f"{noisy[c].iloc[-1]:.0%}") for c, name in known.items()],
    )


def layer_bars(scores: "Result", width: int = 30) -> str:
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


SHORT = ("layers", "events", "summary", "models")
"""The tables that do not have one row per example."""


def picture(found: Result) -> str:
    """A picture of an analysis: one line per curve, one bar per layer."""
    pictures = {"centroids": _drift, "label_probes": _probes, "generalisation": _memory}
    draw = pictures.get(found.method)
    return draw(found) if draw else ""


def _drift(found: Result) -> str:
    layers, events = found["layers"], found["events"]
    noisy = layers[(layers["kind"] == "noisy") & (layers["layer"] > 0)].sort_values("layer")
    curves = []
    for event in events[events["event"] == "crossing"].to_dict("records"):
        when = layer_name(event["layer"])
        unclear = when != "never" and not event["separable"]
        said = f"crossing {when}{', where the classes cannot be told apart' if unclear else ''}"
        values = noisy.loc[noisy["variant"] == event["variant"], "mean"]
        curves.append((event["variant"], values.tolist(), said))
    return _curves(
        f"where noisy examples are, layer 1 to {noisy['layer'].max()}: full original class, empty "
        "assigned",
        curves,
    )


def _probes(found: Result) -> str:
    layers = found["layers"].query("layer > 0").sort_values("layer")
    curves = []
    for kind, name in WORDS["probe"].items():
        f1 = layers.loc[layers["examples"] + " " + layers["labels"] == kind, "f1"]
        curves.append((name, f1.tolist(), f"{f1.iloc[-1]:.2f}"))
    return _curves(f"F1 of label probes, layer 1 to {layers['layer'].max()}", curves)


def _memory(found: Result) -> str:
    """Mean probability of the label with and without training on it, noisy and clean apart."""
    lines = ["mean probability of the label         trained on  held out  difference"]
    examples = found["examples"]
    for is_noisy, name in ((True, "noisy examples"), (False, "clean examples")):
        part = examples[examples["is_noisy"] == is_noisy]
        means = [part[column].mean() for column in ("trained", "held_out", "counterfactual")]
        lines.append(f"{name:37} {means[0]:10.2f}  {means[1]:8.2f}  {means[2]:10.2f}")
    return "\n".join(lines)
