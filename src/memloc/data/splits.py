"""Cuts examples into splits, and training data into smaller ones."""

from dataclasses import replace

import numpy as np
from numpy.random import Generator

from memloc.errors import DataError, SettingsError
from memloc.records import Examples, IntArray, Task
from memloc.seeds import generator


def split_off(examples: Examples, rng: Generator) -> tuple[Examples, Examples]:
    """A random 80 % (rounded down) and the rest, both in the order they had."""
    return _cut(examples, len(examples) * 4 // 5, rng)


def halve(examples: Examples, rng: Generator) -> tuple[Examples, Examples]:
    """Two random halves, both in the order they had; of an odd number the second gets more."""
    if len(examples) < 2:
        raise DataError(
            f"Held-out data of {len(examples)} examples cannot be halved into validation and test:"
            " give at least two, or six in all where they are split off the training data."
        )
    return _cut(examples, len(examples) // 2, rng)


def subsample(task: Task, n_train: int, seed: int) -> Task:
    """The task with a random `n_train` of its training examples, classes in the same shares.

    Shares are rounded by largest remainder; a very rare class may lose its last example.
    """
    there = len(task.train)
    if not 1 <= n_train <= there:
        raise SettingsError(
            f"{n_train:,} training examples were asked for, task {task.name!r} has {there:,}:"
            f" choose a number from 1 to {there:,}."
        )
    rows = _stratified(task.train.labels, n_train, generator(seed, "subsample", task.name))
    source = f"{task.source}, {n_train} of {there} training examples"
    return replace(task, train=task.train.take(rows), source=source)


def _cut(examples: Examples, size: int, rng: Generator) -> tuple[Examples, Examples]:
    order = rng.permutation(len(examples))
    return examples.take(np.sort(order[:size])), examples.take(np.sort(order[size:]))


def _stratified(labels: IntArray, size: int, rng: Generator) -> IntArray:
    counts = np.bincount(labels)
    # Integers throughout: a share of count * size / total is exact as quotient and remainder.
    quota, remainder = np.divmod(counts * size, len(labels))
    largest_first = np.argsort(-remainder, kind="stable")
    quota[largest_first[: size - quota.sum()]] += 1
    chosen = [
        rng.choice(np.flatnonzero(labels == label), size=n, replace=False)
        for label, n in enumerate(quota)
    ]
    return np.sort(np.concatenate(chosen))
