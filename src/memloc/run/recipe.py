"""A recipe for a run, and how its trainings go: θ_M1 and θ_M2, θ_O, and θ_F."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from memloc.arrays import IntArray
from memloc.data.encode import Encoded
from memloc.data.task import Examples, Task
from memloc.engine.gathering import Parameters
from memloc.engine.loop import (
    Objective,
    learning_groups,
    logits_of,
    one_objective,
    train_epoch,
)
from memloc.engine.stacked import together
from memloc.model.adapters import with_adapter
from memloc.model.device import pick_device
from memloc.model.load import Classifier, LoadOptions, load_model
from memloc.model.predict import (
    accuracies,
    encode_for,
    evaluating,
    predict,
    to_batch,
    vectors_of,
)
from memloc.model.stack import Stack
from memloc.progress import Advance, track
from memloc.protocol import FineTuneSettings, Protocol
from memloc.run.checkpoints import load_state, save_checkpoint, save_state
from memloc.run.folder import TRAININGS, WEIGHTS, Accuracies, Run
from memloc.run.planting import (
    Plant,
    learner,
    planted_objectives,
    share_body,
)
from memloc.stats.windows import read_plant
from memloc.store import paths
from memloc.store.files import remove
from memloc.store.memo import Maker, unfinished_key
from memloc.store.records import as_table, read_table, write_table

MAKER = Maker("training", 1)
"""Raise the version when the same settings train other weights."""
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
    task: Task
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

    def load(self, task: Task, seed: int) -> Classifier:
        """The pretrained weights with a new head for a task, from `seed`."""
        return load_model(self.model, task.label_names, seed=seed, options=self.options)

    def learner(self, seed: int) -> Classifier:
        """The same for its own task, with an adapter if one learns in place of the weights."""
        return with_adapter(self.load(self.task, seed), self.settings, self.seed)


Together = tuple[str, ...]
"""One of a run's trainings, or those that learn as one."""


@dataclass
class Member:
    """One of the three trainings of a run: `noisy`, `original` or `frozen`."""

    name: str
    trained: Classifier
    labels: IntArray
    seed: int
    """Of the order in which it learns, and of dropout."""
    rows: list[dict[str, Any]] = field(default_factory=list)
    """What was measured after each epoch."""


