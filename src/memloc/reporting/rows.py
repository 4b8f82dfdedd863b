"""Functions that turn tables of results into the rows that figures draw."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pandas as pd

from memloc.methods.registry import methods, trivial_names
from memloc.methods.views import CASE, planted_names
from memloc.reporting.derived import (
    counted_events,
    found_layers,
    is_planted,
    over_groups,
    usual_depth,
    without_trivial,
)
from memloc.reporting.style import WORDS, task_order
from memloc.stats.claims import BINARY, over_seeds
from memloc.stats.intervals import wilson
from memloc.stats.planted import BASELINE, plant_scores
from memloc.stats.windows import planted_layers, window_matrix, windows_between

ALL = "all models"


def averaged_mcog(table: pd.DataFrame, by: list[str], group: str) -> pd.DataFrame:
    """Average the centre of gravity over models or methods, and count these."""
    return over_groups(table, by, "mcog", group).rename(columns={"n": f"{group}s"})


def binarised(table: pd.DataFrame) -> pd.DataFrame:
    """Pair the centres of gravity of tasks with all classes and with two of them."""
    is_binary = table["task"].str.endswith(BINARY)
    keys = ["task", "method"]
    two = table[is_binary].assign(task=table["task"].str.removesuffix(BINARY))
    whole, halved = (over_groups(t, keys, "mcog", "model") for t in (table[~is_binary], two))
    return whole.merge(halved, on=keys, suffixes=("", "_binary"))


def training_curves(table: pd.DataFrame) -> pd.DataFrame:
    """Return accuracies by epoch of the training on noisy labels: means and ranges over seeds."""
    keys = [name for name in ("task", "model") if name in table.columns]
    noisy = table.loc[table["training"] == "noisy", [*keys, "epoch", *WORDS["curve"]]]
    long = noisy.melt(
        [*keys, "epoch"], list(WORDS["curve"]), var_name="group", value_name="accuracy"
    )
    long = long.dropna(subset="accuracy")  # not every epoch need be measured
    long["group"] = long["group"].map(WORDS["curve"])
    grouped = long.groupby([*keys, "group", "epoch"], sort=False)["accuracy"]
    return grouped.agg(accuracy="mean", low="min", high="max").reset_index()


def event_pairs(table: pd.DataFrame) -> pd.DataFrame:
    """Return the layers of two events by task, source, variant and model, and for all models.

    The table is `events` with the model's `depth`; `never` counts as the layer after the last.
    """
    filled = counted_events(table)
    of_all = filled[filled["depth"] == usual_depth(filled)]
    everywhere = pd.concat([of_all.assign(models=ALL), filled.assign(models=filled["model"])])
    keys = ["task", "category", "source", "variant", "models"]
    parts = []
    for along, up in event_names():
        of = everywhere[everywhere["event"].isin([along, up])]
        across, upwards = (_event(of[of["event"] == name], keys) for name in (along, up))
        parts.append(across.merge(upwards, on=keys, suffixes=("_x", "_y")))
    pairs = pd.concat(parts, ignore_index=True)
    pairs["set"] = np.where(pairs["task"].str.endswith(BINARY), "two classes", "all classes")
    return pairs


def event_names() -> list[tuple[str, str]]:
    """Return the names of the events of the class (horizontal axis) and of memorisation, by
    method.
    """
    every = [method.report.get("events", {}) for method in methods().values()]
    roles = [{about["role"]: name for name, about in events.items()} for events in every if events]
    return [(names["class"], names["memory"]) for names in roles if len(names) == 2]


def _event(table: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    counts = table.groupby(keys, sort=False)[["never", "unclear"]].sum().reset_index()
    return over_groups(table, keys, "layer", "model").merge(counts, on=keys)


def control_layers(table: pd.DataFrame) -> pd.DataFrame:
    """Return layer weights of planted runs, divided by the largest; nulls come last.

    Below each planted run is the best trivial baseline's view of it.
    """
    keys = ["task", "model", "method", "planted", "first", "last", "null", "is_baseline"]
    table = _with_baseline_below(table)
    largest = table.groupby([*keys, "seed"])["weight"].transform("max")
    scaled = {n: table[n] / largest.where(largest > 0) for n in ("weight", "low", "high")}
    drawn = over_seeds(table.assign(**scaled), [*keys, "layer"], "weight")
    names = planted_names(drawn).where(~drawn["is_baseline"], BASELINE + ", " + drawn["planted"])
    named = drawn.assign(planted=names, inside=is_planted(drawn))
    return named.sort_values(["null", "first", "is_baseline"], kind="stable", ignore_index=True)


def _with_baseline_below(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of methods and, in the name of each, those of the best baseline in plants."""
    rows = without_trivial(table).assign(is_baseline=False)
    scores = plant_scores(table[table["method"].isin(trivial_names())], (1,))
    if scores.empty:
        return rows
    best = scores.groupby("method")["planted_mass"].mean().idxmax()
    theirs = table[(table["method"] == best) & ~table["null"].astype(bool)].assign(is_baseline=True)
    copies = [theirs.assign(method=name) for name in rows["method"].unique()]
    return pd.concat([rows, *copies], ignore_index=True)


