"""The training loop over one or more objectives; an objective says which weights it may change."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import get_linear_schedule_with_warmup

from memloc.arrays import FloatArray, IntArray
from memloc.data.encode import length_grouped_batches, random_batches
from memloc.engine.gathering import Parameters, clear_gradients, clip_gradients
from memloc.engine.stacked import dropout_seeded
from memloc.errors import TrainingError, counted, is_out_of_memory
from memloc.protocol import FineTuneSettings
from memloc.seeds import generator


@dataclass
class Objective:
    """Labels to learn, how logits are computed, and the parameters that may change for them.

    One model learns, or several members that are computed in one pass: then everything is given
    member by member, and each learns as if it were alone.
    """

    name: str
    logits: Callable[[IntArray], Tensor]
    """From rows of the data, one member's after another's, to logits; in training mode.

    A language model gives the mean log-probability of each continuation, (rows,), instead."""
    labels: Tensor
    """(members, data), or (data,) of one model."""
    lengths: IntArray
    """Tokens of each row of the data, for length-grouped batches."""
    tensors: Parameters
    """Parameters that the optimiser updates, see `objectives.learning`."""
    parameters: Parameters
    """The parameters of the model behind these tensors."""
    settings: FineTuneSettings
    counted: Parameters = field(default_factory=dict)
    """Tensors that do not learn, but whose gradients count in the norm that is clipped."""
    rows: IntArray | None = None
    """(members, examples): the rows that each learns, or (examples,); default: all."""
    unlearns: bool = False
    """Whether the loss is made larger."""
    first_epoch: int = 1
    """The epoch from which on it is learnt, with a schedule of the learning rate from there."""
    last_epoch: int | None = None
    """The epoch after which it is not learnt any more, when the rate is 0; default: the last."""
    optimiser: torch.optim.AdamW = field(init=False)
    schedule: torch.optim.lr_scheduler.LambdaLR = field(init=False)
    learnt: IntArray = field(init=False)
    """The rows of each member, (members, examples)."""

    def __post_init__(self) -> None:
        self.labels = self.labels.view(-1, self.labels.shape[-1])
        rows = np.arange(self.labels.shape[1]) if self.rows is None else self.rows
        self.learnt = np.broadcast_to(rows, (self.members, rows.shape[-1]))
        self.optimiser = torch.optim.AdamW(
            self.tensors.values(),
            lr=self.settings.learning_rate,
            weight_decay=self.settings.weight_decay,
            maximize=self.unlearns,
            fused=True,
        )
        self.continue_after(0)

    def continue_after(self, updates: int) -> None:
        """Set the rate to that of the next update."""
        for group in self.optimiser.param_groups:
            group["initial_lr"] = self.settings.learning_rate
        last = self.last_epoch or self.settings.epochs
        total = (last - self.first_epoch + 1) * self.updates_per_epoch
        self.schedule = get_linear_schedule_with_warmup(
            self.optimiser, int(self.settings.warmup * total), total, last_epoch=updates - 1
        )

    def is_learnt_in(self, epoch: int) -> bool:
        """Return whether an epoch takes its examples."""
        return self.first_epoch <= epoch <= (self.last_epoch or epoch)

    @property
    def updates(self) -> int:
        """Number of updates that were done."""
        return int(self.schedule.last_epoch)

    @property
    def members(self) -> int:
        """Number of models that learn."""
        return len(self.labels)

    @property
    def updates_per_epoch(self) -> int:
        """Number of batches in one pass over the data."""
        return -(-int(self.learnt.shape[1]) // self.settings.batch_size)

    @contextmanager
    def updating(self) -> Iterator[None]:
        """While active, gradients are gathered; at the end one step is taken."""
        counted = self.tensors | self.counted
        clear_gradients(counted)
        yield
        clip_gradients(counted, self.members, self.settings.clip)
        self.optimiser.step()
        self.schedule.step()

    def losses(self, rows: IntArray) -> Iterator[Tensor]:
        """Yield the losses (members,) of a batch (members, examples), piece by piece.

        The settings say how many pieces there are; the sum of all pieces is the mean loss.
        """
        device, rows = self.labels.device, np.atleast_2d(rows)
        members = torch.arange(len(rows), device=device).unsqueeze(1)
        pieces = min(self.settings.accumulate, rows.shape[1])
        for piece in np.array_split(rows, pieces, axis=1):
            with _autocast(self.settings, device):
                logits = self.logits(piece.reshape(-1))
            labels = self.labels[members, torch.from_numpy(piece).to(device)]
            each = _losses(logits.float(), labels.reshape(-1))
            yield each.view(len(rows), -1).sum(1) / rows.shape[1]

    def batches(self, seed: int, purpose: str, epoch: int, member: int) -> list[IntArray]:
        """Return the batches of one member in an epoch, as rows of the data."""
        rows = self.learnt[member]
        rng = generator(seed, "order", purpose, epoch)
        if self.settings.length_grouped:
            found = length_grouped_batches(self.lengths[rows], self.settings.batch_size, rng)
        else:
            found = random_batches(len(rows), self.settings.batch_size, rng)
        return [rows[batch] for batch in found]


def train_epoch(
    objectives: Sequence[Objective],
    seeds: Sequence[int],
    epoch: int,
    after_update: Callable[[Tensor], None] = lambda _losses: None,
    *,
    turns: int | None = None,
) -> dict[str, FloatArray]:
    """Pass once over the data of every objective; return the mean losses (members,) by name.

    `seeds` has one seed for each member; `after_update` is given the losses (members,) of each
    batch. Randomness is set anew for every epoch, so that a run
    continued after any epoch equals one that was never interrupted.
    """
    active = [objective for objective in objectives if objective.is_learnt_in(epoch)]
    losses: dict[str, list[Tensor]] = {objective.name: [] for objective in active}
    with dropout_seeded(seeds, objectives[0].labels.device, "dropout", epoch):
        for index, rows in shuffled_rows(objectives, seeds, epoch, turns):
            objective = objectives[index]
            loss = torch.zeros(objective.members, device=objective.labels.device)
            with only_trainable(objectives, index), objective.updating():
                for piece in objective.losses(rows):
                    piece.sum().backward()  # type: ignore[no-untyped-call]
                    loss += piece.detach()
            losses[objective.name].append(loss)
            after_update(loss)
    means = {
        name: torch.stack(values).mean(0).cpu().numpy() if values else np.zeros(len(seeds))
        for name, values in losses.items()
    }
    for name, mean in means.items():
        if not np.isfinite(mean).all():
            raise TrainingError(
                f"The loss of {name} became {mean[~np.isfinite(mean)][0]} in epoch {epoch}: lower "
                "the learning rate."
            )
    return means


def _losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the loss of each example; it is zero where the label is below 0."""
    if logits.ndim == 1:
        return torch.where(labels >= 0, -logits, 0.0)
    return cross_entropy(logits, labels, reduction="none")


