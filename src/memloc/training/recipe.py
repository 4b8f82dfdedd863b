"""From a task and a model to the weights of a run: θ_M1 and θ_M2, θ_O, and θ_F."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from memloc import paths
from memloc.data.encode import Encoded
from memloc.errors import DataError, lookup
from memloc.identity import hash_loaded
from memloc.lock import RUN, Lock
from memloc.models.adapters import add_adapter
from memloc.models.check import require_agreement
from memloc.models.device import pick_device, suitable_threads
from memloc.models.known import default_preset
from memloc.models.load import Classifier, LoadOptions, load_model
from memloc.models.stack import Stack
from memloc.progress import Advance, request, tell, track
from memloc.protocol import FineTuneSettings, Protocol, protocol_of_run
from memloc.records import (
    Examples,
    IntArray,
    NoisyTask,
    Task,
    read_table,
    write_table,
)
from memloc.run import TRAININGS, WEIGHTS, Accuracies, Run, RunRecord, TaskRecord, begin
from memloc.seeds import torch_seeded
from memloc.stats.windows import check_plant, read_plant
from memloc.training.checkpoints import epochs_kept, load_state, save_checkpoint, save_state
from memloc.training.gathering import Parameters
from memloc.training.loop import (
    Objective,
    learning_groups,
    logits_of,
    one_objective,
    out_of_memory_explained,
    train_epoch,
)
from memloc.training.planting import Learner, Plant, planted_objectives, share_body
from memloc.training.predict import (
    accuracies,
    encode_for,
    evaluating,
    predict,
    to_batch,
    vectors_of,
)

AUXILIARY = "auxiliary"
"""The name of the objective that trains beside a planted one."""
LEFT_OUT = -100
"""The label of an example from which nothing is learnt; cross-entropy ignores it."""
NULL_SEED = 1000
"""Added to the seed for the order in which a null learns."""


@dataclass(frozen=True)
class Recipe:
    """What is trained, on what, and how."""

    model: str
    """Embedded name, hub name or folder."""
    task: NoisyTask
    seed: int
    """Order of the data, initial head, dropout."""
    protocol: Protocol
    options: LoadOptions = LoadOptions()  # noqa: RUF009 - frozen
    device: str = "auto"
    plant: Plant | None = None
    """Default: the noisy labels may be memorised anywhere."""

    @property
    def settings(self) -> FineTuneSettings:
        """How it is fine-tuned."""
        return self.protocol.finetune


def train(  # noqa: PLR0913 - one argument for each thing that people vary
    model: str,
    task: Task,
    folder: str | Path,
    *,
    seed: int = 1,
    preset: str | None = None,
    settings: Mapping[str, Any] | None = None,
    weights: Sequence[str] = tuple(WEIGHTS),
    options: LoadOptions | None = None,
    device: str = "auto",
) -> Run:
    """Fine-tune a model on labels of which some are wrong, and on the original ones.

    Makes the weights `memorised`, `final`, `reference` and `frozen` of a run in `folder`; one that
    was interrupted continues where it stopped. `settings` are those that differ from the preset,
    such as `{"finetune.epochs": 30}`; the default preset is `demo` for embedded models, else
    `paper`.
    """
    if not isinstance(task, NoisyTask):
        raise DataError(
            "Train on a task with noise: memloc.add_noise(task, rate=0.15) flips labels, and "
            "memloc.load_csv(..., original=COLUMN) reads which are wrong already."
        )
    protocol = protocol_of_run(preset or default_preset(model), settings or {})
    loading = options or LoadOptions()
    recipe = Recipe(model, task, seed, protocol, loading, device)
    return train_run(recipe, Path(folder), weights)


Announce = Callable[[Classifier, Mapping[str, int]], None]
"""Told before work begins: the model, and how many epochs are left of each training."""


def train_run(
    recipe: Recipe,
    folder: Path,
    weights: Sequence[str] = tuple(WEIGHTS),
    announce: Announce = lambda _model, _left: None,
) -> Run:
    """Make the missing ones of a run's weights; what is there stays, what was begun goes on."""
    for name in weights:
        lookup("set of weights", name, WEIGHTS)
    pick_device(recipe.device)  # one that is not there is refused before anything is written
    start = _load(recipe, recipe.task)
    require_agreement(start)
    if recipe.plant is not None:
        check_plant(recipe.plant.planted, start.stack.depth)
    with Lock(folder, RUN):
        run = begin(Path(folder), recipe.task, _record(recipe, start))
        tell(recipe.task.labels.summary())
        left = _left(run, weights, recipe.settings.epochs)
        if left:
            announce(start, left)
        return make_weights(recipe, run, left)


