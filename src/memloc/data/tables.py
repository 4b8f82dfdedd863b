"""Reads columns of csv, tsv, jsonl and Parquet files exactly as written: "NA" stays a text."""

import codecs
import csv
import gzip
import io
import json
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, Union

from memloc.errors import (
    DataError,
    SettingsError,
    counted,
    nearest,
    shortened,
)

if TYPE_CHECKING:
    import datasets
    import pandas as pd

Columnar = tuple[list[str], Callable[[str], list[Any]]]
"""Column names of a file, with a function that returns the values of one column."""
SEPARATORS = ",;\t|"
"""Characters recognised as separators of the fields of a csv or tsv file."""
FLAGS = {
    **dict.fromkeys(("true", "yes", "t", "y", "1"), True),
    **dict.fromkeys(("false", "no", "f", "n", "0"), False),
}
"""Accepted spellings of true and false."""
GUARDED = "apostrophe_added"
"""Column that memloc adds to a csv file to mark rows whose cells got a leading apostrophe."""
_FORMULA = re.compile("'*[-=+@\t\r\n\uff0d\uff1d\uff0b\uff20]")
"""Pattern of a cell that a spreadsheet would run as a formula, or that was guarded against it."""
_NUMBER = re.compile(r"[-+]?[0-9]*\.?[0-9]+(e[-+]?[0-9]+)?", re.IGNORECASE)


@dataclass(frozen=True)
class InMemory:
    """A pandas DataFrame or a `datasets.Dataset`, read like a file."""

    table: Any
    name: str = "table"
    """Name of a task made from the table."""

    def __str__(self) -> str:
        return f"the {type(self.table).__name__}"

    def columns(self) -> Columnar:
        """Return the columns; numbered classes of a Dataset are replaced by their names."""
        if hasattr(self.table, "iloc"):
            names = [str(name) for name in self.table.columns]
            return names, lambda column: _plain(self.table.iloc[:, names.index(column)])
        return list(self.table.column_names), self._of_dataset

    def _of_dataset(self, column: str) -> list[Any]:
        values = list(self.table[column])
        names = getattr(self.table.features[column], "names", None)
        if names is None:
            return values
        return [names[v] if v is not None and v >= 0 else None for v in values]


Source = Path | InMemory
"""A file or a table in memory that examples are read from."""
Data: TypeAlias = Union[str, Path, "pd.DataFrame", "datasets.Dataset"]
"""Types that users may pass as data: a path, a DataFrame or a Dataset."""


def source_of(data: Any) -> Source:
    """Return the source of examples that a user passed: a path, a DataFrame or a Dataset."""
    if isinstance(data, Path | InMemory):
        return data
    if isinstance(data, str) and data:
        return Path(data)
    # A caller who has one of these has imported its library.
    loaded = [(sys.modules.get(m), kind) for m, kind in _TABLES.items()]
    if any(isinstance(data, getattr(module, kind)) for module, kind in loaded if module):
        return InMemory(data)
    splits = " It has splits: give one of them." if isinstance(data, Mapping) else ""
    raise DataError(
        "Examples are read from a file (its path), a pandas DataFrame or a datasets.Dataset, not "
        f"from {shortened(repr(data))} ({type(data).__name__}).{splits}"
    )


_TABLES = {"pandas": "DataFrame", "datasets": "Dataset"}


def _plain(series: "pd.Series[Any]") -> list[Any]:
    """Return the values of a column as plain Python objects; None for missing values."""
    values = series.astype(object).where(series.notna(), None).tolist()
    return [v.item() if hasattr(v, "dtype") and hasattr(v, "item") else v for v in values]


def read_values(path: Source, columns: Sequence[str]) -> dict[str, list[Any]]:
    """Return the values of these columns, row by row; None for missing values.

    Fields of csv and tsv files (both with csv quoting) are strings; values of jsonl and Parquet
    files and of tables in memory keep their types.
    """
    names, values = path.columns() if isinstance(path, InMemory) else _open(Path(path), columns)
    for column in columns:
        if column not in names:
            near = nearest(column, names)
            raise DataError(f"{path} has no column {column!r}.{near} It has: {', '.join(names)}.")
        if names.count(column) > 1:
            raise DataError(
                f"{path} has {names.count(column)} columns called {column!r}: rename or delete all"
                " but one."
            )
    # NaN alone differs from itself.
    table = {column: [v if v == v else None for v in values(column)] for column in columns}  # noqa: PLR0124
    if not next(iter(table.values()), ["no columns were asked for"]):
        raise DataError(f"{path} has columns but no rows: give a file with examples.")
    return table


