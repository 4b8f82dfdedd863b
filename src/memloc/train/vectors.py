"""The vectors of many texts: sorted by length, so that batches are full and hold no padding."""

from memloc.data.encode import Encoded, sorted_batches
from memloc.models.hidden import LastLayer, Vectors, readout_vectors
from memloc.models.stack import Stack
from memloc.train.evaluate import TOKENS_PER_BATCH, evaluating, to_batch


def vectors_of(
    stack: Stack,
    encoded: Encoded,
    *,
    last_layer: LastLayer = "block output",
    up_to: int | None = None,
) -> Vectors:
    """One vector per text and layer 0..L (or 0..`up_to`), in the order of the texts."""
    batches = (
        (rows, to_batch(encoded, rows, stack.device))
        for rows in sorted_batches(encoded.lengths, TOKENS_PER_BATCH)
    )
    with evaluating(stack.model):
        return readout_vectors(stack, batches, len(encoded), last_layer=last_layer, up_to=up_to)
