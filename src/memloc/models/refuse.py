"""Models that are not what memloc needs are refused in a sentence, whatever they do."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from memloc.errors import MemlocError, ModelError, in_words


def setting(config: Any, name: str) -> Any:
    """What a model's configuration says under this name; where it says nothing, a sentence."""
    if (value := getattr(config, name, None)) is not None:
        return value
    parts = " and ".join(getattr(config, "sub_configs", {}))
    because = f", because it is divided into {parts}" if parts else ""
    raise ModelError(
        f"Models of type {config.model_type} are not supported: their configuration has no "
        f"{name}{because}; memloc needs one stack of blocks that reads the tokens of a text."
    )


@contextmanager
def explained(model: Any) -> Iterator[None]:
    """While active, whatever a model does that memloc did not expect becomes a sentence."""
    try:
        yield
    except MemlocError:
        raise
    except Exception as error:
        raise ModelError(
            f"{type(model).__name__} cannot be used: tried on a few tokens, it ended with an "
            f"error: {in_words(error)}."
        ) from error


def refuse_no_numbers(name: str, model: Any) -> None:
    """Every weight is a finite number."""
    for weight, values in model.named_parameters():
        if not torch.isfinite(values).all():
            raise ModelError(f"{name} cannot be used: {weight} holds NaN or infinite numbers.")