def write_csv(path: Path, table: "pd.DataFrame") -> None:
    """Write a table that `read_values` reads back unchanged; spreadsheets run no formula in it.

    Texts that a spreadsheet would take for a formula get a leading apostrophe, and the column
    `GUARDED` marks their rows; `read_values` removes the apostrophes again.
    """
    safe = table.map(lambda cell: _guarded(cell) if isinstance(cell, str) else cell)
    changed = ((safe != table) & safe.notna()).any(axis=1)
    if changed.any():
        safe = safe.assign(**{GUARDED: changed.map({True: "yes", False: "no"})})
    # All texts in quotes: pandas does not see that one with a carriage return needs them.
    safe.to_csv(path, index=False, quoting=csv.QUOTE_NONNUMERIC)


def _guarded(cell: str) -> str:
    return f"'{cell}" if _FORMULA.match(cell) and not _NUMBER.fullmatch(cell) else cell


def _unguarded(cell: Any) -> Any:
    is_guarded = isinstance(cell, str) and cell.startswith("'") and _FORMULA.match(cell)
    return cell[1:] if is_guarded else cell


def texts_of(path: Source, column: str, values: Sequence[Any]) -> list[str]:
    """Return the values of a column as texts; refuse empty ones."""
    strange = [v for v in values if v is not None and not isinstance(v, str)]
    _refuse_strange(path, column, strange, "texts are needed: choose another column")
    _refuse_missing(path, column, "text", [v is None or not v.strip() for v in values])
    _refuse_halves(path, column, values)
    return list(values)


def labels_of(path: Source, column: str, values: Sequence[Any]) -> list[str]:
    """Return a column as class names (strings, integers or booleans); refuse missing values.

    Spaces around a label do not count, and where all are whole numbers 1.0 is the label 1.
    """
    values = [v.strip() if isinstance(v, str) else v for v in values]
    _refuse_missing(path, column, "label", [v in _MISSING for v in values])
    # Integers in a column that has gaps come as floats.
    values = [int(v) if isinstance(v, float) and v.is_integer() else v for v in values]
    needed = "labels must be strings or integers: choose another column or convert it"
    _refuse_strange(path, column, [v for v in values if not isinstance(v, str | int)], needed)
    names = list(map(str, values))
    _refuse_halves(path, column, names)
    if all(_WHOLE.fullmatch(name) for name in names):
        return [name.partition(".")[0] for name in names]
    return names


def flags_of(path: Source, column: str, values: Sequence[Any]) -> list[bool]:
    """Return the values of a column as booleans, from any spelling in `FLAGS`."""
    names = labels_of(path, column, values)
    strange = next((name for name in names if name.lower() not in FLAGS), None)
    if strange is not None:
        raise DataError(
            f"Column {column!r} of {path} holds {strange!r}, but flags are true or false (or 1 and"
            f" 0, yes and no): if it holds the labels before noise, use --original {column}"
            " (original=)."
        )
    return [FLAGS[name.lower()] for name in names]


def looks_like_flags(names: Iterable[str]) -> bool:
    """Return whether all of these labels could also be read as flags."""
    return all(name.lower() in FLAGS for name in names)


def sorted_labels(labels: set[str]) -> tuple[str, ...]:
    """Return labels sorted by value if all are integers, else alphabetically."""
    if all(re.fullmatch("-?[0-9]+", label) for label in labels):
        return tuple(sorted(labels, key=lambda label: (int(label), label)))
    return tuple(sorted(labels))


_MISSING = (None, "", "nan", "NaN")
_WHOLE = re.compile(r"-?[0-9]+(\.0+)?")


