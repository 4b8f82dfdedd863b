"""Sums gradients over noisy and over clean examples, and returns the norms of their means.

A mean of gradients is the gradient of a mean, so examples are computed in batches, and short texts
end to end instead of padded. Only the blocks' parameters get gradients; the first block's input is
computed without a graph.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from memloc.arrays import FloatArray, IntArray
from memloc.data.encode import Encoded
from memloc.engine.objectives import gradients_of_blocks
from memloc.engine.packing import can_pack, logits_end_to_end
from memloc.model.device import tokens_per_batch
from memloc.model.predict import log_probabilities, without_harm
from memloc.model.stack import Stack
from memloc.progress import Advance

if TYPE_CHECKING:
    from memloc.methods.gradients import Gradients, NoisyAndClean, Norms

PackedRows = list[IntArray]
"""Rows of texts; the texts of one array are joined end to end into one long text."""
PAIRS = 2**22
"""Limit of the pairs of tokens in a batch's masks, which take memory if lengths differ much."""


@dataclass(frozen=True)
class LabelledTexts:
    """Texts, the labels they were trained on, and the value that is differentiated."""

    encoded: Encoded
    labels: IntArray
    settings: "Gradients"

    def value(self, stack: Stack, batch: PackedRows) -> Tensor:
        """Return the sum over these examples of the negative loss, or of the label's raw logit."""
        rows = np.concatenate(batch)
        if stack.is_language_model:
            is_logit = self.settings.objective == "logit"
            return log_probabilities(stack, self.encoded, rows, raw=is_logit).sum()
        logits = logits_end_to_end(stack, self.encoded, batch).float()
        labels = torch.from_numpy(self.labels[rows]).to(logits.device)
        if self.settings.objective == "logit":
            return logits.gather(1, labels[:, None]).sum()
        return -cross_entropy(logits, labels, reduction="sum")


def measure(
    stack: Stack,
    data: LabelledTexts,
    groups: "Sequence[NoisyAndClean]",
    advance: Advance = lambda _: None,
) -> "tuple[Norms, FloatArray]":
    """Return norms of the mean gradients of noisy and clean examples and of their difference.

    The second result is the weighed norm when each group in turn is left out, (groups, layers).

    Args:
        stack: The model.
        data: Texts with their labels and settings.
        groups: Groups of examples for the intervals; may be empty.
        advance: Function that reports progress.
    """
    sizes = [sum(p.numel() for p in block.parameters()) for block in stack.blocks]
    lengths, packs = data.encoded.lengths, not stack.is_language_model and can_pack(stack)

    def values(rows: IntArray) -> Iterator[Tensor]:
        """Return the forgetting gradients of these examples, computed batch by batch."""
        for batch in _batches(stack, lengths, packs, rows):
            with torch.enable_grad():
                yield data.value(stack, batch)
            advance(sum(map(len, batch)))

    with gradients_of_blocks(stack) as summed:
        every = [[summed(values(rows)) for rows in group] for group in groups]
    total = [reduce(torch.add, sums) for sums in zip(*every, strict=True)]
    counts = np.array([[len(rows) for rows in group] for group in groups])
    norms: Norms = {}
    for kind in ("noisy", "clean", "difference"):
        both = _norms(total, counts.sum(0), sizes, kind)
        norms |= {f"{name} {kind}": values for name, values in both.items()}
    left_out = []
    for sums, n in zip(every, counts, strict=True) if len(every) > 1 else ():
        rest = [whole - part for whole, part in zip(total, sums, strict=True)]
        norms_left = _norms(rest, counts.sum(0) - n, sizes, data.settings.weighed)
        left_out.append(norms_left[data.settings.norm])
    return norms, np.array(left_out).reshape(-1, stack.depth)


