"""Named, independent random generators from one seed: nothing depends on what ran before it."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def number(seed: int, *names: str | int) -> int:
    """A 63-bit integer that `seed` and `names` determine, the same on every machine."""
    text = "/".join([str(seed), *map(str, names)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def generator(seed: int, *names: str | int) -> np.random.Generator:
    """The numpy generator of this seed and purpose, e.g. `generator(1, "noise", task)`."""
    return np.random.default_rng(number(seed, *names))


@contextmanager
def torch_seeded(seed: int, *names: str | int) -> Iterator[None]:
    """Torch's global generators (CPU and accelerators) set for this purpose, put back on exit."""
    import torch

    devices = _accelerator_states(torch)
    kept = torch.random.get_rng_state()
    torch.manual_seed(number(seed, *names))
    try:
        yield
    finally:
        torch.random.set_rng_state(kept)
        for put_back, state in devices:
            put_back(state)


def _accelerator_states(torch_module: "torch") -> list:  # type: ignore[type-arg, valid-type]
    states = []
    if torch_module.cuda.is_available():
        states.append((torch_module.cuda.set_rng_state_all, torch_module.cuda.get_rng_state_all()))
    if torch_module.backends.mps.is_available():
        states.append((torch_module.mps.set_rng_state, torch_module.mps.get_rng_state()))
    return states
