"""Runs whose answer is known, to calibrate verdicts: plants, plants in all layers, and nulls.

They are made the cheapest way that memorises. References are shared: each is an embedded model
fine-tuned on original labels. A **plant** is a reference of which some layers then learn the
noisy labels, so nothing else can hold them; another reference is swapped into it. A plant that is
**spread** has its noisy labels dealt out to all layers, and each layer learns its own. A **null**
is a reference into which another one is swapped; which examples it calls noisy is drawn at
random. Runs that are there are kept, so that the work goes on where it was left.
"""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path

import numpy as np
import torch

from memloc import paths
from memloc.data.perturb import add_noise
from memloc.data.sources import load_task
from memloc.identity import hash_loaded
from memloc.models.load import Classifier, load_checkpoint, load_model
from memloc.protocol import preset
from memloc.records import Examples, IntArray, NoisyLabels, Task
from memloc.run import Accuracies, PlantRecord, Run, RunRecord, TaskRecord, begin
from memloc.seeds import generator
from memloc.stats.windows import every_window
from memloc.training.checkpoints import save_checkpoint
from memloc.training.gathering import merged
from memloc.training.loop import Objective, learning, learning_groups, logits_of, train_epoch
from memloc.training.predict import encode_for, predict

PAIRS = (
    ("tiny-gpt-neox", "tiny-topic"),
    ("tiny-gpt-neo", "tiny-sentiment"),
    ("tiny-opt", "tiny-topic"),
    ("tiny-bert", "tiny-politeness"),
)
"""Models and tasks; two tasks have two classes, and OPT has dropout."""
EXAMPLES, RATE = 144, 0.21
"""The shortest texts of each class, and the share that is noisy: 30 examples."""
DRAWS = 3
"""Draws of noise, in turn."""
ORDERS, HEADS = 6, 3
"""References that differ by the order of the data, and by the initial head as well."""
NULLS, SPREAD = 28, 5
"""Of each model and task."""
WIDTHS = (1, 2, 4)
TWICE = 2
"""Models that each window is planted in."""
DEPTH = 12
EPOCHS, TRIES = 30, 4
"""Epochs of a training at most; trainings of a plant at most, each with twice the rate."""


@dataclass(frozen=True)
class Suite:
    """A model and a task, and where what is made of them is kept."""

    model: str
    name: str
    out: Path

    @property
    def folder(self) -> Path:
        """One for each model and task."""
        return self.out / self.name / self.model

    @cached_property
    def task(self) -> Task:
        """The shortest examples of each class, as every text costs a pass for each subset."""
        task = load_task(self.name)
        labels = task.train.labels
        words = np.array([sum(len(p.split()) for p in parts) for parts in task.train.parts])
        by_class = [np.flatnonzero(labels == c) for c in range(len(task.label_names))]
        per_class = EXAMPLES // len(by_class)
        chosen = [rows[np.argsort(words[rows], kind="stable")[:per_class]] for rows in by_class]
        rows = np.sort(np.concatenate(chosen))
        parts = tuple(task.train.parts[row] for row in rows)
        return replace(task, train=Examples(parts, labels[rows]))

    def noise(self, draw: int) -> NoisyLabels:
        """Labels of which 30 are wrong."""
        return add_noise(self.task, RATE, draw).labels

    def start(self, head: int = 1) -> Classifier:
        """The pre-trained model with a new head."""
        return load_model(self.model, self.task.label_names, seed=head)

    def reference(self, number: int) -> Path:
        """Weights that learnt the original labels; from ORDERS on, with a head of their own."""
        folder = self.folder / f"reference-{number}"
        if not folder.is_dir():
            model = self.start(1 if number < ORDERS else 1 + number)
            labels = self.task.train.labels
            accuracy = fit(model, self.task, labels, range(-1, DEPTH), 6e-4, number)
            save_checkpoint(folder, model, {"accuracy": accuracy})
        return folder

    def frozen(self, labels: IntArray, name: str) -> Path:
        """Weights of which only what follows the layers learnt these labels."""
        folder = self.folder / f"frozen-{name}"
        if not folder.is_dir():
            model = self.start()
            accuracy = fit(model, self.task, labels, range(-1, 0), 6e-4, 0)
            save_checkpoint(folder, model, {"accuracy": accuracy})
        return folder


