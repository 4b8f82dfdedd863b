"""Ways of sampling subsets of units, from tables of the values of all of them; see `sampling`."""

from collections.abc import Callable
from functools import cache
from itertools import combinations, permutations

import numpy as np

from memloc.arrays import FloatArray, IntArray
from memloc.stats.subsets import count_layers, rotated_orders, shapley_values

DEPTH = 12
RIDGE = 0.1
"""Penalty of surrogates; the variance of a term is 1 over the number of terms of its order."""


class Table:
    """The values of subsets of units for every example of one run."""

    def __init__(self, values: FloatArray, subsets: IntArray, nest: int) -> None:
        self.values, self.nest = values, nest
        self.n_units = DEPTH * nest
        self.subsets = subsets
        self.met = [((1 << nest) - 1) << nest * layer for layer in range(DEPTH)]
        self.truth = self._nested() if nest > 1 else shapley_values(values).mean(0)

    def at(self, example: int, subsets: IntArray) -> FloatArray:
        """The values of subsets for one example."""
        return np.asarray(self.values[example, np.searchsorted(self.subsets, subsets)])

    def _nested(self) -> FloatArray:
        """Nested Shapley values: for each split layer, the game of 13 players with its two parts.

        A part's value is half of what it adds first and half of what it adds second, weighted over
        the subsets of the other layers as for the layer as a whole.
        """
        found = np.zeros(self.n_units)
        mean = self.values.mean(0)
        whole = [sum(3 << 2 * i for i in range(DEPTH) if s >> i & 1) for s in range(2**DEPTH)]
        by_subset = dict(zip(self.subsets.tolist(), mean.tolist(), strict=True))
        for layer in range(DEPTH):
            without = [(s, w) for s, w in enumerate(whole) if not s >> layer & 1]
            weight = shapley_weights(np.array([s.bit_count() for s, _ in without]))
            for part, other in ((1, 2), (2, 1)):
                gain = [
                    by_subset[w | part << 2 * layer]
                    - by_subset[w]
                    + by_subset[w | 3 << 2 * layer]
                    - by_subset[w | other << 2 * layer]
                    for _, w in without
                ]
                found[2 * layer + part - 1] = weight @ np.array(gain) / 2
        return found


def shapley_weights(sizes: IntArray) -> FloatArray:
    """Weight of a subset of this size (of all other layers) in a layer's Shapley value."""
    from math import comb

    return np.array([1 / (DEPTH * comb(DEPTH - 1, int(size))) for size in sizes])


Sampled = tuple[FloatArray, int]
"""The estimated shares of one example, and the layers that a text goes through for them."""
Way = Callable[[Table, int, np.random.Generator], Sampled]


def by_orders(table: Table, example: int, orders: IntArray) -> Sampled:
    """Shares from the subsets that orders go through."""
    passed = through(orders)
    layers = count_layers(table.met, np.unique(passed).tolist())
    return shares_of(table.at(example, passed), orders), layers


def through(orders: IntArray) -> IntArray:
    """The subsets that orders go through, (orders, units + 1)."""
    start = np.zeros((len(orders), 1), dtype=np.int64)
    return np.concatenate([start, (1 << orders).cumsum(1)], axis=1)


def shares_of(values: FloatArray, orders: IntArray) -> FloatArray:
    """Mean gain of each unit over orders, from values (orders, units + 1)."""
    gains = np.empty(orders.shape)
    np.put_along_axis(gains, orders, np.diff(values, axis=1), axis=1)
    return np.asarray(gains.mean(0))


def random_pairs(table: Table, pairs: int, rng: np.random.Generator) -> IntArray:
    """Independent random orders, each with its reverse."""
    draws = [rotated_orders(table.n_units, 1, rng, table.nest)[0] for _ in range(pairs)]
    return np.concatenate(draws)


def rotations(table: Table, pairs: int, rng: np.random.Generator) -> IntArray:
    """Two or more random orders, each with rotations of it and all reverses: memloc's way."""
    return rotated_orders(table.n_units, pairs, rng, table.nest).reshape(-1, table.n_units)


def plain(draw: Callable[[Table, int, np.random.Generator], IntArray], pairs: int) -> Way:
    """Shares by orders that are drawn in this way."""
    return lambda table, example, rng: by_orders(table, example, draw(table, pairs, rng))


def surrogate(pairs: int, order: int) -> Way:
    """Rotations, adjusted by a surrogate of the example's own values with terms up to an order.

    The surrogate is a ridge regression over the subsets that were evaluated; its own shares are
    exact, and orders only estimate what it leaves.
    """

    def way(table: Table, example: int, rng: np.random.Generator) -> Sampled:
        orders = rotations(table, pairs, rng)
        passed = through(orders)
        used = np.unique(passed)
        terms, scale, gains = surrogate_terms(table.n_units, table.nest, order)
        sign = 2.0 * (used[:, np.newaxis] >> np.arange(table.n_units) & 1) - 1
        design = np.column_stack([sign[:, some].prod(2) for some in terms]) * scale
        values = table.at(example, used)
        middle = values.mean()
        inverse = np.linalg.solve(design @ design.T + RIDGE * np.eye(len(used)), values - middle)
        fitted = design.T @ inverse
        left = (values - middle - design @ fitted)[np.searchsorted(used, passed)]
        shares = gains @ (scale * fitted) + shares_of(left, orders)
        return shares, count_layers(table.met, used.tolist())

    return way


