"""Re-parametrises blocks: other weights, the same function.

The rows of an MLP can be permuted, and a matrix applied to a head's values can be undone in the
head's part of the output projection. A comparison of weights then sees a large change where nothing
changed. Which matrices form a pair is found by trying: a change that leaves the block's output as
it was is the right one, so there is no code per architecture.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import permutations

import numpy as np
import torch
from torch import Tensor, nn

from memloc.errors import ModelError
from memloc.model.stack import Stack, setting, undropped

CLOSE = 1e-4
"""Largest change of a block's output, relative to its size, that counts as float noise."""
SCALES = 0.5, 2.0
"""Smallest and largest factor by which a head's values are rescaled."""
Change = Callable[[], None]


def disguise(stack: Stack, layers: Iterable[int], rng: np.random.Generator) -> None:
    """Change the weights of these layers (from 0) in place so that they compute the same
    function.
    """
    wanted = {*layers}
    heads = int(setting(stack.model.config, "num_attention_heads"))
    with torch.inference_mode(), undropped(stack.model):
        prepared = stack.prepare(stack.sample(1))
        state = prepared.state
        for index, call in enumerate(prepared.calls):
            run = partial(stack.run, index, state, call)
            if index in wanted:
                matrices = [m for m in stack.blocks[index].modules() if isinstance(m, nn.Linear)]
                for changes in (_permuted(matrices, rng), _rotated(matrices, heads, rng)):
                    _make_first_that_fits(stack.blocks[index], changes, run, index)
            state = run()


def _make_first_that_fits(
    block: nn.Module, changes: Iterable[Change], compute: Callable[[], Tensor], index: int
) -> None:
    """Apply the first change that leaves the block's output as it was; undo the ones before it."""
    kept = [p.clone() for p in block.parameters()]
    output = compute()
    for change in changes:
        change()
        if (compute() - output).abs().max() <= CLOSE * output.abs().max():
            return
        for parameter, before in zip(block.parameters(), kept, strict=True):
            parameter.copy_(before)
    raise ModelError(
        f"Layer {index + 1} cannot be re-parametrised: no two of its matrices are an MLP, or a "
        "head's values and their output projection, as memloc knows them. Use plants of another "
        "kind."
    )


def _permuted(matrices: list[nn.Linear], rng: np.random.Generator) -> Iterator[Change]:
    """Yield changes that permute the rows of an MLP, in all matrices before its activation
    alike.
    """
    for last in matrices:
        inner = last.in_features
        before = [m for m in matrices if m.out_features == inner and m.in_features != inner]
        if before:
            order = torch.from_numpy(rng.permutation(inner)).to(last.weight.device)
            yield partial(_permute, before, last, order)


def _permute(before: list[nn.Linear], last: nn.Linear, order: Tensor) -> None:
    for matrix in before:
        for parameter in matrix.parameters():
            parameter.copy_(parameter[order])
    last.weight.copy_(last.weight[:, order])


def _rotated(matrices: list[nn.Linear], heads: int, rng: np.random.Generator) -> Iterator[Change]:
    """Yield changes that rotate and rescale the values of every head and undo it in the projection.

    The values have a matrix of their own, or share one with queries and keys: they are its last
    third, or the last third of each head's rows.
    """
    for value, last in permutations(matrices, 2):
        width = last.in_features
        if width % heads or value.out_features not in {width, 3 * width}:
            continue
        turns = torch.stack([_turn(width // heads, rng) for _ in range(heads)])
        rows = torch.arange(value.out_features)
        for ours in (rows[-width:], rows.view(heads, -1)[:, -(width // heads) :].flatten()):
            yield partial(_turn_heads, value, last, ours, turns.to(last.weight))


def _turn(size: int, rng: np.random.Generator) -> Tensor:
    """Return a random rotation (or reflection) times a random scale."""
    rotation, _ = np.linalg.qr(rng.standard_normal((size, size)))
    return torch.from_numpy(rotation * np.exp(rng.uniform(*np.log(SCALES))))


def _turn_heads(value: nn.Linear, last: nn.Linear, matrix_rows: Tensor, turns: Tensor) -> None:
    heads, size, _ = turns.shape
    for parameter in value.parameters():
        by_head = parameter[matrix_rows].view(heads, size, -1)
        parameter[matrix_rows] = (turns @ by_head).view(parameter[matrix_rows].shape)
    by_head = last.weight.view(-1, heads, size)
    undone = torch.einsum("ohs,hsr->ohr", by_head, torch.linalg.inv(turns))
    last.weight.copy_(undone.reshape(last.weight.shape))
