"""Exact layer shares: their time beside swapping."""

from collections.abc import Sequence

import numpy as np

from benchmarks.harness import Measured, middle, side_by_side
from benchmarks.samples import DEPTH, questions
from benchmarks.swapping import _model
from memloc.arrays import FloatArray
from memloc.data.encode import Encoded
from memloc.methods.mixtures import Mixtures
from memloc.methods.shares import Shares
from memloc.methods.swapping import window_subsets
from memloc.model.device import suitable_threads
from memloc.model.stack import Stack


def measure(hidden: int, examples: int, repeats: int) -> Measured:
    """Return the seconds of all subsets and of all windows on the same examples."""
    encoded, _ = questions(examples)
    stacks = _model(hidden, seed=1), _model(hidden, seed=2)
    windows = window_subsets(DEPTH)
    with suitable_threads(hidden) as threads:
        every, some = side_by_side(
            lambda: _margins(stacks, range(2**DEPTH), encoded),
            lambda: _margins(stacks, windows, encoded),
            repeats,
        )
    difference = np.abs(every[0][2][:, windows] - some[0][2]).max()
    return Measured(
        stage="shares",
        hidden=hidden,
        ratio=middle([s[0] / e[0] for e, s in zip(every, some, strict=True)]),
        seconds=middle([e[0] for e in every]),
        baseline_seconds=middle([s[0] for s in some]),
        baseline="swapping all windows of the same examples",
        difference=float(difference),
        peak_mb=max(e[1] for e in every),
        baseline_peak_mb=max(s[1] for s in some),
        threads=threads,
        details={
            "examples": examples,
            "times_swapping": middle([e[0] / s[0] for e, s in zip(every, some, strict=True)]),
            "layers_per_text": Shares().guess(DEPTH).layers,
            "difference_is": "largest of the margins that both compute",
        },
    )


def _margins(stacks: tuple[Stack, Stack], subsets: Sequence[int], encoded: Encoded) -> FloatArray:
    """Return the margins (texts, subsets) of the first class."""
    mixtures = Mixtures(*stacks)
    found = np.zeros((len(encoded), len(subsets)))
    labels = np.zeros(len(encoded), dtype=np.int64)
    for rows in mixtures.batches(encoded, np.arange(len(encoded))):
        found[rows] = mixtures.values(encoded, rows, labels[rows], subsets)[1].numpy()
    return found
