"""The table of the board: how well each method finds each kind of plant.

Tables in, tables out; `layers` and `answers` are `control_layers` and `control_answers` of results.
"""

from collections.abc import Collection

import pandas as pd

from memloc.arrays import Table
from memloc.stats.calibration import over_plants
from memloc.stats.planted import best_trivial, mean_scores, null_claims, plant_scores
from memloc.stats.windows import PLANT_KINDS, split_kind

PLANT = ["task", "model", "seed"]
METHOD_AT = [*PLANT, "method", "planted"]
"""Columns of a plant without its kind, and of the method that looked at it."""
SAME = 1e-3
"""Largest change of weights, as total variation, that counts as float noise."""
BY_KIND = {"planted_mass": True, "accuracy_1": True, "accuracy_2": True, "centre_error": False}
"""Scores by kind of plant, and whether more is better."""
BY_METHOD = {"called": False, "changed_by_disguise": False}
"""Scores over all plants and nulls, and whether more is better."""


def by_kind(layers: Table, trivial: Collection[str] = ()) -> Table:
    """Return accuracy@1 and @2, planted mass and centre error by method and kind of plant.

    The best of the `trivial` baselines has a row for each kind, below all others.
    """
    means = mean_scores(_with_kinds(plant_scores(layers, (1, 2))), ["method", "kind"])
    first, second = (means[means["k"] == k].set_index(["method", "kind"]) for k in (1, 2))
    table = first[["plants", "planted_mass", "planted_mass_low", "planted_mass_high"]].assign(
        accuracy_1=first["accuracy"],
        accuracy_2=second["accuracy"],
        centre_error=first["centre_error"],
    )
    order = {kind: number for number, kind in enumerate(PLANT_KINDS)}
    table = table.reset_index().sort_values("kind", key=lambda kinds: kinds.map(order))
    lines = best_trivial(table, trivial, ["kind"], BY_KIND)
    return pd.concat([table, *lines], ignore_index=True)


def by_method(layers: Table, answers: Table, trivial: Collection[str] = ()) -> Table:
    """Return, by method, how often a null is called localised, and how much a disguise changes
    weights.

    `called` uses the method's answer if it gives one; otherwise a null is called localised if its
    weights are as far from uniform as those of 95 % of the plants. A decoy's null counts only for
    methods that give it other weights than the easy plant's null, which computes the same. The best
    of the `trivial` baselines has a row below all others.
    """
    changed = pd.Series(disguised(layers), name="changed_by_disguise", dtype=float)
    layers, answers = (_without_repeated(one, _repeated(layers)) for one in (layers, answers))
    columns = ["nulls", "called", "called_low", "called_high"]
    claims = null_claims(layers).reindex(columns=["method", *columns]).set_index("method")
    for row in over_plants(answers).to_dict("records"):
        if row["told"] and row["method"] in claims.index:
            claims.loc[row["method"]] = [row[name] for name in columns]
    table = claims.join(changed, how="outer").rename_axis("method").reset_index()
    return pd.concat([table, *best_trivial(table, trivial, [], BY_METHOD)], ignore_index=True)


def disguised(layers: Table) -> dict[str, float]:
    """Return, by method, how much its weights of layers change between an easy plant and its decoy.

    Both plants compute the same, but the decoy's other layers have parameters of another form. The
    change is the mean total variation, 0 for a method that sees only what layers compute.
    """
    moved = _moved(layers[~layers["null"].astype(bool)])
    return {str(name): float(value) for name, value in moved.groupby("method").mean().items()}


def _moved(layers: Table) -> pd.Series:
    """Return the total variation between an easy plant's weights and its decoy's, by METHOD_AT."""
    weights = layers.assign(weight=layers["weight"].clip(lower=0))
    wide = weights.pivot_table("weight", [*PLANT, "planted", "method"], "layer")
    shares = wide.div(wide.sum(axis=1), axis=0).reset_index("planted")
    shares = _with_kinds(shares).set_index(["planted", "kind"], append=True)
    kinds = shares.index.get_level_values("kind")
    twins = [shares[kinds == name].droplevel("kind") for name in ("easy", "decoy")]
    both = twins[0].index.intersection(twins[1].index)
    return (twins[0].loc[both] - twins[1].loc[both]).abs().sum(axis=1) / 2


def _repeated(layers: Table) -> pd.MultiIndex:
    """Return the nulls, by METHOD_AT, whose decoys have the same weights."""
    moved = _moved(layers[layers["null"].astype(bool)])
    return pd.MultiIndex.from_tuples(moved[moved <= SAME].index, names=METHOD_AT)


def _without_repeated(table: Table, repeated: pd.MultiIndex) -> Table:
    """Leave out the decoys of these nulls."""
    if table.empty or repeated.empty:
        return table
    apart = _with_kinds(table)
    is_decoy = table["null"].astype(bool) & (apart["kind"] == "decoy")
    kept: Table = table[~(is_decoy & pd.MultiIndex.from_frame(apart[METHOD_AT]).isin(repeated))]
    return kept


def _with_kinds(table: Table) -> Table:
    """Return a table of plants with a column of their kinds; `planted` then has layers alone."""
    kinds, layers = ([split_kind(str(p))[part] for p in table["planted"]] for part in (0, 1))
    return table.assign(kind=kinds, planted=layers)
