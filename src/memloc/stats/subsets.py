"""Shares the value of all subsets of layers out among the layers: Shapley values.

Values are given for all 2^U subsets of U units (layers, or groups of neighbouring ones): column m
is of the units whose bits are set in m, so column 0 is of none and the last one of all.
"""

import math
from collections.abc import Sequence
from itertools import accumulate
from operator import or_

import numpy as np
from numpy.random import Generator

from memloc.arrays import FloatArray, IntArray
from memloc.errors import ScoreError


def shapley_values(values: FloatArray) -> FloatArray:
    """Return Shapley values (..., U) of `values` (..., 2^U); their sum is last minus first value.

    φ_i = Σ_S |S|! (U - |S| - 1)! / U! · (v(S ∪ i) - v(S)) over all S without i.
    """
    n_units = _n_units(values)
    size = subset_sizes(n_units)
    weight = np.array([1 / (n_units * math.comb(n_units - 1, s)) for s in range(n_units)])
    found = np.empty((*values.shape[:-1], n_units))
    every = np.arange(2**n_units)
    for unit in range(n_units):
        without = every[every >> unit & 1 == 0]
        gain = values[..., without | 1 << unit] - values[..., without]
        found[..., unit] = gain @ weight[size[without]]
    return found


def interactions(values: FloatArray) -> FloatArray:
    """Return Shapley interaction indices (U, U) of `values` (2^U,): symmetric, diagonal 0.

    I_ij = Σ_S |S|! (U - |S| - 2)! / (U - 1)! · (v(S ∪ ij) - v(S ∪ i) - v(S ∪ j) + v(S)) over all S
    without both. Below 0 either of two units does alone; above 0 both are needed.
    """
    n_units = _n_units(values)
    size = subset_sizes(n_units)
    found = np.zeros((n_units, n_units))
    if n_units < 2:
        return found
    steps = range(n_units - 1)
    weight = np.array([1 / ((n_units - 1) * math.comb(n_units - 2, s)) for s in steps])
    for i in range(n_units):
        for j in range(i):
            both = 1 << i | 1 << j
            rest = np.flatnonzero(np.arange(len(values)) & both == 0)
            change = values[rest | both] - values[rest | 1 << i] - values[rest | 1 << j]
            found[i, j] = found[j, i] = (change + values[rest]) @ weight[size[rest]]
    return found


def smallest_sets(values: FloatArray, share: float) -> IntArray:
    """Return the smallest subsets whose value is `share` of the way from none to all.

    As numbers whose bits are the units; none where even all units change nothing.
    """
    start, end = values[0], values[-1]
    if start == end:
        return np.zeros(0, dtype=np.int64)
    reached = np.flatnonzero((values - start) / (end - start) >= share)
    sizes = subset_sizes(_n_units(values))[reached]
    return np.asarray(reached[sizes == sizes.min()], dtype=np.int64)


LEAST_KEPT = 0.6
"""Share of the clean labels that must survive on average over all mixtures for an answer to be
used: the lowest round number above which all of 44 answers about plants were right
(`studies/tables/bar.csv`)."""


def control(lost: FloatArray, sizes: IntArray | None) -> dict[str, float]:
    """Return how many of the labels that should survive do so in mixtures of two models.

    `lost` (examples, mixtures) says whether each mixture loses the label of each example, the
    unchanged model first; labels that this one gets wrong are left out. `sizes` are the numbers of
    exchanged units of the mixtures. `kept` is the mean over all mixtures, where every size has the
    same weight; `worst` is of the mixture that loses most. Without `sizes`, each example has
    mixtures of its own, of every size equally many, and `worst` is not known.
    """
    kept = 1 - lost[lost[:, 0] == 0]
    if not len(kept):
        return {"kept": math.nan, "worst": math.nan}
    each = kept.mean(0)
    if sizes is None:
        return {"kept": float(each.mean()), "worst": math.nan}
    by_size = [each[sizes == size].mean() for size in np.unique(sizes)]
    return {"kept": float(np.mean(by_size)), "worst": float(each.min())}


