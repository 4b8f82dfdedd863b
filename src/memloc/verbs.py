"""What a person sees of memloc in Python: progress, an estimate of the cost, and charts."""

from collections.abc import Callable
from functools import cache, partial, wraps
from pathlib import Path
from typing import Any

from memloc import progress

COST = {
    "train": "tell_cost",
    "adopt": "tell_cost",
    "adopt_trainer": "tell_cost",
    "localise": "tell_cost_of_methods",
    "analyse": "tell_cost_of_methods",
    "find": "tell_cost_of_halves",
    "repair": "tell_cost_of_repair",
}
"""Functions that show progress, and what tells their cost (in `study.calibrate`)."""


@cache
def visible(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with progress and an estimate, unless memloc is quiet.

    Commands and studies show progress in their own way and call the function as it is.
    """

    @wraps(function)
    def shown(*args: Any, **kwargs: Any) -> Any:
        if progress.is_quiet():
            return function(*args, **kwargs)
        with progress.shown():
            return function(*args, **{"announce": partial(_tell, function.__name__), **kwargs})

    return shown


def _tell(name: str, *work: Any) -> None:
    """Measure this machine, and say what the work costs."""
    from memloc.study import calibrate

    where = [Path(work[0].folder).parent] if COST[name] == "tell_cost" else []
    getattr(calibrate, COST[name])(*where, *work)


def draw(shown: Any) -> Any:
    """Return the chart of a run or of results, as the report draws it."""
    from memloc.reporting.charts import chart_of

    return chart_of(shown)
