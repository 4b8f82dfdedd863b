"""Reads a task by name (embedded, from a folder, or from the hub) and splits it."""

import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator

from memloc.arrays import IntArray
from memloc.data import hub
from memloc.data.perturb import binarise
from memloc.data.tables import read_values
from memloc.data.task import Examples, Task
from memloc.data.tasks import (
    BINARY,
    EMBEDDED_TASKS,
    PAPER_TASKS,
    PaperTask,
    TaskEntry,
    known_tasks,
)
from memloc.errors import (
    DataError,
    SettingsError,
    checked_arguments,
    counted,
    in_words,
    lookup,
)
from memloc.seeds import generator

EMBEDDED = Path(__file__).parent / "tiny"
"""Folder of the tasks that are part of memloc."""
DATA_VARIABLE = "MEMLOC_DATA"
"""Environment variable with the folder of the paper's tasks."""


@checked_arguments
def load_task(
    name: str,
    *,
    folder: str | Path | None = None,
    examples: int | None = None,
    seed: int = 1,
    cache_dir: str | Path | None = None,
) -> Task:
    """Read a task by name: an embedded one, one of the paper's twelve, or a binary variant.

    Reuters keeps its one empty text.

    Args:
        name: Name of the task; `memloc tasks` lists them, and `trec-binary` keeps two classes.
        folder: Folder with the paper's tasks; by default the one in MEMLOC_DATA, else the hub.
        examples: Size of a random sample of the training examples, in which classes have their
            usual shares; at most as many of the other splits are kept. All by default.
        seed: Seed of the splits and of the sample.
        cache_dir: Folder in which files from the hub are kept.
    """
    lookup("task", name, known_tasks())
    whole = name.removesuffix(BINARY)
    rng = generator(seed, "split", whole)
    spec = {**EMBEDDED_TASKS, **PAPER_TASKS}[whole]
    home = folder or os.environ.get(DATA_VARIABLE)
    if whole in EMBEDDED_TASKS:
        parts = _read_folder(spec, EMBEDDED / whole)
        source = "embedded"
    elif home:
        parts = _read_folder(spec, Path(home) / whole)
        source = f"folder: {Path(home)}"
    else:
        paper = PAPER_TASKS[whole]
        parts = _read_hub(paper, cache_dir)
        source = f"hub: {_where(paper)}"
    train, held_out = parts if len(parts) == 2 else split_off(parts[0], rng)
    task = Task(whole, spec.category, spec.label_names, train, *halve(held_out, rng), source)
    if name != whole:
        task = binarise(task)
    return task if examples is None else subsample(task, examples, seed)


def _read_folder(spec: TaskEntry, home: Path) -> list[Examples]:
    numbers = _label_numbers(spec, home / "meta.json")
    splits = []
    for path in (home / f"{split}.jsonl.gz" for split in spec.splits):
        if not path.is_file():
            raise _not_there(path, spec)
        try:
            table = read_values(path, [*spec.columns, "label"])
        except DataError as error:
            raise DataError(f"{error} If it is damaged, fetch the task's data again.") from error
        labels = table.pop("label")
        known = range(len(numbers))
        are_texts = all(isinstance(t, str) for column in table.values() for t in column)
        if not are_texts or not all(label in known for label in labels):
            raise DataError(
                f"{path} is damaged: every line must have {', '.join(spec.columns)} and, as label,"
                " the number of one in meta.json; fetch the task's data again."
            )
        parts = list(zip(*table.values(), strict=True))
        splits.append(_examples(parts, [numbers[int(label)] for label in labels]))
    return splits


def _label_numbers(spec: TaskEntry, meta: Path) -> list[int]:
    """Return memloc's number for each label number of a folder's meta.json."""
    name = spec.name
    try:
        names = json.loads(meta.read_bytes())["label_names"]
        return [spec.label_names.index(label) for label in names]
    except FileNotFoundError:
        raise _not_there(meta, spec) from None
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise DataError(
            f"{meta} does not list the labels of {name!r} ({in_words(error)}); its `label_names`"
            f" must be {', '.join(spec.label_names)}: fetch the task's data again."
        ) from error


