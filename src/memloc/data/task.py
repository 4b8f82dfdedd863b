"""A task: examples, the label each should have, and which examples are noisy."""

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from memloc.arrays import BoolArray, IntArray
from memloc.display import MOST_LINES, Card, Shown
from memloc.errors import counted

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, repr=False)
class Examples(Shown):
    """Texts with their labels, in a fixed order; each text has one, two or (WiC) three parts.

    In a task of texts the parts are a prompt and its continuation, or the whole text if
    `last_tokens` says how many of its tokens are to be recalled; all labels are 0.
    """

    parts: tuple[tuple[str, ...], ...]
    labels: IntArray
    last_tokens: int | None = None
    """Number of last tokens of each text to recall, where continuations are not parts."""

    def __len__(self) -> int:
        return len(self.parts)

    def card(self) -> Card:
        """Return the number of examples, and the first texts."""
        texts = [" | ".join(parts) for parts in self.parts[: MOST_LINES - 1]]
        return Card(counted(len(self), "example"), texts)

    def take(self, rows: IntArray) -> "Examples":
        """Return the examples at `rows`, in that order."""
        return Examples(tuple(self.parts[i] for i in rows), self.labels[rows], self.last_tokens)


@dataclass(frozen=True, repr=False)
class NoisyLabels(Shown):
    """Labels before (`original`) and after (`assigned`) noise; `is_noisy` where they differ."""

    original: IntArray
    assigned: IntArray
    is_noisy: BoolArray
    origin: str = ""
    """Sentence on how the wrong labels are known."""

    def take(self, rows: IntArray) -> "NoisyLabels":
        """Return the labels at `rows`, in that order."""
        kept = (self.original[rows], self.assigned[rows], self.is_noisy[rows])
        return NoisyLabels(*kept, self.origin)

    def card(self) -> Card:
        """Return the number of noisy examples and how they are known."""
        return Card(self.summary())

    def summary(self) -> str:
        """Return a sentence with the number of noisy examples and how they are known."""
        counts = f"{int(self.is_noisy.sum()):,} noisy of {counted(len(self.is_noisy), 'example')}"
        return f"{counts}, {self.origin}." if self.origin else f"{counts}."


@dataclass(frozen=True, repr=False)
class Task(Shown):
    """Texts with labels and splits; labels are indices into `label_names`.

    A task without label names is one of texts: a language model should say how each text goes on.
    Its noisy examples are the texts that may have been memorised; the others are ordinary texts.
    What a model without that memory would say is not known, so noisy examples have the original
    label -1.
    """

    name: str
    category: str
    label_names: tuple[str, ...]
    train: Examples
    """Training examples with original labels."""
    validation: Examples
    test: Examples
    source: str
    """Phrase that tells where the task was read from."""
    noise: NoisyLabels | None = None
    """Labels before and after noise; None before noise is added."""

    @property
    def is_texts(self) -> bool:
        """Return whether the examples are texts to be continued rather than labelled."""
        return not self.label_names

    @property
    def labels(self) -> NoisyLabels:
        """Training labels before and after noise; both are equal in a task without noise."""
        plain = self.train.labels
        return self.noise or NoisyLabels(plain, plain, np.zeros(len(plain), dtype=np.bool_))

    @property
    def splits(self) -> dict[str, Examples]:
        """Examples by split: training, validation and test."""
        return {"train": self.train, "validation": self.validation, "test": self.test}

    @property
    def n_classes(self) -> int:
        """Number of classes, including any without a training example."""
        return len(self.label_names)

    @property
    def table(self) -> "pd.DataFrame":
        """Training examples as a table: text, label, label before noise, whether it is noisy."""
        import pandas as pd

        labels, names = self.labels, np.array([*self.label_names, ""])  # -1: not known
        return pd.DataFrame(
            {
                "text": [" | ".join(parts) for parts in self.train.parts],
                "label": names[labels.assigned],
                "original": names[labels.original],
                "noisy": labels.is_noisy,
            }
        )

    def card(self) -> Card:
        """Return the facts shown for a task: sizes of splits, classes, number of noisy labels."""
        sizes = ", ".join(f"{len(part):,} {name}" for name, part in self.splits.items())
        classes = f"{counted(self.n_classes, 'class', 'classes')}: {', '.join(self.label_names)}"
        noise = self.noise.summary() if self.noise else "No label is marked as noisy."
        rows = self.table.head(3).to_dict("records")
        return Card(f"Task {self.name}: {sizes} examples", [classes, noise], rows=rows)


def hash_task(task: Task) -> str:
    """Return the hash of a task's texts, labels and splits."""
    digest = hashlib.sha256()
    for examples in task.splits.values():
        digest.update(hash_examples(examples).encode())
    digest.update(task.labels.assigned.astype("<i8").tobytes())
    # If labels before noise are unknown, the marks of noisy examples say more than the labels.
    digest.update(task.labels.is_noisy.tobytes())
    return digest.hexdigest()[:16]


def hash_examples(examples: Examples) -> str:
    """Return the hash of texts and their labels, in their order."""
    digest = hashlib.sha256()
    for parts in examples.parts:
        digest.update(("\x1f".join(parts) + "\x1e").encode())
    digest.update(examples.labels.astype("<i8").tobytes())
    if examples.last_tokens is not None and len(examples):
        digest.update(f"last {examples.last_tokens} tokens".encode())
    return digest.hexdigest()
