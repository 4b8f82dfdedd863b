"""One training loop over one or more objectives; an objective says which weights it may change."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from memloc.arrays import FloatArray, IntArray
from memloc.data.encode import Encoded, length_grouped_batches, random_batches
from memloc.engine.gathering import (
    Parameters,
    clear_gradients,
    clip_gradients,
    gathered,
    merged,
)
from memloc.engine.shortcuts import training_logits
from memloc.engine.stacked import Stacked, dropout_seeded, most_members
from memloc.errors import TrainingError, counted, is_out_of_memory
from memloc.model.parts import find_parts
from memloc.model.predict import to_batch
from memloc.model.stack import Batch, Stack
from memloc.protocol import FineTuneSettings
from memloc.seeds import generator


@dataclass
class Objective:
    """Labels to learn, how logits are computed, and the parameters that may change for it.

    One model learns, or several members that are trained as one: then everything is member by
    member, and each learns as if it were alone.
    """

    name: str
    logits: Callable[[IntArray], Tensor]
    """From rows of the data, those of one member after another's, to logits; in training mode."""
    labels: Tensor
    """(members, data), or (data,) of one."""
    lengths: IntArray
    """Tokens of each row of the data, for length-grouped batches."""
    tensors: Parameters
    """What the optimiser updates, see `learning`."""
    parameters: Parameters
    """The parameters of the model behind them."""
    settings: FineTuneSettings
    counted: Parameters = field(default_factory=dict)
    """What does not learn, but whose gradients count in the norm that is clipped."""
    rows: IntArray | None = None
    """(members, examples): the rows of the data that each learns, or (examples,); default: all."""
    updates: int = 0
    on_loss: Callable[[Tensor], None] = lambda _loss: None
    """Told the mean loss of every batch, (members,)."""
    optimiser: torch.optim.AdamW = field(init=False)
    learnt: IntArray = field(init=False)
    """The rows of each, (members, examples)."""

    def __post_init__(self) -> None:
        self.labels = self.labels.view(-1, self.labels.shape[-1])
        rows = np.arange(self.labels.shape[1]) if self.rows is None else self.rows
        self.learnt = np.broadcast_to(rows, (self.members, rows.shape[-1]))
        self.optimiser = torch.optim.AdamW(
            self.tensors.values(),
            lr=self.settings.learning_rate,
            weight_decay=self.settings.weight_decay,
            fused=True,
        )

    @property
    def members(self) -> int:
        """How many models learn."""
        return len(self.labels)

    @property
    def updates_per_epoch(self) -> int:
        """Batches in one pass over the data."""
        return -(-int(self.learnt.shape[1]) // self.settings.batch_size)

    def batches(self, seed: int, purpose: str, epoch: int, member: int) -> list[IntArray]:
        """One member's batches of an epoch, as rows of the data."""
        rows, rng = self.learnt[member], generator(seed, "order", purpose, epoch)
        if self.settings.length_grouped:
            found = length_grouped_batches(self.lengths[rows], self.settings.batch_size, rng)
        else:
            found = random_batches(len(rows), self.settings.batch_size, rng)
        return [rows[batch] for batch in found]


def logits_of(
    stack: Stack, texts: Encoded, settings: FineTuneSettings
) -> Callable[[IntArray], Tensor]:
    """From rows of the texts to logits, in the fastest exact way for this model and memory."""
    if settings.gradient_checkpointing and not isinstance(stack, Stacked):
        return lambda rows: _checkpointed(stack, to_batch(texts, rows, stack.device))
    logits = stack.logits if isinstance(stack, Stacked) else training_logits(stack)
    return lambda rows: logits(to_batch(texts, rows, stack.device))


def _checkpointed(stack: Stack, batch: Batch) -> Tensor:
    """Logits whose blocks keep what they were given and nothing else; backwards, they run again."""
    blocks = list(stack.blocks)
    try:
        for block in blocks:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
        return stack.logits(batch)
    finally:
        for block in blocks:
            del block.forward


def schedule(update: int, total: int, warmup: float) -> float:
    """Share of the peak rate at an update (from 0): rises over the warm-up, then falls to zero."""
    rising = int(warmup * total)
    if update < rising:
        return update / rising
    return max(0.0, (total - update) / max(1, total - rising))


def epoch_order(
    objectives: Sequence[Objective],
    seeds: Sequence[int],
    epoch: int,
    turns: int | None = None,
) -> list[tuple[int, IntArray]]:
    """The epoch's batches as (objective, rows), those of all objectives shuffled together.

    It depends on the seeds, the epoch and the number of examples alone, never on the labels: θ_M
    and θ_O see the same order. Objectives take turns by one seed for all members, `turns`, by
    default that of the first. Rows are (members, examples).
    """
    steps: list[tuple[int, IntArray]] = []
    for index, objective in enumerate(objectives):
        purpose = objective.name if index else "first"
        each = [objective.batches(seed, purpose, epoch, k) for k, seed in enumerate(seeds)]
        steps += [(index, np.stack(rows)) for rows in zip(*each, strict=True)]
    if len(objectives) == 1:
        return steps
    rng = generator(seeds[0] if turns is None else turns, "mix", epoch)
    return [steps[i] for i in rng.permutation(len(steps))]


def train_epoch(
    objectives: Sequence[Objective],
    seeds: int | Sequence[int],
    epoch: int,
    advance: Callable[[int], None],
    *,
    turns: int | None = None,
) -> dict[str, FloatArray]:
    """One pass over every objective's data, with one seed a member; the mean losses (members,).

    Randomness is set anew for every epoch, so that a run continued after any epoch equals one
    that was never interrupted.
    """
    seeds = [seeds] if isinstance(seeds, int) else seeds
    losses: dict[str, list[Tensor]] = {objective.name: [] for objective in objectives}
    settings = [objective.settings for objective in objectives]
    device = objectives[0].labels.device
    with out_of_memory_explained(*settings), dropout_seeded(seeds, device, "dropout", epoch):
        for index, rows in epoch_order(objectives, seeds, epoch, turns):
            with only_trainable(objectives, index):
                losses[objectives[index].name].append(update(objectives[index], rows))
            advance(len(seeds))
    means = {name: torch.stack(values).mean(0).cpu().numpy() for name, values in losses.items()}
    for name, mean in means.items():
        if not np.isfinite(mean).all():
            raise TrainingError(
                f"The loss of {name} became {mean[~np.isfinite(mean)][0]} in epoch {epoch}: lower "
                "the learning rate."
            )
    return means


def update(objective: Objective, rows: IntArray) -> Tensor:
    """One step on a batch (members, examples), computed in pieces if asked; the mean losses."""
    settings, device = objective.settings, objective.labels.device
    rows = np.atleast_2d(rows)
    counted = objective.tensors | objective.counted
    clear_gradients(counted)
    total = torch.zeros(len(rows), device=device)
    members = torch.arange(len(rows), device=device).unsqueeze(1)
    for piece in np.array_split(rows, min(settings.accumulate, rows.shape[1]), axis=1):
        with autocast(settings, device):
            logits = objective.logits(piece.reshape(-1))
        labels = objective.labels[members, torch.from_numpy(piece).to(device)]
        each = cross_entropy(logits.float(), labels.reshape(-1), reduction="none")
        losses = each.view(len(rows), -1).sum(1) / rows.shape[1]
        losses.sum().backward()
        total += losses.detach()
    clip_gradients(counted, len(rows), settings.clip)
    peak = settings.learning_rate
    share = schedule(
        objective.updates, settings.epochs * objective.updates_per_epoch, settings.warmup
    )
    for group in objective.optimiser.param_groups:
        group["lr"] = peak * share
    objective.optimiser.step()
    objective.updates += 1
    objective.on_loss(total)
    return total


def autocast(settings: FineTuneSettings, device: torch.device) -> Any:
    """Lower precision for a forward pass, where the settings ask for it."""
    if settings.autocast == "none":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)