def make_weights(recipe: Recipe, run: Run, trainings: Iterable[str]) -> Run:
    """Carry out some trainings of a run that has been begun."""
    with suitable_threads(run.record.width), out_of_memory_explained(recipe.settings):
        for training in trainings:
            run = _Training(recipe, run, training).make()
    return run


def _left(run: Run, weights: Sequence[str], epochs: int) -> dict[str, int]:
    """The trainings that are wanted and not done, and how many epochs are left of each."""
    wanted = {WEIGHTS[name] for name in weights}
    left = {}
    for training, last in TRAININGS.items():
        state = paths.training_state(run.folder, training)
        if run.has(last):
            state.unlink(missing_ok=True)  # stopped just before this
        elif training in wanted:
            left[training] = epochs - epochs_kept(state)
    return left


def _load(recipe: Recipe, task: Task, seed: int | None = None) -> Classifier:
    """The pretrained weights with a new head from `seed`; default: the recipe's."""
    seed = recipe.seed if seed is None else seed
    return load_model(recipe.model, task.label_names, seed=seed, options=recipe.options)


def _record(recipe: Recipe, start: Classifier) -> RunRecord:
    return RunRecord(
        model=recipe.model,
        weights_hash=hash_loaded(start),
        depth=start.stack.depth,
        width=start.stack.width,
        seed=recipe.seed,
        task=TaskRecord.of(recipe.task),
        settings=recipe.protocol.for_run(),
        remote_code=recipe.options.remote_code,
        any_format=recipe.options.any_format,
        plant=None if recipe.plant is None else recipe.plant.record(recipe.protocol.control),
        command=request(),
    )


