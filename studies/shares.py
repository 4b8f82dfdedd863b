"""Layer shares on runs: what plants say of them, and how near sampled shares are to exact ones.

`python -m studies.shares RUNS` prints tables of docs/explanation/control.md: those of planted
layers if the folder has plants, and otherwise how near sampled shares are to exact ones.
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd

from memloc.methods.shares import Shares
from memloc.reporting.results import load_results
from memloc.reporting.tables import markdown
from memloc.run.folder import Run
from memloc.stats.planted import plant_scores
from memloc.stats.windows import planted_layers
from studies.control import KS, methods_table

PAIRS = (2, 4, 8, 16, 32)


def widths_table(study: Path) -> pd.DataFrame:
    """Means over plants of as many layers, by method."""
    scores = plant_scores(load_results(study).control_layers, KS)
    sizes = scores["planted"].map(lambda planted: f"{len(planted_layers(planted))} of 12 layers")
    return methods_table(scores.assign(planted=sizes), ["planted", "method"])


def centres_table(study: Path) -> pd.DataFrame:
    """Means of the estimated centres by method, for plants with their centre in the same third."""
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


def sampling_table(study: Path) -> pd.DataFrame:
    """How far sampled shares are from exact ones: means over a study's runs of twelve layers."""
    runs = [Run.open(record.parent) for record in sorted(study.rglob("run.json"))]
    exact = [Shares().run(run) for run in runs]
    rows = []
    for pairs in PAIRS:
        off, largest, said = [], [], []
        for run, truth in zip(runs, exact, strict=True):
            found = Shares(subsets="sampled", pairs=pairs).run(run)
            table = found["shares"].query("value == 'labels'")
            difference = found.weights - truth.weights
            off.append(np.sqrt(np.mean(difference**2)))
            largest.append(np.abs(difference).max())
            said.append(np.sqrt(np.mean(table["se"] ** 2)))
        layers = [
            Shares(subsets="sampled", pairs=pairs).plan(depth).layers for depth in (12, 24, 30)
        ]
        shown = [f"{np.mean(each):.4f}" for each in (off, largest, said)]
        rows.append([pairs, *shown, *(f"{n:,}" for n in layers)])
    names = ["pairs", "error", "largest error", "standard error", "12 layers", "24", "30"]
    return pd.DataFrame(rows, columns=names)


def main() -> None:
    """Print the tables of plants, or that of ordinary runs."""
    study = Path(sys.argv[1])
    has_plants = len(load_results(study).control_layers) > 0
    for make in (widths_table, centres_table) if has_plants else (sampling_table,):
        print(markdown(make(study).astype(str)))


if __name__ == "__main__":
    main()
