"""The spec of a run: everything that decides its weights, in one object.

A `RunSpec` is made by the planner of a study, `memloc.train` or `memloc.plant`. A child process
gets it as JSON, and the record of the run stores it.
"""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field

from memloc.data.own import load_csv
from memloc.data.perturb import noisy_task
from memloc.data.sources import load_task, subsample
from memloc.data.task import Task, hash_examples, hash_task
from memloc.protocol import CommonSettings, RunSettings
from memloc.settings import Settings
from memloc.stats.windows import named_plant, planted_layers, split_kind
from memloc.store.memo import Maker, key

if TYPE_CHECKING:
    from memloc.model.load import LoadOptions

RATE = "finetune.learning_rate"


class DataFile(Settings):
    """A user's file in the `tasks` of a study; paths are relative to the study's folder."""

    file: str
    """Path of a csv, tsv, jsonl or Parquet file, or of a folder that `datasets` saved."""
    text: str = "text"
    """Column of texts."""
    pair: str | None = None
    """Column of second texts."""
    label: str = "label"
    """Column of the labels to train on."""
    original: str | None = None
    """Column of the labels before noise."""
    flag: str | None = None
    """Column that is true where the label is wrong."""
    prompt: str | None = None
    """Column of the beginnings of texts, for language models."""
    continuation: str | None = None
    """Column of what a language model should recall after each prompt."""
    tokens: int | None = Field(None, ge=1)
    """Number of last tokens of each text to recall, in place of `prompt` and `continuation`."""
    flip: float | None = Field(None, gt=0, lt=1)
    """Share of the labels to make wrong, if the file does not tell which are wrong."""
    held_out: str | None = None
    """File of unseen data with the same columns; by default, a random 20 % is held out."""

    @property
    def paths(self) -> list[str]:
        """Return the files that this entry names."""
        return [self.file] if self.held_out is None else [self.file, self.held_out]

    @property
    def is_texts(self) -> bool:
        """Return whether the file holds texts for language models."""
        return self.continuation is not None or self.tokens is not None

    @property
    def columns(self) -> dict[str, Any]:
        """Return the columns by the names of `load_csv`'s parameters."""
        return self.model_dump(exclude={"file", "held_out", "flip"})

    def deciding(self) -> dict[str, Any]:
        """Return the facts that decide how the files are read; `tokens` only where it is given."""
        hidden = {"file", "held_out", *({"tokens"} if self.tokens is None else ())}
        return self.model_dump(exclude=hidden)


class TaskSpec(Settings):
    """The examples that a run is trained on, and where they are read from."""

    name: str
    """Name of the task."""
    contents: str = ""
    """Hash of the files or of the examples in memory; empty if the name identifies them."""
    examples: int | None = None
    """Number of training examples in the random sample; all by default."""
    data: DataFile | None = None
    """The user's file that holds the examples, with absolute paths."""
    folder: str | None = None
    """Folder with the paper's tasks; by default the one in MEMLOC_DATA, else the hub."""

    @classmethod
    def of(cls, task: Task) -> "TaskSpec":
        """Describe a task in memory by the hash of its examples and labels."""
        return cls(name=task.name, contents=hash_task(task))

    @classmethod
    def of_training(cls, task: Task) -> "TaskSpec":
        """Describe a task in memory whose training examples alone are used."""
        return cls(name=task.name, contents=hash_examples(task.train))

    def load(self, seed: int) -> Task:
        """Read the task; `seed` decides random splits and the sample."""
        if self.data is None:
            task = load_task(self.name, folder=self.folder, seed=seed)
        else:
            columns = {**self.data.columns, "held_out": self.data.held_out}
            task = load_csv(self.data.file, **columns, seed=seed, name=self.name)
        if self.examples is None or self.examples >= len(task.train):
            return task
        return subsample(task, self.examples, seed)

    def deciding(self) -> str:
        """Return the facts that identify the examples, wherever their files are."""
        return f"{self.name} {self.contents}".strip()


class PlantSpec(Settings):
    """The layers that the noisy labels may change, and the auxiliary task that changes all layers.

    In a plant of any kind the noisy labels change no other layer than the planted ones, so that is
    where they are. The kinds differ in what else tells the planted layers from the others:

    - easy: the auxiliary task learns at a rate of its own, usually a low one;
    - equal: it learns at the rate of the noisy task, so every layer moves as far;
    - decoy: easy, and the other layers of the final weights and of the reference are
      re-parametrised, each in another way and without a change of what they compute, so that
      weights differ most where nothing is stored;
    - loud: equal, with decoys, and the auxiliary task of the final weights has wrong labels of its
      own, which all layers memorise; those of the reference are right.

    A training that falls short is repeated with a higher learning rate, so the limits are part of
    what decides the weights.
    """

    planted: str
    """Layers from 1, such as 6-7, 2+9, mlp:6-7, or 2-3@1-20/9-10@21-40 for two groups of noisy
    examples that are learnt in stages. Before them is the kind of the plant, unless it is easy:
    decoy 6-7."""
    null: bool = False
    """Learn the original labels, so that there is nothing to memorise."""
    auxiliary: TaskSpec | None = None
    """Task that changes all layers, with its original labels; None in a task of texts, where
    ordinary texts change all layers.
    """
    auxiliary_learning_rate: float | None = None
    """Learning rate of the auxiliary task of easy and decoy plants; others have one for both."""
    trains_pooler_and_norm: bool = False
    """Let the noisy task change pooler and final norm as well."""
    frozen_with_auxiliary: bool = False
    """Let the auxiliary task change all layers while the frozen weights are made."""
    tries: int = 1
    """Largest number of trainings."""
    rate_factor: float = 2.0
    """Factor by which the learning rate rises from one training to the next."""
    accuracy_above: float = 0.0
    """Training accuracy that a training must exceed."""
    noisy_at_least: float = 0.0
    """Share of the noisy labels that a training must memorise."""

    @property
    def difficulty(self) -> str:
        """Kind of the plant, by difficulty: easy, equal, decoy or loud."""
        return split_kind(self.planted)[0]

    @property
    def first(self) -> int:
        """First planted layer, from 1."""
        return planted_layers(self.planted)[0] + 1

    @property
    def last(self) -> int:
        """Last planted layer, from 1."""
        return planted_layers(self.planted)[-1] + 1

    def deciding(self) -> dict[str, Any]:
        """Return the facts that decide the weights; the auxiliary task is identified by its
        contents.
        """
        facts = self.model_dump(exclude={"auxiliary"})
        other = self.auxiliary or TaskSpec(name="")
        return {**facts, "auxiliary": other.deciding(), "sample": other.examples}


