"""Retrains windows of layers: they go back to pre-training and learn the clean examples anew.

Narrow models are retrained several windows at a time, those that begin at the same layer. Outcomes
are written when these are done, so an interrupted run goes on with those that are missing.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from memloc.arrays import BoolArray, IntArray
from memloc.engine.loop import (
    gradients_for,
    in_stacks,
    learning_groups,
    members_at_once,
    one_objective,
    train_epoch,
)
from memloc.engine.stacked import Stacked
from memloc.errors import ScoreError
from memloc.methods.prefix import Plain, Prefix
from memloc.methods.retraining import Retraining
from memloc.model.parts import find_parts
from memloc.model.predict import evaluating, length_batches
from memloc.model.stack import Stack, undropped
from memloc.progress import Advance
from memloc.protocol import FineTuneSettings
from memloc.run.folder import Run
from memloc.seeds import generator
from memloc.stats.windows import window_name
from memloc.store import paths
from memloc.store.identity import hash_weights
from memloc.store.memo import ARRAYS, Arrays, Maker, memo, unfinished_key

MEMORY = 2**30
"""Bytes for the states below a window; more of them go to a file."""


@dataclass(frozen=True)
class WindowOutcome:
    """The outcome of one window, of each example: is its label no longer predicted?"""

    noisy_wrong: BoolArray
    clean_wrong: BoolArray


@dataclass(frozen=True)
class Setup:
    """What all windows share."""

    stack: Stack
    """The final model; windows are retrained in copies of it."""
    pretrained: list[list[Tensor]]
    """The parameters of each block before fine-tuning."""
    after: tuple[str, ...]
    """Names of the parameters after the last block that learn with every window."""
    forward: Prefix | Plain
    labels: Tensor
    """Assigned ones, of all examples."""
    lengths: IntArray
    train: IntArray
    held_out: IntArray
    noisy: IntArray
    settings: FineTuneSettings
    seed: int
    frozen_dropout: bool
    folder: Path
    """Where finished windows are kept."""
    decided_by: Mapping[str, Any]
    """What decides an outcome."""

    @property
    def shares_states(self) -> bool:
        """Whether windows that begin at the same layer begin with the same states."""
        return isinstance(self.forward, Prefix)


@contextmanager
def prepared(run: Run, settings: Retraining, memory: int = MEMORY) -> Iterator[Setup]:
    """Load weights and data for retraining any window; what is kept of states goes on exit."""
    final, pretrained = run.load("final"), run.load("pretrained")
    stack, encoded = final.stack, run.encode(final)
    train, held_out = _split(run, settings.seed)
    folder = run.work(settings.name)
    training, parts = _training(run, settings), find_parts(stack)
    still = () if settings.trains_pooler else parts.pooler
    forward: Prefix | Plain
    if settings.frozen_dropout or training.clip_over == "all" or not stack.pads:
        forward = Plain(encoded, dropout=settings.frozen_dropout)
    else:
        forward = Prefix(stack, encoded, folder, memory)
    try:
        yield Setup(
            stack=stack,
            pretrained=[[p.detach() for p in b.parameters()] for b in pretrained.stack.blocks],
            after=tuple(name for name in parts.after if name not in still),
            forward=forward,
            labels=torch.from_numpy(run.noisy.assigned).to(stack.device),
            lengths=encoded.lengths,
            train=train,
            held_out=held_out,
            noisy=run.noisy_rows,
            settings=training,
            seed=settings.seed,
            frozen_dropout=settings.frozen_dropout,
            folder=folder,
            decided_by=_decided_by(run, settings, [final.model, pretrained.stack.blocks]),
        )
    finally:
        forward.close()


def stacks_of(setup: Setup, windows: Sequence[range]) -> list[list[range]]:
    """Windows that are retrained as one: they begin at the same layer; wide ones first.

    It depends on the windows and the model alone, so outcomes do not depend on what was there.
    """
    stack = setup.stack
    most = members_at_once(stack, setup.settings, stack.device) if setup.shares_states else 1
    wide_first = sorted(windows, key=lambda window: -window.stop)
    return in_stacks(wide_first, most, alike=lambda window: window.start)


def outcomes_of(
    setup: Setup, windows: Sequence[range], advance: Advance = lambda _: None
) -> dict[range, WindowOutcome]:
    """Return the outcomes of windows that are trained together: kept ones, or new ones."""
    names = [window_name(window) for window in windows]
    updates = setup.settings.epochs * -(-len(setup.train) // setup.settings.batch_size)

    def make() -> Arrays:
        found = retrain_windows(setup, windows, advance)
        made = [found[window] for window in windows]
        return {
            "noisy_wrong": np.stack([one.noisy_wrong for one in made]),
            "clean_wrong": np.stack([one.clean_wrong for one in made]),
        }

    kept = memo(
        paths.kept_windows(setup.folder, names[0]),
        unfinished_key(
            Maker(Retraining.name, Retraining.version), {**setup.decided_by, "windows": names}
        ),
        make,
        ARRAYS,
        reused=lambda: advance(updates * len(windows)),
    )
    both = zip(kept["noisy_wrong"], kept["clean_wrong"], strict=True)
    return {window: WindowOutcome(*wrong) for window, wrong in zip(windows, both, strict=True)}


def retrain_windows(
    setup: Setup, windows: Sequence[range], advance: Advance = lambda _: None
) -> dict[range, WindowOutcome]:
    """Reset windows, train each and what follows the blocks, and see which labels are lost.

    The windows begin at the same layer, wide ones first. Each is that of a copy of the final model,
    and the copies are trained as one.
    """
    assert [*windows] == sorted(windows, key=len, reverse=True)
    setup.forward.reach(windows[0].start)
    inside = [sum(index in w for w in windows) for index in range(setup.stack.depth)]
    stack = _reset(setup, inside)
    after, *blocks = learning_groups(stack, embeddings=False)
    groups = [{n: p for n, p in after.items() if n in setup.after}]
    groups += [blocks[index] for index in windows[0]]
    with (
        gradients_for(setup.stack.model, []),
        undropped(setup.stack.model),
        one_objective(
            stack,
            groups,
            name="retraining",
            logits=lambda rows: setup.forward.logits(rows, stack),
            labels=setup.labels.expand(len(windows), -1),
            lengths=setup.lengths,
            settings=setup.settings,
            rows=setup.train,
        ) as objective,
    ):
        if not setup.frozen_dropout:
            for block, learns in zip(stack.blocks, inside, strict=True):
                block.train(learns > 0)
        for epoch in range(1, setup.settings.epochs + 1):
            train_epoch([objective], [setup.seed] * len(windows), epoch, advance)
    rows = np.concatenate([setup.noisy, setup.held_out])
    wrong = zip(windows, _wrong(setup, stack, rows), strict=True)
    return {window: WindowOutcome(*np.split(lost, [len(setup.noisy)])) for window, lost in wrong}


def missed(setup: Setup) -> BoolArray:
    """Whether the final model does not predict an example's label, noisy and held-out ones."""
    setup.forward.reach(0)
    return _wrong(setup, setup.stack, np.concatenate([setup.noisy, setup.held_out])).flatten()


