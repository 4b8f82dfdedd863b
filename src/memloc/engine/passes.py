"""A pass: models that are computed in one forward and backward pass, or one model alone."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from memloc.arrays import FloatArray, IntArray
from memloc.data.encode import Encoded
from memloc.engine.learner import Auxiliary, CurvePoint, Curves, Learner, Part, States, Watch
from memloc.engine.loop import Objective
from memloc.engine.objectives import (
    MakeObjective,
    gradients_for,
    planted_objectives,
    share_body,
    task_objective,
)
from memloc.engine.packing import training_logits
from memloc.engine.prefix import Prefix
from memloc.engine.stacked import Stacked, together
from memloc.engine.state import load_state
from memloc.model.load import Classifier
from memloc.model.predict import (
    evaluating,
    length_batches,
    log_probabilities,
    predict,
    predicted,
    to_batch,
    vectors_of,
)
from memloc.model.stack import Batch, Stack, undropped
from memloc.protocol import FineTuneSettings

AUXILIARY = "auxiliary"
"""Name of the objective of an auxiliary task."""
Logits = Callable[[IntArray], Tensor]
"""Function from rows of the texts, model by model, to logits."""


@dataclass
class Work:
    """Texts, settings and files that all passes of one call of `fit` share."""

    texts: Encoded
    settings: FineTuneSettings
    auxiliary: Auxiliary | None
    watch: Watch
    scratch: Path
    """Folder for states that do not fit into memory."""
    kept: Prefix | None = None
    """States before the layers that are trained, once they are needed."""

    def close(self) -> None:
        """Release memory and files."""
        if self.kept is not None:
            self.kept.close()

    def keeps_states(self, stack: Stack, part: Part) -> bool:
        """Return whether frozen blocks below the trained layers give the same states every time."""
        settings = self.settings
        drops = settings.frozen_dropout or self.auxiliary is not None
        is_fitting = stack.pads and not stack.is_language_model
        return bool(part.layers) and not drops and settings.clip_over == "trained" and is_fitting


class Trained:
    """A model during and after its training."""

    def __init__(self, learner: Learner, model: Classifier, work: Work) -> None:
        self.learner = learner
        self.name = learner.name
        self.model = model
        self.curve: list[CurvePoint] = []
        """One row for each epoch."""
        self.loss = torch.empty(0)
        """Mean loss of the last batch."""
        self.trained_with: tuple[str, ...] = (learner.name,)
        """The names of all models that were trained in one pass, this one included."""
        self.logits: NDArray[np.float32] = np.empty((0, 0), np.float32)
        """Logits of the rows that were asked for, once the model is trained."""
        self._has_frozen_blocks = learner.parts[0].layers == () and work.auxiliary is None
        self._vectors: dict[int, Tensor] = {}

    @property
    def stack(self) -> Stack:
        """The model as embed → blocks → finish."""
        return self.model.stack

    def predict(self, texts: Encoded) -> NDArray[np.float32]:
        """Return the logits (texts, classes) of the model as it is now, without dropout."""
        if not self._has_frozen_blocks or self.stack.readout == "all":
            return predict(self.stack, texts)
        with evaluating(self.stack.model):
            logits: NDArray[np.float32] = self.stack.finish(self.vectors(texts)).cpu().numpy()
        return logits

    def predicted(self, texts: Encoded) -> IntArray:
        """Return the label that the model predicts for each text; 0 for a continuation that it
        recalls.
        """
        if self.stack.is_language_model:
            return predicted(self.stack, texts)
        return np.asarray(self.predict(texts).argmax(1), dtype=np.int64)

    def vectors(self, texts: Encoded) -> Tensor:
        """Return the head's inputs from frozen blocks, which never change and are computed once."""
        if id(texts) not in self._vectors:
            last = vectors_of(self.stack, texts)[:, -1]
            self._vectors[id(texts)] = torch.tensor(last, device=self.stack.device)
        return self._vectors[id(texts)]


