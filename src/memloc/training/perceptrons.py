"""Many small networks as one: their weights stacked, their gradients written out.

AdamW works number by number, so one optimiser over stacked weights trains each network as if it
were alone. The gradient of so small a network is a few products, and writing it into the place
where the optimiser looks spares most of what a general backward pass costs.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional

from memloc.seeds import number


class Perceptrons:
    """Networks of the same sizes, each a chain of linear layers with GELU in between."""

    def __init__(self, weights: Sequence[Sequence[Tensor]]) -> None:
        """`weights`: for each network, weight (out, in) and bias (1, out) of each layer in turn."""
        stacked = [torch.stack(tensors) for tensors in zip(*weights, strict=True)]
        self._shapes = [tensor.shape for tensor in stacked]
        self.flat = torch.nn.Parameter(torch.cat([tensor.reshape(-1) for tensor in stacked]))
        self.flat.grad = torch.zeros_like(self.flat)
        self._weights = self._views(self.flat.data)
        self._gradients = self._views(self.flat.grad)

    def __len__(self) -> int:
        return int(self._shapes[0][0])

    @torch.no_grad()
    def logits(self, inputs: Tensor) -> Tensor:
        """`inputs` (networks, examples, width) to (networks, examples, classes)."""
        return self._forward(inputs)[-1]

    @torch.no_grad()
    def differentiate(self, inputs: Tensor, labels: Tensor, weights: Tensor) -> None:
        """Put the gradient of each network's loss into `flat.grad`.

        The loss is the sum of the cross-entropies under `weights`; they and `labels` are
        (networks, examples).
        """
        *before, logits = self._forward(inputs)
        error = torch.softmax(logits, -1)
        error.scatter_add_(-1, labels.unsqueeze(-1), torch.full_like(error[..., :1], -1.0))
        error *= weights.unsqueeze(-1)
        for layer in reversed(range(len(before) + 1)):
            entering = functional.gelu(before[layer - 1]) if layer else inputs
            torch.bmm(error.transpose(1, 2), entering, out=self._gradients[2 * layer])
            torch.sum(error, 1, keepdim=True, out=self._gradients[2 * layer + 1])
            if layer:
                passed = torch.bmm(error, self._weights[2 * layer])
                error = torch.ops.aten.gelu_backward(passed, before[layer - 1])

    @torch.no_grad()
    def copy_from(self, other: "Perceptrons", which: Tensor) -> None:
        """Take over the weights of the networks where `which` is true."""
        for mine, theirs in zip(self._weights, other._weights, strict=True):
            mine[which] = theirs[which]

    def _forward(self, inputs: Tensor) -> list[Tensor]:
        """What every layer gives, before GELU."""
        given: list[Tensor] = []
        for weight, bias in zip(self._weights[::2], self._weights[1::2], strict=True):
            entering = functional.gelu(given[-1]) if given else inputs
            given.append(torch.baddbmm(bias, entering, weight.transpose(1, 2)))
        return given

    def _views(self, flat: Tensor) -> list[Tensor]:
        pieces = torch.split_with_sizes(flat, [shape.numel() for shape in self._shapes])
        return [piece.view(shape) for piece, shape in zip(pieces, self._shapes, strict=True)]


def initial_weights(sizes: Sequence[int], seed: int) -> list[Tensor]:
    """Weights and biases as `torch.nn.Linear` draws them, from this seed alone."""
    draw = torch.Generator().manual_seed(number(seed, "probe", "weights"))
    tensors = []
    for entering, leaving in pairwise(sizes):
        for shape in ((leaving, entering), (1, leaving)):
            uniform = torch.rand(shape, generator=draw) * 2 - 1
            tensors.append(uniform / entering**0.5)
    return tensors
