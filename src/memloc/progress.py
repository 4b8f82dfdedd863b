"""How long work reports how far it is: silent in a library, bars with time left in a terminal."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar

Advance = Callable[[int], None]
"""Called with the number of steps that were done since the last call."""


@contextmanager
def _silent(_label: str, _total: int) -> Iterator[Advance]:
    yield lambda _steps: None


_shown: ContextVar[Callable[[str, int], AbstractContextManager[Advance]]] = ContextVar(
    "shown", default=_silent
)


def track(label: str, total: int) -> AbstractContextManager[Advance]:
    """`with track("fine-tuning", steps) as advance: ... advance(1)`."""
    return _shown.get()(label, total)


_told: ContextVar[Callable[[str], None]] = ContextVar("told", default=lambda _sentence: None)


def tell(sentence: str) -> None:
    """Say something about the work that begins; nobody hears it in a library."""
    _told.get()(sentence)


@contextmanager
def telling(say: Callable[[str], None]) -> Iterator[None]:
    """While active, `say` is called with what `tell` is given."""
    token = _told.set(say)
    try:
        yield
    finally:
        _told.reset(token)


@contextmanager
def bars() -> Iterator[None]:
    """While active, tracked work shows as bars with time left on stderr."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    progress = Progress(*columns, console=Console(stderr=True))

    @contextmanager
    def bar(label: str, total: int) -> Iterator[Advance]:
        progress.start()
        task = progress.add_task(label, total=total)
        yield lambda steps: progress.advance(task, steps)

    token = _shown.set(bar)
    try:
        yield
    finally:
        _shown.reset(token)
        if progress.live.is_started:  # stopping prints a line even where nothing was shown
            progress.stop()


@contextmanager
def lines(every: float = 10.0) -> Iterator[None]:
    """While active, tracked work writes a line to stderr when it begins, now and then, and ends."""

    @contextmanager
    def reported(label: str, total: int) -> Iterator[Advance]:
        done, said = 0, time.monotonic()

        def advance(steps: int) -> None:
            nonlocal done, said
            done += steps
            if time.monotonic() - said >= every:
                said = time.monotonic()
                say(label, f"{done / max(1, total):.0%}")

        say(label, "begins")
        yield advance
        say(label, "done")

    def say(label: str, what: str) -> None:
        print(f"{time.strftime('%H:%M:%S')}  {label}  {what}", file=sys.stderr, flush=True)

    token = _shown.set(reported)
    try:
        yield
    finally:
        _shown.reset(token)
