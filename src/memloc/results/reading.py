"""Reads parts of result files: a large one holds much that no table here needs."""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from memloc.errors import StoreError
from memloc.localise.scores import COLUMNS, DETAIL
from memloc.records import (
    FORMAT,
    BoolArray,
    FloatArray,
    IntArray,
    as_stored,
    check_seal,
    read_table,
)

if TYPE_CHECKING:
    import pandas as pd

NOISY, CLEAN = "noisy wrong", "clean wrong"
"""What a localiser's file has a row an example and window of."""


@dataclass(frozen=True)
class Scores:
    """A localiser's file without its examples."""

    method: str
    values: dict[str, FloatArray]
    """Weights, centre of gravity and details by the name of the quantity."""
    layers: dict[str, IntArray]
    """The layer of each of these numbers."""
    windows: dict[str, NDArray[Any]] | None
    """Errors of windows: first, last, error, clean_error, n_noisy; None for other methods."""
    about: dict[str, Any]

    @property
    def depth(self) -> int:
        """Number of layers."""
        return len(self.values["weight"])

    def details(self) -> list[str]:
        """The names of the other numbers."""
        return [name for name in self.values if name.startswith(DETAIL)]


def read_scores(path: Path) -> Scores:
    """What a localiser found; of examples, only how many a window loses."""
    table, note = _read(path, read_dictionary=["quantity"])
    if note.get("method") != path.stem or table.column_names != list(COLUMNS):
        raise StoreError(f"{path} holds no layer scores of {path.stem}; delete it and run again.")
    with as_stored(path):
        return _scores(table, note)


def _scores(table: "pa.Table", note: dict[str, Any]) -> Scores:
    table = table.unify_dictionaries().combine_chunks()
    by_example = pc.is_in(table["quantity"].cast("string"), pa.array([NOISY, CLEAN]))
    small = table.filter(pc.invert(by_example))
    place: dict[str, list[int]] = {}
    for row, quantity in enumerate(small["quantity"].to_pylist()):
        place.setdefault(quantity, []).append(row)
    numbers = small["value"].to_numpy()
    layers = small["layer"].fill_null(0).to_numpy().astype(np.int64)
    return Scores(
        method=note["method"],
        values={name: numbers[rows] for name, rows in place.items()},
        layers={name: layers[rows] for name, rows in place.items()},
        windows=_windows(table.filter(by_example)),
        about=note["scores"],
    )


@dataclass(frozen=True)
class Reverted:
    """Which windows of layers undo which noisy example, by one method."""

    method: str
    examples: IntArray
    """(n,)."""
    windows: IntArray
    """(W, 2): first and last layer, from 1."""
    wrong: BoolArray
    """(n, W): the assigned label is no longer predicted."""

    def take(self, rows: IntArray) -> "Reverted":
        """Some of the examples, in that order."""
        return replace(self, examples=self.examples[rows], wrong=self.wrong[rows])

    def table(self) -> "pd.DataFrame":
        """A row an example and window."""
        import pandas as pd

        first, last = np.tile(self.windows.astype(np.int16), (len(self.examples), 1)).T
        example = np.repeat(self.examples.astype(np.int32), len(self.windows))
        places = {"example": example, "first": first, "last": last}
        return pd.DataFrame({"method": self.method, **places, "wrong": self.wrong.ravel()})


def read_reverted(path: Path) -> Reverted | None:
    """None for methods that do not change windows."""
    columns = ["example", "first", "last", "value"]
    table, note = _read(path, columns=columns, filters=[("quantity", "==", NOISY)])
    if not table.num_rows:
        return None
    with as_stored(path):
        example, first, last, value = (table[name].to_numpy() for name in columns)
        n = len(np.unique(example))  # as they are written: example by example, all windows of each
        ends = np.column_stack([first, last]).astype(np.int64).reshape(n, -1, 2)[0]
        wrong = value.astype(bool).reshape(n, -1)
        examples = example.reshape(n, -1)[:, 0].astype(np.int64)
        return Reverted(note["method"], examples, ends, wrong)


