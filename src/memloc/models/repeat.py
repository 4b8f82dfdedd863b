"""Runs a block on several states of one batch at once: what it is called with is repeated.

Of the masks, positions and tables that a block is given, some have a row an example and some are
shared by all. Which ones is seen on two small batches that differ in nothing but their size.
"""

from typing import Any

import torch
from torch import Tensor

from memloc.errors import ModelError
from memloc.models.stack import Batch, BlockCall, Stack, sample_batch


class Repeater:
    """Repeats the calls of a stack's blocks for states that are stacked stream by stream."""

    def __init__(self, stack: Stack) -> None:
        self.name = type(stack.model).__name__
        two = sample_batch(stack.model)
        with torch.no_grad():
            small, large = stack.prepare(two).calls, stack.prepare(_one_more(two)).calls
        self._by_example = [
            self._compare(_values(a), _values(b)) for a, b in zip(small, large, strict=True)
        ]

    def repeated(self, index: int, call: BlockCall, times: int) -> BlockCall:
        """The call of block `index` for so many states of the batch it was recorded for."""
        if times == 1:
            return call
        values = self._repeat(_values(call), self._by_example[index], times)
        n = len(call.args)
        return BlockCall(values[:n], dict(zip(call.kwargs, values[n:], strict=True)))

    def _compare(self, small: Any, large: Any) -> Any:
        """Whether a tensor has a row an example; of a tuple, the same for all that is in it."""
        if isinstance(small, tuple) and isinstance(large, tuple):
            return tuple(self._compare(a, b) for a, b in zip(small, large, strict=True))
        if not isinstance(small, Tensor) or small.shape == large.shape:
            return False
        # Of 2 and 3 examples: what has several rows an example (one a head, say) counts as well.
        if small.shape[1:] == large.shape[1:] and 3 * len(small) == 2 * len(large):
            return True
        raise ModelError(
            f"{self.name} is not supported: its blocks are given a tensor that is "
            f"{tuple(small.shape)} for 2 examples and {tuple(large.shape)} for 3."
        )

    def _repeat(self, value: Any, by_example: Any, times: int) -> Any:
        if isinstance(value, tuple) and isinstance(by_example, tuple):
            inner = zip(value, by_example, strict=True)
            return tuple(self._repeat(v, b, times) for v, b in inner)
        if isinstance(value, Tensor) and by_example:
            return value.repeat(times, *[1] * (value.ndim - 1))
        return value


def _values(call: BlockCall) -> tuple[Any, ...]:
    return (*call.args, *call.kwargs.values())


def _one_more(batch: Batch) -> Batch:
    """The batch with its padded example twice."""
    return {name: values[[0, 1, 1]] for name, values in batch.items()}
