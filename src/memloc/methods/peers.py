"""Localisers from other papers, one weight per layer, to be compared on planted layers.

They were written from the papers. Each measures how the log-probability of the noisy examples'
assigned labels depends on a layer.
"""

from abc import abstractmethod

import numpy as np

from memloc.arrays import FloatArray
from memloc.methods import Method, Sizes
from memloc.run.folder import Run


class Peer(Method):
    """A localiser from another paper; it runs only if it is named."""

    by_default = False

    def run(self, run: Run) -> FloatArray:
        """Return the positive effects of the layers; if no layer has any, all layers get the same
        weight.
        """
        effects = np.maximum(0, self.effects(run))
        return effects if effects.any() else np.ones(run.depth)

    @abstractmethod
    def effects(self, run: Run) -> FloatArray:
        """Return the effect of each layer, below 0 if it has the opposite effect."""


class ActivationPatching(Peer):
    """States of the reference's run patched into the final model, layer by layer.

    Vig et al. 2020, Meng et al. 2022. A state carries the effect of all layers before it, so the
    weight of a layer is the effect of patching after it minus the effect of patching before it.
    """

    name = "activation_patching"
    needs = ("final", "reference")

    def effects(self, run: Run) -> FloatArray:
        """Return how much further the log-probability falls by patching after each layer."""
        from memloc.methods.effects import patched

        return -np.diff(patched(run))

    def cost(self, sizes: Sizes) -> float:
        """Return the seconds of this method: the model's remaining layers are run after each
        layer.
        """
        return sizes.depth / 2 * sizes.noisy * sizes.predict


class MeanAblation(Peer):
    """Mean ablation: each layer's update of the state is replaced by its mean over the clean
    examples.

    Single-layer mean ablation, as in Wang et al. 2023.
    """

    name = "mean_ablation"
    needs = ("final",)

    def effects(self, run: Run) -> FloatArray:
        """Return how much the log-probability falls without each layer."""
        from memloc.methods.effects import ablated

        log_probabilities = ablated(run)
        return np.asarray(log_probabilities[0] - log_probabilities[1:])

    def cost(self, sizes: Sizes) -> float:
        """Return the seconds of this method: mean updates, and the model's remaining layers after
        each layer.
        """
        return (sizes.examples + sizes.depth / 2 * sizes.noisy) * sizes.predict


class LogitLens(Peer):
    """Logit lens: the head reads each layer's output, and noisy labels become its answer at some
    layer.

    nostalgebraist 2020; the idea of prediction depth (Baldock et al. 2021) with the model's own
    head in place of neighbours. The weight of a layer is the rise of the log-probability.
    """

    name = "logit_lens"
    needs = ("final",)

    def effects(self, run: Run) -> FloatArray:
        """Return the rise of the log-probability at each layer."""
        from memloc.methods.effects import read_early

        return np.diff(read_early(run))

    def cost(self, sizes: Sizes) -> float:
        """Return the seconds for one prediction of each noisy example."""
        return sizes.noisy * sizes.predict


class IntegratedGradients(Peer):
    """Integrated gradients: all layers' outputs move from the reference's to the final model's.

    Sundararajan et al. 2017: gradients are averaged along the path, and the layers' values sum to
    the change by all of them. Moving one layer alone is activation patching, whatever the path
    (completeness).
    """

    name = "integrated_gradients"
    needs = ("final", "reference")

    def effects(self, run: Run) -> FloatArray:
        """Return the contribution of each layer to the log-probability along the path."""
        from memloc.methods.blends import path_gradients

        return path_gradients(run)

    def cost(self, sizes: Sizes) -> float:
        """Return the seconds for the gradients of two models at each point of the path."""
        return 8 * sizes.noisy * (sizes.update + sizes.predict)


class LayerMasks(Peer):
    """Gates that learn which layers must stay the final model's for the labels to be kept.

    Hard Concrete masks, which Chang et al. 2024 learn for neurons, with one gate per layer: the
    reference's layer comes in where the gate is 0.
    """

    name = "layer_masks"
    needs = ("final", "reference")

    def effects(self, run: Run) -> FloatArray:
        """Return the probability that each layer is needed."""
        from memloc.methods.blends import needed_gates

        return needed_gates(run)

    def cost(self, sizes: Sizes) -> float:
        """Return the seconds for the gates' updates, with two models."""
        return 80 * sizes.noisy * (sizes.update + sizes.predict)


class FisherDistance(Peer):
    """The squared distance from the reference's weights, each weighted by its Fisher information.

    Kirkpatrick et al. 2017: the diagonal of the empirical Fisher information of the final weights,
    here over the noisy examples and their assigned labels.
    """

    name = "fisher_distance"
    needs = ("final", "reference")

    def effects(self, run: Run) -> FloatArray:
        """Return the sum of F (final - reference)² over the parameters of each layer."""
        from memloc.methods.effects import fisher_distances

        return fisher_distances(run)

    def cost(self, sizes: Sizes) -> float:
        """Return the seconds for the gradients of each noisy example."""
        return sizes.noisy * sizes.update


PEERS: tuple[type[Method], ...] = (
    *(ActivationPatching, IntegratedGradients, LayerMasks),
    *(MeanAblation, LogitLens, FisherDistance),
)
