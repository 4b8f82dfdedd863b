"""Retrains windows of layers: resets them to the pre-trained weights and trains on clean examples.

The outcome of a window is stored when it is done, so an interrupted run continues with the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from memloc.arrays import BoolArray, IntArray
from memloc.data.encode import Encoded
from memloc.engine.fit import fit
from memloc.engine.learner import Learner, Part, Watch
from memloc.errors import ScoreError
from memloc.model.load import Classifier
from memloc.model.parts import find_parts
from memloc.model.predict import predict, predicted
from memloc.model.stack import Stack
from memloc.progress import Advance
from memloc.protocol import FineTuneSettings
from memloc.run.folder import Run
from memloc.seeds import generator
from memloc.stats.windows import window_name
from memloc.store import paths
from memloc.store.identity import hash_weights
from memloc.store.memo import ARRAYS, Arrays, Maker, recall, unfinished_key

if TYPE_CHECKING:
    from memloc.methods.retraining import Retraining


@dataclass(frozen=True)
class WindowErrors:
    """Outcome of one window, for each example: whether its label is no longer predicted."""

    noisy_wrong: BoolArray
    clean_wrong: BoolArray


@dataclass(frozen=True)
class Setup:
    """Weights, data and settings that all windows share."""

    final: Classifier
    """The final model; windows are retrained in copies of it."""
    pretrained: list[list[Tensor]]
    """The parameters of each block before fine-tuning."""
    still: tuple[str, ...]
    """Names of the parameters after the last block that are not trained."""
    texts: Encoded
    labels: IntArray
    """Assigned labels of all examples."""
    train: IntArray
    held_out: IntArray
    noisy: IntArray
    settings: FineTuneSettings
    seed: int
    folder: Path
    """Folder in which finished windows are kept."""
    key: str
    """Cache key of everything that decides an outcome."""

    @property
    def looked_at(self) -> IntArray:
        """Rows whose labels may be lost: noisy examples, then held-out ones."""
        return np.concatenate([self.noisy, self.held_out])

    @property
    def updates(self) -> int:
        """Number of updates for each window."""
        return self.settings.epochs * -(-len(self.train) // self.settings.batch_size)

    def learner(self, window: range) -> Learner:
        """Return a window in the form in which `fit` trains it."""
        part = Part(self.train, tuple(window), self.still)
        start = partial(self.reset, window)
        return Learner(window_name(window), start, self.labels, self.seed, (part,))

    @torch.no_grad()
    def reset(self, window: range) -> Classifier:
        """Return a copy of the final model with the pre-trained weights in a window.

        Layers outside of the window never change, so the copy shares them with the final model.
        """
        model = self.final.copied(window)
        for layer in window:
            pairs = zip(model.stack.blocks[layer].parameters(), self.pretrained[layer], strict=True)
            for parameter, value in pairs:
                parameter.copy_(value)
        return model


def prepared(run: Run, settings: "Retraining") -> Setup:
    """Load the weights and data needed to retrain any window."""
    final, pretrained = run.load("final"), run.load("pretrained")
    train, held_out = _split(run, settings.seed)
    return Setup(
        final=final,
        pretrained=[[p.detach() for p in b.parameters()] for b in pretrained.stack.blocks],
        still=() if settings.trains_pooler else find_parts(final.stack).pooler,
        texts=run.encode(final),
        labels=run.noisy.assigned,
        train=train,
        held_out=held_out,
        noisy=run.noisy_rows,
        settings=_training(run, settings),
        seed=settings.seed,
        folder=run.work(settings.name),
        key=_key(run, settings, [final.model, pretrained.stack.blocks]),
    )


def window_errors(
    setup: Setup, windows: Sequence[range], advance: Advance = lambda _: None
) -> dict[range, WindowErrors]:
    """Return the outcomes of windows: stored ones are read, the others are computed."""
    errors = {window: kept for window, kept in _kept(setup, windows).items() if window in windows}
    advance(len(errors) * setup.updates)
    missing = [window for window in windows if window not in errors]
    return errors | (retrain_windows(setup, missing, advance) if missing else {})


def _kept(setup: Setup, windows: Sequence[range]) -> dict[range, WindowErrors]:
    """Return the stored outcomes in files that begin with one of these windows."""
    errors: dict[range, WindowErrors] = {}
    for window in windows:
        path = paths.kept_windows(setup.folder, window_name(window))
        kept = recall(path, setup.key, ARRAYS)
        if kept is not None:
            errors |= _outcomes(kept)
    return errors


def _outcomes(kept: Arrays) -> dict[range, WindowErrors]:
    stored = zip(kept["windows"].tolist(), kept["noisy_wrong"], kept["clean_wrong"], strict=True)
    return {range(*ends): WindowErrors(noisy, clean) for ends, noisy, clean in stored}


def retrain_windows(
    setup: Setup, windows: Sequence[range], advance: Advance = lambda _: None
) -> dict[range, WindowErrors]:
    """Reset windows, train each with everything after the blocks, and store which labels are
    lost.
    """
    named = {window_name(window): window for window in windows}
    learners = [setup.learner(window) for window in windows]
    watch = Watch(advance)
    # A language model returns its predictions instead of logits over its vocabulary.
    ask = setup.looked_at if setup.texts.starts is None else None
    errors: dict[range, WindowErrors] = {}
    for ready in fit(
        learners, setup.texts, setup.settings, watch=watch, ask=ask, scratch=setup.folder
    ):
        wrong = [_wrong(setup, trained.stack, trained.logits) for trained in ready]
        ready_windows = [named[trained.name] for trained in ready]
        arrays = {
            "windows": np.array([(window.start, window.stop) for window in ready_windows]),
            "noisy_wrong": np.stack([lost[: len(setup.noisy)] for lost in wrong]),
            "clean_wrong": np.stack([lost[len(setup.noisy) :] for lost in wrong]),
        }
        # Windows trained in one pass are stored in one file, so nothing depends on interruptions.
        ARRAYS.write(paths.kept_windows(setup.folder, ready[0].name), arrays, setup.key)
        errors |= _outcomes(arrays)
    return errors


def missed(setup: Setup) -> BoolArray:
    """Return whether the final model misses each label that may be lost."""
    stack = setup.final.stack
    is_labels = setup.texts.starts is None
    logits = predict(stack, setup.texts, setup.looked_at) if is_labels else np.empty((0, 0))
    return _wrong(setup, stack, logits)


def _wrong(setup: Setup, stack: Stack, logits: NDArray[np.floating]) -> BoolArray:
    """Return which of the labels that may be lost `logits` miss, or which texts are not
    recalled.
    """
    rows = setup.looked_at
    is_labels = setup.texts.starts is None
    predictions = logits.argmax(-1) if is_labels else predicted(stack, setup.texts)[rows]
    return np.asarray(predictions != setup.labels[rows])


def _split(run: Run, seed: int) -> tuple[IntArray, IntArray]:
    """Return the clean examples to train on, and as many held-out ones as there are noisy ones."""
    noisy = len(run.noisy_rows)
    clean = run.clean_rows
    if not 0 < noisy < len(clean):
        raise ScoreError(
            f"{run.name} has {noisy} noisy and {len(clean)} clean examples; retraining needs "
            "a noisy one, and more clean ones than noisy ones."
        )
    rng = generator(seed, "held out")
    held_out = np.sort(rng.choice(clean, noisy, replace=False))
    return np.setdiff1d(clean, held_out), held_out


def _training(run: Run, own: "Retraining") -> FineTuneSettings:
    """Return fine-tuning's schedule, decay and clipping with retraining's rate, batches and
    epochs.
    """
    return run.settings.finetune.replace(
        {
            "learning_rate": own.learning_rate,
            "batch_size": own.batch_size,
            "epochs": own.epochs,
            "frozen_dropout": own.frozen_dropout,
        }
    )


def _key(run: Run, own: "Retraining", modules: Sequence[nn.Module]) -> str:
    decided_by = {
        "settings": own.model_dump(mode="json", exclude={"normalise", "widths"}),
        "training": _training(run, own).model_dump(mode="json", exclude={"gradient_checkpointing"}),
        "text": run.settings.text.model_dump(),
        "data": run.record.task.hash,
        "weights": [hash_weights(module.named_parameters()) for module in modules],
    }
    return unfinished_key(Maker(own.name, own.version), decided_by)
