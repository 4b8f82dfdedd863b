"""Layer retraining: states below a window kept, beside whole passes with gradients everywhere."""

import copy
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from transformers import get_linear_schedule_with_warmup

from benchmarks.harness import Measured, matmul_peak, middle, side_by_side
from benchmarks.samples import DEPTH, bert, questions
from memloc.arrays import BoolArray, IntArray
from memloc.data.encode import Encoded, random_batches
from memloc.methods.protocol import preset
from memloc.methods.retrainer import Setup, retrain_windows
from memloc.model.device import suitable_threads
from memloc.model.load import Classifier
from memloc.model.parts import find_parts
from memloc.model.predict import evaluating, to_batch
from memloc.model.stack import Stack
from memloc.seeds import generator

SAMPLE = [range(start, stop) for start in (0, 4, 8) for stop in range(start + 1, DEPTH + 1)]
"""All windows of three first layers; those that begin at the same layer share a pass."""
SEED = 42
BATCH_SIZE = 8


def measure(hidden: int, examples: int, epochs: int, repeats: int) -> Measured:
    """Return the seconds of both ways for a sample of windows, and how many predictions differ."""
    encoded, labels = questions(examples)
    setup = _setup(hidden, encoded, labels, epochs)
    with suitable_threads(hidden) as threads:
        mine, plain = side_by_side(
            lambda: _memloc(setup), lambda: _published(setup, encoded), repeats
        )
        peak = matmul_peak(threads)
    seconds = middle([m[0] for m in mine])
    passes = _passes(setup)
    # Two operations a weight, token and pass.
    work = 2 * passes * float(setup.texts.lengths.mean()) * 12 * hidden**2
    return Measured(
        stage="retraining",
        hidden=hidden,
        ratio=middle([p[0] / m[0] for m, p in zip(mine, plain, strict=True)]),
        seconds=seconds,
        baseline_seconds=middle([p[0] for p in plain]),
        baseline="gradients of all layers, no states kept, full evaluation after each epoch",
        difference=float((mine[0][2] != plain[0][2]).mean()),
        peak_mb=max(m[1] for m in mine),
        baseline_peak_mb=max(p[1] for p in plain),
        threads=threads,
        details={
            "examples": examples,
            "epochs": epochs,
            "windows": [f"{w.start + 1}-{w.stop}" for w in SAMPLE],
            "block_passes": passes,
            "baseline_block_passes": _plain_passes(setup),
            "share_of_matmul_peak": work / seconds / peak,
            "difference_is": "share of predictions (examples × windows) that differ",
        },
    )


def _passes(setup: Setup) -> int:
    """Return the blocks applied to an example: forward, back to the window, and for the window's
    weights.
    """
    trained = sum(2 * (DEPTH - w.start) + len(w) for w in SAMPLE)
    tested = sum(DEPTH - w.start for w in SAMPLE)
    below = max(w.start for w in SAMPLE) * len(setup.texts.lengths)
    n_tested = len(setup.noisy) + len(setup.held_out)
    return setup.settings.epochs * len(setup.train) * trained + n_tested * tested + below


def _plain_passes(setup: Setup) -> int:
    a_window = setup.settings.epochs * DEPTH * (3 * len(setup.train) + len(setup.texts.lengths))
    return len(SAMPLE) * a_window


def _setup(hidden: int, encoded: Encoded, labels: IntArray, epochs: int) -> Setup:
    examples = len(labels)
    final, pretrained = (Classifier("", bert(hidden, seed).eval(), None) for seed in (1, 2))
    order = generator(SEED, "roles").permutation(examples)
    noisy, held_out, train = np.split(order, [examples * 15 // 100, examples * 30 // 100])
    rates = {"learning_rate": 3e-4, "batch_size": BATCH_SIZE, "epochs": epochs}
    folder = Path(tempfile.gettempdir())
    return Setup(
        final=final,
        pretrained=[[p.detach() for p in b.parameters()] for b in pretrained.stack.blocks],
        still=(),
        texts=encoded,
        labels=labels,
        train=np.sort(train),
        held_out=held_out,
        noisy=noisy,
        settings=preset("paper").finetune.replace(rates),
        seed=SEED,
        folder=folder,
        key="",
    )


def _memloc(setup: Setup) -> BoolArray:
    found = retrain_windows(setup, SAMPLE)
    return np.stack([np.concatenate([found[w].noisy_wrong, found[w].clean_wrong]) for w in SAMPLE])


def _published(setup: Setup, encoded: Encoded) -> BoolArray:
    return np.stack([_retrained(setup, window, encoded) for window in SAMPLE])


def _retrained(setup: Setup, window: range, encoded: Encoded) -> BoolArray:
    stack = Stack(copy.deepcopy(setup.final.model))
    with torch.no_grad():
        for i in window:
            block = stack.blocks[i].parameters()
            for parameter, before in zip(block, setup.pretrained[i], strict=True):
                parameter.copy_(before)
    named = dict(stack.model.named_parameters())
    learning = [named[n] for n in find_parts(setup.final.stack).after]
    learning += [p for i in window for p in stack.blocks[i].parameters()]
    settings = setup.settings
    optimiser = torch.optim.AdamW(
        learning, lr=settings.learning_rate, weight_decay=settings.weight_decay
    )
    total = settings.epochs * -(-len(setup.train) // BATCH_SIZE)
    warmup = int(settings.warmup * total)
    rate = get_linear_schedule_with_warmup(optimiser, warmup, total)
    for epoch in range(1, settings.epochs + 1):
        rng = generator(SEED, "order", "first", epoch)
        for picked in random_batches(len(setup.train), BATCH_SIZE, rng):
            rows = setup.train[picked]
            stack.model.zero_grad()
            logits = stack.logits(to_batch(encoded, rows, stack.device))
            labels = torch.from_numpy(setup.labels[rows])
            cross_entropy(logits, labels).backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(learning, settings.clip)
            optimiser.step()
            rate.step()
        wrong = [
            _evaluate(stack, encoded, rows, setup.labels)
            for rows in (setup.noisy, setup.held_out, setup.train)
        ]
    return np.concatenate(wrong[:2])


def _evaluate(stack: Stack, encoded: Encoded, rows: IntArray, labels: IntArray) -> BoolArray:
    wrong = []
    with evaluating(stack.model):
        for start in range(0, len(rows), BATCH_SIZE):
            some = rows[start : start + BATCH_SIZE]
            predicted = stack.logits(to_batch(encoded, some, stack.device)).argmax(-1)
            wrong.append(predicted.numpy() != labels[some])
    return np.concatenate(wrong)
