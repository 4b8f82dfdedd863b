"""How sure: percentile intervals from resampling examples (the bootstrap), Wilson's for shares."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TypeAlias

import numpy as np
from numpy.random import Generator

from memloc.errors import ScoreError, counted
from memloc.records import BoolArray, FloatArray, IntArray
from memloc.stats.depth import centres_of_gravity
from memloc.stats.windows import full_window, layer_weights, normalised, window_matrix, windows

Statistic: TypeAlias = Callable[[FloatArray], FloatArray | float]

CHUNK = 1_000_000
"""Counts drawn at once, about 12 MB of them."""


@dataclass(frozen=True)
class Interval:
    """A number with its interval, usually the percentiles of its resamples."""

    estimate: float
    low: float
    high: float
    level: float
    n_dropped: int = 0
    """Resamples in which the number did not exist; the interval is that of the others."""


@dataclass(frozen=True)
class Band:
    """An array of numbers, each with its interval, usually that of its resamples."""

    estimate: FloatArray
    low: FloatArray
    high: FloatArray
    level: float
    n_dropped: int = 0
    """Resamples in which some number did not exist; the intervals are those of the others."""

    def at(self, *index: int) -> Interval:
        """The number at `index` alone."""
        low, estimate, high = (float(a[index]) for a in (self.low, self.estimate, self.high))
        return Interval(estimate, low, high, self.level, self.n_dropped)


@dataclass(frozen=True)
class WindowIntervals:
    """What the errors of windows say, all from one resampling of the examples."""

    errors: Band
    """Of each window (W,), divided by that of the full window where asked."""
    matrix: Band
    """The window matrix of these errors (L, L)."""
    weights: Band
    """Of each layer (L,)."""
    mcog: Interval
    """NaN where no window has an error."""


def window_intervals(  # noqa: PLR0913  (three of them have a usual value)
    wrong: BoolArray,
    depth: int,
    *,
    normalise: bool,
    rng: Generator,
    n_resamples: int = 1000,
    level: float = 0.95,
    known: Sequence[range] | None = None,
) -> WindowIntervals:
    """Intervals of errors, matrix, weights and M-CoG from `wrong` (examples, W).

    `wrong` says of each example and window whether the prediction is not the assigned label. With
    `normalise`, resamples in which the full window undoes nothing are dropped. `known` are the
    windows of `wrong` where they are not `windows(depth)`.
    """
    known = windows(depth) if known is None else known
    _check_wrong(wrong, n_windows=len(known))
    _check_resampling(len(wrong), n_resamples, level)
    errors = np.vstack([wrong.mean(axis=0), resampled_means(wrong, n_resamples, rng)])
    if normalise:
        errors = _normalised_resamples(errors, full_window(depth, known))
    matrix = window_matrix(errors, depth, known)
    weights = layer_weights(matrix)
    n_dropped = 1 + n_resamples - len(errors)
    return WindowIntervals(
        errors=_band(errors, level, n_dropped),
        matrix=_band(matrix, level, n_dropped),
        weights=_band(weights, level, n_dropped),
        mcog=_band(centres_of_gravity(weights), level, n_dropped).at(),
    )


def bootstrap(
    values: FloatArray,
    *,
    rng: Generator,
    statistic: Statistic | None = None,
    n_resamples: int = 1000,
    level: float = 0.95,
) -> Band:
    """Intervals of `statistic` of `values` (n, ...), whose rows are resampled; by default the mean.

    Resamples in which a number is NaN that exists in `values` are dropped.
    """
    n = len(values)
    _check_resampling(n, n_resamples, level)
    measure = _mean if statistic is None else statistic
    found = [measure(values)]
    found += [measure(values[rng.integers(n, size=n)]) for _ in range(n_resamples)]
    return _band(np.array(found, dtype=np.float64), level)


def wilson(shares: FloatArray | float, n: FloatArray | float, *, level: float = 0.95) -> Band:
    """Wilson's intervals of `shares` of `n` trials each; NaN where there are no trials.

    They are not empty where all trials agree, unlike a bootstrap. accuracy@k above k = 1 is a mean
    of shares and varies less than a yes or no would, so there the interval is rather too wide.
    """
    share = np.asarray(shares, dtype=np.float64)
    known = np.asarray(n, dtype=np.float64)
    trials = np.where(known > 0, known, np.nan)
    z = NormalDist().inv_cdf((1 + level) / 2)
    shrunk = 1 + z**2 / trials
    centre = (share + z**2 / (2 * trials)) / shrunk
    half = z / shrunk * np.sqrt(share * (1 - share) / trials + z**2 / (4 * trials**2))
    return Band(share, np.clip(centre - half, 0, 1), np.clip(centre + half, 0, 1), level)


def percentiles(resampled: FloatArray, level: float = 0.95) -> tuple[FloatArray, FloatArray]:
    """Both ends (...) of an interval with `level` of `resampled` (R, ...); NaN without any."""
    if not len(resampled):
        nowhere = np.full(resampled.shape[1:], np.nan)
        return nowhere, nowhere
    low, high = np.quantile(resampled, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return np.asarray(low), np.asarray(high)


def bootstrap_counts(n: int, n_resamples: int, rng: Generator) -> IntArray:
    """How often each of `n` examples is drawn (n_resamples, n); every row sums to n."""
    return rng.multinomial(n, np.full(n, 1 / n), size=n_resamples)


def resampled_means(wrong: BoolArray, n_resamples: int, rng: Generator) -> FloatArray:
    """Means over resampled examples: `wrong` (n, W) to (n_resamples, W), in chunks of CHUNK."""
    n = len(wrong)
    # Sums of fewer than 2**24 ones are exact in single precision, and twice as fast.
    ones = wrong.astype(np.float32)
    means = np.empty((n_resamples, wrong.shape[1]))
    step = max(1, CHUNK // n)
    for start in range(0, n_resamples, step):
        counts = bootstrap_counts(n, min(step, n_resamples - start), rng)
        means[start : start + step] = counts.astype(np.float32) @ ones
    return means / n


def _mean(values: FloatArray) -> FloatArray | float:
    return np.asarray(values.mean(axis=0))


def _normalised_resamples(errors: FloatArray, full: int) -> FloatArray:
    """Row 0, the data themselves, must have an error of the full window; others may be dropped."""
    usable = errors[:, full] > 0
    usable[0] = True
    return normalised(errors[usable], full)


def _band(stack: FloatArray, level: float, n_dropped: int = 0) -> Band:
    """Row 0 of `stack` (1 + resamples, ...) is the estimate, the others make the interval."""
    estimate, resampled = stack[0], stack[1:]
    lost = np.isnan(resampled) & ~np.isnan(estimate)
    kept = resampled[~lost.any(axis=tuple(range(1, lost.ndim)))]
    n_dropped += len(resampled) - len(kept)
    return Band(np.asarray(estimate), *percentiles(kept, level), level, n_dropped)


def _check_wrong(wrong: BoolArray, n_windows: int) -> None:
    if wrong.dtype != np.bool_ or wrong.ndim != 2 or wrong.shape[1] != n_windows:
        raise ScoreError(
            f"Expected true or false for each example and each of {counted(n_windows, 'window')}, "
            f"found {wrong.dtype} of shape {wrong.shape}."
        )


def _check_resampling(n: int, n_resamples: int, level: float) -> None:
    if n < 1 or n_resamples < 1 or not 0 < level < 1:
        raise ScoreError(
            "An interval needs an example, a resample and a level between 0 and 1: found "
            f"{counted(n, 'example')}, {counted(n_resamples, 'resample')} and level {level:g}."
        )
