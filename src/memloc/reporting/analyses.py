"""Analyses for people: a small picture made of characters and a sentence, from the tables."""

import math
from typing import TYPE_CHECKING, Any

from memloc.methods.result import Result
from memloc.reporting.terminal import sparkline

if TYPE_CHECKING:
    import pandas as pd

PROBES = {
    ("noisy", "assigned"): "noisy examples, assigned (wrong) label",
    ("noisy", "original"): "noisy examples, original (right) label",
    ("clean", "original"): "clean examples, their label",
}
EVENTS = {
    "crossing": "noisy examples cross from their original class to the assigned one",
    "initiation": "the classes are separated",
    "memorisation": "the assigned label of noisy examples is read better than the original one",
    "ninety": "the label of clean examples is read nearly as well as at its best",
}
"""What happens, by the name of the event."""

SHORT = ("layers", "events", "summary", "models")
"""The tables that do not have one row per example."""


def picture(found: Result) -> str:
    """One line per curve, one bar per layer."""
    return {"centroids": _drift, "label_probes": _probes, "generalisation": _memory}[found.method](
        found
    )


def sentence(found: Result) -> str:
    """What an analysis says, with how sure it is."""
    text = _generalised(found) if found.method == "generalisation" else _happenings(found)
    if found.about.get("forced"):
        share = found.about["final_noisy_accuracy"]
        return f"FORCED (only {share:.0%} of the noisy labels are predicted): {text}"
    return text


def happening(event: Any) -> str:
    """One event in words; `never` and layers where classes cannot be told apart are named."""
    what, layer = EVENTS[event.event], event.layer
    sure = f"95 % interval {_layer(event.low)} to {_layer(event.high)}"
    if math.isnan(layer):
        return f"{what}: never ({sure})"
    mark = "" if event.separable else ", where the classes cannot be told apart, so beware"
    return f"{what}: layer {layer:.0f} ({sure}){mark}"


def _happenings(found: Result) -> str:
    events = found["events"]
    said = [happening(event) for event in events[events["variant"] == "plain"].itertuples()]
    return "; ".join(said).capitalize() + "."


def _layer(layer: float) -> str:
    return "never" if math.isnan(layer) else f"{layer:.0f}"


def _drift(found: Result) -> str:
    layers = found["layers"]
    noisy = layers[layers["kind"] == "noisy"]
    last = noisy["layer"].max()
    lines = [f"where noisy examples are, layer 1 to {last}: full original class, empty assigned"]
    width = max(map(len, noisy["variant"]))
    events = found["events"]
    crossings = {e.variant: e for e in events[events["event"] == "crossing"].itertuples()}
    for variant, part in noisy.groupby("variant", sort=False):
        event: Any = crossings[variant]
        when = _layer(event.layer)
        if not math.isnan(event.layer) and not event.separable:
            when += ", where the classes cannot be told apart"
        lines.append(f"{variant!s:{width}} |{_bars(part, 'mean')}| crossing {when}")
    return "\n".join(lines)


def _probes(found: Result) -> str:
    layers = found["layers"]
    width = max(map(len, PROBES.values()))
    lines = [f"{'F1 of label probes, layer 1 to ' + str(layers['layer'].max()):{width}}"]
    for (examples, labels), name in PROBES.items():
        part = layers[(layers["examples"] == examples) & (layers["labels"] == labels)]
        lines.append(f"{name:{width}} |{_bars(part, 'f1')}| {part['f1'].iloc[-1]:.2f}")
    return "\n".join(lines)


def _bars(part: "pd.DataFrame", column: str) -> str:
    ordered = part[part["layer"] > 0].sort_values("layer")
    return sparkline([float(value) for value in ordered[column]])


def _memory(found: Result) -> str:
    """Mean probability of the label with and without training on it, noisy and clean apart."""
    lines = ["mean probability of the label         trained on  held out  difference"]
    examples = found["examples"]
    for is_noisy, name in ((True, "noisy examples"), (False, "clean examples")):
        part = examples[examples["is_noisy"] == is_noisy]
        means = [part[column].mean() for column in ("trained", "held_out", "counterfactual")]
        lines.append(f"{name:37} {means[0]:10.2f}  {means[1]:8.2f}  {means[2]:10.2f}")
    return "\n".join(lines)


def _generalised(found: Result) -> str:
    row = found["summary"].iloc[0]
    return (
        f"{row['score']:.0%} of the training examples (95 % interval {row['low']:.0%} to "
        f"{row['high']:.0%}) are predicted better than by chance by those of {row['models']:.0f} "
        f"models that were not trained on them, {row['clean_score']:.0%} of the clean ones; always "
        f"predicting the most frequent label would score {row['majority']:.0%}, so normalised by "
        f"that the score is {row['normalised']:.2f}; the validation score is "
        f"{row['validation_score']:.2f}."
    )
