"""Exact layer shares: their time beside swapping, and what planted runs say of them.

`python -m benchmarks.shares STUDY` prints the tables on shares in docs/explanation/control.md.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.harness import Measured, middle, side_by_side
from benchmarks.samples import DEPTH, questions
from benchmarks.swapping import _model
from memloc import paths
from memloc.data.encode import Encoded
from memloc.methods.mixtures import Mixtures
from memloc.methods.shares import Shares
from memloc.methods.swapping import window_subsets
from memloc.models.device import suitable_threads
from memloc.models.stack import Stack
from memloc.reporting.tables import markdown
from memloc.results import load_results
from memloc.run import Run
from memloc.seeds import generator
from memloc.stats.agreement import auroc
from memloc.stats.planted import MEASURES
from memloc.stats.subsets import (
    passed_subsets,
    random_orders,
    sampled_values,
    shapley_values,
)
from memloc.stats.verdicts import trust
from memloc.stats.windows import planted_layers, read_plant

PAIRS = (4, 8, 16, 32, 64)
DRAWS = 50


def measure(hidden: int, examples: int, repeats: int) -> Measured:
    """Seconds of all subsets and of all windows on the same examples."""
    encoded, _ = questions(examples)
    stacks = _model(hidden, seed=1), _model(hidden, seed=2)
    windows = window_subsets(DEPTH)
    with suitable_threads(hidden) as threads:
        every, some = side_by_side(
            lambda: _logits(stacks, range(2**DEPTH), encoded),
            lambda: _logits(stacks, windows, encoded),
            repeats,
        )
    difference = np.abs(every[0][2][:, windows] - some[0][2]).max()
    return Measured(
        stage="shares",
        hidden=hidden,
        ratio=middle([s[0] / e[0] for e, s in zip(every, some, strict=True)]),
        seconds=middle([e[0] for e in every]),
        baseline_seconds=middle([s[0] for s in some]),
        baseline="swapping all windows of the same examples",
        difference=float(difference),
        peak_mb=max(e[1] for e in every),
        baseline_peak_mb=max(s[1] for s in some),
        threads=threads,
        details={
            "examples": examples,
            "times_swapping": middle([e[0] / s[0] for e, s in zip(every, some, strict=True)]),
            "layers_per_text": Shares().plan(DEPTH).layers,
            "difference_is": "largest of the logits that both compute",
        },
    )


def _logits(stacks: tuple[Stack, Stack], subsets: Sequence[int], encoded: Encoded) -> "np.ndarray":
    mixtures = Mixtures(*stacks, subsets)
    found = np.zeros((len(encoded), len(subsets), stacks[0].model.config.num_labels))
    for rows in mixtures.batches(encoded, np.arange(len(encoded))):
        found[rows] = mixtures.logits(encoded, rows)[0].numpy()
    return found


def methods_table(study: Path) -> pd.DataFrame:
    """Means over plants by method and where labels were planted."""
    control = load_results(study).control
    control = control[control["k"] == 2].assign(kind=control["planted"].map(_kind))
    names = {"accuracy": "accuracy@2", **{name: name.replace("_", " ") for name in MEASURES}}
    found: list[dict[str, Any]] = []
    for (kind, method), part in control.groupby(["kind", "method"]):
        means = {shown: f"{part[name].mean():.2f}" for name, shown in names.items()}
        found.append({"planted": kind, "method": method, "plants": len(part), **means})
    found.sort(key=lambda row: (row["planted"], trust(row["method"])))
    return pd.DataFrame(found)


def windows_table(study: Path) -> pd.DataFrame:
    """Mean planted mass by method and window; in brackets, how many plants."""
    control = load_results(study).control
    control = control[(control["k"] == 2) & ~control["planted"].str.contains("[+/]")]
    parts = control.groupby(["method", "planted"], sort=False)["planted_mass"]
    shown = parts.agg(lambda mass: f"{mass.mean():.2f} ({len(mass)})")
    names = {planted: f"layers {planted}" for planted in control["planted"].unique()}
    ordered = sorted(names, key=lambda planted: planted_layers(planted)[0])
    table = shown.unstack("planted").fillna("–")[ordered].rename(columns=names)
    return (
        table.rename_axis(columns=None).sort_index(key=lambda names: names.map(trust)).reset_index()
    )


def _kind(planted: str) -> str:
    if "/" in planted:
        return "two groups of examples"
    if "+" in planted:
        return "separate layers"
    return f"{len(planted_layers(planted))} of 12 in a row"


def centres_table(study: Path) -> pd.DataFrame:
    """Means of the estimated centres by method, for plants whose true centre is in the same third.

    Of plants in windows only: separate layers have a centre where nothing is.
    """
    layers = load_results(study).control_layers
    layers = layers[~layers["null"].astype(bool) & ~layers["planted"].str.contains("[+/]")]
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


def groups_table(study: Path) -> pd.DataFrame:
    """How well single examples' shares tell two groups apart that have layers of their own."""
    rows = []
    for run in _runs(study):
        assert run.record.plant is not None
        groups = read_plant(run.record.plant.planted)
        if len(groups) < 2 or run.is_null:
            continue
        table = pd.read_parquet(paths.result(run.folder, "shares") / "example_shares.parquet")
        wide = table.pivot(index="example", columns="first", values="share").clip(lower=0)
        inside = [wide[[layer + 1 for layer in group]].sum(axis=1) for group in groups]
        first = (inside[0] / (inside[0] + inside[1])).to_numpy(np.float64)
        group = run.planted_groups[wide.index.to_numpy()]
        own = np.where(group == 0, first, 1 - first)
        low, high = np.quantile(own, [0.025, 0.975])
        rows.append(
            {
                "model": run.model_name,
                "examples": len(group),
                "AUROC": f"{auroc(first, np.flatnonzero(group == 0).tolist()):.2f}",
                "right group": f"{(own > 0.5).mean():.0%}",
                "share in the own group's layers": f"{own.mean():.2f} [{low:.2f}, {high:.2f}]",
            }
        )
    return pd.DataFrame(rows)


