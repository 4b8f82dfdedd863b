"""Sums of gradients over noisy and over clean examples, and the norms of their means.

A mean of gradients is the gradient of a mean, so examples go through in batches. Only the blocks'
parameters get gradients; what the first block is given is computed without a graph.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from memloc.data.encode import Encoded
from memloc.methods.gradients import Gradients, Group, Norms, kind_of
from memloc.models.stack import Stack
from memloc.progress import Advance
from memloc.records import FloatArray, IntArray
from memloc.training.gathering import Parameters, clear_gradients
from memloc.training.loop import gradients_for
from memloc.training.predict import to_batch, without_harm

TOKENS_PER_BATCH = 768
"""At most, with padding. Measured: 512 are slower for narrow models, no faster for wide ones."""


@dataclass(frozen=True)
class Data:
    """Texts, the labels that they were trained on, and what the gradient is of."""

    encoded: Encoded
    labels: Tensor
    settings: Gradients

    def value(self, stack: Stack, rows: IntArray) -> Tensor:
        """The sum over these examples of the negative loss, or of the label's raw logit."""
        with torch.no_grad():
            prepared = stack.prepare(to_batch(self.encoded, rows, stack.device))
        read = stack.read(stack.run_all(prepared), prepared)
        logits = stack.finish(read, prepared.batch).float()
        labels = self.labels[rows].to(logits.device)
        if self.settings.objective == "logit":
            return logits.gather(1, labels[:, None]).sum()
        return -cross_entropy(logits, labels, reduction="sum")


@dataclass(frozen=True)
class Sums:
    """Gradients summed over noisy and over clean examples, those of all blocks end to end."""

    noisy: Tensor
    clean: Tensor
    n_noisy: int
    n_clean: int

    def plus(self, other: "Sums", sign: int = 1) -> "Sums":
        """With the examples of another one, or without them."""
        return Sums(
            self.noisy.add(other.noisy, alpha=sign),
            self.clean.add(other.clean, alpha=sign),
            self.n_noisy + sign * other.n_noisy,
            self.n_clean + sign * other.n_clean,
        )

    def mean(self, kind: str) -> Tensor:
        """The mean gradient of `noisy` or `clean` examples, or their `difference`."""
        if kind == "difference":
            return self.mean("noisy").sub_(self.clean, alpha=1 / self.n_clean)
        return self.noisy / self.n_noisy if kind == "noisy" else self.clean / self.n_clean

    def split(self, sizes: list[int]) -> "list[Sums]":
        """Each block's part, without a copy."""
        noisy, clean = (torch.split_with_sizes(v, sizes) for v in (self.noisy, self.clean))
        return [Sums(n, c, self.n_noisy, self.n_clean) for n, c in zip(noisy, clean, strict=True)]


def measure(
    stack: Stack, data: Data, groups: Sequence[Group], advance: Advance = lambda _: None
) -> tuple[Norms, FloatArray]:
    """Norms of the mean gradients of noisy and clean examples and of their difference.

    And the norm that is asked for without each group in turn, (groups, layers), if there are some.
    """
    blocks = [dict(block.named_parameters()) for block in stack.blocks]
    sizes = [sum(p.numel() for p in block.values()) for block in blocks]
    with gradients_for(stack.model, blocks) as tensors:
        every = [_sums(stack, data, group, tensors, advance) for group in groups]
    total = reduce(Sums.plus, every)
    kinds = ("noisy", "clean", "difference")
    norms = {f"{n} {kind}": v for kind in kinds for n, v in _norms(total, sizes, kind).items()}
    kind = kind_of(data.settings.subtract_clean)
    without = (total.plus(part, -1) for part in every if len(every) > 1)
    left_out = [_norms(rest, sizes, kind)[data.settings.norm] for rest in without]
    return norms, np.array(left_out).reshape(-1, stack.depth)


def _sums(
    stack: Stack, data: Data, group: Group, tensors: Sequence[Parameters], advance: Advance
) -> Sums:
    vectors = []
    for rows in group:
        for block in tensors:
            clear_gradients(block)
        for picked in _batches(stack, data.encoded.lengths[rows]):
            with torch.enable_grad():
                data.value(stack, rows[picked]).backward()  # type: ignore[no-untyped-call]
            advance(len(picked))
        vectors.append(torch.cat([_gradient(t) for block in tensors for t in block.values()]))
    return Sums(vectors[0], vectors[1], len(group[0]), len(group[1]))


def _batches(stack: Stack, lengths: IntArray) -> list[IntArray]:
    # Measured: a batch of any size costs as much as 157 tokens at width 64, as 43 at width 384.
    batches = cheapest_batches(lengths, 20 + 9000 // stack.width, TOKENS_PER_BATCH)
    return without_harm(stack, batches, lengths)


def _gradient(tensor: Tensor) -> Tensor:
    """A parameter that the forward pass does not use has none."""
    found = torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
    return found.detach().flatten()


def _norms(sums: Sums, sizes: list[int], kind: str) -> Norms:
    """L1 and L2 of each block's mean gradient."""
    found = [_both(block.mean(kind)) for block in sums.split(sizes)]
    return dict(zip(("L1", "L2"), np.array(found, dtype=np.float64).T, strict=True))


def _both(vector: Tensor) -> tuple[float, float]:
    # Plain sums are pairwise, so single precision is enough for millions of numbers.
    return float(vector.abs().sum()), float(vector.square().sum().sqrt())


def cheapest_batches(lengths: IntArray, per_batch: int, most: int) -> list[IntArray]:
    """Batches of at most `most` tokens with padding (or of one text), the longest texts first.

    A batch costs its tokens with padding, and `per_batch` tokens more whatever its size: of all
    ways to cut the sorted texts, this is one that costs least in total.
    """
    order = np.argsort(-lengths, kind="stable")
    longest = np.maximum(lengths[order], 1)
    cost = np.zeros(len(order) + 1, dtype=np.int64)
    """Of the texts from here on."""
    best = np.zeros(len(order), dtype=np.int64)
    """Size of the batch that begins here."""
    for start in reversed(range(len(order))):
        fitting = min(max(1, most // int(longest[start])), len(order) - start)
        sizes = np.arange(1, fitting + 1)
        costs = per_batch + sizes * longest[start] + cost[start + sizes]
        best[start] = sizes[costs.argmin()]
        cost[start] = costs.min()
    batches, start = [], 0
    while start < len(order):
        batches.append(order[start : start + best[start]])
        start += int(best[start])
    return batches
