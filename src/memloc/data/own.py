"""Makes a task from a user's own file, with or without noise in its labels."""

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from memloc.arrays import IntArray
from memloc.data.perturb import OWN, given_noise
from memloc.data.sources import halve, split_off
from memloc.data.tables import (
    Data,
    Source,
    flags_of,
    labels_of,
    looks_like_flags,
    read_values,
    source_of,
    texts_of,
)
from memloc.data.tables import sorted_labels as in_order
from memloc.data.task import Examples, NoisyLabels, Task
from memloc.errors import (
    DataError,
    MemlocWarning,
    checked_arguments,
    counted,
)
from memloc.seeds import generator

UNKNOWN = -1
"""Original label of noisy examples whose right class is unknown: flags, with over two classes."""


@checked_arguments
def load_csv(  # noqa: PLR0913 - each names something that varies between people's files
    path: Data,
    *,
    text: str = "text",
    label: str = "label",
    original: str | None = None,
    flag: str | None = None,
    pair: str | None = None,
    prompt: str | None = None,
    continuation: str | None = None,
    tokens: int | None = None,
    held_out: Data | None = None,
    seed: int = 1,
    name: str | None = None,
) -> Task:
    """Make a task of a csv, tsv, jsonl (also .gz) or Parquet file, a DataFrame or a Dataset.

    Where labels are partly wrong, `original` or `flag` says which. Without either, labels are
    taken as they are, and `memloc.add_noise` flips some. Held-out examples are judged by the
    original labels.

    Args:
        path: The file, a pandas DataFrame, a `datasets.Dataset` or a folder that it saved.
        text: Column of texts.
        label: Column of the labels to train on.
        original: Column of the labels before noise.
        flag: Column that is true (1, yes) where the label is wrong. With two classes the original
            label is the other one; with more it is not known, so that these examples are left out
            of the reference's training and of held-out data.
        pair: Column of second texts.
        prompt: Column of the beginnings of texts, for language models.
        continuation: Column of what to recall after each prompt; `flag` is true where it may be
            memorised.
        tokens: Number of last tokens of `text` to recall, in place of `prompt` and `continuation`.
        held_out: Unseen examples with the same columns; by default a random 20 %, and no texts to
            recall.
        seed: Seed of the split.
        name: Name of the task; by default the file's.
    """
    source = source_of(path)
    columns = Columns(text, label, pair, original, flag)
    columns = replace(columns, prompt=prompt, continuation=continuation, tokens=tokens)
    if columns.marked or columns.is_texts:
        columns.require_noise(source)
    rows = read_rows(source, columns)
    name = name or source.name.split(".")[0]
    rng = generator(seed, "split", name)
    examples = rows.examples
    kept = np.arange(len(rows.examples))
    if held_out is None and columns.is_texts:
        nothing = examples.take(kept[:0])
        marked = columns.noise(examples.labels, rows.assigned)
        return Task(name, OWN, (), examples, nothing, nothing, f"file: {source}", marked)
    if held_out is None:
        # Rows in place of labels: one cut for the labels before and after noise.
        train, rest = split_off(replace(examples, labels=kept), rng)
        kept = train.labels
        held = examples.take(rest.labels)
    else:
        held = read_rows(source_of(held_out), columns, rows.names, knower="training file").examples
    validation, test = halve(held.take(np.flatnonzero(held.labels >= 0)), rng)
    train = examples.take(kept)
    noise = columns.noise(train.labels, rows.assigned[kept]) if columns.marked else None
    return Task(name, OWN, rows.names, train, validation, test, f"file: {source}", noise)


def check_noisy_file(path: Path, held_out: Path | None = None, **columns: Any) -> None:
    """Refuse, before a model is loaded, a file whose columns cannot make a task with noise."""
    named = Columns(**columns)
    named.require_noise(path)
    read_values(path, named.all)
    if held_out is not None:
        read_values(held_out, named.right.all)


