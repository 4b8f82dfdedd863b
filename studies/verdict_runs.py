"""Runs whose answer is known, to calibrate verdicts: plants, plants in all layers, and nulls.

They are made the cheapest way that memorises. References are shared: each is an embedded model
fine-tuned on original labels. A **plant** is a reference of which some layers then learn the
noisy labels, so nothing else can hold them; another reference is swapped into it. A plant that is
**spread** has its noisy labels dealt out to all layers, and each layer learns its own. A **null**
is a reference into which another one is swapped; which examples it calls noisy is drawn at
random. **Ordinary** runs learn 40 noisy labels with all layers at once, from the pre-trained model;
where these labels are is not known. Runs that are there are kept, so that interrupted work
continues.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from memloc.arrays import BoolArray, IntArray
from memloc.data.perturb import add_noise
from memloc.data.sources import load_task
from memloc.data.task import Examples, NoisyLabels, Task
from memloc.engine.fit import fit_all
from memloc.engine.learner import Learner, Part, Watch
from memloc.engine.passes import Trained
from memloc.methods.protocol import preset
from memloc.model.checkpoints import load_checkpoint, save_checkpoint
from memloc.model.load import Classifier, load_model
from memloc.model.parts import find_parts
from memloc.model.predict import encode_for, predict
from memloc.run.begin import begin
from memloc.run.folder import Run
from memloc.run.records import Accuracies, RunRecord, RunStatus, TaskRecord
from memloc.run.spec import PlantSpec, RunSpec, TaskSpec
from memloc.seeds import generator
from memloc.stats.windows import every_window, read_window, window_name
from memloc.store import paths

PAIRS = (
    ("tiny-gpt-neox", "tiny-topic"),
    ("tiny-gpt-neo", "tiny-sentiment"),
    ("tiny-opt", "tiny-topic"),
    ("tiny-bert", "tiny-politeness"),
)
"""Models and tasks; two tasks have two classes, and OPT has dropout."""
EXAMPLES, RATE = 144, 0.21
"""The shortest texts of each class, and the share that is noisy: 30 examples."""
ORDINARY, ORDINARY_RATE = 6, 0.28
"""Ordinary runs of each pair, and the share of their examples that is noisy: 40 of them."""
DRAWS = 3
"""Draws of noise, in turn."""
ORDERS, HEADS = 6, 3
"""References that differ by the order of the data, and by the initial head as well."""
PLANTED = 3
"""Pairs that memory is planted in: the upper layers of BERT learn too slowly for that."""
NULLS, SPREAD = 28, 7
"""Of each pair; 28 are the pairs of references with the same head, and some of the others."""
WIDTHS = (1, 2, 4)
TWICE = 2
"""Models that each window is planted in."""
DEPTH = 12
EPOCHS, LOOK, TRIES = 45, 3, 2
"""Epochs of a training at most; epochs after which it may stop; trainings of a plant at most."""


@dataclass(frozen=True)
class Suite:
    """A model and a task, and the folder for everything made from them."""

    model: str
    name: str
    out: Path

    @property
    def folder(self) -> Path:
        """Folder of this model and task."""
        return self.out / self.name / self.model

    @cached_property
    def task(self) -> Task:
        """Task with the shortest examples of each class, as every text costs a pass for each
        subset.
        """
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

    @cached_property
    def facts(self) -> dict[str, Any]:
        """Facts about the pre-trained model for a run's record."""
        start = self.start()
        sizes = {"depth": start.stack.depth, "width": start.stack.width}
        return {"model": self.model, "weights_hash": start.weights_hash, **sizes}

    def start(self, head: int = 1) -> Classifier:
        """Return the pre-trained model with a new head."""
        return load_model(self.model, self.task.label_names, seed=head)

    def reference(self, number: int) -> Path:
        """Return weights that learnt the original labels; from ORDERS on, with their own head."""
        folder = self.folder / f"reference-{number}"
        if not folder.is_dir():
            model = self.start(1 if number < ORDERS else 1 + number)
            labels = self.task.train.labels
            right = fit(model, self.task, labels, range(-1, DEPTH), 6e-4, number)
            save_checkpoint(folder, model, {"accuracy": float(right.mean())})
        return folder

    def frozen(self, labels: IntArray, name: str) -> Path:
        """Return weights in which only the parameters after the layers learnt these labels."""
        folder = self.folder / f"frozen-{name}"
        if not folder.is_dir():
            model = self.start()
            right = fit(model, self.task, labels, range(-1, 0), 6e-4, 0)
            save_checkpoint(folder, model, {"accuracy": float(right.mean())})
        return folder


