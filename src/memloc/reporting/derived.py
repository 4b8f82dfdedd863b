"""Computes tables from the tables of a study: one function per table."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pandas as pd

from memloc.arrays import BoolArray
from memloc.methods.registry import brought, exactness, trivial_names
from memloc.reporting import about, examples
from memloc.reporting.style import method_order
from memloc.stats import claims
from memloc.stats.calibration import over_plants, over_runs, rates
from memloc.stats.claims import BINARY, POINT, over_seeds
from memloc.stats.depth import event_depths
from memloc.stats.intervals import bootstrap_ends, wilson
from memloc.stats.planted import (
    IS_BETTER,
    mean_scores,
    null_claims,
    plant_scores,
    with_best_trivial,
)
from memloc.stats.windows import planted_layers, window_matrix, windows_between

if TYPE_CHECKING:
    from memloc.reporting.results import Results

Derive: TypeAlias = "Callable[[Results], pd.DataFrame]"
"""Function that makes a table from a study's results."""
RUN = ["task", "model", "seed"]
UNDONE = 0.9
"""Share of the memorised labels from which they count as undone."""


def control_table(results: "Results") -> pd.DataFrame:
    """Score how well each method finds the layers of each plant."""
    settings = results.protocol.control
    return plant_scores(results["control_layers"], settings.ks, settings.validation_tasks)


