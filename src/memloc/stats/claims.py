"""The paper's claims as functions of tidy tables: does memorisation sit deeper in easier tasks?

Functions take tables with the columns task, model and seed, and return one row per coefficient.
Numbers are averaged over seeds first. An event that never happens is deeper than any layer: it
counts as the layer after the last. Several models (or layers) of one task are not independent, so
intervals are over tasks, and p comes from permuting whole tasks, each with all of its models and
layers. p is small if both sides agree on how tasks differ; what all tasks share does not count.
"""

from collections.abc import Collection, Sequence
from dataclasses import asdict
from itertools import combinations
from typing import Any, Literal

import numpy as np
import pandas as pd

from memloc.protocol import AgreementSettings
from memloc.stats.agreement import Coefficient, Correlation, correlation, correlations
from memloc.stats.answers import corrected
from memloc.stats.depth import centres_of_gravity, event_depths
from memloc.stats.intervals import Interval, t_ends, wilson

TABLE_2 = ("crossing", "memorisation", "M-CoG")
"""Measures of depth that Table 2 compares with generalisation."""
EVENT_PAIRS = (("crossing", "memorisation"), ("initiation", "ninety"))
"""Pairs of corresponding events: one of centroids, one of label probes."""
ALL = "all"
"""Value of the column model in rows that pool all models."""
BINARY = "-binary"
"""Suffix of the name of a task with two classes left."""
POINT = ["task", "model"]
NUMBERS = ("rho", "p", "corrected", "significant", "n", "low", "high", "why")
"""Columns of a coefficient: `corrected` is Holm's p over the coefficients of a model in the table
(all coefficients of a table that has no column model); `why` says why a coefficient is NaN."""
MARKS = ("n_never", "n_inseparable")
CENTRE = "M-CoG "
"""Prefix before a method's name in the name of its centre of gravity."""
USUAL = 0.5
"""Share of tasks and models that must have a method for it to enter the mean M-CoG."""
SETTINGS = AgreementSettings()


def depths(
    events: pd.DataFrame, mcog: pd.DataFrame, runs: pd.DataFrame, apart: Collection[str] = ()
) -> pd.DataFrame:
    """Return the depth of memorisation, with one row per task, model and measure.

    Columns: task, model, measure, depth (mean over seeds, in layers), depth_low and depth_high
    (lowest and highest end of the seeds' intervals), layers (of the model), n (seeds), n_never and
    n_inseparable (seeds in which the event never happens, or happens at a layer where the classes
    cannot be told apart), methods (behind the depth). `M-CoG swapping` and so on are single
    methods. `M-CoG` is the mean over methods that most tasks and models have, for tasks and models
    that have all of these methods, without those that stand `apart`.
    """
    layers = runs.groupby(POINT)["depth"].first().rename("layers").reset_index()
    plain = events[events["variant"] == "plain"].merge(layers, on=POINT)
    never, depth = plain["layer"].isna(), plain["layers"].to_numpy(float)
    happened = plain[POINT].assign(
        measure=plain["event"],
        never=never,
        inseparable=~never & ~plain["separable"].astype(bool),
        **event_depths(plain, depth),
    )
    happened = happened.rename(columns={"layer": "depth"})
    known = mcog.dropna(subset="mcog").rename(columns={"mcog": "depth"})
    centres = known.assign(measure=CENTRE + known["method"], never=False, inseparable=False)
    parts = pd.concat([happened, centres[happened.columns]], ignore_index=True)
    table = parts.groupby([*POINT, "measure"]).agg(
        depth=("depth", "mean"),
        depth_low=("low", "min"),
        depth_high=("high", "max"),
        n=("depth", "size"),
        n_never=("never", "sum"),
        n_inseparable=("inseparable", "sum"),
    )
    table = _with_mean_centre(table.reset_index(), apart)
    return table.merge(layers, on=POINT).sort_values([*POINT, "measure"], ignore_index=True)


def _with_mean_centre(table: pd.DataFrame, apart: Collection[str]) -> pd.DataFrame:
    """Add rows of the mean M-CoG, for tasks and models that have each method that most have."""
    method = table["measure"].str.removeprefix(CENTRE)
    named = table.assign(methods=method.where(table["measure"].str.startswith(CENTRE), ""))
    centres = named[named["methods"] != ""]
    shares = centres.groupby("methods").size() / centres.groupby(POINT).ngroups
    usual = [str(m) for m in shares.index[shares > USUAL] if m not in apart]
    grouped = centres[centres["methods"].isin(usual)].groupby(POINT)
    how = {"depth": "mean", "depth_low": "mean", "depth_high": "mean", "n": "max"}
    mean = grouped.agg(how | dict.fromkeys(MARKS, "sum"))[grouped.size() == len(usual)]
    mean = mean.reset_index().assign(measure="M-CoG", methods=", ".join(usual))
    return pd.concat([named, mean], ignore_index=True) if len(mean) else named