def fit(
    model: Classifier,
    task: Task,
    labels: IntArray,
    layers: Sequence[int],
    rate: float,
    order: int,
) -> BoolArray:
    """Train these layers (from 0; -1: after the blocks); return which labels are predicted at the
    end.
    """
    settings = preset("demo").finetune.replace(
        {"epochs": EPOCHS, "learning_rate": rate, "warmup": 0.0, "frozen_dropout": True}
    )
    texts = encode_for(model, task.train, model.max_tokens)
    blocks = tuple(layer for layer in layers if layer >= 0)
    still = () if -1 in layers else find_parts(model.stack).after
    right = np.zeros(len(labels), dtype=bool)

    def is_done(trained: Trained) -> bool:
        nonlocal right
        if trained.curve[-1]["epoch"] % LOOK == 0:
            right = predict(trained.stack, texts).argmax(1) == labels
        return bool(right.all())

    learner = Learner("noisy", lambda: model, labels, order, (Part(None, blocks, still),))
    fit_all([learner], texts, settings, Watch(after_epoch=is_done))
    return right


def rate_of(window: range) -> float:
    """Return the learning rate: higher layers need a higher one, and so do fewer layers."""
    return float(2e-3 * (1 + window.start / DEPTH) / len(window) ** 0.5)


@dataclass(frozen=True)
class Known:
    """A run whose answer is known."""

    suite: Suite
    kind: str
    """plant, spread, null or ordinary."""
    window: range
    number: int
    on: int
    """The reference that it was made of."""
    swapped: int
    """The reference that is swapped into it."""

    @property
    def folder(self) -> Path:
        """Folder of the run."""
        return self.suite.folder / f"{self.kind}-{window_name(self.window)}-{self.number}"

    @property
    def noisy(self) -> NoisyLabels:
        """Labels of the run; a null's are the original ones, with its own random choice of noisy
        examples.
        """
        if self.kind == "ordinary":
            return add_noise(self.suite.task, ORDINARY_RATE, 50 + self.number).labels
        if self.kind != "null":
            return self.suite.noise(1 + self.number % DRAWS)
        drawn = self.suite.noise(1000 + self.number)
        return NoisyLabels(drawn.original, drawn.original, drawn.is_noisy)

    def make(self) -> Run | None:
        """Train the run if it does not exist; return None if it did not memorise."""
        if not paths.checkpoint(self.folder, "final").is_dir():
            self._make()
        run = Run.open(self.folder)
        return run if run.memorised(preset("demo").verdict.noisy_at_least) else None

    def _make(self) -> None:
        reference = self.suite.reference(self.swapped)
        made = self.suite.reference(self.on)
        right = np.ones(len(self.suite.task.train), bool)
        if self.kind != "null":
            made = paths.checkpoint(self.folder, "trained")
            right = self._train(made)
        name = "original" if self.kind == "null" else str(1 + self.number % DRAWS)
        name = f"ordinary-{self.number}" if self.kind == "ordinary" else name
        frozen = self.suite.frozen(self.noisy.assigned, name)
        task = replace(self.suite.task, noise=self.noisy)
        begin(self.folder, task, self._record(), self._status(right))
        # The final weights come last: their presence says that the run is whole.
        places = {"frozen": frozen, "reference": reference, "memorised": made, "final": made}
        for weights, place in places.items():
            link = paths.checkpoint(self.folder, weights)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to(place.resolve(), target_is_directory=True)

    def _train(self, place: Path) -> BoolArray:
        """Train until all labels are predicted, at most TRIES times, each with twice the rate."""
        for factor in (2**tried for tried in range(TRIES)):
            if self.kind == "ordinary":
                model, every = self.suite.start(), range(-1, DEPTH)
                labels, order = self.noisy.assigned, 300 + self.number
                right = fit(model, self.suite.task, labels, every, factor * 6e-4, order)
                if right.all():
                    break
                continue
            model = load_checkpoint(self.suite.reference(self.on))
            if self.kind == "plant":
                rate, order = factor * rate_of(self.window), 100 + self.number
                labels = self.noisy.assigned
                right = fit(model, self.suite.task, labels, self.window, rate, order)
            else:
                right = self._spread(model, factor)
            if right.all():
                break
        save_checkpoint(place, model, {"accuracy": float(right.mean())})
        return right

    def _spread(self, model: Classifier, factor: float) -> BoolArray:
        """Deal the noisy labels out to the layers: each learns its own and keeps the others'."""
        noisy, rng = self.noisy, generator(self.number, "spread")
        rows = rng.permutation(np.flatnonzero(noisy.is_noisy))
        labels = noisy.original.copy()
        for layer in rng.permutation(DEPTH):
            own = rows[layer::DEPTH]
            labels[own] = noisy.assigned[own]
            window = range(int(layer), int(layer) + 1)
            rate = factor * rate_of(window)
            right = fit(model, self.suite.task, labels, window, rate, 200 + int(layer))
        return right

    def _record(self) -> RunRecord:
        task = replace(self.suite.task, noise=self.noisy)
        facts, settings = dict(self.suite.facts), preset("demo").for_run()
        plant = PlantSpec(
            planted=window_name(self.window),
            null=self.kind == "null",
            auxiliary=TaskSpec(name="none"),
        )
        spec = RunSpec.of(facts.pop("model"), task, self.number, settings)
        return RunRecord(
            **facts,
            spec=spec.model_copy(update={"plant": plant}),
            task=TaskRecord.of(task),
            command="python -m studies.verdicts",
        )

    def _status(self, right: BoolArray) -> RunStatus:
        kinds = {"noisy": self.noisy.is_noisy, "clean": ~self.noisy.is_noisy}
        final = {kind: float(right[rows].mean()) for kind, rows in kinds.items()}
        return RunStatus(final=Accuracies(**final, training=float(right.mean())), reference=1.0)


