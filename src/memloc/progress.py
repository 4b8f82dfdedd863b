"""Printing, progress reporting and the recorded command line."""

import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from memloc.errors import SettingsError

if TYPE_CHECKING:
    from rich.text import Text

T = TypeVar("T")
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Pattern of characters that a terminal obeys or cannot show.

They are all controls except tabs and line ends, marks that turn the direction of text, and halves
of characters.
"""

Advance = Callable[[int], None]
"""Function called with the number of steps done since the last call."""
EVERY = 30.0
"""Seconds between two lines of a log."""


def visible(text: str) -> str:
    """Return the text with control characters as escapes (`\u001b`), so that no terminal obeys
    them.
    """
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def plain(text: str) -> "Text":
    """Return the text for a table of Rich, which then obeys no markup in it."""
    from rich.text import Text

    return Text(visible(text))


def say(text: str, to: TextIO | None = None) -> None:
    """Print a line on stdout or `to`; all texts, labels and names are printed through this
    function.
    """
    print(visible(text), file=to or sys.stdout, flush=True)


@contextmanager
def _silent(_label: str, _total: int) -> Iterator[Advance]:
    yield lambda _steps: None


Show = Callable[[str, int], AbstractContextManager[Advance]]
_shown: ContextVar[Show | None] = ContextVar("shown", default=None)


def track(label: str, total: int) -> AbstractContextManager[Advance]:
    """Track work: `with track("fine-tuning", steps) as advance: ... advance(1)`."""
    return (_shown.get() or _silent)(label, total)


QUIET = "MEMLOC_QUIET"
"""Environment variable; with any value but 0, functions called from Python show no progress."""


def quiet(on: bool = True) -> None:
    """Switch off the progress and notes of functions called from Python, or on again.

    The environment variable `MEMLOC_QUIET=1` does the same for all programs.

    Args:
        on: Whether to be quiet.
    """
    if not isinstance(on, bool):
        raise SettingsError(f"Give quiet True or False, not a {type(on).__name__}.")
    os.environ[QUIET] = "1" if on else "0"


def is_quiet() -> bool:
    """Return whether progress is off, or is already being shown."""
    return os.environ.get(QUIET, "0") not in {"", "0"} or _shown.get() is not None


@contextmanager
def shown_work() -> Iterator[None]:
    """Show bars and notes of work called from Python on stderr or in the notebook, while active."""
    with showing_bars(), telling(lambda sentence: say(sentence, sys.stderr)):
        yield


@contextmanager
def during(variable: ContextVar[T], value: T) -> Iterator[None]:
    """Give the variable this value while active."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


_told: ContextVar[Callable[[str], None]] = ContextVar("told", default=lambda _sentence: None)
_announced: ContextVar[tuple[str, Callable[..., None]] | None] = ContextVar(
    "announced", default=None
)
_request: ContextVar[str] = ContextVar("request", default="")


def tell(sentence: str) -> None:
    """Report something about the work that begins; it is shown where `telling` is active."""
    _told.get()(sentence)


def telling(say: Callable[[str], None]) -> AbstractContextManager[None]:
    """Call `say` with each sentence given to `tell`, while active."""
    return during(_told, say)


def announce(work: str, *facts: Any) -> None:
    """Tell the command being executed that long work begins, with the facts that decide its cost.

    A command listens with `announcing`, to print the cost before the work.
    """
    if (announced := _announced.get()) and announced[0] == work:
        announced[1](*facts)


def announcing(work: str, tell: Callable[..., None]) -> AbstractContextManager[None]:
    """While active, call `tell` before long work (training, methods, halves or repair) begins."""
    return during(_announced, (work, tell))


def request() -> str:
    """Return the command line being executed; empty if memloc is used as a library."""
    return _request.get()


def requested(words: Sequence[str]) -> AbstractContextManager[None]:
    """Let `request` return the command `memloc` with these words, while active."""
    return during(_request, shlex.join(["memloc", *words]))


@contextmanager
def showing_bars() -> Iterator[None]:
    """Show tracked work as bars with time left (as lines on stderr in a log), while active."""
    if in_notebook():
        with during(_shown, notebook_bar):
            yield
        return
    if not sys.stderr.isatty():
        with lines():
            yield
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress, TextColumn

    columns = (*Progress.get_default_columns(), TextColumn("left"))
    progress = Progress(*columns, console=Console(stderr=True))

    @contextmanager
    def bar(label: str, total: int) -> Iterator[Advance]:
        progress.start()
        task = progress.add_task(escape(visible(label)), total=total)
        yield lambda steps: progress.advance(task, steps)

    try:
        with during(_shown, bar):
            yield
    finally:
        if progress.live.is_started:  # stopping prints a line even where nothing was shown
            progress.stop()


def in_notebook() -> bool:
    """Return whether this process is a notebook's kernel, where IPython shows HTML."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


REDRAWN = 0.2
"""Seconds between two states of a bar in a notebook."""


@contextmanager
def notebook_bar(label: str, total: int) -> Iterator[Advance]:
    """Show a bar below the cell of a notebook; it needs no widgets."""
    from html import escape

    from IPython.display import HTML, display

    began = drawn = time.monotonic()
    done = 0

    def bar(end: str) -> "HTML":
        name = escape(visible(label))
        return HTML(f"<progress value='{done}' max='{max(1, total)}'></progress> {name} {end}")

    def advance(steps: int) -> None:
        nonlocal done, drawn
        done += steps
        now = time.monotonic()
        if now - drawn >= REDRAWN:
            drawn = now
            left = (total - done) * (now - began) / max(1, done)
            handle.update(bar(f"about {duration(left)} left"))

    handle = display(bar(""), display_id=True)
    yield advance
    handle.update(bar(f"done in {duration(time.monotonic() - began)}"))


@contextmanager
def lines(every: float = EVERY) -> Iterator[None]:
    """Write a line to stderr when tracked work begins, now and then, and when it ends, while
    active.
    """

    @contextmanager
    def reported(label: str, total: int) -> Iterator[Advance]:
        began = said = time.monotonic()
        done = done_then = 0

        def advance(steps: int) -> None:
            nonlocal said, done, done_then
            done += steps
            now = time.monotonic()
            if now - said >= every:
                # Speed since the last line: steps that were done before took no time.
                left = (total - done) * (now - said) / max(1, done - done_then)
                line(label, f"{100 * done / max(1, total):.0f} %, about {duration(left)} left")
                said, done_then = now, done

        line(label, "begins")
        yield advance
        line(label, f"done in {duration(time.monotonic() - began)}")

    def line(label: str, what: str) -> None:
        say(f"{time.strftime('%H:%M:%S')}  {label}  {what}", sys.stderr)

    with during(_shown, reported):
        yield


def hidden() -> AbstractContextManager[None]:
    """Show nothing of tracked work while active."""
    return during(_shown, _silent)


def duration(seconds: float) -> str:
    """Return a duration in words."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} s"


def around(seconds: float, factor: float) -> str:
    """Return the range of a duration whose estimate may be off by this factor, in words."""
    return f"{duration(seconds / factor)} to {duration(seconds * factor)}"


def size(count: float) -> str:
    """Return a number of bytes in words, such as 1.2 MB."""
    from rich.filesize import decimal

    return decimal(int(count))