def over_seeds(
    table: pd.DataFrame, by: Sequence[str], value: str, means: Sequence[str] = ()
) -> pd.DataFrame:
    """Return the mean of `value` over seeds, with the outermost ends of the seeds' intervals.

    Args:
        table: Rows with a `seed`, `value` and perhaps the ends `low` and `high`.
        by: Columns that define a group.
        value: Column to average.
        means: Further columns to average.
    """
    grouped = table.groupby(list(by), sort=False, observed=True, dropna=False)
    named = {value: (value, "mean"), "low": ("low", "min"), "high": ("high", "max")}
    named = {name: how for name, how in named.items() if name in table}
    others = {name: (name, "mean") for name in means}
    return pd.DataFrame(grouped.agg(**named, seeds=("seed", "nunique"), **others)).reset_index()


def weigh_mean_weights(mcog: pd.DataFrame, layers: pd.DataFrame) -> pd.DataFrame:
    """Replace each M-CoG by the centre of the layer weights averaged over seeds.

    `layers` has the weights. Every seed's row of a task, model and method gets the same number, so
    that the mean over seeds is this number too.
    """
    if mcog.empty:
        return mcog
    key = [*POINT, "method"]
    known = layers.merge(mcog[[*key, "seed"]], on=[*key, "seed"])
    mean = known.groupby([*key, "layer"])["weight"].mean().dropna()
    centres = mean.groupby(key).agg(lambda weights: float(centres_of_gravity(weights.to_numpy())))
    return mcog.drop(columns="mcog").join(centres.rename("mcog"), on=key)[mcog.columns]


def over_models(depth: pd.DataFrame) -> pd.DataFrame:
    """Average depths of events over models, as rows of the model `all`; M-CoG stays as it is."""
    is_event = ~depth["measure"].str.startswith("M-CoG")
    means, sums = ("depth", "layers"), ("n", *MARKS)
    how = dict.fromkeys(means, "mean") | dict.fromkeys(sums, "sum")
    events = depth[is_event].groupby(["task", "measure"]).agg(how).reset_index()
    return pd.concat([depth[~is_event], events.assign(model=ALL)], ignore_index=True)


def task_scores(runs: pd.DataFrame, generalisation: pd.DataFrame) -> pd.DataFrame:
    """Return how well models generalise: one row per task, model and score (`against`).

    Scores are means over seeds, with the lowest and highest end of the seeds' intervals.
    """
    chance = 1 / runs["n_classes"]
    sure = wilson(*(runs[n].to_numpy(float) for n in ("validation_accuracy", "validation")))
    low, high = ((end - chance) / (1 - chance) for end in (sure.low, sure.high))
    validation = runs.assign(score=runs["validation_score"], low=low, high=high)
    both = [
        generalisation.assign(against="generalisation"),
        validation.assign(against="validation"),
    ]
    parts = [part for part in both if len(part)] or both
    scores = over_seeds(pd.concat(parts), [*POINT, "against"], "score")
    return scores.rename(columns={"low": "score_low", "high": "score_high"})


def depth_and_generalisation(
    depth: pd.DataFrame,
    scores: pd.DataFrame,
    measures: Sequence[str] = TABLE_2,
    settings: AgreementSettings = SETTINGS,
) -> pd.DataFrame:
    """Return the paper's Table 2: Spearman's ρ between depth and score over tasks, by model and
    pooled.

    Depths are shares of the model's layers. `n_never` and `n_inseparable` count points with such a
    seed; `methods` names the methods behind a centre of gravity.

    Args:
        depth: Table returned by `depths`.
        scores: Table returned by `task_scores`.
        measures: Measures of depth to compare.
        settings: Kind of coefficient and level of significance.
    """
    rows = []
    for score in ("generalisation", "validation"):
        for measure in measures:
            what = {"score": score, "measure": measure, "methods": methods_of(depth, measure)}
            of_score = scores[scores["against"] == score]
            points = _share(depth, measure).merge(of_score, on=POINT, how="left")
            for model, part in _by_model(points):
                coefficient = _coefficient(part, measure, "score")
                marks = _marks(part.dropna(subset=[measure, "score"]))
                rows.append({**what, "model": model, **coefficient, **marks})
    return _table(rows, settings, ["score", "measure", "model"], [*MARKS, "methods"])


