"""JSON records and Parquet tables on disk: read, written and checked; no pickle."""

import importlib.metadata
import json
import os
import platform
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memloc.arrays import Table
from memloc.errors import (
    SettingsError,
    StoreError,
    shortened,
)
from memloc.store.files import whole_file

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = 2
"""Version of the layout of files; those of another one are refused."""
_NO_SEAL = "0" * 8
_SEAL = b'{"seal": "'
"""A table's note begins with this and the checksum of the file, whose own place counts as zeros."""


def versions() -> dict[str, str]:
    """The versions that a result depends on."""
    names = ("memloc", "torch", "transformers", "numpy")
    return {"python": platform.python_version()} | {n: importlib.metadata.version(n) for n in names}


def write_json(path: Path, record: Mapping[str, Any]) -> None:
    """Write a record, whole or not at all."""
    text = json.dumps({"format": FORMAT, **record}, indent=2, ensure_ascii=False)
    with whole_file(path) as draft:
        draft.write_text(text + "\n", encoding="utf-8")


def read_json(path: Path) -> dict[str, Any]:
    """Read what `write_json` wrote."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StoreError(f"{path} does not exist.") from None
    except (OSError, ValueError) as error:
        raise StoreError(f"{path} is not JSON ({error}); delete it and run again.") from error
    return _checked(path, record)


def write_table(path: Path, table: Table, about: Mapping[str, Any]) -> None:
    """Write a table as Parquet with `about` (settings, seeds, versions, inputs) inside the file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrow = pa.Table.from_pandas(table, preserve_index=False)
    note = json.dumps({"seal": _NO_SEAL, "format": FORMAT, "versions": versions(), **about})
    arrow = arrow.replace_schema_metadata({**(arrow.schema.metadata or {}), b"memloc": note})
    with whole_file(path) as draft:
        pq.write_table(arrow, draft)
        draft.write_bytes(_sealed(draft.read_bytes()))


def _sealed(raw: bytes) -> bytes:
    """A file of which nothing changed but its seal: the checksum of all that is not the seal."""
    before, mark, after = raw.rpartition(_SEAL)
    before, after = before + mark, after[len(_NO_SEAL) :]
    checksum = zlib.crc32(before + _NO_SEAL.encode() + after)
    return before + f"{checksum:08x}".encode() + after


def as_table(*parts: Any, columns: list[str] | None = None) -> Table:
    """Columns by name, or rows, one part below another; one value may stand for a whole column.

    `columns` are the names of the columns, where there may be no row.
    """
    import pandas as pd

    return pd.concat([pd.DataFrame(part, columns=columns) for part in parts], ignore_index=True)


def read_table(path: Path) -> tuple[Table, dict[str, Any]]:
    """A table and what was written about it."""
    arrow = read_columns(path)
    with as_stored(path):
        return arrow.to_pandas(), json.loads(arrow.schema.metadata[b"memloc"])


def read_columns(
    path: Path, columns: Sequence[str] | None = None, filters: Any = None
) -> "pa.Table":
    """Some columns and rows (as pyarrow calls them) of a table, which may be large."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    is_sealed = False
    try:
        raw = path.read_bytes()
        is_sealed = _SEAL in raw
        if is_sealed and _sealed(raw) != raw:
            raise StoreError(
                f"{path} is not as memloc wrote it (its checksum differs), so it is damaged or was "
                "changed by another program; delete it and run again."
            )
        # Most files are small, and threads take longer to start than to read one.
        table = pq.read_table(path, columns=columns, filters=filters, use_threads=False)
        note = (table.schema.metadata or {}).get(b"memloc")
        record = json.loads(note or b"null")
    except FileNotFoundError:
        raise StoreError(f"{path} does not exist.") from None
    # What is wrong with a damaged file decides which of these it is.
    except (OSError, ValueError, LookupError, TypeError, pa.ArrowException) as error:
        reason = " ".join(str(error).split())
        wrong = "does not hold what it should" if is_sealed else "is not Parquet"
        raise StoreError(f"{path} {wrong} ({reason}); delete it and run again.") from error
    if note is None:
        raise StoreError(f"{path} was not written by memloc: it says nothing about its origin.")
    _checked(path, record)
    if not is_sealed:
        raise StoreError(
            f"{path} has no checksum, so it was changed by another program; delete it and run "
            "again."
        )
    return table


@contextmanager
def as_stored(path: Path, todo: str = "delete it and run again") -> Iterator[None]:
    """What a file lacks, or holds in another type than memloc writes, becomes one sentence."""
    try:
        yield
    except _MISFITS as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise StoreError(f"{path} does not hold what it should ({reason}); {todo}.") from error


_MISFITS = (
    *(LookupError, ValueError, TypeError, AttributeError, ArithmeticError),
    NotImplementedError,  # so pyarrow calls types that do not go together
)


def _checked(path: Path, record: Any) -> dict[str, Any]:
    if not isinstance(record, dict) or type(record.get("format")) is not int:
        raise StoreError(f"{path} was not written by memloc.")
    if record["format"] < FORMAT:
        raise StoreError(
            f"{path} was made by memloc 0.1, whose folders this version does not read: run what "
            "made it again, into another folder."
        )
    if record["format"] > FORMAT:
        raise StoreError(
            f"{path} has format {record['format']}, this memloc reads up to {FORMAT}: update it."
        )
    return record


def as_path(given: object, what: str) -> Path:
    """What a user gave as a path; anything but a string or a path is refused in a sentence."""
    if isinstance(given, str | os.PathLike) and str(given):
        return Path(given)
    raise SettingsError(f"Give {what} as a string or path, not {shortened(repr(given))}.")