class Pass:
    """Models that are trained in one pass, each as if it were alone."""

    def __init__(self, learners: Sequence[Learner], work: Work) -> None:
        self.work = work
        self.trained = [Trained(learner, learner.start(), work) for learner in learners]
        for one in self.trained:
            one.trained_with = tuple(self.names)
        self.parts = learners[0].parts
        self.seeds = [learner.seed for learner in learners]
        self.stack = together([one.stack for one in self.trained], in_block=self._in_block)
        self.updates = 0
        self._began = time.perf_counter()
        if work.kept is None and work.keeps_states(self.stack, self.parts[0]):
            work.kept = Prefix(self._unchanged, work.texts, work.scratch)

    @property
    def names(self) -> list[str]:
        """Names of the models."""
        return [one.name for one in self.trained]

    @cached_property
    def _in_block(self) -> list[int] | None:
        """Number of models that change each block, always the first ones; None if all change the
        same.
        """
        layers = [one.learner.parts[0].layers for one in self.trained]
        if len({*layers}) == 1:
            return None
        depth = self.trained[0].stack.depth
        return [sum(index in (some or ()) for some in layers) for index in range(depth)]

    @property
    def _unchanged(self) -> Stack:
        """Model whose blocks outside its own layers still have the weights all models started
        from.
        """
        return self.stack.members[-1] if isinstance(self.stack, Stacked) else self.stack

    @property
    def turns(self) -> int | None:
        """Seed of the order in which objectives take turns."""
        return None if self.work.auxiliary is None else self.work.auxiliary.seed

    @contextmanager
    def objectives(self) -> Iterator[list[Objective]]:
        """Let gradients and dropout reach the trained parameters, while active.

        Yields the objectives that these parameters are trained for, that of an auxiliary task last.
        """
        labels = np.stack([one.learner.labels for one in self.trained])
        by_model = torch.from_numpy(labels).to(self.stack.device)
        if self.work.auxiliary is not None:
            with self._planted(by_model, self.work.auxiliary) as objectives:
                yield objectives
            return
        settings = self.work.settings
        (part,) = self.parts
        make = self._maker(" and ".join(self.names), by_model, self._rows(0))
        with ExitStack() as frozen:
            if self._in_block is not None:
                # A block that some models do not change runs for these through one of them.
                frozen.enter_context(gradients_for(self._unchanged.model, []))
                frozen.enter_context(undropped(self._unchanged.model))
            with task_objective(self.stack, make, settings, part.layers, part.without) as objective:
                if part.layers is not None and not settings.frozen_dropout:
                    for index, block in enumerate(self.stack.blocks):
                        block.train(index in part.layers)
                yield [objective]

    def _rows(self, part: int) -> IntArray:
        """Return the rows of a part that each model learns, (members, examples)."""
        texts = self.work.texts
        return np.stack([one.learner.parts[part].rows_of(texts) for one in self.trained])

    def _maker(self, name: str, labels: Tensor, rows: IntArray) -> MakeObjective:
        lengths = self.work.texts.lengths
        settings = self.work.settings
        make = partial(Objective, unlearns=self.trained[0].learner.unlearns)
        return partial(make, name, self.logits, labels, lengths, settings=settings, rows=rows)

    @contextmanager
    def _planted(self, labels: Tensor, auxiliary: Auxiliary) -> Iterator[list[Objective]]:
        second = self._second(auxiliary, labels.device)
        planted = []
        for number, part in enumerate(self.parts):
            name = f"group {number + 1}" if number else " and ".join(self.names)
            make = self._maker(name, labels, self._rows(number))
            epochs = {"first_epoch": part.first_epoch, "last_epoch": part.last_epoch}
            planted.append((part, partial(make, **epochs)))
        answers = torch.from_numpy(np.stack([auxiliary.labels[name] for name in self.names]))
        compute = logits_of(second, auxiliary.texts, auxiliary.settings)
        lengths = auxiliary.texts.lengths
        given = AUXILIARY, compute, answers.to(labels.device), lengths
        with planted_objectives(
            (self.stack, second),
            planted,
            partial(Objective, *given, settings=auxiliary.settings),
            self.work.settings,
            pooler_and_norm=auxiliary.pooler_and_norm,
        ) as objectives:
            yield objectives

    def _second(self, auxiliary: Auxiliary, device: torch.device) -> Stack:
        """Return the models of the auxiliary task, which share their bodies with the learners."""
        if auxiliary.start is None:
            return self.stack
        others = [auxiliary.start() for _ in self.trained]
        for one, other in zip(self.trained, others, strict=True):
            share_body(one.model, other)
            other.model.to(device)
        return together([other.stack for other in others], beside=self.stack)

    @cached_property
    def logits(self) -> Logits:
        """Function that computes logits in training, from rows of the texts."""
        layers = self.parts[0].layers
        settings = self.work.settings
        is_plain = settings.frozen_dropout or self.stack.is_language_model
        if layers is None or is_plain or self.work.auxiliary is not None:
            return logits_of(self.stack, self.work.texts, settings)
        if self.work.kept is not None:
            self.work.kept.reach(layers[0], self._unchanged)
            return partial(self.work.kept.logits, stack=self.stack)
        if settings.clip_over == "all" or layers or self.stack.readout == "all":
            batch = partial(to_batch, self.work.texts, device=self.stack.device)
            return lambda rows: self.stack.undropped_logits(batch(rows))
        return self._finished_vectors

    def _finished_vectors(self, rows: IntArray) -> Tensor:
        """Return the logits of heads on frozen blocks, which are run only once."""
        texts = self.work.texts
        pairs = zip(self.trained, np.split(rows, len(self.trained)), strict=True)
        return self.stack.finish(
            torch.cat([one.vectors(texts)[rows_of_one] for one, rows_of_one in pairs])
        )

    def resume(self, state: States | None, objectives: Sequence[Objective]) -> int:
        """Continue from a stored state, if there is one, and return the number of finished
        epochs.
        """
        if state is not None:
            curves = load_state(state.path(*self.names), objectives, state.key)
            for one in self.trained:
                one.curve = curves.get(one.name, [])
        self.updates = sum(objective.updates for objective in objectives)
        self.work.watch.advance(self.updates * len(self.trained))
        self._tell()
        return len(self.trained[0].curve)

    def after_update(self, losses: Tensor) -> None:
        """Report an update to the watchers."""
        self.updates += 1
        self.work.watch.advance(len(self.trained))
        for one, loss in zip(self.trained, losses, strict=True):
            one.loss = loss
        self._tell()

    def _tell(self) -> None:
        if self.work.watch.after_update is not None:
            for one in self.trained:
                self.work.watch.after_update(one, self.updates)

    def after_epoch(self, epoch: int, losses: dict[str, FloatArray]) -> bool:
        """Add a row to each model's curve; return whether all models need no further epoch."""
        pause = np.full(len(self.trained), np.nan)  # if the auxiliary task alone learns
        first = [loss for name, loss in losses.items() if name != AUXILIARY]
        means = np.mean(first, axis=0) if first else pause
        ended = []
        for k, one in enumerate(self.trained):
            row: CurvePoint = {"training": one.name, "epoch": epoch, "loss": float(means[k])}
            one.curve.append(row)
            watch = self.work.watch.after_epoch
            ended.append(bool(watch is not None and watch(one)))
            if AUXILIARY in losses:
                row["auxiliary_loss"] = float(losses[AUXILIARY][k])
        seconds = (time.perf_counter() - self._began) / len(self.trained)
        self._began = time.perf_counter()
        for one in self.trained:
            one.curve[-1]["seconds"] = seconds
        return all(ended)

    @property
    def curves(self) -> Curves:
        """Measurements so far, by model."""
        return {one.name: one.curve for one in self.trained}

    def finished(self, rows: IntArray | None) -> list[Trained]:
        """Return the trained models with their logits of the texts at `rows`, if any."""
        if rows is None:
            return self.trained
        if self.work.kept is None:
            for one in self.trained:
                one.logits = predict(one.stack, self.work.texts, rows)
            return self.trained
        members = len(self.trained)
        shape = members, len(rows), self.stack.model.config.num_labels
        all_logits = np.zeros(shape, dtype=np.float32)
        with evaluating(self.stack.model), evaluating(self._unchanged.model):
            for picked in length_batches(self.stack, self.work.texts.lengths[rows]):
                logits = self.logits(np.tile(rows[picked], members))
                all_logits[:, picked] = logits.view(members, len(picked), -1).float().cpu().numpy()
        for one, logits_of_one in zip(self.trained, all_logits, strict=True):
            one.logits = logits_of_one
        return self.trained


def logits_of(stack: Stack, texts: Encoded, settings: FineTuneSettings) -> Logits:
    """Return the fastest exact function to logits for this model and memory, with dropout."""
    if stack.is_language_model:
        return partial(log_probabilities, stack, texts)
    if settings.gradient_checkpointing and not isinstance(stack, Stacked):
        return lambda rows: _checkpointed(stack, to_batch(texts, rows, stack.device))
    logits = stack.logits if isinstance(stack, Stacked) else training_logits(stack)
    return lambda rows: logits(to_batch(texts, rows, stack.device))


def _checkpointed(stack: Stack, batch: Batch) -> Tensor:
    """Return logits with gradient checkpointing: blocks keep their input only, and run again
    backwards.

    The `gradient_checkpointing_enable` of transformers is not used: it refuses architectures that
    do not declare it (XLM, models with code of their own), and leaves its mark on the model.
    """
    blocks = list(stack.blocks)
    try:
        for block in blocks:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
        return stack.logits(batch)
    finally:
        for block in blocks:
            del block.forward
