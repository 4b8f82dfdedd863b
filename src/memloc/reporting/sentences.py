"""What results say, in sentences that are computed from the numbers."""

import math
from typing import Any

import numpy as np
import pandas as pd

from memloc.methods.result import LayerScores, Result

EVENTS = {
    "crossing": "noisy examples cross from their original class to the assigned one",
    "initiation": "the classes are separated",
    "memorisation": "the assigned label of noisy examples is read better than the original one",
    "ninety": "the label of clean examples is read nearly as well as at its best",
}
"""What happens, by the name of the event."""


def sentence(found: Result) -> str:
    """What a method says about a model, with how sure it is."""
    if isinstance(found, LayerScores):
        text = " ".join([_layers_matter(found), *found.remarks])
    else:
        text = _generalised(found) if found.method == "generalisation" else _happenings(found)
    if found.about.get("forced"):
        share = found.about.get("final_noisy_accuracy", math.nan)
        return f"FORCED (only {share:.0%} of the noisy labels are predicted): {text}"
    return text


def remarks_on(table: pd.DataFrame) -> str:
    """What the results in a table say against themselves, each sentence once with its runs."""
    found, said = marked(table), []
    for remark, part in found.groupby("remark", sort=False) if len(found) else ():
        runs = part[["task", "model", "seed"]].drop_duplicates().itertuples(index=False)
        names = [f"{task} · {model} · seed {seed}" for task, model, seed in runs]
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        said.append(f"{str(remark).removesuffix('.')} ({', '.join(names[:SHOWN])}{more}).")
    return " ".join(said)


def marked(table: pd.DataFrame) -> pd.DataFrame:
    """The rows that have a remark; of nulls, in which there is nothing to find, none counts."""
    if "remark" not in table.columns:
        return table.head(0)
    counts = table["remark"].astype(str) != ""
    return table[counts & ~table["null"].astype(bool)] if "null" in table else table[counts]


SHOWN = 3
"""Runs that are named; the others are counted."""


def _layers_matter(scores: LayerScores) -> str:
    mcog, depth = scores.mcog, scores.depth
    if math.isnan(mcog.estimate):
        return f"{scores.method}: no layer stands out, so there is no centre of gravity."
    sure = f" ({mcog.level:.0%} interval {mcog.low:.1f} to {mcog.high:.1f})"
    parts = [
        f"{scores.method}: the centre of gravity is layer {mcog.estimate:.1f} of {depth}"
        + ("" if math.isnan(mcog.low) else sure),
        f"layer {int(np.argmax(scores.weights)) + 1} matters most",
    ]
    if scores.outcomes is not None:
        parts.append(_windows(scores))
    return "; ".join(parts) + "."


def _windows(scores: LayerScores) -> str:
    assert scores.outcomes is not None
    outcomes = scores.outcomes
    every = list(zip(outcomes.errors, outcomes.clean_errors, outcomes.windows, strict=True))
    nothing = [(math.nan, math.nan)]
    single = max([(e, c) for e, c, window in every if len(window) == 1] or nothing)
    full = max([(e, c) for e, c, window in every if len(window) == scores.depth] or nothing)
    return (
        f"changing one layer undoes at most {single[0]:.0%} of the memorised labels and "
        f"{single[1]:.1%} of the clean ones, changing all {full[0]:.0%} and {full[1]:.1%}"
    )


def happening(event: Any) -> str:
    """One event in words; `never` and layers where classes cannot be told apart are named."""
    what, layer = EVENTS[event.event], event.layer
    sure = f"95 % interval {layer_name(event.low)} to {layer_name(event.high)}"
    if math.isnan(layer):
        return f"{what}: never ({sure})"
    mark = "" if event.separable else ", where the classes cannot be told apart, so beware"
    return f"{what}: layer {layer:.0f} ({sure}){mark}"


def _happenings(found: Result) -> str:
    events = found["events"]
    said = [happening(event) for event in events[events["variant"] == "plain"].itertuples()]
    return "; ".join(said).capitalize() + "."


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


def layer_name(layer: float) -> str:
    """A layer as people read it."""
    return "never" if math.isnan(layer) else f"{layer:.0f}"