def fit(
    model: Classifier,
    task: Task,
    labels: IntArray,
    layers: Sequence[int],
    rate: float,
    order: int,
) -> float:
    """Train these layers (from 0; -1: what follows them) until every label is predicted."""
    settings = preset("demo").finetune.replace({"epochs": EPOCHS, "learning_rate": rate})
    texts = encode_for(model, task.train, model.max_tokens)
    every = learning_groups(model.stack, embeddings=False)
    groups = [every[layer + 1] for layer in layers]
    compute, targets = logits_of(model.stack, texts), torch.from_numpy(labels)
    accuracy = 0.0
    with learning(model.model, groups) as tensors:
        learns = merged(tensors), merged(groups), settings
        objective = Objective("noisy", compute, targets, texts.lengths, *learns)
        for epoch in range(1, EPOCHS + 1):
            train_epoch([objective], order, epoch, lambda _: None)
            accuracy = float((predict(model.stack, texts).argmax(1) == labels).mean())
            if accuracy == 1:
                break
    return accuracy


def rate_of(model: str, window: range) -> float:
    """Higher layers need a higher rate, and so do fewer of them, and so does BERT."""
    first = 6e-3 if model == "tiny-bert" else 2e-3
    return float(first * (1 + window.start / DEPTH) / len(window) ** 0.5)


@dataclass(frozen=True)
class Known:
    """A run whose answer is known."""

    suite: Suite
    kind: str
    """plant, spread or null."""
    window: range
    number: int
    on: int
    """The reference that it was made of."""
    swapped: int
    """The reference that is swapped into it."""

    @property
    def folder(self) -> Path:
        """Where it is."""
        layers = f"{self.window.start + 1}-{self.window.stop}"
        return self.suite.folder / f"{self.kind}-{layers}-{self.number}"

    @property
    def noisy(self) -> NoisyLabels:
        """A null's labels are the original ones; which it calls noisy is drawn for it alone."""
        if self.kind != "null":
            return self.suite.noise(1 + self.number % DRAWS)
        drawn = self.suite.noise(1000 + self.number)
        return NoisyLabels(drawn.original, drawn.original, drawn.is_noisy)

    def make(self) -> Run | None:
        """The run, trained where it is not there yet; None where it did not memorise."""
        if (self.folder / paths.RUN).is_file():
            run = Run.open(self.folder)
            return run if run.record.final and run.record.final.training == 1 else None
        reference = self.suite.reference(self.swapped)
        made = self.suite.reference(self.on)
        seconds, attempts, accuracy = time.process_time(), 1, 1.0
        if self.kind != "null":
            made = paths.checkpoint(self.folder, "trained")
            accuracy, attempts = self._train(made)
        name = "original" if self.kind == "null" else str(1 + self.number % DRAWS)
        frozen = self.suite.frozen(self.noisy.assigned, name)
        places = {"final": made, "memorised": made, "reference": reference, "frozen": frozen}
        for weights, place in places.items():
            link = paths.checkpoint(self.folder, weights)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to(place.resolve(), target_is_directory=True)
        seconds = time.process_time() - seconds
        facts = {"on": self.on, "swapped": self.swapped, "kind": self.kind}
        facts |= {"seconds": round(seconds, 1), "tries": attempts}
        run = begin(self.folder, self.suite.task, self.noisy, self._record(accuracy, facts))
        return run if accuracy == 1 else None

    def _train(self, place: Path) -> tuple[float, int]:
        accuracy, attempts = 0.0, 0
        while accuracy < 1 and attempts < TRIES:
            model = load_checkpoint(self.suite.reference(self.on))
            factor, attempts = 2**attempts, attempts + 1
            if self.kind == "plant":
                rate, order = factor * rate_of(self.suite.model, self.window), 100 + self.number
                labels = self.noisy.assigned
                accuracy = fit(model, self.suite.task, labels, self.window, rate, order)
            else:
                accuracy = self._spread(model, factor)
        save_checkpoint(place, model, {"accuracy": accuracy})
        return accuracy, attempts

    def _spread(self, model: Classifier, factor: float) -> float:
        """Deal the noisy labels out to the layers: each learns its own and keeps the others'."""
        noisy, rng = self.noisy, generator(self.number, "spread")
        rows = rng.permutation(np.flatnonzero(noisy.is_noisy))
        labels, accuracy = noisy.original.copy(), 0.0
        for layer in rng.permutation(DEPTH):
            own = rows[layer::DEPTH]
            labels[own] = noisy.assigned[own]
            window = range(int(layer), int(layer) + 1)
            rate = factor * rate_of(self.suite.model, window)
            accuracy = fit(model, self.suite.task, labels, window, rate, 200 + int(layer))
        return accuracy

    def _record(self, accuracy: float, facts: dict[str, object]) -> RunRecord:
        start = self.suite.start()
        return RunRecord(
            model=self.suite.model,
            weights_hash=hash_loaded(start),
            depth=start.stack.depth,
            width=start.stack.width,
            seed=self.number,
            task=TaskRecord.of(self.suite.task, self.noisy),
            settings=preset("demo").for_run(),
            plant=PlantRecord(
                first=self.window.start + 1,
                last=self.window.stop,
                null=self.kind == "null",
                auxiliary="none",
                settings=facts,
            ),
            command="python -m benchmarks.verdicts",
            final=Accuracies(noisy=accuracy, clean=accuracy, training=accuracy),
            reference=1.0,
        )


