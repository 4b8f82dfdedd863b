"""Correlation coefficients with p-values and intervals over groups such as tasks."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import combinations, permutations
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from memloc.arrays import FloatArray, IntArray
from memloc.errors import counted
from memloc.seeds import generator
from memloc.stats.depth import LEVEL

Coefficient: TypeAlias = Literal["spearman", "pearson"]

COEFFICIENTS: dict[Coefficient, Callable[..., Any]] = {
    "spearman": stats.spearmanr,
    "pearson": stats.pearsonr,
}

FEWEST = 3
"""Smallest number of pairs for which a coefficient is computed."""
FEWEST_GROUPS = 5
"""Smallest number of groups for an interval; with fewer, its own error is too large."""
EXACT_UP_TO = 8
"""Largest number of pairs or groups for which p is computed from all orders.

The usual p would call three pairs in the same order certain.
"""
PERMUTATIONS = 4999
"""Number of random orders for p with more than EXACT_UP_TO groups."""


@dataclass(frozen=True)
class Correlation:
    """A coefficient over `n` pairs, with its two-sided p and its 95 % interval."""

    rho: float = np.nan
    p: float = np.nan
    n: int = 0
    low: float = np.nan
    high: float = np.nan
    why: str = ""
    """Reason why the coefficient is NaN; empty if it is a number."""


def correlation(
    x: FloatArray,
    y: FloatArray,
    coefficient: Coefficient = "spearman",
    groups: NDArray[Any] | None = None,
    subjects: NDArray[Any] | None = None,
) -> Correlation:
    """Return the coefficient of `x` (n,) and `y` (n,); pairs with a missing number are dropped.

    With fewer than three pairs, or where one side is constant, the coefficient is NaN and `why`
    says so. Up to eight groups p is exact; with fewer than five groups there is no interval (NaN).
    Spearman's coefficient with one pair per group has Fisher's interval with the variance of Bonett
    and Wright (2000); other coefficients have a jackknife interval over groups, on Fisher's scale.

    Args:
        x: one number per pair.
        y: the other number of each pair.
        coefficient: Spearman's or Pearson's coefficient.
        groups: group of each pair, such as its task; groups are permuted and left out as a whole.
            By default each pair is a group.
        subjects: subject of each pair within its group, such as a model.
    """
    known = np.isfinite(x) & np.isfinite(y)
    x, y = x[known], y[known]
    n = len(x)
    if why := _no_correlation(x, y):
        return Correlation(n=n, why=why)
    test = COEFFICIENTS[coefficient](x, y)
    group = np.arange(n) if groups is None else _numbered(groups[known])
    n_groups = int(group.max()) + 1
    p = float(test.pvalue)
    low = np.nan
    high = np.nan
    if subjects is not None and n_groups < n:
        p = grouped_p(x, y, group, _numbered(subjects[known]), coefficient)
    elif n <= EXACT_UP_TO:
        p = grouped_p(x, y, group, np.zeros_like(group), coefficient)
    rho = float(test.statistic)
    if coefficient == "spearman" and n_groups == n >= FEWEST_GROUPS:
        low, high = _fisher_ends(rho, n)
    elif n_groups >= FEWEST_GROUPS:
        low, high = _jackknife_ends(rho, _without_each(x, y, group, coefficient), n)
    return Correlation(rho, p, n, low, high)


def correlations(values: FloatArray, coefficient: Coefficient) -> tuple[list[float], float, float]:
    """Return the coefficients of all pairs of columns of `values` (n, m), and an interval of their
    mean.

    Pairs of columns without a coefficient are left out. The jackknife leaves out rows; with fewer
    than five rows, or without any coefficient, the ends of the interval are NaN.
    """
    pairs = []
    for columns in combinations(values.T, 2):
        known = np.isfinite(columns).all(0)
        x, y = (column[known] for column in columns)
        if not _no_correlation(x, y):
            pairs.append((x, y, known))
    coefficients = [float(COEFFICIENTS[coefficient](x, y).statistic) for x, y, _ in pairs]
    if not coefficients or len(values) < FEWEST_GROUPS:
        return coefficients, np.nan, np.nan
    n = len(values)
    rows = np.arange(len(values))
    without = [_without_each(x, y, rows[known], coefficient, n) for x, y, known in pairs]
    return coefficients, *_jackknife_ends(float(np.mean(coefficients)), np.mean(without, axis=0), n)


def _fisher_ends(rho: float, n: int) -> tuple[float, float]:
    error = np.sqrt((1 + rho**2 / 2) / (n - 3))
    return _from_z(rho, float(stats.norm.ppf((1 + LEVEL) / 2) * error), n)


def _jackknife_ends(rho: float, without: FloatArray, n: int) -> tuple[float, float]:
    """Return the interval's ends around `rho` from the coefficients `without` each group (groups,).

    A group is not counted if no coefficient exists without it.
    """
    z = _to_z(without[np.isfinite(without)], n)
    groups = len(z)
    if groups < FEWEST_GROUPS:
        return np.nan, np.nan
    error = np.sqrt((groups - 1) / groups * np.square(z - z.mean()).sum())
    return _from_z(rho, float(stats.t.ppf((1 + LEVEL) / 2, groups - 1) * error), n)


def _to_z(rho: FloatArray, n: int) -> FloatArray:
    """Return Fisher's z; ±1 is taken as half a step of Spearman's coefficient inside of ±1."""
    largest = 1 - 6 / (n**3 - n)
    return np.arctanh(np.clip(rho, -largest, largest))


def _from_z(rho: float, half: float, n: int) -> tuple[float, float]:
    """Return both ends at distance `half` from `rho` on Fisher's scale, with `rho` between them."""
    low, high = np.tanh(_to_z(np.array(rho), n) + np.array([-half, half]))
    return min(float(low), rho), max(float(high), rho)


