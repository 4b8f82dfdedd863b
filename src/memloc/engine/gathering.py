"""Gathers many small tensors into few large ones, so that an update costs work rather than calls.

A tiny model has two hundred tensors of a few thousand numbers: clipping and AdamW spend their time
on being called. While gathered, the small parameters of a group are views of one tensor, and so are
their gradients; large parameters stay as they are. If a parameter belongs to several members, the
tensor has one row for each of them.
"""

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from memloc.engine.stacked import Members

SMALL = 65_536
"""Largest size of a parameter, in numbers of one member, that is gathered."""

Parameters = dict[str, nn.Parameter]


class Gathered(nn.Parameter):
    """A parameter of several members, (members, numbers); it may hold the first members only."""

    grad: Tensor


@contextmanager
def gathered(groups: Sequence[Mapping[str, nn.Parameter]]) -> Iterator[list[Parameters]]:
    """Gather groups of parameters while active; yield the tensors to update for each group."""
    moved: list[nn.Parameter] = []
    tensors_by_group: list[Parameters] = []
    try:
        for number, group in enumerate(groups):
            stacked = (len(p) for p in group.values() if isinstance(p, Members))
            members = max(stacked, default=1)
            small = {n: p for n, p in group.items() if p.numel() <= SMALL * members}
            tensors = _gather(f"group-{number}", list(small.values()), members)
            moved += small.values()
            for name, parameter in group.items():
                if name not in small and isinstance(parameter, Members):
                    tensors |= _gather(name, [parameter], members)
                    moved.append(parameter)
                elif name not in small:
                    tensors[name] = parameter
            tensors_by_group.append(tensors)
        with warnings.catch_warnings():
            # For several members, gradients have the strides of the weights and are added in place.
            warnings.filterwarnings("ignore", message="grad and param do not obey the gradient")
            yield tensors_by_group
    finally:
        for parameter in moved:
            _put(parameter, parameter.data.contiguous().clone())
            parameter.grad = None


def clear_gradients(tensors: Parameters) -> None:
    """Clear gradients before a backward pass; gathered ones are set to zero in place."""
    for tensor in tensors.values():
        if isinstance(tensor, Gathered) and tensor.grad is not None:
            tensor.grad.zero_()
        else:
            tensor.grad = None


@torch.no_grad()
def clip_gradients(tensors: Parameters, members: int, most: float) -> None:
    """Scale each member's gradients so that their norm over all tensors is at most `most`."""
    if members == 1:
        torch.nn.utils.clip_grad_norm_(tensors.values(), most)
        return
    # For several members, every tensor has one row for each of the first members.
    rows = [tensor for tensor in tensors.values() if isinstance(tensor, Gathered)]
    squares = torch.zeros(members, device=rows[0].device)
    for tensor in rows:
        squares[: len(tensor)] += torch.linalg.vector_norm(tensor.grad, dim=1).square()
    factors = (most / (squares.sqrt() + 1e-6)).clamp(max=1.0)
    for tensor in rows:
        tensor.grad.mul_(factors[: len(tensor)].unsqueeze(1))


def merged(groups: Iterable[Parameters]) -> Parameters:
    """Return the parameters of several groups by their names, which differ."""
    return {name: tensor for group in groups for name, tensor in group.items()}


def _gather(name: str, parameters: list[nn.Parameter], members: int) -> Parameters:
    if not parameters:
        return {}
    whole = torch.cat([p.detach().reshape(members, -1) for p in parameters], 1)
    gradient = torch.zeros_like(whole)
    start = 0
    for parameter in parameters:
        place = slice(start, start + parameter.numel() // members)
        _put(parameter, whole[:, place].view(parameter.shape))
        parameter.grad = gradient[:, place].view(parameter.shape)
        start = place.stop
    rows = Gathered(whole)
    rows.grad = gradient
    return {name: rows}


def _put(parameter: nn.Parameter, value: Tensor) -> None:
    parameter.data = value
    if isinstance(parameter, Members):
        parameter.share()