def every_run(out: Path) -> list[Known]:
    """All runs, the kinds in turn, so that any first part of them has some of each."""
    suites = [Suite(model, task, out) for model, task in PAIRS]
    kinds = [list(_plants(suites)), list(_spread(suites)), list(_nulls(suites))]
    places = [((i + 0.5) / len(kind), run) for kind in kinds for i, run in enumerate(kind)]
    return [run for _, run in sorted(places, key=lambda place: place[0])]


def _plants(suites: Sequence[Suite]) -> Iterator[Known]:
    windows = [window for width in WIDTHS for window in every_window(DEPTH, width)]
    order = generator(0, "verdicts", "plants").permutation(len(windows) * TWICE)
    for number in order:
        turn, place = divmod(int(number), len(windows))
        suite = suites[(place + turn * 2 + turn * place // 4) % len(suites)]
        on = int(number) % ORDERS
        yield Known(suite, "plant", windows[place], int(number), on, (on + 1 + turn) % ORDERS)


def _spread(suites: Sequence[Suite]) -> Iterator[Known]:
    for number in range(SPREAD):
        for suite in suites:
            yield Known(suite, "spread", range(DEPTH), number, number, (number + 1) % ORDERS)


def _nulls(suites: Sequence[Suite]) -> Iterator[Known]:
    pairs = list(combinations(range(ORDERS + HEADS), 2))
    pairs.sort(key=lambda pair: pair[1] >= ORDERS)  # first those with the same initial head
    for number, (one, other) in enumerate(pairs[:NULLS]):
        for suite in suites:
            on, swapped = (one, other) if number % 2 else (other, one)
            yield Known(suite, "null", range(DEPTH), number, on, swapped)


def make_all(out: Path) -> None:
    """Train whatever is missing, and say how it went, one line for each run."""
    for known in every_run(out):
        began = time.process_time()
        there = known.make() is not None
        said = {"run": str(known.folder.relative_to(out)), "memorised": there}
        seconds = round(time.process_time() - began, 1)
        print(json.dumps({**said, "seconds": seconds}), flush=True)