@dataclass(frozen=True)
class Columns:
    """Names of a file's columns; `original` or `flag` tells which labels are wrong."""

    text: str = "text"
    label: str = "label"
    pair: str | None = None
    original: str | None = None
    flag: str | None = None
    prompt: str | None = None
    continuation: str | None = None
    tokens: int | None = None
    """Number of last tokens of each text to recall, in place of prompts and continuations."""

    @property
    def is_texts(self) -> bool:
        """Return whether the file holds texts to be recalled rather than texts with labels."""
        given = (self.prompt, self.continuation, self.tokens)
        return any(value is not None for value in given)

    @property
    def parts(self) -> list[str]:
        """Columns that hold the parts of a text."""
        if self.prompt is not None and self.continuation is not None:
            return [self.prompt, self.continuation]
        return [self.text] if self.pair is None else [self.text, self.pair]

    @property
    def all(self) -> list[str]:
        """Columns that the file must have."""
        named = [*self.parts, None if self.is_texts else self.label, self.original, self.flag]
        return [column for column in named if column is not None]

    @property
    def marked(self) -> bool:
        """Return whether a column tells which labels are wrong."""
        return self.original is not None or self.flag is not None

    @property
    def right(self) -> "Columns":
        """Return these columns for clean data: the label is the one before noise, if there is one.

        No column marks labels as wrong any more.
        """
        label = self.original or self.label
        return replace(self, label=label, original=None, flag=None)

    def require_noise(self, path: Source) -> None:
        """Raise unless one column tells which labels are wrong, or which texts may be memorised."""
        if self.is_texts:
            self._require_texts(path)
        elif (self.original is None) == (self.flag is None):
            raise DataError(
                f"Say in one way which labels of {path} are wrong: --original COLUMN (original=) "
                "for the labels before noise, or --flag COLUMN (flag=) for a column that is true "
                "or 1 where the label is wrong."
            )

    def _require_texts(self, path: Source) -> None:
        """Raise unless it is known what to recall, and a column of flags is named."""
        has_two = self.prompt is not None and self.continuation is not None
        has_one = self.prompt is None and self.continuation is None
        if not (has_two if self.tokens is None else has_one):
            raise DataError(
                f"Say in one way what is recalled of the texts in {path}: name both columns, "
                "--prompt COLUMN (prompt=) and --continuation COLUMN (continuation=), or one with "
                "--text COLUMN (text=) and how many of its last tokens, --tokens NUMBER (tokens=)."
            )
        if self.tokens is not None and self.tokens < 1:
            raise DataError(
                f"--tokens {self.tokens} (tokens=): at least one token must be recalled."
            )
        if self.flag is None or self.original is not None:
            raise DataError(
                f"Say which texts of {path} may be memorised: --flag COLUMN (flag=) is true where "
                "the text is one of them, and false or 0 for ordinary texts."
            )

    def noise(self, original: IntArray, assigned: IntArray) -> NoisyLabels:
        """Return the labels before and after noise, with a sentence on how they are known."""
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
class FileExamples:
    """Texts of a file with their labels, as indices into the class names."""

    names: tuple[str, ...]
    assigned: IntArray
    examples: Examples
    """Texts with their original labels; UNKNOWN where a flag does not tell the right one."""


def read_rows(
    path: Source, columns: Columns, known: Sequence[str] | None = None, *, knower: str = "model"
) -> FileExamples:
    """Read the examples of a file; its classes are those already known, or else the file's own.

    A model's classes may be written as their numbers, too.

    Args:
        path: The file, or a table in memory.
        columns: Names of its columns.
        known: Names of the classes in the order of the logits; the file's own classes by default.
        knower: Who knows these classes, for error messages: the model or the training data.
    """
    _refuse_same_column(path, columns)
    table = read_values(path, columns.all)
    parts = [texts_of(path, column, table[column]) for column in columns.parts]
    if columns.is_texts:
        return _text_rows(path, columns, table, tuple(zip(*parts, strict=True)))
    assigned = labels_of(path, columns.label, table[columns.label])
    original = assigned
    if columns.original is not None:
        original = labels_of(path, columns.original, table[columns.original])
        _refuse_flags(path, columns, {*original}, {*assigned})
    if known is None:
        _refuse_real(path, columns.label, assigned)
    in_file = {*assigned, *original}
    names = in_order(in_file) if known is None else tuple(known)
    if known is None and len(names) < 2:
        raise DataError(
            f"Column {columns.label!r} of {path} has only the label {_shortened(names[0])!r},"
            " but two are needed: choose another column or add examples of other classes."
        )
    index = _index(path, columns, in_file, names, knower)
    after, before = (
        np.array([index[label] for label in labels], dtype=np.int64)
        for labels in (assigned, original)
    )
    if columns.flag is not None:
        other = 1 - after if len(names) == 2 else np.full_like(after, UNKNOWN)
        before = np.where(flags_of(path, columns.flag, table[columns.flag]), other, after)
    return FileExamples(names, after, Examples(tuple(zip(*parts, strict=True)), before))


