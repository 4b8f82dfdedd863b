"""Cuts examples into splits, and training data into smaller ones."""

from dataclasses import replace

import numpy as np
from numpy.random import Generator

from memloc.errors import DataError, SettingsError, counted
from memloc.records import Examples, Task
from memloc.seeds import generator


def split_off(examples: Examples, rng: Generator) -> tuple[Examples, Examples]:
    """A random 80 % (rounded down) and the rest, both in the order they had."""
    return _cut(examples, len(examples) * 4 // 5, rng)


def halve(examples: Examples, rng: Generator) -> tuple[Examples, Examples]:
    """Two random halves, both in the order they had; of an odd number the second gets more."""
    if len(examples) < 2:
        raise DataError(
            f"Held-out data of {counted(len(examples), 'example')} cannot be halved into validation"
            " and test: give at least two, or six in all where they are split off the training"
            " data."
        )
    return _cut(examples, len(examples) // 2, rng)


def subsample(task: Task, n_train: int, seed: int) -> Task:
    """The task with a random `n_train` of its training examples, classes in the same shares.

    Shares are rounded by largest remainder; a very rare class may lose its last example. Held-out
    splits keep at most as many, since every epoch is measured on them.
    """
    there = len(task.train)
    if not 1 <= n_train <= there:
        raise SettingsError(
            f"{n_train:,} training examples were asked for, task {task.name!r} has {there:,}:"
            f" choose a number from 1 to {there:,}."
        )

    def some(part: Examples, *name: str) -> Examples:
        rng = generator(seed, "subsample", task.name, *name)
        return part if len(part) < n_train else _some(part, n_train, rng)

    return replace(
        task,
        train=some(task.train),
        validation=some(task.validation, "validation"),
        test=some(task.test, "test"),
        source=f"{task.source}, {n_train} of {there} training examples",
    )


def _cut(examples: Examples, size: int, rng: Generator) -> tuple[Examples, Examples]:
    order = rng.permutation(len(examples))
    return examples.take(np.sort(order[:size])), examples.take(np.sort(order[size:]))


def _some(examples: Examples, size: int, rng: Generator) -> Examples:
    """So many at random, classes in the same shares."""
    labels = examples.labels
    counts = np.bincount(labels)
    # Integers throughout: a share of count * size / total is exact as quotient and remainder.
    quota, remainder = np.divmod(counts * size, len(labels))
    largest_first = np.argsort(-remainder, kind="stable")
    quota[largest_first[: size - quota.sum()]] += 1
    chosen = [
        rng.choice(np.flatnonzero(labels == label), size=n, replace=False)
        for label, n in enumerate(quota)
    ]
    return examples.take(np.sort(np.concatenate(chosen)))
