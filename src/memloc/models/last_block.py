"""The last block at the readout position alone, for models whose attention can be taken apart.

A head that reads one position needs nothing else of the last block, and where all subsets of layers
are run, every second step is one of the last block. Only its keys and values are needed at all
positions. So the block runs up to its attention for all of them, and then as a whole for the one
position, which attends to the keys and values of the first time.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface

from memloc.models.stack import TOLERANCE, BlockCall, Stack, hidden_of, undropped

SDPA = "sdpa"
"""The implementation of attention that is taken apart: the usual one."""


class LastBlock:
    """The last block of a stack, for texts of one length."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.is_short = stack.readout != "all" and self._can_be_short()
        """Whether one position is computed alone; if not, the block runs on all of them."""

    def read(self, state: Tensor, call: BlockCall, position: int) -> Tensor:
        """What the head reads of the block's output: at one position, or all of it."""
        if self.is_short:
            return self._at(state, call, position)
        found = self.stack.run(self.stack.depth - 1, state, call)
        return found if self.stack.readout == "all" else found[:, position]

    def _at(self, state: Tensor, call: BlockCall, position: int) -> Tensor:
        block, here = self.stack.blocks[-1], slice(position, position + 1)
        usual = AttentionInterface()[SDPA]
        given: list[Tensor] = []

        def stop(_module: Any, *tensors: Any, **_: Any) -> Any:
            given.extend(tensors)
            raise _Reached

        def attend(module: Any, *_: Any, **settings: Any) -> Any:
            query, key, value, mask = given
            reached = mask if mask is None or mask.shape[-2] == 1 else mask[..., here, :]
            return usual(module, query[:, :, here], key, value, reached, **settings)

        with _attention(stop), suppress(_Reached):
            block(state, *call.args, **call.kwargs)
        args, kwargs = _cut((call.args, call.kwargs), state.shape[1], here)
        with _attention(attend):
            return hidden_of(block(state[:, here], *args, **kwargs))[:, 0]

    def _can_be_short(self) -> bool:
        """Whether it gives what the block gives, tried on a short text."""
        stack = self.stack
        with torch.inference_mode(), undropped(stack.model):
            prepared = stack.prepare(stack.sample(1))
            before = prepared.state
            for layer, call in enumerate(prepared.calls[:-1]):
                before = stack.run(layer, before, call)
            position, call = int(prepared.positions[0]), prepared.calls[-1]
            whole = stack.run(stack.depth - 1, before, call)[:, position]
            try:
                short = self._at(before, call, position)
            except (TypeError, ValueError, RuntimeError, IndexError):
                return False  # its attention is called in another way
        return bool((short - whole).abs().max() <= TOLERANCE * whole.abs().max())


class _Reached(Exception):
    """The block has come to its attention."""


@contextmanager
def _attention(function: Callable[..., Any]) -> Iterator[None]:
    """While active, this stands in for the usual attention."""
    usual = AttentionInterface()[SDPA]
    AttentionInterface.register(SDPA, function)
    try:
        yield
    finally:
        AttentionInterface.register(SDPA, usual)


def _cut(value: Any, tokens: int, here: slice) -> Any:
    """What a block is given for one position: positions and rotations have one row a token."""
    if isinstance(value, dict):
        return {name: _cut(inner, tokens, here) for name, inner in value.items()}
    if isinstance(value, tuple):
        return tuple(_cut(inner, tokens, here) for inner in value)
    if isinstance(value, Tensor) and value.ndim in (2, 3) and value.shape[1] == tokens:
        return value[:, here]
    return value
