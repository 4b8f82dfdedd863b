"""Many small tensors as few large ones, so that an update costs work rather than calls.

A tiny model has two hundred tensors of a few thousand numbers: clipping and AdamW spend their time
on being called. While gathered, the small parameters of a group are views of one tensor, and so
are their gradients; large parameters stay as they are.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import nn

SMALL = 65_536
"""Parameters with at most so many numbers are gathered."""

Parameters = dict[str, nn.Parameter]


@contextmanager
def gathered(groups: Sequence[Mapping[str, nn.Parameter]]) -> Iterator[list[Parameters]]:
    """For each group, the tensors that an optimiser should update while this is active."""
    moved: list[nn.Parameter] = []
    tensors: list[Parameters] = []
    try:
        for number, group in enumerate(groups):
            small = {n: p for n, p in group.items() if p.numel() <= SMALL}
            large = {n: p for n, p in group.items() if n not in small}
            moved += small.values()
            tensors.append({**_gather(f"group-{number}", list(small.values())), **large})
        yield tensors
    finally:
        for parameter in moved:
            parameter.data = parameter.data.clone()
            parameter.grad = None


def clear_gradients(tensors: Parameters) -> None:
    """Ready for the next backward pass: what is gathered stays in place and is set to zero."""
    for tensor in tensors.values():
        if isinstance(tensor, _Gathered) and tensor.grad is not None:
            tensor.grad.zero_()
        else:
            tensor.grad = None


def merged(groups: Iterable[Parameters]) -> Parameters:
    """The parameters of several groups under their names, which differ."""
    return {name: tensor for group in groups for name, tensor in group.items()}


class _Gathered(nn.Parameter):
    """One tensor for many small ones."""


def _gather(name: str, parameters: list[nn.Parameter]) -> Parameters:
    if not parameters:
        return {}
    whole = _Gathered(torch.cat([p.detach().reshape(-1) for p in parameters]))
    whole.grad = torch.zeros_like(whole)
    start = 0
    for parameter in parameters:
        place = slice(start, start + parameter.numel())
        parameter.data = whole.data[place].view_as(parameter)
        parameter.grad = whole.grad[place].view_as(parameter)
        start += parameter.numel()
    return {name: whole}
