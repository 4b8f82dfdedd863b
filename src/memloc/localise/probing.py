"""Probes for noise: in which layers does it become readable that an example is noisy?"""

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from memloc.errors import DataError
from memloc.localise.base import Subject, check_pair
from memloc.localise.scores import LayerScores
from memloc.models.hidden import Vectors
from memloc.records import FloatArray, IntArray
from memloc.score.depth import centres_of_gravity
from memloc.score.uncertainty import CHUNK, Interval, bootstrap_counts
from memloc.seeds import generator
from memloc.train.probe import Probes, Target, drawn_f1, shuffled, train_probes
from memloc.train.vectors import vectors_of

NOISY = 1
"""The class of the noise probes that counts."""
UNLEARNT = "The probes did not learn: F1 is 0 in most layers, so their weights say little."
NO_RISE = "F1 does not rise at any layer, so the layers have no centre of gravity."
NO_NOISE = "No probe seed has a noisy example to test on, so F1 is 0 everywhere."


@dataclass(frozen=True)
class Probing:
    """A layer's weight is how much better its probe finds the noisy examples than the last one's.

    Layer 1 is compared with layer 1 of the frozen weights, whose blocks were never trained.
    """

    name = "probing"
    needs = ("final", "frozen")
    n_resamples: int = 1000
    level: float = 0.95

    def score_layers(self, subject: Subject) -> LayerScores:
        """Rise of F1 per layer, its mean over probe seeds, never below zero."""
        vectors, settings = _vectors(subject), subject.protocol.probes
        found = train_probes(vectors, _targets(subject), settings, subject.device)
        rng = generator(0, "bootstrap", self.name)
        resampled = resampled_f1(found["noise"], len(vectors), self.n_resamples, rng)
        return summarise(found["noise"], found["chance"], resampled, self.level)


def summarise(noise: Probes, chance: Probes, resampled: FloatArray, level: float) -> LayerScores:
    """Scores from probes of layers 0..L and, after them, of the frozen layer 1."""
    weights, others = rises(noise.f1), rises(resampled)
    tails = [(1 - level) / 2, (1 + level) / 2]
    low, high = np.quantile(others, tails, axis=0)
    f1, by_chance = noise.f1[:-1], chance.f1[:-1]
    frozen = np.full((len(weights), noise.f1.shape[1]), np.nan)
    frozen[0] = noise.f1[-1]
    return LayerScores(
        method="probing",
        weights=weights,
        low=np.asarray(low),
        high=np.asarray(high),
        mcog=_centre(weights, others, tails),
        details={
            "f1": f1,
            "frozen f1": frozen,
            "chance f1": by_chance,
            "selectivity": f1.mean(1) - by_chance.mean(1),
        },
        about={"level": level, "resamples": len(resampled), "remarks": _remarks(noise, weights)},
    )


def rises(f1: FloatArray) -> FloatArray:
    """Layer weights (..., L) from F1 (..., L + 2, seeds): layers 0..L, then the frozen layer 1."""
    rise = np.diff(f1[..., :-1, :], axis=-2)
    rise[..., 0, :] = f1[..., 1, :] - f1[..., -1, :]
    return np.asarray(np.maximum(0, rise.mean(-1)))


def resampled_f1(probes: Probes, n: int, n_resamples: int, rng: Generator) -> FloatArray:
    """F1 of the noisy class (n_resamples, layers, seeds) when the `n` examples are drawn anew.

    One draw serves all layers and seeds; of an example, each seed sees it if it is a test example.
    """
    found = np.empty((n_resamples, *probes.f1.shape))
    step = max(1, CHUNK // n)
    for start in range(0, n_resamples, step):
        counts = bootstrap_counts(n, min(step, n_resamples - start), rng).astype(np.float32)
        found[start : start + step] = drawn_f1(probes, counts, [NOISY])
    return np.nan_to_num(found)


def _vectors(subject: Subject) -> Vectors:
    """(examples, L + 2, width): layers 0..L of the final weights, then layer 1 of the frozen."""
    final = subject.load("final")
    last_layer = subject.protocol.probes.last_layer
    vectors = vectors_of(final.stack, subject.encode(final), last_layer=last_layer)
    frozen = subject.load("frozen")
    check_pair(final, frozen, "frozen")
    # A model of one layer has that layer's vector taken like the final weights' one.
    first = vectors_of(frozen.stack, subject.encode(frozen), last_layer=last_layer, up_to=1)
    return np.concatenate([vectors, first[:, 1:]], axis=1)


def _targets(subject: Subject) -> dict[str, Target]:
    is_noisy = subject.noisy.is_noisy
    if is_noisy.all() or not is_noisy.any():
        found = "only noisy" if is_noisy.any() else "no noisy"
        raise DataError(f"Probing needs noisy and clean examples, {subject.name} has {found} ones.")
    settings = subject.protocol.probes
    labels: IntArray = is_noisy.astype(np.int64)
    return {
        "noise": Target(labels, 2, settings.class_weights, f1_of=NOISY),
        "chance": Target(shuffled(labels, settings.seeds), 2, settings.class_weights, f1_of=NOISY),
    }


def _centre(weights: FloatArray, resampled: FloatArray, tails: list[float]) -> Interval:
    """M-CoG; NaN where nothing rises, resamples without one being left out."""
    estimate, found = float(centres_of_gravity(weights)), centres_of_gravity(resampled)
    kept = found[~np.isnan(found)]
    low, high = (np.nan, np.nan)
    if not np.isnan(estimate) and len(kept):
        low, high = np.quantile(kept, tails)
    n_dropped = len(found) - len(kept)
    return Interval(estimate, float(low), float(high), tails[1] - tails[0], n_dropped)


def _remarks(noise: Probes, weights: FloatArray) -> list[str]:
    if not (noise.truth == NOISY).any():
        return [NO_NOISE]
    nowhere = (noise.f1[1:-1] == 0).all(1)  # layers 1..L
    found = {UNLEARNT: nowhere.mean() > 0.5, NO_RISE: not weights.any()}
    return [sentence for sentence, holds in found.items() if holds]