def shuffled_rows(
    objectives: Sequence[Objective],
    seeds: Sequence[int],
    epoch: int,
    turns: int | None = None,
) -> list[tuple[int, IntArray]]:
    """Return the epoch's batches as (objective, rows), those of all objectives shuffled.

    The order depends on the seeds, the epoch and the number of examples alone, never on the
    labels: θ_M and θ_O see the same order. Objectives take turns by one seed for all members,
    `turns`, by default that of the first. Rows are (members, examples).
    """
    steps: list[tuple[int, IntArray]] = []
    for index, objective in enumerate(objectives):
        if not objective.is_learnt_in(epoch):
            continue
        purpose = objective.name if index else "first"
        each = [objective.batches(seed, purpose, epoch, k) for k, seed in enumerate(seeds)]
        steps += [(index, np.stack(rows)) for rows in zip(*each, strict=True)]
    if len(objectives) == 1:
        return steps
    rng = generator(seeds[0] if turns is None else turns, "mix", epoch)
    return [steps[i] for i in rng.permutation(len(steps))]


@contextmanager
def only_trainable(objectives: Sequence[Objective], index: int) -> Iterator[None]:
    """While active, only this objective's parameters get gradients; all flags are put back.

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


def _autocast(settings: FineTuneSettings, device: torch.device) -> Any:
    """Return a context of lower precision, where the settings ask for it."""
    if settings.autocast == "none":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)


@contextmanager
def out_of_memory_explained(settings: FineTuneSettings) -> Iterator[None]:
    """While active, running out of memory is an error that says what to try."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        size = settings.batch_size
        pieces = settings.accumulate
        more = min(size, 2 * pieces)
        same = f"finetune.accumulate={more} (the same updates, less memory), or "
        raise TrainingError(
            f"Out of memory with batches of {size} in {counted(pieces, 'piece')}: set "
            f"{same if more > pieces else ''}a smaller finetune.batch_size or text.max_tokens."
        ) from error
