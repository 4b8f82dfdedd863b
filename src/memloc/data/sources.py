"""Reads a task by its name (embedded, from a folder, or from the hub), and cuts it into splits."""

import gzip
import json
import os
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.random import Generator

from memloc.data import tiny
from memloc.data.perturb import binarise
from memloc.data.tasks import PAPER_TASKS, HubSource, TaskSpec, binary_name, known_tasks
from memloc.errors import DataError, SettingsError, counted, lookup
from memloc.records import Examples, IntArray, NoisyLabels, NoisyTask, Task
from memloc.seeds import generator

DATA_VARIABLE = "MEMLOC_DATA"
"""Environment variable that names the folder to read the paper's tasks from."""


def load_task(
    name: str,
    *,
    folder: str | Path | None = None,
    examples: int | None = None,
    seed: int = 1,
    cache_dir: str | Path | None = None,
) -> Task:
    """The task called `name`: embedded, one of the paper's twelve, or a binary variant of these.

    The twelve are read from `folder` (or the folder in MEMLOC_DATA) if there is one, otherwise
    from the hub. `examples` takes a random sample of this many training examples, in which classes
    have their usual shares, and at most as many of the other splits. `seed` decides the splits and
    the sample. Reuters keeps its one empty text.
    """
    lookup("task", name, known_tasks())
    task = _load_whole(name, folder, seed, cache_dir)
    return task if examples is None else subsample(task, examples, seed)


def _load_whole(
    name: str, folder: str | Path | None, seed: int, cache_dir: str | Path | None
) -> Task:
    if name in tiny.SUITE:
        return _load_tiny(name, seed)
    if name in PAPER_TASKS:
        cache = None if cache_dir is None else Path(cache_dir)
        home = folder or os.environ.get(DATA_VARIABLE)
        return _load_paper_task(PAPER_TASKS[name], Path(home) if home else None, seed, cache)
    whole = next(n for n in (*tiny.SUITE, *PAPER_TASKS) if binary_name(n) == name)
    return binarise(_load_whole(whole, folder, seed, cache_dir))


def _load_tiny(name: str, seed: int) -> Task:
    task, splits = tiny.SUITE[name], tiny.generate(name)
    train, held_out = (_examples(*splits[split]) for split in ("train", "validation"))
    validation, test = halve(held_out, generator(seed, "split", name))
    names = tuple(task.label_names)
    return Task(name, task.category, names, train, validation, test, "embedded")


def _load_paper_task(
    spec: TaskSpec, folder: Path | None, seed: int, cache_dir: Path | None
) -> Task:
    if folder is None:
        (train, held_out), source = read_hub(spec, cache_dir), describe(spec.hub)
    else:
        (train, held_out), source = _read_folder(spec, folder), f"folder: {folder}"
    rng = generator(seed, "split", spec.name)
    if held_out is None:
        train, held_out = split_off(train, rng)
    validation, test = halve(held_out, rng)
    return Task(spec.name, spec.category, spec.label_names, train, validation, test, source)


def _read_folder(spec: TaskSpec, folder: Path) -> tuple[Examples, Examples | None]:
    home = folder / spec.name
    order = _label_order(home / "meta.json", spec)
    train = _read_split(home / "train.jsonl.gz", spec, order)
    if spec.held_out is None:
        return train, None
    return train, _read_split(home / f"{spec.held_out}.jsonl.gz", spec, order)


def _label_order(path: Path, spec: TaskSpec) -> dict[int, int]:
    """The folder's number of every label, and the number it has in the table of tasks."""
    try:
        names = json.loads(_text_of(path, spec))["label_names"]
        return {i: spec.label_names.index(name) for i, name in enumerate(names)}
    except (ValueError, LookupError, TypeError) as error:
        raise DataError(
            f"{path} does not list the labels of {spec.name!r} ({error}); its `label_names` must be"
            f" {', '.join(spec.label_names)}: fetch the task's data again."
        ) from error


def _read_split(path: Path, spec: TaskSpec, order: Mapping[int, int]) -> Examples:
    # Not splitlines: texts may hold characters that it takes for the end of a line.
    lines = [line for line in _text_of(path, spec).split("\n") if line]
    try:
        rows = [json.loads(line) for line in lines]
        parts = [tuple(row[column] for column in spec.folder_columns) for row in rows]
        return _examples(parts, [order[row["label"]] for row in rows])
    except (ValueError, LookupError, TypeError) as error:
        raise DataError(
            f"{path} is damaged ({type(error).__name__}: {error}); every line must be a JSON object"
            f" with {', '.join(spec.folder_columns)} and label: fetch the task's data again."
        ) from error


