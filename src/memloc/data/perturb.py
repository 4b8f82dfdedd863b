"""Assigns wrong labels to a share of the examples, records which, and makes binary variants."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from math import ceil, floor
from typing import Any

import numpy as np
from numpy.random import Generator

from memloc.arrays import IntArray
from memloc.data.task import Examples, NoisyLabels, Task
from memloc.data.tasks import BINARY
from memloc.errors import (
    DataError,
    MemlocWarning,
    SettingsError,
    checked_arguments,
    counted,
    lookup,
)
from memloc.protocol import NoiseSettings
from memloc.seeds import generator

OWN = "own"
"""Task category of users' own files, whose labels may have unknown errors."""


@checked_arguments
def add_noise(task: Task, rate: float = 0.15, seed: int = 1, pattern: str = "uniform") -> Task:
    """Return a task in which a share of the training labels of every class is wrong.

    Which labels are flipped depends on `seed` and the name of the task, and on nothing else.

    Args:
        task: The task whose labels are right.
        rate: Share of the labels of every class that become wrong.
        seed: Seed of the choice.
        pattern: How the wrong label is chosen; `memloc protocol` names both ways (`noise.pattern`).
    """
    if not isinstance(task, Task):
        raise SettingsError(
            f"Noise is added to a task, not to a {type(task).__name__}: `memloc.load_task` and "
            "`memloc.load_csv` give one."
        )
    if task.noise is not None:
        raise DataError(f"Task {task.name!r} says which labels are wrong: train on it as it is.")
    rng = generator(seed, "noise", task.name)
    flipped = perturb(task.train.labels, task.label_names, rng, rate=rate, pattern=pattern)
    origin = f"labels flipped by memloc (a share of {rate:g} of each class)"
    if task.category == OWN:
        origin += "; which labels of the file itself are wrong is not known"
    return replace(task, noise=replace(flipped, origin=origin))


def noisy_task(task: Task, noise: NoiseSettings) -> Task:
    """Return a task with the noise it brings, or else with noise drawn by these settings."""
    return task if task.noise else add_noise(task, noise.rate, noise.seed, noise.pattern)


def perturb(
    labels: IntArray,
    names: Sequence[str],
    rng: Generator,
    rate: float = 0.15,
    pattern: str = "uniform",
) -> NoisyLabels:
    """Give floor(rate · n_c) of the n_c examples of every class c a wrong label.

    A class too small for one wrong label keeps its labels, with a warning. Both kinds of noise make
    the same examples noisy when `rng` is the same.

    Args:
        labels: Right label of each example, from 0.
        names: Names of the classes, by label.
        rng: Generator that chooses the examples and their wrong labels.
        rate: Share of every class that gets a wrong label.
        pattern: "uniform" makes every wrong class equally likely; "next" turns class c into c + 1,
            and the last class into the first.
    """
    if not isinstance(rate, int | float | np.floating) or not 0 < rate < 1:
        raise SettingsError(
            f"The noise rate is {rate!r}; it must be a share above 0 and below 1, such as 0.15."
        )
    steps = lookup("kind of noise", pattern, KINDS)
    counts = np.bincount(labels, minlength=len(names)).tolist()
    # As a fraction of the decimals one reads: 0.15 * 20 is 3, as floats it may be 2.999...
    shares = [floor(Fraction(str(float(rate))) * n) for n in counts]
    _warn_of_small_classes(dict(zip(names, counts, strict=True)), shares, rate)
    chosen = [
        rng.choice(np.flatnonzero(labels == label), size=share, replace=False)
        for label, share in enumerate(shares)
    ]
    rows = np.concatenate(chosen)
    assigned = labels.copy()
    assigned[rows] = (labels[rows] + steps(len(rows), len(names), rng)) % len(names)
    return NoisyLabels(original=labels, assigned=assigned, is_noisy=assigned != labels)


def given_noise(original: IntArray, assigned: IntArray, origin: str = "") -> NoisyLabels:
    """Return the noise that a task brings: an example is noisy where its two labels differ."""
    is_noisy = original != assigned
    if not is_noisy.any() or is_noisy.all():
        how_many = "all" if is_noisy.any() else "none"
        raise DataError(
            f"Of {len(original)} examples {how_many} have an assigned label that differs from the"
            " original one, but noisy and clean ones are needed: check the two columns."
        )
    return NoisyLabels(original, assigned, is_noisy, origin)


def binarise(task: Task) -> Task:
    """Return a task with its two most frequent training classes only, in their order."""
    counts = np.bincount(task.train.labels, minlength=task.n_classes)
    kept = np.sort(np.argsort(-counts, kind="stable")[:2])
    if len(kept) < 2 or counts[kept].min() == 0:
        classes = counted(int(np.count_nonzero(counts)), "class", "classes")
        raise DataError(
            f"Task {task.name!r} has training examples of {classes}, but two are needed to"
            " binarise it: choose another task."
        )
    parts: dict[str, Any] = {split: _only(part, kept) for split, part in task.splits.items()}
    return replace(
        task,
        **parts,
        name=f"{task.name}{BINARY}",
        label_names=tuple(task.label_names[label] for label in kept),
    )


KINDS: Mapping[str, Callable[[int, int, Generator], IntArray | int]] = {
    "uniform": lambda n, n_classes, rng: rng.integers(1, n_classes, size=n),
    "next": lambda _n, _n_classes, _rng: 1,
}
"""Functions that draw how many classes each wrong label is moved by, by kind of noise."""


def _warn_of_small_classes(counts: Mapping[str, int], shares: Sequence[int], rate: float) -> None:
    if not any(shares):
        size = max(counts.values())
        # The lowest rate of four decimals that makes one of them noisy.
        enough = (
            f"Use a rate of {ceil(Fraction(10_000, size)) / 10_000:g} or more, or add examples."
        )
        raise DataError(
            f"No label can be flipped: the largest class has {counted(size, 'training example')},"
            f" of which a share of {rate:g} is less than one. "
            + (enough if size > 1 else "Add examples.")
        )
    kept = zip(counts.items(), shares, strict=True)
    small = [f"{name} ({n})" for (name, n), share in kept if share == 0 and n > 0]
    if small:
        more = "" if len(small) <= LISTED else f" and {len(small) - LISTED} more"
        keep = "class keeps its" if len(small) == 1 else "classes keep their"
        warnings.warn(
            f"{len(small)} {keep} labels, because a share of {rate:g} is less than one training"
            f" example: {', '.join(small[:LISTED])}{more}.",
            MemlocWarning,
            stacklevel=2,
        )


LISTED = 5
"""Number of small classes that a warning names at most."""


def _only(examples: Examples, kept: IntArray) -> Examples:
    part = examples.take(np.flatnonzero(np.isin(examples.labels, kept)))
    return Examples(part.parts, np.searchsorted(kept, part.labels).astype(np.int64))
