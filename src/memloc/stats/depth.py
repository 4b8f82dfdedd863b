"""Depth: the centre of gravity of layer weights, and the layers where events happen."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TypeAlias

import numpy as np

from memloc.arrays import BoolArray, FloatArray, Table
from memloc.errors import ScoreError

LEVEL = 0.95
"""Confidence level of every interval."""
Numbers: TypeAlias = FloatArray | float
Rule: TypeAlias = Callable[[BoolArray], FloatArray]
"""Function that chooses the event's layer among the layers where a condition holds."""


@dataclass(frozen=True)
class Event:
    """The layer where something happens, with its bootstrap interval.

    NaN means never, which is deeper than any layer: a `high` of NaN says that the interval reaches
    beyond the last layer.
    """

    layer: float
    low: float
    high: float
    never: float
    """Share of resamples in which the event never happens."""

    def row(self, source: str, name: str, separable: BoolArray) -> dict[str, object]:
        """Return a row of a table of events.

        `separable` (0..L) says for each layer whether the classes can be told apart.
        """
        clear = not np.isnan(self.layer) and bool(separable[int(self.layer)])
        return {"source": source, "event": name, **asdict(self), "separable": clear}


def centre_of_gravity(weights: FloatArray) -> float:
    """Return the mean layer number under `weights` (L,): Σ i · w_i / Σ w_i, layers from 1."""
    centre = float(centres_of_gravity(weights))
    if np.isnan(centre):
        raise ScoreError(f"Layers cannot be weighed: their scores sum to {weights.sum():g}.")
    return centre


def centres_of_gravity(weights: FloatArray) -> FloatArray:
    """Return the centre of gravity of each row of `weights` (..., L); NaN if a row's sum is not >
    0.
    """
    total = np.asarray(weights.sum(axis=-1))
    moment = weights @ np.arange(1.0, weights.shape[-1] + 1)
    centres = np.full(total.shape, np.nan)
    np.divide(moment, total, out=centres, where=total > 0)
    return centres


def relative_to_frozen(norms: FloatArray, frozen: FloatArray) -> FloatArray:
    """Return gradient norms (..., L) divided by those of the frozen model."""
    if not (frozen > 0).all():
        layer = int(np.argwhere(~(frozen > 0))[0, -1]) + 1
        raise ScoreError(
            f"The frozen model's gradient norm is {frozen[..., layer - 1].min():g} in layer "
            f"{layer}, so nothing can be divided by it."
        )
    return norms / frozen


def first_true(condition: BoolArray) -> FloatArray:
    """Return the first layer of 1..L where `condition` (..., L) holds; NaN if it never does."""
    return np.where(condition.any(axis=-1), condition.argmax(axis=-1) + 1.0, np.nan)


def last_crossing(condition: BoolArray) -> FloatArray:
    """Return the last layer at which `condition` (..., L) begins to hold, even if it fails
    later.

    Layers are counted from 1. Holding at layer 1 counts as beginning there; NaN if it never holds.
    """
    begins = condition.copy()
    begins[..., 1:] &= ~condition[..., :-1]
    return np.asarray(condition.shape[-1] + 1 - first_true(begins[..., ::-1]))


def last_uninterrupted(condition: BoolArray) -> FloatArray:
    """Return the layer, from 1, from which `condition` (..., L) holds up to the last layer.

    NaN if it does not hold at the last layer.
    """
    return np.where(condition[..., -1], last_crossing(condition), np.nan)


def event(condition: BoolArray, resampled: BoolArray, rule: Rule, first: int = 1) -> Event:
    """Return the event of `condition` (L,), with an interval from `resampled` (resamples, L).

    The ends are whole layers that occur in resamples.

    Args:
        condition: For each layer, whether the condition holds.
        resampled: The condition in each resample.
        rule: Choice of the event's layer.
        first: Layer number of the first column.
    """
    others = rule(resampled) + (first - 1)
    deep = np.where(np.isnan(others), np.inf, others)
    ends = np.quantile(deep, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], method="inverted_cdf")
    low, high = np.where(np.isinf(ends), np.nan, ends)
    never = float(np.isnan(others).mean())
    return Event(float(rule(condition)) + first - 1, float(low), float(high), never)


def event_depth(layers: FloatArray, depth: FloatArray | int) -> FloatArray:
    """Return layers as numbers that can be averaged and ranked: never (NaN) becomes `depth` + 1."""
    return np.where(np.isnan(layers), np.asarray(depth) + 1.0, layers)


def event_depths(events: Table, depth: FloatArray) -> dict[str, FloatArray]:
    """Return `event_depth` for the columns layer, low and high; unknown ends stay NaN."""
    layer, low, high = (events[n].to_numpy(np.float64) for n in ("layer", "low", "high"))
    ends = {"low": event_depth(low, depth), "high": event_depth(high, depth)}
    measured = has_interval(low, high, events["never"].to_numpy(np.float64))
    sure = {name: np.where(measured, end, np.nan) for name, end in ends.items()}
    return {"layer": event_depth(layer, depth), **sure}


def has_interval(low: Numbers, high: Numbers, never: Numbers) -> BoolArray:
    """Return whether an event's interval is known.

    If both ends are NaN, the interval lies beyond the last layer if the event never happens in some
    resamples; otherwise there are no resamples.
    """
    return ~(np.isnan(low) & np.isnan(high)) | (np.asarray(never) > 0)
