"""Chooses the parameters that are trained: all, some layers, or some layers with an auxiliary task.

In planted memorisation two tasks train one body, each with its own head. The first task may change
some layers only, the auxiliary task all of them. Labels memorised by the first task can only be in
its layers, so it is known which layers a localiser should find. The first task's examples may be
divided into groups, each with its own layers.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from memloc.engine.gathering import Parameters, clear_gradients, gathered, merged
from memloc.engine.learner import Part
from memloc.engine.loop import Objective
from memloc.engine.stacked import Stacked
from memloc.errors import ModelError
from memloc.model.load import Classifier
from memloc.model.parts import find_parts
from memloc.model.stack import Stack
from memloc.model.units import sublayer_units
from memloc.protocol import FineTuneSettings
from memloc.stats.windows import SUBLAYERS

HEAD = "head"
"""Group of the parameters that only the first task trains."""
OTHER_HEAD = "auxiliary head"
"""Group of the parameters that only the auxiliary task trains; the other groups are shared."""
AFTER = "after the blocks"
EMBEDDINGS = "embeddings"
_BLOCK = "block "
MakeObjective = Callable[..., Objective]
"""Function that makes an objective from the tensors to train and their parameters."""


@contextmanager
def task_objective(
    stack: Stack,
    make: MakeObjective,
    settings: FineTuneSettings,
    layers: Sequence[int] | None = None,
    without: Sequence[str] = (),
) -> Iterator[Objective]:
    """Let one task change some or all layers of a model, and everything after the blocks, while
    active.

    Args:
        stack: The model.
        make: Function that makes the objective.
        settings: Settings of the training.
        layers: Layers, from 0, that may change; all by default.
        without: Names of parameters after the blocks that do not change.
    """
    after, *others = learning_groups(stack, embeddings=not settings.freeze_embeddings)
    groups = [{name: p for name, p in after.items() if name not in without}]
    groups += others if layers is None else [others[layer] for layer in layers]
    counted = counted_groups(stack, groups, settings)
    with learning(stack.model, [*groups, *counted]) as tensors:
        yield make(
            tensors=merged(tensors[: len(groups)]),
            parameters=merged(groups),
            counted=merged(tensors[len(groups) :]),
        )


@contextmanager
def planted_objectives(
    stacks: Sequence[Stack],
    planted: Sequence[tuple[Part, MakeObjective]],
    auxiliary: MakeObjective,
    settings: FineTuneSettings,
    *,
    pooler_and_norm: bool = False,
) -> Iterator[list[Objective]]:
    """Train two tasks on one body while active: the first in some layers, the other everywhere.

    Args:
        stacks: The models of both tasks.
        planted: The parts of the first task, each with its objective.
        auxiliary: The objective of the other task.
        settings: Settings of the first task.
        pooler_and_norm: Whether the first task also changes pooler and norm after the blocks.
    """
    counts_all = settings.clip_over == "all"
    embeddings = not settings.freeze_embeddings
    groups = shared_groups(*stacks, embeddings=embeddings or counts_all)
    if any(part.sublayer for part, _ in planted):
        groups = _split_blocks(stacks[0], groups)
    both = nn.ModuleList([stack.model for stack in stacks])
    head = [HEAD, *([AFTER] if pooler_and_norm else [])]
    begin = min(part.first_epoch for part, _ in planted)
    learners = [
        (make, [*(head if part.first_epoch == begin else []), *_blocks_of(part, groups)])
        for part, make in planted
    ]
    others = [name for name in groups if name != HEAD and (embeddings or name != EMBEDDINGS)]
    body = [name for name in groups if name not in {HEAD, OTHER_HEAD}] if counts_all else []
    with learning(both, list(groups.values())) as gathered:
        tensors = dict(zip(groups, gathered, strict=True))
        yield [
            make(
                tensors=merged(tensors[n] for n in names),
                parameters=merged(groups[n] for n in names),
                counted=merged(tensors[n] for n in body if n not in names),
            )
            for make, names in (*learners, (auxiliary, others))
        ]


def _split_blocks(stack: Stack, groups: Mapping[str, Parameters]) -> dict[str, Parameters]:
    """Return the groups with each block's group split into attention and MLP."""
    one = stack.members[0] if isinstance(stack, Stacked) else stack
    units = sublayer_units(one)
    parts: dict[str, Parameters] = {}
    for name, group in groups.items():
        index = name.removeprefix(_BLOCK)
        if index == name:
            parts[name] = group
            continue
        for part in SUBLAYERS:
            names = units[f"{part} {index}"]
            parts[f"{name} {part}"] = {n: p for n, p in group.items() if n in names}
    return parts


