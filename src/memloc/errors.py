"""Errors of memloc: one sentence that says what was found, what was needed and what to try."""

import difflib
import inspect
import os
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from numbers import Integral
from typing import Any, ParamSpec, Protocol, TypeVar, runtime_checkable

T = TypeVar("T")
P = ParamSpec("P")
LONGEST_LIST = 1500
"""Largest number of characters in a list of names, as a large study has thousands of steps."""
LONGEST_NAME = 100
"""Largest number of characters of a name in a message, and of names that get a suggestion."""


class MemlocError(Exception):
    """An error that a user can correct; a command prints it as one line and exits with 1."""


class MemlocWarning(UserWarning):
    """Something a user should know; the command line prints it as one line and continues."""


class UnknownName(MemlocError):
    """A task, model, preset, setting or method that does not exist."""


class UnknownKey(UnknownName, KeyError):
    """An unknown name in square brackets, which is also a KeyError."""

    __str__ = Exception.__str__
    """Return the plain sentence; a KeyError would put it in quotes."""


class SettingsError(MemlocError):
    """A setting outside its limits, or settings that contradict each other."""


class DataError(MemlocError):
    """Texts or labels that cannot be used as they are."""


class ModelError(MemlocError):
    """A model that cannot be loaded, or whose structure is not the usual one."""


class TrainingError(MemlocError):
    """A training that could not continue, or whose result cannot be used."""


class StoreError(MemlocError):
    """A result file or run folder that is damaged, from elsewhere, or cannot be written."""


class ScoreError(MemlocError):
    """Numbers from which a score cannot be computed."""


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: "1 pair", "1,200 pairs"."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def listed(names: Sequence[str]) -> str:
    """Join names as in a sentence: "a, b and c"."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def lookup(
    what: str, name: object, known: Mapping[str, T], error: type[UnknownName] = UnknownName
) -> T:
    """Return the entry called `name`; if there is none, the error suggests the nearest name.

    Args:
        what: Kind of the entries, for the message.
        name: Name to look up.
        known: Entries by name.
        error: Type of the error.
    """
    if isinstance(name, str) and name in known:
        return known[name]
    names = textwrap.shorten(", ".join(known), LONGEST_LIST, placeholder=" and more")
    near = nearest(name, known)
    raise error(f"No {what} is called {shortened(repr(name))}.{near} Known: {names}.")


def nearest(name: object, known: Iterable[str]) -> str:
    """Return a question that suggests the most similar known name; empty if none is similar."""
    if not isinstance(name, str) or len(name) > LONGEST_NAME:
        return ""
    similar = difflib.get_close_matches(name, list(known), n=1)
    return "".join(f" Did you mean {near!r}?" for near in similar)


def shortened(name: str, most: int = LONGEST_NAME) -> str:
    """Return a name cut to fit into a sentence."""
    return name if len(name) <= most else f"{name[:most]}..."


def in_words(error: BaseException) -> str:
    """Return the message of another library's exception on one line, with its type."""
    text = " ".join(str(error).split())[:300]
    return f"{text} ({type(error).__name__})" if text else type(error).__name__


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an exception says that memory ran out, on the processor or on a device.

    Torch words this differently on each system, and on a CPU it raises a plain RuntimeError.
    """
    text = str(error).lower()
    return isinstance(error, MemoryError) or any(words in text for words in _OUT_OF_MEMORY)


_OUT_OF_MEMORY = ("out of memory", "not enough memory", "allocate memory")
MORE_MEMORY = (
    "There is not enough free memory. Close other programs, use a smaller model or fewer examples, "
    "or use a machine with more memory."
)


def checked_arguments(function: Callable[P, T]) -> Callable[P, T]:
    """Let a public function refuse arguments of a wrong type, in a sentence.

    An argument's name decides its type: public functions share their names. None is allowed where
    it is the default.
    """
    signature = inspect.signature(function)

    @wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        for name, value in signature.bind_partial(*args, **kwargs).arguments.items():
            kinds, needed = _KINDS.get(name, ((object,), ""))
            is_default = value is signature.parameters[name].default
            if not is_default and not isinstance(value, kinds):
                raise SettingsError(
                    f"{function.__name__}: {name} is {shortened(repr(value))}, of type "
                    f"{type(value).__name__}; {needed} is needed."
                )
        return function(*args, **kwargs)

    return checked


@runtime_checkable
class _InFolder(Protocol):
    """Protocol of a run, which this module does not import."""

    folder: Any


_TEXT = ((str,), "a string")
_PLACE = ((str, os.PathLike), "a path as a string or Path")
_KINDS: Mapping[str, tuple[tuple[type, ...], str]] = {
    **dict.fromkeys(("text", "label", "pair", "original", "flag", "name", "pattern"), _TEXT),
    **dict.fromkeys(("preset", "device", "model_type", "layers", "repository"), _TEXT),
    **dict.fromkeys(("revision",), _TEXT),
    **dict.fromkeys(("folder", "out", "cache_dir", "final", "reference", "memorised"), _PLACE),
    **dict.fromkeys(("frozen", "pretrained", "output"), _PLACE),
    **dict.fromkeys(("seed", "examples", "tokens"), ((Integral,), "a whole number")),
    **dict.fromkeys(("force", "train_missing", "private"), ((bool,), "True or False")),
    "model": ((str, os.PathLike, _InFolder), "a name, a folder or a run"),
    "settings": ((Mapping,), "a dict of settings such as {'finetune.epochs': 30}"),
    "checkpoints": ((Sequence,), "a list of names such as ['final', 'reference']"),
}
"""Types of the arguments of public functions, by the arguments' names."""