@cache
def surrogate_terms(
    n_units: int, nest: int, order: int
) -> tuple[list[IntArray], FloatArray, FloatArray]:
    """Products of signs (1 for a unit of the donor, else -1): their units, scales and shares.

    Each product of `size` units is one term; all terms of a size together weigh as much as those of
    another. Along an order, a product changes its sign at each of its units, so what a unit adds
    depends on the place that it takes among them: 2 at the first, -2 at the second, 2 at the third.
    """
    terms = [
        np.array([*combinations(range(n_units), size)], dtype=np.int64)
        for size in range(1, order + 1)
    ]
    scale = np.concatenate([np.full(len(some), len(some) ** -0.5) for some in terms])
    gains = np.zeros((n_units, len(scale)))
    for column, units in enumerate(unit for some in terms for unit in some.tolist()):
        orders = [
            ordered
            for ordered in permutations(units)
            if len(ordered) < 3 or ordered[0] // nest != ordered[2] // nest
        ]  # the parts of a layer always follow each other
        for ordered in orders:
            for place, unit in enumerate(ordered):
                before = (-1) ** (len(ordered) - place)
                gains[unit, column] -= 2 * before / len(orders)
    return terms, scale, gains


def subtrees(prefixes: int, kept: int) -> Way:
    """All subsets that share a few random beginnings of `kept` layers; shares by regression.

    Beginnings come from subsets of a random size, each with its complement. The regression is the
    weighted one whose solution over all subsets is the Shapley value (KernelSHAP).
    """

    def way(table: Table, example: int, rng: np.random.Generator) -> Sampled:
        n, every = table.n_units, 2**table.n_units - 1
        begun: set[int] = set()
        while len(begun) < prefixes:
            subset = sum(1 << int(u) for u in rng.permutation(n)[: rng.integers(1, n)])
            begun |= {subset & (1 << kept) - 1, (every ^ subset) & (1 << kept) - 1}
        ends = np.arange(2 ** (n - kept)) << kept
        used = np.unique([0, every, *(np.array(sorted(begun))[:, np.newaxis] | ends).ravel()])
        inner = used[1:-1]
        sizes = np.bitwise_count(inner)
        kernel = shapley_kernel(n)[sizes]
        likely = reached(n, kept)[inner & (1 << kept) - 1]
        weight = kernel / likely
        has = (inner[:, np.newaxis] >> np.arange(n) & 1).astype(np.float64)
        none, total = table.at(example, np.array([0, every]))
        value, total = table.at(example, inner) - none, total - none
        # The values sum to that of all units: the last one is what the others leave.
        design = has[:, :-1] - has[:, -1:]
        weighted = design * weight[:, np.newaxis]
        normal = weighted.T @ design + 1e-9 * np.eye(n - 1)
        fitted = np.linalg.solve(normal, weighted.T @ (value - has[:, -1] * total))
        return np.append(fitted, total - fitted.sum()), count_layers(table.met, used.tolist())

    return way


def shapley_kernel(n: int) -> FloatArray:
    """Weights of subsets by size, 0 for none and all."""
    from math import comb

    inner = [(n - 1) / (comb(n, s) * s * (n - s)) for s in range(1, n)]
    return np.array([0, *inner, 0])


def reached(n: int, kept: int) -> FloatArray:
    """How likely each beginning is if a subset has a random size, (2^kept,)."""
    from math import comb

    every = np.arange(2**n)
    sizes = np.bitwise_count(every)
    chance = np.array([1 / ((n - 1) * comb(n, s)) if 0 < s < n else 0 for s in range(n + 1)])
    found = np.bincount(every & (1 << kept) - 1, weights=chance[sizes], minlength=2**kept)
    return found.astype(np.float64)


WAYS: dict[str, dict[int, list[Way]]] = {
    "random orders and reverses": {
        1: [plain(random_pairs, pairs) for pairs in (4, 8)],
        2: [plain(random_pairs, pairs) for pairs in (8, 16)],
    },
    "rotations and reverses": {
        1: [plain(rotations, pairs) for pairs in (8, 12)],
        2: [plain(rotations, pairs) for pairs in (12, 24)],
    },
    "rotations, second-order surrogate": {1: [surrogate(12, 2)], 2: [surrogate(24, 2)]},
    "rotations, third-order surrogate": {
        1: [surrogate(pairs, 3) for pairs in (8, 12)],
        2: [surrogate(24, 3)],
    },
    "subtrees, regression": {1: [subtrees(4, 6), subtrees(8, 8)], 2: []},
}
"""Ways of sampling by name, for layers (1) and for sublayers nested in them (2)."""
