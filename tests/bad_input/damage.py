"""Ways in which files get damaged, as values that hypothesis can draw and a person can read."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

CHECKSUM = b"memloc checksum"
NEWER = 99
"""A version of the format that no memloc has written yet."""
JUNK: list[Any] = [
    *(None, True, False, 0, -1, 3, 10**40, 2**63, 0.5, 1e308, -1e308, math.nan, math.inf),
    *("", "x", "1", "nan", "\x00", "ü" * 40, [], [None], [[]], [1, "a"], {}, {"a": 1}, {"": {}}),
]
"""Values of a wrong type or size."""
SHARES = st.floats(0, 1)


@dataclass(frozen=True)
class Bytes:
    """Damage of any file; `at` is the place as a share of its length."""

    how: str
    at: float
    amount: int

    def apply(self, path: Path, others: list[Path]) -> None:
        whole = path.read_bytes()
        place = min(int(self.at * len(whole)), max(0, len(whole) - 1))
        new = {
            "cut": lambda: whole[:place],
            "headless": lambda: whole[place:],
            "empty": lambda: b"",
            "flip": lambda: _flipped(whole, place, self.amount),
            "zeros": lambda: whole[:place] + bytes(self.amount) + whole[place + self.amount :],
            "inserted": lambda: whole[:place] + b"\xff\x00x"[: self.amount % 3 + 1] + whole[place:],
            "twice": lambda: whole + whole,
            "swapped": lambda: others[self.amount % len(others)].read_bytes() if others else b"",
        }[self.how]()
        path.write_bytes(new)


def _flipped(whole: bytes, place: int, amount: int) -> bytes:
    if not whole:
        return whole
    return whole[:place] + bytes([whole[place] ^ (1 << amount % 8)]) + whole[place + 1 :]


@dataclass(frozen=True)
class Gone:
    """The file is not there, or is a folder."""

    folder: bool

    def apply(self, path: Path, others: list[Path]) -> None:
        path.unlink()
        if self.folder:
            path.mkdir()


@dataclass(frozen=True)
class Json:
    """Another value, or none, at one place of a record; `at` counts all its places."""

    at: int
    value: Any
    how: str = "replace"

    def apply(self, path: Path, others: list[Path]) -> None:
        path.write_text(json.dumps(self.changed(json.loads(path.read_text("utf-8")))), "utf-8")

    def changed(self, record: Any) -> Any:
        places = list(places_of(record))
        if self.how == "whole" or not places:
            return self.value
        inner, key = places[self.at % len(places)]
        if self.how == "drop":
            del inner[key]
        elif self.how == "rename" and isinstance(inner, dict):
            inner[f"{key}_"] = inner.pop(key)
        else:
            inner[key] = self.value
        return record

    def there(self, record: Any) -> Any:
        """What stands at the place that is damaged."""
        places = list(places_of(record))
        inner, key = places[self.at % len(places)]
        return inner[key]


def places_of(record: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in a record, shallow ones first."""
    level = [record]
    while level:
        inside = []
        for inner in level:
            keys = range(len(inner)) if isinstance(inner, list) else list(inner)
            for key in keys:
                yield inner, key
                if isinstance(inner[key], dict | list):
                    inside.append(inner[key])
        level = inside


@dataclass(frozen=True)
class Columns:
    """A Parquet file with other columns, rows or notes."""

    how: str
    at: int
    sealed: bool
    """Whether the checksum is kept, which does not fit any more."""
    note: Json | None = None

    def apply(self, path: Path, others: list[Path]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = pq.read_table(path)
        metadata = dict(pq.ParquetFile(path).metadata.metadata or {})
        metadata.pop(b"ARROW:schema", None)
        if not self.sealed:
            metadata.pop(CHECKSUM, None)
        if self.note is not None:
            record = self.note.changed(json.loads(metadata[b"memloc"]))
            metadata[b"memloc"] = json.dumps(record).encode()
        elif self.how == "no note":
            metadata.pop(b"memloc", None)
        elif self.how == "broken note":
            metadata[b"memloc"] = metadata[b"memloc"][: self.at % len(metadata[b"memloc"])]
        elif self.how == "newer":
            note = json.loads(metadata[b"memloc"])
            metadata[b"memloc"] = json.dumps({**note, "format": NEWER}).encode()
        else:
            table = self._altered(table, pa)
        pq.write_table(table.replace_schema_metadata(metadata), path)

    def _altered(self, table: Any, pa: Any) -> Any:
        column = self.at % table.num_columns
        name, n = table.column_names[column], table.num_rows
        return {
            "drop": lambda: table.remove_column(column),
            "rename": lambda: table.rename_columns(
                [f"{c}_" if c == name else c for c in table.column_names]
            ),
            "texts": lambda: table.set_column(column, name, pa.array(["x"] * n)),
            "numbers": lambda: table.set_column(column, name, pa.array([float(self.at)] * n)),
            "nulls": lambda: table.set_column(column, name, pa.nulls(n)),
            "lists": lambda: table.set_column(column, name, pa.array([[1]] * n)),
            "no rows": lambda: table.slice(0, 0),
            "few rows": lambda: table.slice(0, self.at % max(1, n)),
            "last rows": lambda: table.slice(self.at % max(1, n)),
            "rows twice": lambda: pa.concat_tables([table, table]),
            "backwards": lambda: table.take(list(range(n))[::-1]),
            "one more": lambda: table.append_column("more", pa.nulls(n)),
        }[self.how]()


PARQUET_DAMAGE = (
    *("drop", "rename", "texts", "numbers", "nulls", "lists", "no rows", "few rows", "last rows"),
    *("rows twice", "backwards", "one more", "no note", "broken note", "newer"),
)


def weighted(*choices: "tuple[int, st.SearchStrategy[Any]]") -> "st.SearchStrategy[Any]":
    """One of the strategies, each so many times as likely; `one_of` counts repeated ones once."""
    return st.sampled_from([s for times, s in choices for _ in range(times)]).flatmap(lambda s: s)


anywhere = st.integers(0, 400)
some_bytes = st.builds(
    Bytes,
    st.sampled_from(
        ["cut", "headless", "empty", "flip", "flip", "zeros", "inserted", "twice", "swapped"]
    ),
    SHARES,
    st.integers(1, 64),
)
some_json = st.builds(
    Json,
    anywhere,
    st.sampled_from(JUNK),
    st.sampled_from(["replace", "replace", "drop", "rename", "whole"]),
)
some_columns = weighted(
    (3, st.builds(Columns, st.sampled_from(PARQUET_DAMAGE), anywhere, st.booleans())),
    (1, st.builds(Columns, st.just("note"), st.just(0), st.booleans(), some_json)),
)
gone = st.builds(Gone, st.booleans())


def damage_of(path: Path) -> "st.SearchStrategy[Any]":
    """What can happen to a file of this kind."""
    own = {".json": some_json, ".parquet": some_columns}.get(path.suffix, some_bytes)
    return weighted((10, own), (9, some_bytes), (1, gone))