def _text_rows(
    path: Source, columns: Columns, columns_read: Mapping[str, list[Any]], parts: tuple[Any, ...]
) -> FileExamples:
    """Return the examples of a task of texts, which has memorised candidates and ordinary texts."""
    labels = np.zeros(len(parts), dtype=np.int64)
    _refuse_repeated(path, parts)
    if columns.flag is None:
        return FileExamples((), labels, Examples(parts, labels, columns.tokens))
    marked = np.array(flags_of(path, columns.flag, columns_read[columns.flag]))
    if marked.all() or not marked.any():
        missing = "ordinary texts" if marked.all() else "texts that may be memorised"
        raise DataError(
            f"Column {columns.flag!r} of {path} is the same in all {len(marked):,} rows, so there "
            f"are no {missing}: both kinds are needed, about as many of each."
        )
    examples = Examples(parts, np.where(marked, UNKNOWN, 0), columns.tokens)
    return FileExamples((), labels, examples)


def _refuse_repeated(path: Source, parts: Sequence[tuple[str, ...]]) -> None:
    """Refuse a file that repeats a text: texts count as independent, and each has one flag."""
    rows: dict[tuple[str, ...], int] = {}
    for row, text in enumerate(parts, start=1):
        first = rows.setdefault(text, row)
        if first != row:
            raise DataError(
                f"Texts {first} and {row} of {path} are the same ({_shortened(' '.join(text))!r}), "
                f"and {len(parts) - len(set(parts))} rows in all repeat an earlier one: give each "
                "text once."
            )


def _refuse_same_column(path: Source, columns: Columns) -> None:
    pairs = [("text", "label"), ("text", "pair")]
    if columns.is_texts:
        pairs = [("prompt", "continuation")] if columns.tokens is None else []
    for one, other in pairs:
        column = getattr(columns, one)
        if column == getattr(columns, other):
            raise DataError(
                f"Column {column!r} of {path} is named as {one} and as {other}: these are two "
                f"columns; say which with --{one} ({one}=) and --{other} ({other}=)."
            )


def _refuse_real(path: Source, column: str, labels: Sequence[str]) -> None:
    """Refuse labels that look like measurements: mostly different numbers with decimals."""
    distinct = set(labels)
    has_decimals = any(
        not float(number).is_integer() for number in distinct if _REAL.fullmatch(number)
    )
    most_differ = len(distinct) > max(2, len(labels) / 2)
    if most_differ and has_decimals and all(map(_REAL.fullmatch, distinct)):
        raise DataError(
            f"Column {column!r} of {path} holds real numbers, {len(distinct):,} different ones in "
            f"{len(labels):,} rows, such as {min(distinct)}: memloc needs classes, so group the "
            "numbers first or choose another column."
        )


_REAL = re.compile(r"[-+]?[0-9]*\.?[0-9]+(e[-+]?[0-9]+)?", re.IGNORECASE)


def _refuse_flags(path: Source, columns: Columns, original: set[str], assigned: set[str]) -> None:
    """Refuse flags that were named as original labels, unless the classes are 0 and 1."""
    others = in_order(assigned - original)
    if looks_like_flags(original) and others:
        raise DataError(
            f"Column {columns.original!r} of {path} holds only {' and '.join(in_order(original))},"
            f" but column {columns.label!r} also {_listed(others)}: if these are flags, use"
            f" --flag {columns.original} (flag=); if they are labels, write names in both columns."
        )


def _index(
    path: Source, columns: Columns, found: set[str], known: Sequence[str], knower: str
) -> dict[str, int]:
    """Return the class number of each label in a file, given as the class's name or its number."""
    by_name = {name: i for i, name in enumerate(known)}
    by_number = {str(i): i for i in range(len(known))}
    if found <= set(by_name):
        return by_name
    unknown = _listed(in_order(found - set(by_name)))
    if knower != "model":
        raise DataError(
            f"{path} has labels that the {knower} lacks ({unknown}); it has {_listed(known)}:"
            " correct the labels or add training examples."
        )
    if found <= set(by_number):
        return by_number
    where = " or ".join(repr(c) for c in (columns.label, columns.original) if c is not None)
    nameless = all(re.fullmatch(r"LABEL_[0-9]+", name) for name in known)
    advice = " The model kept no names: write labels as numbers, in the order of training."
    raise DataError(
        f"Column {where} of {path} has labels that the model does not know ({unknown}); it knows"
        f" {_listed(known)}, or their numbers from 0.{advice if nameless else ''}"
    )


def _listed(names: Sequence[str], most: int = 10) -> str:
    more = f" and {counted(len(names) - most, 'other')}" if len(names) > most else ""
    return ", ".join(map(_shortened, names[:most])) + more


def _shortened(name: str, most: int = 60) -> str:
    """Shorten a label for a message, in case a column of whole texts was taken for labels."""
    return name if len(name) <= most else f"{name[:most]}..."
