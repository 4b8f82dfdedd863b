"""What flows between stages, and how it looks on disk: JSON records, Parquet tables, no pickle."""

import importlib.metadata
import json
import os
import platform
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from memloc.errors import StoreError, counted

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

IntArray: TypeAlias = NDArray[np.int64]
FloatArray: TypeAlias = NDArray[np.float64]
BoolArray: TypeAlias = NDArray[np.bool_]

FORMAT = 2
"""Version of the layout of files; those of another one are refused."""


@dataclass(frozen=True)
class Examples:
    """Texts with their labels, in a fixed order; a text has one, two or (WiC) three parts."""

    parts: tuple[tuple[str, ...], ...]
    labels: IntArray

    def __len__(self) -> int:
        return len(self.parts)

    def take(self, rows: IntArray) -> "Examples":
        """The examples at `rows`, in that order."""
        return Examples(tuple(self.parts[i] for i in rows), self.labels[rows])


@dataclass(frozen=True)
class Task:
    """Texts with labels and splits; labels are indices into `label_names`."""

    name: str
    category: str
    label_names: tuple[str, ...]
    train: Examples
    validation: Examples
    test: Examples
    source: str
    """Where it was read from, for people."""

    @property
    def n_classes(self) -> int:
        """Number of classes, those without a training example included."""
        return len(self.label_names)


@dataclass(frozen=True)
class NoisyLabels:
    """Labels before (`original`) and after (`assigned`) perturbation; equal where not noisy."""

    original: IntArray
    assigned: IntArray
    is_noisy: BoolArray
    origin: str = ""
    """How it is known which labels are wrong, for people."""

    def summary(self) -> str:
        """How many examples are noisy, and how that is known."""
        found = f"{int(self.is_noisy.sum()):,} noisy of {counted(len(self.is_noisy), 'example')}"
        return f"{found}, {self.origin}." if self.origin else f"{found}."


@dataclass(frozen=True)
class NoisyTask:
    """A task of which some training labels are wrong, and which these are."""

    task: Task
    labels: NoisyLabels


def versions() -> dict[str, str]:
    """The versions that a result depends on."""
    names = ("memloc", "torch", "transformers", "numpy")
    return {"python": platform.python_version()} | {n: importlib.metadata.version(n) for n in names}


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A draft to write to, which becomes `path` when the block ends well and is gone otherwise."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield draft
        os.replace(draft, path)
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """The same for a folder; one that stands there already is replaced."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        yield draft
        shutil.rmtree(path, ignore_errors=True)
        os.replace(draft, path)
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def cannot_write(path: Path, error: OSError) -> StoreError:
    """The sentence for a full disk, a read-only folder or a missing permission."""
    reason = error.strerror or str(error)
    return StoreError(f"Cannot write {path}: {reason}. Free space or choose another folder.")


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


def write_table(path: Path, table: "pd.DataFrame", about: Mapping[str, Any]) -> None:
    """Write a table as Parquet with `about` (settings, seeds, versions, inputs) inside the file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrow = pa.Table.from_pandas(table, preserve_index=False)
    note = json.dumps({"format": FORMAT, "versions": versions(), **about})
    arrow = arrow.replace_schema_metadata({**(arrow.schema.metadata or {}), b"memloc": note})
    with whole_file(path) as draft:
        pq.write_table(arrow, draft)


def read_table(path: Path) -> tuple["pd.DataFrame", dict[str, Any]]:
    """A table and what was written about it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        arrow = pq.read_table(path)
    except FileNotFoundError:
        raise StoreError(f"{path} does not exist.") from None
    # What is wrong with a damaged file decides which of these it is.
    except (OSError, ValueError, pa.ArrowException) as error:
        reason = " ".join(str(error).split())
        raise StoreError(f"{path} is not Parquet ({reason}); delete it and run again.") from error
    note = (arrow.schema.metadata or {}).get(b"memloc")
    if note is None:
        raise StoreError(f"{path} was not written by memloc: it says nothing about its origin.")
    return arrow.to_pandas(), _checked(path, json.loads(note))


def read_columns(
    path: Path, columns: Sequence[str] | None = None, filters: Any = None
) -> "pa.Table":
    """Some columns and rows (as pyarrow calls them) of a table, which may be large."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # Most files are small, and threads take longer to start than to read one.
        return pq.read_table(path, columns=columns, filters=filters, use_threads=False)
    except (OSError, ValueError, LookupError, TypeError, pa.ArrowException):
        read_table(path)  # says what is wrong with it, as a rule
        raise StoreError(f"{path} does not hold what it should; delete it and run again.") from None


def _checked(path: Path, record: Any) -> dict[str, Any]:
    if not isinstance(record, dict) or not isinstance(record.get("format"), int):
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
