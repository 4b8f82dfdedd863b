"""The table of the board: how well each method finds each kind of plant.

Tables in, tables out; `layers` and `answers` are `control_layers` and `control_answers` of results.
"""

import pandas as pd

from memloc.arrays import Table
from memloc.stats.calibration import over_plants
from memloc.stats.planted import mean_scores, null_claims, plant_scores
from memloc.stats.windows import PLANT_KINDS, split_kind

PLANT = ["task", "model", "seed"]


def by_kind(layers: Table) -> Table:
    """Return accuracy@1 and @2, planted mass and centre error by method and kind of plant."""
    scores = plant_scores(layers, (1, 2))
    scores = scores.assign(kind=[split_kind(str(name))[0] for name in scores["planted"]])
    means = mean_scores(scores, ["method", "kind"])
    first, second = (means[means["k"] == k].set_index(["method", "kind"]) for k in (1, 2))
    table = first[["plants", "planted_mass", "planted_mass_low", "planted_mass_high"]].assign(
        accuracy_1=first["accuracy"],
        accuracy_2=second["accuracy"],
        centre_error=first["centre_error"],
    )
    order = {kind: number for number, kind in enumerate(PLANT_KINDS)}
    return table.reset_index().sort_values("kind", key=lambda kinds: kinds.map(order))


def by_method(layers: Table, answers: Table) -> Table:
    """Return, by method, how often a null is called localised, and how much a disguise changes
    weights.

    `called` uses the method's answer if it gives one; otherwise a null is called localised if its
    weights are as far from uniform as those of 95 % of the plants.
    """
    columns = ["nulls", "called", "called_low", "called_high"]
    claims = null_claims(layers).reindex(columns=["method", *columns]).set_index("method")
    for row in over_plants(answers).to_dict("records"):
        if row["told"] and row["method"] in claims.index:
            claims.loc[row["method"]] = [row[name] for name in columns]
    changed = pd.Series(disguised(layers), name="changed_by_disguise", dtype=float)
    return claims.join(changed, how="outer").rename_axis("method").reset_index()


def disguised(layers: Table) -> dict[str, float]:
    """Return, by method, how much its weights of layers change between an easy plant and its decoy.

    Both plants compute the same, but the decoy's other layers have parameters of another form. The
    change is the mean total variation, 0 for a method that sees only what layers compute.
    """
    real = layers[~layers["null"].astype(bool)]
    weights = real.assign(weight=real["weight"].clip(lower=0))
    wide = weights.pivot_table("weight", [*PLANT, "planted", "method"], "layer")
    shares = wide.div(wide.sum(axis=1), axis=0).reset_index("planted")
    kind, window = zip(*map(split_kind, shares["planted"]), strict=True)
    shares = shares.assign(kind=kind, planted=window).set_index(["planted", "kind"], append=True)
    kinds = shares.index.get_level_values("kind")
    twins = [shares[kinds == name].droplevel("kind") for name in ("easy", "decoy")]
    both = twins[0].index.intersection(twins[1].index)
    moved = (twins[0].loc[both] - twins[1].loc[both]).abs().sum(axis=1) / 2
    return {str(name): float(value) for name, value in moved.groupby("method").mean().items()}
