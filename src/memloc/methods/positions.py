"""Positions between class centroids: noisy examples drift from their original class to the assigned
one.

For each ordered pair of classes (a, b) the line through the centroids of their clean examples has a
at 0 and b at 1. Noisy examples of the pair have the assigned class a and the original class b.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from memloc.arrays import BoolArray, FloatArray, IntArray
from memloc.data.task import NoisyLabels, Task
from memloc.errors import DataError

KINDS = ("noisy", "clean a", "clean b")
"""Roles of an example for a pair of classes."""
COINCIDE = 1e-6
"""Share of the vectors' size; centroids that are nearer differ by float noise only."""
MANY = 1000
"""Number of pairs above which pairs without a noisy example are left out."""


@dataclass(frozen=True)
class Positions:
    """One row per example and pair, with K layers in the order of the vectors."""

    pairs: IntArray
    """(pairs, 2): classes a and b."""
    pair: IntArray
    """(rows,): index into `pairs`."""
    example: IntArray
    """(rows,): row of the example."""
    case: IntArray
    """(rows,): index into `KINDS`."""
    position: FloatArray
    """(rows, K): a is 0, b is 1; NaN where there is no line."""
    separability: FloatArray
    """(pairs, K): distance of the centroids relative to the spread of clean examples around them.

    It is NaN where either is unknown.
    """
    by_chance: FloatArray
    """(pairs,): separability expected of two samples of these sizes from one cloud."""
    coincide: BoolArray
    """(pairs, K): whether the centroids are the same point, up to float noise."""
    n_noisy: IntArray
    """(pairs,): number of noisy examples."""
    n_clean: IntArray
    """(pairs, 2): numbers of clean examples of a and of b."""

    def remarks(self, names: Sequence[str]) -> list[str]:
        """Return what is unusual in the data, one sentence each; layers are those of the
        vectors.
        """
        every = len(names) * (len(names) - 1)
        some = (
            f"Only the {len(self.pairs):,} of {every:,} pairs of classes with a noisy example are "
            "compared."
        )
        return [some] * (len(self.pairs) < every) + [
            f"{names[a]} → {names[b]}: {sentence}."
            for index, (a, b) in enumerate(self.pairs)
            for sentence in _remarks(self, index)
        ]


def check_labels(task: Task, noisy: NoisyLabels) -> None:
    """Refuse data with nothing to compare, or with unknown original labels."""
    if task.n_classes < 2:
        raise DataError(f"{task.name} has {task.n_classes} class; an analysis needs two.")
    if not noisy.is_noisy.any() or noisy.is_noisy.all():
        kinds = "only noisy" if noisy.is_noisy.any() else "no noisy"
        raise DataError(
            f"{task.name} has {kinds} examples, and an analysis compares noisy and clean ones: "
            "train on data of which a share has wrong labels."
        )
    if (noisy.original < 0).any():
        raise DataError(
            f"The labels before noise of {task.name} are not known, only which examples are noisy: "
            "give a column of original labels instead of flags."
        )


def positions(vectors: NDArray[np.floating], noisy: NoisyLabels, n_classes: int) -> Positions:
    """Return the positions of `vectors` (examples, K, width) for all pairs and layers."""
    n_clean = np.bincount(noisy.original[~noisy.is_noisy], minlength=n_classes)
    _check(noisy, n_clean)
    pairs = _pairs(noisy, n_classes)
    pair, example, kind = _rows(noisy, pairs)
    layers = np.moveaxis(vectors, 1, 0)
    by_layer = [_at_layer(layer, noisy, pairs, (pair, example)) for layer in layers]
    place, separability, coincide = (
        np.stack(columns, axis=1) for columns in zip(*by_layer, strict=True)
    )
    sizes = n_clean[pairs]
    return Positions(
        pairs=pairs,
        pair=pair,
        example=example,
        case=kind,
        position=place,
        separability=separability,
        by_chance=np.sqrt((1 / np.where(sizes > 0, sizes, np.nan)).sum(1)),
        coincide=coincide,
        n_noisy=np.bincount(pair[kind == 0], minlength=len(pairs)),
        n_clean=sizes,
    )


def shuffled_separability(
    vectors: NDArray[np.floating],
    noisy: NoisyLabels,
    pairs: IntArray,
    shuffles: int,
    rng: Generator,
) -> FloatArray:
    """Return the separability (shuffles, pairs, K) when the clean examples' labels are shuffled.

    Args:
        vectors: Vectors of all examples and layers.
        noisy: Labels before and after noise.
        pairs: Pairs of classes.
        shuffles: Number of shuffles.
        rng: Generator of the shuffles.
    """
    clean = ~noisy.is_noisy
    labels = noisy.original[clean]
    n_clean = np.bincount(labels, minlength=int(pairs.max()) + 1)
    # Examples in the order of their classes; each class has as many in every shuffle.
    orders = [np.argsort(rng.permutation(labels), kind="stable") for _ in range(shuffles)]
    occurring = np.flatnonzero(n_clean)
    starts = np.cumsum(n_clean[occurring]) - n_clean[occurring]
    separability = np.empty((shuffles, len(pairs), vectors.shape[1]))
    centroids = np.full((len(n_clean), vectors.shape[2]), np.nan)
    scatter = np.full(len(n_clean), np.nan)
    a, b = pairs.T
    for layer in range(vectors.shape[1]):
        points = vectors[clean, layer].astype(np.float64)
        points -= points.mean(0)
        squares = (points**2).sum(1)
        for row, order in enumerate(orders):
            centroids[occurring] = np.add.reduceat(points[order], starts) / n_clean[occurring, None]
            norms = (centroids**2).sum(1)
            scatter[occurring] = (
                np.add.reduceat(squares[order], starts) - (n_clean * norms)[occurring]
            )
            distance = ((centroids[a] - centroids[b]) ** 2).sum(1)
            separability[row, :, layer] = _separability(distance, scatter, pairs, n_clean)
    return separability


