"""Where a model runs, and on how many threads."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from memloc.errors import SettingsError

if TYPE_CHECKING:
    import torch

NARROW = 256
"""Below this width a second thread gains nothing (measured), so one is used."""
MOST = 16
"""Models that are trained as one: more would mostly take more memory (not measured)."""


def pick_device(name: str = "auto") -> "torch.device":
    """The device called `name`; `auto` takes CUDA, then Apple's, then the CPU."""
    import torch

    there = {
        "cpu": True,
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
    }
    if name == "auto":
        return torch.device(next(kind for kind in ("cuda", "mps", "cpu") if there[kind]))
    if not there.get(name.split(":", maxsplit=1)[0], False):
        found = ", ".join(kind for kind, is_there in there.items() if is_there)
        raise SettingsError(f"Device {name!r} is not on this machine; there is: {found}.")
    return torch.device(name)


@contextmanager
def on_threads(number: int) -> Iterator[int]:
    """Torch uses so many threads; put back on exit."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield number
    finally:
        torch.set_num_threads(before)


def suitable_threads(width: int) -> AbstractContextManager[int]:
    """As many threads as a model of this width can use; put back on exit."""
    return on_threads(usable_threads(width))


def usable_threads(width: int) -> int:
    """How many of the threads that torch has a model of this width can use."""
    import torch

    return 1 if width < NARROW else min(torch.get_num_threads(), os.cpu_count() or 1)
