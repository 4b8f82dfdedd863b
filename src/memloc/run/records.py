"""Records of a run: what decides its weights, its data, and its accuracies."""

from collections.abc import Mapping
from typing import Literal

import numpy as np

from memloc.arrays import Table
from memloc.data.task import Examples, NoisyLabels, Task, hash_task
from memloc.display import Card, Shown
from memloc.errors import counted
from memloc.run.spec import RunSpec
from memloc.settings import Settings
from memloc.stats.answers import too_few
from memloc.store.records import as_table

TRAININGS = {"noisy": "final", "original": "reference", "frozen": "frozen"}
"""Final weights of each training of a run, in the order of the trainings."""
AS_ONE = ("noisy", "original")
"""Trainings that differ only in their labels, so that one pass can compute both."""
WEIGHTS = {"memorised": "noisy"} | {weights: name for name, weights in TRAININGS.items()}
"""Training that makes each of a run's weights."""


class TaskRecord(Settings):
    """Facts about the task of a run; its examples are in the run's folder."""

    name: str
    """Name of the task."""
    category: str
    """Kind of task that figures group it by."""
    label_names: tuple[str, ...]
    """Names of the classes in the order of their numbers; none in a task of texts."""
    source: str
    """Place that the task was read from, as text for people."""
    train: int
    """Number of training examples."""
    noisy: int
    """Number of noisy ones among them."""
    noise: str = ""
    """Sentence for people on how the wrong labels are known."""
    hash: str
    """Hash of texts, labels and splits."""
    last_tokens: int | None = None
    """Number of last tokens of each text to recall, where continuations are not given."""

    @classmethod
    def of(cls, task: Task) -> "TaskRecord":
        """Describe a task."""
        copied = ("name", "category", "label_names", "source")
        return cls(
            **{name: getattr(task, name) for name in copied},
            train=len(task.train),
            noisy=int(task.labels.is_noisy.sum()),
            noise=task.labels.origin,
            hash=hash_task(task),
            last_tokens=task.train.last_tokens,
        )


class Checkpoint(Settings):
    """Folder and hashes of weights that were adopted."""

    path: str
    """Folder of the weights."""
    files: str
    """Hash of the files."""
    hash: str
    """Hash of the weights."""


class Accuracies(Settings):
    """Share of the assigned labels that the final weights predict."""

    noisy: float
    """Share among the noisy examples."""
    clean: float
    """Share among the clean examples."""
    training: float
    """Share among all training examples."""

    @classmethod
    def of(cls, measured: Mapping[str, float]) -> "Accuracies":
        """Take the accuracies from a row of the training curves."""
        noisy, clean = measured["noisy_accuracy"], measured["clean_accuracy"]
        return cls(noisy=noisy, clean=clean, training=measured["accuracy"])


class Attempt(Settings):
    """A training of a plant that fell short."""

    learning_rate: float
    """Learning rate of the training."""
    training_accuracy: float
    """Training accuracy that it reached."""


class RunRecord(Settings):
    """Spec of a run and facts found when it was begun; this record is never rewritten."""

    spec: RunSpec
    """Everything that decides the weights."""
    made_by: Literal["train", "adopt"] = "train"
    """Whether memloc trained the weights or adopted them."""
    weights_hash: str
    """Hash of the pre-trained weights or, for an adopted run, of the final weights."""
    depth: int
    """Number of layers."""
    width: int
    """Number of components of a layer's vectors."""
    task: TaskRecord
    """Facts about the task."""
    auxiliary: str = ""
    """Hash of the training examples of a plant's auxiliary task."""
    command: str = ""
    """Command that made the run and would make it again."""


class RunStatus(Shown, Settings):
    """The accuracies of a run, its failed attempts, and which weights are missing, so far."""

    final: Accuracies | None = None
    """Accuracies of the final weights; None until they exist."""
    reference: float | None = None
    """Share of the original labels that adopted reference weights predict."""
    without: dict[str, str] = {}
    """Reasons why weights could not be made."""
    attempts: tuple[Attempt, ...] = ()
    """Trainings of a plant that fell short before the current one."""
    adopted: dict[str, Checkpoint] = {}
    """Weights of an adopted run, which are outside its folder."""

    def card(self) -> Card:
        """Return what became of the run: what it memorised, and which weights it lacks."""
        title = "No final weights yet"
        if self.final is not None:
            final = self.final
            title = (
                f"The final weights predict {final.noisy:.0%} of the noisy and {final.clean:.0%} "
                "of the clean labels"
            )
        facts = [f"without {name}: {why}" for name, why in self.without.items()]
        if self.attempts:
            facts.append(f"{counted(len(self.attempts), 'training')} fell short before this one")
        if self.adopted:
            facts.append(f"adopted weights: {', '.join(self.adopted)}")
        return Card(title, facts)


CURVES = (
    *("training", "epoch", "loss", "accuracy", "macro_f1", "noisy_accuracy", "clean_accuracy"),
    *("noisy_as_original", "validation_accuracy", "seconds"),
)
"""Columns of the training curves."""


def at_the_end(training: Table, name: str, column: str) -> float:
    """Return a measurement after the last epoch of a training; NaN if there is none."""
    rows = training[training["training"] == name].sort_values("epoch")
    return float(rows[column].iloc[-1]) if len(rows) else float("nan")


def labels_table(task: Task) -> Table:
    """Return all examples of a task with their labels, one row per example."""
    splits = []
    for split, part in task.splits.items():
        labels = {"original": part.labels, "assigned": part.labels, "is_noisy": False}
        if split == "train":
            labels = {name: getattr(task.labels, name) for name in labels}
        texts = {"row": np.arange(len(part)), "parts": [list(parts) for parts in part.parts]}
        splits.append({"split": split, **texts, **labels})
    return as_table(*splits)


def task_of(table: Table, about: TaskRecord) -> Task:
    """Return the task whose examples `labels_table` wrote into this table."""
    rows = [table[table["split"] == split] for split in ("train", "validation", "test")]
    labels = [part["original"].to_numpy(np.int64, copy=True) for part in rows]
    texts = [tuple(map(tuple, part["parts"])) for part in rows]
    noisy = NoisyLabels(
        labels[0],
        rows[0]["assigned"].to_numpy(np.int64, copy=True),
        rows[0]["is_noisy"].to_numpy(bool, copy=True),
        about.noise,
    )
    named = (about.name, about.category, about.label_names)
    train, validation, test = (
        Examples(*part, about.last_tokens) for part in zip(texts, labels, strict=True)
    )
    return Task(*named, train, validation, test, about.source, noisy)


def few_in(task: Task) -> str:
    """Return a warning if a task has too few noisy examples for any verdict; empty otherwise."""
    noisy = task.labels.is_noisy
    warning = too_few(int(noisy.sum()), len(noisy), len(task.label_names))
    return f"{task.name}: {warning}" if warning else ""
