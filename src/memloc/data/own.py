"""Makes a task of anybody's own file, with or without noise that is already in its labels."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from memloc.data.perturb import given_noise
from memloc.data.splits import halve, split_off
from memloc.data.tables import labels_of, read_columns, sorted_labels, texts_of
from memloc.errors import DataError
from memloc.records import Examples, NoisyLabels, Task
from memloc.seeds import generator


def load_file(  # noqa: PLR0913  (each names something that varies between people's files)
    path: Path,
    *,
    text: str,
    label: str,
    pair: str | None = None,
    held_out: Path | None = None,
    original: str | None = None,
    seed: int = 1,
    name: str | None = None,
) -> Task:
    """A task from a csv, tsv, jsonl (also .gz) or Parquet file; arguments name its columns.

    Without a `held_out` file (which has the same columns) a random 20 % is held out. With
    `original`, the labels before noise, the task carries those; `load_noisy_file` adds the noise.
    """
    columns = _Columns(text, label, pair, original or label)
    return _load(Path(path), columns, held_out, seed, name)[0]


def load_noisy_file(  # noqa: PLR0913
    path: Path,
    *,
    text: str,
    label: str,
    original: str,
    pair: str | None = None,
    held_out: Path | None = None,
    seed: int = 1,
    name: str | None = None,
) -> tuple[Task, NoisyLabels]:
    """The same task as by `load_file`, and the labels of its training examples with their noise.

    `label` is the column of assigned, `original` that of original labels; held-out data are
    judged by the original ones.
    """
    columns = _Columns(text, label, pair, original)
    task, assigned = _load(Path(path), columns, held_out, seed, name)
    return task, given_noise(task.train.labels, assigned.labels)


@dataclass(frozen=True)
class _Columns:
    text: str
    assigned: str
    pair: str | None
    original: str
    """The same column as `assigned` where labels have no noise."""

    @property
    def parts(self) -> list[str]:
        return [self.text] if self.pair is None else [self.text, self.pair]


@dataclass(frozen=True)
class _Rows:
    """A file's texts with their labels as names."""

    parts: tuple[tuple[str, ...], ...]
    original: list[str]
    assigned: list[str]


def _load(
    path: Path, columns: _Columns, held_out: Path | None, seed: int, name: str | None
) -> tuple[Task, Examples]:
    """The task with original labels, and its training examples with the assigned ones."""
    name = name or path.name.split(".")[0]
    rows = _read(path, columns)
    names = _classes(path, columns, rows)
    train = _examples(rows.parts, rows.original, names)
    assigned = _examples(rows.parts, rows.assigned, names)
    rng = generator(seed, "split", name)
    if held_out is None:
        train, held = split_off(train, rng)
        assigned, _ = split_off(assigned, generator(seed, "split", name))  # the same cut
    else:
        held = _held_out(Path(held_out), columns, names)
    validation, test = halve(held, rng)
    return Task(name, "own", names, train, validation, test, f"file: {path}"), assigned


def _read(path: Path, columns: _Columns) -> _Rows:
    table = read_columns(path, [*columns.parts, columns.original, columns.assigned])
    parts = [texts_of(path, column, table[column]) for column in columns.parts]
    original, assigned = (
        labels_of(path, column, table[column]) for column in (columns.original, columns.assigned)
    )
    return _Rows(tuple(zip(*parts, strict=True)), original, assigned)


def _classes(path: Path, columns: _Columns, rows: _Rows) -> tuple[str, ...]:
    names = sorted_labels({*rows.original, *rows.assigned})
    if len(names) < 2:
        raise DataError(
            f"Column {columns.assigned!r} of {path} has the one label {names[0]!r}, at least two"
            " are needed: choose another column or add examples of other classes."
        )
    return names


def _held_out(path: Path, columns: _Columns, names: tuple[str, ...]) -> Examples:
    rows = _read(path, columns)
    unseen = sorted_labels(set(rows.original) - set(names))
    if unseen:
        raise DataError(
            f"{path} has labels that the training file has not ({', '.join(unseen)}), it has"
            f" {', '.join(names)}: correct the labels or add training examples."
        )
    return _examples(rows.parts, rows.original, names)


def _examples(
    parts: tuple[tuple[str, ...], ...], labels: list[str], names: tuple[str, ...]
) -> Examples:
    index = {name: i for i, name in enumerate(names)}
    return Examples(parts, np.array([index[label] for label in labels], dtype=np.int64))


def read_noisy_examples(
    path: Path,
    *,
    text: str,
    label: str,
    noisy: str,
    known: Sequence[str],
    pair: str | None = None,
) -> tuple[Examples, NoisyLabels]:
    """The examples that a model was trained on, for classes it already knows by name or number.

    `noisy` is a column of true and false, or one of original labels; a column of 0 and 1 is taken
    for original labels where 0 and 1 are classes. Unknown original labels become -1.
    """
    path, parts = Path(path), [text] if pair is None else [text, pair]
    table = read_columns(path, [*parts, label, noisy])
    texts = [texts_of(path, column, table[column]) for column in parts]
    names = labels_of(path, label, table[label])
    index = _known_index(path, label, set(names), known)
    assigned = np.array([index[name] for name in names], dtype=np.int64)
    marks = labels_of(path, noisy, table[noisy])
    if set(marks) <= set(index) | set(known) and not _is_boolean(table[noisy]):
        known_index = _known_index(path, noisy, set(marks), known)
        original = np.array([known_index[mark] for mark in marks], dtype=np.int64)
    else:
        flagged = np.array([_as_flag(path, noisy, mark) for mark in marks])
        original = np.where(flagged, -1, assigned)
    return Examples(tuple(zip(*texts, strict=True)), assigned), given_noise(original, assigned)


def _known_index(path: Path, column: str, names: set[str], known: Sequence[str]) -> dict[str, int]:
    """From the names in a file to the model's classes: by name, or all by number."""
    by_name = {name: i for i, name in enumerate(known)}
    by_number = {str(i): i for i in range(len(known))}
    for index in (by_name, by_number):
        if names <= set(index):
            return index
    strange = sorted_labels(names - set(by_name))
    raise DataError(
        f"Column {column!r} of {path} has labels that the model does not know"
        f" ({', '.join(strange[:5])}); it knows {', '.join(known)}, or their numbers from 0."
    )


FLAGS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def _is_boolean(values: Sequence[object]) -> bool:
    return all(isinstance(value, bool) for value in values)


def _as_flag(path: Path, column: str, mark: str) -> bool:
    if mark.lower() not in FLAGS:
        raise DataError(
            f"Column {column!r} of {path} holds {mark!r}; it must hold true and false, or the"
            " labels before noise."
        )
    return FLAGS[mark.lower()]
