"""Carries out the trainings of a run: θ_M1 and θ_M2, θ_O, and θ_F."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from memloc.arrays import IntArray
from memloc.data.encode import Encoded
from memloc.data.perturb import perturb
from memloc.data.task import Task
from memloc.engine.fit import fit, whole
from memloc.engine.learner import LEFT_OUT, Auxiliary, Learner, Part, States, Watch
from memloc.engine.passes import Trained
from memloc.model.adapters import with_adapter
from memloc.model.checkpoints import save_checkpoint
from memloc.model.device import pick_device
from memloc.model.disguise import disguise
from memloc.model.load import Classifier
from memloc.model.predict import accuracies, encode_for
from memloc.progress import Advance, track
from memloc.protocol import FineTuneSettings
from memloc.run.folder import Run
from memloc.run.records import TRAININGS, WEIGHTS, Accuracies
from memloc.seeds import generator
from memloc.stats.windows import planted_layers, read_plant
from memloc.store import paths
from memloc.store.files import remove
from memloc.store.memo import Maker, unfinished_key
from memloc.store.records import as_table, read_json, read_table, write_table

MAKER = Maker("training", 1)
"""Name and version of the trainings; raise the version when equal settings give other weights."""
LEARNT = 0.95
"""Share of noisy labels learnt, from which on few epochs are kept: later ones undo almost
nothing.
"""
NULL_SEED = 1000
"""Number added to the seed for the order in which a null learns."""


class Training:
    """Carries out the trainings of a run and stores the weights."""

    def __init__(self, run: Run, reader: Classifier, auxiliary: Task | None = None) -> None:
        """Encode the texts with the tokenizer of `reader`; a plant has an `auxiliary` task."""
        self.run = run
        self.task = run.task
        self.settings = run.settings.finetune
        self.auxiliary = auxiliary
        self.state = partial(paths.training_state, run.folder)

        self.encode = partial(encode_for, reader, max_tokens=run.settings.text.max_tokens)
        self.states = States(self.state, unfinished_key(MAKER, {"run": run.identity(WEIGHTS)}))

    @cached_property
    def texts(self) -> Encoded:
        """Tokenised training texts."""
        return self.encode(self.task.train)

    @cached_property
    def validation(self) -> Encoded:
        """Tokenised texts that are only predicted."""
        return self.encode(self.task.validation)

    def make(self, names: Sequence[str], optional: Sequence[str] = ()) -> Run:
        """Continue the missing trainings, and store the weights.

        An `optional` training is carried out only if it adds little to a pass with other trainings.
        """
        for some in (("noisy", "original"), ("frozen",)):
            learners = self._learners(some, names, optional)
            auxiliary = self._auxiliary(is_frozen="frozen" in some) if learners else None
            with self._tracked(learners, auxiliary) as advance:
                for ready in fit(
                    learners,
                    self.texts,
                    self.settings,
                    auxiliary=auxiliary,
                    watch=Watch(advance, after_epoch=self._measure),
                    state=self.states,
                ):
                    for trained in ready:
                        if not self.run.has(TRAININGS[trained.name]):
                            self._keep(trained)
        return self.run

    def _learners(
        self, group: Sequence[str], names: Sequence[str], optional: Sequence[str]
    ) -> list[Learner]:
        """Return the models of a group that have to be trained for the named trainings."""
        trained = [name for name in group if self.run.has(TRAININGS[name])]
        for done in (
            *([name] for name in trained),
            *([group] if len(trained) == len(group) else []),
        ):
            remove(self.state(*done))  # a process was stopped just before this
        if not {*group} & {*names}:
            return []
        is_begun = self.state(*group).is_file()
        needed = group if is_begun else {*names, *optional, *trained}
        kept = self._kept(trained)
        return [
            self._learner(name, is_kept=name in kept, is_optional=name not in names)
            for name in group
            if name in needed
        ]

    def _kept(self, names: Sequence[str]) -> set[str]:
        """Return the stored models that need not be trained again to make the others."""
        notes = {}
        for name in names:
            path = self.run.path(TRAININGS[name]) / paths.PROVENANCE
            about = read_json(path) if path.is_file() else {}
            notes[name] = about.get("trained_with", [name])
        return whole(notes)

    def _tracked(
        self, learners: Sequence[Learner], auxiliary: Auxiliary | None
    ) -> AbstractContextManager[Advance]:
        """Show the progress of the missing trainings, if there are any."""
        missing = [one for one in learners if not one.is_kept and not one.is_optional]
        if not missing:
            return nullcontext(lambda _steps: None)
        per_learner = auxiliary.updates if auxiliary else 0
        total = sum(learner.updates(self.texts, self.settings) + per_learner for learner in missing)
        task, model = self.task.name, Path(self.run.spec.model).name
        names = " and ".join(learner.name for learner in missing)
        return track(f"{task} · {model} · {names}", total)

    def _learner(self, name: str, *, is_kept: bool = False, is_optional: bool = False) -> Learner:
        noisy, plant = self.task.labels, self.run.plant
        labels = noisy.assigned
        is_null = plant is not None and plant.null
        # Without the examples whose original label nobody knows.
        if name == "original" or is_null:
            labels = np.where(noisy.original >= 0, noisy.original, LEFT_OUT)
        seed = self._head_seed(is_frozen=name == "frozen")
        # The null of a planted run differs from its reference by the order of the data alone.
        other_order = name == "noisy" and is_null
        return Learner(
            name,
            partial(self._start, seed),
            labels,
            seed + (NULL_SEED if other_order else 0),
            self._parts(labels, is_frozen=name == "frozen"),
            is_kept=is_kept,
            is_optional=is_optional,
        )

    def _start(self, seed: int) -> Classifier:
        started = self.run.load_start(seed, self.task.label_names)
        started = with_adapter(started, self.settings, self.run.seed)
        started.model.to(pick_device(self.run.device))
        return started

    def _head_seed(self, *, is_frozen: bool) -> int:
        frozen_seed = self.settings.frozen_seed
        return frozen_seed if is_frozen and frozen_seed is not None else self.run.seed

    def _parts(self, labels: IntArray, *, is_frozen: bool) -> tuple[Part, ...]:
        """Return the layers that each group of examples may change; θ_F changes the head alone."""
        if is_frozen:
            return (Part(layers=()),)
        is_noisy, plant = self.task.labels.is_noisy, self.run.plant
        times = np.where(is_noisy, self.settings.repeat, 1)
        if plant is not None and self.task.is_texts:
            # Ordinary texts are the auxiliary task, and the reference learns nothing else: it is
            # the same wherever the others are planted.
            times[~is_noisy | (labels == LEFT_OUT)] = 0
        rows = np.repeat(np.arange(len(is_noisy)), times)
        if plant is None:
            return (Part(rows if self.settings.repeat > 1 else None),)
        group = self.run.planted_groups
        groups = read_plant(plant.planted)
        has_end = any(one.last_epoch for one in groups)
        # Clean examples are not to be forgotten, so every stage that ends has all of them.
        return tuple(
            Part(
                rows[(group[rows] == i) | (~is_noisy[rows] & has_end)],
                one.layers,
                sublayer=one.part,
                first_epoch=one.first_epoch,
                last_epoch=one.last_epoch,
            )
            for i, one in enumerate(groups)
        )

    def _auxiliary(self, *, is_frozen: bool) -> Auxiliary | None:
        """Return the task that changes every layer of a planted run."""
        plant, task = self.run.plant, self.auxiliary
        if plant is None or (is_frozen and not plant.frozen_with_auxiliary):
            return None
        assert task is not None
        seed = self._head_seed(is_frozen=is_frozen)
        settings = self.settings
        if plant.difficulty in {"easy", "decoy"}:  # in the others both tasks learn at one rate
            settings = settings.replace({"learning_rate": plant.auxiliary_learning_rate})
        labels = dict.fromkeys(TRAININGS, task.train.labels)
        if plant.difficulty == "loud":
            noise = self.run.settings.noise
            rng = generator(noise.seed, "loud", task.name)
            loud = perturb(task.train.labels, task.label_names, rng, noise.rate)
            labels["noisy"] = loud.assigned
        return Auxiliary(
            start=None if task.is_texts else partial(self.run.load_start, seed, task.label_names),
            texts=self.encode(task.train),
            labels=labels,
            settings=settings,
            seed=seed,
            pooler_and_norm=plant.trains_pooler_and_norm,
        )

    def _measure(self, trained: Trained) -> None:
        """Add a model's accuracies to its curve; store early weights and the first near the
        ceiling.
        """
        row = trained.curve[-1]
        settings = self.settings
        epoch = row["epoch"]
        if epoch % settings.measure_every == 0 or epoch == settings.epochs:
            unseen = self.task.validation.labels
            right = trained.predicted(self.validation) == unseen
            # A null of texts is asked for those that it never sees, too.
            is_noisy = trained.name == "noisy"
            learnt = self.task.labels.assigned if is_noisy else trained.learner.labels
            row |= accuracies(trained.predicted(self.texts), learnt, self.task.labels)
            row["validation_accuracy"] = float(right.mean()) if len(right) else float("nan")
        if trained.name == "noisy" and not self.run.has("final"):
            if settings.keep_epochs == "early" and keeps_epoch(trained.curve, settings.epochs):
                self._save(trained, paths.epoch(epoch))
            above = are_near_ceiling(trained.curve, settings)
            if above[-1] and not any(above[:-1]):
                self._save(trained, "memorised")

    def _keep(self, trained: Trained) -> None:
        self._write_curve(trained)
        if trained.name == "noisy":
            fallback = self.settings.without_near_ceiling == "use last epoch"
            if fallback and not self.run.path("memorised").is_dir():
                self._save(trained, "memorised")
            self.run = self.run.note(**self._ending(trained.curve))
        plant = self.run.plant
        if plant is not None and plant.difficulty in {"decoy", "loud"} and trained.name != "frozen":
            others = {*range(self.run.depth)} - {*planted_layers(plant.planted)}
            rng = generator(self.run.seed, "decoy", plant.planted, trained.name)
            disguise(trained.stack, others, rng)
        # Last: the presence of these weights says that the training is done.
        self._save(trained, TRAININGS[trained.name])

    def _write_curve(self, trained: Trained) -> None:
        path = self.run.folder / paths.TRAINING
        table = as_table(trained.curve)
        if path.is_file():
            others = read_table(path)[0]
            table = as_table(others[others["training"] != trained.name], table)
            # In one order, whichever training ended first.
            place = {name: number for number, name in enumerate(TRAININGS)}
            order = table["training"].map(place).argsort(kind="stable")
            table = table.iloc[order].reset_index(drop=True)
        write_table(path, table, {"run": self.run.name})

    def _ending(self, curve: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the new status of the run at the end of the training on noisy labels."""
        settings = self.settings
        best = max(row.get("accuracy", 0) for row in curve)
        why = (
            f"no epoch had a training {settings.near_ceiling_score} above "
            f"{settings.near_ceiling:g} (best accuracy {best:.3f}); train longer or with a "
            "higher rate."
        )
        is_there = self.run.path("memorised").is_dir()
        ending = Accuracies.of(curve[-1])
        return {"final": ending, "without": {} if is_there else {"memorised": why}}

    def _save(self, trained: Trained, checkpoint: str) -> None:
        about = {
            "weights": checkpoint,
            "epoch": len(trained.curve),
            "curve": trained.curve,
            "trained_with": trained.trained_with,
            "run": self.run.record.model_dump(mode="json"),
        }
        save_checkpoint(self.run.path(checkpoint), trained.model, about)


def are_near_ceiling(curve: Sequence[Mapping[str, Any]], settings: FineTuneSettings) -> list[bool]:
    """Return, for each epoch, whether its training score is near the ceiling (θ_M1)."""
    score = "accuracy" if settings.near_ceiling_score == "accuracy" else "macro_f1"
    return [row.get(score, 0) > settings.near_ceiling for row in curve]


def keeps_epoch(curve: Sequence[Mapping[str, Any]], epochs: int) -> bool:
    """Return whether an early checkpoint is kept after the last row of this training curve.

    Every measured epoch is kept until the noisy labels are learnt, and then the powers of two; the
    last of `epochs` has the final weights.
    """
    *before, last = curve
    if "noisy_accuracy" not in last or last["epoch"] >= epochs:
        return False
    learnt = any(row.get("noisy_accuracy", 0) >= LEARNT for row in before)
    return not learnt or last["epoch"].bit_count() == 1