def without_trivial(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of methods that are not trivial baselines."""
    return table[~table["method"].isin(trivial_names())]


def found_layers(control: pd.DataFrame, by: Sequence[str] = ()) -> pd.DataFrame:
    """Score how well each method finds planted layers, with the best trivial baseline."""
    means = mean_scores(control, [*by, "method"])
    return with_best_trivial(means, trivial_names(), [*by, "k"], IS_BETTER)


def null_table(results: "Results") -> pd.DataFrame:
    """Say how often each method would call a null localised, with the best trivial baseline."""
    claimed = null_claims(results["control_layers"])
    if claimed.empty:
        return claimed
    return with_best_trivial(claimed, trivial_names(), [], {"called": False, "apart": True})


def calibration(results: "Results") -> pd.DataFrame:
    """Return memloc's measured rates of right answers by method; empty without answers."""
    judged = len(results["answers"]) + len(results["control_answers"])
    return pd.DataFrame(rates().values()) if judged else pd.DataFrame()


def plain_events(results: "Results") -> pd.DataFrame:
    """Return the events of the unchanged model, with the depth of the model."""
    events = results.memorised("events")
    return events[events["variant"] == "plain"].merge(results["runs"][[*RUN, "depth"]], on=RUN)


def _depths(results: "Results", read: Callable[[str], pd.DataFrame]) -> pd.DataFrame:
    """Return the depth of memorisation by every measure; `read` returns the tables to use."""
    events, mcog = read("events"), read("mcog")
    if mcog.empty and events.empty:
        return pd.DataFrame(columns=["task", "model", "measure", "depth", "layers"])
    return claims.depths(events, mcog, results["runs"], brought("apart"))


def _main(results: "Results", name: str) -> pd.DataFrame:
    """Return a table without binarised tasks, and without larger models unless there are no
    others.
    """
    table = results.whole(name)
    is_large = table["model"].isin(results.large)
    return table if is_large.all() else table[~is_large]


def scores(results: "Results") -> pd.DataFrame:
    """Score how well each task and model generalises: `claims.task_scores`."""
    measured = pd.concat([_main(results, name) for name in brought("scores")])
    return claims.task_scores(_main(results, "runs"), measured)


def depth_points(results: "Results") -> pd.DataFrame:
    """Pair the depth by every measure with the task's generalisation, both with intervals."""
    if results["main_depths"].empty:
        return pd.DataFrame()
    both = results["main_depths"].merge(results["scores"], on=POINT)
    return both.dropna(subset=["score", "depth"])


def table_2(results: "Results") -> pd.DataFrame:
    """Return the rank correlation of depth and generalisation over tasks."""
    if results["points"].empty:
        return pd.DataFrame()
    return claims.depth_and_generalisation(
        results["main_depths"], results["scores"], settings=results.protocol.agreement
    )


COMPARED = {"M-CoG": ("mcog", "mcog"), "layer weights": ("layers", "weight")}


def agreement_table(results: "Results") -> pd.DataFrame:
    """Correlate methods, and models, by M-CoG and by layer weights."""
    parts = []
    for what, (name, column) in COMPARED.items():
        values = results.whole(name)
        if len(values):
            if column == "mcog":  # models may have other depths
                values = values.merge(results["runs"][[*RUN, "depth"]], on=RUN, how="left")
                values["mcog"] /= values["depth"]
            for between in ("methods", "models"):
                coefficients = claims.agreement(values, column, between, results.protocol.agreement)
                parts.append(coefficients.assign(what=what, between=between))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def _compared(compare: Callable[..., pd.DataFrame], name: str) -> "Derive":
    """Return a function that applies `compare` to a table of results; empty without rows."""

    def derive(results: "Results") -> pd.DataFrame:
        table = results[name]
        return compare(table, results.protocol.agreement) if len(table) else pd.DataFrame()

    return derive


def sizes_compared(results: "Results") -> pd.DataFrame:
    """Correlate larger models with the others by how deep they hold the same tasks."""
    table, larger = results["depths"], results.large
    table = table[~table["task"].astype(str).str.endswith(BINARY)]
    small = [name for name in dict.fromkeys(table["model"]) if name not in larger]
    parts = [
        claims.size_agreement(table, large, small, results.protocol.agreement).assign(large=large)
        for large in dict.fromkeys(table["model"])
        if large in larger and small
    ]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def binary_depths(results: "Results") -> pd.DataFrame:
    """Return depths of tasks with all their classes and with two, for seeds that have both."""
    depths = _depths(results, partial(paired, results))
    by_task = results.protocol.summary.binarised_events == "task means"
    return claims.over_models(depths) if by_task and len(depths) else depths


def paired(results: "Results", name: str) -> pd.DataFrame:
    """Return a table of tasks with all their classes and with two, for seeds that have both."""
    if name == "events":
        return claims.same_seeds(results.memorised(name), "event")
    return results.weighed(claims.same_seeds(results.memorised(name), "method"))


def leading(results: "Results") -> str:
    """Return the most exact method that was applied to runs or, failing that, to plants."""
    tables = results.memorised("layers"), results["control_layers"]
    return [*(name for table in tables for name in method_order(table["method"])), ""][0]


def strip_table(results: "Results") -> pd.DataFrame:
    """Return the share of each layer by the leading method, for each task and model.

    Planted runs follow, as means over runs with the same layers. Weights are divided by their
    (positive) sum, so that methods can be compared.
    """
    method = leading(results)
    runs = results.memorised("layers").assign(planted="", inside=False, first=0)
    plants = results["control_layers"]
    plants = plants[~plants["null"].astype(bool)]
    planted = plants.assign(inside=is_planted(plants), task="", model="")
    both = pd.concat([runs, planted], ignore_index=True)
    if not exactness(method):  # other methods' weights are not shares
        return both.head(0)
    both = both[both["method"] == method]
    keys = [*POINT, "planted", "inside", "first", "layer"]
    means = over_seeds(both, keys, "weight").sort_values("layer", kind="stable")
    whole = means.groupby([*POINT, "planted"])["weight"].transform(lambda w: w.clip(0).sum())
    ends = {name: means[name] / whole for name in ("weight", "low", "high")}
    return means.assign(**ends, method=method).reset_index(drop=True)


def single_layers(windows: pd.DataFrame, *, same_layer: bool) -> pd.DataFrame:
    """Return the windows of one layer with the largest errors, with Wilson intervals.

    They are chosen for each seed or, if `same_layer`, by the layers' means over seeds. In the
    second case errors are divided by that of all layers for methods that normalise; the difference
    to clean errors is not.
    """
    run, point = [*RUN, "method"], [*POINT, "method"]
    sure = wilson(*(windows[n].to_numpy(np.float64) for n in ("error", "n_noisy")))
    difference = windows["error"] - windows["clean_error"]
    table_with_ends = windows.assign(low=sure.low, high=sure.high, difference=difference)
    if same_layer:
        # Errors of a run are divided by one number; NaN where no error is above zero.
        most = windows.groupby(run)[["normalised", "error"]].transform("max")
        share = (most["normalised"] / most["error"]).fillna(1.0)
        ends = {end: table_with_ends[end] * share for end in ("low", "high")}
        table_with_ends = table_with_ends.assign(
            error=table_with_ends["normalised"], **ends
        ).dropna(subset="error")
    single = table_with_ends[table_with_ends["first"] == table_with_ends["last"]]
    if not same_layer:
        return largest(single, run)
    means = single.groupby([*point, "first"])[["error"]].mean().reset_index()
    return single.merge(largest(means, point)[[*point, "first"]])


def largest(table: pd.DataFrame, key: list[str], value: str = "error") -> pd.DataFrame:
    """Return the row with the largest value in each group, the first of equal rows."""
    return table.loc[table.groupby(key)[value].idxmax()] if len(table) else table


def is_planted(layers: pd.DataFrame) -> BoolArray:
    """Return, for each row, whether labels were planted in its layer; in nulls, none were."""
    places = zip(layers["layer"] - 1, layers["planted"], layers["null"], strict=True)
    inside = [layer in planted_layers(str(plant)) and not null for layer, plant, null in places]
    return np.array(inside, dtype=bool)


def over_groups(table: pd.DataFrame, by: Sequence[str], value: str, group: str) -> pd.DataFrame:
    """Return the mean of a column over models or methods, after averaging seeds.

    `low` and `high` are the ends of the 95 % bootstrap interval over the groups; with a single
    group, they enclose its seeds' intervals. The column `n` counts groups.

    Args:
        table: Table of results.
        by: Columns that define a row of the result.
        value: Column to average.
        group: Column to average over: model or method.
    """
    means = over_seeds(table, [*by, group], value).dropna(subset=[value])
    rows = []
    for key, part in means.groupby(list(by), sort=False):
        row = dict(zip(by, key, strict=True)) | {value: part[value].mean(), "n": len(part)}
        low, high = part["low"].min(), part["high"].max()
        if len(part) > 1:
            low, high = bootstrap_ends(part[value].to_numpy(np.float64))
        rows.append({**row, "low": low, "high": high})
    return pd.DataFrame(rows, columns=[*by, value, "low", "high", "n"])


def counted_events(table: pd.DataFrame) -> pd.DataFrame:
    """Return events with layers to average: `never` counts as the layer after the model's last.

    The columns `never` and `unclear` mark such events, and those whose classes are not separable.
    """
    depth = table["depth"].to_numpy(np.float64)
    numbers = event_depths(table, depth)
    never = table["layer"].isna()
    unclear = ~never & ~table["separable"].astype(bool)
    return table.assign(**numbers, never=never.astype(int), unclear=unclear.astype(int))


def usual_depth(table: pd.DataFrame) -> int:
    """Return the number of layers that most models have; 0 without models.

    Layers of models with another depth cannot be averaged or compared with theirs.
    """
    modes = table.drop_duplicates("model")["depth"].mode()
    return int(modes.iloc[0]) if len(modes) else 0


def layers_to_undo(windows: pd.DataFrame) -> pd.DataFrame:
    """Return how many layers must change for UNDONE of what all layers undo, by run and method.

    `best` is the width of the narrowest window that undoes it. `on_average` is the paper's reading
    of Figure 3: the first row of the window matrix, in which all layers are 1, whose mean over
    layers is that large. Both are NaN if no width is enough.
    """
    keys = ["task", "model", "seed", "method"]
    rows = []
    for key, part in windows.groupby(keys, sort=False):
        enough = part.loc[part["normalised"] >= UNDONE, "last"] - part["first"] + 1
        known = windows_between(part["first"], part["last"])
        shares = part["normalised"].to_numpy(np.float64)
        average = np.nan
        if np.isfinite(shares).all():
            matrix = window_matrix(shares, int(part["last"].max()), known)
            wide = np.flatnonzero(matrix.mean(axis=1) >= UNDONE)
            average = float(wide[0]) + 1 if len(wide) else np.nan
        counts = {"best": enough.min(), "on_average": average}
        rows.append({**dict(zip(keys, key, strict=True)), **counts})
    return pd.DataFrame(rows, columns=[*keys, "best", "on_average"])


DERIVED: dict[str, "Derive"] = {
    "control": control_table,
    "control_scores": lambda results: found_layers(results["control"]),
    "nulls": null_table,
    "judged_runs": lambda results: over_runs(results.memorised("answers")),
    "judged_plants": lambda results: over_plants(without_trivial(results["control_answers"])),
    "calibration": calibration,
    "plain_events": plain_events,
    "depths": lambda results: _depths(results, results.memorised),
    "main_depths": lambda results: _depths(results, partial(_main, results)),
    "main_mcog": lambda results: _main(results, "mcog"),
    "scores": scores,
    "points": depth_points,
    "table_2": table_2,
    "agreement": agreement_table,
    "order_agreement": _compared(claims.order_agreement, "main_mcog"),
    "event_agreement": _compared(claims.event_agreement, "main_depths"),
    "size_agreement": sizes_compared,
    "binary_depths": binary_depths,
    "binarisation": _compared(claims.binarisation, "binary_depths"),
    "paired_mcog": lambda results: results.of_usual_depth(paired(results, "mcog")),
    "strip": strip_table,
    "single_layers": lambda results: single_layers(
        results.whole("windows"),
        same_layer=results.protocol.summary.single_layer == "largest mean",
    ),
    "examples": lambda results: examples.examples_of(results, results["runs"]),
    "reverted": examples.reverted,
    "example_layers": examples.example_layers,
    "tasks": about.tasks,
    "models": about.models,
    "validated_runs": about.runs,
}
"""Functions of a study's results, by the names of the tables that they make."""


def derived() -> dict[str, "Derive"]:
    """Return the functions by table, including those of methods."""
    return {**DERIVED, **brought("derives")}