def _not_there(path: Path, spec: TaskEntry) -> DataError:
    files = ("meta.json", *(f"{split}.jsonl.gz" for split in spec.splits))
    needed = ", ".join(f"{spec.name}/{file}" for file in files)
    return DataError(
        f"{path} is not there; {spec.name!r} needs {needed} in the folder of tasks: give another"
        " folder, or none to use the hub."
    )


def _examples(parts: Sequence[tuple[str, ...]], labels: Sequence[int]) -> Examples:
    return Examples(tuple(parts), np.array(labels, dtype=np.int64))


def split_off(examples: Examples, rng: Generator) -> tuple[Examples, Examples]:
    """Split examples into a random 80 % (rounded down) and the rest, both in their order."""
    return _cut(examples, len(examples) * 4 // 5, rng)


def halve(examples: Examples, rng: Generator) -> tuple[Examples, Examples]:
    """Split examples into two random halves, both in their order; the second may have one more."""
    if len(examples) < 2:
        raise DataError(
            f"Held-out data of {counted(len(examples), 'example')} cannot be halved into validation"
            " and test: give at least two, or six in all where they are split off the training"
            " data."
        )
    return _cut(examples, len(examples) // 2, rng)


def _cut(examples: Examples, size: int, rng: Generator) -> tuple[Examples, Examples]:
    order = rng.permutation(len(examples))
    return examples.take(np.sort(order[:size])), examples.take(np.sort(order[size:]))


def subsample(task: Task, n_train: int, seed: int) -> Task:
    """Return a task with a random sample of `n_train` training examples, stratified by class.

    Where the task brings noise, noisy and clean examples keep their shares, too. Shares are rounded
    by largest remainder; a very rare class may lose its last example. The held-out splits are cut
    to `n_train` examples each, since every epoch is measured on them.
    """
    size = len(task.train)
    if not 1 <= n_train <= size:
        raise SettingsError(
            f"{n_train:,} training examples were asked for, but task {task.name!r} has {size:,}:"
            f" choose a number from 1 to {size:,}."
        )
    kinds = {split: part.labels for split, part in task.splits.items()}
    kinds["train"] = 2 * task.labels.assigned + task.labels.is_noisy
    rows = {}
    for split, of in kinds.items():
        purpose = () if split == "train" else (split,)
        rows[split] = _some(of, n_train, generator(seed, "subsample", task.name, *purpose))
    some: dict[str, Any] = {split: part.take(rows[split]) for split, part in task.splits.items()}
    noise = task.noise and task.noise.take(rows["train"])
    source = f"{task.source}, {n_train} of {size} training examples"
    return replace(task, **some, noise=noise, source=source)


def _some(kinds: IntArray, size: int, rng: Generator) -> IntArray:
    """Draw `size` rows at random, stratified by kind; all rows if there are fewer."""
    if len(kinds) <= size:
        return np.arange(len(kinds))
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


def _read_hub(spec: PaperTask, cache_dir: str | Path | None) -> list[Examples]:
    downloaded = _download(spec, cache_dir)
    _require(spec, "split", spec.splits, downloaded)
    splits = [downloaded[name] for name in spec.splits]
    for split in splits:
        _require(spec, "column", (*spec.hub.parts, spec.hub.label), split.column_names)
    labels = [_label_names(spec, split) for split in splits]
    if spec.hub.rows == "single topic":
        _check_topics(spec, labels[0])
    return [_hub_examples(spec, *both) for both in zip(splits, labels, strict=True)]


def _download(spec: PaperTask, cache_dir: str | Path | None) -> Any:
    try:
        from datasets import load_dataset
        from datasets.exceptions import DatasetsError
    except ImportError:
        raise DataError(
            f"Task {spec.name!r} is read from the hub with the package datasets, which is not "
            "installed: `pip install 'memloc[hub]'`, or give a folder with the tasks."
        ) from None
    from huggingface_hub import errors

    place = spec.hub
    is_local = Path(place.repository).is_dir()
    try:
        with hub.asked_once(place.repository):
            return load_dataset(
                place.repository,
                place.config,
                data_dir=place.subfolder,
                revision=None if is_local else place.revision,
                cache_dir=None if cache_dir is None else str(cache_dir),
            )
    # HTTPError is that of whichever client the hub library uses; some of its kinds are no OSError.
    except (OSError, ValueError, RuntimeError, DatasetsError, errors.HTTPError) as error:  # type: ignore[attr-defined]
        message = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        reason = message if is_local else hub.unreachable() or message
        raise DataError(
            f"Task {spec.name!r} could not be read from the hub ({_where(spec)}: {reason});"
            f" check the connection, or give a folder that has {spec.name}/train.jsonl.gz and"
            f" {spec.name}/meta.json, as `folder` or in the environment variable MEMLOC_DATA."
        ) from error


def _where(spec: PaperTask) -> str:
    place = spec.hub
    parts = (place.repository, place.config or place.subfolder, place.revision)
    return ", ".join(filter(None, parts))


def _require(spec: PaperTask, what: str, needed: Iterable[str], found: Iterable[str]) -> None:
    for name in needed:
        if name not in found:
            raise _other_data(
                spec, f"{_where(spec)} has no {what} {name!r}, only {', '.join(found)}"
            )


def _other_data(spec: PaperTask, found: str) -> DataError:
    return DataError(f"{found}: the hub's data have changed, so read {spec.name!r} from a folder.")


def _label_names(spec: PaperTask, split: Any) -> list[Any]:
    """Return the label of every row as a name; None for documents without exactly one topic."""
    values = split[:][spec.hub.label]
    if spec.hub.rows == "single topic":
        return [topics[0] if len(topics) == 1 else None for topics in values]
    names = getattr(split.features[spec.hub.label], "names", spec.label_names)
    known = range(len(names))
    return [names[value] if value in known else value for value in values]


def _check_topics(spec: PaperTask, labels: list[Any]) -> None:
    """Refuse training data whose most frequent single topics differ from the table of tasks."""
    known = spec.label_names
    counts = Counter(name for name in labels if name is not None)
    topics = {name for name, _ in counts.most_common(len(known))}
    if topics != set(known):
        difference = f"{', '.join(sorted(topics))}, not {', '.join(known)}"
        raise _other_data(
            spec, f"The {len(known)} most frequent topics of {_where(spec)} are {difference}"
        )


def _hub_examples(spec: PaperTask, split: Any, labels: list[Any]) -> Examples:
    parts = list(zip(*(split[:][column] for column in spec.hub.parts), strict=True))
    index = {name: i for i, name in enumerate(spec.label_names)}
    rows = [i for i, label in enumerate(labels) if spec.hub.rows == "all" or label in index]
    if spec.hub.rows == "single topic":
        # First among all documents, not only among those kept: as published.
        first = {text: i for i, text in reversed([*enumerate(parts)])}
        rows = [i for i in rows if first[parts[i]] == i]
    unknown = [labels[i] for i in rows if labels[i] not in index]
    if unknown:
        known = f"those of {spec.name!r} are {', '.join(index)}"
        raise _other_data(spec, f"{_where(spec)} has the label {unknown[0]!r}, but {known}")
    missing = sum(not all(isinstance(part, str) for part in parts[i]) for i in rows)
    if missing:
        lacking = f"{_where(spec)} lacks the text of {counted(missing, 'row')}"
        raise _other_data(spec, f"{lacking}, and {spec.name!r} needs all of them")
    return _examples([parts[i] for i in rows], [index[labels[i]] for i in rows])