def every_run(out: Path) -> list[Known]:
    """Yield all runs, the kinds in turn, so that any first part of them has some of each kind."""
    suites = [Suite(model, task, out) for model, task in PAIRS]
    kinds = [list(make(suites)) for make in (_plants, _spread, _nulls, _ordinary)]
    places = [((i + 0.5) / len(kind), run) for kind in kinds for i, run in enumerate(kind)]
    return [run for _, run in sorted(places, key=lambda place: place[0])]


def _plants(suites: Sequence[Suite]) -> Iterator[Known]:
    windows = [read_window(name) for width in WIDTHS for name in every_window(DEPTH, width)]
    order = generator(0, "verdicts", "plants").permutation(len(windows) * TWICE)
    for number in order:
        turn, place = divmod(int(number), len(windows))
        suite = suites[(place + turn) % PLANTED]
        on = int(number) % ORDERS
        yield Known(suite, "plant", windows[place], int(number), on, (on + 1 + turn) % ORDERS)


def _spread(suites: Sequence[Suite]) -> Iterator[Known]:
    """Divide the noisy labels among the layers: each layer learns its own and keeps the others'."""
    for number in range(SPREAD):
        for suite in suites[:PLANTED]:
            yield Known(
                suite, "spread", range(DEPTH), number, number % ORDERS, (number + 1) % ORDERS
            )


def _nulls(suites: Sequence[Suite]) -> Iterator[Known]:
    pairs = list(combinations(range(ORDERS + HEADS), 2))
    pairs.sort(key=lambda pair: pair[1] >= ORDERS)  # first those with the same initial head
    for number, (one, other) in enumerate(pairs[:NULLS]):
        for suite in suites:
            on, swapped = (one, other) if number % 2 else (other, one)
            yield Known(suite, "null", range(DEPTH), number, on, swapped)


def _ordinary(suites: Sequence[Suite]) -> Iterator[Known]:
    for number in range(ORDINARY):
        for suite in suites:
            on, swapped = number % ORDERS, (number + 1) % ORDERS
            yield Known(suite, "ordinary", range(DEPTH), number, on, swapped)
