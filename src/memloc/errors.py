"""What memloc raises: one sentence that says what was found, what was needed and what to try."""

import difflib
import textwrap
from collections.abc import Iterable, Mapping
from typing import TypeVar

T = TypeVar("T")
LONGEST_LIST = 1500
"""Characters of a list of names: a large study has thousands of steps."""


class MemlocError(Exception):
    """An error that a user can put right; a command prints it as one line and exits with 1."""


class MemlocWarning(UserWarning):
    """Something a user should know; the command line prints it as one line and continues."""


class UnknownName(MemlocError):
    """A task, model, preset, setting or method that does not exist."""


class SettingsError(MemlocError):
    """A setting outside its limits, or settings that contradict each other."""


class DataError(MemlocError):
    """Texts or labels that cannot be used as they are."""


class ModelError(MemlocError):
    """A model that cannot be loaded, or whose structure is not the usual one."""


class TrainingError(MemlocError):
    """A training that could not go on, or whose result cannot be used."""


class StoreError(MemlocError):
    """A result file or run folder that is damaged, from elsewhere, or cannot be written."""


class ScoreError(MemlocError):
    """Numbers from which a score cannot be computed."""


def counted(number: int, noun: str, plural: str = "") -> str:
    """A number with its noun: "1 pair", "1,200 pairs"."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def lookup(kind: str, name: str, known: Mapping[str, T]) -> T:
    """The entry called `name`; where there is none, an error that suggests the nearest name."""
    if name in known:
        return known[name]
    listed = textwrap.shorten(", ".join(known), LONGEST_LIST, placeholder=" and more")
    raise UnknownName(f"No {kind} is called {name!r}.{nearest(name, known)} Known: {listed}.")


def nearest(name: str, known: Iterable[str]) -> str:
    """A question that suggests the known name which is most like this one, if any is."""
    found = difflib.get_close_matches(name, list(known), n=1)
    return "".join(f" Did you mean {near!r}?" for near in found)


def in_words(error: BaseException) -> str:
    """What an exception of somebody else's code says, on one line, with its type."""
    text = " ".join(str(error).split())[:300]
    return f"{text} ({type(error).__name__})" if text else type(error).__name__