def event_agreement(depth: pd.DataFrame, settings: AgreementSettings = SETTINGS) -> pd.DataFrame:
    """Return ρ between events of centroids and corresponding events of label probes, by model and
    pooled.
    """
    rows = []
    for one, other in EVENT_PAIRS:
        points = _share(depth, one).merge(_share(depth, other), on=POINT)
        for model, part in _by_model(points):
            coefficient = {**_coefficient(part, one, other), **_marks(part)}
            rows.append({"one": one, "other": other, "model": model, **coefficient})
    return _table(rows, settings, ["one", "other", "model"], MARKS)


def agreement(
    values: pd.DataFrame,
    column: str,
    between: Literal["methods", "models"],
    settings: AgreementSettings = SETTINGS,
) -> pd.DataFrame:
    """Return coefficients between methods or between models (the paper's Figures 8 and 9).

    Methods are compared over tasks and models (and layers), models over tasks and methods (and
    layers). Between models, weights are scaled to the range 0 to 1 within each method of a model;
    models of different depth cannot be compared layer by layer, which the column `why` says.

    Args:
        values: Table of M-CoG or of layer weights.
        column: Column to compare: mcog or weight.
        between: What is compared with each other: methods or models.
        settings: Kind of coefficient and level of significance.
    """
    by, other, kind = "method", "model", settings.between_methods
    layer, depth = ["layer"] if "layer" in values else [], {}
    if between == "models":
        by, other, kind = "model", "method", settings.between_models
        if layer:
            values = _scaled(values, column)
            depth = values.groupby("model")["layer"].max().to_dict()
    wide = _wide(values, column, by=by, point=["task", other, *layer])
    rows = []
    for a, b in combinations(wide.columns, 2):
        if depth.get(a) == depth.get(b):
            coefficient = _coefficient(wide, a, b, kind)
        else:
            why = f"{depth[a]} and {depth[b]} layers cannot be paired"
            coefficient = asdict(Correlation(why=why))
        rows.append({"one": a, "other": b, **coefficient})
    return _table(rows, settings, ["one", "other"])


def order_agreement(mcog: pd.DataFrame, settings: AgreementSettings = SETTINGS) -> pd.DataFrame:
    """Return the paper's Figure 6: mean ρ of the order of tasks over pairs of models, by method.

    `least` and `largest` are the extremes of single pairs; the interval is over tasks.
    """
    rows = []
    for method, part in mcog.groupby("method", sort=False):
        wide = _wide(part, "mcog", by="model", point=["task"])
        rhos, low, high = correlations(wide.to_numpy(), settings.between_models)
        if rhos:
            ends = {"low": low, "high": high, "least": min(rhos), "largest": max(rhos)}
            counts = {"pairs": len(rhos), "models": wide.shape[1], "tasks": len(wide)}
            rows.append({"method": method, "rho": float(np.mean(rhos)), **ends, **counts})
    return pd.DataFrame(rows, columns=ORDERS)


ORDERS = ["method", "rho", "low", "high", "least", "largest", "pairs", "models", "tasks"]


def size_agreement(
    depth: pd.DataFrame,
    large: str,
    small: Sequence[str],
    settings: AgreementSettings = SETTINGS,
) -> pd.DataFrame:
    """Return ρ over tasks between a large model and each small one, and their mean (`all`).

    Args:
        depth: Table returned by `depths`.
        large: Name of the large model.
        small: Names of the small models.
        settings: Kind of coefficient and level of significance.
    """
    rows = []
    for measure, part in depth.groupby("measure"):
        wide = _wide(_share(part, str(measure)), str(measure), by="model", point=["task"])
        if large not in wide:
            continue
        compared_models = [name for name in small if name in wide]
        wide[ALL] = wide[compared_models].mean(axis=1, skipna=False)
        for name in [*compared_models, ALL]:
            coefficient = _coefficient(wide, name, large, settings.between_models)
            compared = part["model"].isin([large, *(compared_models if name == ALL else [name])])
            rows.append(
                {"measure": measure, "model": name, **coefficient, **_marks(part[compared])}
            )
    return _table(rows, settings, ["measure", "model"], MARKS)


def same_seeds(table: pd.DataFrame, by: str) -> pd.DataFrame:
    """Return the rows of tasks that have both a multi-class and a binarised version.

    Both versions must exist for the same model, seed and value of the column `by` (a method or
    event).
    """
    whole = table["task"].str.removesuffix(BINARY).rename("whole")
    tasks = table.groupby([whole, "model", "seed", by])["task"].transform("nunique")
    return table[tasks == 2]