def _refuse_strange(path: Source, column: str, strange: Sequence[Any], needed: str) -> None:
    if strange:
        raise DataError(
            f"Column {column!r} of {path} holds {type(strange[0]).__name__} values such as"
            f" {strange[0]!r}, but {needed}."
        )


def _refuse_missing(path: Source, column: str, what: str, missing: list[bool]) -> None:
    if any(missing):
        raise DataError(
            f"Column {column!r} of {path} has {counted(sum(missing), f'empty {what}')}, the first"
            f" in row {missing.index(True) + 1} (not counting the header): fill in what is empty"
            " or delete the rows."
        )


def _refuse_halves(path: Source, column: str, texts: Sequence[str]) -> None:
    """Refuse texts with half a character, which UTF-8 cannot hold and tokenizers do not take."""
    row = next((n for n, text in enumerate(texts, start=1) if _HALF.search(text)), None)
    if row is not None:
        raise DataError(
            f"Column {column!r} of {path} has half a character (a lone surrogate such as \\ud800) "
            f"in row {row} (not counting the header): correct that text or delete the row."
        )


_HALF = re.compile("[\ud800-\udfff]")


def _open(path: Path, columns: Sequence[str]) -> Columnar:
    name = path.name.lower()
    reader = next((read for suffix, read in _READERS.items() if name.endswith(suffix)), None)
    if path.is_dir():
        reader = _read_folder
    if reader is None:
        raise DataError(
            f"{path} has a suffix memloc cannot read: give a file ending in {', '.join(_READERS)}, "
            "or a folder that the package datasets saved."
        )
    if not path.exists():
        raise DataError(f"{path} is not there: check the spelling and the folder of the file.")
    try:
        return reader(path, columns)
    # Wrong encodings, quotes, JSON and Parquet are all ValueErrors.
    except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].strip().rstrip(".")
        reason = reason.removeprefix("Error tokenizing data. C error: ")
        raise DataError(f"{path} could not be read ({reason}): {_advice(error)}.") from error


def _advice(error: Exception) -> str:
    if isinstance(error, UnicodeError):
        return "check how it is encoded and save it as UTF-8"
    if "tokenizing" in str(error):
        return (
            "check that every row has as many fields as the header, that texts which hold the"
            " separator are in quotes and that quotes are closed"
        )
    if str(error).startswith("line "):
        return "check that line"
    return "check that the file is complete and that its suffix says what it is"


MOST_UNPACKED = "MEMLOC_UNPACK_GB"
"""Environment variable with the largest allowed size of an unpacked file, in gigabytes."""
USUALLY = 1.0
"""Default limit of an unpacked file in gigabytes; reading takes about three times as much memory.

"""


def _most_unpacked() -> int:
    """Return the number of bytes that a compressed file may unpack to."""
    given = os.environ.get(MOST_UNPACKED, "")
    if given and not (_NUMBER.fullmatch(given) and float(given) > 0):
        raise SettingsError(
            f"The environment variable {MOST_UNPACKED} is {shortened(given)!r}, where a number of "
            "gigabytes is needed, such as 4."
        )
    return round(float(given or USUALLY) * 10**9)


def _refuse_large(path: Path, size: int, most: int) -> None:
    if size > most:
        raise DataError(
            f"{path} unpacks to more than {most / 10**9:g} GB, and reading it takes about three "
            "times as much memory: give a part of it, or allow more, such as 8 GB, with the "
            f"environment variable {MOST_UNPACKED}=8."
        )


def _text_of(path: Path) -> str:
    """Return the content of a text file, unpacked if compressed, read as UTF-8 or marked UTF-16."""
    if path.name.lower().endswith(".gz"):
        most = _most_unpacked()
        with gzip.open(path) as packed:
            raw = packed.read(most + 1)
        _refuse_large(path, len(raw), most)
    else:
        raw = path.read_bytes()
    is_utf_16 = raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    text = raw.decode("utf-16" if is_utf_16 else "utf-8-sig")
    if "\0" in text:
        raise UnicodeError("it holds zero bytes, so it is neither UTF-8 nor marked as UTF-16")
    if not text.strip():
        raise DataError(f"{path} is empty: give a file with examples.")
    return text


