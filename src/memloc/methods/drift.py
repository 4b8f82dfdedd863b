"""Where noisy examples are between their classes, layer by layer, and when they cross over.

Positions of all pairs are pooled. Resamples draw examples anew and leave the lines where they are.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from memloc.methods.positions import KINDS, Positions, shuffled_separability
from memloc.records import BoolArray, FloatArray, IntArray, NoisyLabels
from memloc.seeds import generator
from memloc.stats.depth import (
    LEVEL,
    Event,
    Rule,
    event,
    first_layer,
    last_crossing,
    last_uninterrupted,
)
from memloc.stats.intervals import RESAMPLES, counts_in_chunks, percentiles

if TYPE_CHECKING:
    import pandas as pd

    from memloc.methods.centroids import Centroids
    from memloc.training.predict import Vectors

RULES: dict[str, tuple[Rule, Rule]] = {
    "first": (first_layer, first_layer),
    "last": (last_crossing, last_uninterrupted),
}
"""By the setting `centroids.events`: which layer is the crossing, and which the initiation."""
SHUFFLES = 200
"""How often labels are dealt out anew to see what separability is reached by chance."""


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
    settings: "Centroids",
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


def crossing(mean: FloatArray, settings: "Centroids") -> BoolArray:
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


def _all_kinds(found: Positions, counts: IntArray, settings: "Centroids") -> list[Pooled]:
    return [pooled(found, kind, counts, settings.central) for kind in range(len(KINDS))]


P = TypeVar("P")


def joined(parts: Sequence[P]) -> P:
    """Draws that came in chunks as one: the arrays of dataclasses end to end."""
    columns = zip(*(vars(part).values() for part in parts), strict=True)
    return type(parts[0])(*map(np.concatenate, columns))


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
    settings: "Centroids",
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
        [event_row("centroids", name, e, separability.separable) for name, e in found.items()]
    )


def event_row(source: str, name: str, found: Event, separable: BoolArray) -> dict[str, object]:
    """A row of a table of events; `separable` (0..L) says whether classes can be told apart."""
    clear = not np.isnan(found.layer) and bool(separable[int(found.layer)])
    return {"source": source, "event": name, **asdict(found), "separable": clear}
