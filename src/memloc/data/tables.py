"""Reads columns of csv, tsv, jsonl and Parquet files exactly as they are: "NA" stays a text."""

import difflib
import gzip
import json
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from memloc.errors import DataError

Table = tuple[list[str], Callable[[str], list[Any]]]
"""The names of the columns, and how to get the values of one."""


def read_columns(path: Path, columns: Sequence[str]) -> dict[str, list[Any]]:
    """The values of `columns`, row by row; what a row lacks is None.

    Fields of csv and tsv files (both with csv's quotes) are strings, those of jsonl and Parquet
    have the type they have there.
    """
    path = Path(path)
    names, values = _open(path)
    for column in columns:
        if column not in names:
            raise DataError(_no_such_column(path, column, names))
    table = {column: [_none_if_nan(v) for v in values(column)] for column in columns}
    if not next(iter(table.values()), ["no columns were asked for"]):
        raise DataError(f"{path} has columns but no rows: give a file with examples.")
    return table


def texts_of(path: Path, column: str, values: Sequence[Any]) -> list[str]:
    """The values as texts, none of them empty."""
    strange = [v for v in values if v is not None and not isinstance(v, str)]
    if strange:
        raise DataError(
            f"Column {column!r} of {path} holds {type(strange[0]).__name__} values such as"
            f" {strange[0]!r}, texts are needed: choose another column."
        )
    _refuse_missing(path, column, "texts", [v is None or not v.strip() for v in values])
    return list(values)


def labels_of(path: Path, column: str, values: Sequence[Any]) -> list[str]:
    """The values as names of classes, none of them missing: strings, integers or booleans."""
    _refuse_missing(path, column, "labels", [v is None or v == "" for v in values])
    return [_label_name(path, column, v) for v in values]


def sorted_labels(labels: set[str]) -> tuple[str, ...]:
    """A stable order: integers by value where all are integers, else by spelling."""
    if all(_is_integer(label) for label in labels):
        return tuple(sorted(labels, key=lambda label: (int(label), label)))
    return tuple(sorted(labels))


def _label_name(path: Path, column: str, value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))  # integers in a column that has gaps come as floats
    if isinstance(value, str | int):
        return str(value)
    raise DataError(
        f"Column {column!r} of {path} holds {type(value).__name__} values such as {value!r}, labels"
        " must be strings or integers: choose another column or convert it."
    )


def _is_integer(label: str) -> bool:
    return label.removeprefix("-").isascii() and label.removeprefix("-").isdigit()


def _refuse_missing(path: Path, column: str, what: str, missing: list[bool]) -> None:
    if any(missing):
        raise DataError(
            f"Column {column!r} of {path} has {sum(missing)} empty {what}, the first in row"
            f" {missing.index(True) + 1} (the header not counted): fill them in or delete the rows."
        )


def _none_if_nan(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value


def _no_such_column(path: Path, column: str, names: list[str]) -> str:
    near = "".join(f" Did you mean {n!r}?" for n in difflib.get_close_matches(column, names, n=1))
    return f"{path} has no column {column!r}.{near} It has: {', '.join(names)}."


def _open(path: Path) -> Table:
    name = path.name.lower()
    reader = next((read for suffix, read in _READERS.items() if name.endswith(suffix)), None)
    if reader is None:
        raise DataError(
            f"{path} has a suffix memloc cannot read: give a file ending in {', '.join(_READERS)}."
        )
    if not path.is_file():
        raise DataError(f"{path} is not there: check the spelling and the folder of the file.")
    try:
        return reader(path)
    # Wrong encodings, quotes, JSON and Parquet are all ValueErrors.
    except (OSError, EOFError, zlib.error, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].strip().rstrip(".")
        raise DataError(
            f"{path} could not be read ({reason}): check that it is a whole file in UTF-8 and that"
            " its suffix says what it is."
        ) from error


def _read_csv(path: Path) -> Table:
    return _delimited(path, ",")


def _read_tsv(path: Path) -> Table:
    return _delimited(path, "\t")


def _delimited(path: Path, separator: str) -> Table:
    import pandas as pd

    # Without keep_default_na=False the texts "NA", "null" and "None" would become missing.
    frame = pd.read_csv(path, sep=separator, dtype=str, keep_default_na=False)
    if not isinstance(frame.index, pd.RangeIndex):  # pandas took the first column for an index
        raise ValueError("its rows have more fields than its header")
    return [str(name) for name in frame.columns], lambda column: frame[column].tolist()


def _read_jsonl(path: Path) -> Table:
    opened = gzip.open if path.name.lower().endswith(".gz") else open
    with opened(path, "rt", encoding="utf-8-sig") as lines:
        rows = [_json_object(n, line) for n, line in enumerate(lines, start=1) if line.strip()]
    names = list(dict.fromkeys(name for row in rows for name in row))
    return names, lambda column: [row.get(column) for row in rows]


def _json_object(number: int, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ValueError(f"line {number}: {error}") from error
    if not isinstance(row, dict):
        raise ValueError(f"line {number} is not a JSON object")
    return row


def _read_parquet(path: Path) -> Table:
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    return list(table.column_names), lambda column: list(table.column(column).to_pylist())


_READERS: Mapping[str, Callable[[Path], Table]] = {
    ".csv": _read_csv,
    ".tsv": _read_tsv,
    ".jsonl": _read_jsonl,
    ".csv.gz": _read_csv,
    ".tsv.gz": _read_tsv,
    ".jsonl.gz": _read_jsonl,
    ".parquet": _read_parquet,
}
