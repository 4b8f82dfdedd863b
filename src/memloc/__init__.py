"""memloc: which layers of a fine-tuned transformer hold the labels it memorised?"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memloc.adoption import adopt
    from memloc.data.own import load_csv
    from memloc.data.perturb import add_noise
    from memloc.data.sources import load_task
    from memloc.errors import MemlocError
    from memloc.methods.apply import analyse, localise
    from memloc.methods.base import Method
    from memloc.methods.centroids import Centroids
    from memloc.methods.generalisation import Generalisation
    from memloc.methods.gradients import Gradients
    from memloc.methods.probing import Probing
    from memloc.methods.result import LayerScores
    from memloc.methods.retraining import Retraining
    from memloc.methods.shares import Shares
    from memloc.methods.swapping import Swapping
    from memloc.reporting.page import report
    from memloc.results import load_results
    from memloc.run import Run
    from memloc.training.recipe import train

__all__ = [
    "Centroids",
    "Generalisation",
    "Gradients",
    "LayerScores",
    "MemlocError",
    "Method",
    "Probing",
    "Retraining",
    "Run",
    "Shares",
    "Swapping",
    "add_noise",
    "adopt",
    "analyse",
    "load_csv",
    "load_results",
    "load_task",
    "localise",
    "report",
    "train",
]

_HOMES = {
    "adopt": "memloc.adoption",
    "load_csv": "memloc.data.own",
    "add_noise": "memloc.data.perturb",
    "load_task": "memloc.data.sources",
    "MemlocError": "memloc.errors",
    "analyse": "memloc.methods.apply",
    "localise": "memloc.methods.apply",
    "Method": "memloc.methods.base",
    "Centroids": "memloc.methods.centroids",
    "Generalisation": "memloc.methods.generalisation",
    "Gradients": "memloc.methods.gradients",
    "Probing": "memloc.methods.probing",
    "LayerScores": "memloc.methods.result",
    "Retraining": "memloc.methods.retraining",
    "Shares": "memloc.methods.shares",
    "Swapping": "memloc.methods.swapping",
    "report": "memloc.reporting.page",
    "load_results": "memloc.results",
    "Run": "memloc.run",
    "train": "memloc.training.recipe",
}


def __getattr__(name: str) -> Any:
    """Bring a public name in when it is first used: importing memloc loads no torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'memloc' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