def binarisation(depth: pd.DataFrame, settings: AgreementSettings = SETTINGS) -> pd.DataFrame:
    """Compare multi-class tasks with their binarised versions (the paper's appendix C).

    `depth` is computed from rows of `same_seeds`. ρ compares depths as shares of the model's
    layers. The mean difference (binarised minus multi-class) and the mean absolute difference are
    in layers, with t intervals over tasks.
    """
    rows = []
    for measure, part in depth.groupby("measure"):
        is_binary = part["task"].str.endswith(BINARY)
        two = part[is_binary].assign(task=part["task"].str.removesuffix(BINARY))
        both = part[~is_binary].merge(two, on=POINT, suffixes=("", "_binary")).set_index(POINT)
        difference = (both["depth_binary"] - both["depth"]).dropna()
        shares = both[["depth", "depth_binary"]].div(both["layers"], axis=0)
        row = {**_coefficient(shares, "depth", "depth_binary"), **_marks(both)}
        tasks = difference.index.get_level_values("task")
        for name, values in (("difference", difference), ("absolute", difference.abs())):
            ends = t_ends(values.to_numpy(np.float64), list(tasks))
            row |= Interval(values.mean(), *ends).named(f"mean_{name}")
        rows.append({"measure": measure, **row})
    names = ("mean_difference", "mean_absolute")
    means = [f"{name}{end}" for name in names for end in ("", "_low", "_high")]
    return _table(rows, settings, ["measure"], [*MARKS, *means])


def methods_of(depth: pd.DataFrame, measure: str) -> str:
    """Return the methods averaged by a measure in a table of `depths`; empty for events."""
    return next(iter(depth.loc[depth["measure"] == measure, "methods"]), "")


def _share(depth: pd.DataFrame, measure: str) -> pd.DataFrame:
    """Return a measure of depth, such as the crossing, divided by the number of the model's layers.

    The column of the result has the measure's name.
    """
    part = depth[depth["measure"] == measure]
    return part.assign(**{measure: part["depth"] / part["layers"]})[[*POINT, measure, *MARKS]]


def _marks(points: pd.DataFrame) -> dict[str, int]:
    """Count points with a seed in which the event never happens, or classes are not separable.

    A point merged from two tables has the marks of both.
    """
    return {mark: int((points.filter(like=mark) > 0).any(axis=1).sum()) for mark in MARKS}


def _by_model(points: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Return the points of all models pooled, then the points of each model."""
    indexed = points.set_index(POINT)
    return [(ALL, indexed), *((str(name), part) for name, part in indexed.groupby(level="model"))]


def _coefficient(
    points: pd.DataFrame, x: str, y: str, coefficient: Coefficient = "spearman"
) -> dict[str, Any]:
    """Return the coefficient of two columns, with p and interval over the index's tasks."""
    tasks, others = points.index.get_level_values("task"), points.reset_index("task").index
    one, other = (points[name].to_numpy(np.float64) for name in (x, y))
    return asdict(correlation(one, other, coefficient, tasks.to_numpy(), pd.factorize(others)[0]))


def _wide(values: pd.DataFrame, column: str, *, by: str, point: list[str]) -> pd.DataFrame:
    """Return a table with one row per point and one column per method or model, averaged over the
    rest.
    """
    return values.pivot_table(column, index=point, columns=by, aggfunc="mean")


def _scaled(layers: pd.DataFrame, column: str) -> pd.DataFrame:
    """Average layer weights over seeds and scale them to 0..1 within each method; drop constant
    ones.
    """
    point = [*POINT, "method", "layer"]
    mean: pd.DataFrame = layers.groupby(point)[[column]].mean().reset_index()
    groups = mean.groupby(["model", "method"])[column]
    low, high = groups.transform("min"), groups.transform("max")
    scaled = mean.assign(**{column: (mean[column] - low) / (high - low)})
    return scaled[high > low]


def _table(
    records: list[dict[str, Any]],
    settings: AgreementSettings,
    first: Sequence[str],
    last: Sequence[str] = (),
) -> pd.DataFrame:
    """Return rows of coefficients, with Holm's p within each model and marks of significance."""
    table = pd.DataFrame(records, columns=[*first, *NUMBERS, *last])
    known = table["p"].notna()
    family = table["model"] if "model" in table else pd.Series("", index=table.index)
    table["corrected"] = np.nan
    for _, ps in table.loc[known, "p"].groupby(family[known]):
        table.loc[ps.index, "corrected"] = corrected(ps.tolist())
    return table.assign(significant=table["corrected"] <= settings.significance)
