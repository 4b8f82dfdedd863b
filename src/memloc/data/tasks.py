"""Named tasks, described in `tasks.yaml`."""

from dataclasses import dataclass, replace
from typing import Literal

from memloc.settings import Settings, packaged

BINARY = "-binary"
"""Suffix of a task's binary variant, which keeps the two most frequent classes."""


class TaskEntry(Settings):
    """Description of a task without its texts."""

    name: str
    category: Literal["nlu", "sentiment", "hate", "topic"]
    description: str
    label_names: tuple[str, ...]
    train_size: str
    """Number of training examples, as the paper prints it."""
    held_out: str | None
    """Split that is halved into validation and test; if None, 20 % of the only split."""
    columns: tuple[str, ...] = ("text",)
    """Columns of a folder's files that hold the parts of a text, in joining order."""

    @property
    def splits(self) -> tuple[str, ...]:
        """Splits to read: the training split, and the held-out split if there is one."""
        return ("train",) if self.held_out is None else ("train", self.held_out)


class HubSource(Settings):
    """Place of a task on the hub, or in a local folder with the same files.

    The hub cannot be reached in tests: repositories, branches and columns are taken from their
    documentation.
    """

    repository: str
    parts: tuple[str, ...]
    """Columns of the hub's files that hold the parts of a text."""
    label: str = "label"
    config: str | None = None
    """Configuration to ask for, on branches that describe their configurations."""
    subfolder: str | None = None
    """Folder of the configuration on the hub's Parquet branch, where configurations have no names.

    """
    revision: str = "main"
    rows: Literal["all", "listed labels", "single topic"] = "all"
    """Hub rows that belong to the task; local folders hold only these rows already."""


class PaperTask(TaskEntry):
    """A row of the paper's Table 1, with the place its texts come from."""

    domain: str
    hub: HubSource


_TABLE = packaged(__file__)
EMBEDDED_TASKS = {row["name"]: TaskEntry(**row) for row in _TABLE["embedded"]}
"""Embedded tasks by name, easy ones first."""
PAPER_TASKS = {row["name"]: PaperTask(**row) for row in _TABLE["paper"]}
"""The twelve tasks of the paper by name, in the order of its Table 1."""


@dataclass(frozen=True)
class TaskRow:
    """Facts about a task that help to choose one."""

    name: str
    category: str
    description: str
    train_size: str
    n_classes: int
    label_names: tuple[str, ...]
    """Class names; empty where only the data can tell which two classes are the most frequent."""
    source: str
    domain: str = ""
    """Kind of source the texts come from, as in the paper."""


def known_tasks() -> dict[str, TaskRow]:
    """Return every task name that `load_task` accepts, with its facts."""
    known = [(task, "embedded") for task in EMBEDDED_TASKS.values()]
    known += [(task, task.hub.repository) for task in PAPER_TASKS.values()]
    shared = ("name", "category", "description", "train_size", "label_names")
    rows = [
        TaskRow(
            **{name: getattr(task, name) for name in shared},
            n_classes=len(task.label_names),
            source=source,
            domain=getattr(task, "domain", ""),
        )
        for task, source in known
    ]
    rows += [
        replace(
            row,
            name=f"{row.name}{BINARY}",
            description=f"the two most frequent classes of {row.name}",
            train_size=f"part of {row.train_size}",
            n_classes=2,
            label_names=(),
        )
        for row in rows
        if row.n_classes > 2
    ]
    return {row.name: row for row in rows}
