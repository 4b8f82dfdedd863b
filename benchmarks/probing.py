"""Probes of thirteen layers and five seeds beside one probe at a time."""

from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.harness import Measured, matmul_peak, middle, side_by_side
from memloc.arrays import FloatArray, IntArray, Vectors
from memloc.methods.probes import (
    Target,
    epoch_dropout,
    f1_scores,
    initial_weights,
    probe_order,
    split_rows,
    train_probes,
)
from memloc.methods.probing import Probing
from memloc.model.device import suitable_threads
from memloc.protocol import ProbeSettings
from memloc.seeds import generator

SEED = 1
LAYERS = 13


def measure(hidden: int, examples: int, epochs: int, repeats: int) -> Measured:
    """Return the seconds of both ways for the same vectors, splits, batches, dropout and first
    weights.

    Fewer epochs than the protocol's, in both, and validation after the first quarter as there;
    the time grows with their number.
    """
    vectors, target = _vectors(hidden, examples)
    changes = {"epochs": epochs, "first_epoch": epochs // 4}
    settings = Probing().replace(changes)
    with suitable_threads(hidden) as threads:
        mine, plain = side_by_side(
            lambda: train_probes(vectors, {"noise": target}, settings)["noise"].f1,
            lambda: _one_by_one(vectors, target, settings),
            repeats,
        )
        peak = matmul_peak(threads)
    seconds = middle([m[0] for m in mine])
    # Four operations a weight, example and epoch: forward, and the gradient of the weights.
    work = 4 * LAYERS * len(settings.seeds) * 0.7 * examples * epochs * hidden * settings.hidden
    return Measured(
        stage="probing",
        hidden=hidden,
        ratio=middle([p[0] / m[0] for m, p in zip(mine, plain, strict=True)]),
        seconds=seconds,
        baseline_seconds=middle([p[0] for p in plain]),
        baseline="nn.Sequential and AdamW, one probe at a time",
        difference=float(np.abs(mine[0][2].mean(1) - plain[0][2].mean(1)).max()),
        peak_mb=max(m[1] for m in mine),
        baseline_peak_mb=max(p[1] for p in plain),
        threads=threads,
        details={
            "examples": examples,
            "probes": LAYERS * len(settings.seeds),
            "epochs": epochs,
            "epochs_of_the_protocol": Probing().epochs,
            "share_of_matmul_peak": work / seconds / peak,
            "difference_is": "largest difference of a layer's mean F1",
        },
    )


def _vectors(hidden: int, n: int) -> tuple[Vectors, Target]:
    """Return random vectors in which noise becomes more visible layer by layer."""
    rng = generator(SEED, "vectors")
    labels = (rng.random(n) < 0.15).astype(np.int64)
    vectors = rng.normal(size=(n, LAYERS, hidden)).astype(np.float32)
    vectors[:, :, 0] += 0.3 * np.arange(LAYERS) * labels[:, None]
    return vectors, Target(labels, 2, (0.33, 0.67), f1_of=1)


def _one_by_one(vectors: Vectors, target: Target, settings: ProbeSettings) -> FloatArray:
    f1 = [
        [_probe(vectors[:, layer], target, settings, seed) for seed in settings.seeds]
        for layer in range(LAYERS)
    ]
    return np.array(f1)


def _probe(vectors: Any, target: Target, settings: ProbeSettings, seed: int) -> float:
    train, validation, test = split_rows(len(vectors), settings.split, seed)
    model = _model(vectors.shape[1], settings, seed)
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay
    )
    loss = nn.CrossEntropyLoss(weight=torch.tensor(target.class_weights))
    x, y = torch.tensor(vectors), torch.tensor(target.labels)
    best, kept = 0.0, None  # all 0: the last epoch
    for epoch in range(1, settings.epochs + 1):
        order = train[probe_order(len(train), seed, epoch)]
        # Drawn beforehand, so that both ways drop the same inputs.
        factors = torch.from_numpy(
            epoch_dropout(len(train), x.shape[1], settings.dropout, seed, epoch)
        )
        for start in range(0, len(order), settings.batch_size):
            rows = order[start : start + settings.batch_size]
            optimiser.zero_grad()
            dropped = x[rows] * factors[start : start + len(rows)]
            loss(model(dropped), y[rows]).backward()
            optimiser.step()
        if epoch > settings.first_epoch:
            score = _f1(model, x, validation, target)
            if score > best:
                best, kept = score, _f1(model, x, test, target)
    return _f1(model, x, test, target) if kept is None else kept


def _model(width: int, settings: ProbeSettings, seed: int) -> nn.Sequential:
    model = nn.Sequential(
        nn.Linear(width, settings.hidden), nn.GELU(), nn.Linear(settings.hidden, 2)
    )
    drawn = initial_weights([width, settings.hidden, 2], seed)
    with torch.no_grad():
        for own, first in zip(model.parameters(), drawn, strict=True):
            own.copy_(first.view_as(own))
    return model


@torch.no_grad()
def _f1(model: nn.Sequential, x: torch.Tensor, rows: IntArray, target: Target) -> float:
    return float(f1_scores(target.labels[rows], model(x[rows]).argmax(1).numpy(), target))
