"""The arguments of `fit`: the models to train, an auxiliary task, watchers and states."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from memloc.arrays import IntArray
from memloc.data.encode import Encoded
from memloc.model.load import Classifier
from memloc.progress import Advance
from memloc.protocol import FineTuneSettings

if TYPE_CHECKING:
    from memloc.engine.passes import Trained

LEFT_OUT = -100
"""Label of an example that is not learnt; cross-entropy ignores it."""


@dataclass(frozen=True)
class Part:
    """Some of the texts, and the parameters that may change for them."""

    rows: IntArray | None = None
    """Rows of the texts that are learnt; all by default."""
    layers: tuple[int, ...] | None = None
    """Layers, from 0, that may change, in addition to everything after the blocks.

    By default all layers, and the embeddings unless the settings freeze them.
    """
    without: tuple[str, ...] = ()
    """Names of parameters after the blocks that do not change."""
    sublayer: str = ""
    """Part of the layers that may change (`attention` or `mlp`), which needs an auxiliary task;
    empty for whole layers.
    """
    first_epoch: int = 1
    """Epoch from which on the texts are learnt."""
    last_epoch: int | None = None
    """The epoch after which the texts are not seen again; default: the last one."""

    def rows_of(self, texts: Encoded) -> IntArray:
        """Return the rows that are learnt."""
        return np.arange(len(texts)) if self.rows is None else self.rows


@dataclass(frozen=True)
class Learner:
    """One model to train."""

    name: str
    start: Callable[[], Classifier]
    """Function that loads the model on its device, called when its training begins."""
    labels: IntArray
    """Labels of all texts; `LEFT_OUT` for texts that are not learnt."""
    seed: int
    """Seed of the order of the texts and of dropout."""
    parts: tuple[Part, ...] = (Part(),)
    """Examples to learn; several parts, each with its own layers, need an auxiliary task."""
    is_kept: bool = False
    """True if the trained model is stored already.

    The model is then trained only if a state says that it was interrupted in one pass with others,
    which were not stored.
    """
    unlearns: bool = False
    """True to increase the loss, as is usual for unlearning; only for a model without other
    parts.
    """
    is_optional: bool = False
    """True to train the model only if that costs little: in one pass with another one."""

    def updates(self, texts: Encoded, settings: FineTuneSettings) -> int:
        """Return the number of the model's updates, without those of an auxiliary task."""
        return sum(
            ((part.last_epoch or settings.epochs) - part.first_epoch + 1)
            * -(-len(part.rows_of(texts)) // settings.batch_size)
            for part in self.parts
        )


@dataclass(frozen=True)
class Auxiliary:
    """A task that trains the whole body of each model in turns with a learner that changes some
    layers.
    """

    start: Callable[[], Classifier] | None
    """Function that loads the model whose head the task uses; its body is replaced by the
    learner's.

    If None, the task uses the learner's head, which the learner then does not change.
    """
    texts: Encoded
    labels: Mapping[str, IntArray]
    """Labels of the texts, by the name of the learner."""
    settings: FineTuneSettings
    seed: int
    """Seed of the order in which the tasks take turns."""
    pooler_and_norm: bool = False
    """True if the learner, too, changes the pooler and the norm after the blocks of the shared
    body.
    """

    @property
    def updates(self) -> int:
        """Return the number of updates of the task."""
        return self.settings.epochs * -(-len(self.texts) // self.settings.batch_size)


@dataclass(frozen=True)
class Watch:
    """Functions that are called while models learn."""

    advance: Advance = lambda _steps: None
    """Function called with the number of updates of all models since the last call."""
    after_update: "Callable[[Trained, int], None] | None" = None
    """Function called for each model before the first update, with 0, and after every update."""
    after_epoch: "Callable[[Trained], bool | None] | None" = None
    """Function called for each model after every epoch, when the last row of its curve has the
    loss.

    It may add to that row. A model for which it returns True needs no further epoch.
    """


@dataclass(frozen=True)
class States:
    """Files in which unfinished trainings are stored."""

    path: Callable[..., Path]
    """Function that returns the file for models trained in one pass, by their names."""
    key: str
    """Cache key of everything that decides the trainings; a state with another key is not used."""


CurvePoint = dict[str, Any]
"""Measurements after one epoch."""
Curves = dict[str, list[CurvePoint]]
"""Measurements after every epoch, by the name of the model."""


def first_layer(learner: Learner) -> int | None:
    """Return the first of the consecutive layers that a model changes; None for any other choice of
    layers.
    """
    layers = learner.parts[0].layers
    if not layers or len(learner.parts) > 1:
        return None
    is_window = [*layers] == [*range(layers[0], layers[0] + len(layers))]
    return layers[0] if is_window else None


def part_sizes(learner: Learner, texts: Encoded) -> Sequence[int]:
    """Return the number of texts in each part."""
    return [len(part.rows_of(texts)) for part in learner.parts]
