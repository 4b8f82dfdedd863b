"""One vector per example and layer, at the position that the head reads, in one pass."""

from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from memloc.errors import ModelError
from memloc.models.stack import Batch, Stack, at_positions
from memloc.records import IntArray

Vectors: TypeAlias = NDArray[np.float32]
"""(examples, layers 0..L, width); layer 0 is what the first block is given."""
LastLayer: TypeAlias = Literal["block output", "final norm"]
"""The vector of the last layer: what its block returns, or what the head is given."""


@torch.inference_mode()
def readout_vectors(
    stack: Stack,
    batches: Iterable[tuple[IntArray, Batch]],
    n: int,
    *,
    last_layer: LastLayer = "block output",
    up_to: int | None = None,
) -> Vectors:
    """The vectors of `n` examples, which come as their rows and a batch of their texts.

    `up_to`: the last layer that is wanted; the blocks above it do not run. The model should be in
    evaluation mode. Of each state only the readout position is kept.
    """
    depth = stack.depth if up_to is None else up_to
    vectors = np.zeros((n, depth + 1, stack.width), dtype=np.float32)
    for rows, batch in batches:
        found = torch.stack(_layers(stack, batch, depth), dim=1)
        if last_layer == "final norm" and depth == stack.depth:
            found[:, -1] = head_input(stack, found[:, -1])
        vectors[rows] = found.float().cpu().numpy()
    return vectors


def head_input(stack: Stack, vectors: Tensor) -> Tensor:
    """What the model makes of the last block's outputs (n, width) before its head sees them.

    That is the base model's last hidden state: after a decoder's final norm, and the block's
    output itself where nothing follows the blocks.
    """
    seen: list[Any] = []

    def keep(_module: nn.Module, _inputs: Any, output: Any) -> None:
        seen.append(getattr(output, "last_hidden_state", None))

    handle = stack.model.base_model.register_forward_hook(keep)
    try:
        stack.finish(vectors)
    finally:
        handle.remove()
    states = seen[0] if seen else None
    if not isinstance(states, Tensor) or states.shape != (len(vectors), 1, stack.width):
        raise ModelError(
            f"{type(stack.model).__name__} does not say what its head is given as a vector of "
            f"{stack.width} numbers: set probes.last_layer to 'block output'."
        )
    return states[:, 0]


def _layers(stack: Stack, batch: Batch, depth: int) -> list[Tensor]:
    prepared = stack.prepare(batch)
    state = prepared.state
    found = [at_positions(state, prepared.positions)]
    for index in range(depth):
        state = stack.run(index, state, prepared.calls[index])
        found.append(at_positions(state, prepared.positions))
    return found
