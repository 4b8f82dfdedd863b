"""Cuts texts of similar length into the batches that cost least."""

import numpy as np

from memloc.records import IntArray


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
