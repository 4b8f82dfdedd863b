"""The size of a model, and the bytes that follow from it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """The size of a model."""

    depth: int
    """Number of layers."""
    width: int
    """Numbers in the state of a token."""
    vocabulary: int
    """Number of tokens with an embedding."""
    model_type: str = ""
    """Type of the model in transformers; empty if unknown."""

    @property
    def name(self) -> str:
        """Size as a key of a JSON object."""
        return f"{self.depth}x{self.width}"

    @property
    def parameters(self) -> int:
        """Number of parameters of blocks of the usual proportions, and of the embeddings."""
        return 12 * self.depth * self.width**2 + self.vocabulary * self.width

    @property
    def bytes(self) -> float:
        """Bytes of the weights in single precision."""
        return 4.0 * self.parameters

    @property
    def block_bytes(self) -> float:
        """Bytes of the weights of the blocks alone."""
        return self.bytes - 4.0 * self.vocabulary * self.width

    def states(self, tokens: int) -> float:
        """Return the bytes of the states that a batch of tokens keeps for its gradients."""
        return 4.0 * 34 * tokens * self.width * self.depth