T = TypeVar("T")


def members_at_once(stack: Stack, settings: FineTuneSettings, device: torch.device) -> int:
    """How many models like this learn as one with these settings, each from its own seed."""
    return most_members(stack, device) if settings.learns_as_one else 1


def in_stacks(things: Iterable[T], most: int, alike: Callable[[T], int]) -> list[list[T]]:
    """What is trained as one: so many at a time, and only things for which `alike` says the same.

    Without the first stacks, the others stay the same: work that was interrupted goes on with them.
    """
    found: list[list[T]] = []
    for _, group in groupby(sorted(things, key=alike), key=alike):
        same = list(group)
        found += [same[start : start + most] for start in range(0, len(same), most)]
    return found


@contextmanager
def one_objective(  # noqa: PLR0913 - all that an objective is made of
    stack: Stack,
    groups: Sequence[Parameters],
    *,
    name: str,
    logits: Callable[[IntArray], Tensor],
    labels: Tensor,
    lengths: IntArray,
    settings: FineTuneSettings,
    rows: IntArray | None = None,
) -> Iterator[Objective]:
    """While active, these groups of a model's parameters learn; all else is as it was."""
    counted = counted_groups(stack, groups, settings)
    with learning(stack.model, [*groups, *counted]) as tensors:
        yield Objective(
            name=name,
            logits=logits,
            labels=labels,
            lengths=lengths,
            tensors=merged(tensors[: len(groups)]),
            parameters=merged(groups),
            settings=settings,
            counted=merged(tensors[len(groups) :]),
            rows=rows,
        )


