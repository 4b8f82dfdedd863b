"""Scores methods on planted layers, and on runs where nothing was planted.

Functions take and return tables. `layers` has one row per plant, method and layer: the columns of
KEY, the layer (from 1), its weight, and `undone`: for methods that change layers, the largest share
of the labels that a change undid.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from memloc.arrays import BoolArray, FloatArray
from memloc.errors import ScoreError, counted
from memloc.seeds import generator
from memloc.stats.depth import centres_of_gravity, relative_to_frozen
from memloc.stats.intervals import (
    RESAMPLES,
    Interval,
    bootstrap_counts,
    bootstrap_ends,
    percentiles,
    wilson,
)
from memloc.stats.windows import planted_layers

KEY = ["task", "category", "model", "seed", "planted", "first", "last", "null", "method"]
"""Columns that identify a plant and a method; `planted` has layers from 1, as in 6-7 or 2+9."""
BASELINE = "best trivial baseline"
"""The name, in tables of methods, of the line that a method has to beat."""
POST_PROCESSED_AT = 2
"""k of the accuracy@k in the paper's appendix E."""
FOUND = 0.95
"""Share of real plants that a method must call localised; it decides the method's threshold."""


def accuracy_at_k(weights: FloatArray, planted: Collection[int], k: int) -> float:
    """Return the share of the `k` layers with the largest `weights` (L,) that are planted (from 0).

    With fewer than `k` planted layers, hits are divided by the number of planted layers, so that 1
    can be reached: hits / min(k, planted). Ties (to 12 digits) count by their expected share over
    all orders, so that uniform weights give chance.
    """
    is_planted = _planted_mask(weights, planted)
    if not 1 <= k <= len(weights):
        raise ScoreError(f"With {counted(len(weights), 'layer')}, k cannot be {k}.")
    rounded = _rounded(weights)
    least = np.sort(rounded)[-k]
    above, tied = rounded > least, rounded == least
    sure = np.count_nonzero(above & is_planted)
    share = is_planted[tied].mean()
    hits = sure + (k - np.count_nonzero(above)) * share
    return float(hits / min(k, np.count_nonzero(is_planted)))


def reciprocal_rank(weights: FloatArray, planted: Collection[int]) -> float:
    """Return 1 / rank of the best planted layer (from 0); the largest of `weights` has rank 1.

    Ties count by the expected rank over all orders: of t equal layers of which m are planted, the
    first planted one is on average the (t + 1)/(m + 1)-th.
    """
    is_planted = _planted_mask(weights, planted)
    rounded = _rounded(weights)
    best = rounded[is_planted].max()
    tied = rounded == best
    place = (np.count_nonzero(tied) + 1) / (np.count_nonzero(tied & is_planted) + 1)
    return float(1 / (np.count_nonzero(rounded > best) + place))


def auroc(weights: FloatArray, planted: Collection[int]) -> float:
    """Return the probability that a planted layer (from 0) outweighs another layer; ties count
    half.
    """
    is_planted = _planted_mask(weights, planted)
    if is_planted.all():
        raise ScoreError("All layers are planted, so there is none to tell them from.")
    rounded = _rounded(weights)
    return share_above(rounded[is_planted], rounded[~is_planted])


def share_above(ones: FloatArray, others: FloatArray) -> float:
    """Return the probability that one of `ones` is above one of `others`; ties count half."""
    return float(stats.mannwhitneyu(ones, others).statistic / (len(ones) * len(others)))


def planted_mass(weights: FloatArray, planted: Collection[int]) -> float:
    """Return the share of positive `weights` (L,) on planted layers (from 0); NaN if none is
    positive.
    """
    is_planted = _planted_mask(weights, planted)
    positive = np.maximum(0, weights)
    total = positive.sum()
    return float(positive[is_planted].sum() / total) if total > 0 else np.nan


def centre_error(weights: FloatArray, planted: Collection[int]) -> float:
    """Return the distance between the centres of positive `weights` and of planted layers."""
    is_planted = _planted_mask(weights, planted)
    positive = np.maximum(0, weights)
    centre, true = centres_of_gravity(np.stack([positive, is_planted.astype(np.float64)]))
    return float(abs(centre - true))


def distance_from_uniform(weights: FloatArray) -> float:
    """Return the total variation: half of Σ |w_i / Σ w - 1 / L| over `weights` (L,).

    Negative weights, of layers whose exchange helps, count as 0. Without positive weights the
    distance is 0.
    """
    positive = np.maximum(0, weights)
    total = positive.sum()
    if not np.isfinite(total):
        raise ScoreError("Layers cannot be weighed: some weight is not a number.")
    return float(np.abs(positive / total - 1 / len(weights)).sum() / 2) if total > 0 else 0.0


