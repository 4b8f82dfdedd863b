"""What every subset of layers is worth, shared out among the layers.

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
    """Shapley values (..., U) of `values` (..., 2^U); they sum to the last minus the first value.

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
    """Shapley interaction indices (U, U) of `values` (2^U,): symmetric, 0 on the diagonal.

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
    """All smallest subsets whose value comes `share` of the way from that of none to that of all.

    As numbers whose bits are the units; none where even all units change nothing.
    """
    start, end = values[0], values[-1]
    if start == end:
        return np.zeros(0, dtype=np.int64)
    reached = np.flatnonzero((values - start) / (end - start) >= share)
    sizes = subset_sizes(_n_units(values))[reached]
    return np.asarray(reached[sizes == sizes.min()], dtype=np.int64)


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
    """How these subsets begin: after each layer, what they have of the units met up to there.

    `met` says for each layer which units it has a part of, as bits.
    """
    return [{subset & so_far for subset in subsets} for so_far in accumulate(met, or_)]


def count_layers(met: Sequence[int], subsets: Sequence[int]) -> int:
    """Layers that a text goes through when subsets share their beginnings; `met` as above."""
    return sum(map(len, beginnings(met, subsets)))


def random_orders(n_units: int, pairs: int, rng: Generator, nest: int = 1) -> IntArray:
    """Return orders of the units (2 · pairs, U): random ones, each followed by its reverse.

    What one of the two gives an early unit, the other gives a late one: errors cancel. Of nested
    units, `nest` neighbours (the parts of a layer) always follow each other, so that their values
    sum to that of what they are parts of.
    """
    drawn = []
    for _ in range(pairs):
        groups = rng.permutation(n_units // nest)
        parts = rng.permuted(np.tile(np.arange(nest), (len(groups), 1)), axis=1)
        drawn.append((groups[:, None] * nest + parts).ravel())
    orders = np.array(drawn)
    return np.stack([orders, orders[:, ::-1]], axis=1).reshape(-1, n_units)


def passed_subsets(orders: IntArray) -> list[list[int]]:
    """The subsets that each order goes through, from none to all units; bits are units."""
    return [[0, *subsets] for subsets in (1 << orders).cumsum(axis=1).tolist()]


def sampled_values(values: FloatArray, orders: IntArray) -> tuple[FloatArray, FloatArray]:
    """Shapley values (..., U) from some orders, with their standard errors.

    `values` (..., orders, U + 1) are those of the subsets that each order goes through; `orders`
    (..., orders, U) are the same for all, or broadcast to them. An order and its reverse count as
    one draw.
    """
    gains = np.empty((*values.shape[:-1], orders.shape[-1]))
    steps = np.diff(values, axis=-1)
    np.put_along_axis(gains, np.broadcast_to(orders, gains.shape), steps, axis=-1)
    pairs = gains.reshape(*gains.shape[:-2], -1, 2, orders.shape[-1]).mean(-2)
    error = pairs.std(axis=-2, ddof=1) / math.sqrt(pairs.shape[-2])
    return pairs.mean(-2), error


def subset_sizes(n_units: int) -> IntArray:
    """How many units each of the 2^U subsets has."""
    return np.asarray(np.bitwise_count(np.arange(2**n_units)), dtype=np.int64)


def units_of(subset: int) -> list[int]:
    """The units of a subset, from 0."""
    return [unit for unit in range(int(subset).bit_length()) if subset >> unit & 1]


def _n_units(values: FloatArray) -> int:
    n_units = int(values.shape[-1]).bit_length() - 1
    if values.shape[-1] != 2**n_units or n_units < 1:
        raise ScoreError(
            f"Values of {values.shape[-1]} subsets were given; all subsets of some units are "
            "needed, such as 4,096 of twelve."
        )
    return n_units
