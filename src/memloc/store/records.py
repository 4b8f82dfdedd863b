"""JSON records and Parquet tables on disk, each with a checksum of its contents; no pickle."""

import importlib.metadata
import json
import os
import platform
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memloc.arrays import Table
from memloc.errors import SettingsError, StoreError, shortened
from memloc.store.files import whole_file

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = 3
"""Version of the file layout; files of another version are refused."""
NOTE, CHECKSUM = b"memloc", b"memloc checksum"
"""Keys of a Parquet footer: what was written about the table, and the checksum of the file."""
DAMAGED = (
    "{path} is not as memloc wrote it (its checksum differs), so it is damaged or was changed by "
    "another program; delete it and run again."
)


@cache
def versions() -> dict[str, str]:
    """Return the versions of the libraries that a result depends on."""
    names = ("memloc", "torch", "transformers", "numpy")
    return {"python": platform.python_version()} | {n: importlib.metadata.version(n) for n in names}


def write_json(path: Path, record: Mapping[str, Any]) -> None:
    """Write a record with its checksum, whole or not at all."""
    whole = {"format": FORMAT, **record}
    text = json.dumps({**whole, "checksum": _checksum(whole)}, indent=2, ensure_ascii=False)
    with whole_file(path) as draft:
        draft.write_text(text + "\n", encoding="utf-8")


def read_json(path: Path) -> dict[str, Any]:
    """Read a record that `write_json` wrote; refuse it if it has changed since."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StoreError(f"{path} does not exist.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise StoreError(f"{path} is not JSON ({error}); delete it and run again.") from error
    checksum = record.pop("checksum", None) if isinstance(record, dict) else None
    checked = _checked(path, record)
    if checksum != _checksum(checked):
        raise StoreError(DAMAGED.format(path=path))
    return checked


def _checksum(record: Mapping[str, Any]) -> str:
    """Return the checksum of a record's JSON text, independent of indentation."""
    return f"{zlib.crc32(json.dumps(record).encode()):08x}"


def write_table(path: Path, table: Table, about: Mapping[str, Any]) -> None:
    """Write a table as Parquet with `about` (settings, seeds, versions, inputs) inside the file.

    Pages have checksums that any Parquet reader can verify. The footer has a checksum of all pages,
    the schema and `about`, so that a table that another program rewrote is noticed as well.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrow = pa.Table.from_pandas(table, preserve_index=False)
    note = json.dumps({"format": FORMAT, "versions": versions(), **about}).encode()
    with (
        whole_file(path) as draft,
        draft.open("w+b") as file,
        pq.ParquetWriter(file, arrow.schema, **_AS_WRITTEN) as writer,
    ):
        writer.write_table(arrow)
        file.seek(0)
        checksum = _table_checksum(file.read(), arrow.schema, note)
        writer.add_key_value_metadata({NOTE: note, CHECKSUM: checksum})


_AS_WRITTEN: dict[str, Any] = {
    "write_page_checksum": True,
    "use_compliant_nested_type": False,  # a schema reads as it was written
}


def _table_checksum(pages: bytes, schema: "pa.Schema", note: bytes) -> bytes:
    described = repr([(field.name, str(field.type), field.nullable) for field in schema]).encode()
    about_columns = (schema.metadata or {}).get(b"pandas", b"")
    return f"{zlib.crc32(b' '.join((pages, described, about_columns, note))):08x}".encode()


def as_table(*parts: Any, columns: list[str] | None = None) -> Table:
    """Make a table from columns by name or from rows; several parts are concatenated.

    `columns` are the names of the columns, needed where there may be no row.
    """
    import pandas as pd

    return pd.concat([pd.DataFrame(part, columns=columns) for part in parts], ignore_index=True)


def read_table(path: Path) -> tuple[Table, dict[str, Any]]:
    """Return a table and the facts that were written with it."""
    arrow = read_columns(path)
    with as_stored(path):
        return arrow.to_pandas(), json.loads(arrow.schema.metadata[NOTE])


def read_columns(
    path: Path,
    columns: Sequence[str] | None = None,
    filters: Sequence[tuple[str, str, Any]] = (),
) -> "pa.Table":
    """Return some columns of a table, and the rows that pass all filters (as in pyarrow).

    A table that has changed since memloc wrote it is refused.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        raw = path.read_bytes()
        file = pq.ParquetFile(pa.BufferReader(raw))
        notes = file.metadata.metadata or {}
        record = json.loads(notes.get(NOTE, b"null"))
    except FileNotFoundError:
        raise StoreError(f"{path} does not exist.") from None
    except _UNREADABLE as error:
        reason = " ".join(str(error).split())
        raise StoreError(f"{path} is not Parquet ({reason}); delete it and run again.") from error
    _checked(path, record)
    end_of_pages = len(raw) - 8 - int.from_bytes(raw[-8:-4], "little")
    checksum = _table_checksum(raw[:end_of_pages], file.schema_arrow, notes[NOTE])
    if notes.get(CHECKSUM) != checksum:
        raise StoreError(DAMAGED.format(path=path))
    with as_stored(path):
        also = [name for name, _, _ in filters]
        read = None if columns is None else [*dict.fromkeys([*columns, *also])]
        # Most files are small, and threads take longer to start than to read one.
        table = file.read(read, use_threads=False)
        if filters:
            table = table.filter(pq.filters_to_expression(filters))
        if columns is not None:
            table = table.select(list(columns))
        about_columns = dict(file.schema_arrow.metadata or {})
        return table.replace_schema_metadata({**about_columns, NOTE: notes[NOTE]})


_UNREADABLE = (OSError, ValueError, LookupError, TypeError, ArithmeticError, NotImplementedError)
"""Exceptions that pyarrow raises for a damaged file; the kind depends on the damage."""


@contextmanager
def as_stored(path: Path, todo: str = "delete it and run again") -> Iterator[None]:
    """Turn errors about missing or mistyped contents of a file into one sentence, while active."""
    try:
        yield
    except _MISFITS as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise StoreError(f"{path} does not hold what it should ({reason}); {todo}.") from error


_MISFITS = (
    *(LookupError, ValueError, TypeError, AttributeError, ArithmeticError),
    NotImplementedError,  # pyarrow, of types that do not fit
    OSError,  # pyarrow, of damaged pages
)


def _checked(path: Path, record: Any) -> dict[str, Any]:
    if not isinstance(record, dict) or type(record.get("format")) is not int:
        raise StoreError(f"{path} was not written by memloc.")
    if record["format"] < FORMAT:
        raise StoreError(
            f"{path} was made by memloc 0.2 or older, whose folders this version does not read: "
            "run what made it again, into another folder."
        )
    if record["format"] > FORMAT:
        raise StoreError(
            f"{path} has format {record['format']}, this memloc reads up to {FORMAT}: update it."
        )
    return record


def as_path(given: object, what: str) -> Path:
    """Return a path that a user gave; refuse anything but a string or a path."""
    if isinstance(given, str | os.PathLike) and str(given):
        return Path(given)
    raise SettingsError(f"Give {what} as a string or path, not {shortened(repr(given))}.")
