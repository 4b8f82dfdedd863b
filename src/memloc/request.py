"""What a person asked for, as they would type it again: recorded with everything that is made."""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

_request: ContextVar[str] = ContextVar("request", default="")


def request() -> str:
    """The command that is being carried out; empty where memloc is used as a library."""
    return _request.get()


@contextmanager
def requested(words: Sequence[str]) -> Iterator[None]:
    """While active, what is made was asked for by the command `memloc` with these words."""
    token = _request.set(shlex.join(["memloc", *words]))
    try:
        yield
    finally:
        _request.reset(token)
