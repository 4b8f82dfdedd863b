"""Makes a task of anybody's own file, with or without noise that is already in its labels."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import overload

import numpy as np

from memloc.data.perturb import OWN, given_noise
from memloc.data.splits import halve, split_off
from memloc.data.tables import flags_of, labels_of, looks_like_flags, read_columns, texts_of
from memloc.data.tables import sorted_labels as in_order
from memloc.errors import DataError, MemlocWarning, counted
from memloc.records import Examples, IntArray, NoisyLabels, NoisyTask, Task
from memloc.seeds import generator

UNKNOWN = -1
"""The original label of an example that is flagged as noisy in a task of more than two classes."""


@overload
def load_csv(
    path: str | Path,
    *,
    text: str = ...,
    label: str = ...,
    original: None = ...,
    flag: None = ...,
    pair: str | None = ...,
    held_out: str | Path | None = ...,
    seed: int = ...,
    name: str | None = ...,
) -> Task: ...


@overload
def load_csv(
    path: str | Path,
    *,
    text: str = ...,
    label: str = ...,
    original: str,
    flag: None = ...,
    pair: str | None = ...,
    held_out: str | Path | None = ...,
    seed: int = ...,
    name: str | None = ...,
) -> NoisyTask: ...


@overload
def load_csv(
    path: str | Path,
    *,
    text: str = ...,
    label: str = ...,
    original: None = ...,
    flag: str,
    pair: str | None = ...,
    held_out: str | Path | None = ...,
    seed: int = ...,
    name: str | None = ...,
) -> NoisyTask: ...


def load_csv(  # noqa: PLR0913 - each names something that varies between people's files
    path: str | Path,
    *,
    text: str = "text",
    label: str = "label",
    original: str | None = None,
    flag: str | None = None,
    pair: str | None = None,
    held_out: str | Path | None = None,
    seed: int = 1,
    name: str | None = None,
) -> Task | NoisyTask:
    """A task from a csv, tsv, jsonl (also .gz) or Parquet file; arguments name its columns.

    Without a `held_out` file (which has the same columns) a random 20 % is held out. Where labels
    are partly wrong, say by one of these which: `original`, a column of the labels before noise,
    or `flag`, one that is true (1, yes) where the label is wrong; flags do for two classes only,
    where the original label is the other one. The task has the original labels, and held-out data
    are judged by them. Without either, labels are taken as they are: `memloc.add_noise` flips some.
    """
    columns = _Columns(text, label, pair, original, flag)
    if original is None and flag is None:
        return _load(Path(path), columns, held_out, seed, name)[0]
    columns.require_noise(Path(path))
    task, assigned = _load(Path(path), columns, held_out, seed, name)
    return NoisyTask(task, columns.noise(task.train.labels, assigned.labels))


def check_noisy_file(  # noqa: PLR0913
    path: Path,
    *,
    text: str,
    label: str,
    original: str | None = None,
    flag: str | None = None,
    pair: str | None = None,
    held_out: Path | None = None,
) -> None:
    """Refuse what `read_noisy_examples` would, as far as no model is needed to see it."""
    columns = _Columns(text, label, pair, original, flag)
    columns.require_noise(path)
    read_columns(path, columns.all)
    if held_out is not None:
        read_columns(held_out, [*columns.parts, original or label])


def read_held_out(path: Path, columns: Mapping[str, str | None], names: Sequence[str]) -> Examples:
    """Unseen examples of classes that a model already knows."""
    given = _Columns(**columns)  # type: ignore[arg-type]
    rows = _read(path, given)
    index = _known_index(path, given, set(rows.original), names)
    labels = np.array([index[name] for name in rows.original], dtype=np.int64)
    return Examples(rows.parts, labels)


def read_noisy_examples(  # noqa: PLR0913
    path: str | Path,
    *,
    text: str,
    label: str,
    known: Sequence[str],
    original: str | None = None,
    flag: str | None = None,
    pair: str | None = None,
) -> tuple[Examples, NoisyLabels]:
    """The examples that a model was trained on, for classes it already knows by name or number.

    Columns are as for `load_csv`, but flags do for any number of classes: original labels
    that they leave open are -1.
    """
    path, columns = Path(path), _Columns(text, label, pair, original, flag)
    columns.require_noise(path)
    rows = _read(path, columns)
    index = _known_index(path, columns, {*rows.assigned, *rows.original}, known)
    assigned, before = (
        np.array([index[name] for name in names], dtype=np.int64)
        for names in (rows.assigned, rows.original)
    )
    if flag is not None:
        other = 1 - assigned if len(known) == 2 else np.full_like(assigned, UNKNOWN)
        before = np.where(rows.flagged, other, assigned)
    return Examples(rows.parts, assigned), columns.noise(before, assigned)


@dataclass(frozen=True)
class _Columns:
    text: str
    label: str
    pair: str | None = None
    original: str | None = None
    flag: str | None = None

    @property
    def parts(self) -> list[str]:
        return [self.text] if self.pair is None else [self.text, self.pair]

    @property
    def all(self) -> list[str]:
        return [*self.parts, self.label, *(c for c in (self.original, self.flag) if c is not None)]

    def require_noise(self, path: Path) -> None:
        if (self.original is None) == (self.flag is None):
            raise DataError(
                f"Say in one way which labels of {path} are wrong: --original COLUMN (original=) "
                "for the labels before noise, or --flag COLUMN (flag=) for a column that is true "
                "or 1 where the label is wrong."
            )

    def noise(self, original: IntArray, assigned: IntArray) -> NoisyLabels:
        kind = "flags" if self.original is None else "original labels"
        origin = f"column {self.original or self.flag!r} read as {kind}"
        noisy = given_noise(original, assigned, origin)
        if self.original is not None and noisy.is_noisy.mean() > 0.5:
            warnings.warn(
                f"More than half of the labels differ from those in column {self.original!r}: if "
                f"it holds flags, use --flag {self.original} (flag=) instead of --original.",
                MemlocWarning,
                stacklevel=3,
            )
        return noisy


@dataclass(frozen=True)
class _Rows:
    """A file's texts with their labels as names; without flags or originals none is wrong."""

    parts: tuple[tuple[str, ...], ...]
    assigned: list[str]
    original: list[str]
    flagged: list[bool]