def _planted_mask(weights: FloatArray, planted: Collection[int]) -> BoolArray:
    if not np.isfinite(weights).all():
        raise ScoreError("Layers cannot be ranked: some weight is not a number.")
    depth = len(weights)
    if not planted or not set(planted) <= set(range(depth)):
        raise ScoreError(
            f"Planted layers must be some of 0 to {depth - 1}, found {sorted(planted)}."
        )
    return np.isin(np.arange(depth), list(planted))


def _rounded(weights: FloatArray) -> FloatArray:
    """Round weights, as equal ones computed in different orders differ in their last digits."""
    largest = float(np.abs(weights).max())
    return np.round(weights / largest, 12) if largest > 0 else weights


MEASURES: dict[str, Callable[[FloatArray, Collection[int]], float]] = {
    "mrr": reciprocal_rank,
    "auroc": auroc,
    "planted_mass": planted_mass,
    "centre_error": centre_error,
}
"""Scores of a plant and method that depend on weights (L,) and planted layers, but on no k."""
IS_BETTER = {"accuracy": True, **dict.fromkeys(MEASURES, True), "centre_error": False}
"""Scores of a method, and whether more is better."""


def plant_scores(
    layers: pd.DataFrame, ks: Sequence[int], validation_tasks: Sequence[str] = ()
) -> pd.DataFrame:
    """Return accuracy@k, chance and the other MEASURES of every real plant, method and k.

    Plants of `validation_tasks` are marked: these tasks were used to choose how a method works, so
    they do not test it.
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
            accuracy = accuracy_at_k(weights, planted, k)
            chance = max(k, len(planted)) / len(weights)  # of a random order of the layers
            rows.append({**shared, "chance": chance, "k": k, "accuracy": accuracy})
    names = [name for name in KEY if name != "null"]
    return pd.DataFrame(rows, columns=[*names, "chance", *MEASURES, "validation", "k", "accuracy"])


def mean_scores(scores: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Return means over plants for each value of the columns `by` and each k, with intervals.

    Accuracies have Wilson's intervals, other measures bootstrap intervals over plants. Plants of
    validation tasks count only if there are no others.
    """
    validates = scores["validation"].astype(bool)
    if not validates.all():
        scores = scores[~validates]
    grouped = scores.groupby([*by, "k"], sort=False)
    means = grouped[["accuracy", "chance", *MEASURES]].agg(np.mean).assign(plants=grouped.size())
    sure = wilson(means["accuracy"].to_numpy(), means["plants"].to_numpy(np.float64))
    table = means.assign(low=sure.low, high=sure.high).reset_index()
    table = table[[*by, "k", "accuracy", "low", "high", "chance", *MEASURES, "plants"]]
    for name in MEASURES:
        ends = [bootstrap_ends(values.to_numpy(np.float64)) for _, values in grouped[name]]
        table[[f"{name}_low", f"{name}_high"]] = np.reshape(ends, (-1, 2))
    return table


def with_best_trivial(
    table: pd.DataFrame, trivial: Collection[str], by: Sequence[str], measures: Mapping[str, bool]
) -> pd.DataFrame:
    """Return the rows of methods and, below them, one row of BASELINE for each value of `by`.

    Without trivial baselines the table is returned unchanged. See `best_trivial`.
    """
    others = table[~table["method"].isin([*trivial])]
    return pd.concat([others, *best_trivial(table, trivial, by, measures)], ignore_index=True)


def best_trivial(
    table: pd.DataFrame, trivial: Collection[str], by: Sequence[str], measures: Mapping[str, bool]
) -> list[pd.DataFrame]:
    """Return a row of BASELINE for each value of `by`; none without trivial baselines.

    Each measure in that row is of the trivial baseline that is best by it, with its interval; other
    columns, such as the number of plants, are of the one that is best by the first measure.

    Args:
        table: Table of means, one row per method.
        trivial: Names of the trivial baselines.
        by: Columns of whose values each gets a row of its own; without any, there is one row.
        measures: For each measure, whether more is better.
    """
    is_trivial = table["method"].isin([*trivial])
    groups = table[is_trivial].groupby([is_trivial[is_trivial], *by], sort=False)
    return [_best(part, measures) for _, part in groups]


def _best(part: pd.DataFrame, measures: Mapping[str, bool]) -> pd.DataFrame:
    ordered = {
        name: part.sort_values(name, ascending=not more_is_better, kind="stable").head(1)
        for name, more_is_better in measures.items()
    }
    row = next(iter(ordered.values())).assign(method=BASELINE)
    for name, best in ordered.items():
        ends = ["low", "high"] if name == "accuracy" else [f"{name}_low", f"{name}_high"]
        columns = [name, *(end for end in ends if end in part)]
        row[columns] = best[columns].to_numpy()
    return row


