"""One vector per example and layer, at the position that the head reads, in one pass.

Where the head reads several positions, the vector is the mean of all that are attended.
"""

from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from memloc.errors import ModelError
from memloc.models.stack import Batch, Prepared, Stack
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
        prepared = stack.prepare(batch)
        state = prepared.state
        found = [stack.vectors(state, prepared)]
        for index in range(depth):
            state = stack.run(index, state, prepared.calls[index])
            found.append(stack.vectors(state, prepared))
        if last_layer == "final norm" and depth == stack.depth:
            found[-1] = head_input(stack, stack.read(state, prepared), prepared)
        vectors[rows] = torch.stack(found, dim=1).float().cpu().numpy()
    return vectors


def head_input(stack: Stack, read: Tensor, prepared: Prepared) -> Tensor:
    """What the model makes of the last block's outputs before its head sees them, (n, width).

    That is the base model's last hidden state: after a decoder's final norm, and the block's
    output itself where nothing follows the blocks.
    """
    seen: list[Any] = []

    def keep(_module: nn.Module, _inputs: Any, output: Any) -> None:
        seen.append(getattr(output, "last_hidden_state", None))

    handle = stack.model.base_model.register_forward_hook(keep)
    try:
        stack.finish(read, prepared.batch)
    finally:
        handle.remove()
    states = seen[0] if seen else None
    states_needed = read.shape if stack.readout == "all" else (len(read), 1, stack.width)
    if not isinstance(states, Tensor) or states.shape != states_needed:
        raise ModelError(
            f"{type(stack.model).__name__} does not say what its head is given as a vector of "
            f"{stack.width} numbers: set probes.last_layer to 'block output'."
        )
    return stack.vectors(states, prepared) if stack.readout == "all" else states[:, 0]
