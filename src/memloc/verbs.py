"""Adds progress, cost estimates and charts to functions called from Python."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache, wraps
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
        with progress.shown_work(), telling_cost(WORK[function.__name__]):
            return function(*args, **kwargs)

    return shown


def telling_cost(work: str, measured: Path | None = None) -> AbstractContextManager[None]:
    """Report the cost of work of this kind before it begins, while active.

    Args:
        work: Kind of the work: training, methods, halves or repair.
        measured: Folder with measurements of this machine for trainings; by default the folder
            around the run.
    """

    def tell(*facts: Any) -> None:
        from memloc.study.calibrate import TELL  # loads torch

        where = [measured or Path(facts[0].folder).parent] if work == "training" else []
        TELL[work](*where, *facts)

    return progress.announcing(work, tell)


def chart(shown: Any) -> Any:
    """Return the report's chart of a run or of results."""
    from memloc.reporting.charts import chart_of

    return chart_of(shown)
