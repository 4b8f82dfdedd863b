"""Centroids: where are noisy examples between their original class and the assigned one?

Positions are taken for the final weights and, where there are reference weights, with the bottom
and the top half of the layers swapped in from there. Positions of all pairs are pooled. Resamples
draw examples anew and leave the lines where they are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from memloc.methods import Method, Sizes
from memloc.methods.positions import (
    KINDS,
    Positions,
    check_labels,
    positions,
    shuffled_separability,
)
from memloc.methods.result import Result
from memloc.progress import track
from memloc.records import BoolArray, FloatArray, IntArray, NoisyLabels
from memloc.seeds import generator
from memloc.settings import ours, paper, published
from memloc.stats.depth import (
    LEVEL,
    Rule,
    event,
    first_layer,
    last_crossing,
    last_uninterrupted,
)
from memloc.stats.intervals import RESAMPLES, counts_in_chunks, joined, percentiles
from memloc.stats.windows import check_inside, read_window, window_name

if TYPE_CHECKING:
    import pandas as pd

    from memloc.run import Run
    from memloc.training.predict import Vectors

PLAIN = "plain"
TABLES = ("layers", "events", "positions", "pairs")
FIXED = 5.0
"""Seconds of its statistics, whatever the model (measured on one core)."""
RULES: dict[str, tuple[Rule, Rule]] = {
    "first": (first_layer, first_layer),
    "last": (last_crossing, last_uninterrupted),
}
"""By the setting `centroids.events`: which layer is the crossing, and which the initiation."""
SHUFFLES = 200
"""How often labels are dealt out anew to see what separability is reached by chance."""


class Centroids(Method):
    """Positions between class centroids, layer by layer, and the events they make; section 5."""

    name = "centroids"
    kind = "analysis"
    needs = ("final",)
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

    def run(self, run: "Run") -> Result:
        """The tables `layers`, `events`, `positions` and `pairs` for every variant."""
        self.check(run)
        wanted = self.variants(run)
        parts: dict[str, list[pd.DataFrame]] = {name: [] for name in TABLES}
        remarks: list[str] = []
        if "bottom" not in wanted and run.depth > 1:
            remarks.append(
                "The bottom and the top half were not swapped in: the run has no reference weights."
            )
        with track(f"{run.name} · centroids", len(wanted)) as advance:
            for name, window in wanted.items():
                vectors = self.variant_vectors(run, window)
                found = positions(vectors, run.noisy, run.task.n_classes)
                for table, frame in self._tables(run, vectors, found).items():
                    parts[table].append(frame.assign(variant=name))
                said = found.remarks(run.task.label_names)
                remarks += [s if window is None else f"{name}: {s}" for s in said]
                advance(1)
        tables = {name: _below(frames) for name, frames in parts.items()}
        about = {"level": LEVEL, "resamples": RESAMPLES, "shuffles": SHUFFLES, "remarks": remarks}
        return Result(self.name, tables, about)

    def check(self, run: "Run") -> None:
        """Refuse data without two kinds of labels, and windows that the model does not have."""
        check_labels(run.task, run.noisy)
        self.variants(run)

    def variants(self, run: "Run") -> dict[str, range | None]:
        """What is looked at, by name: the final weights, and windows of layers swapped in."""
        found: dict[str, range | None] = {PLAIN: None}
        half = run.depth // 2
        if half and run.has("reference"):
            found |= {"bottom": range(half), "top": range(run.depth - half, run.depth)}
        for window in map(read_window, self.windows):
            check_inside(window, window_name(window), run.depth)
            run.require("reference")
            found[f"window {window_name(window)}"] = window
        return found

    def variant_vectors(self, run: "Run", window: range | None) -> "Vectors":
        """The vectors of all layers when `window` comes from the reference."""
        from memloc.methods.mixtures import final_with
        from memloc.training.predict import vectors_of

        if window is None:
            return run.vectors("final", self.last_layer)
        mixed = final_with(run, window, "reference")
        return vectors_of(mixed.stack, run.encode(mixed), last_layer=self.last_layer)

    def _tables(
        self, run: "Run", vectors: "Vectors", found: Positions
    ) -> "dict[str, pd.DataFrame]":
        separability = pooled_separability(found, vectors, run.noisy)
        layers, events = drift(found, separability, self, len(vectors))
        return {
            "layers": layers,
            "events": events,
            "positions": positions_table(found),
            "pairs": pairs_table(found),
        }

    def cost(self, sizes: Sizes) -> float:
        """The vectors of three variants, and statistics."""
        return FIXED + 3 * sizes.examples * sizes.predict


def positions_table(found: Positions) -> "pd.DataFrame":
    """One row per example, pair and layer; `a` is the assigned class, `b` the original one."""
    import pandas as pd

    rows, layer = (index.ravel() for index in np.indices(found.position.shape))
    ends = found.pairs[found.pair[rows]]
    return pd.DataFrame(
        {
            "layer": layer.astype(np.int16),
            "a": ends[:, 0].astype(np.int16),
            "b": ends[:, 1].astype(np.int16),
            "example": found.example[rows].astype(np.int32),
            "kind": np.array(KINDS)[found.kind[rows]],
            "position": found.position.ravel(),
        }
    )


def pairs_table(found: Positions) -> "pd.DataFrame":
    """One row per pair and layer: how many examples there are and how far apart the centroids."""
    import pandas as pd

    pair, layer = (index.ravel() for index in np.indices(found.separability.shape))
    return pd.DataFrame(
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


@dataclass(frozen=True)
class Pooled:
    """Positions of one kind of examples, all pairs together; one row per draw of the examples."""

    mean: FloatArray
    """(draws, K); NaN where no example has a position."""
    low: FloatArray
    """Lower end of the central share, and"""
    high: FloatArray
    """its upper end."""


@dataclass(frozen=True)
class Separability:
    """How far apart the classes of the noisy examples are, (K,) each."""

    value: FloatArray
    """Mean over pairs, each counting as often as it has noisy examples."""
    by_chance: FloatArray
    """What 95 % of shuffled labels do not exceed."""

    @property
    def separable(self) -> BoolArray:
        """Whether a position means anything there: the classes are further apart than by chance."""
        return np.asarray(np.nan_to_num(self.value) > self.by_chance)


def drift(
    found: Positions,
    separability: Separability,
    settings: Centroids,
    n_examples: int,
) -> "tuple[pd.DataFrame, pd.DataFrame]":
    """The tables `layers` and `events` of one set of positions, without their variant."""
    once = np.ones((1, n_examples), dtype=np.int64)
    estimates = _all_kinds(found, once, settings)
    rng = generator(0, "bootstrap", "centroids")
    chunks = counts_in_chunks(n_examples, RESAMPLES, rng, size=len(found.pair))
    draws = [_all_kinds(found, counts, settings) for counts in chunks]
    resampled = [joined(parts) for parts in zip(*draws, strict=True)]
    layers = _layers_table(estimates, resampled, separability)
    return layers, _events_table(estimates, resampled, separability, settings)


def pooled(found: Positions, kind: int, counts: IntArray, central: float) -> Pooled:
    """Mean and central share when example i is there `counts[:, i]` times, (draws, examples)."""
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
    return Pooled(mean.T, low.T, high.T)


def pooled_separability(
    found: Positions, vectors: "Vectors", noisy: NoisyLabels, shuffles: int = SHUFFLES
) -> Separability:
    """Separability of the pairs that have noisy examples, beside that of shuffled labels."""
    rng = generator(0, "shuffles", "centroids")
    by_chance = shuffled_separability(vectors, noisy, found.pairs, shuffles, rng)
    weights = found.n_noisy.astype(np.float64)
    limit = np.quantile(np.nan_to_num(_average(by_chance, weights)), LEVEL, axis=0)
    return Separability(_average(found.separability, weights), np.asarray(limit))


def crossing(mean: FloatArray, settings: Centroids) -> BoolArray:
    """Layers 1..L where noisy examples are, on average, on the side of their assigned class.

    From means (..., 0..L). Layer 0 is not a layer where anything can happen: for models that read
    the first token its vector is the same for every text.
    """
    return np.asarray(mean[..., 1:] < settings.crossing_at)


def separated(clean_a: Pooled, clean_b: Pooled) -> BoolArray:
    """Layers 1..L where the central shares of the two classes' positions do not overlap."""
    return np.asarray(clean_a.high[..., 1:] < clean_b.low[..., 1:])


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
            ranked[np.minimum((cumulative <= k).sum(0), len(ranked) - 1)]
            for k in (below.astype(np.int32), np.ceil(place).astype(np.int32))
        )
        value = first + (second - first) * (place - below)
        found.append(np.where(total > 0, value, np.nan))
    return found


