"""What can be refused before torch is loaded, which takes many seconds."""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from memloc.errors import ModelError, lookup

if TYPE_CHECKING:
    from memloc.cli.options import Checkpoints


def check_model(name: str, depth: int | None = None) -> None:
    """Refuse a model that is not there, and layers that it does not have."""
    from memloc.models.known import known_models
    from memloc.study.inputs import config_of, shape_of

    if name not in {row.name for row in known_models()}:
        config_of(name)
    with suppress(ModelError):  # what is wrong with its configuration is seen in loading it
        shape_of(name, depth)


def check_device(name: str) -> None:
    """Refuse a device that no machine has."""
    from memloc.study.inputs import DEVICES

    lookup("device", name.split(":", maxsplit=1)[0], DEVICES)


def check_training(folder: Path, weights: Iterable[str]) -> None:
    """Refuse weights that do not exist, and a folder in which another process trains."""
    from memloc.lock import RUN, refuse_if_busy
    from memloc.run import WEIGHTS

    for name in weights:
        lookup("set of weights", name, WEIGHTS)
    refuse_if_busy(folder, RUN)


def check_checkpoints(given: "Checkpoints") -> None:
    """Refuse checkpoints that are not there."""
    from memloc.models.known import checkpoint_folder

    for folder in (given.final, given.reference, given.memorised, given.frozen):
        if folder is not None:
            checkpoint_folder(folder)
    if given.pretrained is not None:
        check_model(given.pretrained)