class _Training:
    """One of the three trainings of a run: `noisy`, `original` or `frozen`."""

    def __init__(self, recipe: Recipe, run: Run, name: str) -> None:
        self.recipe, self.run, self.name = recipe, run, name
        of_frozen = recipe.settings.frozen_seed if name == "frozen" else None
        self.head_seed = recipe.seed if of_frozen is None else of_frozen
        self.trained = _load(recipe, recipe.task, self.head_seed)
        if recipe.settings.adapter != "none":
            with torch_seeded(recipe.seed, "adapter"):
                self.trained = add_adapter(self.trained, recipe.settings)
        self.trained.model.to(pick_device(recipe.device))
        self.labels = recipe.task.labels.assigned
        if name == "original":  # without the examples whose original label nobody knows
            known = recipe.task.labels.original >= 0
            self.labels = np.where(known, recipe.task.labels.original, LEFT_OUT)
        self.texts = {
            "train": self._encode(recipe.task.train),
            "validation": self._encode(recipe.task.validation),
        }
        self.vectors: dict[str, Tensor] = {}
        self.state = paths.training_state(run.folder, name)
        self.rows: list[dict[str, Any]] = []
        self.plant = recipe.plant if name != "frozen" else _frozen_plant(recipe)
        # The null of a planted run differs from its reference by the order of the data alone.
        other_order = self.plant is not None and self.plant.null and name == "noisy"
        self.seed = self.head_seed + (NULL_SEED if other_order else 0)

    def make(self) -> Run:
        """Train from where it was left, epoch by epoch, and keep the weights."""
        settings = self.recipe.settings
        with self._objectives() as objectives:
            if self.state.is_file():
                self.rows = load_state(self.state, objectives)["rows"]
            label = f"{self.recipe.task.name} · {Path(self.recipe.model).name} · {self.name}"
            updates = sum(objective.updates_per_epoch for objective in objectives)
            with track(label, settings.epochs * updates) as advance:
                advance(len(self.rows) * updates)
                for epoch in range(len(self.rows) + 1, settings.epochs + 1):
                    self._epoch(objectives, epoch, advance)
        return self._finish()

    @contextmanager
    def _objectives(self) -> Iterator[list[Objective]]:
        """What is learnt: the task alone, or a planted one beside an auxiliary one."""
        stack, settings, train = self.trained.stack, self.recipe.settings, self.texts["train"]
        labels = torch.from_numpy(self.labels).to(stack.device)
        if self.plant is not None:
            with self._planted(self.plant, labels) as objectives:
                yield objectives
            return
        compute, groups = self._forward(stack)
        with one_objective(
            stack,
            groups,
            name=self.name,
            logits=compute,
            labels=labels,
            lengths=train.lengths,
            settings=settings,
        ) as objective:
            if self.name == "frozen" and not settings.frozen_dropout:
                stack.blocks.eval()
            yield [objective]

    @contextmanager
    def _planted(self, plant: Plant, labels: Tensor) -> Iterator[list[Objective]]:
        settings, control = self.recipe.settings, self.recipe.protocol.control
        other = _load(self.recipe, plant.auxiliary, self.head_seed)
        share_body(self.trained, other)
        other.model.to(labels.device)
        answers = torch.from_numpy(plant.auxiliary.train.labels).to(labels.device)
        own = settings.replace({"learning_rate": control.auxiliary_learning_rate})
        texts = self._encode(plant.auxiliary.train)
        first = {}
        for number, (layers, rows) in enumerate(self._groups(plant)):
            name = f"group {number + 1}" if number else self.name
            train = self.texts["train"]
            first[layers] = Learner(name, self.trained, train, labels, settings, rows)
        second = Learner(AUXILIARY, other, texts, answers, own, np.arange(len(texts)))
        also = control.trains_pooler_and_norm
        with planted_objectives(first, second, pooler_and_norm=also) as objectives:
            yield objectives

    def _groups(self, plant: Plant) -> list[tuple[tuple[int, ...], IntArray]]:
        """The layers that each group of examples may change, and its rows; of θ_F the head."""
        if self.name == "frozen":
            return [((), np.arange(len(self.labels)))]
        group, groups = self.run.planted_groups, read_plant(plant.planted)
        return [(layers, np.flatnonzero(group == i)) for i, layers in enumerate(groups)]

    def _encode(self, examples: Examples) -> Encoded:
        return encode_for(self.trained, examples, self.recipe.protocol.text.max_tokens)

    def _forward(self, stack: Stack) -> tuple[Callable[[IntArray], Tensor], list[Parameters]]:
        """How logits are computed in training, and the groups of parameters that learn."""
        settings, train = self.recipe.settings, self.texts["train"]
        groups = learning_groups(stack, embeddings=not settings.freeze_embeddings)
        if self.name != "frozen":
            return logits_of(stack, train, settings), groups
        if stack.readout != "all":
            # Without dropout, frozen blocks give the same every time: it is computed once.
            self.vectors = {split: _last_vectors(stack, t) for split, t in self.texts.items()}
        if settings.frozen_dropout:
            return logits_of(stack, train, settings), groups[:1]
        if settings.clip_over == "all" or not self.vectors:  # the blocks have to run
            batch = partial(to_batch, train, device=stack.device)
            return lambda rows: stack.undropped_logits(batch(rows)), groups[:1]
        vectors = self.vectors["train"]
        return lambda rows: stack.finish(vectors[rows]), groups[:1]

    def _epoch(self, objectives: list[Objective], epoch: int, advance: Advance) -> None:
        began = time.perf_counter()
        losses = train_epoch(objectives, self.seed, epoch, advance)
        own = [loss for name, loss in losses.items() if name != AUXILIARY]
        row = {"training": self.name, "epoch": epoch, "loss": float(np.mean(own))}
        every, last = self.recipe.settings.measure_every, self.recipe.settings.epochs
        if epoch % every == 0 or epoch == last:
            row |= self._measure()
        if AUXILIARY in losses:
            row["auxiliary_loss"] = float(losses[AUXILIARY][0])
        self.rows.append({**row, "seconds": time.perf_counter() - began})
        if self.name == "noisy" and self._is_first_near_ceiling():
            self._save("memorised", epoch)
        save_state(self.state, objectives, {"rows": self.rows})

    def _measure(self) -> dict[str, float]:
        right = self._predict("validation") == self.recipe.task.validation.labels
        measured = accuracies(self._predict("train"), self.labels, self.recipe.task.labels)
        unseen = float(right.mean()) if len(right) else float("nan")
        return {**measured, "validation_accuracy": unseen}

    def _predict(self, split: str) -> IntArray:
        stack = self.trained.stack
        if split in self.vectors:
            with evaluating(stack.model):
                logits = stack.finish(self.vectors[split]).cpu().numpy()
        else:
            logits = predict(stack, self.texts[split])
        return np.asarray(logits.argmax(1), dtype=np.int64)

    def _is_first_near_ceiling(self) -> bool:
        settings = self.recipe.settings
        score = "accuracy" if settings.near_ceiling_score == "accuracy" else "macro_f1"
        above = [row.get(score, 0) > settings.near_ceiling for row in self.rows]
        return above[-1] and not any(above[:-1])

    def _finish(self) -> Run:
        epochs = len(self.rows)
        self._write_curve()
        if self.name == "noisy":
            fallback = self.recipe.settings.without_near_ceiling == "use last epoch"
            if fallback and not self.run.path("memorised").is_dir():
                self._save("memorised", epochs)
            self.run = self.run.note(**self._ending())
        # Last: the presence of these weights says that the training is done.
        self._save(TRAININGS[self.name], epochs)
        self.state.unlink()
        return self.run

    def _write_curve(self) -> None:
        import pandas as pd

        path = self.run.folder / paths.TRAINING
        table = pd.DataFrame(self.rows)
        if path.is_file():
            others = read_table(path)[0]
            table = pd.concat([others[others["training"] != self.name], table], ignore_index=True)
        write_table(path, table, {"run": self.run.name})

    def _ending(self) -> dict[str, Any]:
        """What the run's record says once its noisy labels are learnt."""
        last, settings = self.rows[-1], self.recipe.settings
        final = Accuracies.of(last)
        best = max(row.get("accuracy", 0) for row in self.rows)
        why = (
            f"no epoch had a training {settings.near_ceiling_score} above "
            f"{settings.near_ceiling:g} (best accuracy {best:.3f}); train longer or with a "
            "higher rate."
        )
        is_there = self.run.path("memorised").is_dir()
        return {"final": final, "without": {} if is_there else {"memorised": why}}

    def _save(self, weights: str, epoch: int) -> None:
        about = {"weights": weights, "epoch": epoch, "run": self.run.record.model_dump(mode="json")}
        save_checkpoint(self.run.path(weights), self.trained, about)


def _frozen_plant(recipe: Recipe) -> Plant | None:
    """Beside what θ_F is trained: nothing, or an auxiliary task."""
    return recipe.plant if recipe.protocol.control.frozen_beside_auxiliary else None


def _last_vectors(stack: Stack, encoded: Encoded) -> Tensor:
    return torch.tensor(vectors_of(stack, encoded)[:, -1], device=stack.device)
