"""Tests of shares (examples, layers): how many layers hold them, and which layers stand out.

A row of shares sums to 1 if exchanging all layers loses the example's label and to 0 if not.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memloc.arrays import FloatArray, IntArray
from memloc.seeds import generator
from memloc.stats.intervals import Interval

ALPHA = 0.05
"""Level of each test."""
MARGIN = 0.5
"""Share of the layers; memory is concentrated if the effective number of layers is below it."""
RESAMPLES = 9999
TAIL = 100
"""Number of the largest resampled values to which the tail of a distribution is fitted."""
AT_ONCE = 1_000_000
"""Count of numbers drawn at once for resamples, 8 MB of them."""
NEAR = 1e-9
"""Difference below which numbers are ties."""


@dataclass(frozen=True)
class EffectiveLayers:
    """Effective number of layers of a memory, and tests of which side of the margin it is on."""

    number: Interval
    """Effective number of layers, with the 90 % interval that the two tests at 5 % belong to."""
    p_fewer: float
    """P-value for fewer layers than the margin."""
    p_more: float
    """P-value for more layers than the margin."""


def effective_layers(shares: FloatArray) -> EffectiveLayers:
    """Return one over the overlap of the examples' shares, with a jackknife interval and both
    tests.

    Examples are left out in turn, and Student's t gives interval and p. The error grows with the
    overlap, so a small overlap would look surer than it is: below the margin, the error is taken
    as large as it would be at the margin.
    """
    from scipy.stats import t

    n, n_layers = shares.shape
    value = overlap(shares)
    at_margin = 1 / (MARGIN * n_layers)
    without = _overlaps_without(shares)
    error = math.sqrt((n - 1) / n * float(((without - without.mean()) ** 2).sum()))
    above = value - at_margin
    if abs(above) < NEAR:  # a tie, so neither side is sure however small the error is
        above = 0.0
        error = max(error, NEAR)
    error *= max(1.0, at_margin / max(value, 1 / n_layers))
    score = above / error if error > 0 else math.copysign(math.inf, above)
    half = float(t.ppf(1 - ALPHA, n - 1)) * error
    number, low, high = (_effective(c, n_layers) for c in (value, value + half, value - half))
    interval = Interval(number, low, high, level=1 - 2 * ALPHA)
    return EffectiveLayers(interval, float(t.sf(score, n - 1)), float(t.cdf(score, n - 1)))


def overlap(shares: FloatArray) -> float:
    """Return the overlap of different examples: how much they share the same layers; 1/L if even.

    Σ φ_e·φ_f / Σ u_e u_f over all e ≠ f, where φ_e is the row of an example and u_e its sum. Pairs
    of different examples are used because the mean profile of few examples always looks uneven.
    """
    totals = shares.sum(1)
    same = (shares.sum(0) ** 2).sum() - (shares**2).sum()
    every = totals.sum() ** 2 - (totals**2).sum()
    return float(same / every) if every > 0 else math.nan


def _overlaps_without(shares: FloatArray) -> FloatArray:
    """Return the overlaps (n,) that remain when each example is left out in turn."""
    totals, squares = shares.sum(1), (shares**2).sum(1)
    same = ((shares.sum(0) - shares) ** 2).sum(1) - (squares.sum() - squares)
    every = (totals.sum() - totals) ** 2 - ((totals**2).sum() - totals**2)
    overlaps = np.divide(same, every, out=np.full(len(shares), np.nan), where=every > 0)
    return np.asarray(overlaps)


def _effective(overlap: float, n_layers: int) -> float:
    return float(np.clip(1 / overlap, 1, n_layers)) if overlap > 0 else float(n_layers)


@dataclass(frozen=True)
class UnevenLayers:
    """Test of whether shares are even, and the layers, counted from 1, that differ from an even
    share.
    """

    above: tuple[int, ...]
    """Layers above an even share; empty if `p` is not significant."""
    below: tuple[int, ...]
    p: float
    """P-value that not all layers have an even share."""


def uneven_layers(shares: FloatArray) -> UnevenLayers:
    """Test whether shares (n, L) are even on average, and name the layers that differ.

    Two statistics are compared with their values in resampled rows, centred so that all layers
    have an even share:

    - The overlap beyond that of even shares (`_overlap_score`) answers for all layers at once.
    - T, a layer's mean over its standard error, names layers. It is compared with the largest T of
      all layers (max-T), so a wrong layer, above or below, is named in at most 5 % of runs.

    Skewed shares keep the level, which tests by random signs do not.
    """
    values = shares - shares.mean(axis=1, keepdims=True)
    n = len(values)
    score = _overlap_score(np.ones((1, n)), values)
    layers = _studentised(values.mean(0), values.var(0), n)
    null = np.concatenate(list(_resampled(values - values.mean(0))))
    p = float(tail_p(null[:, 0], score)[0])
    sides = tail_p(null[:, 1], layers), tail_p(null[:, 2], -layers)
    above, below = (
        tuple(int(layer) + 1 for layer in np.flatnonzero((side <= ALPHA / 2) & (p <= ALPHA)))
        for side in sides
    )
    return UnevenLayers(above, below, p)


def _resampled(centred: FloatArray) -> Iterator[FloatArray]:
    """Yield statistics of resampled rows, some draws at a time.

    They are the overlap score, the largest T of a layer, and minus the smallest T.
    """
    rng = generator(0, "answer", "layers")
    n, n_layers = centred.shape
    step = max(1, AT_ONCE // max(n, n_layers**2))
    for first in range(0, RESAMPLES, step):
        counts = rng.multinomial(n, np.full(n, 1 / n), size=min(step, RESAMPLES - first))
        means = counts @ centred / n
        layers = _studentised(means, counts @ centred**2 / n - means**2, n)
        score = _overlap_score(counts, centred)
        yield np.stack([score, layers.max(1), -layers.min(1)], axis=1)


def _overlap_score(counts: FloatArray | IntArray, values: FloatArray) -> FloatArray:
    """Return Σ x_e·x_f / √Σ (x_e·x_f)² over all pairs of drawn rows e ≠ f of `values` (n, L).

    `counts` (R, n) says how often each row is drawn. A row's own square says nothing about what it
    has in common with others, so it is left out, as in `overlap`.
    """
    squares = (values**2).sum(1)
    products = (values[:, :, np.newaxis] * values[:, np.newaxis, :]).reshape(len(values), -1)
    same = ((counts @ values) ** 2).sum(1) - counts @ squares
    spread = ((counts @ products) ** 2).sum(1) - counts @ squares**2
    return np.asarray(same / np.sqrt(np.maximum(spread, NEAR)))


def _studentised(means: FloatArray, variances: FloatArray, n: int) -> FloatArray:
    """Return means (..., L) over their standard errors.

    Half of each variance is the mean variance of all layers: a layer in which no example happens
    to differ would otherwise look certain.
    """
    pooled = variances.mean(-1, keepdims=True)
    error = np.sqrt(np.maximum(0, variances + pooled) / 2 / max(1, n - 1))
    return np.asarray(means / np.maximum(error, NEAR))


def tail_p(null: FloatArray, observed: FloatArray) -> FloatArray:
    """Return p-values of `observed` (L,) among resampled values `null` (R,); ties count against.

    Beyond nearly all resamples, p falls as an exponential tail fitted to the largest ones, so that
    p can be as small as a correction over many runs needs. Tails of studentised means are lighter
    than exponential ones, so this p is rather too large.
    """
    ordered = np.sort(null)
    exceeding = len(ordered) - np.searchsorted(ordered, observed - NEAR, side="left")
    counted = (1 + exceeding) / (1 + len(ordered))
    tail = ordered[-min(TAIL, len(ordered) // 10 + 1) :]
    excess = max(float((tail - tail[0]).mean()), NEAR)
    share = len(tail) / (1 + len(ordered))
    beyond = share * np.exp(-np.maximum(0, observed - tail[0]) / excess)
    return np.asarray(np.where(exceeding >= TAIL // 10, counted, np.minimum(counted, beyond)))
