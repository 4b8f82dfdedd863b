"""Finds which parameters a model uses before, in and after its blocks."""

from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor, nn

from memloc.model.stack import Stack, holding


@dataclass(frozen=True)
class Parts:
    """Names of a model's parameters, grouped by where the model uses them."""

    embeddings: tuple[str, ...]
    """Parameters used before the first block: embeddings, their norm, shared biases."""
    blocks: tuple[tuple[str, ...], ...]
    """Parameters of each block."""
    after: tuple[str, ...]
    """Parameters used after the last block: final norm, pooler, head."""
    pooler: tuple[str, ...]
    """Parameters of the body's pooler, which few models have; they are part of `after`."""


def find_parts(stack: Stack) -> Parts:
    """Group parameters by use: outside the blocks, those that affect the blocks' input come before
    them.
    """
    names = {id(p): name for name, p in stack.model.named_parameters()}
    blocks = tuple(tuple(names[id(p)] for p in block.parameters()) for block in stack.blocks)
    in_blocks = {name for block in blocks for name in block}
    outside = {n: p for n, p in stack.model.named_parameters() if n not in in_blocks}
    before = _used_before(stack, outside)
    pooler = getattr(stack.model.base_model, "pooler", None)
    pooled = {id(p) for p in pooler.parameters()} if isinstance(pooler, nn.Module) else set()
    return Parts(
        embeddings=tuple(n for n in outside if n in before),
        blocks=blocks,
        after=tuple(n for n in outside if n not in before),
        pooler=tuple(n for n, p in outside.items() if id(p) in pooled),
    )


def _used_before(stack: Stack, outside: dict[str, nn.Parameter]) -> set[str]:
    with (
        holding(outside.values(), "requires_grad", True),
        torch.inference_mode(False),
        torch.enable_grad(),
    ):
        prepared = stack.prepare(stack.sample(2))
        calls = [[*call.args, *call.kwargs.values()] for call in prepared.calls]
        given = [x for x in chain([prepared.state], *calls) if isinstance(x, Tensor)]
        total = torch.stack([x.float().sum() for x in given if x.requires_grad]).sum()
        gradients = torch.autograd.grad(total, list(outside.values()), allow_unused=True)
    return {n for n, g in zip(outside, gradients, strict=True) if g is not None}
