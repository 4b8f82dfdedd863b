"""Reads a task by its name: embedded, from a folder, or from the hub; or from one's own file."""

import gzip
import json
import os
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from memloc.data import tiny
from memloc.data.hub import describe, read_hub
from memloc.data.perturb import binarise
from memloc.data.splits import halve, split_off, subsample
from memloc.data.tables import read_columns
from memloc.data.tasks import PAPER_TASKS, TaskSpec, binary_name, known_tasks
from memloc.errors import DataError, lookup
from memloc.records import Examples, Task
from memloc.seeds import generator

__all__ = ["load_task", "read_columns", "subsample"]

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
        return _load_paper_task(PAPER_TASKS[name], _folder(folder), seed, cache)
    whole = next(n for n in (*tiny.SUITE, *PAPER_TASKS) if binary_name(n) == name)
    return binarise(_load_whole(whole, folder, seed, cache_dir))


def _folder(given: str | Path | None) -> Path | None:
    named = os.environ.get(DATA_VARIABLE)
    if given is None and named:
        return Path(named)
    return None if given is None else Path(given)


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
            f"{path} does not list the labels of {spec.name!r} ({error}), as `label_names` it needs"
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
            f"{path} is damaged ({type(error).__name__}: {error}), every line must be a JSON object"
            f" with {', '.join(spec.folder_columns)} and label: fetch the task's data again."
        ) from error


def _text_of(path: Path, spec: TaskSpec) -> str:
    try:
        raw = path.read_bytes()
        return (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode()
    except FileNotFoundError:
        raise DataError(
            f"{path} is not there, {spec.name!r} needs {spec.name}/meta.json and"
            f" {spec.name}/train.jsonl.gz in the folder of tasks: give another folder, or none to"
            " use the hub."
        ) from None
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise DataError(
            f"{path} could not be read ({error}), a whole file in UTF-8 is needed: fetch the task's"
            " data again."
        ) from error


def _examples(parts: Sequence[tuple[str, ...]], labels: Sequence[int]) -> Examples:
    return Examples(tuple(parts), np.array(labels, dtype=np.int64))
