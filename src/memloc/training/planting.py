"""Planted memorisation: one task may change a window of layers only, another one all of them.

Both tasks train one body, each with a head of its own. What the first task memorises can only be
in its window, so there it is known where a localiser should point.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor, nn

from memloc.data.encode import Encoded
from memloc.errors import ModelError
from memloc.identity import hash_examples
from memloc.models.load import Classifier
from memloc.models.parts import find_parts
from memloc.protocol import ControlSettings, FineTuneSettings
from memloc.records import Task
from memloc.run import PlantRecord
from memloc.training.gathering import Parameters, merged
from memloc.training.loop import Objective, learning, logits_of

HEAD = "head"
"""The group of parameters that belongs to the planted task alone."""
OTHER_HEAD = "auxiliary head"
"""The group that belongs to the auxiliary task alone; both share the others."""
AFTER = "after the blocks"
EMBEDDINGS = "embeddings"


@dataclass(frozen=True)
class Plant:
    """Where the noisy task may change a model, and the task that changes it everywhere."""

    window: range
    """Layers from 0."""
    auxiliary: Task
    """Trained beside it, with its original labels."""
    null: bool = False
    """Nothing is memorised: the labels are the original ones, learnt in another order."""

    def record(self, settings: ControlSettings) -> PlantRecord:
        """What identifies it, for a run to say."""
        names = ("auxiliary_learning_rate", "trains_pooler_and_norm", "frozen_beside_auxiliary")
        return PlantRecord(
            first=self.window.start + 1,
            last=self.window.stop,
            null=self.null,
            auxiliary=self.auxiliary.name,
            settings={name: getattr(settings, name) for name in names}
            | {"auxiliary_data": hash_examples(self.auxiliary.train)},
        )


def share_body(trained: Classifier, auxiliary: Classifier) -> None:
    """Give the auxiliary task's model the other one's body; its head stays its own."""
    prefix = trained.model.base_model_prefix
    if not hasattr(trained.model, prefix):
        raise ModelError(f"{trained.name} has no body apart from its head, so nothing to share.")
    setattr(auxiliary.model, prefix, getattr(trained.model, prefix))


@dataclass(frozen=True)
class Learner:
    """A task on a model: what an objective is made of."""

    name: str
    model: Classifier
    texts: Encoded
    labels: Tensor
    settings: FineTuneSettings

    def objective(
        self, tensors: Parameters, parameters: Parameters, counted: Parameters
    ) -> Objective:
        """The objective that may change these."""
        compute, lengths = logits_of(self.model.stack, self.texts), self.texts.lengths
        learns = tensors, parameters, self.settings, counted
        return Objective(self.name, compute, self.labels, lengths, *learns)


@contextmanager
def two_objectives(
    planted: Learner, auxiliary: Learner, window: range, *, pooler_and_norm: bool = False
) -> Iterator[list[Objective]]:
    """While active, two tasks learn on one body: the first in a window, the second everywhere.

    The first also trains what follows the blocks if `pooler_and_norm`.
    """
    count_all = planted.settings.clip_over == "all"
    learnt = not planted.settings.freeze_embeddings
    groups = shared_groups(planted.model, auxiliary.model, embeddings=learnt or count_all)
    both = nn.ModuleList([planted.model.model, auxiliary.model.model])
    own = [HEAD, *([AFTER] if pooler_and_norm else []), *(_block(index) for index in window)]
    others = [name for name in groups if name != HEAD and (learnt or name != EMBEDDINGS)]
    body = [name for name in groups if name not in {HEAD, OTHER_HEAD}] if count_all else []
    with learning(both, list(groups.values())) as gathered:
        tensors = dict(zip(groups, gathered, strict=True))
        yield [
            learner.objective(
                merged(tensors[n] for n in names),
                merged(groups[n] for n in names),
                merged(tensors[n] for n in body if n not in names),
            )
            for learner, names in ((planted, own), (auxiliary, others))
        ]


def shared_groups(
    planted: Classifier, auxiliary: Classifier, *, embeddings: bool
) -> dict[str, Parameters]:
    """The parameters of two models with one body, in groups that always learn together."""
    parts, named = find_parts(planted.stack), dict(planted.model.named_parameters())
    body = f"{planted.model.base_model_prefix}."
    heads = [
        {n: p for n, p in model.named_parameters() if not n.startswith(body) and p.requires_grad}
        for model in (planted.model, auxiliary.model)
    ]
    groups = {
        HEAD: heads[0],
        OTHER_HEAD: {f"auxiliary.{n}": p for n, p in heads[1].items()},
        AFTER: {n: named[n] for n in parts.after if n.startswith(body) and named[n].requires_grad},
    }
    for index, block in enumerate(parts.blocks):
        groups[_block(index)] = {n: named[n] for n in block if named[n].requires_grad}
    if embeddings:
        groups[EMBEDDINGS] = {n: named[n] for n in parts.embeddings if named[n].requires_grad}
    return groups


def _block(index: int) -> str:
    return f"block {index + 1}"
