"""Centroids of all pairs and layers from one pass beside a pass for each pair and layer."""

import numpy as np

from benchmarks.harness import Measured, matmul_peak, middle, side_by_side
from benchmarks.hidden import one_by_one
from benchmarks.samples import DEPTH, bert, questions
from memloc.arrays import FloatArray, IntArray, Vectors
from memloc.data.task import NoisyLabels
from memloc.methods.positions import Positions, positions
from memloc.model.device import suitable_threads
from memloc.model.predict import vectors_of
from memloc.model.stack import Stack
from memloc.seeds import generator

CLASSES = 6
PASSES = 2 * DEPTH * (CLASSES - 1)
"""Over the clean examples: each is in 2(C - 1) ordered pairs, and each layer has its own pass."""


def measure(hidden: int, examples: int, repeats: int) -> Measured:
    """Return the seconds of both ways; the plain way is timed for one pass over the data and
    multiplied.
    """
    encoded, original = questions(examples)
    noisy = _noisy(original)
    model = bert(hidden).eval()
    stack = Stack(model)
    n_clean = int((~noisy.is_noisy).sum())
    with suitable_threads(hidden) as threads:
        # The first calls of a process are slow.
        one_by_one(model, encoded, range(5))
        vectors_of(stack, questions(5)[0])
        mine, plain = side_by_side(
            lambda: positions(vectors_of(stack, encoded), noisy, CLASSES),
            lambda: one_by_one(model, encoded, range(examples)),
            repeats,
        )
        peak = matmul_peak(threads)
    # Clean examples pass 24(C - 1) times; noisy ones, each in one pair, once a layer.
    times = (PASSES * n_clean + DEPTH * (examples - n_clean)) / examples
    seconds = middle([m[0] for m in mine])
    work = 2 * int(encoded.lengths.sum()) * DEPTH * 12 * hidden**2
    return Measured(
        stage="centroids",
        hidden=hidden,
        ratio=times * middle([p[0] / m[0] for m, p in zip(mine, plain, strict=True)]),
        seconds=seconds,
        baseline_seconds=times * middle([p[0] for p in plain]),
        baseline="one example at a time, all of them again for each ordered pair and layer",
        difference=float(np.nanmax(np.abs(mine[0][2].position - _direct(plain[0][2], mine[0][2])))),
        peak_mb=max(m[1] for m in mine),
        baseline_peak_mb=max(p[1] for p in plain),
        threads=threads,
        details={
            "examples": examples,
            "classes": CLASSES,
            "extrapolated": True,
            "timed_passes": 1,
            "passes": times,
            "share_of_matmul_peak": work / seconds / peak,
            "difference_is": "largest difference of a position",
        },
    )


def _noisy(original: IntArray) -> NoisyLabels:
    rng = generator(1, "noise")
    is_noisy = rng.random(len(original)) < 0.15
    wrong = (original + rng.integers(1, CLASSES, len(original))) % CLASSES
    return NoisyLabels(original, np.where(is_noisy, wrong, original), is_noisy)


def _direct(vectors: Vectors, found: Positions) -> FloatArray:
    """Return the same positions, pair by pair and layer by layer, from vectors computed one by
    one.
    """
    place = np.full(found.position.shape, np.nan)
    for index in range(len(found.pairs)):
        rows = np.flatnonzero(found.pair == index)
        kinds, h = found.case[rows], vectors[found.example[rows]].astype(float)
        # Layer 0 of a model that reads the first token is the same for all texts.
        for layer in range(1, vectors.shape[1]):
            a, b = h[kinds == 1, layer].mean(0), h[kinds == 2, layer].mean(0)
            place[rows, layer] = (h[:, layer] - a) @ (b - a) / ((b - a) @ (b - a))
    return place