def _average(values: FloatArray, weights: FloatArray) -> FloatArray:
    """Weighted mean over pairs, the last axis but one; pairs without a value do not count."""
    there = ~np.isnan(values)
    share = np.where(there, weights[:, None], 0.0)
    total = share.sum(-2)
    summed = (np.nan_to_num(values) * share).sum(-2)
    return np.asarray(summed / np.where(total > 0, total, np.nan))


def _all_kinds(found: Positions, counts: IntArray, settings: Centroids) -> list[Pooled]:
    return [pooled(found, kind, counts, settings.central) for kind in range(len(KINDS))]


def _layers_table(
    estimates: list[Pooled], resampled: list[Pooled], separability: Separability
) -> "pd.DataFrame":
    import pandas as pd

    frames = []
    for kind, estimate, others in zip(KINDS, estimates, resampled, strict=True):
        low, high = _ends(others.mean)
        frames.append(
            pd.DataFrame(
                {
                    "layer": np.arange(len(low)),
                    "kind": kind,
                    "mean": estimate.mean[0],
                    "low": estimate.low[0],
                    "high": estimate.high[0],
                    "mean_low": low,
                    "mean_high": high,
                    "separability": separability.value,
                    "by_chance": separability.by_chance,
                    "separable": separability.separable,
                }
            )
        )
    return pd.concat(frames, ignore_index=True)


def _ends(resampled: FloatArray) -> FloatArray:
    """Interval (2, K) of resamples (R, K); those without a number are left out."""
    return np.array([percentiles(c[~np.isnan(c)]) for c in resampled.T]).T


def _events_table(
    estimates: list[Pooled],
    resampled: list[Pooled],
    separability: Separability,
    settings: Centroids,
) -> "pd.DataFrame":
    import pandas as pd

    crossing_rule, initiation_rule = RULES[settings.events]
    # A draw without any noisy example says nothing of them.
    drawn = resampled[0].mean[~np.isnan(resampled[0].mean).all(1)]
    noisy = [crossing(mean, settings) for mean in (estimates[0].mean, drawn)]
    classes = [separated(pool[1], pool[2]) for pool in (estimates, resampled)]
    found = {
        "crossing": event(noisy[0][0], noisy[1], crossing_rule),
        "initiation": event(classes[0][0], classes[1], initiation_rule),
    }
    return pd.DataFrame(
        [e.row("centroids", name, separability.separable) for name, e in found.items()]
    )


def _below(frames: "Sequence[pd.DataFrame]") -> "pd.DataFrame":
    """One below the other, the variant first."""
    import pandas as pd

    table = pd.concat(frames, ignore_index=True)
    return table[["variant", *table.columns.drop("variant")]]
