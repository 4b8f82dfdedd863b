"""Planted memorisation: one task may change some layers only, another one all of them.

Both tasks train one body, each with a head of its own. What the first task memorises can only be
in its layers, so there it is known where a localiser should point. The first task's examples may
be dealt out to groups, each with layers of its own.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from torch import Tensor, nn

from memloc.arrays import IntArray
from memloc.data.encode import Encoded
from memloc.engine.gathering import Parameters, merged
from memloc.engine.loop import (
    Objective,
    learning,
    learning_groups,
    logits_of,
)
from memloc.errors import ModelError
from memloc.model.load import Classifier
from memloc.model.stack import Stack
from memloc.protocol import FineTuneSettings

HEAD = "head"
"""The group of parameters that belongs to the planted task alone."""
OTHER_HEAD = "auxiliary head"
"""The group that belongs to the auxiliary task alone; both share the others."""
AFTER = "after the blocks"
EMBEDDINGS = "embeddings"


def share_body(trained: Classifier, auxiliary: Classifier) -> None:
    """Give the auxiliary task's model the other one's body; its head stays its own."""
    prefix = trained.model.base_model_prefix
    if not hasattr(trained.model, prefix):
        raise ModelError(f"{trained.name} has no body apart from its head, so nothing to share.")
    setattr(auxiliary.model, prefix, getattr(trained.model, prefix))


Learner = Callable[..., Objective]
"""An objective of which all is known but the tensors that learn and their parameters."""


def learner(
    name: str,
    stack: Stack,
    texts: Encoded,
    labels: Tensor,
    settings: FineTuneSettings,
    rows: IntArray | None = None,
) -> Learner:
    """A task that a model learns from the texts at `rows`, by default from all."""
    of = name, logits_of(stack, texts, settings), labels, texts.lengths
    return partial(Objective, *of, settings=settings, rows=rows)


@contextmanager
def planted_objectives(
    stacks: Sequence[Stack],
    planted: Mapping[tuple[int, ...], Learner],
    auxiliary: Learner,
    settings: FineTuneSettings,
    *,
    pooler_and_norm: bool = False,
) -> Iterator[list[Objective]]:
    """While active, two tasks learn on one body: the first in some layers, the other everywhere.

    `stacks` are the models of both tasks, and `planted` the learners of the first task, by the
    layers (from 0) that each may change; if `pooler_and_norm`, also what follows the blocks.
    """
    count_all, learnt = settings.clip_over == "all", not settings.freeze_embeddings
    groups = shared_groups(*stacks, embeddings=learnt or count_all)
    both = nn.ModuleList([stack.model for stack in stacks])
    head = [HEAD, *([AFTER] if pooler_and_norm else [])]
    made = [(each, [*head, *map(_block, layers)]) for layers, each in planted.items()]
    others = [name for name in groups if name != HEAD and (learnt or name != EMBEDDINGS)]
    body = [name for name in groups if name not in {HEAD, OTHER_HEAD}] if count_all else []
    with learning(both, list(groups.values())) as gathered:
        tensors = dict(zip(groups, gathered, strict=True))
        yield [
            objective(
                tensors=merged(tensors[n] for n in names),
                parameters=merged(groups[n] for n in names),
                counted=merged(tensors[n] for n in body if n not in names),
            )
            for objective, names in (*made, (auxiliary, others))
        ]


def shared_groups(planted: Stack, auxiliary: Stack, *, embeddings: bool) -> dict[str, Parameters]:
    """The parameters of two models with one body, in groups that always learn together."""
    after, *others = learning_groups(planted, embeddings=embeddings)
    body = f"{planted.model.base_model_prefix}."
    own, other = (
        {n: p for n, p in model.named_parameters() if not n.startswith(body) and p.requires_grad}
        for model in (planted.model, auxiliary.model)
    )
    names = [*map(_block, range(planted.depth)), *([EMBEDDINGS] if embeddings else [])]
    return {
        HEAD: own,
        OTHER_HEAD: {f"auxiliary.{n}": p for n, p in other.items()},
        AFTER: {n: p for n, p in after.items() if n.startswith(body)},
        **dict(zip(names, others, strict=True)),
    }


def _block(index: int) -> str:
    return f"block {index + 1}"
