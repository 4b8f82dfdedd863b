"""Intervals: percentiles of resampled examples, Student's t for means over tasks, Wilson's."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, TypeAlias

import numpy as np
from numpy.random import Generator

from memloc.arrays import BoolArray, FloatArray, IntArray
from memloc.errors import ScoreError
from memloc.seeds import generator
from memloc.stats.depth import LEVEL, centres_of_gravity
from memloc.stats.windows import full_window, layer_weights, normalised, window_matrix, windows

Statistic: TypeAlias = Callable[[FloatArray], FloatArray | float]

PERMUTATIONS = 2000
"""Number of random permutations in a test."""
RESAMPLES = 1000
CHUNK = 1_000_000
"""Largest number of counts drawn at once: about 12 MB."""


@dataclass(frozen=True)
class Interval:
    """A number, or an array of numbers, with its interval."""

    estimate: Any
    low: Any
    high: Any
    level: float = LEVEL
    n_dropped: int = 0
    """Number of resamples left out of the interval because a number did not exist in them."""

    def named(self, name: str) -> dict[str, Any]:
        """Return the number and its ends as columns: `name`, `name_low` and `name_high`."""
        return {name: self.estimate, f"{name}_low": self.low, f"{name}_high": self.high}


def window_intervals(
    wrong: BoolArray,
    depth: int,
    *,
    normalise: bool,
    rng: Generator,
    n_resamples: int = RESAMPLES,
    known: Sequence[range] | None = None,
) -> tuple[Interval, Interval]:
    """Return bootstrap intervals of the layer weights (L,) and of M-CoG.

    Args:
        wrong: (examples, windows): whether the prediction is not the assigned label.
        depth: number of layers.
        normalise: divide by the full window's error; resamples without such errors are dropped.
        rng: generator that draws the resamples.
        n_resamples: number of resamples.
        known: windows of `wrong`; all windows of the model by default.
    """
    known = windows(depth) if known is None else known
    _check_resampling(len(wrong))
    errors = resampled_means(wrong, n_resamples, rng)
    if normalise:
        errors = _normalised_resamples(errors, full_window(depth, known))
    weights = layer_weights(window_matrix(errors, depth, known))
    n_dropped = 1 + n_resamples - len(errors)
    return band(weights, n_dropped), band(centres_of_gravity(weights), n_dropped)


def bootstrap(
    values: FloatArray,
    *,
    rng: Generator,
    statistic: Statistic = lambda values: values.mean(axis=0),
    n_resamples: int = RESAMPLES,
) -> Interval:
    """Return the bootstrap interval of a statistic over rows of `values` (n, ...).

    Resamples are dropped if a number is NaN in them although it exists in the data.

    Args:
        values: One row per example.
        rng: Generator that draws the resamples.
        statistic: Function of the drawn rows; their mean by default.
        n_resamples: Number of resamples.
    """
    n = len(values)
    _check_resampling(n)
    estimates = [statistic(values)]
    estimates += [statistic(values[rng.integers(n, size=n)]) for _ in range(n_resamples)]
    return band(np.array(estimates, dtype=np.float64))


def permutation_p(one: FloatArray, other: FloatArray, rng: Generator) -> float:
    """Return the two-sided p-value of a difference in means when values are reassigned at random.

    It is 1 if one of the two groups is empty.
    """
    if not len(one) or not len(other):
        return 1.0
    every = np.concatenate([one, other])
    dealt = rng.permuted(np.tile(every, (PERMUTATIONS, 1)), axis=1)[:, : len(one)].mean(1)
    # The difference of the two means follows from the mean of one part and of all values.
    distances = np.abs(dealt - every.mean())
    reached = (distances >= abs(one.mean() - every.mean()) - 1e-12).sum()
    return float((1 + reached) / (1 + PERMUTATIONS))


def prediction_margin(values: FloatArray, level: float = LEVEL) -> float:
    """Return how far one more value may lie from the mean of these values: t s √(1 + 1/n), 95 %."""
    from scipy.stats import t

    n = len(values)
    return float(t.ppf((1 + level) / 2, n - 1) * values.std(ddof=1) * np.sqrt(1 + 1 / n))


def tolerance_margin(values: FloatArray) -> float:
    """Return how far nearly all values may lie from the mean of these, by Howe's formula.

    z s √((n - 1)(1 + 1/n) / χ²): in 95 of 100 samples, 95 % of all values lie within. It is wider
    than the margin of one more value, as a few values leave their own spread uncertain.
    """
    from scipy.stats import chi2, norm

    n = len(values)
    spread = np.sqrt((n - 1) * (1 + 1 / n) / chi2.ppf(1 - LEVEL, n - 1))
    return float(norm.ppf((1 + LEVEL) / 2) * values.std(ddof=1) * spread)


def wilson(shares: FloatArray | float, n: FloatArray | float) -> Interval:
    """Return Wilson's intervals of `shares` of `n` trials each; NaN without trials.

    Unlike a bootstrap interval, it has a width even if all trials agree. accuracy@k above k = 1 is
    a mean of shares and varies less than a yes or no, so its interval is rather too wide.
    """
    share = np.asarray(shares, dtype=np.float64)
    known = np.asarray(n, dtype=np.float64)
    trials = np.where(known > 0, known, np.nan)
    z = NormalDist().inv_cdf((1 + LEVEL) / 2)
    shrunk = 1 + z**2 / trials
    centre = (share + z**2 / (2 * trials)) / shrunk
    half = z / shrunk * np.sqrt(share * (1 - share) / trials + z**2 / (4 * trials**2))
    return Interval(share[()], np.clip(centre - half, 0, 1), np.clip(centre + half, 0, 1))


def percentiles(resampled: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return both ends (...) of the middle LEVEL of `resampled` (R, ...); NaN without resamples."""
    if not len(resampled):
        nowhere = np.full(resampled.shape[1:], np.nan)
        return nowhere, nowhere
    low, high = np.quantile(resampled, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return np.asarray(low), np.asarray(high)


def t_ends(values: FloatArray, groups: Sequence[object] | None = None) -> tuple[float, float]:
    """Return the ends of the 95 % t interval of the mean of `values` (n,).

    Values of one group, such as a task, are not independent: the standard error is computed from
    the groups' summed deviations, with one degree of freedom fewer than there are groups. By
    default each value is a group. With fewer than two groups there is no interval: NaN.
    """
    from scipy.stats import t

    names = np.arange(len(values)) if groups is None else np.asarray(groups)
    _, place = np.unique(names, return_inverse=True)
    n_groups = int(place.max()) + 1 if len(values) else 0
    if n_groups < 2:
        return np.nan, np.nan
    mean = float(values.mean())
    sums = np.bincount(place, weights=values - mean)
    error = np.sqrt(n_groups / (n_groups - 1) * np.square(sums).sum()) / len(values)
    half = float(t.ppf((1 + LEVEL) / 2, n_groups - 1) * error)
    return mean - half, mean + half


def bootstrap_ends(values: FloatArray) -> tuple[float, float]:
    """Return the ends of the 95 % bootstrap interval of the mean of `values` (n,); NaN for one
    value.
    """
    n = len(values)
    if n < 2:
        return np.nan, np.nan
    counts = bootstrap_counts(n, RESAMPLES, generator(0, "bootstrap", "means"))
    low, high = percentiles((counts @ values) / n)
    return float(low), float(high)


def bootstrap_counts(n: int, n_resamples: int, rng: Generator) -> IntArray:
    """Return how often each of `n` examples is drawn: (n_resamples, n), rows sum to n."""
    return rng.multinomial(n, np.full(n, 1 / n), size=n_resamples)


def resampled(
    statistic: Callable[[IntArray], Any],
    n: int,
    rng: Generator,
    n_resamples: int = RESAMPLES,
    size: int | None = None,
) -> FloatArray:
    """Return a statistic of counts (draws, n): row 0 is of the data, the others are of
    resamples.

    Args:
        statistic: function of how often each example is drawn, (draws, n) to (draws, ...).
        n: number of examples.
        rng: generator that draws the resamples.
        n_resamples: number of resamples.
        size: numbers held per resample, n by default; CHUNK limits how many are held at once.
    """
    parts = [statistic(np.ones((1, n), dtype=np.int64))]
    step = max(1, CHUNK // (size or n))
    for start in range(0, n_resamples, step):
        parts.append(statistic(bootstrap_counts(n, min(step, n_resamples - start), rng)))
    return np.concatenate(parts)


def resampled_means(wrong: BoolArray, n_resamples: int, rng: Generator) -> FloatArray:
    """Return the means of `wrong` (n, W) and of its resamples: (1 + n_resamples, W)."""
    # Sums of fewer than 2**24 ones are exact in single precision, and twice as fast.
    ones = wrong.astype(np.float32)
    n = len(wrong)
    sums = resampled(lambda counts: counts.astype(np.float32) @ ones, n, rng, n_resamples)
    return np.asarray(sums.astype(np.float64) / n)


def _normalised_resamples(errors: FloatArray, full: int) -> FloatArray:
    """Normalise errors; drop resamples (never row 0, the data) that have no full-window error."""
    usable = errors[:, full] > 0
    usable[0] = True
    return normalised(errors[usable], full)


def band(curves: FloatArray, n_dropped: int = 0) -> Interval:
    """Return row 0 of `curves` (1 + resamples, ...) as the estimate, with an interval from the
    others.
    """
    estimate, resampled = curves[0], curves[1:]
    lost = np.isnan(resampled) & ~np.isnan(estimate)
    kept = resampled[~lost.any(axis=tuple(range(1, lost.ndim)))]
    n_dropped += len(resampled) - len(kept)
    low, high = percentiles(kept)
    return Interval(estimate, low[()], high[()], n_dropped=n_dropped)


def _check_resampling(n: int) -> None:
    if n < 1:
        raise ScoreError("An interval needs an example, found none.")
