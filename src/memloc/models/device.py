"""Where a model runs, and on how many threads."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from memloc.errors import SettingsError

if TYPE_CHECKING:
    import torch

NARROW = 256
"""Below this width a second thread gains nothing (measured), so one is used."""


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
def suitable_threads(width: int) -> Iterator[int]:
    """As many threads as a model of this width can use; put back on exit."""
    import torch

    before = torch.get_num_threads()
    wanted = 1 if width < NARROW else min(before, os.cpu_count() or 1)
    torch.set_num_threads(wanted)
    try:
        yield wanted
    finally:
        torch.set_num_threads(before)
