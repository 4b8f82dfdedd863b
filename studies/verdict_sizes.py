"""Error rates of the tests behind an answer: `python -m studies.verdict_sizes`.

Writes the tables of docs/explanation/verdicts.md. Every case of the first two tables is one where a
test may err in 5 % of runs: nothing is memorised, or all layers hold the same. The third table says
which word uneven memories get. Takes a few minutes on one core.
"""

from collections.abc import Callable

import numpy as np
import pandas as pd
from scipy.special import expit

from memloc.arrays import FloatArray
from memloc.reporting.tables import markdown
from memloc.seeds import generator
from memloc.stats import evenness
from memloc.stats.evenness import ALPHA, effective_layers, uneven_layers
from memloc.stats.undone import is_anything_undone
from studies.pages import put
from studies.verdicts import PAGE

RUNS, RUNS_LAYERS, RESAMPLES = 2000, 400, 399
EXAMPLES, DEPTHS = (20, 40, 100), (12, 24, 30)
Margins = Callable[[np.random.Generator, int], FloatArray]
NULLS: dict[str, tuple[float, float, Margins]] = {
    "equally sure": (1.5, 1.7, lambda rng, n: rng.normal(2.5, 1.2, 2 * n)),
    "noisy ones less sure": (1.5, 1.7, lambda rng, n: _two(rng, n, 2.5, 3.75, 1.2)),
    "noisy ones far less sure": (2.0, 1.7, lambda rng, n: _two(rng, n, 2.0, 4.5, 1.0)),
    "less sure, and the exchange breaks the model": (
        0.7,
        4.0,
        lambda rng, n: _two(rng, n, 2.5, 4.0, 1.2),
    ),
}
"""Slope and place of the probability to be lost, and margins of n noisy and n clean examples."""


def _two(rng: np.random.Generator, n: int, noisy: float, clean: float, sd: float) -> FloatArray:
    return np.concatenate([rng.normal(noisy, sd, n), rng.normal(clean, sd, n)])


def undone_sizes() -> pd.DataFrame:
    """The share of nulls in which something is said to be undone, with and without margins."""
    rows = []
    for name, (slope, place, margins_of) in NULLS.items():
        row = {"nulls: noisy examples are": name}
        for n in EXAMPLES:
            rng = generator(n, "sizes", "undone", name)
            hits = np.zeros(2)
            for _ in range(RUNS):
                margins = margins_of(rng, n)
                lost = (rng.random(2 * n) < expit(-slope * (margins - place))).astype(float)
                for i, known in enumerate((margins, np.zeros(2 * n))):
                    hits[i] += is_anything_undone(lost[:n], lost[n:], known).p <= ALPHA
            row[f"{n} examples"] = f"{hits[0] / RUNS:.3f}"
            row[f"{n}, margins ignored"] = f"{hits[1] / RUNS:.2f}"
        rows.append(row)
    return pd.DataFrame(rows)


def drawn(name: str, n: int, depth: int, rng: np.random.Generator) -> FloatArray:
    """Shares (n, depth) that are even on average, skewed or negative in single examples."""
    one = np.eye(depth)[rng.integers(depth, size=n)]
    if name == "one layer each":
        return one
    if name == "all layers but one":
        return (1 - one) / (depth - 1)
    if name == "rarely negative":
        negative = -1.0 * (rng.random((n, depth)) < 0.05)
        return np.asarray(negative - negative.mean(1, keepdims=True) + 1 / depth)
    if name == "one and a half, minus a half":
        return 1.5 * one - 0.5 * np.eye(depth)[rng.integers(depth, size=n)]
    if name == "half undone, uneven":
        return rng.dirichlet(np.full(depth, 0.3), size=n) * (rng.random((n, 1)) < 0.5)
    return rng.dirichlet(np.full(depth, 5.0), size=n)


CASES = (
    "one layer each",
    "all layers but one",
    "rarely negative",
    "one and a half, minus a half",
    "half undone, uneven",
    "like each other",
)


