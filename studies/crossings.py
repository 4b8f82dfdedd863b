"""Crossings by other rules, computed from the means that the centroid analysis stores.

The paper's crossing is the first layer where the noisy mean is below one half. In early layers,
where classes are hardly apart, chance can do that; these rules show how much depends on it.
"""

from typing import Literal, TypeAlias

import numpy as np
import pandas as pd

from memloc.errors import lookup
from memloc.stats.depth import Rule, first_true, last_crossing

Which: TypeAlias = Literal["first", "last", "sure"]

RULES: dict[str, tuple[str, Rule]] = {
    "first": ("mean", first_true),
    "last": ("mean", last_crossing),
    "sure": ("mean_high", first_true),
}
"""What has to be below one half, and which of the layers where it is counts."""
KEY = ["task", "category", "model", "seed", "variant"]


def crossings(centroids: pd.DataFrame, which: Which, at: float = 0.5) -> pd.DataFrame:
    """Return the crossings of every run and variant in a table of centroids, as a table of
    events.

    `first` and `last` are as in the presets; `sure` is the first layer where the classes are
    separable and the whole interval of the noisy mean is below `at`. Intervals are not known here.
    """
    column, rule = lookup("kind of crossing", which, RULES)
    key = [name for name in KEY if name in centroids]
    noisy = centroids[(centroids["kind"] == "noisy") & (centroids["layer"] > 0)]
    rows = []
    for values, part in noisy.sort_values("layer").groupby(key):
        separable = part["separable"].to_numpy(bool)
        below = part[column].to_numpy(float) < at
        layer = float(rule(below & separable if which == "sure" else below))
        happens_where_apart = not np.isnan(layer) and separable[int(layer) - 1]
        rows.append([*values, "centroids", "crossing", layer, bool(happens_where_apart)])
    return pd.DataFrame(rows, columns=[*key, "source", "event", "layer", "separable"])
