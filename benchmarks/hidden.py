"""Hidden states beside one example at a time: the readout vector of every layer."""

from typing import Any

import numpy as np
import torch

from benchmarks.harness import Measured, matmul_peak, middle, side_by_side
from benchmarks.samples import DEPTH, bert, questions
from memloc.arrays import Vectors
from memloc.data.encode import Encoded
from memloc.model.device import suitable_threads
from memloc.model.predict import vectors_of
from memloc.model.stack import Stack


def measure(hidden: int, examples: int, repeats: int) -> Measured:
    """Return the seconds of both ways for the same texts and weights, and the distance of their
    vectors.
    """
    encoded, _ = questions(examples)
    model = bert(hidden).eval()
    stack = Stack(model)
    with suitable_threads(hidden) as threads:
        # The first calls of a process are slow.
        one_by_one(model, encoded, range(5))
        vectors_of(stack, questions(5)[0])
        mine, plain = side_by_side(
            lambda: vectors_of(stack, encoded),
            lambda: one_by_one(model, encoded, range(examples)),
            repeats,
        )
        peak = matmul_peak(threads)
    seconds = middle([m[0] for m in mine])
    tokens = int(encoded.lengths.sum())
    return Measured(
        stage="hidden",
        hidden=hidden,
        ratio=middle([p[0] / m[0] for m, p in zip(mine, plain, strict=True)]),
        seconds=seconds,
        baseline_seconds=middle([p[0] for p in plain]),
        baseline="one example at a time, output_hidden_states=True",
        difference=float(np.abs(mine[0][2] - plain[0][2]).max()),
        peak_mb=max(m[1] for m in mine),
        baseline_peak_mb=max(p[1] for p in plain),
        threads=threads,
        details={
            "examples": examples,
            "block_forwards_per_example": DEPTH,
            "baseline_block_forwards_per_example": DEPTH,
            # Two operations a weight and token.
            "share_of_matmul_peak": 2 * tokens * DEPTH * 12 * hidden**2 / seconds / peak,
            "difference_is": "largest difference of a number in the vectors",
        },
    )


@torch.no_grad()
def one_by_one(model: Any, encoded: Encoded, rows: range) -> Vectors:
    """Run each text alone and keep the first token's hidden state of every layer."""
    found = []
    for row in rows:
        ids, mask = encoded.batch(np.array([row]))
        states = model(
            input_ids=torch.from_numpy(ids),
            attention_mask=torch.from_numpy(mask),
            output_hidden_states=True,
        ).hidden_states
        found.append(np.stack([state[0, 0].numpy() for state in states]))
    return np.stack(found)
