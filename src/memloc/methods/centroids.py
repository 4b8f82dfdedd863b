"""Centroids: where do noisy examples lie between their original class and the assigned one?

Positions are computed for the final weights and, if the run has reference weights, with the bottom
and the top half of the layers taken from the reference. Positions of all pairs are pooled.
Resamples draw examples anew but keep the lines between centroids.
"""

from typing import Any, Literal

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from memloc.arrays import FloatArray, IntArray, Table, Vectors
from memloc.data.task import NoisyLabels
from memloc.methods import Method, Sizes, views
from memloc.methods.positions import (
    KINDS,
    Positions,
    check_labels,
    positions,
    shuffled_separability,
)
from memloc.methods.result import Result
from memloc.progress import track
from memloc.run.folder import Run
from memloc.seeds import generator
from memloc.settings import ours, packaged, paper, published
from memloc.stats.depth import LEVEL, Rule, event, first_true, last_crossing, last_uninterrupted
from memloc.stats.intervals import RESAMPLES, percentiles, resampled
from memloc.stats.windows import check_inside, read_window, window_name
from memloc.store.records import as_table

_REPORT = packaged(__file__)
PLAIN = "plain"
TABLES = ("layers", "events", "positions", "pairs")
FIXED = 5.0
"""Seconds that the statistics take with any model (measured on one core)."""
RULES: dict[str, tuple[Rule, Rule]] = {
    "first": (first_true, first_true),
    "last": (last_crossing, last_uninterrupted),
}
"""Rules for the layers of crossing and initiation, by the setting `centroids.events`."""
SHUFFLES = 200
"""Number of shuffles of the labels that give the separability expected by chance."""


class Centroids(Method):
    """Positions between class centroids, layer by layer, and the events they define; section 5."""

    name = "centroids"
    labels_only = "texts have no classes whose centroids could be compared"
    kind = "analysis"
    needs = ("final",)
    shows = {"layers": "centroids"}
    report = {
        **_REPORT,
        "rows": {"centroids": lambda table: views.mean_positions(table, _REPORT["words"])},
    }
    uses = ("reference",)
    version = 2

    crossing_at: float = paper(0.5, "§5", gt=0, lt=1)
    """Position below which the mean of noisy examples has crossed (assigned class 0, original
    1).
    """
    events: Literal["first", "last"] = paper("first", "§5")
    """First crossing and first separation, or the last crossing and the start of the last
    uninterrupted separation."""
    central: float = published(0.75, gt=0, lt=1)
    """Central share of the positions; classes are separated where these shares do not overlap."""
    last_layer: Literal["block output", "final norm"] = paper("block output", "§5")
    """Last vector of a decoder: the block's output, or the output of the final norm."""
    windows: tuple[str, ...] = ours(())
    """Further windows of layers, such as `3-6`, that are taken from the reference weights."""

    @classmethod
    def picture(cls, found: Result) -> str:
        """Draw the positions of noisy examples between their classes, one line per variant."""
        return views.positions_picture(found["layers"], found["events"])

    def run(self, run: Run) -> Result:
        """Return the tables `layers`, `events`, `positions` and `pairs` for every variant."""
        self.check(run)
        wanted = self.variants(run)
        every: dict[str, list[Any]] = {name: [] for name in TABLES}
        remarks: list[str] = []
        if "bottom" not in wanted and run.depth > 1:
            remarks.append(
                "The bottom and the top half were not swapped in: the run has no reference weights."
            )
        with track(f"{run.name} · centroids", len(wanted)) as advance:
            for name, window in wanted.items():
                vectors = self.variant_vectors(run, window)
                places = positions(vectors, run.noisy, run.task.n_classes)
                rng = generator(run.seed, "shuffles", self.name, run.name)
                separability = pooled_separability(places, vectors, run.noisy, rng)
                layers, events = drift(places, separability, self, len(vectors))
                tables = layers, events, positions_table(places), pairs_table(places)
                for table, columns in zip(TABLES, tables, strict=True):
                    every[table].append({"variant": name, **columns})
                odd = places.remarks(run.task.label_names)
                remarks += [s if window is None else f"{name}: {s}" for s in odd]
                advance(1)
        about = {"level": LEVEL, "resamples": RESAMPLES, "shuffles": SHUFFLES, "remarks": remarks}
        return Result(self.name, {name: as_table(*parts) for name, parts in every.items()}, about)

    def check(self, run: Run) -> None:
        """Refuse data without two kinds of labels, and windows that the model does not have."""
        check_labels(run.task, run.noisy)
        self.variants(run)

    def variants(self, run: Run) -> dict[str, range | None]:
        """Return the models to look at, by name: the final weights, plain and with exchanged
        windows.
        """
        variants: dict[str, range | None] = {PLAIN: None}
        half = run.depth // 2
        if half and run.has("reference"):
            variants |= {"bottom": range(half), "top": range(run.depth - half, run.depth)}
        for window in map(read_window, self.windows):
            check_inside(window, window_name(window), run.depth)
            run.require("reference")
            variants[f"window {window_name(window)}"] = window
        return variants

    def variant_vectors(self, run: Run, window: range | None) -> Vectors:
        """Return the vectors of all layers with `window` taken from the reference."""
        from memloc.methods.mixtures import final_with
        from memloc.model.predict import vectors_of

        if window is None:
            return run.vectors("final", self.last_layer)
        mixed = final_with(run, window, "reference")
        return vectors_of(mixed.stack, run.encode(mixed), last_layer=self.last_layer)

    def cost(self, sizes: Sizes) -> float:
        """Return the seconds for the vectors of three variants and the statistics."""
        return FIXED + 3 * sizes.examples * sizes.predict


