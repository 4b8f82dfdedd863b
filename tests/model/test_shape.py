"""The bytes of a model of a known size, counted by hand."""

from memloc.model.shape import Shape


def test_bytes_are_those_of_blocks_and_embeddings():
    shape = Shape(depth=12, width=384, vocabulary=30_522)
    assert shape.block_bytes == 4 * 12 * 12 * 384**2  # four bytes, twelve squares per block
    assert shape.bytes == shape.block_bytes + 4 * 30_522 * 384
    assert shape.states(768) == 2 * shape.states(384) == 4 * 34 * 768 * 384 * 12
