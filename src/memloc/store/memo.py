"""Stores computed values and reuses them: the only cache, with one rule for its keys.

Every stored value has a key made from everything that decides it. It is reused if it is whole,
unchanged and has the requested key; otherwise it is computed again.
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
    """Name and version of the code that computes a value; the version is raised when results
    change.
    """

    name: str
    version: int


def key(maker: Maker, decided_by: Mapping[str, Any]) -> str:
    """Return the cache key of a finished value, as 16 hexadecimal digits.

    A finished run or result stays valid when a library is updated; its record names the versions.
    """
    return _digest({"maker": maker.name, "version": maker.version, "decided_by": decided_by})


def unfinished_key(maker: Maker, decided_by: Mapping[str, Any]) -> str:
    """Return the cache key of a part of a result, which must not mix library versions."""
    return _digest({"finished": key(maker, decided_by), "libraries": versions()})


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Format(Generic[T]):
    """The two functions that write and read values of one kind, with their cache key."""

    write: Callable[[Path, T, str], None]
    """Function that writes a value and its key, whole or not at all."""
    read: Callable[[Path], tuple[T, str]]
    """Function that returns a value and its key; it raises StoreError for a damaged one."""


def memo(
    path: Path,
    key: str,
    make: Callable[[], T],
    form: Format[T],
    reused: Callable[[], None] = lambda: None,
) -> T:
    """Return the value stored at a path if it has this key; otherwise compute and store it.

    Args:
        path: The file or folder.
        key: Key of the requested value, made by `key` or `unfinished_key`.
        make: Function that computes the value.
        form: Format in which the value is written and read.
        reused: Function called if the stored value is used.
    """
    kept = recall(path, key, form)
    if kept is not None:
        reused()
        return kept
    value = make()
    form.write(path, value, key)
    return value


def recall(path: Path, key: str, form: Format[T]) -> T | None:
    """Return the value stored at a path if it is whole, unchanged and has this key; otherwise
    None.
    """
    if not path.exists():
        return None
    try:
        value, stored_key = form.read(path)
    except StoreError as error:
        tell(f"Made again: {error}")
        return None
    return value if stored_key == key else None


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
"""Exceptions that numpy raises for a damaged file; the kind depends on the damage."""
RECORD = Format(_write_record, _read_record)
"""Format of a JSON object; floats are restored exactly."""
ARRAYS = Format(_write_arrays, _read_arrays)
"""Format of arrays by name: numpy's own, which has a checksum of each array."""