def positions_table(found: Positions) -> Table:
    """Return one row per example, pair and layer; `a` is the assigned class, `b` the original
    one.
    """
    rows, layer = (index.ravel() for index in np.indices(found.position.shape))
    ends = found.pairs[found.pair[rows]]
    return as_table(
        {
            "layer": layer.astype(np.int16),
            "a": ends[:, 0].astype(np.int16),
            "b": ends[:, 1].astype(np.int16),
            "example": found.example[rows].astype(np.int32),
            "kind": np.array(KINDS)[found.case[rows]],
            "position": found.position.ravel(),
        }
    )


def pairs_table(found: Positions) -> Table:
    """Return one row per pair and layer: numbers of examples and distance of the centroids."""
    pair, layer = (index.ravel() for index in np.indices(found.separability.shape))
    return as_table(
        {
            "layer": layer,
            "a": found.pairs[pair, 0],
            "b": found.pairs[pair, 1],
            "n_noisy": found.n_noisy[pair],
            "n_clean_a": found.n_clean[pair, 0],
            "n_clean_b": found.n_clean[pair, 1],
            "separability": found.separability.ravel(),
            "by_chance": found.by_chance[pair],
            "coincide": found.coincide.ravel(),
        }
    )


def drift(
    found: Positions, separability: Table, settings: Centroids, n_examples: int
) -> tuple[Table, Table]:
    """Return the tables `layers` and `events` for the positions of one variant.

    Args:
        found: Positions of the examples.
        separability: Table of `pooled_separability`.
        settings: Settings of the method.
        n_examples: Number of examples to resample.
    """

    def every_kind(counts: IntArray) -> FloatArray:
        """(draws, kinds, 3, K)."""
        kinds = [pooled(found, kind, counts, settings.central) for kind in range(len(KINDS))]
        return np.stack(kinds, axis=1)

    rng = generator(0, "bootstrap", "centroids")
    stack = resampled(every_kind, n_examples, rng, size=len(found.pair))
    means, low, high = np.moveaxis(stack, 2, 0)  # (1 + draws, kinds, K) each
    parts = []
    for place, kind in enumerate(KINDS):
        ends = [percentiles(drawn[~np.isnan(drawn)]) for drawn in means[1:, place].T]
        mean_low, mean_high = np.array(ends).T
        shares = {"mean": means[0, place], "low": low[0, place], "high": high[0, place]}
        of_mean = {"mean_low": mean_low, "mean_high": mean_high}
        of = {"layer": np.arange(len(mean_low)), "kind": kind}
        parts.append({**of, **shares, **of_mean, **separability})
    # Layer 0 is not a layer where anything can happen: for models that read the first token its
    # vector is the same for every text.
    crossed = means[:, 0, 1:] < settings.crossing_at
    separated = high[:, 1, 1:] < low[:, 2, 1:]
    # A draw without any noisy example says nothing of them.
    known = ~np.isnan(means[1:, 0]).all(1)
    crossing_rule, initiation_rule = RULES[settings.events]
    events = {
        "crossing": event(crossed[0], crossed[1:][known], crossing_rule),
        "initiation": event(separated[0], separated[1:], initiation_rule),
    }
    separable = separability["separable"].to_numpy()
    rows = [e.row("centroids", name, separable) for name, e in events.items()]
    return as_table(*parts), as_table(rows)


