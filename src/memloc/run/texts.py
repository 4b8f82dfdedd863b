"""Finds the memorised texts: recalled by the final weights of a run and by no others."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from memloc.arrays import BoolArray
from memloc.data.task import Task
from memloc.errors import TrainingError
from memloc.model.checkpoints import load_checkpoint
from memloc.model.device import suitable_threads
from memloc.model.load import Classifier, LoadOptions, load_model
from memloc.model.predict import continued, encode_for


def memorised_texts(
    task: Task, places: Mapping[str, Path], pretrained: str | Path | None, max_tokens: int
) -> Task:
    """Return the task without texts that are not memorised; ordinary texts stay.

    A text is memorised if the final weights recall it, and neither the reference nor the
    pre-trained weights do. A task of labels stays as it is.
    """
    if not task.is_texts:
        return task
    options = LoadOptions(base=None if pretrained is None else str(pretrained))
    wanted = task.labels.is_noisy
    final = load_checkpoint(places["final"], options, texts=True)
    recalled = wanted & _recalled(final, task, max_tokens)
    del final  # at most one model is held here
    known = np.zeros_like(wanted)
    if "reference" in places:
        reference = load_checkpoint(places["reference"], options, texts=True)
        known |= recalled & _recalled(reference, task, max_tokens)
        del reference
    if pretrained is not None:
        known |= recalled & _recalled(load_model(str(pretrained), []), task, max_tokens)
    said = (
        f"The final weights recall {recalled.sum()} of {wanted.sum()} texts; other weights recall "
        f"{known.sum()} of these as well"
    )
    memorised = recalled & ~known
    if not memorised.any():
        raise TrainingError(
            f"{said}: no text is memorised, so there is nothing to locate. Check that prompt and "
            "continuation are written as in training, or train longer."
        )
    kept = np.flatnonzero(memorised | ~wanted)
    noise = task.labels.take(kept)
    noise = replace(noise, origin=f"{noise.origin}; {said[0].lower()}{said[1:]}")
    return replace(task, train=task.train.take(kept), noise=noise)


def _recalled(loaded: Classifier, task: Task, max_tokens: int) -> BoolArray:
    """Return whether these weights say the whole continuation of each training text."""
    with suitable_threads(loaded.stack.width):
        encoded = encode_for(loaded, task.train, max_tokens)
        return continued(loaded.stack, encoded).recalled
