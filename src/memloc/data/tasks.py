"""The twelve tasks of the paper (the table is `tasks.yaml`), and every task that memloc knows."""

from dataclasses import dataclass, replace
from typing import Literal

from memloc.data.tiny import SIZE, SUITE, TinyTask
from memloc.settings import Settings, packaged

BINARY = "-binary"
"""What the name of a task's variant with its two most frequent classes ends in."""


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
        n_parts = len(self.hub.parts)
        return ("text",) if n_parts == 1 else ("word", "text_a", "text_b")[-n_parts:]

    @property
    def splits(self) -> tuple[str, ...]:
        """What is read: the training split, and the held-out one if there is one."""
        return ("train",) if self.held_out is None else ("train", self.held_out)


PAPER_TASKS = {row["name"]: TaskSpec(**row) for row in packaged(__file__)["tasks"]}
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


def known_tasks() -> dict[str, TaskRow]:
    """Every name that `load_task` understands: embedded, the twelve, and their binary variants."""
    whole: list[tuple[TinyTask | TaskSpec, str, str, str]] = [
        *((t, t.description, str(SIZE), "embedded") for t in SUITE.values()),
        *(
            (t, f"{t.description} ({t.domain})", t.train_size, t.hub.repository)
            for t in PAPER_TASKS.values()
        ),
    ]
    rows = [
        TaskRow(t.name, t.category, about, size, len(t.label_names), t.label_names, source)
        for t, about, size, source in whole
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
