"""How much of the memorised labels is where, and how sure that is.

All quantities are of the mean profile of the noisy labels' shares (examples, layers); their 95 %
intervals come from resampled examples. They describe the estimate, whatever the verdict on it is.
"""

from dataclasses import dataclass

import numpy as np

from memloc.arrays import BoolArray, FloatArray
from memloc.seeds import generator
from memloc.stats.depth import centres_of_gravity
from memloc.stats.intervals import Interval, band
from memloc.stats.windows import layer_ranges

RESAMPLES = 9999
FULL = 0.9
"""Share of noisy labels undone from which a sentence speaks of the memorised labels as a whole."""


@dataclass(frozen=True)
class Whereabouts:
    """Where the labels are that exchanging all layers undoes."""

    undone: float
    """Share of the noisy labels that are undone."""
    layers: tuple[int, ...]
    """Smallest set of layers, from 1, that holds half of what is undone."""
    held: Interval
    """Share of what is undone that these layers hold."""
    agreement: float
    """Share of resamples whose smallest set is the same."""
    first_half: Interval
    """Share of what is undone that the first half of the layers holds."""
    centre: Interval
    """Mean of the layer numbers, weighted by their positive shares."""
    depth: int

    @property
    def sentence(self) -> str:
        """Name the layers that hold half of the labels, and say what half of the depth holds."""
        labels = "the memorised labels"
        if self.undone < FULL:
            labels = f"the {self.undone:.0%} of labels that are undone"
        verb = "hold" if len(self.layers) > 1 else "holds"
        text = f"{layer_ranges(self.layers)} {verb} {_percent(self.held)} of {labels}"
        middle = self.depth // 2
        first = self.first_half
        if first.estimate >= 0.5:
            name, half, held = "first", range(1, middle + 1), first
        else:
            name, half = "last", range(middle + 1, self.depth + 1)
            held = Interval(1 - first.estimate, 1 - first.high, 1 - first.low)
        if self.depth < 4 or set(half) <= set(self.layers):
            return f"{text}."
        return f"{text}, the {name} {len(half)} layers {_percent(held)}."


def whereabouts(shares: FloatArray) -> Whereabouts | None:
    """Describe shares (examples, layers); None where exchanging all layers undoes nothing."""
    n, depth = shares.shape
    if n < 2 or shares.sum() <= 0:
        return None
    counts = generator(0, "whereabouts").multinomial(n, np.full(n, 1 / n), size=RESAMPLES)
    profiles = np.concatenate([shares.mean(0)[None], counts @ shares / n])
    sets = smallest_halves(profiles)
    totals = profiles.sum(1)
    totals[totals <= 0] = np.nan
    held = band(np.where(sets[0], profiles, 0).sum(1) / totals)
    first_half = band(profiles[:, : depth // 2].sum(1) / totals)
    centre = band(centres_of_gravity(np.maximum(0, profiles)))
    layers = tuple(int(layer) + 1 for layer in np.flatnonzero(sets[0]))
    agreement = float((sets[1:] == sets[0]).all(1).mean())
    return Whereabouts(float(totals[0]), layers, held, agreement, first_half, centre, depth)


def smallest_halves(profiles: FloatArray) -> BoolArray:
    """Of each profile (R, L), mark the fewest layers whose positive shares sum to at least half."""
    positive = np.maximum(0, profiles)
    order = np.argsort(-positive, axis=1, kind="stable")
    before = np.take_along_axis(positive, order, axis=1).cumsum(1)
    before = np.roll(before, 1, axis=1)
    before[:, 0] = 0
    marked = np.zeros(profiles.shape, dtype=bool)
    needed = before < positive.sum(1, keepdims=True) / 2 - 1e-12
    np.put_along_axis(marked, order, needed, axis=1)
    return marked


def _percent(share: Interval) -> str:
    """Write a share with its interval: `88 % [85, 90]`."""
    return f"{share.estimate:.0%} [{100 * share.low:.0f}, {100 * share.high:.0f}]"
