"""Does fast retraining give the same picture as the plain way?

`python -m studies.retraining_exact RUN` retrains all windows of a run with several seeds, both
fast (frozen blocks without dropout, their states kept) and the plain way (dropout everywhere,
nothing kept). Layer weights of the two ways are then compared beside those of one way with two
seeds. Finished windows are kept in the run's folder, so an interrupted comparison goes on.
"""

import argparse
import itertools
import sys
import time
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from memloc.arrays import FloatArray
from memloc.methods.result import Result
from memloc.methods.retraining import Retraining
from memloc.run.folder import Run
from memloc.stats.agreement import correlation

WAYS = ("fast", "plain")
SEEDS = (42, 43, 44)

Made = tuple[str, int]
"""A way and a seed."""


def main() -> None:
    """Print one table of differences, and one of the layers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument(
        "--widths", type=int, nargs="+", help="Retrain windows of these widths only; default: all."
    )
    asked = parser.parse_args()
    torch.set_num_threads(1)
    retraining = Retraining(widths=tuple(asked.widths) if asked.widths else None)
    run = Run.open(asked.run, "cpu")
    found = {
        (way, seed): _scores(run, retraining, way, seed)
        for seed, way in itertools.product(asked.seeds, WAYS)
    }
    console = Console(width=120)
    console.print(_differences(found))
    console.print(_layers(found))


def _scores(run: Run, retraining: Retraining, way: str, seed: int) -> Result:
    method = retraining.replace({"seed": seed, "frozen_dropout": way == "plain"})
    start = time.perf_counter()
    scores = method.run(run)
    print(f"{way}, seed {seed}: {time.perf_counter() - start:.0f} s", file=sys.stderr)
    return scores


def _differences(found: dict[Made, Result]) -> Table:
    """Differences of layer weights and M-CoG over all pairs of each kind."""
    table = Table(title="layer weights: differences of pairs, mean (largest)")
    for column in ("pairs", "number", "mean |Δ|", "largest |Δ|", "M-CoG |Δ|", "smallest ρ"):
        table.add_column(column)
    for kind, pairs in _kinds(list(found)).items():
        both = [(found[a], found[b]) for a, b in pairs]
        gaps = [np.abs(a.weights - b.weights) for a, b in both]
        if not both:
            continue
        table.add_row(
            kind,
            str(len(both)),
            _mean_and_largest([float(gap.mean()) for gap in gaps]),
            _mean_and_largest([float(gap.max()) for gap in gaps]),
            _mean_and_largest([abs(a.mcog.estimate - b.mcog.estimate) for a, b in both]),
            f"{min(correlation(a.weights, b.weights).rho for a, b in both):.3f}",
        )
    return table


def _kinds(made: list[Made]) -> dict[str, list[tuple[Made, Made]]]:
    pairs = list(itertools.combinations(made, 2))
    kinds = {f"{way}, two seeds": [p for p in pairs if p[0][0] == p[1][0] == way] for way in WAYS}
    across = [(a, b) for a, b in pairs if a[0] != b[0]]
    return {
        **kinds,
        "one way, two seeds": [pair for same in kinds.values() for pair in same],
        "fast and plain": across,
        "fast and plain, one seed": [(a, b) for a, b in across if a[1] == b[1]],
    }


def _layers(found: dict[Made, Result]) -> Table:
    """Each way's mean weights, and whether plain minus fast is more than chance between seeds."""
    weights = {
        way: np.stack([scores.weights for made, scores in found.items() if made[0] == way])
        for way in WAYS
    }
    centres = {
        way: np.array([scores.mcog.estimate for made, scores in found.items() if made[0] == way])
        for way in WAYS
    }
    gap = weights["plain"] - weights["fast"]
    table = Table(title="means over seeds; plain - fast with its standard error over seeds")
    for column in ("layer", *WAYS, "plain - fast"):
        table.add_column(column)
    for layer in range(gap.shape[1]):
        means = [f"{weights[way][:, layer].mean():.3f}" for way in WAYS]
        table.add_row(str(layer + 1), *means, _with_error(gap[:, layer]))
    table.add_row("all", *(f"{weights[w].mean():.3f}" for w in WAYS), _with_error(gap.mean(axis=1)))
    both = [f"{centres[way].mean():.3f}" for way in WAYS]
    table.add_row("M-CoG", *both, _with_error(centres["plain"] - centres["fast"]))
    return table


def _mean_and_largest(values: list[float]) -> str:
    return f"{np.mean(values):.3g} ({max(values):.3g})"


def _with_error(values: FloatArray) -> str:
    if len(values) < 2:
        return f"{values.mean():+.3g}"
    return f"{values.mean():+.3f} ± {values.std(ddof=1) / np.sqrt(len(values)):.3f}"


if __name__ == "__main__":
    main()