@contextmanager
def only_trainable(objectives: Sequence[Objective], index: int) -> Iterator[None]:
    """Gradients for this objective's parameters and no others; all flags are put back.

    Where the gradients of frozen parameters count, too, all are computed.
    """
    if len(objectives) == 1 or objectives[index].settings.clip_over == "all":
        yield
        return
    everything = {id(p): p for o in objectives for p in o.parameters.values()}
    mine = {id(p) for p in objectives[index].parameters.values()}
    for key, parameter in everything.items():
        parameter.requires_grad_(key in mine)
    try:
        yield
    finally:
        for parameter in everything.values():
            parameter.requires_grad_(True)


def learning_groups(stack: Stack, *, embeddings: bool) -> list[Parameters]:
    """What follows the blocks, then each block, then the embeddings if they learn."""
    one = stack.members[0] if isinstance(stack, Stacked) else stack
    parts, named = find_parts(one), dict(stack.model.named_parameters())
    groups = [parts.after, *parts.blocks]
    if embeddings:
        groups.append(parts.embeddings)
    # Beside an adapter, the weights of the base model never learn.
    return [{n: named[n] for n in group if named[n].requires_grad} for group in groups]


def counted_groups(
    stack: Stack, groups: Sequence[Parameters], settings: FineTuneSettings
) -> list[Parameters]:
    """All parameters that are not in the groups that learn, where clipping counts them."""
    if settings.clip_over == "trained":
        return []
    learns = {id(p) for group in groups for p in group.values()}
    everything = learning_groups(stack, embeddings=True)
    others = [{n: p for n, p in group.items() if id(p) not in learns} for group in everything]
    return [group for group in others if group]


@contextmanager
def learning(model: nn.Module, groups: Sequence[Parameters]) -> Iterator[list[Parameters]]:
    """Dropout on and gradients for these groups of parameters alone; all of it is put back.

    Yields what to optimise for each group. A group is what is always trained together: a block,
    or what follows the blocks.
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
    """The same without a change of mode: gradients for these groups alone, gathered."""
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
def out_of_memory_explained(*settings: FineTuneSettings) -> Iterator[None]:
    """While active, running out of memory is an error that says what to try."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        size = max(s.batch_size for s in settings)
        pieces = max(s.accumulate for s in settings)
        more = min(size, 2 * pieces)
        same = f"finetune.accumulate={more} (the same updates, less memory), or "
        raise TrainingError(
            f"Out of memory with batches of {size} in {counted(pieces, 'piece')}: set "
            f"{same if more > pieces else ''}a smaller finetune.batch_size or text.max_tokens."
        ) from error
