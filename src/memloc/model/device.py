"""The device a model runs on, and the number of its threads."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from memloc.errors import SettingsError

if TYPE_CHECKING:
    import torch

NARROW = 256
"""Width below which a second thread gains nothing (measured), so that one is used."""
MOST = 16
"""Largest number of models trained in one pass; more would mostly take more memory (not
measured).
"""


def tokens_per_batch(width: int) -> int:
    """Return the limit of tokens in a batch of gradients; narrow models gain by larger ones."""
    return 2048 if width < NARROW else 768


def pick_device(name: str = "auto") -> "torch.device":
    """Return the device called `name`; `auto` prefers CUDA, then Apple's, then the CPU."""
    import torch

    available = {
        "cpu": True,
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
    }
    if name == "auto":
        return torch.device(next(kind for kind in ("cuda", "mps", "cpu") if available[kind]))
    if not available.get(name.split(":", maxsplit=1)[0], False):
        names = ", ".join(kind for kind, is_there in available.items() if is_there)
        raise SettingsError(f"Device {name!r} is not on this machine; there is: {names}.")
    return torch.device(name)


@contextmanager
def on_threads(number: int) -> Iterator[int]:
    """Let torch use this many threads while active."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield number
    finally:
        torch.set_num_threads(before)


def suitable_threads(width: int) -> AbstractContextManager[int]:
    """Let torch use the number of threads that suits a model of this width while active."""
    return on_threads(usable_threads(width))


def usable_threads(width: int) -> int:
    """Return how many of torch's threads a model of this width can make use of."""
    import torch

    return 1 if width < NARROW else min(torch.get_num_threads(), os.cpu_count() or 1)