def _blocks_of(part: Part, groups: Iterable[str]) -> list[str]:
    """Return the names of the groups of blocks (or of their parts) that a part may change."""
    blocks = [_block(layer) for layer in part.layers or ()]
    if part.sublayer:
        return [f"{block} {part.sublayer}" for block in blocks]
    names = {f"{block}{end}" for block in blocks for end in ("", *(f" {s}" for s in SUBLAYERS))}
    return [name for name in groups if name in names]


def share_body(trained: Classifier, auxiliary: Classifier) -> None:
    """Give the auxiliary task's model the body of the other model; it keeps its own head."""
    prefix = trained.model.base_model_prefix
    if not hasattr(trained.model, prefix):
        raise ModelError(f"{trained.name} has no body apart from its head, so nothing to share.")
    setattr(auxiliary.model, prefix, getattr(trained.model, prefix))


def shared_groups(planted: Stack, auxiliary: Stack, *, embeddings: bool) -> dict[str, Parameters]:
    """Return the parameters of two models with one body, in groups that are always trained as a
    whole.

    The head of a model that both tasks use belongs to the auxiliary task.
    """
    after, *others = learning_groups(planted, embeddings=embeddings)
    body = f"{planted.model.base_model_prefix}."
    head, other = (
        {n: p for n, p in model.named_parameters() if not n.startswith(body) and p.requires_grad}
        for model in (planted.model, auxiliary.model)
    )
    names = [*map(_block, range(planted.depth)), *([EMBEDDINGS] if embeddings else [])]
    return {
        HEAD: {} if planted is auxiliary else head,
        OTHER_HEAD: {f"auxiliary.{n}": p for n, p in other.items()},
        AFTER: {n: p for n, p in after.items() if n.startswith(body)},
        **dict(zip(names, others, strict=True)),
    }


def _block(index: int) -> str:
    return f"{_BLOCK}{index + 1}"


def learning_groups(stack: Stack, *, embeddings: bool) -> list[Parameters]:
    """Return groups of parameters: after the blocks, then each block, then the embeddings if
    trained.
    """
    one = stack.members[0] if isinstance(stack, Stacked) else stack
    parts = find_parts(one)
    named = dict(stack.model.named_parameters())
    groups = [parts.after, *parts.blocks]
    if embeddings:
        groups.append(parts.embeddings)
    # Beside an adapter, the weights of the base model never learn.
    return [{n: named[n] for n in group if named[n].requires_grad} for group in groups]


def counted_groups(
    stack: Stack, groups: Sequence[Parameters], settings: FineTuneSettings
) -> list[Parameters]:
    """Return all parameters outside the trained groups, if clipping counts their gradients."""
    if settings.clip_over == "trained":
        return []
    learns = {id(p) for group in groups for p in group.values()}
    everything = learning_groups(stack, embeddings=True)
    others = [{n: p for n, p in group.items() if id(p) not in learns} for group in everything]
    return [group for group in others if group]


@contextmanager
def learning(model: nn.Module, groups: Sequence[Parameters]) -> Iterator[list[Parameters]]:
    """Turn on dropout and compute gradients for these groups of parameters only, while active.

    Yields the tensors to optimise for each group. The parameters of a group are always trained as a
    whole: a block, or everything after the blocks.
    """
    mode = model.training
    model.train()
    try:
        with gradients_for(model, groups) as tensors:
            yield tensors
    finally:
        model.train(mode)


@contextmanager
def gradients_for(model: nn.Module, groups: Sequence[Parameters]) -> Iterator[list[Parameters]]:
    """Compute gradients for these groups of parameters only and gather them, while active."""
    wanted = [(p, p.requires_grad) for p in model.parameters()]
    mine = {id(p) for group in groups for p in group.values()}
    for parameter, _ in wanted:
        parameter.requires_grad_(id(parameter) in mine)
    try:
        with gathered(groups) as tensors:
            yield tensors
    finally:
        for parameter, want in wanted:
            parameter.requires_grad_(want)
            parameter.grad = None


@contextmanager
def gradients_of_blocks(stack: Stack) -> Iterator[Callable[[Iterable[Tensor]], Tensor]]:
    """Compute gradients of the blocks' parameters only, while active; yield a function that sums
    them.

    The function takes numbers one by one, each computed when it is needed, and returns the gradient
    of their sum with respect to the parameters of all blocks, end to end.
    """
    blocks = [dict(block.named_parameters()) for block in stack.blocks]
    with gradients_for(stack.model, blocks) as tensors:

        def summed(values: Iterable[Tensor]) -> Tensor:
            for block in tensors:
                clear_gradients(block)
            for value in values:
                value.backward()  # type: ignore[no-untyped-call]
            return torch.cat([_gradient(t) for block in tensors for t in block.values()])

        yield summed


def _gradient(tensor: Tensor) -> Tensor:
    """Return the gradient of a parameter; zeros if the forward pass does not use it."""
    gradient = torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
    return gradient.detach().flatten()