def processed_accuracy(norms: pd.DataFrame) -> pd.DataFrame:
    """Return accuracy@2 of gradients with each step of post-processing on and off (Appendix E).

    `norms` has one row per plant, norm, kind (noisy or difference, perhaps of frozen weights) and
    layer. Values are means over real plants with Wilson intervals.
    """
    real = norms[~norms["null"].astype(bool)]
    plant = ["model", "norm", "planted", "task", "seed"]
    wide = real.pivot_table("value", index=[*plant, "layer"], columns="kind")
    kinds = ["noisy", "difference", "frozen noisy", "frozen difference"]
    wide = wide.reindex(columns=kinds)
    rows = []
    for subtract, divide in product((False, True), repeat=2):
        kind = "difference" if subtract else "noisy"
        for (model, norm, planted, *_), part in wide.groupby(plant):
            weights, frozen = part[kind].to_numpy(), part[f"frozen {kind}"].to_numpy()
            if divide:
                if np.isnan(frozen).all():  # there are no frozen weights
                    continue
                weights = relative_to_frozen(weights, frozen)
            layers = planted_layers(str(planted))
            accuracy = accuracy_at_k(weights, layers, POST_PROCESSED_AT)
            rows.append((model, norm, subtract, divide, accuracy))
    steps = ["model", "norm", "subtract_clean", "divide_frozen"]
    grouped = pd.DataFrame(rows, columns=[*steps, "accuracy"]).groupby(steps)
    means = grouped["accuracy"].agg(accuracy="mean", plants="size").reset_index()
    sure = wilson(*(means[name].to_numpy(np.float64) for name in ("accuracy", "plants")))
    return means.assign(low=sure.low, high=sure.high)


def distances(layers: pd.DataFrame) -> pd.DataFrame:
    """Return the distance of each plant's and null's layer weights from uniform."""
    rows = [
        {**key, "distance": distance_from_uniform(weights)} for key, weights in _by_plant(layers)
    ]
    return pd.DataFrame(rows, columns=[*KEY, "distance", "undone"])


def null_claims(layers: pd.DataFrame) -> pd.DataFrame:
    """Return how often each method would call a null localised.

    A method calls weights localised if they are at least `threshold` from uniform, the distance
    that FOUND of the real plants reach. `apart` is the probability that a real plant is further
    from uniform than a null. Weights have no scale; `undone` says how much there was to weigh. The
    ends are those of bootstrap intervals over plants and nulls.
    """
    rows = []
    for method, part in distances(layers).groupby("method", sort=False):
        is_null = part["null"].astype(bool)
        real, null = (part.loc[kind, "distance"].to_numpy() for kind in (~is_null, is_null))
        if not len(real) or not len(null):
            continue
        threshold = float(np.quantile(real, 1 - FOUND, method="lower"))
        row = {
            "method": method,
            "plants": len(real),
            "nulls": len(null),
            "distance_planted": real.mean(),
            "distance_null": null.mean(),
            "threshold": threshold,
            **wilson((null >= threshold).mean(), len(null)).named("called"),
            **Interval(share_above(real, null), *_apart_ends(real, null)).named("apart"),
        }
        for name, kind in (("undone_planted", ~is_null), ("undone_null", is_null)):
            undone = part.loc[kind, "undone"]
            ends = bootstrap_ends(undone.to_numpy(np.float64))
            row |= Interval(undone.mean(), *ends).named(name)
        rows.append(row)
    return pd.DataFrame(rows)


def _apart_ends(real: FloatArray, null: FloatArray) -> tuple[float, float]:
    """Return the bootstrap ends of the probability that a number of `real` is above one of
    `null`.
    """
    if min(len(real), len(null)) < 2:
        return np.nan, np.nan
    wins = (real[:, None] > null) + (real[:, None] == null) / 2
    rng = generator(0, "bootstrap", "nulls")
    drawn = [bootstrap_counts(n, RESAMPLES, rng) / n for n in wins.shape]
    low, high = percentiles(((drawn[0] @ wins) * drawn[1]).sum(1))
    return float(low), float(high)


def _by_plant(layers: pd.DataFrame) -> list[tuple[dict[str, Any], FloatArray]]:
    ordered = layers.sort_values("layer", kind="stable")
    names = [*KEY, "undone"]
    return [
        (dict(zip(names, key, strict=True)), part["weight"].to_numpy(np.float64))
        for key, part in ordered.groupby(names, sort=False, dropna=False)
    ]