def _batches(stack: Stack, lengths: IntArray, packs: bool, rows: IntArray) -> list[PackedRows]:
    """Return batches of these rows: single texts or, if the model packs and it is cheaper, long
    ones.
    """
    # Measured: a batch of any size costs as much as 157 tokens at width 64, as 43 at width 384.
    per_batch, at_most = 20 + 9000 // stack.width, tokens_per_batch(stack.width)
    sizes = lengths[rows]
    alone = without_harm(stack, cheapest_batches(sizes, per_batch, at_most), sizes)
    ways = [[[rows[[i]] for i in some] for some in alone]]
    if packs and len(rows) and sizes.min() > 0:
        # Candidate lengths of joined texts: powers of two below the longest text, and its own.
        longest = int(sizes.max())
        powers = [2**power for power in range(4, longest.bit_length()) if 2**power < longest]
        for most in (*powers, longest):
            long = [rows[some] for some in end_to_end(sizes, most)]
            totals = np.array([lengths[some].sum() for some in long])
            cut = cheapest_batches(totals, per_batch, at_most)
            way = [[long[i] for i in some] for some in cut]
            padded = [lengths[np.concatenate(batch)] for batch in way]
            if max(len(batch_rows) * int(batch_rows.max()) ** 2 for batch_rows in padded) <= PAIRS:
                ways.append(way)

    def cost(batch: PackedRows) -> float:
        longest = max(int(lengths[some].sum()) for some in batch)
        # In a block, 12 width² products a token in matrices, 2 width a pair of tokens in attention.
        return per_batch + len(batch) * longest * (1 + longest / (6 * stack.width))

    return min(ways, key=lambda way: sum(map(cost, way)))


def end_to_end(lengths: IntArray, most: int) -> list[IntArray]:
    """Return groups of texts of at most `most` tokens (or one text), each placed where it fits
    best.
    """
    groups: list[list[int]] = []
    left: list[tuple[int, int]] = []
    """Return what still fits, and the group's number; sorted."""
    for row in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[row])
        place = bisect_left(left, (length, 0))
        if place == len(left):
            left.append((most, len(groups)))
            groups.append([])
        room, group = left.pop(place)
        groups[group].append(row)
        insort(left, (room - length, group))
    return [np.array(rows) for rows in groups]


def _norms(sums: Sequence[Tensor], counts: IntArray, sizes: list[int], which: str) -> "Norms":
    """Return L1 and L2 of each block's mean gradient, from the sums over noisy and clean
    examples.
    """
    norms = []
    for noisy, clean in zip(*(torch.split_with_sizes(v, sizes) for v in sums), strict=True):
        mean = mean_gradient(noisy, clean, counts, which)
        # Plain sums are pairwise, so single precision is enough for millions of numbers.
        norms.append((float(mean.abs().sum()), float(mean.square().sum().sqrt())))
    return dict(zip(("L1", "L2"), np.array(norms, dtype=np.float64).T, strict=True))


def mean_gradient(noisy: Tensor, clean: Tensor, counts: IntArray, which: str) -> Tensor:
    """Return the mean gradients of noisy or of clean examples, or their difference.

    Args:
        noisy: Sums over noisy examples.
        clean: Sums over clean examples.
        counts: Numbers of noisy and of clean examples.
        which: `noisy`, `clean` or `difference`.
    """
    n_noisy, n_clean = map(int, counts)
    if which == "clean":
        return clean / n_clean
    mean = noisy / n_noisy
    return mean if which == "noisy" else mean.sub_(clean, alpha=1 / n_clean)


def cheapest_batches(lengths: IntArray, per_batch: int, most: int) -> list[IntArray]:
    """Return batches of at most `most` tokens with padding (or one text), longest texts first.

    A batch costs its tokens with padding, and `per_batch` tokens more whatever its size. Of all
    ways to cut the sorted texts, the result is one with the lowest total cost.
    """
    order = np.argsort(-lengths, kind="stable")
    longest = np.maximum(lengths[order], 1)
    cost = np.zeros(len(order) + 1, dtype=np.int64)
    """Least cost of the texts from here on."""
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
