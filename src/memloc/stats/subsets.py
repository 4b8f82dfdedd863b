"""Divides the value of all subsets of layers among the layers: Shapley values.

Values are given for all 2^U subsets of U units (such as layers): column m is the value of the
subset whose units are the set bits of m, so column 0 is of no unit and the last one of all.
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
    shares = np.empty((*values.shape[:-1], n_units))
    every = np.arange(2**n_units)
    for unit in range(n_units):
        without = every[every >> unit & 1 == 0]
        gain = values[..., without | 1 << unit] - values[..., without]
        shares[..., unit] = gain @ weight[size[without]]
    return shares


def interactions(values: FloatArray) -> FloatArray:
    """Return Shapley interaction indices (U, U) of `values` (2^U,): symmetric, diagonal 0.

    I_ij = Σ_S |S|! (U - |S| - 2)! / (U - 1)! · (v(S ∪ ij) - v(S ∪ i) - v(S ∪ j) + v(S)) over all S
    without both. Below 0 either of two units does alone; above 0 both are needed.
    """
    n_units = _n_units(values)
    size = subset_sizes(n_units)
    indices = np.zeros((n_units, n_units))
    if n_units < 2:
        return indices
    steps = range(n_units - 1)
    weight = np.array([1 / ((n_units - 1) * math.comb(n_units - 2, s)) for s in steps])
    for i in range(n_units):
        for j in range(i):
            both = 1 << i | 1 << j
            rest = np.flatnonzero(np.arange(len(values)) & both == 0)
            change = values[rest | both] - values[rest | 1 << i] - values[rest | 1 << j]
            indices[i, j] = indices[j, i] = (change + values[rest]) @ weight[size[rest]]
    return indices


def smallest_sets(values: FloatArray, share: float) -> IntArray:
    """Return the smallest subsets that reach `share` of the difference between no and all units.

    A subset is a number whose bits are the units. The result is empty if even all units change
    nothing.
    """
    start, end = values[0], values[-1]
    if start == end:
        return np.zeros(0, dtype=np.int64)
    reached = np.flatnonzero((values - start) / (end - start) >= share)
    sizes = subset_sizes(_n_units(values))[reached]
    return np.asarray(reached[sizes == sizes.min()], dtype=np.int64)


LEAST_KEPT = 0.6
"""Smallest mean share of clean labels surviving in mixtures for an answer to be used.

It is the lowest round number above which all of 44 answers about plants were right
(`studies/tables/bar.csv`).
"""


def control(lost: FloatArray, sizes: IntArray | None) -> dict[str, float]:
    """Return how many of the labels that should survive do so in mixtures of two models.

    `kept` is the mean over all mixtures, in which every size has the same weight; `worst` is the
    mixture that loses most. Without `sizes`, each example has its own mixtures, equally many of
    every size, and `worst` is not known.

    Args:
        lost: (examples, mixtures) Whether a mixture loses the label of an example. The first
            mixture is the unchanged model; labels that it gets wrong are left out.
        sizes: Number of exchanged units in each mixture.
    """
    kept = 1 - lost[lost[:, 0] == 0]
    if not len(kept):
        return {"kept": math.nan, "worst": math.nan}
    survival = kept.mean(0)
    if sizes is None:
        return {"kept": float(survival.mean()), "worst": math.nan}
    by_size = [survival[sizes == size].mean() for size in np.unique(sizes)]
    return {"kept": float(np.mean(by_size)), "worst": float(survival.min())}


def beginnings(met: Sequence[int], subsets: Sequence[int]) -> list[set[int]]:
    """Return the beginnings of subsets: for each layer, their units that a text has met by then.

    `met` has the units that each layer has a part of, as bits.
    """
    return [{subset & so_far for subset in subsets} for so_far in accumulate(met, or_)]


def count_layers(met: Sequence[int], subsets: Sequence[int]) -> int:
    """Count the layers to compute when subsets share the results of equal beginnings."""
    return sum(map(len, beginnings(met, subsets)))


def needed_pairs(n_examples: float, standard_error: float) -> int:
    """Return how many orders (each with its reverse) an example needs for this error of the mean.

    Where exchanging more never brings a label back, an order loses a label at one unit. A unit's
    gain is then 0 or 1 and has a variance of at most 1/4; its mean over an order and the reverse
    has about half of that, divided by the number of examples for the mean over all of them.
    """
    return max(2, math.ceil(1 / (8 * max(1, n_examples) * standard_error**2)))


def rotated_orders(n_units: int, pairs: int, rng: Generator, nest: int = 1) -> IntArray:
    """Return orders of the units (draws, orders, U): at least `pairs` orders, and their reverses.

    A draw is a random order with rotations of it, and the reverses of all: each unit comes early,
    in the middle and late, so errors cancel, and the orders have many subsets in common. There are
    at least two draws, which are independent, so their spread gives the error.

    Args:
        n_units: Number of units.
        pairs: Smallest number of orders without their reverses.
        rng: Generator of the random orders.
        nest: Number of neighbouring units, such as the parts of a layer, that always follow each
            other, so that their values sum to the value of the whole layer.
    """
    n_groups = n_units // nest
    n_draws = max(2, math.ceil(pairs / n_groups))
    size = math.ceil(pairs / n_draws)
    starts = np.arange(size) * n_groups // size
    turns = (np.arange(n_groups) + starts[:, np.newaxis]) % n_groups
    draws = []
    for _ in range(n_draws):
        groups = rng.permutation(n_groups)[turns]
        parts = rng.permuted(np.tile(np.arange(nest), (size, n_groups, 1)), axis=2)
        orders = (groups[..., np.newaxis] * nest + parts).reshape(size, n_units)
        draws.append(np.concatenate([orders, orders[:, ::-1]]))
    return np.array(draws)


def passed_subsets(orders: IntArray) -> list[list[int]]:
    """Return the subsets that each order goes through, from none to all units; bits are units."""
    bits = np.array([1 << unit for unit in range(orders.shape[-1])], dtype=object)
    return [[0, *subsets] for subsets in bits[orders].cumsum(axis=1).tolist()]


def sampled_values(values: FloatArray, orders: IntArray) -> tuple[FloatArray, FloatArray]:
    """Return Shapley values (..., U) from some orders, with their standard errors.

    Draws are independent, the orders within a draw are not.

    Args:
        values: (..., draws, orders, U + 1) Values of the subsets that each order passes through.
        orders: (..., draws, orders, U) The orders, broadcast against `values`.
    """
    gains = np.empty((*values.shape[:-1], orders.shape[-1]))
    steps = np.diff(values, axis=-1)
    np.put_along_axis(gains, np.broadcast_to(orders, gains.shape), steps, axis=-1)
    draws = gains.mean(-2)
    error = draws.std(axis=-2, ddof=1) / math.sqrt(draws.shape[-2])
    return draws.mean(-2), error


def subset_sizes(n_units: int) -> IntArray:
    """Return the number of units in each of the 2^U subsets."""
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
