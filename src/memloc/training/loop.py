"""One training loop over one or more objectives; an objective says which weights it may change."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from memloc.data.encode import Encoded, length_grouped_batches, random_batches
from memloc.errors import TrainingError, counted
from memloc.models.packing import training_logits
from memloc.models.parts import find_parts
from memloc.models.stack import Stack
from memloc.protocol import FineTuneSettings
from memloc.records import IntArray
from memloc.seeds import generator, torch_seeded
from memloc.training.gathering import Parameters, clear_gradients, gathered
from memloc.training.predict import to_batch


@dataclass
class Objective:
    """Labels to learn, how logits are computed, and the parameters that may change for it."""

    name: str
    logits: Callable[[IntArray], Tensor]
    """From rows of the data to logits, with gradients and in training mode."""
    labels: Tensor
    lengths: IntArray
    """Tokens of each example, for length-grouped batches."""
    tensors: Parameters
    """What the optimiser updates, see `learning`."""
    parameters: Parameters
    """The parameters of the model behind them."""
    settings: FineTuneSettings
    counted: Parameters = field(default_factory=dict)
    """What does not learn, but whose gradients count in the norm that is clipped."""
    updates: int = 0
    on_loss: Callable[[Tensor], None] = lambda _loss: None
    """Told the mean loss of every batch."""
    optimiser: torch.optim.AdamW = field(init=False)

    def __post_init__(self) -> None:
        self.optimiser = torch.optim.AdamW(
            self.tensors.values(),
            lr=self.settings.learning_rate,
            weight_decay=self.settings.weight_decay,
            fused=True,
        )

    @property
    def updates_per_epoch(self) -> int:
        """Batches in one pass over the data."""
        return -(-len(self.labels) // self.settings.batch_size)


def logits_of(stack: Stack, texts: Encoded) -> Callable[[IntArray], Tensor]:
    """From rows of the texts to logits, in the fastest exact way for this model."""
    logits = training_logits(stack)
    return lambda rows: logits(to_batch(texts, rows, stack.device))


def schedule(update: int, total: int, warmup: float) -> float:
    """Share of the peak rate at an update (from 0): rises over the warm-up, then falls to zero."""
    rising = int(warmup * total)
    if update < rising:
        return update / rising
    return max(0.0, (total - update) / max(1, total - rising))


def epoch_order(
    objectives: Sequence[Objective], seed: int, epoch: int
) -> list[tuple[int, IntArray]]:
    """The epoch's batches as (objective, rows), those of all objectives shuffled together.

    It depends on the seed, the epoch and the number of examples alone, never on the labels: θ_M
    and θ_O see the same order.
    """
    steps: list[tuple[int, IntArray]] = []
    for index, objective in enumerate(objectives):
        rng = generator(seed, "order", objective.name if index else "first", epoch)
        size = objective.settings.batch_size
        if objective.settings.length_grouped:
            batches = length_grouped_batches(objective.lengths, size, rng)
        else:
            batches = random_batches(len(objective.labels), size, rng)
        steps += [(index, rows) for rows in batches]
    if len(objectives) == 1:
        return steps
    return [steps[i] for i in generator(seed, "mix", epoch).permutation(len(steps))]


def train_epoch(
    objectives: Sequence[Objective], seed: int, epoch: int, advance: Callable[[int], None]
) -> dict[str, float]:
    """One pass over every objective's data; the mean loss of each.

    Randomness is set anew for every epoch, so that a run continued after any epoch equals one
    that was never interrupted.
    """
    losses: dict[str, list[Tensor]] = {objective.name: [] for objective in objectives}
    settings = [objective.settings for objective in objectives]
    with out_of_memory_explained(*settings), torch_seeded(seed, "dropout", epoch):
        for index, rows in epoch_order(objectives, seed, epoch):
            with only_trainable(objectives, index):
                losses[objectives[index].name].append(update(objectives[index], rows))
            advance(1)
    means = {name: float(torch.stack(values).mean()) for name, values in losses.items()}
    for name, mean in means.items():
        if not np.isfinite(mean):
            raise TrainingError(
                f"The loss of {name} became {mean} in epoch {epoch}: lower the learning rate."
            )
    return means


def update(objective: Objective, rows: IntArray) -> Tensor:
    """One step on a batch, computed in pieces if asked; returns the batch's mean loss."""
    settings = objective.settings
    counted = objective.tensors | objective.counted
    clear_gradients(counted)
    total = torch.zeros((), device=objective.labels.device)
    for piece in np.array_split(rows, min(settings.accumulate, len(rows))):
        with autocast(settings, objective.labels.device):
            logits = objective.logits(piece)
        loss = cross_entropy(logits.float(), objective.labels[piece], reduction="sum") / len(rows)
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.detach()
    torch.nn.utils.clip_grad_norm_(counted.values(), settings.clip)
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
    parts, named = find_parts(stack), dict(stack.model.named_parameters())
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
        if not _is_out_of_memory(error):
            raise
        size = max(s.batch_size for s in settings)
        pieces = max(s.accumulate for s in settings)
        more = min(size, 2 * pieces)
        same = f"finetune.accumulate={more} (the same updates, less memory), or "
        raise TrainingError(
            f"Out of memory with batches of {size} in {counted(pieces, 'piece')}: set "
            f"{same if more > pieces else ''}a smaller finetune.batch_size or text.max_tokens."
        ) from error


def _is_out_of_memory(error: BaseException) -> bool:
    # Torch says it in other words on each system; on a CPU it is a plain RuntimeError.
    words = ("out of memory", "not enough memory", "allocate memory")
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(
        wording in str(error).lower() for wording in words
    )