def _read(path: Path, columns: _Columns) -> _Rows:
    table = read_columns(path, columns.all)
    parts = [texts_of(path, column, table[column]) for column in columns.parts]
    assigned = labels_of(path, columns.label, table[columns.label])
    original, flagged = assigned, [False] * len(assigned)
    if columns.original is not None:
        original = labels_of(path, columns.original, table[columns.original])
        _refuse_flags(path, columns, {*original}, {*assigned})
    if columns.flag is not None:
        flagged = flags_of(path, columns.flag, table[columns.flag])
    return _Rows(tuple(zip(*parts, strict=True)), assigned, original, flagged)


def _refuse_flags(path: Path, columns: _Columns, original: set[str], assigned: set[str]) -> None:
    """Flags that were called original labels; of two classes 0 and 1 they cannot be told apart."""
    others = in_order(assigned - original)
    if looks_like_flags(original) and others:
        raise DataError(
            f"Column {columns.original!r} of {path} holds only {' and '.join(in_order(original))},"
            f" but column {columns.label!r} also {_listed(others)}: if these are flags, use"
            f" --flag {columns.original} (flag=); if they are labels, write names in both columns."
        )


def _load(
    path: Path, columns: _Columns, held_out: str | Path | None, seed: int, name: str | None
) -> tuple[Task, Examples]:
    """The task with original labels, and its training examples with the assigned ones."""
    name = name or path.name.split(".")[0]
    rows = _read(path, columns)
    names = _classes(path, columns, rows)
    train = _examples(rows.parts, _originals(path, columns, rows, names), names)
    assigned = _examples(rows.parts, rows.assigned, names)
    rng = generator(seed, "split", name)
    if held_out is None:
        train, held = split_off(train, rng)
        assigned, _ = split_off(assigned, generator(seed, "split", name))  # the same cut
    else:
        held = _held_out(Path(held_out), columns, names)
    validation, test = halve(held, rng)
    return Task(name, OWN, names, train, validation, test, f"file: {path}"), assigned


def _classes(path: Path, columns: _Columns, rows: _Rows) -> tuple[str, ...]:
    names = in_order({*rows.original, *rows.assigned})
    if len(names) < 2:
        raise DataError(
            f"Column {columns.label!r} of {path} has the one label {_shortened(names[0])!r},"
            " at least two are needed: choose another column or add examples of other classes."
        )
    return names


def _originals(path: Path, columns: _Columns, rows: _Rows, names: tuple[str, ...]) -> list[str]:
    """The labels before noise; where flags alone say what is wrong, the other of two classes."""
    if columns.flag is None:
        return rows.original
    if len(names) != 2:
        raise DataError(
            f"Column {columns.flag!r} of {path} flags wrong labels, but which of {len(names)}"
            " classes is right has to be known to train on: give a column of the labels before"
            " noise with --original COLUMN (original=)."
        )
    other = dict(zip(names, reversed(names), strict=True))
    return [other[y] if wrong else y for y, wrong in zip(rows.assigned, rows.flagged, strict=True)]


def _held_out(path: Path, columns: _Columns, names: tuple[str, ...]) -> Examples:
    rows = _read(path, columns)
    unseen = in_order({*rows.original, *rows.assigned} - set(names))
    if unseen:
        raise DataError(
            f"{path} has labels that the training file has not ({_listed(unseen)}), it has"
            f" {_listed(names)}: correct the labels or add training examples."
        )
    return _examples(rows.parts, _originals(path, columns, rows, names), names)


def _examples(
    parts: tuple[tuple[str, ...], ...], labels: list[str], names: tuple[str, ...]
) -> Examples:
    index = {name: i for i, name in enumerate(names)}
    return Examples(parts, np.array([index[label] for label in labels], dtype=np.int64))


def _known_index(
    path: Path, columns: _Columns, names: set[str], known: Sequence[str]
) -> dict[str, int]:
    """From the names in a file to the model's classes: all by name, or all by number."""
    by_name = {name: i for i, name in enumerate(known)}
    by_number = {str(i): i for i in range(len(known))}
    for index in (by_name, by_number):
        if names <= set(index):
            return index
    where = " or ".join(repr(c) for c in (columns.label, columns.original) if c is not None)
    raise DataError(
        f"Column {where} of {path} has labels that the model does not know"
        f" ({_listed(in_order(names - set(by_name)))}); it knows {_listed(known)}, or their"
        " numbers from 0."
    )


def _listed(names: Sequence[str], most: int = 10) -> str:
    more = f" and {counted(len(names) - most, 'other')}" if len(names) > most else ""
    return ", ".join(map(_shortened, names[:most])) + more


def _shortened(name: str, most: int = 60) -> str:
    """A label in a sentence; a column of texts that was taken for labels has long ones."""
    return name if len(name) <= most else f"{name[:most]}..."
