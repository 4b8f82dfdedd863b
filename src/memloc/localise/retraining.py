"""Layer retraining: windows of layers go back to pre-training and learn the clean examples anew.

Windows are independent pieces of work. Each one's outcome is written when it is done, so an
interrupted run goes on with those that are missing, and windows may run anywhere in any order.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from memloc.data.encode import Encoded
from memloc.errors import ScoreError
from memloc.localise.base import Subject, check_pair
from memloc.localise.prefix import Plain, Prefix
from memloc.localise.scores import LayerScores, Outcomes, from_outcomes
from memloc.models.device import suitable_threads
from memloc.models.parts import find_parts
from memloc.models.stack import Stack
from memloc.progress import Advance, track
from memloc.protocol import FineTuneSettings, Protocol
from memloc.records import BoolArray, IntArray, as_stored, read_json, versions, write_json
from memloc.score.matrix import windows
from memloc.seeds import generator
from memloc.train.evaluate import evaluating, length_batches
from memloc.train.finetune import Objective, learning, train_epoch
from memloc.train.gathering import Parameters

MEMORY = 2**30
"""Bytes for the states below a window; more of them go to a file."""


@dataclass(frozen=True)
class Retraining:
    """Resets windows of the final model's layers and trains them on clean examples; section 3.1."""

    widths: tuple[int, ...] | None = None
    """Only windows of so many layers, and the full one, which others are measured by."""
    memory: int = MEMORY
    """Bytes for the states below a window."""
    name = "retraining"
    needs = ("final", "pretrained")

    def score_layers(self, subject: Subject) -> LayerScores:
        """Which noisy (and held-out clean) labels are lost after retraining each window."""
        with prepared(subject, self.memory) as setup, suitable_threads(setup.stack.width):
            every = self._windows(setup.stack.depth)
            updates = setup.settings.epochs * -(-len(setup.train) // setup.settings.batch_size)
            with track(f"{subject.name} · retraining", len(every) * updates) as advance:
                found = {w: piece(setup, w, advance) for w in sorted(every, key=_by_start)}
        outcomes = Outcomes(
            tuple(every),
            setup.noisy,
            np.stack([found[window].noisy_wrong for window in every], axis=1),
            setup.held_out,
            np.stack([found[window].clean_wrong for window in every], axis=1),
        )
        settings = subject.protocol.retraining
        about = {"retraining": settings.model_dump(), "trained_on": len(setup.train)}
        return from_outcomes(
            self.name, outcomes, setup.stack.depth, normalise=settings.normalise, about=about
        )

    def pieces(self, subject: Subject) -> list[range]:
        """All windows to retrain, in the order in which they share most work."""
        return sorted(self._windows(subject.load("final").stack.depth), key=_by_start)

    def _windows(self, depth: int) -> list[range]:
        widths = range(1, depth) if self.widths is None else self.widths
        wanted = {*widths, depth}
        return [window for window in windows(depth) if len(window) in wanted]


@dataclass(frozen=True)
class Piece:
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
    """Names of the parameters after the last block, which always learn."""
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
def prepared(subject: Subject, memory: int = MEMORY) -> Iterator[Setup]:
    """Load weights and data for retraining any window; what is kept of states goes on exit."""
    final, pretrained = subject.load("final"), subject.load("pretrained")
    check_pair(final, pretrained, "pretrained")
    stack, encoded, settings = final.stack, subject.encode(final), subject.protocol.retraining
    train, held_out = _split(subject)
    folder = subject.work / "retraining"
    forward: Prefix | Plain
    if settings.frozen_dropout:
        forward = Plain(stack, encoded)
    else:
        forward = Prefix(stack, encoded, folder, memory)
    try:
        yield Setup(
            stack=stack,
            pretrained=[[p.detach() for p in b.parameters()] for b in pretrained.stack.blocks],
            after=find_parts(stack).after,
            forward=forward,
            labels=torch.from_numpy(subject.noisy.assigned).to(stack.device),
            lengths=encoded.lengths,
            train=train,
            held_out=held_out,
            noisy=subject.noisy_rows,
            settings=_training(subject.protocol),
            seed=settings.seed,
            frozen_dropout=settings.frozen_dropout,
            folder=folder,
            fingerprint=_fingerprint(subject, encoded, [final.model, pretrained.stack.blocks]),
        )
    finally:
        forward.close()


def piece(setup: Setup, window: range, advance: Advance = lambda _: None) -> Piece:
    """The outcome of a window: read if it is there and was made of the same, else made."""
    path = setup.folder / f"window-{window.start + 1}-{window.stop}.json"
    if path.is_file():
        record = read_json(path)
        if record.get("fingerprint") == setup.fingerprint:
            advance(setup.settings.epochs * -(-len(setup.train) // setup.settings.batch_size))
            with as_stored(path):
                wrong = record["noisy_wrong"], record["clean_wrong"]
                return Piece(np.isin(setup.noisy, wrong[0]), np.isin(setup.held_out, wrong[1]))
    made = retrain_window(setup, window, advance)
    record = {
        "fingerprint": setup.fingerprint,
        "window": [window.start + 1, window.stop],
        "noisy_wrong": setup.noisy[made.noisy_wrong].tolist(),
        "clean_wrong": setup.held_out[made.clean_wrong].tolist(),
    }
    write_json(path, record)
    return made


def retrain_window(setup: Setup, window: range, advance: Advance = lambda _: None) -> Piece:
    """Reset a window, train it and what follows the blocks, and see which labels are lost."""
    groups = setup.learning_in(window)
    setup.forward.reach(window.start)
    with _reset(setup, window, groups):
        with learning(setup.stack.model, groups) as tensors:
            if not setup.frozen_dropout:
                for index in set(range(setup.stack.depth)) - set(window):
                    setup.stack.blocks[index].eval()
            objective = Objective(
                name="retraining",
                logits=lambda rows: setup.forward.logits(setup.train[rows]),
                labels=setup.labels[setup.train],
                lengths=setup.lengths[setup.train],
                tensors=_merged(tensors),
                parameters=_merged(groups),
                settings=setup.settings,
            )
            for epoch in range(1, setup.settings.epochs + 1):
                train_epoch([objective], setup.seed, epoch, advance)
        wrong = _wrong(setup, np.concatenate([setup.noisy, setup.held_out]))
    return Piece(wrong[: len(setup.noisy)], wrong[len(setup.noisy) :])


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


def _split(subject: Subject) -> tuple[IntArray, IntArray]:
    """Clean examples to train on, and as many held out as there are noisy ones."""
    noisy, clean = len(subject.noisy_rows), subject.clean_rows
    if not 0 < noisy < len(clean):
        raise ScoreError(
            f"{subject.name} has {noisy} noisy and {len(clean)} clean examples; retraining needs "
            "a noisy one, and more clean ones than noisy ones."
        )
    rng = generator(subject.protocol.retraining.seed, "held out")
    held_out = np.sort(rng.choice(clean, noisy, replace=False))
    return np.setdiff1d(clean, held_out), held_out


def _training(protocol: Protocol) -> FineTuneSettings:
    """Fine-tuning's schedule, decay and clipping with retraining's rate, batches and epochs."""
    own = protocol.retraining
    return protocol.finetune.replace(
        {"learning_rate": own.learning_rate, "batch_size": own.batch_size, "epochs": own.epochs}
    )


def _fingerprint(subject: Subject, encoded: Encoded, weights: Sequence[nn.Module]) -> str:
    settings = subject.protocol.retraining.model_dump(exclude={"normalise"})
    training = _training(subject.protocol).model_dump(mode="json")
    digest = hashlib.sha256(json.dumps([settings, training, versions()]).encode())
    labels = subject.noisy.assigned, subject.noisy.is_noisy
    for array in (encoded.tokens, encoded.offsets, *labels):
        digest.update(np.ascontiguousarray(array).tobytes())
    for module in weights:
        for name, values in module.named_parameters():
            digest.update(name.encode())
            digest.update(values.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def _merged(groups: Sequence[Parameters]) -> Parameters:
    return {f"{i}.{name}": p for i, group in enumerate(groups) for name, p in group.items()}


def _by_start(window: range) -> tuple[int, int]:
    return window.start, window.stop
