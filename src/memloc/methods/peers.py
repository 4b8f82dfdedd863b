"""Localisers of other people's papers, per layer, to be compared on planted layers.

They were written from the papers. Each asks how the log-probability of the noisy examples' assigned
labels depends on a layer.
"""

from abc import abstractmethod

import numpy as np

from memloc.arrays import FloatArray
from memloc.methods import Method, Sizes
from memloc.run.folder import Run


class Peer(Method):
    """A localiser from another paper, which runs only where it is named."""

    by_default = False

    def run(self, run: Run) -> FloatArray:
        """Return what each layer does; where none does anything, all layers weigh alike."""
        found = np.maximum(0, self.effects(run))
        return found if found.any() else np.ones(run.depth)

    @abstractmethod
    def effects(self, run: Run) -> FloatArray:
        """Return what each layer does, below 0 where it does the opposite."""


class ActivationPatching(Peer):
    """States of the reference's run patched into the final model's, layer by layer.

    Vig et al. 2020, Meng et al. 2022. A state carries what all layers before it did, so the weight
    of a layer is what patching after it does more than patching before it.
    """

    name = "activation_patching"
    needs = ("final", "reference")

    def effects(self, run: Run) -> FloatArray:
        """Return how much more the log-probability falls by patching after each layer."""
        from memloc.methods.effects import patched

        return -np.diff(patched(run))

    def cost(self, sizes: Sizes) -> float:
        """Return the seconds of a run of each rest of the model."""
        return sizes.depth / 2 * sizes.noisy * sizes.predict


class MeanAblation(Peer):
    """Mean ablation: what each layer adds is replaced by its mean over the clean examples.

    Single-layer mean ablation, as in Wang et al. 2023.
    """

    name = "mean_ablation"
    needs = ("final",)

    def effects(self, run: Run) -> FloatArray:
        """Return how much the log-probability falls without each layer, relative to none."""
        from memloc.methods.effects import ablated

        found = ablated(run)
        return np.asarray(found[0] - found[1:])

    def cost(self, sizes: Sizes) -> float:
        """Return the seconds of the means and of a run of each rest of the model."""
        return (sizes.examples + sizes.depth / 2 * sizes.noisy) * sizes.predict


class LogitLens(Peer):
    """Logit lens: the head reads each layer's output; noisy labels become its answer somewhere.

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
        """Return the seconds of one prediction of each noisy example."""
        return sizes.noisy * sizes.predict


class IntegratedGradients(Peer):
    """Integrated gradients: all layers' outputs move from the reference's to the final model's.

    Sundararajan et al. 2017: gradients are averaged along the path, and layers sum to what all of
    them change. Moving one layer alone is activation patching, whatever the path (completeness).
    """

    name = "integrated_gradients"
    needs = ("final", "reference")

    def effects(self, run: Run) -> FloatArray:
        """Return what each layer adds to the log-probability on the way."""
        from memloc.methods.blends import path_gradients

        return path_gradients(run)

    def cost(self, sizes: Sizes) -> float:
        """Return the seconds of the gradients at each point of the path, of two models."""
        return 8 * sizes.noisy * (sizes.update + sizes.predict)


class LayerMasks(Peer):
    """Gates that learn which layers must stay the final model's for the labels to be kept.

    Hard Concrete masks, which Chang et al. 2024 learn for neurons, with one gate per layer: the
    reference's layer comes in where the gate is 0.
    """

    name = "layer_masks"
    needs = ("final", "reference")

    def effects(self, run: Run) -> FloatArray:
        """Return how probable it is that each layer is needed."""
        from memloc.methods.blends import needed_gates

        return needed_gates(run)

    def cost(self, sizes: Sizes) -> float:
        """Return the seconds of the gates' updates, of two models."""
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
        """Return the seconds of the gradients of each noisy example."""
        return sizes.noisy * sizes.update


PEERS: tuple[type[Method], ...] = (
    *(ActivationPatching, IntegratedGradients, LayerMasks),
    *(MeanAblation, LogitLens, FisherDistance),
)
