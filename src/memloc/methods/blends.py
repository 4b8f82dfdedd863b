"""The final model with a gate per layer through which the reference's layer comes in.

With gate g, the state after a layer is g times the final layer's output plus 1 - g times the
reference layer's output, both computed from the same input. Gates depend on functions only: weights
that are written differently but compute the same give the same gates.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from memloc.arrays import FloatArray
from memloc.model.predict import length_batches, to_batch
from memloc.model.stack import Prepared, undropped
from memloc.run.folder import Run
from memloc.seeds import generator

POINTS = 8
"""Number of points on the path over which gradients are averaged."""
STEPS = 80
"""Number of updates of the masks."""
RATE = 0.2
"""Learning rate of the masks, by Adam."""
PENALTY = 1.0
"""Cost of a layer that stays the final model's, in nats of one example, times the depth."""
TEMPERATURE, LOW, HIGH = 2 / 3, -0.1, 1.1
"""The Hard Concrete distribution as Louizos et al. 2018 recommend it."""


class Blend:
    """Two models of a run blended by one gate per layer; gradients are with respect to the
    gates.
    """

    def __init__(self, run: Run) -> None:
        """Load the run's noisy examples, its final model and its reference."""
        self.stack, other = (run.load(weights).stack for weights in ("final", "reference"))
        self.blocks = [self.stack.run, other.run]
        self.models = [self.stack.model, other.model]
        encoded = run.encode(run.load("final"))
        rows = run.noisy_rows
        self.batches: list[tuple[Prepared, Tensor]] = []
        with torch.no_grad(), undropped(self.stack.model):
            for picked in length_batches(self.stack, encoded.lengths[rows]):
                batch = to_batch(encoded, rows[picked], self.stack.device)
                labels = torch.from_numpy(run.noisy.assigned[rows[picked]])
                self.batches.append((self.stack.prepare(batch), labels.to(self.stack.device)))
        self.n_examples = len(rows)

    def gradient(self, gates: Tensor) -> Tensor:
        """Return the gradient of the assigned labels' mean log-probability with respect to the
        gates.
        """
        with torch.enable_grad(), undropped(self.models[0]), undropped(self.models[1]):
            gates = gates.detach().requires_grad_()
            parts = [torch.autograd.grad(one, gates)[0] for one in self._terms(gates)]
        return torch.stack(parts).sum(0) / self.n_examples

    def _terms(self, gates: Tensor) -> Iterator[Tensor]:
        for prepared, labels in self.batches:
            state = prepared.state
            for index, call in enumerate(prepared.calls):
                ours, other = (run(index, state, call) for run in self.blocks)
                state = other + gates[index] * (ours - other)
            logits = self.stack.finish(self.stack.read(state, prepared), prepared.batch).float()
            yield logits.log_softmax(1).gather(1, labels[:, None]).sum()


def path_gradients(run: Run) -> FloatArray:
    """Return the integral of each gate's gradient while all gates go from 0 to 1 at once.

    The values of all layers sum to the change when all of them are exchanged.
    """
    blend = Blend(run)
    points = (np.arange(POINTS) + 0.5) / POINTS
    gates = (torch.full((run.depth,), at, device=blend.stack.device) for at in points)
    return np.asarray(torch.stack([blend.gradient(point) for point in gates]).mean(0).cpu())


def needed_gates(run: Run) -> FloatArray:
    """Return the probability that each layer must stay the final model's.

    Gates are drawn from a Hard Concrete distribution. Its parameters learn to keep the assigned
    labels while each layer that stays has a cost, so layers that are not needed are given up.
    """
    blend = Blend(run)
    device = blend.stack.device
    rng = generator(run.seed, "layer masks", run.name)
    strength = torch.full((run.depth,), 2.0, device=device, requires_grad=True)
    optimiser = torch.optim.Adam([strength], lr=RATE)
    for _ in range(STEPS):
        uniform = torch.from_numpy(rng.uniform(1e-6, 1 - 1e-6, run.depth)).float().to(device)
        drawn = torch.sigmoid((uniform.logit() + strength) / TEMPERATURE) * (HIGH - LOW) + LOW
        gates = drawn.clamp(0, 1)
        kept = _probability(strength).mean() * PENALTY
        loss = kept - (gates * blend.gradient(gates)).sum()
        (strength.grad,) = torch.autograd.grad(loss, strength)
        optimiser.step()
    return np.asarray(_probability(strength).detach().double().cpu())


def _probability(strength: Tensor) -> Tensor:
    """Return the probability that a gate is above 0."""
    return torch.sigmoid(strength - TEMPERATURE * np.log(-LOW / HIGH))
