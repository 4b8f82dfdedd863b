"""Which way of sampling subsets gives the most exact shares for the same number of layers?

`python -m studies.sampling FOLDER` trains ordinary runs of the embedded models there, computes the
value of every subset of layers for every noisy example (and, for sublayers, of every subset that
nested orders can go through), samples from these tables in several ways, and writes
`tables/sampling.csv` and the table in docs/explanation/localisers.md.
"""

import sys
from collections.abc import Callable, Iterator
from functools import cache
from itertools import combinations, permutations
from pathlib import Path

import numpy as np
import pandas as pd

import memloc
from memloc.arrays import FloatArray, IntArray
from memloc.methods.mixtures import Mixtures
from memloc.model.units import find_units
from memloc.reporting.tables import markdown
from memloc.seeds import generator
from memloc.stats.subsets import count_layers, rotated_orders, shapley_values
from studies.pages import DOCS, STORED, put

RUNS = (
    ("tiny-opt", "tiny-topic"),
    ("tiny-bert", "tiny-topic"),
    ("tiny-gpt-neo", "tiny-sentiment"),
    ("tiny-gpt-neox", "tiny-politeness"),
    ("tiny-opt", "tiny-entailment"),
)
"""Model and task of each run; sublayers are sampled in the first and third."""
NESTED = (0, 2)
N_NESTED = 10
"""Noisy examples whose subsets of sublayers are computed: 53,248 of each."""
DEPTH = 12
REPEATS = 40
EXAMPLES = 60
"""Examples over which a mean is taken when an error is shown."""
TABLE = STORED / "sampling.csv"
RIDGE = 0.1
"""Penalty of surrogates; the variance of a term is 1 over the number of terms of its order."""
PAGE = DOCS / "explanation" / "localisers.md"


