"""Models trained as one beside the same models one by one, plainly and by our own loop."""

import multiprocessing
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from transformers import get_linear_schedule_with_warmup

from benchmarks.harness import Measured, clock, middle, timed
from benchmarks.samples import questions
from memloc.arrays import FloatArray, IntArray
from memloc.data.encode import Encoded, random_batches
from memloc.engine.fit import fit_all
from memloc.engine.learner import Learner
from memloc.engine.objectives import learning_groups
from memloc.methods.protocol import preset
from memloc.model.device import suitable_threads
from memloc.model.load import Classifier, load_model
from memloc.model.predict import to_batch
from memloc.protocol import FineTuneSettings
from memloc.seeds import generator, torch_seeded

MODEL, WIDTH, VOCABULARY = "tiny-opt", 64, 500
Turn = tuple[float, float, Any]
LABELS = [str(label) for label in range(6)]


@dataclass(frozen=True)
class Turns:
    """Seconds, peak megabytes and mean losses of each turn."""

    ours: list[Turn]
    """All models as one."""
    alone: list[Turn]
    """One after the other by memloc's own loop."""
    plain: list[Turn]
    """One after the other as torch's documentation trains them, where that is measured."""

    def ratio(self, slower: list[Turn]) -> float:
        """Return the speed-up by training all models in one pass: a median over turns."""
        return middle([other[0] / mine[0] for mine, other in zip(self.ours, slower, strict=True)])


def measure(members: int, updates: int, repeats: int) -> Measured:
    """Return the seconds of several models in one pass and one by one, in batches of 8 and other
    sizes.
    """
    eight, sixteen = (_turns(members, size, updates, repeats) for size in (8, 16))
    few = {k: _turns(k, 8, updates, repeats, is_plain=False) for k in (2, 3, 4)}
    own = _turns(members, 8, updates, repeats, own=True, is_plain=False)
    with suitable_threads(WIDTH) as threads:
        processes = _two_processes(members, updates) if clock() == "wall" else {}
    return Measured(
        stage="stacked",
        hidden=WIDTH,
        ratio=eight.ratio(eight.plain),
        seconds=middle([turn[0] for turn in eight.ours]),
        baseline_seconds=middle([turn[0] for turn in eight.plain]),
        baseline="one model after the other, padded batches, torch's own AdamW and clipping",
        difference=float(np.abs(eight.ours[0][2] - eight.plain[0][2]).max()),
        peak_mb=max(turn[1] for turn in eight.ours),
        baseline_peak_mb=max(turn[1] for turn in eight.plain),
        threads=threads,
        details={
            "model": MODEL,
            "members": members,
            "updates": updates,
            "ratio_in_batches_of_16": sixteen.ratio(sixteen.plain),
            "ratio_to_our_own_loop": eight.ratio(eight.alone),
            "ratio_to_our_own_loop_in_batches_of_16": sixteen.ratio(sixteen.alone),
            "ratio_to_our_own_loop_by_members": {str(k): t.ratio(t.alone) for k, t in few.items()},
            "ratio_to_our_own_loop_with_texts_of_their_own": own.ratio(own.alone),
            **processes,
            "difference_is": "largest difference of the mean losses of an epoch",
        },
    )


def _turns(
    members: int,
    size: int,
    updates: int,
    repeats: int,
    *,
    own: bool = False,
    is_plain: bool = True,
) -> Turns:
    """Time the ways in turns, the plain one if asked; with `own`, each model has its own order."""
    encoded, labels = _data(size * updates)
    settings = preset("paper").finetune.replace(
        {"learning_rate": 1e-3, "epochs": 1, "batch_size": size}
    )
    models, seeds = _models(members), range(members) if own else [0] * members

    def one_by_one(train: Callable[..., FloatArray]) -> FloatArray:
        pairs = zip(models, seeds, strict=True)
        return np.concatenate(
            [train([m.copied()], encoded, labels, settings, [seed]) for m, seed in pairs]
        )

    ways = (
        lambda: _train([m.copied() for m in models], encoded, labels, settings, seeds),
        lambda: one_by_one(_train),
        lambda: one_by_one(_plainly),
    )
    with suitable_threads(WIDTH):
        turns = [[timed(way) for way in ways[: 3 if is_plain else 2]] for _ in range(repeats)]
    found: list[list[Turn]] = [list(each) for each in zip(*turns, strict=True)]
    return Turns(found[0], found[1], found[2] if is_plain else [])


def _data(examples: int) -> tuple[Encoded, IntArray]:
    encoded, labels = questions(examples)
    encoded.tokens[:] = encoded.tokens % VOCABULARY
    return encoded, labels


def _models(members: int) -> list[Classifier]:
    return [load_model(MODEL, LABELS, seed=seed) for seed in range(members)]


def _train(
    models: Sequence[Classifier],
    encoded: Encoded,
    labels: IntArray,
    settings: FineTuneSettings,
    seeds: Sequence[int],
) -> FloatArray:
    """Train for one epoch and return the mean losses."""
    learners = [
        Learner(str(k), partial(_same, model), labels, seed)
        for k, (model, seed) in enumerate(zip(models, seeds, strict=True))
    ]
    return np.array([one.curve[0]["loss"] for one in fit_all(learners, encoded, settings)])


def _same(model: Classifier) -> Classifier:
    return model


def _plainly(
    models: Sequence[Classifier],
    encoded: Encoded,
    labels: IntArray,
    settings: FineTuneSettings,
    seeds: Sequence[int],
) -> FloatArray:
    """Train one model for the same epoch with a plain loop."""
    (model,), (seed,) = models, seeds
    stack = model.stack
    learning = [p for group in learning_groups(stack, embeddings=False) for p in group.values()]
    stack.model.requires_grad_(False).train()
    for parameter in learning:
        parameter.requires_grad_(True)
    batches = random_batches(len(labels), settings.batch_size, generator(seed, "order", "first", 1))
    optimiser = torch.optim.AdamW(
        learning, lr=settings.learning_rate, weight_decay=settings.weight_decay
    )
    warmup = int(settings.warmup * len(batches))
    rate = get_linear_schedule_with_warmup(optimiser, warmup, len(batches))
    losses = []
    with torch_seeded(seed, "dropout", 1):
        for rows in batches:
            optimiser.zero_grad()
            logits = stack.logits(to_batch(encoded, rows, stack.device))
            loss = cross_entropy(logits, torch.from_numpy(labels[rows]))
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(learning, settings.clip)
            optimiser.step()
            rate.step()
            losses.append(float(loss.detach()))
    return np.array([np.mean(losses)])


def _two_processes(members: int, updates: int) -> dict[str, float]:
    """Return the seconds of two processes that train half of the models each, and of one that
    trains all.

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
