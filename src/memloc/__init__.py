"""memloc: which layers of a fine-tuned transformer hold the labels it memorised?"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memloc.adoption import adopt as adopt
    from memloc.data.own import load_csv as load_csv
    from memloc.data.perturb import add_noise as add_noise
    from memloc.data.sources import load_task as load_task
    from memloc.errors import MemlocError as MemlocError
    from memloc.methods import Method as Method
    from memloc.methods.apply import analyse as analyse
    from memloc.methods.apply import localise as localise
    from memloc.methods.gradients import Gradients as Gradients
    from memloc.methods.retraining import Retraining as Retraining
    from memloc.methods.shares import Shares as Shares
    from memloc.methods.swapping import Swapping as Swapping
    from memloc.models.stack import register_stack as register_stack
    from memloc.repairs import repair as repair
    from memloc.reporting.page import report as report
    from memloc.results import load_results as load_results
    from memloc.run import Run as Run
    from memloc.suspects import find as find
    from memloc.training.callback import RunCallback as RunCallback
    from memloc.training.recipe import train as train

_HOMES = {
    "adopt": "memloc.adoption",
    "load_csv": "memloc.data.own",
    "add_noise": "memloc.data.perturb",
    "load_task": "memloc.data.sources",
    "MemlocError": "memloc.errors",
    "analyse": "memloc.methods.apply",
    "localise": "memloc.methods.apply",
    "Method": "memloc.methods",
    "Gradients": "memloc.methods.gradients",
    "Retraining": "memloc.methods.retraining",
    "Shares": "memloc.methods.shares",
    "Swapping": "memloc.methods.swapping",
    "Run": "memloc.run",
    "RunCallback": "memloc.training.callback",
    "find": "memloc.suspects",
    "load_results": "memloc.results",
    "register_stack": "memloc.models.stack",
    "repair": "memloc.repairs",
    "report": "memloc.reporting.page",
    "train": "memloc.training.recipe",
}
"""The public names, and the modules that they come from."""
__all__ = sorted(_HOMES)  # noqa: PLE0605 - written once, in the table above


def __getattr__(name: str) -> Any:
    """Bring a public name in when it is first used: importing memloc loads no torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'memloc' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
