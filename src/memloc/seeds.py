"""Independent random generators by name from one seed: results do not depend on what ran before."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np


def number(seed: int, *names: str | int) -> int:
    """Return a 63-bit integer determined by `seed` and `names`, the same on every machine."""
    text = "/".join([str(seed), *map(str, names)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def generator(seed: int, *names: str | int) -> np.random.Generator:
    """Return the numpy generator of a seed and purpose, e.g. `generator(1, "noise", task)`."""
    return np.random.default_rng(number(seed, *names))


@contextmanager
def torch_seeded(seed: int, *names: str | int) -> Iterator[None]:
    """Set torch's global generators for this purpose while active, and put them back."""
    import torch

    kept: list[tuple[Callable[[Any], None], Any]] = [
        (torch.random.set_rng_state, torch.random.get_rng_state())
    ]
    if torch.cuda.is_available():
        kept.append((torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all()))
    if torch.backends.mps.is_available():
        kept.append((torch.mps.set_rng_state, torch.mps.get_rng_state()))
    torch.manual_seed(number(seed, *names))
    try:
        yield
    finally:
        for put_back, state in kept:
            put_back(state)
