"""The vectors of many texts: sorted by length, in batches of a size that suits the width."""

from memloc.data.encode import Encoded, sorted_batches
from memloc.models.hidden import LastLayer, Vectors, readout_vectors
from memloc.models.stack import Stack
from memloc.train.evaluate import TOKENS_PER_BATCH, evaluating, to_batch

NUMBERS_PER_STATE = 100_000
"""A batch's state on a CPU: larger ones leave the cache, and memory is fetched anew for each
operation (measured: 1.6 times slower at 2,048 tokens than at 256 for width 384)."""


def vectors_of(
    stack: Stack,
    encoded: Encoded,
    *,
    last_layer: LastLayer = "block output",
    up_to: int | None = None,
) -> Vectors:
    """One vector per text and layer 0..L (or 0..`up_to`), in the order of the texts."""
    tokens = TOKENS_PER_BATCH
    if stack.device.type == "cpu":
        tokens = min(tokens, max(1, NUMBERS_PER_STATE // stack.width))
    batches = (
        (rows, to_batch(encoded, rows, stack.device))
        for rows in sorted_batches(encoded.lengths, tokens)
    )
    with evaluating(stack.model):
        return readout_vectors(stack, batches, len(encoded), last_layer=last_layer, up_to=up_to)