def _without_each(
    x: FloatArray, y: FloatArray, group: IntArray, coefficient: Coefficient, n_groups: int = 0
) -> FloatArray:
    """Return coefficients (groups,) without the pairs of each group; NaN where there is none."""
    others = np.arange(max(n_groups, group.max() + 1))[:, None] != group
    counts = others.astype(np.float64)
    if coefficient == "spearman":
        x, y = _weighted_ranks(x, counts), _weighted_ranks(y, counts)
    return _weighted_pearson(x, y, counts)


def grouped_p(
    x: FloatArray, y: FloatArray, group: IntArray, subject: IntArray, coefficient: Coefficient
) -> float:
    """Return the two-sided p of the coefficient of `x` and `y` (n,) when groups are permuted.

    The numbers of one group in `y` move as a whole, so what they have in common does not count as
    evidence. p is the share of orders of the groups whose coefficient is at least as far from 0.
    Where an order pairs two groups, a subject that one of them lacks makes no pair.

    Args:
        x: One number per pair.
        y: The other number of each pair.
        group: Group of each pair, such as a task, numbered from 0.
        subject: Subject of each pair within its group, such as a model (or a model and a layer),
            numbered from 0.
        coefficient: Spearman's or Pearson's coefficient.
    """
    if coefficient == "spearman":
        x, y = stats.rankdata(x), stats.rankdata(y)
    shape = group.max() + 1, subject.max() + 1
    present, ones, others = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    present[group, subject] = 1
    ones[group, subject], others[group, subject] = x - x.mean(), y - y.mean()
    sides = [(present, present), (ones, present), (present, others)]
    sides += [(ones**2, present), (present, others**2), (ones, others)]
    orders = _orders(len(present))
    # Contribution of each pair of groups to the sums; an order of the groups adds up its pairs.
    sums = [(a @ b.T)[np.arange(len(present)), orders].sum(1) for a, b in sides]
    sizes = np.abs(_pearson_of_sums(*sums))
    # The first order is the one found; those without a coefficient count against it.
    return float(np.mean(~(sizes < sizes[0] * (1 - 1e-9))))


def _pearson_of_sums(*sums: FloatArray) -> FloatArray:
    """Return coefficients from sums of 1, x, y, x², y² and xy; NaN where a side is constant."""
    n, x, y, xx, yy, xy = sums
    under = (n * xx - x**2) * (n * yy - y**2)
    over = n * xy - x * y
    enough = under > 1e-12 * (n * n * xx * yy)
    return np.asarray(
        np.divide(over, np.sqrt(np.abs(under)), out=np.full(len(n), np.nan), where=enough)
    )


@cache
def _orders(n: int) -> IntArray:
    """Return orders of n groups, the given order first: all n! if these are few, else random
    ones.
    """
    if n <= EXACT_UP_TO:
        return np.array(list(permutations(range(n))))
    every = np.tile(np.arange(n), (1 + PERMUTATIONS, 1))
    generator(0, "permutation", "claims").permuted(every[1:], axis=1, out=every[1:])
    return every


def _weighted_ranks(values: FloatArray, counts: FloatArray) -> FloatArray:
    """Return ranks (draws, n) of `values` (n,) in which value i occurs `counts[:, i]` times."""
    _, place = np.unique(values, return_inverse=True)
    at_place = counts @ (place[:, None] == np.arange(place.max() + 1))
    return np.asarray((at_place.cumsum(1) - at_place / 2)[:, place])


def _weighted_pearson(x: FloatArray, y: FloatArray, counts: FloatArray) -> FloatArray:
    """Return coefficients (draws,) of `x` and `y`, (n,) or (draws, n), with weights `counts`.

    NaN where a side is constant or no pair was drawn.
    """
    x, y = (side - side.mean(-1, keepdims=True) for side in (x, y))
    return _pearson_of_sums(*((counts * part).sum(1) for part in (1, x, y, x * x, y * y, x * y)))


def _numbered(names: NDArray[Any]) -> IntArray:
    return np.unique(names, return_inverse=True)[1]


def _no_correlation(x: FloatArray, y: FloatArray) -> str:
    if len(x) < FEWEST:
        return f"only {counted(len(x), 'pair')}, three are needed"
    for name, side in (("x", x), ("y", y)):
        # Not `== 0`: equal numbers that were computed in different orders differ a little.
        if np.ptp(side) <= 1e-12 * np.abs(side).max():
            return f"all values of {name} are equal"
    return ""
