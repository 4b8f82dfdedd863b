"""The twelve tasks of the paper (the table is `tasks.yaml`), and every task that memloc knows."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from memloc.data import tiny
from memloc.settings import Settings, packaged


class HubSource(Settings):
    """Where the hub keeps a task, or a local folder with the same files.

    The hub cannot be reached in tests: repositories, branches and columns are taken from
    documentation.
    """

    repository: str
    parts: tuple[str, ...]
    """Columns of the text's parts, in the order in which they are joined."""
    label: str = "label"
    config: str | None = None
    """Named configuration, on branches that describe their configurations."""
    subfolder: str | None = None
    """On the Parquet branch, which describes none, a configuration is a folder."""
    revision: str = "main"
    rows: Literal["all", "listed labels", "single topic"] = "all"
    """Which of the hub's rows belong to the task; local folders hold the right rows already."""


class TaskSpec(Settings):
    """One row of the paper's Table 1, and where its texts come from."""

    name: str
    category: Literal["nlu", "sentiment", "hate", "topic"]
    description: str
    domain: str
    label_names: tuple[str, ...]
    train_size: str
    """Training examples as the paper prints them."""
    held_out: str | None
    """The split that is halved into validation and test; None: 20 % of the only split."""
    hub: HubSource

    @property
    def folder_columns(self) -> tuple[str, ...]:
        """Columns of the text's parts in a local folder."""
        return {1: ("text",), 2: ("text_a", "text_b"), 3: ("word", "text_a", "text_b")}[
            len(self.hub.parts)
        ]


class _Table(Settings):
    tasks: tuple[TaskSpec, ...]


PAPER_TASKS: Mapping[str, TaskSpec] = MappingProxyType(
    {spec.name: spec for spec in packaged(_Table, Path(__file__).with_suffix(".yaml")).tasks}
)
"""The twelve tasks, in the order of the paper's Table 1."""


@dataclass(frozen=True)
class TaskRow:
    """What a person wants to see of a task before choosing it."""

    name: str
    category: str
    description: str
    train_size: str
    n_classes: int
    label_names: tuple[str, ...]
    """Empty where only the data can tell which classes are the two most frequent."""
    source: str


def known_tasks() -> Mapping[str, TaskRow]:
    """Every name that `load_task` understands: embedded, the twelve, and their binary variants."""
    embedded = str(tiny.DEFAULT_SIZES["train"])
    whole = [_row(t, t.description, embedded, "embedded") for t in tiny.SUITE.values()]
    for spec in PAPER_TASKS.values():
        described = f"{spec.description} ({spec.domain})"
        whole.append(_row(spec, described, spec.train_size, spec.hub.repository))
    rows = [*whole, *(_binary_row(row) for row in whole if row.n_classes > 2)]
    return MappingProxyType({row.name: row for row in rows})


def binary_name(name: str) -> str:
    """The name of a task's variant with its two most frequent classes."""
    return f"{name}-binary"


def _row(task: tiny.TinyTask | TaskSpec, about: str, train_size: str, source: str) -> TaskRow:
    names = task.label_names
    return TaskRow(task.name, task.category, about, train_size, len(names), names, source)


def _binary_row(row: TaskRow) -> TaskRow:
    return replace(
        row,
        name=binary_name(row.name),
        description=f"the two most frequent classes of {row.name}",
        train_size=f"part of {row.train_size}",
        n_classes=2,
        label_names=(),
    )