def beginnings(met: Sequence[int], subsets: Sequence[int]) -> list[set[int]]:
    """Return the beginnings of subsets: their units among those met up to each layer.

    `met` says for each layer which units it has a part of, as bits.
    """
    return [{subset & so_far for subset in subsets} for so_far in accumulate(met, or_)]


def count_layers(met: Sequence[int], subsets: Sequence[int]) -> int:
    """Count the layers that a text goes through when subsets share their beginnings."""
    return sum(map(len, beginnings(met, subsets)))


def needed_pairs(n_examples: float, standard_error: float) -> int:
    """Return how many orders, each with its reverse, an example needs for this error of a mean.

    Where exchanging more never brings a label back, an order loses a label at one unit. A unit's
    gain is then 0 or 1 and has a variance of at most 1/4, its mean over an order and the reverse
    about half of that, and its mean over all examples a part of that again.
    """
    return max(2, math.ceil(1 / (8 * max(1, n_examples) * standard_error**2)))


def rotated_orders(n_units: int, pairs: int, rng: Generator, nest: int = 1) -> IntArray:
    """Return orders of the units (draws, orders, U): at least `pairs`, and their reverses.

    A draw is a random order with rotations of it and the reverses of all: each unit comes early,
    in the middle and late, so errors cancel, and the orders have many subsets in common. There are
    at least two draws, which are independent, so that their spread tells the error. Of nested
    units, `nest` neighbours (the parts of a layer) always follow each other, so that their values
    sum to that of what they are parts of.
    """
    n_groups = n_units // nest
    n_draws = max(2, math.ceil(pairs / n_groups))
    each = math.ceil(pairs / n_draws)
    starts = np.arange(each) * n_groups // each
    turns = (np.arange(n_groups) + starts[:, np.newaxis]) % n_groups
    draws = []
    for _ in range(n_draws):
        groups = rng.permutation(n_groups)[turns]
        parts = rng.permuted(np.tile(np.arange(nest), (each, n_groups, 1)), axis=2)
        orders = (groups[..., np.newaxis] * nest + parts).reshape(each, n_units)
        draws.append(np.concatenate([orders, orders[:, ::-1]]))
    return np.array(draws)


def passed_subsets(orders: IntArray) -> list[list[int]]:
    """Return the subsets that each order goes through, from none to all units; bits are units."""
    bits = np.array([1 << unit for unit in range(orders.shape[-1])], dtype=object)
    return [[0, *subsets] for subsets in bits[orders].cumsum(axis=1).tolist()]


def sampled_values(values: FloatArray, orders: IntArray) -> tuple[FloatArray, FloatArray]:
    """Return Shapley values (..., U) from some orders, with their standard errors.

    `values` (..., draws, orders, U + 1) are those of the subsets that each order goes through;
    `orders` (..., draws, orders, U) are the same for all, or broadcast to them. Draws are
    independent, the orders of a draw are not.
    """
    gains = np.empty((*values.shape[:-1], orders.shape[-1]))
    steps = np.diff(values, axis=-1)
    np.put_along_axis(gains, np.broadcast_to(orders, gains.shape), steps, axis=-1)
    draws = gains.mean(-2)
    error = draws.std(axis=-2, ddof=1) / math.sqrt(draws.shape[-2])
    return draws.mean(-2), error


def subset_sizes(n_units: int) -> IntArray:
    """Return how many units each of the 2^U subsets has."""
    return np.asarray(np.bitwise_count(np.arange(2**n_units)), dtype=np.int64)


def units_of(subset: int) -> list[int]:
    """Return the units of a subset, from 0."""
    return [unit for unit in range(int(subset).bit_length()) if subset >> unit & 1]


def _n_units(values: FloatArray) -> int:
    n_units = int(values.shape[-1]).bit_length() - 1
    if values.shape[-1] != 2**n_units or n_units < 1:
        raise ScoreError(
            f"Values of {values.shape[-1]} subsets were given; all subsets of some units are "
            "needed, such as 4,096 of twelve."
        )
    return n_units
