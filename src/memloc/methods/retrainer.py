"""Retrains windows of layers: they go back to pre-training and learn the clean examples anew.

Windows are independent. Each one's outcome is written when it is done, so an interrupted run goes
on with those that are missing, and windows may run anywhere in any order.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from memloc.errors import ScoreError
from memloc.identity import hash_weights, hashed
from memloc.methods.prefix import Plain, Prefix
from memloc.methods.retraining import Retraining
from memloc.models.check import check_pair
from memloc.models.parts import find_parts
from memloc.models.stack import Stack
from memloc.progress import Advance
from memloc.protocol import FineTuneSettings
from memloc.records import BoolArray, IntArray, as_stored, read_json, versions, write_json
from memloc.run import Run
from memloc.seeds import generator
from memloc.training.gathering import Parameters, merged
from memloc.training.loop import Objective, counted_groups, learning, train_epoch
from memloc.training.predict import evaluating, length_batches

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
    """The final model; it is as it was whenever no window is being retrained."""
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
    fingerprint: str
    """Of all that decides an outcome."""

    def learning_in(self, window: range) -> list[Parameters]:
        """What learns, in groups: what follows the blocks, and each block of the window."""
        everything = dict(self.stack.model.named_parameters())
        after = {name: everything[name] for name in self.after}
        return [after, *(dict(self.stack.blocks[i].named_parameters()) for i in window)]


@contextmanager
def prepared(run: Run, settings: Retraining, memory: int = MEMORY) -> Iterator[Setup]:
    """Load weights and data for retraining any window; what is kept of states goes on exit."""
    final, pretrained = run.load("final"), run.load("pretrained")
    check_pair(final, pretrained, "pretrained")
    stack, encoded = final.stack, run.encode(final)
    train, held_out = _split(run, settings.seed)
    folder = run.work(settings.name)
    training, parts = _training(run, settings), find_parts(stack)
    still = () if settings.trains_pooler else parts.pooler
    forward: Prefix | Plain
    if settings.frozen_dropout or training.clip_over == "all" or not stack.pads:
        forward = Plain(stack, encoded, dropout=settings.frozen_dropout)
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
            fingerprint=_fingerprint(run, settings, [final.model, pretrained.stack.blocks]),
        )
    finally:
        forward.close()


def outcome_of(setup: Setup, window: range, advance: Advance = lambda _: None) -> WindowOutcome:
    """The outcome of a window: read if it is there and was made of the same, else made."""
    path = setup.folder / f"window-{window.start + 1}-{window.stop}.json"
    if path.is_file():
        record = read_json(path)
        if record.get("fingerprint") == setup.fingerprint:
            advance(setup.settings.epochs * -(-len(setup.train) // setup.settings.batch_size))
            with as_stored(path):
                noisy = np.isin(setup.noisy, record["noisy_wrong"])
                return WindowOutcome(noisy, np.isin(setup.held_out, record["clean_wrong"]))
    made = retrain_window(setup, window, advance)
    record = {
        "fingerprint": setup.fingerprint,
        "window": [window.start + 1, window.stop],
        "noisy_wrong": setup.noisy[made.noisy_wrong].tolist(),
        "clean_wrong": setup.held_out[made.clean_wrong].tolist(),
    }
    write_json(path, record)
    return made


def retrain_window(setup: Setup, window: range, advance: Advance = lambda _: None) -> WindowOutcome:
    """Reset a window, train it and what follows the blocks, and see which labels are lost."""
    groups = setup.learning_in(window)
    counted = counted_groups(setup.stack, groups, setup.settings)
    setup.forward.reach(window.start)
    with _reset(setup, window, groups):
        with learning(setup.stack.model, [*groups, *counted]) as tensors:
            if not setup.frozen_dropout:
                for index in set(range(setup.stack.depth)) - set(window):
                    setup.stack.blocks[index].eval()
            objective = Objective(
                name="retraining",
                logits=lambda rows: setup.forward.logits(setup.train[rows]),
                labels=setup.labels[setup.train],
                lengths=setup.lengths[setup.train],
                tensors=_merged(tensors[: len(groups)]),
                parameters=_merged(groups),
                settings=setup.settings,
                counted=merged(tensors[len(groups) :]),
            )
            for epoch in range(1, setup.settings.epochs + 1):
                train_epoch([objective], setup.seed, epoch, advance)
        wrong = _wrong(setup, np.concatenate([setup.noisy, setup.held_out]))
    return WindowOutcome(wrong[: len(setup.noisy)], wrong[len(setup.noisy) :])


@contextmanager
def _reset(setup: Setup, window: range, groups: Sequence[Parameters]) -> Iterator[None]:
    """Pre-trained weights in the window; all that may change is put back, bit for bit."""
    changing = [p for group in groups for p in group.values()]
    kept = [p.detach().clone() for p in changing]
    with torch.no_grad():
        for index in window:
            block = setup.stack.blocks[index].parameters()
            for parameter, before in zip(block, setup.pretrained[index], strict=True):
                parameter.copy_(before)
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, value in zip(changing, kept, strict=True):
                parameter.copy_(value)


def _wrong(setup: Setup, rows: IntArray) -> BoolArray:
    wrong = np.zeros(len(rows), dtype=np.bool_)
    with evaluating(setup.stack.model):
        for picked in length_batches(setup.stack, setup.lengths[rows]):
            predicted = setup.forward.logits(rows[picked]).argmax(-1)
            wrong[picked] = (predicted != setup.labels[rows[picked]]).cpu().numpy()
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


def _fingerprint(run: Run, own: Retraining, weights: Sequence[nn.Module]) -> str:
    facts = {
        "settings": own.model_dump(mode="json", exclude={"normalise", "widths"}),
        "training": _training(run, own).model_dump(mode="json"),
        "text": run.settings.text.model_dump(),
        "data": run.record.task.hash,
        "weights": [hash_weights(module.named_parameters()) for module in weights],
        "versions": versions(),
    }
    return hashed(facts)


def _merged(groups: Sequence[Parameters]) -> Parameters:
    return {f"{i}.{name}": p for i, group in enumerate(groups) for name, p in group.items()}
