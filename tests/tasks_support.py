"""Small tasks that a tiny random model can learn by heart, and settings with which it does."""

from dataclasses import replace
from typing import Any

import numpy as np

from memloc.data.perturb import noisy_task
from memloc.data.task import Examples, Task
from memloc.protocol import Protocol, preset
from support import WORDS


def make_examples(n: int, n_classes: int, seed: int) -> Examples:
    rng = np.random.default_rng(seed)
    texts = [
        " ".join(rng.choice(WORDS[:-1], size=int(rng.integers(3, 9)), replace=False))
        for _ in range(n)
    ]
    return Examples(tuple((text,) for text in texts), np.arange(n, dtype=np.int64) % n_classes)


def make_task(n: int = 28, n_classes: int = 2, name: str = "words") -> Task:
    labels = tuple(f"label {i}" for i in range(n_classes))
    train, validation, test = (make_examples(size, n_classes, size) for size in (n, 9, 11))
    return Task(name, "words", labels, train, validation, test, "made up")


FAST = {
    "finetune.epochs": 12,
    "finetune.learning_rate": 1e-2,
    "finetune.batch_size": 4,
    "finetune.weight_decay": 0.0,
}

QUICK = {
    "probing.epochs": 3,
    "probing.first_epoch": 0,
    "label_probes.epochs": 3,
    "label_probes.first_epoch": 0,
    "label_probes.seeds": (0, 1),
    "retraining.epochs": 1,
    "generalisation.models": 3,
    "generalisation.epochs": 1,
    "generalisation.learning_rate": 1e-2,
}
"""Settings of methods that are fast enough for tests."""


def fast_protocol(**changes: object) -> Protocol:
    dotted = {name.replace("__", "."): value for name, value in changes.items()}
    return preset("paper").replace({**FAST, **dotted})


def make_recipe(
    model: object, task: Task, seed: int, protocol: Protocol, noisy: Any = None, **more: Any
) -> Any:
    """On the CPU and, where no labels are given, with the noise that the protocol says."""
    from memloc.run.recipe import Recipe

    task = replace(task, noise=noisy) if noisy else noisy_task(task, protocol.noise)
    return Recipe(str(model), task, seed, protocol, **{"device": "cpu", **more})
