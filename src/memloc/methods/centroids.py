"""Centroids: where are noisy examples between their original class and the assigned one?

Positions are taken for the final weights and, where there are reference weights, with the bottom
and the top half of the layers swapped in from there. Positions of all pairs are pooled. Resamples
draw examples anew and leave the lines where they are.
"""

from typing import Any, Literal

import numpy as np
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
"""Seconds of its statistics, whatever the model (measured on one core)."""
RULES: dict[str, tuple[Rule, Rule]] = {
    "first": (first_true, first_true),
    "last": (last_crossing, last_uninterrupted),
}
"""By the setting `centroids.events`: which layer is the crossing, and which the initiation."""
SHUFFLES = 200
"""How often labels are dealt out anew to see what separability is reached by chance."""


class Centroids(Method):
    """Positions between class centroids, layer by layer, and the events they make; section 5."""

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

    crossing_at: float = paper(0.5, "§5", gt=0, lt=1)
    """The mean of noisy examples has crossed if it is below this (assigned class 0, original 1)."""
    events: Literal["first", "last"] = paper("first", "§5")
    """First crossing and first separation, or the last crossing and the start of the last
    uninterrupted separation."""
    central: float = published(0.75, gt=0, lt=1)
    """Classes are separated where the central shares of their positions do not overlap."""
    last_layer: Literal["block output", "final norm"] = paper("block output", "§5")
    """Whether a decoder's last vector is the block's output or what the final norm makes of it."""
    windows: tuple[str, ...] = ours(())
    """Further windows of layers, such as `3-6`, that are swapped in from the reference weights."""

    @classmethod
    def picture(cls, found: Result) -> str:
        """Draw where noisy examples are between their classes, one line per variant."""
        return views.positions_picture(found["layers"], found["events"])

    def run(self, run: Run) -> Result:
        """The tables `layers`, `events`, `positions` and `pairs` for every variant."""
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
                found = positions(vectors, run.noisy, run.task.n_classes)
                separability = pooled_separability(found, vectors, run.noisy)
                layers, events = drift(found, separability, self, len(vectors))
                tables = layers, events, positions_table(found), pairs_table(found)
                for table, columns in zip(TABLES, tables, strict=True):
                    every[table].append({"variant": name, **columns})
                said = found.remarks(run.task.label_names)
                remarks += [s if window is None else f"{name}: {s}" for s in said]
                advance(1)
        about = {"level": LEVEL, "resamples": RESAMPLES, "shuffles": SHUFFLES, "remarks": remarks}
        return Result(self.name, {name: as_table(*parts) for name, parts in every.items()}, about)

    def check(self, run: Run) -> None:
        """Refuse data without two kinds of labels, and windows that the model does not have."""
        check_labels(run.task, run.noisy)
        self.variants(run)

    def variants(self, run: Run) -> dict[str, range | None]:
        """Return the models to look at by name: the final weights, with and without windows."""
        found: dict[str, range | None] = {PLAIN: None}
        half = run.depth // 2
        if half and run.has("reference"):
            found |= {"bottom": range(half), "top": range(run.depth - half, run.depth)}
        for window in map(read_window, self.windows):
            check_inside(window, window_name(window), run.depth)
            run.require("reference")
            found[f"window {window_name(window)}"] = window
        return found

    def variant_vectors(self, run: Run, window: range | None) -> Vectors:
        """The vectors of all layers when `window` comes from the reference."""
        from memloc.methods.mixtures import final_with
        from memloc.model.predict import vectors_of

        if window is None:
            return run.vectors("final", self.last_layer)
        mixed = final_with(run, window, "reference")
        return vectors_of(mixed.stack, run.encode(mixed), last_layer=self.last_layer)

    def cost(self, sizes: Sizes) -> float:
        """The vectors of three variants, and statistics."""
        return FIXED + 3 * sizes.examples * sizes.predict


def positions_table(found: Positions) -> Table:
    """One row per example, pair and layer; `a` is the assigned class, `b` the original one."""
    rows, layer = (index.ravel() for index in np.indices(found.position.shape))
    ends = found.pairs[found.pair[rows]]
    return as_table(
        {
            "layer": layer.astype(np.int16),
            "a": ends[:, 0].astype(np.int16),
            "b": ends[:, 1].astype(np.int16),
            "example": found.example[rows].astype(np.int32),
            "kind": np.array(KINDS)[found.kind[rows]],
            "position": found.position.ravel(),
        }
    )


