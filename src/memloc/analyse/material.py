"""What an analysis looks at: a run's examples, labels, settings and weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from memloc.data.encode import Encoded
from memloc.errors import DataError, SettingsError, counted
from memloc.models.device import pick_device
from memloc.models.hidden import Vectors
from memloc.models.load import Classifier
from memloc.protocol import Protocol
from memloc.records import NoisyLabels, Task
from memloc.train.evaluate import encode_for
from memloc.train.provenance import provenance
from memloc.train.run import Run
from memloc.train.vectors import vectors_of

GROUPS = ("probes", "centroids", "label_probes", "generalisation")
"""The settings that an analysis may change: they decide nothing about the run's weights."""


@dataclass(frozen=True)
class Material:
    """A run, opened for analysis."""

    run: Run
    task: Task
    noisy: NoisyLabels
    protocol: Protocol
    device: str = "cpu"

    @classmethod
    def of(
        cls, run: Run, changes: Mapping[str, Any] | None = None, device: str = "auto"
    ) -> "Material":
        """A run's data and settings, with `changes` to those that concern analyses."""
        for name in changes or {}:
            if name.split(".")[0] not in GROUPS:
                raise SettingsError(
                    f"{name} cannot be changed for an analysis of weights that are there: settings "
                    f"of {', '.join(GROUPS)} can."
                )
        task, noisy = run.data()
        _check(task, noisy)
        protocol = run.protocol.replace(dict(changes or {}))
        return cls(run, task, noisy, protocol, str(pick_device(device)))

    @property
    def work(self) -> Path:
        """A folder in which half-done work may be kept."""
        return self.run.folder / "analyse" / "work"

    def load(self, weights: str) -> Classifier:
        """A fresh copy of these weights, on the device, in evaluation mode."""
        loaded = self.run.load(weights)
        loaded.model.to(self.device).eval()
        return loaded

    def encode(self, model: Classifier) -> Encoded:
        """The training texts as this model reads them."""
        return encode_for(model, self.task.train, self.protocol.text.max_tokens)

    def vectors(self, model: Classifier) -> Vectors:
        """Of the training texts, one for each layer 0..L, in one pass."""
        last_layer = self.protocol.probes.last_layer
        return vectors_of(model.stack, self.encode(model), last_layer=last_layer)

    @cached_property
    def final_vectors(self) -> Vectors:
        """Those of the final weights, which centroids and probes share."""
        return self.vectors(self.load("final"))

    def about(self) -> dict[str, Any]:
        """What a result says of where it came from."""
        run = self.run
        depth = run.about["depth"]
        return provenance(run.name, run.seed, self.protocol, run.inputs, depth=depth)


def _check(task: Task, noisy: NoisyLabels) -> None:
    if task.n_classes < 2:
        raise DataError(
            f"{task.name} has {counted(task.n_classes, 'class', 'classes')}; an analysis needs two."
        )
    if not noisy.is_noisy.any() or noisy.is_noisy.all():
        found = "only noisy" if noisy.is_noisy.any() else "no noisy"
        raise DataError(
            f"{task.name} has {found} examples, and an analysis compares noisy and clean ones: "
            "train on data of which a share has wrong labels."
        )
