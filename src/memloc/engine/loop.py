"""The training loop over one or more objectives, each with the weights that it may change."""

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
    """Labels to learn, the function that computes logits, and the parameters that may change.

    It trains one model, or several members that are computed in one pass: then all data are given
    member by member, and each learns as if it were alone.
    """

    name: str
    logits: Callable[[IntArray], Tensor]
    """Function from rows of the data, member by member, to logits in training mode.

    For a language model it returns the mean log-probability of each continuation, (rows,), instead.
    """
    labels: Tensor
    """Labels, (members, data), or (data,) for one model."""
    lengths: IntArray
    """Number of tokens in each row of the data, for length-grouped batches."""
    tensors: Parameters
    """Parameters that the optimiser updates, see `objectives.learning`."""
    parameters: Parameters
    """Parameters of the model behind these tensors."""
    settings: FineTuneSettings
    counted: Parameters = field(default_factory=dict)
    """Tensors that are not trained, but whose gradients count in the norm that is clipped."""
    rows: IntArray | None = None
    """Rows that each member learns, (members, examples), or (examples,) for all; all rows by
    default.
    """
    unlearns: bool = False
    """True to increase the loss."""
    first_epoch: int = 1
    """Epoch from which on the objective is trained; its learning rate schedule starts there."""
    last_epoch: int | None = None
    """The epoch after which it is not learnt any more, when the rate is 0; default: the last."""
    optimiser: torch.optim.AdamW = field(init=False)
    schedule: torch.optim.lr_scheduler.LambdaLR = field(init=False)
    learnt: IntArray = field(init=False)
    """Rows of each member, (members, examples)."""

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
        """Set the learning rate to that of the next update."""
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
        """Number of updates so far."""
        return int(self.schedule.last_epoch)

    @property
    def members(self) -> int:
        """Number of models that are trained."""
        return len(self.labels)

    @property
    def updates_per_epoch(self) -> int:
        """Number of batches in one pass over the data."""
        return -(-int(self.learnt.shape[1]) // self.settings.batch_size)

    @contextmanager
    def updating(self) -> Iterator[None]:
        """Gather gradients while active, and take one optimiser step at the end."""
        counted = self.tensors | self.counted
        clear_gradients(counted)
        yield
        clip_gradients(counted, self.members, self.settings.clip)
        self.optimiser.step()
        self.schedule.step()

    def losses(self, rows: IntArray) -> Iterator[Tensor]:
        """Yield the losses (members,) of a batch (members, examples), piece by piece.

        The settings decide the number of pieces; the sum over all pieces is the mean loss.
        """
        device = self.labels.device
        rows = np.atleast_2d(rows)
        members = torch.arange(len(rows), device=device).unsqueeze(1)
        pieces = min(self.settings.accumulate, rows.shape[1])
        for piece in np.array_split(rows, pieces, axis=1):
            with _autocast(self.settings, device):
                logits = self.logits(piece.reshape(-1))
            labels = self.labels[members, torch.from_numpy(piece).to(device)]
            losses = _losses(logits.float(), labels.reshape(-1))
            yield losses.view(len(rows), -1).sum(1) / rows.shape[1]

    def batches(self, seed: int, purpose: str, epoch: int, member: int) -> list[IntArray]:
        """Return the batches of one member in an epoch, as rows of the data.

        Args:
            seed: Seed of the member.
            purpose: Name of the random order.
            epoch: Number of the epoch.
            member: Number of the member.
        """
        rows = self.learnt[member]
        rng = generator(seed, "order", purpose, epoch)
        if self.settings.length_grouped:
            batches = length_grouped_batches(self.lengths[rows], self.settings.batch_size, rng)
        else:
            batches = random_batches(len(rows), self.settings.batch_size, rng)
        return [rows[batch] for batch in batches]


def train_epoch(
    objectives: Sequence[Objective],
    seeds: Sequence[int],
    epoch: int,
    after_update: Callable[[Tensor], None] = lambda _losses: None,
    *,
    turns: int | None = None,
) -> dict[str, FloatArray]:
    """Pass once over the data of every objective; return the mean losses (members,) by name.

    Randomness is set anew for every epoch, so that a run continued after any epoch equals one that
    was never interrupted.

    Args:
        objectives: Objectives that take turns.
        seeds: One seed for each member.
        epoch: Number of the epoch.
        after_update: Function called with the losses (members,) of each batch.
        turns: Seed of the order in which objectives take turns; by default the first member's.
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
    """Return the loss of each example; it is zero if the label is below 0."""
    if logits.ndim == 1:
        return torch.where(labels >= 0, -logits, 0.0)
    return cross_entropy(logits, labels, reduction="none")


def shuffled_rows(
    objectives: Sequence[Objective],
    seeds: Sequence[int],
    epoch: int,
    turns: int | None = None,
) -> list[tuple[int, IntArray]]:
    """Return the epoch's batches as (objective, rows), shuffled over all objectives.

    The order depends only on the seeds, the epoch and the number of examples, never on the labels:
    θ_M and θ_O see the same order. Rows are (members, examples).

    Args:
        objectives: Objectives that take turns.
        seeds: One seed for each member.
        epoch: Number of the epoch.
        turns: Seed of the order in which objectives take turns; by default the first member's.
    """
    steps: list[tuple[int, IntArray]] = []
    for index, objective in enumerate(objectives):
        if not objective.is_learnt_in(epoch):
            continue
        purpose = objective.name if index else "first"
        by_member = [objective.batches(seed, purpose, epoch, k) for k, seed in enumerate(seeds)]
        steps += [(index, np.stack(rows)) for rows in zip(*by_member, strict=True)]
    if len(objectives) == 1:
        return steps
    rng = generator(seeds[0] if turns is None else turns, "mix", epoch)
    return [steps[i] for i in rng.permutation(len(steps))]


@contextmanager
def only_trainable(objectives: Sequence[Objective], index: int) -> Iterator[None]:
    """Compute gradients for this objective's parameters only, while active; all flags are put back.

    If the gradients of frozen parameters count, too, all gradients are computed.
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
    """Return a context of lower precision if the settings ask for it."""
    if settings.autocast == "none":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)


@contextmanager
def out_of_memory_explained(settings: FineTuneSettings) -> Iterator[None]:
    """Turn running out of memory into an error with advice, while active."""
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
