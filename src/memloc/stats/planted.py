"""How well localisers find planted layers, and what they say where nothing was planted.

Tables in, tables out. `layers` has one row per plant, method and layer: the columns of KEY, then
layer (from 1), weight, and undone: the largest share of the labels in question that changing layers
undid, for methods that change layers.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import pandas as pd

from memloc.records import FloatArray
from memloc.stats.agreement import (
    accuracy_at_k,
    auroc,
    centre_error,
    chance_at_k,
    distance_from_uniform,
    planted_mass,
    reciprocal_rank,
    share_above,
)
from memloc.stats.intervals import wilson
from memloc.stats.windows import planted_layers

KEY = ["task", "category", "model", "seed", "planted", "first", "last", "null", "method"]
"""What tells plants and methods apart; `planted` are the layers, from 1, such as 6-7 or 2+9."""
MEASURES: dict[str, Callable[[FloatArray, Collection[int]], float]] = {
    "mrr": reciprocal_rank,
    "auroc": auroc,
    "planted_mass": planted_mass,
    "centre_error": centre_error,
}
"""What is said of every plant and method, whatever k, from weights (L,) and planted layers."""
FOUND = 0.95
"""Share of the real plants that a method has to call localised."""


def plant_scores(
    layers: pd.DataFrame, ks: Sequence[int], validation_tasks: Sequence[str] = ()
) -> pd.DataFrame:
    """accuracy@k, chance, reciprocal rank and AUROC of every real plant, method and k.

    `validation_tasks` chose how a method works, so they do not test it: they are marked.
    """
    rows = []
    real = layers[~layers["null"].astype(bool)]
    for key, weights in _by_plant(real):
        planted = planted_layers(key["planted"])
        if len(planted) == len(weights):
            continue  # where all layers are planted, there is none to tell them from
        shared = {
            **key,
            **{name: measure(weights, planted) for name, measure in MEASURES.items()},
            "validation": key["task"] in validation_tasks,
        }
        for k in ks:
            chance = chance_at_k(len(weights), len(planted), k)
            accuracy = accuracy_at_k(weights, planted, k)
            rows.append({**shared, "chance": chance, "k": k, "accuracy": accuracy})
    columns = [*KEY, "chance", *MEASURES, "validation", "k", "accuracy"]
    return pd.DataFrame(rows, columns=columns).drop(columns="null")


def mean_scores(scores: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Means over plants for each value of `by` and k, with Wilson intervals of the accuracy.

    Plants of validation tasks count only where there are no others.
    """
    validates = scores["validation"].astype(bool)
    if not validates.all():
        scores = scores[~validates]
    rows = []
    for key, part in scores.groupby([*by, "k"], sort=False):
        interval = wilson(part["accuracy"].mean(), len(part)).at()
        rows.append(
            {
                **dict(zip([*by, "k"], key, strict=True)),
                "accuracy": interval.estimate,
                "low": interval.low,
                "high": interval.high,
                "chance": part["chance"].mean(),
                **part[list(MEASURES)].mean(),
                "plants": len(part),
            }
        )
    columns = [*by, "k", "accuracy", "low", "high", "chance", *MEASURES, "plants"]
    return pd.DataFrame(rows, columns=columns)


def distances(layers: pd.DataFrame) -> pd.DataFrame:
    """How far from uniform the layer weights of each plant and null are; 0: nothing is claimed."""
    undone = layers.groupby(KEY, sort=False, dropna=False)["undone"].first()
    rows = [{**key, "distance": _distance(weights)} for key, weights in _by_plant(layers)]
    found = pd.DataFrame(rows, columns=[*KEY, "distance"])
    return found.join(undone, on=KEY)


def null_claims(layers: pd.DataFrame) -> pd.DataFrame:
    """Of each method: how often it would call a null localised, were it to find real plants.

    A method calls weights localised that are at least `threshold` from uniform, the distance
    which FOUND of the real plants reach. `apart` is the probability that a real plant is further
    from uniform than a null. Weights have no scale: `undone` says how much there was to weigh.
    """
    rows = []
    for method, part in distances(layers).groupby("method", sort=False):
        is_null = part["null"].astype(bool)
        real, null = (part.loc[kind, "distance"].to_numpy() for kind in (~is_null, is_null))
        if not len(real) or not len(null):
            continue
        threshold = float(np.quantile(real, 1 - FOUND, method="lower"))
        called = wilson((null >= threshold).mean(), len(null)).at()
        rows.append(
            {
                "method": method,
                "plants": len(real),
                "nulls": len(null),
                "distance_planted": real.mean(),
                "distance_null": null.mean(),
                "threshold": threshold,
                "called": called.estimate,
                "called_low": called.low,
                "called_high": called.high,
                "apart": share_above(real, null),
                "undone_planted": part.loc[~is_null, "undone"].mean(),
                "undone_null": part.loc[is_null, "undone"].mean(),
            }
        )
    columns = ["method", "plants", "nulls", "distance_planted", "distance_null", "threshold"]
    columns += ["called", "called_low", "called_high", "apart", "undone_planted", "undone_null"]
    return pd.DataFrame(rows, columns=columns)


def _by_plant(layers: pd.DataFrame) -> list[tuple[dict[str, Any], FloatArray]]:
    ordered = layers.sort_values("layer", kind="stable")
    return [
        (dict(zip(KEY, key, strict=True)), part["weight"].to_numpy(np.float64))
        for key, part in ordered.groupby(KEY, sort=False, dropna=False)
    ]


def _distance(weights: FloatArray) -> float:
    positive = np.maximum(0, weights)  # layers whose swap helps hold nothing
    return distance_from_uniform(positive) if positive.any() else 0.0