def pairs_table(found: Positions) -> Table:
    """One row per pair and layer: how many examples there are and how far apart the centroids."""
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
    """The tables `layers` and `events` of one set of positions, without their variant."""

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


def pooled(found: Positions, kind: int, counts: IntArray, central: float) -> FloatArray:
    """Mean position and both ends of the central share (draws, 3, K), of one kind of examples.

    All pairs, when example i is there `counts[:, i]` times, (draws, examples); NaN where
    no example has a position.
    """
    rows = found.kind == kind
    example, position = found.example[rows], found.position[rows]
    drawn = np.ascontiguousarray(counts.T.astype(np.int32)[example])
    there = ~np.isnan(position)
    total = there.T.astype(np.float64) @ drawn
    summed = np.nan_to_num(position).T @ drawn
    mean = summed / np.where(total > 0, total, np.nan)
    tails = ((1 - central) / 2, (1 + central) / 2)
    low, high = np.full((2, *mean.shape), np.nan)
    for layer in np.flatnonzero(there.any(0)):
        here = np.flatnonzero(there[:, layer])
        order = here[np.argsort(position[here, layer], kind="stable")]
        low[layer], high[layer] = _quantiles(position[order, layer], drawn[order], tails)
    return np.stack([mean.T, low.T, high.T], axis=1)


def pooled_separability(
    found: Positions, vectors: Vectors, noisy: NoisyLabels, shuffles: int = SHUFFLES
) -> Table:
    """How far apart the classes of the noisy examples are, one row per layer.

    `separability` is the mean over pairs, each counting as often as it has noisy examples;
    `by_chance` is what 95 % of shuffled labels do not exceed. Where the classes are not further
    apart than that, they are not `separable` and a position means nothing.
    """
    rng = generator(0, "shuffles", "centroids")
    weights = found.n_noisy.astype(np.float64)
    own = _average(found.separability, weights)
    used = np.flatnonzero(weights)
    shuffled = shuffled_separability(vectors, noisy, found.pairs[used], shuffles, rng)
    others = _average(shuffled, weights[used])
    limit = np.quantile(np.nan_to_num(others), LEVEL, axis=0)
    separable = np.nan_to_num(own) > limit
    return as_table({"separability": own, "by_chance": limit, "separable": separable})


def _quantiles(
    ranked: FloatArray, counts: NDArray[np.int32], shares: tuple[float, ...]
) -> list[FloatArray]:
    """Quantiles, interpolated, of ranked values (n,) that are there `counts` (n, draws) times.

    NaN for draws in which none is.
    """
    cumulative = counts.cumsum(0, dtype=np.int32)
    total = cumulative[-1]
    found = []
    for share in shares:
        place = share * np.maximum(0, total - 1)
        below = np.floor(place)
        first, second = (
            ranked[np.minimum(_at_most(k, cumulative), len(ranked) - 1)]
            for k in (below.astype(np.int32), np.ceil(place).astype(np.int32))
        )
        value = first + (second - first) * (place - below)
        found.append(np.where(total > 0, value, np.nan))
    return found


def _at_most(limits: NDArray[np.int32], ascending: NDArray[np.int32]) -> IntArray:
    """Return how many values of each column (n, columns), which ascends, are at most its limit."""
    columns = np.arange(len(limits))
    first, last = np.zeros(len(limits), np.int64), np.full(len(limits), len(ascending))
    while (first < last).any():  # halves what is left: twenty rounds for a million values
        middle = (first + last) // 2
        inside = np.minimum(middle, len(ascending) - 1)
        below = (ascending[inside, columns] <= limits) & (middle < len(ascending))
        first, last = np.where(below, middle + 1, first), np.where(below, last, middle)
    return first


def _average(values: FloatArray, weights: FloatArray) -> FloatArray:
    """Weighted mean over pairs, the last axis but one; pairs without a value do not count."""
    there = ~np.isnan(values)
    share = np.where(there, weights[:, None], 0.0)
    total = share.sum(-2)
    summed = (np.nan_to_num(values) * share).sum(-2)
    return np.asarray(summed / np.where(total > 0, total, np.nan))
