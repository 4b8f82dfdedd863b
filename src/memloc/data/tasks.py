"""Tasks that have a name; the table is `tasks.yaml`."""

from dataclasses import dataclass, replace
from typing import Literal

from memloc.settings import Settings, packaged

BINARY = "-binary"
"""Ending of the name of a task's variant with its two most frequent classes."""


class TaskSpec(Settings):
    """Description of a task without its texts."""

    name: str
    category: Literal["nlu", "sentiment", "hate", "topic"]
    description: str
    label_names: tuple[str, ...]
    train_size: str
    """Number of training examples, as the paper prints it."""
    held_out: str | None
    """The split that is halved into validation and test; None: 20 % of the only split."""
    columns: tuple[str, ...] = ("text",)
    """Columns of the text's parts in a folder, in the order in which they are joined."""

    @property
    def splits(self) -> tuple[str, ...]:
        """Splits that are read: the training split, and the held-out one if there is one."""
        return ("train",) if self.held_out is None else ("train", self.held_out)


class HubSource(Settings):
    """Place of a task on the hub, or of a local folder with the same files.

    The hub cannot be reached in tests: repositories, branches and columns are taken from
    documentation.
    """

    repository: str
    parts: tuple[str, ...]
    """Columns of the text's parts there."""
    label: str = "label"
    config: str | None = None
    """Named configuration, on branches that describe their configurations."""
    subfolder: str | None = None
    """Folder of the configuration on the hub's Parquet branch, which names none."""
    revision: str = "main"
    rows: Literal["all", "listed labels", "single topic"] = "all"
    """Rows of the hub that belong to the task; local folders hold the right rows already."""


class PaperTask(TaskSpec):
    """One row of the paper's Table 1, and where its texts come from."""

    domain: str
    hub: HubSource


_TABLE = packaged(__file__)
EMBEDDED_TASKS = {row["name"]: TaskSpec(**row) for row in _TABLE["embedded"]}
"""The tasks that come with memloc, easy ones first."""
PAPER_TASKS = {row["name"]: PaperTask(**row) for row in _TABLE["paper"]}
"""The twelve tasks, in the order of the paper's Table 1."""


@dataclass(frozen=True)
class TaskRow:
    """Facts that people want to see of a task before choosing it."""

    name: str
    category: str
    description: str
    train_size: str
    n_classes: int
    label_names: tuple[str, ...]
    """Empty where only the data can tell which classes are the two most frequent."""
    source: str
    domain: str = ""
    """Origin of the paper's texts."""


def known_tasks() -> dict[str, TaskRow]:
    """Return all names that `load_task` knows: embedded, the twelve, and binary variants."""
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