def _read_csv(path: Path, columns: Sequence[str]) -> Columnar:
    text = _text_of(path)
    headers = {separator: _header(text, separator) for separator in SEPARATORS}
    # The separator with which the columns that were asked for are there; else the likeliest.
    fitting = [s for s, names in headers.items() if {*columns} <= {*names}]
    separator = (fitting or [max(headers, key=lambda s: len(headers[s]))])[0]
    rows, names = _parsed(text, separator).iloc[1:], headers[separator]
    if GUARDED in names:
        rows = rows.map(_unguarded)
    return names, lambda column: rows.iloc[:, names.index(column)].tolist()


def _header(text: str, separator: str) -> list[str]:
    try:
        return [str(name) for name in _parsed(text, separator, nrows=1).iloc[0]]
    except ValueError:  # reading all of it with this separator says why
        return []


def _parsed(text: str, separator: str, nrows: int | None = None) -> "pd.DataFrame":
    import pandas as pd

    # The header is a row like others: two columns may have one name, and none is an index.
    # Without keep_default_na=False the texts "NA", "null" and "None" would become missing.
    return pd.read_csv(
        io.StringIO(text), sep=separator, header=None, nrows=nrows, dtype=str, keep_default_na=False
    )


def _read_jsonl(path: Path, _columns: Sequence[str]) -> Columnar:
    # Not splitlines: texts may hold characters that it takes for the end of a line.
    lines = enumerate(_text_of(path).split("\n"), start=1)
    rows = [_json_object(n, line) for n, line in lines if line.strip()]
    names = list(dict.fromkeys(name for row in rows for name in row))
    return names, lambda column: [row.get(column) for row in rows]


def _json_object(number: int, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line, object_pairs_hook=_without_repeats)
    except ValueError as error:
        raise ValueError(f"line {number}: {error}") from error
    if not isinstance(row, dict):
        raise ValueError(f"line {number} is not a JSON object")
    return row


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name, value in pairs:
        if name in row:
            raise ValueError(f"the key {name!r} is there twice")
        row[name] = value
    return row


def _read_parquet(path: Path, _columns: Sequence[str]) -> Columnar:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
        groups = map(file.metadata.row_group, range(file.metadata.num_row_groups))
        _refuse_large(path, sum(group.total_byte_size for group in groups), _most_unpacked())
        table = file.read()
    except pa.ArrowException as error:
        raise ValueError(str(error)) from error
    return list(table.column_names), lambda column: list(table.column(column).to_pylist())


def files_of(path: Path) -> list[Path]:
    """Return the files that decide the data at a path: the file itself, or those of a folder.

    In a folder, some say which rows and columns are read. The package datasets caches there what it
    computes from them.
    """
    if not path.is_dir():
        return [path]
    return sorted(p for p in path.iterdir() if p.is_file() and not p.name.startswith("cache-"))


def _read_folder(path: Path, _columns: Sequence[str]) -> Columnar:
    """Read a folder that `save_to_disk` of a `datasets.Dataset` wrote."""
    if (path / "dataset_dict.json").is_file():
        splits = sorted(each.name for each in path.iterdir() if each.is_dir())
        raise DataError(f"{path} has splits: give the folder of one of them ({', '.join(splits)}).")
    if not (path / "state.json").is_file():
        raise DataError(
            f"{path} is a folder that save_to_disk of the package datasets did not write: give a "
            f"file ending in {', '.join(_READERS)}, or a folder that it wrote."
        )
    try:
        from datasets import load_from_disk
    except ImportError as error:
        raise DataError(
            f"{path} is read with the package datasets, which is not installed: pip install "
            "'memloc[hub]', or save the data as a Parquet file."
        ) from error
    return InMemory(load_from_disk(str(path))).columns()


_READERS: Mapping[str, Callable[[Path, Sequence[str]], Columnar]] = {
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".jsonl": _read_jsonl,
    ".csv.gz": _read_csv,
    ".tsv.gz": _read_csv,
    ".jsonl.gz": _read_jsonl,
    ".parquet": _read_parquet,
}
