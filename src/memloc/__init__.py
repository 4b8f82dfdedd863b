"""memloc: which layers of a fine-tuned transformer hold the labels it memorised?"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memloc.analyse.analyse import analyse_run
    from memloc.data.perturb import add_noise
    from memloc.data.sources import load_file, load_noisy_file, load_task, subsample
    from memloc.errors import MemlocError
    from memloc.experiment.control import Control, read_control, run_control
    from memloc.localise.localise import localise_checkpoints, localise_run
    from memloc.localise.scores import LayerScores
    from memloc.localise.subjects import Weights
    from memloc.models.check import check_model
    from memloc.models.load import load_checkpoint, load_model
    from memloc.protocol import Protocol, preset
    from memloc.results import load_results
    from memloc.train.run import Run
    from memloc.train.training import Recipe, train_run

_HOMES = {
    "add_noise": "memloc.data.perturb",
    "analyse_run": "memloc.analyse.analyse",
    "load_file": "memloc.data.sources",
    "load_noisy_file": "memloc.data.sources",
    "load_task": "memloc.data.sources",
    "subsample": "memloc.data.sources",
    "MemlocError": "memloc.errors",
    "Control": "memloc.experiment.control",
    "read_control": "memloc.experiment.control",
    "run_control": "memloc.experiment.control",
    "localise_checkpoints": "memloc.localise.localise",
    "localise_run": "memloc.localise.localise",
    "LayerScores": "memloc.localise.scores",
    "Weights": "memloc.localise.subjects",
    "check_model": "memloc.models.check",
    "load_checkpoint": "memloc.models.load",
    "load_model": "memloc.models.load",
    "Protocol": "memloc.protocol",
    "preset": "memloc.protocol",
    "load_results": "memloc.results",
    "Run": "memloc.train.run",
    "Recipe": "memloc.train.training",
    "train_run": "memloc.train.training",
}

__all__ = [
    "Control",
    "LayerScores",
    "MemlocError",
    "Protocol",
    "Recipe",
    "Run",
    "Weights",
    "add_noise",
    "analyse_run",
    "check_model",
    "load_checkpoint",
    "load_file",
    "load_model",
    "load_noisy_file",
    "load_results",
    "load_task",
    "localise_checkpoints",
    "localise_run",
    "preset",
    "read_control",
    "run_control",
    "subsample",
    "train_run",
]


def __getattr__(name: str) -> Any:
    """Bring a public name in when it is first used: importing memloc loads no torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'memloc' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
