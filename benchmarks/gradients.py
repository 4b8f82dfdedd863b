"""Forgetting gradients: batches beside one example at a time."""

import copy
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from benchmarks.harness import Measured, matmul_peak, middle, side_by_side
from benchmarks.samples import DEPTH, bert, questions
from memloc.arrays import FloatArray, IntArray
from memloc.data.encode import Encoded
from memloc.methods import forgetting
from memloc.methods.gradients import Gradients, post_processed
from memloc.model.device import suitable_threads, tokens_per_batch
from memloc.model.predict import to_batch
from memloc.model.stack import Stack


def measure(hidden: int, examples: int, repeats: int) -> Measured:
    """Return the seconds of both ways for layer weights from `examples` noisy and as many clean
    examples.
    """
    encoded, labels = questions(2 * examples)
    memorised, frozen = (Stack(bert(hidden, seed).eval()) for seed in (1, 2))
    with suitable_threads(hidden) as threads:
        mine, plain = side_by_side(
            lambda: _memloc(memorised, frozen, encoded, labels),
            lambda: _published(memorised, frozen, encoded, labels),
            repeats,
        )
        peak = matmul_peak(threads)
    seconds = middle([m[0] for m in mine])
    ours, theirs = mine[0][2], plain[0][2]
    # Six operations a weight and token, forward and backward, for both models.
    work = 2 * 6 * int(encoded.lengths.sum()) * DEPTH * 12 * hidden**2
    return Measured(
        stage="gradients",
        hidden=hidden,
        ratio=middle([p[0] / m[0] for m, p in zip(mine, plain, strict=True)]),
        seconds=seconds,
        baseline_seconds=middle([p[0] for p in plain]),
        baseline="one example at a time, gradients of all parameters of the model",
        difference=float((np.abs(ours - theirs) / theirs).max()),
        peak_mb=max(m[1] for m in mine),
        baseline_peak_mb=max(p[1] for p in plain),
        threads=threads,
        details={
            "noisy_examples": examples,
            "clean_examples": examples,
            "intervals": "none: interval_groups is 0, as the published way has no intervals",
            "tokens_per_batch": tokens_per_batch(hidden),
            "block_forwards": 2 * DEPTH,
            "baseline_block_forwards": 2 * DEPTH,
            "share_of_matmul_peak": work / seconds / peak,
            "difference_is": "largest relative difference of the layer weights",
        },
    )


def _memloc(memorised: Stack, frozen: Stack, encoded: Encoded, labels: IntArray) -> FloatArray:
    settings = Gradients(interval_groups=0)
    data = forgetting.LabelledTexts(encoded, labels, settings)
    noisy, clean = np.array_split(np.arange(len(labels)), 2)
    norms, yardstick = (
        forgetting.measure(stack, data, [(noisy, clean)])[0] for stack in (memorised, frozen)
    )
    return post_processed(norms["L1 difference"], yardstick["L1 difference"])


def _published(memorised: Stack, frozen: Stack, encoded: Encoded, labels: IntArray) -> FloatArray:
    weights = _norms(memorised, encoded, labels) / _norms(frozen, encoded, labels)
    return np.asarray(weights / weights.sum())


def _norms(stack: Stack, encoded: Encoded, labels: IntArray) -> FloatArray:
    noisy, clean = (
        _mean_gradients(stack, encoded, labels, rows)
        for rows in np.array_split(np.arange(len(labels)), 2)
    )
    names = {id(p): name for name, p in stack.model.named_parameters()}
    inside = [[names[id(p)] for p in block.parameters()] for block in stack.blocks]
    return np.array(
        [sum(float((noisy[n] - clean[n]).abs().sum()) for n in block) for block in inside]
    )


def _mean_gradients(
    stack: Stack, encoded: Encoded, labels: IntArray, rows: IntArray
) -> dict[str, Any]:
    model = stack.model
    total: dict[str, Any] = {}
    for row in rows:
        model.zero_grad()
        logits = stack.logits(to_batch(encoded, np.array([row]), stack.device))
        (-cross_entropy(logits, torch.tensor([labels[row]]))).backward()  # type: ignore[no-untyped-call]
        for name, parameter in model.named_parameters():
            if name in total:
                total[name] += parameter.grad
            else:
                total[name] = copy.deepcopy(parameter.grad)
    model.zero_grad()
    return {name: value / len(rows) for name, value in total.items()}
