"""Keeps what was computed and uses it again: the only cache, with one rule for its keys.

Whatever is kept has a key of all that decides it. It is used again if it is there, whole,
unchanged and has the key that is asked for; otherwise it is made anew.
"""

import hashlib
import json
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from memloc.errors import StoreError
from memloc.progress import tell
from memloc.store.files import whole_file
from memloc.store.records import read_json, versions, write_json

Arrays = dict[str, NDArray[Any]]
T = TypeVar("T")


class Maker(NamedTuple):
    """Name of the code that computes a thing, with a version: raised when results change."""

    name: str
    version: int


def key(maker: Maker, decided_by: Mapping[str, Any]) -> str:
    """Return the key of a finished thing, as 16 hexadecimal digits.

    A finished run or result stays valid when a library is updated; its record names the versions.
    """
    return _digest({"maker": maker.name, "version": maker.version, "decided_by": decided_by})


def unfinished_key(maker: Maker, decided_by: Mapping[str, Any]) -> str:
    """Return the key of a part of a result, in which library versions must not be mixed."""
    return _digest({"finished": key(maker, decided_by), "libraries": versions()})


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Format(Generic[T]):
    """How a kind of thing and its key are kept in a file or folder."""

    write: Callable[[Path, T, str], None]
    """Writes the thing and its key, whole or not at all."""
    read: Callable[[Path], tuple[T, str]]
    """Returns the thing and its key; a damaged one is a StoreError."""


def memo(
    path: Path,
    key: str,
    make: Callable[[], T],
    form: Format[T],
    reused: Callable[[], None] = lambda: None,
) -> T:
    """Return what is kept at a path if it has this key, else make it and keep it.

    Args:
        path: the file or folder.
        key: the key of what is asked for, by `key` or `unfinished_key`.
        make: computes the thing.
        form: how the thing is written and read.
        reused: called if nothing had to be made.
    """
    kept = recall(path, key, form)
    if kept is not None:
        reused()
        return kept
    made = make()
    form.write(path, made, key)
    return made


def recall(path: Path, key: str, form: Format[T]) -> T | None:
    """Return what is kept at a path if it is whole, unchanged and has this key."""
    if not path.exists():
        return None
    try:
        value, found = form.read(path)
    except StoreError as error:
        tell(f"Made again: {error}")
        return None
    return value if found == key else None


def _write_record(path: Path, value: dict[str, Any], key: str) -> None:
    write_json(path, {"key": key, "value": value})


def _read_record(path: Path) -> tuple[dict[str, Any], str]:
    record = read_json(path)
    return record["value"], record["key"]


def _write_arrays(path: Path, value: Arrays, key: str) -> None:
    with whole_file(path) as draft, draft.open("wb") as file:
        np.savez(file, allow_pickle=False, **{_KEY: np.array([key, *value])}, **value)


def _read_arrays(path: Path) -> tuple[Arrays, str]:
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            value = dict(file)
            key, *names = map(str, value.pop(_KEY))
            if names != [*value]:
                raise ValueError("arrays are missing")
    except _BROKEN as error:
        raise StoreError(f"{path} is damaged ({error}).") from error
    return value, key


_KEY = "memloc_key"
_BROKEN = (
    *(OSError, ValueError, LookupError, EOFError, RuntimeError, TypeError, AttributeError),
    *(zipfile.BadZipFile, zlib.error),
)
"""Exceptions that numpy raises for a damaged file; which of them depends on the damage."""
RECORD = Format(_write_record, _read_record)
"""A JSON object; a float comes back as it was."""
ARRAYS = Format(_write_arrays, _read_arrays)
"""Arrays by name, in numpy's own format, which has a checksum of each."""