class Training:
    """One training of a run, or those that learn as one; each member is what it would be alone."""

    def __init__(self, recipe: Recipe, run: Run, names: Together) -> None:
        self.recipe, self.run = recipe, run
        self.name, self.is_frozen = " and ".join(names), names == ("frozen",)
        self.state = paths.training_state(run.folder, *names)
        alone = self.is_frozen and not self.recipe.protocol.control.frozen_beside_auxiliary
        self.plant = None if alone else self.recipe.plant
        self.members = [self._member(name) for name in names]
        self.stack = together([member.trained.stack for member in self.members])
        self.texts = {
            "train": self._encode(self.recipe.task.train),
            "validation": self._encode(self.recipe.task.validation),
        }
        self.vectors: dict[str, Tensor] = {}

    def _member(self, name: str) -> Member:
        recipe, seed = self.recipe, self._head_seed
        trained, noisy = recipe.learner(seed), recipe.task.labels
        trained.model.to(pick_device(recipe.device))
        labels = noisy.assigned
        if name == "original":  # without the examples whose original label nobody knows
            labels = np.where(noisy.original >= 0, noisy.original, LEFT_OUT)
        # The null of a planted run differs from its reference by the order of the data alone.
        other_order = name == "noisy" and recipe.plant is not None and recipe.plant.null
        order = seed + (NULL_SEED if other_order else 0)
        return Member(name, trained, labels, order)

    @cached_property
    def key(self) -> str:
        """The key of a half-done training."""
        decided_by = {"run": self.run.identity(WEIGHTS), "trainings": self.name}
        return unfinished_key(MAKER, decided_by)

    @property
    def _head_seed(self) -> int:
        of_frozen = self.recipe.settings.frozen_seed if self.is_frozen else None
        return self.recipe.seed if of_frozen is None else of_frozen

    def make(self) -> Run:
        """Train from where it was left, epoch by epoch, and keep the weights."""
        settings = self.recipe.settings
        with self._objectives() as objectives:
            curves = load_state(self.state, objectives, self.key)
            for member in self.members:
                member.rows = curves.get(member.name, [])
            task, model = self.recipe.task.name, Path(self.recipe.model).name
            updates = len(self.members) * sum(o.updates_per_epoch for o in objectives)
            with track(f"{task} · {model} · {self.name}", settings.epochs * updates) as advance:
                done = len(self.members[0].rows)
                advance(done * updates)
                for epoch in range(done + 1, settings.epochs + 1):
                    self._epoch(objectives, epoch, advance)
        for member in self.members:
            if not self.run.has(TRAININGS[member.name]):
                self._keep(member)
        remove(self.state)
        return self.run

    def _objectives(self) -> AbstractContextManager[list[Objective]]:
        """What is learnt: the task alone, or a planted one beside an auxiliary one."""
        each = np.stack([member.labels for member in self.members])
        labels = torch.from_numpy(each).to(self.stack.device)
        return self._alone(labels) if self.plant is None else self._planted(self.plant, labels)

    @contextmanager
    def _alone(self, labels: Tensor) -> Iterator[list[Objective]]:
        stack, settings, train = self.stack, self.recipe.settings, self.texts["train"]
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
            if self.is_frozen and not settings.frozen_dropout:
                stack.blocks.eval()
            yield [objective]

    def _planted(self, plant: Plant, labels: Tensor) -> AbstractContextManager[list[Objective]]:
        settings, control = self.recipe.settings, self.recipe.protocol.control
        others = [self.recipe.load(plant.auxiliary, self._head_seed) for _ in self.members]
        for member, other in zip(self.members, others, strict=True):
            share_body(member.trained, other)
            other.model.to(labels.device)
        answers = torch.from_numpy(plant.auxiliary.train.labels).to(labels.device)
        own = settings.replace({"learning_rate": control.auxiliary_learning_rate})
        stack, beside = self.stack, together([o.stack for o in others], beside=self.stack)
        train, texts = self.texts["train"], self._encode(plant.auxiliary.train)
        planted = {}
        for number, (layers, rows) in enumerate(self._groups(plant)):
            name = f"group {number + 1}" if number else self.name
            planted[layers] = learner(name, stack, train, labels, settings, rows)
        second = learner(AUXILIARY, beside, texts, answers.expand(len(others), -1), own)
        also = control.trains_pooler_and_norm
        stacks = stack, beside
        return planted_objectives(stacks, planted, second, settings, pooler_and_norm=also)

    def _groups(self, plant: Plant) -> list[tuple[tuple[int, ...], IntArray]]:
        """The layers that each group of examples may change, and its rows; of θ_F the head."""
        if self.is_frozen:
            return [((), np.arange(len(self.recipe.task.train)))]
        group, groups = self.run.planted_groups, read_plant(plant.planted)
        return [(layers, np.flatnonzero(group == i)) for i, layers in enumerate(groups)]

    def _encode(self, examples: Examples) -> Encoded:
        reader = self.members[0].trained
        return encode_for(reader, examples, self.recipe.protocol.text.max_tokens)

    def _forward(self, stack: Stack) -> tuple[Callable[[IntArray], Tensor], list[Parameters]]:
        """How logits are computed in training, and the groups of parameters that learn."""
        settings, train = self.recipe.settings, self.texts["train"]
        groups = learning_groups(stack, embeddings=not settings.freeze_embeddings)
        if not self.is_frozen:
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
        seeds = [member.seed for member in self.members]
        losses = train_epoch(objectives, seeds, epoch, advance, turns=self._head_seed)
        own = np.mean([loss for name, loss in losses.items() if name != AUXILIARY], axis=0)
        every, last = self.recipe.settings.measure_every, self.recipe.settings.epochs
        for k, member in enumerate(self.members):
            row = {"training": member.name, "epoch": epoch, "loss": float(own[k])}
            if epoch % every == 0 or epoch == last:
                row |= self._measure(member)
            if AUXILIARY in losses:
                row["auxiliary_loss"] = float(losses[AUXILIARY][k])
            member.rows.append(row)
            is_new = member.name == "noisy" and not self.run.has("final")
            if is_new and self._is_first_near_ceiling(member):
                self._save(member, "memorised", epoch)
        for member in self.members:
            member.rows[-1]["seconds"] = (time.perf_counter() - began) / len(self.members)
        save_state(self.state, objectives, {m.name: m.rows for m in self.members}, self.key)

    def _measure(self, member: Member) -> dict[str, float]:
        right = self._predict(member, "validation") == self.recipe.task.validation.labels
        predicted = self._predict(member, "train")
        measured = accuracies(predicted, member.labels, self.recipe.task.labels)
        unseen = float(right.mean()) if len(right) else float("nan")
        return {**measured, "validation_accuracy": unseen}

    def _predict(self, member: Member, split: str) -> IntArray:
        stack = member.trained.stack
        if split in self.vectors:
            with evaluating(stack.model):
                logits = stack.finish(self.vectors[split]).cpu().numpy()
        else:
            logits = predict(stack, self.texts[split])
        return np.asarray(logits.argmax(1), dtype=np.int64)

    def _is_first_near_ceiling(self, member: Member) -> bool:
        above = are_near_ceiling(member.rows, self.recipe.settings)
        return above[-1] and not any(above[:-1])

    def _keep(self, member: Member) -> None:
        epochs = len(member.rows)
        self._write_curve(member)
        if member.name == "noisy":
            fallback = self.recipe.settings.without_near_ceiling == "use last epoch"
            if fallback and not self.run.path("memorised").is_dir():
                self._save(member, "memorised", epochs)
            self.run = self.run.note(**self._ending(member))
        # Last: the presence of these weights says that the training is done.
        self._save(member, TRAININGS[member.name], epochs)

    def _write_curve(self, member: Member) -> None:
        path = self.run.folder / paths.TRAINING
        table = as_table(member.rows)
        if path.is_file():
            others = read_table(path)[0]
            table = as_table(others[others["training"] != member.name], table)
        write_table(path, table, {"run": self.run.name})

    def _ending(self, member: Member) -> dict[str, Any]:
        """What the run's record says once its noisy labels are learnt."""
        last, settings = member.rows[-1], self.recipe.settings
        best = max(row.get("accuracy", 0) for row in member.rows)
        why = (
            f"no epoch had a training {settings.near_ceiling_score} above "
            f"{settings.near_ceiling:g} (best accuracy {best:.3f}); train longer or with a "
            "higher rate."
        )
        is_there = self.run.path("memorised").is_dir()
        return {"final": Accuracies.of(last), "without": {} if is_there else {"memorised": why}}

    def _save(self, member: Member, weights: str, epoch: int) -> None:
        about = {
            "weights": weights,
            "epoch": epoch,
            "together": [m.name for m in self.members],
            "run": self.run.record.model_dump(mode="json"),
        }
        save_checkpoint(self.run.path(weights), member.trained, about)


def are_near_ceiling(rows: Sequence[Mapping[str, Any]], settings: FineTuneSettings) -> list[bool]:
    """Of each epoch of a curve: whether its training score is that of θ_M1."""
    score = "accuracy" if settings.near_ceiling_score == "accuracy" else "macro_f1"
    return [row.get(score, 0) > settings.near_ceiling for row in rows]


def _last_vectors(stack: Stack, encoded: Encoded) -> Tensor:
    return torch.tensor(vectors_of(stack, encoded)[:, -1], device=stack.device)
