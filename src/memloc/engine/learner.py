"""The arguments of `fit`: the models that learn, an auxiliary task, watchers and states."""

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
"""The label of an example from which nothing is learnt; cross-entropy ignores it."""


@dataclass(frozen=True)
class Part:
    """Some of the texts, and the parameters that may change for them."""

    rows: IntArray | None = None
    """The texts that are learnt; default: all."""
    layers: tuple[int, ...] | None = None
    """The layers, from 0, that may change, with what follows the blocks; default: all layers, and
    the embeddings unless the settings freeze them."""
    without: tuple[str, ...] = ()
    """Names of parameters that follow the blocks and stay as they are all the same."""
    sublayer: str = ""
    """`attention` or `mlp` if only this part of the layers may change; needs an auxiliary task."""
    first_epoch: int = 1
    """The epoch from which on the texts are learnt."""
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
    """Loads the model that learns, on its device; called when its training begins."""
    labels: IntArray
    """Labels of all texts; `LEFT_OUT` where nothing is to be learnt."""
    seed: int
    """Seed of the order of the texts and of dropout."""
    parts: tuple[Part, ...] = (Part(),)
    """Examples to learn; several parts, each with layers of its own, need an auxiliary task."""
    is_kept: bool = False
    """Whether the trained model was kept before. The model then learns only if a state says that
    it was interrupted in one pass with others, which were not kept."""
    unlearns: bool = False
    """Whether the loss is made larger, as is usual for unlearning; alone, without other parts."""
    is_optional: bool = False
    """Whether to train the model only where that costs little: in one pass with another one."""

    def updates(self, texts: Encoded, settings: FineTuneSettings) -> int:
        """Return the number of updates that the model takes, those of an auxiliary task aside."""
        return sum(
            ((part.last_epoch or settings.epochs) - part.first_epoch + 1)
            * -(-len(part.rows_of(texts)) // settings.batch_size)
            for part in self.parts
        )


@dataclass(frozen=True)
class Auxiliary:
    """A task that trains the whole body of each model while the learner changes some layers."""

    start: Callable[[], Classifier] | None
    """Loads the model whose head the task uses; its body is replaced by that of the learner. None:
    the task uses the learner's head, which the learner then does not change."""
    texts: Encoded
    labels: Mapping[str, IntArray]
    """Labels of the texts, by the name of the learner."""
    settings: FineTuneSettings
    seed: int
    """Seed of the order in which the tasks take turns."""
    pooler_and_norm: bool = False
    """Whether the learner, too, changes what follows the blocks in the shared body."""

    @property
    def updates(self) -> int:
        """Return the number of updates that the task takes."""
        return self.settings.epochs * -(-len(self.texts) // self.settings.batch_size)


@dataclass(frozen=True)
class Watch:
    """Functions that are called while models learn."""

    advance: Advance = lambda _steps: None
    """Called with the number of updates that were done since the last call, of all models."""
    after_update: "Callable[[Trained, int], None] | None" = None
    """Called for each model before the first update, with 0, and after every update."""
    after_epoch: "Callable[[Trained], bool | None] | None" = None
    """Called for each model after every epoch, when the last row of its curve has the loss; it may
    add to that row. A model for which it returns True needs no further epoch."""


@dataclass(frozen=True)
class States:
    """Where half-done trainings are kept."""

    path: Callable[..., Path]
    """Returns the file of models that learn in one pass, by their names."""
    key: str
    """Key of everything that decides the trainings; a state with another key is not used."""


CurvePoint = dict[str, Any]
"""Measurements after an epoch."""
Curves = dict[str, list[CurvePoint]]
"""Measurements after every epoch, by the name of the model."""


def first_layer(learner: Learner) -> int | None:
    """Return the first of the consecutive layers that a model changes, None for other layers."""
    layers = learner.parts[0].layers
    if not layers or len(learner.parts) > 1:
        return None
    is_window = [*layers] == [*range(layers[0], layers[0] + len(layers))]
    return layers[0] if is_window else None


def part_sizes(learner: Learner, texts: Encoded) -> Sequence[int]:
    """Return the number of texts in each part."""
    return [len(part.rows_of(texts)) for part in learner.parts]
