"""The vectors of many texts, one for each layer."""

from memloc.data.encode import Encoded
from memloc.models.hidden import LastLayer, Vectors, readout_vectors
from memloc.models.stack import Stack
from memloc.training.predict import evaluating, length_batches, to_batch


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
        for rows in length_batches(stack, encoded.lengths)
    )
    with evaluating(stack.model):
        return readout_vectors(stack, batches, len(encoded), last_layer=last_layer, up_to=up_to)
