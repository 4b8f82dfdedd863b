"""How often the tests of a verdict err on simulated shares: `python -m studies.verdict_sizes`.

Prints the tables of docs/explanation/verdicts.md. Every case is one where a test may err in 5 % of
runs at most: shares at the margin for the question of how many layers, even ones for that of where.
"""

from collections.abc import Callable

import numpy as np
import pandas as pd
from memloc.stats.verdicts import ALPHA, how_many_layers, which_layers

from memloc.arrays import FloatArray
from memloc.reporting.tables import markdown
from memloc.seeds import generator

LAYERS, EXAMPLES = 12, 30
RUNS, RUNS_WHERE = 2000, 300
EVEN = np.full(LAYERS, 1 / LAYERS)
HALF = np.where(np.arange(LAYERS) < LAYERS // 2, 2 / LAYERS, 0)
PEAK = (1 + np.sqrt(11)) / LAYERS
ONE = np.where(np.arange(LAYERS) == 0, PEAK, (1 - PEAK) / (LAYERS - 1))
"""One layer stands out; effectively six hold it, as in HALF."""
DRAWS: dict[str, Callable[[np.random.Generator, FloatArray], FloatArray]] = {
    "each in one layer": lambda rng, p: np.eye(LAYERS)[rng.choice(LAYERS, size=EXAMPLES, p=p)],
    "unlike each other": lambda rng, p: _dirichlet(rng, p, 6),
    "like each other": lambda rng, p: _dirichlet(rng, p, 60),
}
"""How examples differ that have the same profile on average."""


def _dirichlet(rng: np.random.Generator, profile: FloatArray, precision: float) -> FloatArray:
    found = np.zeros((EXAMPLES, LAYERS))
    found[:, profile > 0] = rng.dirichlet(precision * profile[profile > 0], size=EXAMPLES)
    return found


def skewed(name: str, n: int, depth: int, rng: np.random.Generator) -> FloatArray:
    """Shares (n, depth) that are even on average, and skewed in single examples."""
    one = np.eye(depth)[rng.integers(depth, size=n)]
    if name == "one layer each":
        return one
    if name == "all layers but one":
        return (1 - one) / (depth - 1)
    if name == "rarely negative":
        negative = -1.0 * (rng.random((n, depth)) < 0.05)
        return np.asarray(negative - negative.mean(1, keepdims=True) + 1 / depth)
    return rng.dirichlet(np.full(depth, 0.3), size=n) * (rng.random((n, 1)) < 0.5)


CASES = ("one layer each", "all layers but one", "rarely negative", "half undone, uneven")


def named_sizes() -> pd.DataFrame:
    """The share of runs in which some layer of even, skewed shares is named."""
    rows = []
    for name in CASES:
        rng = generator(0, "benchmark", "named", name)
        row = {"examples": name}
        for depth in (12, 24, 30):
            for n in (20, 40, 100):
                named = [
                    bool(which_layers(skewed(name, n, depth, rng))[1]) for _ in range(RUNS_WHERE)
                ]
                row[f"{depth}: {n}"] = f"{np.mean(named):.2f}"
        rows.append(row)
    return pd.DataFrame(rows)


def sizes() -> pd.DataFrame:
    """Of each way that examples differ, the share of runs in which each test errs."""
    rows = []
    for name, draw in DRAWS.items():
        rng = generator(0, "benchmark", "sizes", name)
        row = {"examples": name}
        for where, profile in (("six even", HALF), ("one above", ONE)):
            answers = [how_many_layers(draw(rng, profile)) for _ in range(RUNS)]
            for side, kind in enumerate(("localised", "spread")):
                wrong = np.mean([both[side].p <= ALPHA for both in answers])
                row[f"{kind}: {where}"] = f"{wrong:.3f}"
        named = [bool(which_layers(draw(rng, EVEN))[1]) for _ in range(RUNS_WHERE)]
        rows.append({**row, "named: even": f"{np.mean(named):.3f}"})
    return pd.DataFrame(rows)


if __name__ == "__main__":
    print(markdown(sizes()))
    print(markdown(named_sizes()))
