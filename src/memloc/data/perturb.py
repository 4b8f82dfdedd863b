"""Assigns wrong labels to a share of the examples and remembers which; binarises."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from math import ceil, floor

import numpy as np
from numpy.random import Generator

from memloc.data.tasks import binary_name
from memloc.errors import DataError, MemlocWarning, SettingsError, counted, lookup
from memloc.protocol import NoiseSettings
from memloc.records import Examples, IntArray, NoisyLabels, NoisyTask, Task
from memloc.seeds import generator

OWN = "own"
"""The category of tasks from people's own files, whose labels may have errors that nobody knows."""


def add_noise(task: Task, rate: float = 0.15, seed: int = 1, kind: str = "uniform") -> NoisyTask:
    """Flip a share of the training labels of every class; other splits are not touched.

    Which labels are flipped depends on `seed` and the name of the task, and on nothing else.
    """
    rng = generator(seed, "noise", task.name)
    names = task.label_names
    flipped = perturb(task.train.labels, len(names), rng, rate=rate, kind=kind, label_names=names)
    origin = f"labels flipped by memloc (a share of {rate:g} of each class)"
    if task.category == OWN:
        origin += "; which labels of the file itself are wrong is not known"
    return NoisyTask(task, replace(flipped, origin=origin))


def noisy_task(task: Task | NoisyTask, noise: NoiseSettings) -> NoisyTask:
    """A task with the noise that it has, or with that of these settings."""
    if isinstance(task, NoisyTask):
        return task
    return add_noise(task, noise.rate, noise.seed, noise.kind)


def perturb(
    labels: IntArray,
    n_classes: int,
    rng: Generator,
    *,
    rate: float = 0.15,
    kind: str = "uniform",
    label_names: Sequence[str] | None = None,
) -> NoisyLabels:
    """Give floor(rate · n_c) of the n_c examples of every class c a wrong label.

    A class so small that this is none of them keeps its labels, with a warning.
    `kind` "uniform": every wrong class is equally likely; "next": class c becomes c + 1, the last
    one the first. Both kinds make the same examples noisy when `rng` is the same.
    """
    _check(labels, n_classes, rate)
    steps = lookup("kind of noise", kind, KINDS)
    counts = np.bincount(labels, minlength=n_classes)
    shares = [_share(rate, n) for n in counts.tolist()]
    _warn_of_small_classes(counts, shares, rate, label_names)
    chosen = [
        rng.choice(np.flatnonzero(labels == label), size=share, replace=False)
        for label, share in enumerate(shares)
    ]
    rows = np.concatenate(chosen)
    assigned = labels.copy()
    assigned[rows] = (labels[rows] + steps(len(rows), n_classes, rng)) % n_classes
    return NoisyLabels(original=labels, assigned=assigned, is_noisy=assigned != labels)


def given_noise(original: IntArray, assigned: IntArray, origin: str = "") -> NoisyLabels:
    """Noise that was there already: an example is noisy where its two labels differ."""
    is_noisy = original != assigned
    if not is_noisy.any() or is_noisy.all():
        found = "all" if is_noisy.any() else "none"
        raise DataError(
            f"Of {len(original)} examples {found} have an assigned label that differs from the"
            " original one, but noisy and clean ones are needed: check the two columns."
        )
    return NoisyLabels(original, assigned, is_noisy, origin)


def binarise(task: Task) -> Task:
    """The task with its two most frequent training classes only, in the order they had."""
    counts = np.bincount(task.train.labels, minlength=task.n_classes)
    kept = np.sort(np.argsort(-counts, kind="stable")[:2])
    if len(kept) < 2 or counts[kept].min() == 0:
        found = counted(int(np.count_nonzero(counts)), "class", "classes")
        raise DataError(
            f"Task {task.name!r} has training examples of {found}, but two are needed to"
            " binarise it: choose another task."
        )
    return replace(
        task,
        name=binary_name(task.name),
        label_names=tuple(task.label_names[label] for label in kept),
        train=_only(task.train, kept),
        validation=_only(task.validation, kept),
        test=_only(task.test, kept),
    )


KINDS: Mapping[str, Callable[[int, int, Generator], IntArray | int]] = {
    "uniform": lambda n, n_classes, rng: rng.integers(1, n_classes, size=n),
    "next": lambda _n, _n_classes, _rng: 1,
}
"""By the name of a kind of noise: how many classes further on each wrong label is."""


def _share(rate: float, n: int) -> int:
    # As a fraction of the decimals one reads: 0.15 * 20 is 3, as floats it may be 2.999...
    return floor(Fraction(str(float(rate))) * n)


def _check(labels: IntArray, n_classes: int, rate: float) -> None:
    if not 0 < rate < 1:
        raise SettingsError(
            f"The noise rate is {rate}; it must be a share above 0 and below 1, such as 0.15."
        )
    if n_classes < 2:
        raise DataError(
            f"There is no wrong label to assign with {counted(n_classes, 'class', 'classes')}: at"
            " least two are needed, so choose another task."
        )
    if len(labels) == 0 or labels.min() < 0 or labels.max() >= n_classes:
        extent = f"from {labels.min()} to {labels.max()}" if len(labels) else "none"
        raise DataError(
            f"Labels are {extent}, but must be numbers from 0 to {n_classes - 1}: number"
            " the classes from 0 and leave no example without a label."
        )


def _warn_of_small_classes(
    counts: IntArray, shares: list[int], rate: float, names: Sequence[str] | None
) -> None:
    small = [c for c, share in enumerate(shares) if share == 0 and counts[c] > 0]
    if not any(shares):
        largest = counted(int(counts.max()), "training example")
        raise DataError(
            f"No label can be flipped: the largest class has {largest}, of which a share of"
            f" {rate:g} is less than one. {_advice(int(counts.max()))}"
        )
    if small:
        listed = [f"{c if names is None else names[c]} ({counts[c]})" for c in small]
        more = "" if len(small) <= LISTED else f" and {len(small) - LISTED} more"
        keep = "class keeps its" if len(small) == 1 else "classes keep their"
        warnings.warn(
            f"{len(small)} {keep} labels, because a share of {rate:g} is less than one training"
            f" example: {', '.join(listed[:LISTED])}{more}.",
            MemlocWarning,
            stacklevel=2,
        )


LISTED = 5
"""So many small classes are named in a warning."""


def _advice(size: int) -> str:
    """The lowest rate of four decimals that makes one of `size` examples noisy."""
    if size == 1:
        return "Add examples."
    enough = ceil(Fraction(10_000, size)) / 10_000
    return f"Use a rate of {enough:g} or more, or add examples."


def _only(examples: Examples, kept: IntArray) -> Examples:
    part = examples.take(np.flatnonzero(np.isin(examples.labels, kept)))
    return Examples(part.parts, np.searchsorted(kept, part.labels).astype(np.int64))
