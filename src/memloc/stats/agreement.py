"""Agreement: of layer weights with planted layers, and of two sets of numbers with each other."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache
from itertools import combinations, permutations
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy import stats

from memloc.errors import ScoreError, counted, lookup
from memloc.records import BoolArray, FloatArray
from memloc.seeds import generator
from memloc.stats.depth import centres_of_gravity
from memloc.stats.intervals import RESAMPLES, Interval, bootstrap_counts, percentiles

Kind: TypeAlias = Literal["spearman", "pearson"]

COEFFICIENTS: dict[str, Callable[..., Any]] = {
    "spearman": stats.spearmanr,
    "pearson": stats.pearsonr,
}

FEWEST = 3
"""Pairs for a coefficient."""
FEWEST_GROUPS = 5
"""For an interval: resamples of fewer groups are too often all alike."""
EXACT_UP_TO = 8
"""Pairs or groups for which p counts all orders: the usual one is sure of three in a row."""
PERMUTATIONS = 4999
"""Random orders for p where there are more groups than that."""


@dataclass(frozen=True)
class Correlation:
    """A coefficient with its two-sided p over `n` pairs."""

    rho: float
    p: float
    n: int
    why: str = ""
    """Why the coefficient is NaN, where it is."""


def accuracy_at_k(weights: FloatArray, planted: Collection[int], k: int) -> float:
    """Share of the `k` layers with the largest `weights` (L,) that are planted (from 0).

    Where fewer than `k` layers are planted, it is the share of the planted layers that are among
    the `k`, so that 1 can be reached: hits / min(k, planted). Among equal weights (to 12 digits)
    it is the expected share over all orders, so that uniform weights give chance.
    """
    is_planted = _planted_mask(weights, planted)
    if not 1 <= k <= len(weights):
        raise ScoreError(f"With {counted(len(weights), 'layer')}, k cannot be {k}.")
    rounded = _rounded(weights)
    least = np.sort(rounded)[-k]
    above, tied = rounded > least, rounded == least
    sure = np.count_nonzero(above & is_planted)
    share = is_planted[tied].mean()
    hits = sure + (k - np.count_nonzero(above)) * share
    return float(hits / min(k, np.count_nonzero(is_planted)))


def chance_at_k(depth: int, n_planted: int, k: int) -> float:
    """Expected accuracy@k of a random order of the layers: max(k, n_planted) / depth."""
    return max(k, n_planted) / depth


def reciprocal_rank(weights: FloatArray, planted: Collection[int]) -> float:
    """1 / rank of the best planted layer (from 0), where the largest of `weights` (L,) has rank 1.

    Among equal weights it is the expected rank over all orders: of t equal layers of which m are
    planted, the first planted one is on average the (t + 1)/(m + 1)-th.
    """
    is_planted = _planted_mask(weights, planted)
    rounded = _rounded(weights)
    best = rounded[is_planted].max()
    tied = rounded == best
    place = (np.count_nonzero(tied) + 1) / (np.count_nonzero(tied & is_planted) + 1)
    return float(1 / (np.count_nonzero(rounded > best) + place))


def auroc(weights: FloatArray, planted: Collection[int]) -> float:
    """Probability that a planted layer (from 0) outweighs another one; equal weights count half."""
    is_planted = _planted_mask(weights, planted)
    if is_planted.all():
        raise ScoreError("All layers are planted, so there is none to tell them from.")
    rounded = _rounded(weights)
    return share_above(rounded[is_planted], rounded[~is_planted])


def share_above(ones: FloatArray, others: FloatArray) -> float:
    """Probability that one of `ones` is above one of `others`; equal ones count half."""
    return float(stats.mannwhitneyu(ones, others).statistic / (len(ones) * len(others)))


def planted_mass(weights: FloatArray, planted: Collection[int]) -> float:
    """Share of the positive `weights` (L,) that is on planted layers (from 0); NaN without any."""
    is_planted, positive = _planted_mask(weights, planted), np.maximum(0, weights)
    total = positive.sum()
    return float(positive[is_planted].sum() / total) if total > 0 else np.nan


def centre_error(weights: FloatArray, planted: Collection[int]) -> float:
    """Layers between the centre of the positive `weights` (L,) and that of the planted layers."""
    is_planted, positive = _planted_mask(weights, planted), np.maximum(0, weights)
    found, true = centres_of_gravity(np.stack([positive, is_planted.astype(np.float64)]))
    return float(abs(found - true))


def correlation(x: FloatArray, y: FloatArray, kind: Kind = "spearman") -> Correlation:
    """Coefficient of the pairs of `x` (n,) and `y` (n,); pairs with a missing number are dropped.

    With fewer than three pairs, or where one side is constant, it is NaN and `why` says so. Up to
    eight pairs p is exact: the share of all orders of `y` with as large a coefficient.
    """
    pairs = _pairs(x, y)
    n = len(pairs)
    if why := _no_correlation(pairs):
        return Correlation(np.nan, np.nan, n, why)
    found = lookup("correlation", kind, COEFFICIENTS)(pairs[:, 0], pairs[:, 1])
    p = float(found.pvalue)
    if n <= EXACT_UP_TO:  # each pair is a group of its own
        x, y = pairs.T
        p = grouped_p(x, y, np.arange(n), np.zeros(n), rng=generator(0), kind=kind)
    return Correlation(float(found.statistic), p, n)


def correlation_interval(
    x: FloatArray,
    y: FloatArray,
    *,
    rng: Generator,
    groups: NDArray[Any] | None = None,
    kind: Kind = "spearman",
    n_resamples: int = RESAMPLES,
) -> Interval:
    """The coefficient with its bootstrap interval over pairs, or over `groups` (n,) of them.

    Resamples with a constant side are dropped; all is NaN where the coefficient itself is, and the
    interval where there are fewer than five groups to draw.
    """
    there = np.isfinite(x) & np.isfinite(y)
    x, y = x[there], y[there]
    estimate = correlation(x, y, kind).rho
    nowhere = Interval(estimate, np.nan, np.nan)
    if np.isnan(estimate):
        return nowhere
    _, group = np.unique(
        np.arange(len(x)) if groups is None else groups[there], return_inverse=True
    )
    n_groups = int(group.max()) + 1
    if n_groups < FEWEST_GROUPS:
        return nowhere
    counts = bootstrap_counts(n_groups, n_resamples, rng)[:, group].astype(np.float64)
    return _percentiles(estimate, _resampled(x, y, counts, kind))


def mean_correlation(
    values: FloatArray,
    *,
    rng: Generator,
    kind: Kind = "spearman",
    n_resamples: int = RESAMPLES,
) -> Interval:
    """Mean coefficient over all pairs of columns of `values` (n, m), with its interval over rows.

    Pairs of columns without a coefficient are left out; all is NaN where there is no other, and
    the interval where there are fewer than five rows to draw.
    """
    counts = bootstrap_counts(len(values), n_resamples, rng).astype(np.float64)
    estimates, draws = [], []
    for one, other in combinations(values.T, 2):
        found = correlation(one, other, kind)
        if not found.why:
            there = np.isfinite(one) & np.isfinite(other)
            estimates.append(found.rho)
            draws.append(_resampled(one[there], other[there], counts[:, there], kind))
    if not estimates or len(values) < FEWEST_GROUPS:
        return Interval(float(np.mean(estimates or [np.nan])), np.nan, np.nan)
    return _percentiles(float(np.mean(estimates)), np.mean(draws, axis=0))


def _resampled(x: FloatArray, y: FloatArray, counts: FloatArray, kind: Kind) -> FloatArray:
    """Coefficients (draws,) where pair i is there `counts[:, i]` times."""
    if kind == "spearman":
        x, y = _weighted_ranks(x, counts), _weighted_ranks(y, counts)
    return _weighted_pearson(x, y, counts)


def _percentiles(estimate: float, found: FloatArray) -> Interval:
    """The interval of the resamples that have a coefficient."""
    kept = found[np.isfinite(found)]
    low, high = map(float, percentiles(kept))
    return Interval(estimate, low, high, n_dropped=len(found) - len(kept))


def grouped_p(
    x: FloatArray,
    y: FloatArray,
    groups: NDArray[Any],
    members: NDArray[Any],
    *,
    rng: Generator,
    kind: Kind = "spearman",
) -> float:
    """Two-sided p of the coefficient of `x` (n,) and `y` (n,) when whole groups are permuted.

    A group's numbers in `y` stay together, so what its members have in common does not count as
    evidence: p is the share of the orders of groups that put the coefficient as far from 0. Pair i
    is that of `members[i]` in `groups[i]`, e.g. a model (or model and layer) in a task; where a
    member lacks in the group it is moved to, there is no pair. Up to eight groups p is exact.
    """
    if kind == "spearman":
        x, y = stats.rankdata(x), stats.rankdata(y)
    group, member = (np.unique(each, return_inverse=True)[1] for each in (groups, members))
    shape = group.max() + 1, member.max() + 1
    there, ones, others = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    there[group, member] = 1
    ones[group, member], others[group, member] = x - x.mean(), y - y.mean()
    sides = [(there, there), (ones, there), (there, others)]
    sides += [(ones**2, there), (there, others**2), (ones, others)]
    orders = _some_orders(len(there), rng)
    # What a pairing of two groups adds to each sum; an order of the groups adds up its pairings.
    sums = [(a @ b.T)[np.arange(len(there)), orders].sum(1) for a, b in sides]
    found = np.abs(_pearson_of_sums(*sums))
    # The first order is the one found; those without a coefficient count against it.
    return float(np.mean(~(found < found[0] * (1 - 1e-9))))


def _pearson_of_sums(*sums: FloatArray) -> FloatArray:
    """Coefficients from the sums of 1, x, y, x², y² and xy; NaN where a side is constant."""
    n, x, y, xx, yy, xy = sums
    under = (n * xx - x**2) * (n * yy - y**2)
    over = n * xy - x * y
    enough = under > 1e-12 * (n * n * xx * yy)
    return np.asarray(
        np.divide(over, np.sqrt(np.abs(under)), out=np.full(len(n), np.nan), where=enough)
    )


def _some_orders(n: int, rng: Generator) -> NDArray[np.int64]:
    """All orders of few things, or some random ones; the given one first."""
    if n <= EXACT_UP_TO:
        return _orders(n)
    given = np.arange(n)
    return np.vstack([given, rng.permuted(np.tile(given, (PERMUTATIONS, 1)), axis=1)])


@cache
def _orders(n: int) -> NDArray[np.int64]:
    """All orders (n!, n) of n things, the given one first."""
    return np.array(list(permutations(range(n))))


def _weighted_ranks(values: FloatArray, counts: FloatArray) -> FloatArray:
    """Ranks (draws, n) of `values` (n,) where value i is there `counts[:, i]` times."""
    _, place = np.unique(values, return_inverse=True)
    at_place = counts @ (place[:, None] == np.arange(place.max() + 1))
    return np.asarray((at_place.cumsum(1) - at_place / 2)[:, place])


def _weighted_pearson(x: FloatArray, y: FloatArray, counts: FloatArray) -> FloatArray:
    """Coefficients (draws,) of `x` and `y`, (n,) or (draws, n).

    NaN where a side is constant, or where nothing was drawn that has both.
    """
    total = np.maximum(1, counts.sum(1, keepdims=True))
    x = x - (counts * x).sum(1, keepdims=True) / total
    y = y - (counts * y).sum(1, keepdims=True) / total
    under = np.sqrt((counts * x**2).sum(1) * (counts * y**2).sum(1))
    over = (counts * x * y).sum(1)
    # What is left of a constant side is rounding.
    enough = under > 1e-12 * np.abs(x).max() * np.abs(y).max() * total[:, 0]
    return np.asarray(np.divide(over, under, out=np.full(len(over), np.nan), where=enough))


def min_max(weights: FloatArray) -> FloatArray:
    """`weights` (L,) moved and scaled to reach from 0 to 1."""
    low, high = float(weights.min()), float(weights.max())
    if not high > low:
        raise ScoreError(f"Weights cannot be scaled to reach from 0 to 1: all are {low:g}.")
    return (weights - low) / (high - low)


def distance_from_uniform(weights: FloatArray) -> float:
    """Total variation: half the sum over layers of |w_i / sum of w - 1 / L|, `weights` (L,)."""
    total = weights.sum()
    if not (total > 0 and (weights >= 0).all()):
        raise ScoreError(
            f"Weights are no distribution: the least is {weights.min():g}, their sum {total:g}."
        )
    return float(np.abs(weights / total - 1 / len(weights)).sum() / 2)


def _planted_mask(weights: FloatArray, planted: Collection[int]) -> BoolArray:
    if not np.isfinite(weights).all():
        raise ScoreError("Layers cannot be ranked: some weight is not a number.")
    depth = len(weights)
    if not planted or not set(planted) <= set(range(depth)):
        raise ScoreError(
            f"Planted layers must be some of 0 to {depth - 1}, found {sorted(planted)}."
        )
    return np.isin(np.arange(depth), list(planted))


def _rounded(weights: FloatArray) -> FloatArray:
    """Equal weights that were computed in different orders differ in their last digits."""
    largest = float(np.abs(weights).max())
    return np.round(weights / largest, 12) if largest > 0 else weights


def _pairs(x: FloatArray, y: FloatArray) -> FloatArray:
    """The pairs (n, 2) in which both numbers are finite."""
    if x.ndim != 1 or x.shape != y.shape:
        raise ScoreError(f"Pairs need two lists of one length, found {x.shape} and {y.shape}.")
    pairs = np.column_stack([x, y]).astype(np.float64)
    return pairs[np.isfinite(pairs).all(axis=1)]


def _no_correlation(pairs: FloatArray) -> str:
    if len(pairs) < FEWEST:
        return f"only {counted(len(pairs), 'pair')}, three are needed"
    # Not `== 0`, for the reason that `_rounded` gives.
    constant = np.ptp(pairs, axis=0) <= 1e-12 * np.abs(pairs).max(axis=0)
    return f"all values of {'xy'[int(constant.argmax())]} are equal" if constant.any() else ""