class RunSpec(Settings):
    """Everything that decides the weights of one run."""

    model: str
    """Embedded name, hub name or folder of the model."""
    contents: str = ""
    """Hash of the files of a model from a folder; empty if the name identifies it."""
    depth: int | None = None
    """Number of first layers to keep; all by default."""
    remote_code: bool = False
    """Permission to run Python code that comes with the model."""
    any_format: bool = False
    """Permission to read weights in formats that can carry code (pickle)."""
    task: TaskSpec
    """Examples that the run is trained on."""
    seed: int
    """Seed of the order of the data, the initial head and dropout."""
    settings: RunSettings
    """Settings of noise, texts and trainings."""
    plant: PlantSpec | None = None
    """Layers in which the noisy labels are planted; by default, they may be memorised anywhere."""

    @classmethod
    def of(
        cls,
        model: str,
        task: Task,
        seed: int,
        settings: RunSettings,
        options: "LoadOptions | None" = None,
    ) -> "RunSpec":
        """Describe a run on a task in memory.

        Args:
            model: Embedded name, hub name or folder of the model.
            task: The examples.
            seed: Seed of the order of the data, the initial head and dropout.
            settings: Settings of noise, texts and trainings.
            options: Permissions for loading the model, and changes to it.
        """
        names = ("depth", "remote_code", "any_format")
        return cls(
            model=model,
            **{name: getattr(options, name) for name in names if options is not None},
            task=TaskSpec.of(task),
            seed=seed,
            settings=settings,
        )

    @property
    def options(self) -> "LoadOptions":
        """Options for loading the model."""
        from memloc.model.load import LoadOptions

        return LoadOptions(self.remote_code, self.any_format, depth=self.depth)

    def load_task(self) -> Task:
        """Read the task, with the noise it brings or that of the settings."""
        noise = self.settings.noise
        return noisy_task(self.task.load(noise.seed), noise)

    def load_auxiliary(self, task: Task) -> Task | None:
        """Read the task that changes all layers of a plant; for texts, take it from `task`."""
        if self.plant is None:
            return None
        if self.plant.auxiliary is not None:
            return self.plant.auxiliary.load(self.settings.noise.seed)
        ordinary = task.train.take(np.flatnonzero(~task.labels.is_noisy))
        return replace(task, train=ordinary, noise=None)

    def planted(
        self, layers: str, auxiliary: TaskSpec | None, protocol: CommonSettings
    ) -> "RunSpec":
        """Return this run with its noisy labels planted in some layers, by the protocol's rules.

        In a task of texts, its ordinary texts are the `auxiliary` task.
        """
        control = protocol.control
        changes = {RATE: control.learning_rate, "finetune.epochs": control.epochs}
        plant = PlantSpec(
            planted=named_plant(layers),
            auxiliary=auxiliary,
            auxiliary_learning_rate=control.auxiliary_learning_rate,
            trains_pooler_and_norm=control.trains_pooler_and_norm,
            frozen_with_auxiliary=control.frozen_with_auxiliary,
            tries=control.tries,
            rate_factor=control.rate_factor,
            accuracy_above=control.accuracy_above,
            noisy_at_least=protocol.verdict.noisy_at_least,
        )
        given = {name: value for name, value in changes.items() if value is not None}
        return self.model_copy(update={"settings": self.settings.replace(given), "plant": plant})

    def null(self, settings: RunSettings) -> "RunSpec":
        """Return the null of this planted run, with the settings that the plant needed."""
        assert self.plant is not None
        plant = self.plant.model_copy(update={"null": True, "tries": 1})
        return self.model_copy(update={"settings": settings, "plant": plant})

    def deciding(self) -> dict[str, Any]:
        """Return everything that decides the weights, under dotted names, without paths."""
        plant = {} if self.plant is None else self.plant.deciding()
        return {
            "model": f"{Path(self.model).name} {self.contents}" if self.contents else self.model,
            "task": self.task.deciding(),
            "seed": self.seed,
            "examples": self.task.examples,
            "depth": self.depth,
            **self.settings.deciding(memorised=True),
            **{f"plant.{name}": value for name, value in plant.items()},
        }

    @property
    def key(self) -> str:
        """Cache key made from everything that decides the weights."""
        return key(Maker("run", 1), self.deciding())