def layer_sizes() -> pd.DataFrame:
    """The share of even memories in which some layer is named, or which are concentrated."""
    rows = []
    for name in CASES:
        row = {"shares of single examples": name}
        concentrated = 0.0
        for depth in DEPTHS:
            for n in EXAMPLES:
                rng = generator(n, "sizes", "layers", name, str(depth))
                named = np.zeros(2)
                for _ in range(RUNS_LAYERS):
                    shares = drawn(name, n, depth, rng)
                    few = effective_layers(shares).p_fewer <= ALPHA
                    named += [uneven_layers(shares).p <= ALPHA, few]
                row[f"{depth}: {n}"] = f"{named[0] / RUNS_LAYERS:.2f}"
                concentrated = max(concentrated, named[1] / RUNS_LAYERS)
        rows.append({**row, "concentrated, at most": f"{concentrated:.2f}"})
    return pd.DataFrame(rows)


def margin_sizes() -> pd.DataFrame:
    """The share of memories at the margin that are called concentrated, or surely not."""
    rows = []
    for depth in DEPTHS:
        for title, profile in _at_margin(depth).items():
            row: dict[str, object] = {"layers": depth, "at the margin": title}
            for n in EXAMPLES:
                rng = generator(n, "sizes", "margin", title, str(depth))
                hits = np.zeros(2)
                for _ in range(RUNS):
                    found = effective_layers(np.eye(depth)[rng.choice(depth, size=n, p=profile)])
                    hits += [found.p_fewer <= ALPHA, found.p_more <= ALPHA]
                row[f"{n}: concentrated"], row[f"{n}: not"] = (f"{h / RUNS:.3f}" for h in hits)
            rows.append(row)
    return pd.DataFrame(rows)


def _at_margin(depth: int) -> dict[str, FloatArray]:
    peak = (1 + np.sqrt(depth - 1)) / depth
    return {
        "half of the layers, evenly": np.where(np.arange(depth) < depth // 2, 2 / depth, 0.0),
        "one layer stands out": np.r_[peak, np.full(depth - 1, (1 - peak) / (depth - 1))],
    }


PROFILES: dict[str, FloatArray] = {
    "all in 2 layers": np.r_[np.full(2, 0.5), np.zeros(10)],
    "84 % in 4 layers": np.r_[np.full(4, 0.21), np.full(8, 0.02)],
    "70 % in 4 layers": np.r_[np.full(4, 0.175), np.full(8, 0.0375)],
    "one layer three times an even share": np.r_[0.25, np.full(11, 0.75 / 11)],
    "even": np.full(12, 1 / 12),
}
"""Of twelve layers."""


def words() -> pd.DataFrame:
    """How often each word is given, by profile, number of examples and how examples differ."""
    from memloc.stats.answers import Evidence, answer

    rows = []
    for title, profile in PROFILES.items():
        for kind, precision in (("each in one layer", 0.0), ("unlike", 6.0)):
            for n in (20, 40):
                rng = generator(n, "sizes", "words", title, kind)
                said: dict[str, int] = {}
                for _ in range(100):
                    shares = _with_profile(rng, profile, n, precision)
                    found = answer(Evidence(shares, np.zeros(n), rng.normal(size=2 * n)))
                    said[found.word] = said.get(found.word, 0) + 1
                row = {"memory": title, "examples": kind, "n": n}
                rows.append({**row, **{word: said.get(word, 0) / 100 for word in WORDS}})
    return pd.DataFrame(rows)


WORDS = ("concentrated", "uneven", "even", "cannot tell")


def _with_profile(
    rng: np.random.Generator, profile: FloatArray, n: int, precision: float
) -> FloatArray:
    if not precision:
        return np.eye(len(profile))[rng.choice(len(profile), size=n, p=profile)]
    found = np.zeros((n, len(profile)))
    found[:, profile > 0] = rng.dirichlet(precision * profile[profile > 0], size=n)
    return found


def main() -> None:
    """Simulate, and put the tables into the page."""
    from memloc.stats import answers

    evenness.RESAMPLES = answers.RESAMPLES = RESAMPLES
    parts = (undone_sizes, layer_sizes, margin_sizes, words)
    for name, make in zip(("undone", "layers", "margin", "words"), parts, strict=True):
        text = markdown(make().astype(str))
        print(text, flush=True)
        put(f"sizes-{name}", text, PAGE)


if __name__ == "__main__":
    main()