def _at_layer(
    vectors: NDArray[np.floating], noisy: NoisyLabels, pairs: IntArray, rows: tuple[IntArray, ...]
) -> tuple[FloatArray, FloatArray, BoolArray]:
    """Return positions of rows (pair, example) in one layer, with separability and coincidence of
    pairs.
    """
    clean = ~noisy.is_noisy
    n_classes = int(pairs.max()) + 1
    points = vectors.astype(np.float64)
    size = np.sqrt((points**2).sum(1).mean())
    # Positions do not depend on where zero is; near the data nothing cancels.
    points -= points[clean].mean(0)
    belongs = (noisy.original == np.arange(n_classes)[:, None]) & clean
    count = belongs.sum(1)
    # A class without clean examples has no centroid: NaN, and NaN in all that follows.
    centroids = (belongs @ points) / np.where(count, count, np.nan)[:, None]
    products, between = points @ centroids.T, centroids @ centroids.T
    squares = (belongs @ (points**2).sum(1)) - count * np.diag(between)
    noise = (COINCIDE * size) ** 2
    scatter = np.where(squares > count * noise, squares, 0.0)
    distances = _distances(between)
    same = distances <= noise
    # (h − c_a)·(c_b − c_a) / |c_b − c_a|² for rows of examples and of (a, b).
    pair, example = rows
    a, b = pairs[pair].T
    over = products[example, b] - products[example, a]
    over -= between[a, b] - between[a, a]
    coincide = same[tuple(pairs.T)]
    apart = _separability(distances[tuple(pairs.T)], scatter, pairs, count)
    apart = np.where(coincide, 0.0, apart)
    return over / np.where(same, np.nan, distances)[a, b], apart, coincide


def _separability(
    distance: FloatArray, scatter: FloatArray, pairs: IntArray, n_clean: IntArray
) -> FloatArray:
    """Return the distance relative to the pooled standard distance of the clean examples, (pairs,).

    It is computed from squared distances of centroids (pairs,) and sums of squares (classes,), and
    NaN where a centroid is missing or no class of the pair has any spread.
    """
    a, b = pairs.T
    freedom = n_clean[a] + n_clean[b] - 2
    spread = (scatter[a] + scatter[b]) / np.where(freedom > 0, freedom, np.nan)
    return np.asarray(np.sqrt(distance / np.where(spread > 0, spread, np.nan)))


def _distances(between: FloatArray) -> FloatArray:
    """Return squared distances of all pairs (classes, classes) from their inner products."""
    squares = np.diag(between)
    return np.maximum(0, squares[:, None] + squares - 2 * between)


def _pairs(noisy: NoisyLabels, n_classes: int) -> IntArray:
    """Return the ordered pairs of classes; if there are many, only those with a noisy example."""
    if n_classes * (n_classes - 1) <= MANY:
        return np.array([(a, b) for a in range(n_classes) for b in range(n_classes) if a != b])
    both = np.stack([noisy.assigned, noisy.original], axis=1)
    return np.unique(both[noisy.is_noisy], axis=0)


def _rows(noisy: NoisyLabels, pairs: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Return pair, example and kind of every row: for each pair its noisy, then its clean
    examples.
    """
    clean = [
        np.flatnonzero(~noisy.is_noisy & (noisy.original == c)) for c in range(pairs.max() + 1)
    ]
    noisy_of: dict[tuple[int, int], list[int]] = defaultdict(list)
    for row in np.flatnonzero(noisy.is_noisy):
        noisy_of[int(noisy.assigned[row]), int(noisy.original[row])].append(int(row))
    groups = [(noisy_of[a, b], clean[a], clean[b]) for a, b in pairs.tolist()]
    sizes = np.array([[len(group) for group in kinds] for kinds in groups])
    pair, kind = (np.repeat(index.ravel(), sizes.ravel()) for index in np.indices(sizes.shape))
    example = np.concatenate([group for kinds in groups for group in kinds]).astype(np.int64)
    return pair, example, kind


def _check(noisy: NoisyLabels, n_clean: IntArray) -> None:
    if (n_clean > 0).sum() < 2:
        raise DataError(
            f"Centroids need clean examples of two classes, found {(n_clean > 0).sum()}."
        )
    has_line = (n_clean[noisy.original] > 0) & (n_clean[noisy.assigned] > 0)
    if not has_line[noisy.is_noisy].any():
        raise DataError(
            "No noisy example can be placed: its original or its assigned class has no clean "
            "example, so there is no line between them. Use data with clean examples of both."
        )


def _remarks(found: Positions, index: int) -> list[str]:
    """Return what is unusual about a pair of classes."""
    n_clean, same = found.n_clean[index], found.coincide[index]
    if (n_clean == 0).any():
        return ["a class without clean examples has no centroid, so there is no line"]
    value = found.separability[index]
    weak = (value <= found.by_chance[index]) & ~same
    sentences = {
        "no noisy example": found.n_noisy[index] == 0,
        "a class has one clean example, which is its own centroid": (n_clean == 1).any(),
        f"the centroids coincide at {_list(same)}": same.any(),
        f"without spread in the classes at {_list(np.isnan(value))}": np.isnan(value).any(),
        f"no further apart than by chance at {_list(weak)}": weak.any(),
    }
    return [sentence for sentence, holds in sentences.items() if holds]


def _list(which: BoolArray) -> str:
    return "layer " + ", ".join(map(str, np.flatnonzero(which)))