def sampling_table(study: Path) -> pd.DataFrame:
    """How far sampled shares are from exact ones, over runs with twelve layers and draws."""
    rng = generator(0, "benchmark", "orders")
    values = [
        pd.read_parquet(path)["lost"].to_numpy(np.float64)
        for path in study.rglob("shares/subsets.parquet")
    ]
    rows = []
    for pairs in PAIRS:
        off, largest, said = [], [], []
        for table in values:
            exact = shapley_values(table)
            for _ in range(DRAWS):
                orders = random_orders(len(exact), pairs, rng)
                passed = np.array(passed_subsets(orders))
                found, error = sampled_values(table[passed], orders)
                off.append(np.sqrt(np.mean((found - exact) ** 2)))
                largest.append(np.abs(found - exact).max())
                said.append(np.sqrt(np.mean(error**2)))
        layers = [
            Shares(subsets="sampled", pairs=pairs).plan(depth).layers for depth in (12, 24, 30)
        ]
        shown = [f"{np.mean(each):.3f}" for each in (off, largest, said)]
        rows.append([pairs, *shown, *(f"{n:,}" for n in layers)])
    names = ["pairs", "error", "largest error", "standard error", "12 layers", "24", "30"]
    groups = [f"{Shares(subsets='groups').plan(depth).layers:,}" for depth in (12, 24, 30)]
    rows.append(["all subsets of 12 groups", "0", "0", "0", *groups])
    return pd.DataFrame(rows, columns=names)


def _runs(study: Path) -> Iterator[Run]:
    for place in sorted(study.rglob(paths.RUN)):
        if (paths.result(place.parent, "shares") / paths.ABOUT).is_file():
            yield Run.open(place.parent)


def main() -> None:
    """Print all tables."""
    study = Path(sys.argv[1])
    for make in (methods_table, windows_table, centres_table, groups_table, sampling_table):
        table = make(study)
        if len(table):
            print(markdown(table.astype(str)))


if __name__ == "__main__":
    main()