def read_training_examples(path: Path, *, noisy_only: bool) -> "pd.DataFrame":
    """Of a run's labels: row, parts, original, assigned and is_noisy, in the order of rows."""
    wanted: list[tuple[str, str, object]] = [("split", "==", "train")]
    wanted += [("is_noisy", "==", True)] if noisy_only else []
    columns = ["row", "parts", "original", "assigned", "is_noisy"]
    table, _ = _read(path, columns=columns, filters=wanted)
    rows: pd.DataFrame = table.to_pandas()
    return rows.sort_values("row", kind="stable")


def read_tables(path: Path, names: Sequence[str]) -> "dict[str, tuple[pa.Table, dict[str, str]]]":
    """Some of the tables of an analysis, each with the types of its columns."""
    note = read_note(path)
    kinds = note.get("tables", {})
    if note.get("name") != path.stem or not isinstance(kinds, dict) or not set(names) <= set(kinds):
        raise StoreError(f"{path} holds no analysis called {path.stem}; delete it and run again.")
    with as_stored(path):
        columns = list(dict.fromkeys(["table", *(c for name in names for c in kinds[name])]))
        rows, _ = _read(path, columns=columns, filters=[("table", "in", list(names))])
        of = {name: rows.filter(pc.equal(rows["table"], name)) for name in names}
        return {name: (of[name].select(list(kinds[name])), kinds[name]) for name in names}


def read_note(path: Path) -> dict[str, Any]:
    """What was written about a table."""
    with suppress(OSError, ValueError, LookupError, TypeError, pa.ArrowException):
        note: dict[str, Any] = json.loads(pq.read_schema(path).metadata[b"memloc"])
        if note["format"] <= FORMAT:
            return note
    raise _unreadable(path)


def count_split(path: Path, split: str) -> int:
    """How many examples of a run's labels belong to a split."""
    table, _ = _read(path, columns=["split"], filters=[("split", "==", split)])
    return int(table.num_rows)


def _read(path: Path, **which: Any) -> "tuple[pa.Table, dict[str, Any]]":
    """The rows and columns (as pyarrow calls them) of a file, and what was written about it."""
    with suppress(StoreError, OSError, ValueError, LookupError, TypeError, pa.ArrowException):
        check_seal(path)
        # Most files are small, and threads take longer to start than to read one.
        return pq.read_table(path, use_threads=False, **which), read_note(path)
    raise _unreadable(path)


def _unreadable(path: Path) -> StoreError:
    read_table(path)  # says what is wrong with it, as a rule
    return StoreError(f"{path} does not hold what it should; delete it and run again.")


def _windows(by_example: "pa.Table") -> dict[str, NDArray[Any]] | None:
    if not by_example.num_rows:
        return None
    named = by_example.set_column(0, "quantity", by_example["quantity"].cast("string"))
    grouped = named.group_by(["quantity", "first", "last"], use_threads=False)
    means = grouped.aggregate([("value", "mean"), ("value", "count")]).to_pydict()
    noisy: dict[tuple[int, int], tuple[float, int]] = {}
    clean: dict[tuple[int, int], tuple[float, int]] = {}
    for quantity, first, last, mean, n in zip(*means.values(), strict=True):
        (noisy if quantity == NOISY else clean)[first, last] = mean, n
    every = sorted(noisy, key=lambda ends: (ends[1] - ends[0], ends[0]))  # narrow ones first
    return {
        "first": np.array([first for first, _ in every]),
        "last": np.array([last for _, last in every]),
        "error": np.array([noisy[window][0] for window in every]),
        "clean_error": np.array([clean.get(window, (np.nan, 0))[0] for window in every]),
        "n_noisy": np.array([noisy[window][1] for window in every]),
    }
