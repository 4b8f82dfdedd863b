"""Layer shares of plants, by the number and the depth of planted layers.

`python -m studies.shares STUDY` prints tables of docs/explanation/planted.md.
"""

import sys
from pathlib import Path

import pandas as pd

from memloc.reporting.results import load_results
from memloc.reporting.tables import markdown
from memloc.stats.planted import plant_scores
from memloc.stats.windows import planted_layers
from studies.control import KS, methods_table


def widths_table(study: Path) -> pd.DataFrame:
    """Return means over plants with the same number of layers, by method."""
    scores = plant_scores(load_results(study).control_layers, KS)
    sizes = scores["planted"].map(lambda planted: f"{len(planted_layers(planted))} of 12 layers")
    return methods_table(scores.assign(planted=sizes), ["planted", "method"])


def centres_table(study: Path) -> pd.DataFrame:
    """Return means of the estimated centres by method, for plants with their centre in the same
    third.
    """
    layers = load_results(study).control_layers
    layers = layers[~layers["null"].astype(bool)]
    weight = layers["weight"].clip(lower=0)
    moved = layers.assign(weight=weight, moment=weight * layers["layer"])
    plant = ["model", "task", "seed", "planted", "first", "last", "method"]
    sums = moved.groupby(plant)[["weight", "moment"]].sum().reset_index()
    sums["true"] = (sums["first"] + sums["last"]) / 2
    sums["found"] = sums["moment"] / sums["weight"]
    thirds = pd.cut(sums["true"], [0, 4.5, 8.5, 13], labels=["1-4", "5-8", "9-12"])
    means = sums.groupby([thirds.rename("true centre in"), "method"], observed=True)
    found = means[["true", "found"]].mean().assign(plants=means.size()).reset_index()
    return found.assign(**{n: found[n].map("{:.1f}".format) for n in ("true", "found")})


def main() -> None:
    """Print the tables of plants."""
    study = Path(sys.argv[1])
    for make in (widths_table, centres_table):
        print(markdown(make(study).astype(str)))


if __name__ == "__main__":
    main()
