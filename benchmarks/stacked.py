"""Models trained as one beside the same models one by one: the same loop, the same data."""

import multiprocessing
import time
from collections.abc import Sequence

import numpy as np
import torch

from benchmarks.harness import Measured, clock, middle, side_by_side
from benchmarks.samples import questions
from memloc.data.encode import Encoded
from memloc.models.device import suitable_threads
from memloc.models.load import load_model
from memloc.models.stack import Stack
from memloc.models.stacked import together
from memloc.protocol import FineTuneSettings, preset
from memloc.records import FloatArray, IntArray
from memloc.training.loop import learning_groups, logits_of, one_objective, train_epoch

MODEL, WIDTH, VOCABULARY = "tiny-opt", 64, 500
LABELS = [str(label) for label in range(6)]


def measure(members: int, updates: int, repeats: int) -> Measured:
    """Seconds of so many models as one and one by one, in batches of 8; and of other sizes."""
    found = {size: _compared(members, size, updates, repeats) for size in (8, 16)}
    few = {k: _compared(k, 8, updates, repeats)[0] for k in (2, 3, 4)}
    ratio, seconds, baseline, difference, memory = found[8]
    with suitable_threads(WIDTH) as threads:
        processes = _two_processes(members, updates) if clock() == "wall" else {}
    return Measured(
        stage="stacked",
        hidden=WIDTH,
        ratio=ratio,
        seconds=seconds,
        baseline_seconds=baseline,
        baseline="the same loop, one model after the other",
        difference=difference,
        peak_mb=memory[0],
        baseline_peak_mb=memory[1],
        threads=threads,
        details={
            "model": MODEL,
            "members": members,
            "updates": updates,
            "ratio_in_batches_of_16": found[16][0],
            "ratio_by_members": {str(k): r for k, r in few.items()},
            "ratio_with_texts_of_their_own": _compared(members, 8, updates, repeats, own=True)[0],
            **processes,
            "difference_is": "largest difference of the mean losses of an epoch",
        },
    )


def _compared(
    members: int, size: int, updates: int, repeats: int, *, own: bool = False
) -> tuple[float, float, float, float, tuple[float, float]]:
    """Ratio, seconds of both, difference of the losses and memory of both."""
    encoded, labels = _data(size * updates)
    settings = preset("paper").finetune.replace(
        {"learning_rate": 1e-3, "epochs": 1, "batch_size": size}
    )
    seeds = range(members) if own else [0] * members
    models = _models(members)
    with suitable_threads(WIDTH):
        mine, plain = side_by_side(
            lambda: _train([m.copied() for m in models], encoded, labels, settings, seeds),
            lambda: np.concatenate(
                [
                    _train([model.copied()], encoded, labels, settings, [seed])
                    for model, seed in zip(models, seeds, strict=True)
                ]
            ),
            repeats,
        )
    return (
        middle([p[0] / m[0] for m, p in zip(mine, plain, strict=True)]),
        middle([m[0] for m in mine]),
        middle([p[0] for p in plain]),
        float(np.abs(mine[0][2] - plain[0][2]).max()),
        (max(m[1] for m in mine), max(p[1] for p in plain)),
    )


def _data(examples: int) -> tuple[Encoded, IntArray]:
    encoded, labels = questions(examples)
    encoded.tokens[:] = encoded.tokens % VOCABULARY
    return encoded, labels


def _models(members: int) -> list[Stack]:
    return [load_model(MODEL, LABELS, seed=seed).stack for seed in range(members)]


def _train(
    models: Sequence[Stack],
    encoded: Encoded,
    labels: IntArray,
    settings: FineTuneSettings,
    seeds: Sequence[int],
) -> FloatArray:
    """One epoch; the mean losses."""
    stack = together(models)
    with one_objective(
        stack,
        learning_groups(stack, embeddings=False),
        name="bench",
        logits=logits_of(stack, encoded, settings),
        labels=torch.from_numpy(labels).expand(len(models), -1),
        lengths=encoded.lengths,
        settings=settings,
    ) as objective:
        return train_epoch([objective], seeds, 1, lambda _: None)["bench"]


def _two_processes(members: int, updates: int) -> dict[str, float]:
    """Seconds of two processes that train half of the models each, and of one that trains all.

    By the clock on the wall only: two cores take the processor's time twice.
    """
    context = multiprocessing.get_context("fork")
    seconds = []
    for processes in (2, 1):
        began = time.perf_counter()
        each = [
            context.Process(target=_alone, args=(members // processes, updates))
            for _ in range(processes)
        ]
        for process in each:
            process.start()
        for process in each:
            process.join()
        seconds.append(time.perf_counter() - began)
    return {
        "two_processes_of_half_seconds": seconds[0],
        "one_process_of_all_seconds": seconds[1],
    }


def _alone(members: int, updates: int) -> None:
    torch.set_num_threads(1)
    encoded, labels = _data(8 * updates)
    settings = preset("paper").finetune.replace({"learning_rate": 1e-3, "epochs": 1})
    _train(_models(members), encoded, labels, settings, [0] * members)