def pooled(found: Positions, case: int, counts: IntArray, central: float) -> FloatArray:
    """Return mean position and both ends of the central share, (draws, 3, K), for one kind of
    examples.

    The values are pooled over all pairs and NaN where no example has a position.

    Args:
        found: Positions of the examples.
        case: Kind of the examples, as an index into `KINDS`.
        counts: How often each example is drawn, (draws, examples).
        central: Central share.
    """
    rows = found.case == case
    example, position = found.example[rows], found.position[rows]
    drawn = np.ascontiguousarray(counts.T.astype(np.int32)[example])
    known = ~np.isnan(position)
    total = known.T.astype(np.float64) @ drawn
    summed = np.nan_to_num(position).T @ drawn
    mean = summed / np.where(total > 0, total, np.nan)
    tails = ((1 - central) / 2, (1 + central) / 2)
    low, high = np.full((2, *mean.shape), np.nan)
    for layer in np.flatnonzero(known.any(0)):
        here = np.flatnonzero(known[:, layer])
        order = here[np.argsort(position[here, layer], kind="stable")]
        low[layer], high[layer] = _quantiles(position[order, layer], drawn[order], tails)
    return np.stack([mean.T, low.T, high.T], axis=1)


def pooled_separability(
    found: Positions,
    vectors: Vectors,
    noisy: NoisyLabels,
    rng: Generator,
    shuffles: int = SHUFFLES,
) -> Table:
    """Return how far apart the classes of the noisy examples are, one row per layer.

    `separability` is the mean over pairs, weighted by their noisy examples; `by_chance` is the
    value that 95 % of shuffled labels do not exceed. Classes that are not further apart than that
    are not `separable`, and a position between them means nothing.

    Args:
        found: Positions of the examples.
        vectors: Vectors of all examples and layers.
        noisy: Labels before and after noise.
        rng: Generator of the shuffles.
        shuffles: Number of shuffles.
    """
    weights = found.n_noisy.astype(np.float64)
    observed = _average(found.separability, weights)
    used = np.flatnonzero(weights)
    shuffled = shuffled_separability(vectors, noisy, found.pairs[used], shuffles, rng)
    others = _average(shuffled, weights[used])
    limit = np.quantile(np.nan_to_num(others), LEVEL, axis=0)
    separable = np.nan_to_num(observed) > limit
    return as_table({"separability": observed, "by_chance": limit, "separable": separable})


def _quantiles(
    ranked: FloatArray, counts: NDArray[np.int32], shares: tuple[float, ...]
) -> list[FloatArray]:
    """Return interpolated quantiles of ranked values (n,) that occur `counts` (n, draws) times.

    They are NaN for draws that have no value.
    """
    cumulative = counts.cumsum(0, dtype=np.int32)
    total = cumulative[-1]
    quantiles = []
    for share in shares:
        place = share * np.maximum(0, total - 1)
        below = np.floor(place)
        first, second = (
            ranked[np.minimum(_at_most(k, cumulative), len(ranked) - 1)]
            for k in (below.astype(np.int32), np.ceil(place).astype(np.int32))
        )
        value = first + (second - first) * (place - below)
        quantiles.append(np.where(total > 0, value, np.nan))
    return quantiles


def _at_most(limits: NDArray[np.int32], ascending: NDArray[np.int32]) -> IntArray:
    """Return, for each ascending column (n, columns), the number of values that are at most its
    limit.
    """
    columns = np.arange(len(limits))
    first = np.zeros(len(limits), np.int64)
    last = np.full(len(limits), len(ascending))
    while (first < last).any():  # halves the range: twenty rounds for a million values
        middle = (first + last) // 2
        inside = np.minimum(middle, len(ascending) - 1)
        below = (ascending[inside, columns] <= limits) & (middle < len(ascending))
        first, last = np.where(below, middle + 1, first), np.where(below, last, middle)
    return first


def _average(values: FloatArray, weights: FloatArray) -> FloatArray:
    """Return the weighted mean over pairs, the last axis but one; pairs without a value do not
    count.
    """
    known = ~np.isnan(values)
    share = np.where(known, weights[:, None], 0.0)
    total = share.sum(-2)
    summed = (np.nan_to_num(values) * share).sum(-2)
    return np.asarray(summed / np.where(total > 0, total, np.nan))
