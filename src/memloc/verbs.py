"""Adds progress, cost estimates and charts to functions called from Python."""

from collections.abc import Callable
from functools import cache, partial, wraps
from pathlib import Path
from typing import Any

from memloc import progress

WORK = {
    **dict.fromkeys(("train", "plant", "adopt", "adopt_trainer"), "training"),
    **dict.fromkeys(("localise", "analyse"), "methods"),
    **{"find": "halves", "repair": "repair"},
}
"""Functions that show progress, with the kind of work whose cost they report first."""


@cache
def with_progress(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with progress and a cost estimate, unless memloc is quiet.

    Commands and studies show progress in their own way and call the function as it is.
    """

    @wraps(function)
    def shown(*args: Any, **kwargs: Any) -> Any:
        if progress.is_quiet():
            return function(*args, **kwargs)
        work = WORK[function.__name__]
        with progress.shown_work(), progress.announcing(work, partial(_tell, work)):
            return function(*args, **kwargs)

    return shown


def _tell(work: str, *facts: Any) -> None:
    """Measure this machine, and report what the work costs."""
    from memloc.study.calibrate import TELL

    where = [Path(facts[0].folder).parent] if work == "training" else []
    TELL[work](*where, *facts)


def chart(shown: Any) -> Any:
    """Return the report's chart of a run or of results."""
    from memloc.reporting.charts import chart_of

    return chart_of(shown)
