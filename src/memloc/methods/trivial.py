"""Trivial baselines: localisers that a useful method has to beat.

None of them asks what a layer does. Distances of weights find planted layers on easy plants, where
these layers learn at a higher rate than the others, and nothing on ordinary runs; see the page on
control. Studies run them on every plant, except those whose weights are not made there, and control
tables show the best. On ordinary runs they run only if they are named.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from memloc.arrays import FloatArray
from memloc.methods import Method, Sizes
from memloc.methods.gradients import Gradients
from memloc.run.folder import Run
from memloc.seeds import generator

if TYPE_CHECKING:
    from torch import nn


class Trivial(Method):
    """A localiser that costs next to nothing; outside of plants it runs only if it is named."""

    by_default = False
    is_trivial = True
    labels_only = ""

    def cost(self, sizes: Sizes) -> float:
        """Return the seconds for reading the weights once, about those of a prediction."""
        return sizes.predict


class WeightDistance(Trivial):
    """The squared distance of each layer's weights from those of the reference."""

    name = "weight_distance"
    needs = ("final", "reference")

    def run(self, run: Run) -> FloatArray:
        """Return the squared distance of each layer."""
        final, other = (run.load(weights).stack.blocks for weights in self.needs)
        distances = [self.distance(*pair) for pair in zip(final, other, strict=True)]
        return np.square(distances)

    def distance(self, block: "nn.Module", other: "nn.Module") -> float:
        """Return the Euclidean distance between the parameters of two blocks."""
        pairs = zip(block.parameters(), other.parameters(), strict=True)
        return _norm((one.detach() - two.detach()).float().norm().item() for one, two in pairs)


class RelativeDistance(WeightDistance):
    """The squared distance of each layer's weights from the reference's, relative to the size of
    these.
    """

    name = "relative_distance"

    def distance(self, block: "nn.Module", other: "nn.Module") -> float:
        """Return the distance, divided by the norm of the other block's parameters."""
        size = _norm(p.detach().float().norm().item() for p in other.parameters())
        return super().distance(block, other) / size


class PretrainedDistance(WeightDistance):
    """The squared distance of each layer's weights from the pre-trained ones."""

    name = "pretrained_distance"
    needs = ("final", "pretrained")


class PlainGradients(Trivial):
    """The norm of the noisy examples' mean gradient, without any post-processing."""

    name = "plain_gradients"
    needs = ("memorised",)

    def run(self, run: Run) -> FloatArray:
        """Return the norm of each layer's mean gradient."""
        return Gradients(subtract_clean=False, divide_frozen=False).run(run).weights

    def cost(self, sizes: Sizes) -> float:
        """Return the seconds of gradients for the noisy examples and as many clean ones."""
        return 2 * sizes.noisy * sizes.update


class ShallowGuess(Trivial):
    """Guesses that memories are in the first layers: weights fall linearly with depth."""

    name = "shallow_guess"
    needs = ("final",)

    def run(self, run: Run) -> FloatArray:
        """Return L for the first layer and 1 for the last."""
        return np.arange(run.depth, 0, -1, dtype=np.float64)


class DeepGuess(Trivial):
    """Guesses that memories are in the last layers: weights rise linearly with depth."""

    name = "deep_guess"
    needs = ("final",)

    def run(self, run: Run) -> FloatArray:
        """Return 1 for the first layer and L for the last."""
        return np.arange(1, run.depth + 1, dtype=np.float64)


class EvenGuess(Trivial):
    """Guesses that every layer holds the same amount."""

    name = "even_guess"
    needs = ("final",)

    def run(self, run: Run) -> FloatArray:
        """Return 1 for every layer."""
        return np.ones(run.depth)


class RandomGuess(Trivial):
    """Guesses at random, differently for each run."""

    name = "random_guess"
    needs = ("final",)

    def run(self, run: Run) -> FloatArray:
        """Return random numbers between 0 and 1."""
        return generator(run.seed, "random guess", run.name).random(run.depth)


TRIVIAL: tuple[type[Method], ...] = (
    *(WeightDistance, RelativeDistance, PretrainedDistance, PlainGradients),
    *(ShallowGuess, DeepGuess, EvenGuess, RandomGuess),
)


def _norm(norms: Iterable[float]) -> float:
    """Return the norm of all parameters from the norms of their parts."""
    return float(np.linalg.norm(list(norms)))