def _reset(setup: Setup, inside: Sequence[int]) -> Stack:
    """Copies of the final model with pre-trained weights in so many of them, block by block."""
    final, copies = setup.stack, max(inside)
    stack = final.copied() if copies == 1 else Stacked([final] * copies, in_block=inside)
    with torch.no_grad():
        for block, before, number in zip(stack.blocks, setup.pretrained, inside, strict=True):
            for parameter, value in zip(block.parameters(), before, strict=True) if number else ():
                parameter.copy_(value)
    return stack


def _wrong(setup: Setup, stack: Stack, rows: IntArray) -> BoolArray:
    """(members, rows): whether each no longer predicts an example's label."""
    members = len(stack.members) if isinstance(stack, Stacked) else 1
    wrong = np.zeros((members, len(rows)), dtype=np.bool_)
    with evaluating(stack.model):
        for picked in length_batches(stack, setup.lengths[rows]):
            logits = setup.forward.logits(np.tile(rows[picked], members), stack)
            predicted = logits.argmax(-1).view(members, -1)
            wrong[:, picked] = (predicted != setup.labels[rows[picked]]).cpu().numpy()
    return wrong


def _split(run: Run, seed: int) -> tuple[IntArray, IntArray]:
    """Clean examples to train on, and as many held out as there are noisy ones."""
    noisy, clean = len(run.noisy_rows), run.clean_rows
    if not 0 < noisy < len(clean):
        raise ScoreError(
            f"{run.name} has {noisy} noisy and {len(clean)} clean examples; retraining needs "
            "a noisy one, and more clean ones than noisy ones."
        )
    rng = generator(seed, "held out")
    held_out = np.sort(rng.choice(clean, noisy, replace=False))
    return np.setdiff1d(clean, held_out), held_out


def _training(run: Run, own: Retraining) -> FineTuneSettings:
    """Fine-tuning's schedule, decay and clipping with retraining's rate, batches and epochs."""
    return run.settings.finetune.replace(
        {"learning_rate": own.learning_rate, "batch_size": own.batch_size, "epochs": own.epochs}
    )


def _decided_by(run: Run, own: Retraining, weights: Sequence[nn.Module]) -> dict[str, Any]:
    return {
        "settings": own.model_dump(mode="json", exclude={"normalise", "widths"}),
        "training": _training(run, own).model_dump(mode="json", exclude={"gradient_checkpointing"}),
        "text": run.settings.text.model_dump(),
        "data": run.record.task.hash,
        "weights": [hash_weights(module.named_parameters()) for module in weights],
    }
