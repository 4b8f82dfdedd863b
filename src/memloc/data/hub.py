"""Reads a task's rows from the hub, or from a local folder with the same files."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from memloc.data.tasks import HubSource, TaskSpec
from memloc.errors import DataError, counted
from memloc.records import Examples, IntArray


def read_hub(spec: TaskSpec, cache_dir: Path | None = None) -> tuple[Examples, Examples | None]:
    """Training and held-out examples; None where the hub has a single split."""
    splits = _download(spec, cache_dir)
    names = ["train"] if spec.held_out is None else ["train", spec.held_out]
    for name in names:
        _require(spec, f"split {name!r}", name in splits, splits)
    if spec.hub.rows == "single topic":
        _check_topics(spec, splits["train"])
    train, *held_out = (_examples(spec, splits[name]) for name in names)
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


def _examples(spec: TaskSpec, split: Any) -> Examples:
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
