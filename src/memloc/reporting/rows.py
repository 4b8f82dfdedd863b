"""What each figure shows: tables of results in, the rows that are drawn out."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pandas as pd

from memloc.methods.registry import methods
from memloc.methods.views import CASE, planted_names
from memloc.reporting.derived import counted_events, is_planted, over_groups, usual_depth
from memloc.reporting.style import WORDS, task_order
from memloc.stats.claims import BINARY, over_seeds
from memloc.stats.intervals import wilson
from memloc.stats.planted import mean_scores
from memloc.stats.windows import planted_layers, window_matrix, windows_between

ALL = "all models"


def averaged_mcog(table: pd.DataFrame, by: list[str], group: str) -> pd.DataFrame:
    """The centre of gravity, mean over models or methods, which are counted."""
    return over_groups(table, by, "mcog", group).rename(columns={"n": f"{group}s"})


def binarised(table: pd.DataFrame) -> pd.DataFrame:
    """The centre of gravity of tasks with all their classes and with two of them."""
    is_binary = table["task"].str.endswith(BINARY)
    keys = ["task", "method"]
    two = table[is_binary].assign(task=table["task"].str.removesuffix(BINARY))
    whole, halved = (over_groups(t, keys, "mcog", "model") for t in (table[~is_binary], two))
    return whole.merge(halved, on=keys, suffixes=("", "_binary"))


def training_curves(table: pd.DataFrame) -> pd.DataFrame:
    """Accuracy by epoch of the training on noisy labels: mean over seeds, and their range."""
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
    """One row a task, source, variant and model (and all models): where its two events happen.

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
    found = pd.concat(parts, ignore_index=True)
    found["set"] = np.where(found["task"].str.endswith(BINARY), "two classes", "all classes")
    return found


def event_names() -> list[tuple[str, str]]:
    """By method: its event of the class, drawn along the bottom, and that of memorisation."""
    every = [method.report.get("events", {}) for method in methods().values()]
    roles = [{about["role"]: name for name, about in events.items()} for events in every if events]
    return [(names["class"], names["memory"]) for names in roles if len(names) == 2]


def _event(table: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    counts = table.groupby(keys, sort=False)[["never", "unclear"]].sum().reset_index()
    return over_groups(table, keys, "layer", "model").merge(counts, on=keys)


def control_layers(table: pd.DataFrame) -> pd.DataFrame:
    """Layer weights of planted runs, divided by the largest; nulls last."""
    keys = ["task", "model", "method", "planted", "first", "last", "null"]
    largest = table.groupby([*keys, "seed"])["weight"].transform("max")
    scaled = {n: table[n] / largest.where(largest > 0) for n in ("weight", "low", "high")}
    drawn = over_seeds(table.assign(**scaled), [*keys, "layer"], "weight")
    named = drawn.assign(planted=planted_names(drawn), inside=is_planted(drawn))
    return named.sort_values(["null", "first"], kind="stable", ignore_index=True)


def agreement(table: pd.DataFrame) -> pd.DataFrame:
    """Coefficients between all pairs, both ways round; a star marks those that are significant."""
    turned = table.rename(columns={"one": "other", "other": "one"})
    drawn = pd.concat([table, turned], ignore_index=True)
    numbers = drawn["rho"].map("{:.2f}".format) + drawn["significant"].map({True: "*", False: ""})
    ends = drawn["low"].map("{:.2f}".format) + " to " + drawn["high"].map("{:.2f}".format)
    labels = numbers.where(drawn["rho"].notna(), "")
    ink = np.where(drawn["rho"].abs() > 0.65, "light", "dark")
    return drawn.assign(label=labels, ends=ends.where(drawn["low"].notna(), ""), ink=ink)


def window_matrices(table: pd.DataFrame) -> pd.DataFrame:
    """By width of a window and layer: mean error of the windows of that width with the layer.

    The error is divided by that of all layers where the layer weights are; mean over seeds, with
    what holds the seeds' Wilson intervals.
    """
    keys = ["task", "model", "method", "seed"]
    parts = {key: _cells(part) for key, part in table.groupby(keys, sort=False)}
    cells = pd.concat(parts, names=keys).reset_index(keys)
    return over_seeds(cells, [*keys[:-1], "width", "layer"], "error", CLEAN)


CLEAN = ("clean_error", "difference")
"""What happens to clean examples, and how much more to noisy ones."""


def _cells(part: pd.DataFrame) -> pd.DataFrame:
    """The matrix of one run; a share of windows varies less than a yes or no, so ends are wide."""
    depth = int(part["last"].max())
    known = windows_between(part["first"], part["last"])
    errors, shares = (part[n].to_numpy(np.float64) for n in ("error", "normalised"))
    most = int(errors.argmax())
    # Shares are errors over one number, the error of all layers; NaN where that undid nothing.
    divisor = errors[most] / shares[most] if shares[most] > 0 else 1.0
    matrix = window_matrix(errors, depth, known)
    found = wilson(matrix.ravel(), part["n_noisy"].iloc[0])
    width, layer = (index.ravel() + 1 for index in np.indices(matrix.shape))
    named = {"error": found.estimate, "low": found.low, "high": found.high}
    values = {name: value / divisor for name, value in named.items()}
    clean = window_matrix(part["clean_error"].to_numpy(np.float64), depth, known).ravel()
    # The difference is of plain errors: what clean examples lose is not a share of anything.
    others = {"clean_error": clean, "difference": matrix.ravel() - clean}
    cells = pd.DataFrame({"width": width, "layer": layer, **values, **others})
    return cells.dropna(subset=list(values))


LIGHT = 0.3
"""Shares below this are drawn in dark colours, so that their numbers are light."""


def strip(table: pd.DataFrame) -> pd.DataFrame:
    """Rows of layers by task and model, planted ones below; numbers are written into the cells."""
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
    """The centre of the planted layers and that of the weights on them, by every method."""
    keys = ["task", "model", "seed", "method", "planted"]
    real = table[~table["null"].astype(bool)]
    held = real.assign(held=real["weight"].clip(0), moment=real["weight"].clip(0) * real["layer"])
    sums = held.groupby(keys, sort=False)[["held", "moment"]].sum().reset_index()
    planted = [np.mean(planted_layers(str(plant))) + 1 for plant in sums["planted"]]
    return sums.assign(
        planted_centre=planted, centre=sums["moment"] / sums["held"].where(sums["held"] > 0)
    )


ROWS: dict[str, Callable[[pd.DataFrame], pd.DataFrame]] = {
    "control-methods": partial(mean_scores, by=["method"]),
    "control-tasks": partial(mean_scores, by=["task", "method"]),
    "control-models": partial(mean_scores, by=["model", "method"]),
    "control-layers": control_layers,
    "mcog-over-models": partial(averaged_mcog, by=["task", "category", "method"], group="model"),
    "mcog-over-methods": partial(averaged_mcog, by=[*CASE], group="method"),
    "events": event_pairs,
    "binarised": binarised,
    "agreement": agreement,
    "training": training_curves,
    "windows": window_matrices,
    "strip": strip,
    "centres": centres,
}
"""By figure of the report: the rows that it draws of its table."""