def agreement_cells(table: pd.DataFrame) -> pd.DataFrame:
    """Return coefficients of all pairs in both orders; a star marks significant ones.

    A matrix in which no coefficient could be computed is left out.
    """
    known = table["rho"].notna().groupby([table["between"], table["what"]]).transform("any")
    table = table[known.astype(bool)]
    turned = table.rename(columns={"one": "other", "other": "one"})
    drawn = pd.concat([table, turned], ignore_index=True)
    numbers = drawn["rho"].map("{:.2f}".format) + drawn["significant"].map({True: "*", False: ""})
    ends = drawn["low"].map("{:.2f}".format) + " to " + drawn["high"].map("{:.2f}".format)
    labels = numbers.where(drawn["rho"].notna(), "")
    ink = np.where(drawn["rho"].abs() > 0.65, "light", "dark")
    return drawn.assign(label=labels, ends=ends.where(drawn["low"].notna(), ""), ink=ink)


def window_matrices(table: pd.DataFrame) -> pd.DataFrame:
    """Return the mean error of windows by their width and by the layers in them.

    Errors are divided by the error of all layers for methods that normalise. They are means over
    seeds, with the outermost ends of the seeds' Wilson intervals.
    """
    keys = ["task", "model", "method", "seed"]
    parts = {key: _cells(part) for key, part in table.groupby(keys, sort=False)}
    cells = pd.concat(parts, names=keys).reset_index(keys)
    return over_seeds(cells, [*keys[:-1], "width", "layer"], "error", CLEAN)


CLEAN = ("clean_error", "difference")
"""Columns of the error of clean examples, and of the excess of noisy ones over it."""


def _cells(part: pd.DataFrame) -> pd.DataFrame:
    """Return the window matrix of one run, one row per cell.

    A cell is a mean over windows, so its Wilson interval, as of one window, is rather too wide.
    """
    depth = int(part["last"].max())
    known = windows_between(part["first"], part["last"])
    errors, shares = (part[n].to_numpy(np.float64) for n in ("error", "normalised"))
    most = int(errors.argmax())
    # Shares are errors over one number, the error of all layers; NaN where that undid nothing.
    divisor = errors[most] / shares[most] if shares[most] > 0 else 1.0
    matrix = window_matrix(errors, depth, known)
    wilsons = wilson(matrix.ravel(), part["n_noisy"].iloc[0])
    width, layer = (index.ravel() + 1 for index in np.indices(matrix.shape))
    named = {"error": wilsons.estimate, "low": wilsons.low, "high": wilsons.high}
    values = {name: value / divisor for name, value in named.items()}
    clean = window_matrix(part["clean_error"].to_numpy(np.float64), depth, known).ravel()
    # The difference is between plain errors: errors on clean examples are not normalised.
    others = {"clean_error": clean, "difference": matrix.ravel() - clean}
    cells = pd.DataFrame({"width": width, "layer": layer, **values, **others})
    return cells.dropna(subset=list(values))


LIGHT = 0.3
"""Share below which a cell is dark, so that its number is written in a light colour."""


def strip_cells(table: pd.DataFrame) -> pd.DataFrame:
    """Return the strip's rows by task and model, planted runs below, with numbers for the cells."""
    one_model = table.loc[table["planted"] == "", "model"].nunique() <= 1
    name = table["task"] if one_model else table["task"] + " · " + table["model"]
    planted = "planted in " + table["planted"]
    share = table["weight"].clip(0)
    rows = table.assign(
        row=name.where(table["planted"] == "", planted),
        label=(100 * share).round().astype("Int64").astype(str),
        ink=np.where(share < LIGHT, "light", "dark"),
    )
    place = rows["task"].map(task_order(rows["task"]).index)
    return rows.assign(place=place).sort_values(["first", "place", "model", "layer"])


def centres(table: pd.DataFrame) -> pd.DataFrame:
    """Return the centre of the planted layers and the centre of each method's weights.

    Of trivial baselines, that of the one whose centres are nearest to those of the plants.
    """
    keys = ["task", "model", "seed", "method", "planted"]
    real = table[~table["null"].astype(bool)]
    held = real.assign(held=real["weight"].clip(0), moment=real["weight"].clip(0) * real["layer"])
    sums = held.groupby(keys, sort=False)[["held", "moment"]].sum().reset_index()
    planted = [np.mean(planted_layers(str(plant))) + 1 for plant in sums["planted"]]
    table_of_centres = sums.assign(
        planted_centre=planted, centre=sums["moment"] / sums["held"].where(sums["held"] > 0)
    )
    is_trivial = table_of_centres["method"].isin(trivial_names())
    if not is_trivial.any():
        return table_of_centres
    away = (table_of_centres["centre"] - table_of_centres["planted_centre"]).abs()[is_trivial]
    best = table_of_centres["method"] == away.groupby(table_of_centres["method"]).mean().idxmin()
    return pd.concat(
        [table_of_centres[~is_trivial], table_of_centres[best].assign(method=BASELINE)],
        ignore_index=True,
    )


ROWS: dict[str, Callable[[pd.DataFrame], pd.DataFrame]] = {
    "control-methods": found_layers,
    "control-tasks": partial(found_layers, by=["task"]),
    "control-models": partial(found_layers, by=["model"]),
    "control-layers": control_layers,
    "mcog-over-models": partial(averaged_mcog, by=["task", "category", "method"], group="model"),
    "mcog-over-methods": partial(averaged_mcog, by=[*CASE], group="method"),
    "events": event_pairs,
    "binarised": binarised,
    "agreement": agreement_cells,
    "training": training_curves,
    "windows": window_matrices,
    "strip": strip_cells,
    "centres": centres,
}
"""Functions that make the rows of a figure, by the figure's name."""
