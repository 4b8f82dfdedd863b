"""Error rates of the tests behind an answer: `python -m studies.verdict_sizes [TABLE ...]`.

Simulates runs whose truth is known and writes docs/explanation/error_rates.md. In the tables
`undone`, `layers` and `margin` every case is one in which a test may err in 5 % of runs: nothing is
memorised, all layers hold the same, or the memory is exactly at the margin. The table `words` says
which word known memories get. Less than half an hour on one core.
"""

import sys
from collections.abc import Callable

import numpy as np
import pandas as pd
from scipy.special import expit

from memloc.arrays import FloatArray
from memloc.reporting.tables import markdown
from memloc.seeds import generator
from memloc.stats import evenness
from memloc.stats.calibration import WORDS
from memloc.stats.evenness import ALPHA, effective_layers, uneven_layers
from memloc.stats.undone import is_anything_undone
from studies.pages import put
from studies.verdicts import PAGE

RUNS, RUNS_LAYERS, RUNS_WORDS, RESAMPLES = 2000, 400, 200, 399
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
    """Return the share of nulls in which something is called undone, with and without margins."""
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


def _one(n: int, depth: int, rng: np.random.Generator) -> FloatArray:
    return np.eye(depth)[rng.integers(depth, size=n)]


def _rarely_negative(n: int, depth: int, rng: np.random.Generator) -> FloatArray:
    negative = -1.0 * (rng.random((n, depth)) < 0.05)
    return np.asarray(negative - negative.mean(1, keepdims=True) + 1 / depth)


def _half_undone(n: int, depth: int, rng: np.random.Generator) -> FloatArray:
    return np.asarray(rng.dirichlet(np.full(depth, 0.3), size=n) * (rng.random((n, 1)) < 0.5))


def _blocks(n: int, depth: int, rng: np.random.Generator) -> FloatArray:
    one = _one(n, depth, rng)
    return np.asarray((one + np.roll(one, 1, axis=1) + np.roll(one, 2, axis=1)) / 3)


def _all_or_nothing(n: int, depth: int, rng: np.random.Generator) -> FloatArray:
    alone = rng.random((n, 1)) < 1 / depth
    first = np.eye(depth)[0]
    return np.asarray(np.where(alone, first, (1 - first) / (depth - 1)))


def _two_differ(n: int, depth: int, rng: np.random.Generator) -> FloatArray:
    profile = np.r_[2.0, 0.0, np.ones(depth - 2)] / depth
    return np.eye(depth)[rng.choice(depth, size=n, p=profile)]


CASES: dict[str, Callable[[int, int, np.random.Generator], FloatArray]] = {
    "one layer each": _one,
    "all layers but one": lambda n, depth, rng: (1 - _one(n, depth, rng)) / (depth - 1),
    "rarely negative": _rarely_negative,
    "one and a half, minus a half": lambda n, depth, rng: (
        1.5 * _one(n, depth, rng) - 0.5 * _one(n, depth, rng)
    ),
    "half undone, uneven": _half_undone,
    "like each other": lambda n, depth, rng: rng.dirichlet(np.full(depth, 5.0), size=n),
    "three neighbours each": _blocks,
    "rarely one layer, else all others": _all_or_nothing,
    "layer 1 twice, layer 2 nothing": _two_differ,
}
"""Shares (examples, layers) that are even on average, skewed or negative in single examples; in the
last case two layers are not even, and none of the others may be named."""


def layer_sizes() -> pd.DataFrame:
    """Return the share of runs in which evenness is rejected, or an even layer is named."""
    rows = []
    for name, draw in CASES.items():
        row = {"shares of single examples": name}
        concentrated = 0.0
        for depth in DEPTHS:
            for n in EXAMPLES:
                rng = generator(n, "sizes", "layers", name, str(depth))
                hits = np.zeros(2)
                for _ in range(RUNS_LAYERS):
                    shares = draw(n, depth, rng)
                    found = uneven_layers(shares)
                    wrong = found.p <= ALPHA
                    if draw is _two_differ:
                        wrong = bool({*found.above, *found.below} - {1, 2})
                    hits += [wrong, effective_layers(shares).p_fewer <= ALPHA]
                row[f"{depth}: {n}"] = f"{hits[0] / RUNS_LAYERS:.2f}"
                concentrated = max(concentrated, hits[1] / RUNS_LAYERS)
        rows.append({**row, "concentrated, at most": f"{concentrated:.2f}"})
    return pd.DataFrame(rows)


def margin_sizes() -> pd.DataFrame:
    """Return the share of memories at the margin called concentrated, or surely not
    concentrated.
    """
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
    """Return how often each word is given, by profile, number of examples and how examples
    differ.
    """
    from memloc.stats.answers import Evidence, answer

    rows = []
    for title, profile in PROFILES.items():
        for kind, precision in (("each in one layer", 0.0), ("unlike", 6.0)):
            for n in (20, 40):
                rng = generator(n, "sizes", "words", title, kind)
                said: dict[str, int] = {}
                for _ in range(RUNS_WORDS):
                    shares = _with_profile(rng, profile, n, precision)
                    found = answer(Evidence(shares, np.zeros(n), rng.normal(size=2 * n)))
                    said[found.word] = said.get(found.word, 0) + 1
                row = {"memory": title, "examples": kind, "n": n}
                rows.append({**row, **{word: said.get(word, 0) / RUNS_WORDS for word in WORDS}})
    return pd.DataFrame(rows)


def _with_profile(
    rng: np.random.Generator, profile: FloatArray, n: int, precision: float
) -> FloatArray:
    if not precision:
        return np.eye(len(profile))[rng.choice(len(profile), size=n, p=profile)]
    found = np.zeros((n, len(profile)))
    found[:, profile > 0] = rng.dirichlet(precision * profile[profile > 0], size=n)
    return found


TABLES = {"undone": undone_sizes, "layers": layer_sizes, "margin": margin_sizes, "words": words}


def main() -> None:
    """Simulate all tables, or the named ones, and write them into the page."""
    from memloc.stats import answers

    evenness.RESAMPLES = answers.RESAMPLES = RESAMPLES
    for name in sys.argv[1:] or TABLES:
        text = markdown(TABLES[name]().astype(str))
        print(text, flush=True)
        put(f"sizes-{name}", text, PAGE)


if __name__ == "__main__":
    main()
