"""Means over seeds, models and methods, each with an interval."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from memloc.records import FloatArray
from memloc.seeds import generator
from memloc.stats.depth import event_depth
from memloc.stats.intervals import bootstrap_counts
from memloc.stats.windows import window_matrix

RESAMPLES = 1000
UNDONE = 0.9
"""Share of the memorised labels that counts as undone."""


def over_seeds(
    table: pd.DataFrame, by: Sequence[str], value: str, ends: tuple[str, str] = ("low", "high")
) -> pd.DataFrame:
    """Mean of `value` over the seeds of each group, from the lowest lower end to the highest upper.

    With one seed that is the run's own interval; with several it holds every seed's.
    """
    low, high = ends
    grouped = table.groupby(list(by), sort=False, observed=True, dropna=False)
    named = {value: (value, "mean"), low: (low, "min"), high: (high, "max")}
    return pd.DataFrame(grouped.agg(**named, seeds=("seed", "nunique"))).reset_index()


def over_groups(table: pd.DataFrame, by: Sequence[str], value: str, group: str) -> pd.DataFrame:
    """Mean of `value` over the models or methods (`group`) of each, of which seeds are averaged.

    `low` and `high` are the ends of the 95 % bootstrap interval over the groups; where there is
    one group only, they hold its seeds' intervals. The column `n` counts groups.
    """
    each = over_seeds(table, [*by, group], value).dropna(subset=[value])
    rows = []
    for key, part in each.groupby(list(by), sort=False):
        row = dict(zip(by, key, strict=True)) | {value: part[value].mean(), "n": len(part)}
        low, high = part["low"].min(), part["high"].max()
        if len(part) > 1:
            low, high = bootstrap_ends(part[value].to_numpy(np.float64))
        rows.append({**row, "low": low, "high": high})
    return pd.DataFrame(rows, columns=[*by, value, "low", "high", "n"])


def counted_events(table: pd.DataFrame) -> pd.DataFrame:
    """Events with numbers to average: never is the layer after the last of the model's `depth`.

    `never` and `unclear` mark those, and events where classes cannot be told apart.
    """
    depth = table["depth"].to_numpy(np.float64)
    names = ("layer", "low", "high")
    numbers = {n: event_depth(table[n].to_numpy(np.float64), depth) for n in names}
    never = table["layer"].isna()
    unclear = ~never & ~table["separable"].astype(bool)
    return table.assign(**numbers, never=never.astype(int), unclear=unclear.astype(int))


def usual_depth(table: pd.DataFrame) -> int:
    """How many layers most models have, by the columns `model` and `depth`; of no model: 0.

    Layers of other models cannot be averaged or compared with theirs.
    """
    found = table.drop_duplicates("model")["depth"].mode()
    return int(found.iloc[0]) if len(found) else 0


def layers_to_undo(windows: pd.DataFrame) -> pd.DataFrame:
    """How many layers to change for UNDONE of what all layers undo; one row per run and method.

    `best` is the width of the narrowest window that does it. `on_average` is the paper's reading of
    Figure 3: the first row of the window matrix, in which all layers are 1, whose mean over layers
    is that large. NaN where no width is enough.
    """
    keys = ["task", "model", "seed", "method"]
    rows = []
    for key, part in windows.groupby(keys, sort=False):
        enough = part.loc[part["normalised"] >= UNDONE, "last"] - part["first"] + 1
        ends = part[["first", "last"]].itertuples(index=False)
        known = [range(int(first) - 1, int(last)) for first, last in ends]
        shares = part["normalised"].to_numpy(np.float64)
        average = np.nan
        if np.isfinite(shares).all():
            matrix = window_matrix(shares, int(part["last"].max()), known)
            wide = np.flatnonzero(matrix.mean(axis=1) >= UNDONE)
            average = float(wide[0]) + 1 if len(wide) else np.nan
        counts = {"best": enough.min(), "on_average": average}
        rows.append({**dict(zip(keys, key, strict=True)), **counts})
    return pd.DataFrame(rows, columns=[*keys, "best", "on_average"])


def bootstrap_ends(
    values: FloatArray, groups: Sequence[object] | None = None
) -> tuple[float, float]:
    """Ends of the 95 % bootstrap interval of the mean of `values` (n,), drawn anew by `groups`.

    By default each value is a group of its own. Of one group there is no interval: NaN.
    """
    place, _ = pd.factorize(pd.Series(range(len(values)) if groups is None else list(groups)))
    n_groups = int(place.max()) + 1 if len(values) else 0
    if n_groups < 2:
        return np.nan, np.nan
    rng = generator(0, "bootstrap", "means")
    counts = bootstrap_counts(n_groups, RESAMPLES, rng)[:, place]
    low, high = np.quantile((counts @ values) / counts.sum(1), [0.025, 0.975])
    return float(low), float(high)