def _text_of(path: Path, spec: TaskSpec) -> str:
    try:
        raw = path.read_bytes()
        return (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode()
    except FileNotFoundError:
        raise DataError(
            f"{path} is not there; {spec.name!r} needs {spec.name}/meta.json and"
            f" {spec.name}/train.jsonl.gz in the folder of tasks: give another folder, or none to"
            " use the hub."
        ) from None
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise DataError(
            f"{path} could not be read ({error}); it must be a complete file in UTF-8: fetch the"
            " task's data again."
        ) from error


def _examples(parts: Sequence[tuple[str, ...]], labels: Sequence[int]) -> Examples:
    return Examples(tuple(parts), np.array(labels, dtype=np.int64))


def split_off(examples: Examples, rng: Generator) -> tuple[Examples, Examples]:
    """A random 80 % (rounded down) and the rest, both in the order they had."""
    return _cut(examples, len(examples) * 4 // 5, rng)


def halve(examples: Examples, rng: Generator) -> tuple[Examples, Examples]:
    """Two random halves, both in the order they had; of an odd number the second gets more."""
    if len(examples) < 2:
        raise DataError(
            f"Held-out data of {counted(len(examples), 'example')} cannot be halved into validation"
            " and test: give at least two, or six in all where they are split off the training"
            " data."
        )
    return _cut(examples, len(examples) // 2, rng)


AnyTask = TypeVar("AnyTask", bound=Task | NoisyTask)


def subsample(whole: AnyTask, n_train: int, seed: int) -> AnyTask:
    """The task with a random `n_train` of its training examples, classes in the same shares.

    Noisy and clean examples keep their shares, too, where the task has noise of its own. Shares are
    rounded by largest remainder; a very rare class may lose its last example. Held-out splits keep
    at most as many, since every epoch is measured on them.
    """
    if isinstance(whole, Task):
        return replace(whole, **_some_of(whole, n_train, seed, whole.train.labels)[0])
    noisy = whole.labels
    some, rows = _some_of(whole.task, n_train, seed, 2 * noisy.assigned + noisy.is_noisy)
    parts = (noisy.original[rows], noisy.assigned[rows], noisy.is_noisy[rows])
    labels = NoisyLabels(*parts, noisy.origin)
    return replace(whole, task=replace(whole.task, **some), labels=labels)


def _some_of(
    task: Task, n_train: int, seed: int, kinds: IntArray
) -> tuple[dict[str, Any], IntArray]:
    """What a smaller task has in place of the whole one's; which training examples are in it."""
    there = len(task.train)
    if not 1 <= n_train <= there:
        raise SettingsError(
            f"{n_train:,} training examples were asked for, but task {task.name!r} has {there:,}:"
            f" choose a number from 1 to {there:,}."
        )

    def some(kinds: IntArray, *name: str) -> IntArray:
        rng = generator(seed, "subsample", task.name, *name)
        return np.arange(len(kinds)) if len(kinds) < n_train else _some(kinds, n_train, rng)

    rows = some(kinds)
    held_out = {name: task.splits[name] for name in ("validation", "test")}
    return {
        "train": task.train.take(rows),
        **{name: part.take(some(part.labels, name)) for name, part in held_out.items()},
        "source": f"{task.source}, {n_train} of {there} training examples",
    }, rows


def _cut(examples: Examples, size: int, rng: Generator) -> tuple[Examples, Examples]:
    order = rng.permutation(len(examples))
    return examples.take(np.sort(order[:size])), examples.take(np.sort(order[size:]))


def _some(kinds: IntArray, size: int, rng: Generator) -> IntArray:
    """Rows of so many at random, kinds in the same shares."""
    counts = np.bincount(kinds)
    # Integers throughout: a share of count * size / total is exact as quotient and remainder.
    quota, remainder = np.divmod(counts * size, len(kinds))
    largest_first = np.argsort(-remainder, kind="stable")
    quota[largest_first[: size - quota.sum()]] += 1
    chosen = [
        rng.choice(np.flatnonzero(kinds == kind), size=n, replace=False)
        for kind, n in enumerate(quota)
    ]
    return np.sort(np.concatenate(chosen))


def read_hub(spec: TaskSpec, cache_dir: Path | None = None) -> tuple[Examples, Examples | None]:
    """Training and held-out examples; None where the hub has a single split."""
    splits = _download(spec, cache_dir)
    names = ["train"] if spec.held_out is None else ["train", spec.held_out]
    for name in names:
        _require(spec, f"split {name!r}", name in splits, splits)
    if spec.hub.rows == "single topic":
        _check_topics(spec, splits["train"])
    train, *held_out = (_hub_examples(spec, splits[name]) for name in names)
    return train, held_out[0] if held_out else None


def _download(spec: TaskSpec, cache_dir: Path | None) -> Any:
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError
    from huggingface_hub import errors

    hub = spec.hub
    try:
        return load_dataset(
            hub.repository,
            hub.config,
            data_dir=hub.subfolder,
            revision=None if Path(hub.repository).is_dir() else hub.revision,
            cache_dir=None if cache_dir is None else str(cache_dir),
        )
    # HTTPError is that of whichever client the hub library uses; some of its kinds are no OSError.
    except (OSError, ValueError, RuntimeError, DatasetsError, errors.HTTPError) as error:  # type: ignore[attr-defined]
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise DataError(
            f"Task {spec.name!r} could not be read from the hub ({_where(hub)}: {reason});"
            f" check the connection, or give a folder that has {spec.name}/train.jsonl.gz and"
            f" {spec.name}/meta.json, as `folder` or in the environment variable MEMLOC_DATA."
        ) from error


def _where(hub: HubSource) -> str:
    parts = (hub.repository, hub.config or hub.subfolder, hub.revision)
    return ", ".join(part for part in parts if part)


def describe(hub: HubSource) -> str:
    """Where a task came from, for people."""
    return f"hub: {_where(hub)}"


def _hub_examples(spec: TaskSpec, split: Any) -> Examples:
    hub = spec.hub
    for column in (*hub.parts, hub.label):
        _require(spec, f"column {column!r}", column in split.column_names, split.column_names)
    parts = list(zip(*(split[:][column] for column in hub.parts), strict=True))
    labels = _label_names(spec, split)
    rows = [i for i, label in enumerate(labels) if hub.rows == "all" or label in spec.label_names]
    if hub.rows == "single topic":
        rows = _first_of_their_text(rows, parts)
    return _checked(spec, [parts[i] for i in rows], [labels[i] for i in rows])


def _label_names(spec: TaskSpec, split: Any) -> list[Any]:
    """The label of every row as a name; None for documents without exactly one topic."""
    values = split[:][spec.hub.label]
    if spec.hub.rows == "single topic":
        return [topics[0] if len(topics) == 1 else None for topics in values]
    names = getattr(split.features[spec.hub.label], "names", spec.label_names)
    known = range(len(names))
    return [names[value] if value in known else value for value in values]


def _first_of_their_text(rows: list[int], parts: list[tuple[str, ...]]) -> list[int]:
    # First among all documents, not only among those kept: as published.
    first: dict[tuple[str, ...], int] = {}
    for i, text in enumerate(parts):
        first.setdefault(text, i)
    return [i for i in rows if first[parts[i]] == i]


def _check_topics(spec: TaskSpec, train: Any) -> None:
    """The most frequent single topics of the training data must be the ones in the table."""
    column = spec.hub.label
    _require(spec, f"column {column!r}", column in train.column_names, train.column_names)
    counts = Counter(name for name in _label_names(spec, train) if name is not None)
    found = {name for name, _ in counts.most_common(len(spec.label_names))}
    if found != set(spec.label_names):
        raise DataError(
            f"The {len(spec.label_names)} most frequent topics of {_where(spec.hub)} are"
            f" {', '.join(sorted(found))}, not {', '.join(spec.label_names)}: the hub's data"
            f" have changed, so read {spec.name!r} from a folder."
        )


def _checked(spec: TaskSpec, parts: list[tuple[Any, ...]], labels: list[Any]) -> Examples:
    index = {name: i for i, name in enumerate(spec.label_names)}
    unknown = [label for label in labels if label not in index]
    if unknown:
        raise DataError(
            f"{_where(spec.hub)} has the label {unknown[0]!r}, but those of {spec.name!r} are"
            f" {', '.join(spec.label_names)}: read it from a folder."
        )
    missing = sum(not all(isinstance(part, str) for part in row) for row in parts)
    if missing:
        raise DataError(
            f"{_where(spec.hub)} lacks the text of {counted(missing, 'row')}, and"
            f" {spec.name!r} needs all of them: read it from a folder."
        )
    indices: IntArray = np.array([index[label] for label in labels], dtype=np.int64)
    return Examples(tuple(parts), indices)


def _require(spec: TaskSpec, what: str, there: bool, found: Any) -> None:
    if not there:
        raise DataError(
            f"{_where(spec.hub)} has no {what}, only {', '.join(found)}: the hub's data have"
            f" changed, so read {spec.name!r} from a folder."
        )