class Table:
    """The values of subsets of units for every example of one run."""

    def __init__(self, values: FloatArray, subsets: IntArray, nest: int) -> None:
        self.values, self.nest = values, nest
        self.n_units = DEPTH * nest
        self.subsets = subsets
        self.met = [((1 << nest) - 1) << nest * layer for layer in range(DEPTH)]
        self.truth = self._nested() if nest > 1 else shapley_values(values).mean(0)

    def at(self, example: int, subsets: IntArray) -> FloatArray:
        """Return the values of subsets for one example."""
        return np.asarray(self.values[example, np.searchsorted(self.subsets, subsets)])

    def _nested(self) -> FloatArray:
        """Return nested Shapley values: for each split layer, the game of 13 players with its two
        parts.

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
    """Return the probability of each beginning if a subset has a random size, (2^kept,)."""
    from math import comb

    every = np.arange(2**n)
    sizes = np.bitwise_count(every)
    chance = np.array([1 / ((n - 1) * comb(n, s)) if 0 < s < n else 0 for s in range(n + 1)])
    found = np.bincount(every & (1 << kept) - 1, weights=chance[sizes], minlength=2**kept)
    return found.astype(np.float64)


WAYS: dict[str, dict[int, list[Way]]] = {
    "random orders and reverses": {
        1: [plain(random_pairs, pairs) for pairs in (2, 4, 6, 8, 16)],
        2: [plain(random_pairs, pairs) for pairs in (2, 4, 8, 16)],
    },
    "rotations and reverses": {
        1: [plain(rotations, pairs) for pairs in (2, 4, 6, 8, 12, 24)],
        2: [plain(rotations, pairs) for pairs in (2, 4, 8, 12, 24)],
    },
    "rotations, second-order surrogate": {
        1: [surrogate(pairs, 2) for pairs in (8, 12, 24)],
        2: [surrogate(pairs, 2) for pairs in (8, 24)],
    },
    "rotations, third-order surrogate": {
        1: [surrogate(pairs, 3) for pairs in (8, 12, 24)],
        2: [surrogate(pairs, 3) for pairs in (8, 24)],
    },
    "subtrees, regression": {
        1: [subtrees(2, 6), subtrees(4, 6), subtrees(8, 8), subtrees(16, 8), subtrees(16, 9)],
        2: [],
    },
}
"""Ways of sampling by name, for layers (1) and for sublayers nested in them (2)."""


def measured(tables: list[Table], way: Way) -> tuple[float, float]:
    """Layers per text, and the error of the mean over EXAMPLES examples (of the worst unit)."""
    layers, errors = [], []
    for number, table in enumerate(tables):
        rng = generator(number, "sampling")
        off = np.zeros((REPEATS, table.n_units))
        n = len(table.values)
        for repeat in range(REPEATS):
            drawn = [way(table, example, rng) for example in range(n)]
            off[repeat] = np.mean([shares for shares, _ in drawn], axis=0) - table.truth
            layers += [count for _, count in drawn[:2]]
        errors.append(np.sqrt((off**2).mean(0) * n / EXAMPLES).max())
    return float(np.mean(layers)), float(np.mean(errors))


def compare(tables: dict[int, list[Table]]) -> pd.DataFrame:
    """Return one row per way and number of orders."""
    rows = []
    for way, sizes in WAYS.items():
        for nest, ways in sizes.items():
            for each in ways:
                layers, error = measured(tables[nest], each)
                players = "12 layers" if nest == 1 else "24 sublayers"
                rows.append({"units": players, "way": way, "layers": layers, "error": error})
                print(rows[-1], flush=True)
    found = pd.DataFrame(rows)
    # As if more were drawn until a text goes through 600 layers.
    return found.assign(at_600=found["error"] * np.sqrt(found["layers"] / 600)).round(4)


def make(folder: Path) -> dict[int, list[Table]]:
    """Train the runs and compute their tables, or read those that are there."""
    found: dict[int, list[Table]] = {1: [], 2: []}
    for number, (model, task) in enumerate(RUNS):
        noisy = memloc.add_noise(memloc.load_task(task), rate=0.15, seed=1)
        run = memloc.train(model, noisy, folder / f"{model}-{task}", seed=1, preset="demo")
        found[1].append(Table(*kept(run, 1), 1))
        if number in NESTED:
            found[2].append(Table(*kept(run, 2), 2))
    return found


def kept(run: memloc.Run, nest: int) -> tuple[FloatArray, IntArray]:
    """The values (examples, subsets) of a run's noisy examples, computed once."""
    path = run.folder / f"subsets-{nest}.npz"
    if not path.is_file():
        rows = run.noisy_rows if nest == 1 else run.noisy_rows[:N_NESTED]
        subsets = np.arange(2**DEPTH) if nest == 1 else np.array(sorted(nested_subsets()))
        np.savez_compressed(
            path, values=np.stack([*lost(run, nest, rows, subsets)]), subsets=subsets
        )
    with np.load(path) as stored:
        return stored["values"].astype(np.float64), stored["subsets"]


def nested_subsets() -> Iterator[int]:
    """The subsets of sublayers in which at most one layer is split."""
    for subset in range(2**DEPTH):
        whole = sum(3 << 2 * layer for layer in range(DEPTH) if subset >> layer & 1)
        yield whole
        yield from (
            whole | part << 2 * layer
            for layer in range(DEPTH)
            if not subset >> layer & 1
            for part in (1, 2)
        )


def lost(run: memloc.Run, nest: int, rows: IntArray, subsets: IntArray) -> Iterator[FloatArray]:
    """Return, for each example, whether each subset loses its label."""
    final, donor = run.load("final"), run.load("reference")
    units = find_units(final.stack, "layers" if nest == 1 else "sublayers")
    mixtures, encoded = Mixtures(final.stack, donor.stack, units), run.encode(final)
    for row in rows[:, np.newaxis]:
        values = mixtures.values(encoded, row, run.noisy.assigned[row], subsets.tolist())
        yield values[0, 0].bool().numpy()


def main() -> None:
    """Write the table; without a folder, write the page from the stored one."""
    if len(sys.argv) > 1:
        compare(make(Path(sys.argv[1]))).to_csv(TABLE, index=False)
    found = pd.read_csv(TABLE).astype({"layers": int})
    cost = found["units"].map({"12 layers": 600, "24 sublayers": 1800})
    nearest = (found["layers"] - cost).abs().groupby([found["units"], found["way"]]).idxmin()
    found = found.loc[nearest].rename(columns={"at_600": "at 600"})
    put("sampling", markdown(found.astype(str)), PAGE)


if __name__ == "__main__":
    main()
