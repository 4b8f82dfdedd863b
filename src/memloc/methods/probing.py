"""Probes for noise: in which layers can a probe read whether an example is noisy?"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.random import Generator
from pydantic import PositiveFloat

from memloc.arrays import FloatArray, IntArray, Table, Vectors
from memloc.errors import DataError
from memloc.methods import Method, Sizes
from memloc.methods.result import Result
from memloc.protocol import ProbeSettings
from memloc.run.folder import Run
from memloc.seeds import generator
from memloc.settings import packaged, published
from memloc.stats.depth import centres_of_gravity
from memloc.stats.intervals import RESAMPLES, Interval, percentiles, resampled
from memloc.store.records import as_table

if TYPE_CHECKING:
    from memloc.methods.probes import Probes, Target

NOISY = 1
"""Class of the noise probes whose F1 is the score."""
UNLEARNT = "The probes did not learn: F1 is 0 in most layers, so their weights say little."
NO_RISE = "F1 does not rise at any layer, so the layers have no centre of gravity."
ABOUT = (
    "Probes also tell memorised texts from ordinary ones by what they are about, whether a model "
    "memorised them or not: by the embedding of a prompt's last token, F1 is {f1:.2f}."
)
NO_NOISE = "No probe seed has a noisy example to test on, so F1 is 0 everywhere."


class Probing(Method, ProbeSettings):
    """Weighs a layer by how much better its probe finds noisy examples than the previous layer's.

    Layer 1 is compared with layer 1 of the frozen weights, whose blocks were never trained. Texts
    are read at the last token of the prompt; the weights of a language model that were never
    trained are the pre-trained ones.
    """

    name = "probing"
    labels_only = ""
    needs = ("final", "frozen")
    shows = {"noise_probes": "noise_probes"}
    report = packaged(__file__)

    class_weights: tuple[PositiveFloat, PositiveFloat] = published((0.33, 0.67))
    """Weights of clean and of noisy examples in the loss of a probe."""

    def run(self, run: Run) -> Result:
        """Return the rise of F1 at each layer: its mean over probe seeds, never below zero."""
        from memloc.methods.probes import alike_remarks, train_probes

        vectors = self._vectors(run)
        probes = train_probes(vectors, self.targets(run), self, run.device)
        rng = generator(0, "bootstrap", self.name)
        resampled = resampled_f1(probes["noise"], len(vectors), RESAMPLES, rng)
        remarks = [] if self.standardise else alike_remarks(vectors[:, :-1], self.name)
        if run.task.is_texts:
            remarks.append(ABOUT.format(f1=probes["noise"].f1[0].mean()))
        return probe_scores(probes["noise"], probes["chance"], resampled, remarks)

    def _vectors(self, run: Run) -> Vectors:
        """Return (examples, L + 2, width): layers 0..L of the final weights, then layer 1 of
        θ_F.
        """
        from memloc.model.predict import vectors_of

        vectors, frozen = run.vectors("final", self.last_layer), run.load("frozen")
        # A model of one layer has that layer's vector taken like the final weights' one.
        first = vectors_of(frozen.stack, run.encode(frozen), last_layer=self.last_layer, up_to=1)
        return np.concatenate([vectors, first[:, 1:]], axis=1)

    def targets(self, run: Run) -> "dict[str, Target]":
        """Return the labels that probes learn: which examples are noisy, true and shuffled."""
        from memloc.methods.probes import Target, shuffled

        is_noisy = run.noisy.is_noisy
        if is_noisy.all() or not is_noisy.any():
            kinds = "only noisy" if is_noisy.any() else "no noisy"
            raise DataError(f"Probing needs noisy and clean examples; {run.name} has {kinds} ones.")
        labels: IntArray = is_noisy.astype(np.int64)
        dealt = shuffled(labels, self.seeds)
        return {
            "noise": Target(labels, 2, self.class_weights, f1_of=NOISY),
            "chance": Target(dealt, 2, self.class_weights, f1_of=NOISY),
        }

    def cost(self, sizes: Sizes) -> float:
        """Return the seconds for probes of all layers and the vectors of two models."""
        probes = self.epochs * sizes.examples * sizes.probe
        return probes + 2 * sizes.examples * sizes.predict


def probe_scores(
    noise: "Probes", chance: "Probes", resampled: FloatArray, said: Sequence[str] = ()
) -> Result:
    """Return the scores from probes of layers 0..L and, after them, of the frozen layer 1.

    Args:
        noise: Probes of which examples are noisy.
        chance: Probes of shuffled labels.
        resampled: F1 of resamples.
        said: Remarks on the vectors.
    """
    weights, others = rises(noise.f1), rises(resampled)
    f1, by_chance = noise.f1[:-1], chance.f1[:-1]
    tables = {"noise_probes": _means_table(f1, by_chance), "probe_seeds": _seeds_table(noise, f1)}
    return Result.of(
        "probing",
        weights,
        percentiles(others),
        _centre(weights, others),
        tables=tables,
        about={"resamples": len(resampled), "remarks": [*_remarks(noise, weights), *said]},
    )


def _means_table(f1: FloatArray, chance: FloatArray) -> Table:
    """Return F1 of layers 0..L: mean over probe seeds, range, and F1 with shuffled labels."""
    values = {"f1": f1.mean(1), "low": f1.min(1), "high": f1.max(1), "chance": chance.mean(1)}
    return as_table({"layer": np.arange(len(f1)), **values})


def _seeds_table(noise: "Probes", f1: FloatArray) -> Table:
    """Return F1 of every layer and probe seed; `frozen` is layer 1 of the frozen weights."""
    layer, seed = (index.ravel() for index in np.indices(f1.shape))
    rows = {"of": "final", "layer": layer, "probe": seed, "f1": f1.ravel()}
    first = {"of": "frozen", "layer": 1, "probe": np.arange(f1.shape[1]), "f1": noise.f1[-1]}
    return as_table(rows, first)


def rises(f1: FloatArray) -> FloatArray:
    """Return layer weights (..., L) from F1 (..., L + 2, seeds): layers 0..L, then the frozen layer
    1.
    """
    rise = np.diff(f1[..., :-1, :], axis=-2)
    rise[..., 0, :] = f1[..., 1, :] - f1[..., -1, :]
    return np.asarray(np.maximum(0, rise.mean(-1)))


def resampled_f1(probes: "Probes", n: int, n_resamples: int, rng: Generator) -> FloatArray:
    """Return F1 of the noisy class (n_resamples, layers, seeds) for resampled examples.

    One draw is used for all layers and seeds; a seed counts an example only if it tests it.

    Args:
        probes: Probes of which examples are noisy.
        n: Number of examples.
        n_resamples: Number of resamples.
        rng: Generator that draws the resamples.
    """
    from memloc.methods.probes import drawn_f1

    def f1(counts: IntArray) -> FloatArray:
        return drawn_f1(probes, counts.astype(np.float32), [NOISY])

    return np.nan_to_num(resampled(f1, n, rng, n_resamples)[1:])


def _centre(weights: FloatArray, resampled: FloatArray) -> Interval:
    """Return M-CoG with its interval; NaN where nothing rises, and such resamples are left out."""
    estimate, centres = float(centres_of_gravity(weights)), centres_of_gravity(resampled)
    kept = centres[~np.isnan(centres)]
    low, high = percentiles(kept[:0] if np.isnan(estimate) else kept)
    return Interval(estimate, float(low), float(high), n_dropped=len(centres) - len(kept))


def _remarks(noise: "Probes", weights: FloatArray) -> list[str]:
    if not (noise.truth == NOISY).any():
        return [NO_NOISE]
    nowhere = (noise.f1[1:-1] == 0).all(1)  # layers 1..L
    remarks = {UNLEARNT: nowhere.mean() > 0.5, NO_RISE: not weights.any()}
    return [sentence for sentence, holds in remarks.items() if holds]
