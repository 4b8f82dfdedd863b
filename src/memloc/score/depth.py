"""How deep: the centre of gravity of layer weights, and the layers where events happen."""

import numpy as np

from memloc.errors import ScoreError
from memloc.records import BoolArray, FloatArray


def centre_of_gravity(weights: FloatArray) -> float:
    """Mean of the layer numbers 1..L under `weights` (L,): sum of i * w_i over sum of w_i."""
    centre = float(centres_of_gravity(weights))
    if np.isnan(centre):
        raise ScoreError(f"Layers cannot be weighed: their scores sum to {weights.sum():g}.")
    return centre


def centres_of_gravity(weights: FloatArray) -> FloatArray:
    """The same for each row of `weights` (..., L); NaN where its sum is not positive."""
    total = np.asarray(weights.sum(axis=-1))
    moment = weights @ np.arange(1.0, weights.shape[-1] + 1)
    centres = np.full(total.shape, np.nan)
    np.divide(moment, total, out=centres, where=total > 0)
    return centres


def first_layer(condition: BoolArray) -> int | None:
    """First layer of 1..L where `condition` (L,) holds; `None`: it never does."""
    return min(_layers(condition), default=None)


def last_crossing(condition: BoolArray) -> int | None:
    """Last layer of 1..L where `condition` (L,) begins to hold, even if it ends again later.

    Holding at layer 1 counts as beginning there; `None`: it never holds.
    """
    before = np.concatenate([[False], condition[:-1]])
    return max(_layers(condition & ~before), default=None)


def last_uninterrupted(condition: BoolArray) -> int | None:
    """Layer of 1..L from which `condition` (L,) holds up to the last one.

    `None`: it does not hold at the last layer, whatever came before.
    """
    return last_crossing(condition) if condition[-1:].any() else None


def _layers(condition: BoolArray) -> list[int]:
    return [int(index) + 1 for index in np.flatnonzero(condition)]
