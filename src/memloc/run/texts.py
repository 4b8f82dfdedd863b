"""Finds the memorised texts: those recalled by the final weights of a run and by no others."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from memloc.arrays import BoolArray
from memloc.data.encode import Encoded
from memloc.data.task import Task
from memloc.errors import ModelError, TrainingError
from memloc.model.checkpoints import load_checkpoint, load_start
from memloc.model.device import suitable_threads
from memloc.model.load import Classifier, LoadOptions
from memloc.model.predict import continued, encode_for

if TYPE_CHECKING:
    from memloc.run.folder import Run


def memorised_texts(
    task: Task, places: Mapping[str, Path], options: LoadOptions, max_tokens: int
) -> Task:
    """Return the task without noisy texts that are not memorised; ordinary texts stay.

    A text is memorised if the final weights recall it, and neither the reference nor the
    pre-trained weights do. A task of labels is returned unchanged.

    Args:
        task: The task.
        places: Folders of the run's weights.
        options: Permissions for loading.
        max_tokens: Largest number of tokens of a text.
    """
    if not task.is_texts:
        return task
    wanted = task.labels.is_noisy
    final = load_checkpoint(places["final"], options, texts=True)
    vocabulary = final.tokenizer.get_vocab()
    tokens = encode_for(final, task.train, max_tokens)
    recalled = wanted & _recalled(final, task, max_tokens)
    del final  # at most one model is held here
    known = np.zeros_like(wanted)
    if "reference" in places:
        reference = load_checkpoint(places["reference"], options, texts=True)
        if reference.tokenizer.get_vocab() == vocabulary:
            _refuse_other_tokens(tokens, encode_for(reference, task.train, max_tokens))
        known |= recalled & _recalled(reference, task, max_tokens)
        del reference
    if options.base is not None:
        start = load_start(options.base, [], LoadOptions(stream=options.stream))
        known |= recalled & _recalled(start, task, max_tokens)
    counts = (
        f"The final weights recall {recalled.sum()} of {wanted.sum()} texts; other weights recall "
        f"{known.sum()} of these as well"
    )
    memorised = recalled & ~known
    if not memorised.any():
        advice = "Check that texts are written as in training, or train longer."
        if recalled.any():
            advice = "Give other weights that were not trained on these texts."
        raise TrainingError(
            f"{counts}: no text is memorised, so there is nothing to locate. {advice}"
        )
    kept = np.flatnonzero(memorised | ~wanted)
    noise = task.labels.take(kept)
    noise = replace(noise, origin=f"{noise.origin}; {counts[0].lower()}{counts[1:]}")
    return replace(task, train=task.train.take(kept), noise=noise)


def recall_of(run: "Run", checkpoint: str) -> dict[str, Any]:
    """Return what weights of a run recall of memorised and of ordinary texts, column by column.

    Without these weights nothing is returned.
    """
    if not run.has(checkpoint):
        return {}
    loaded = run.load(checkpoint)
    with suitable_threads(loaded.stack.width):
        found = continued(loaded.stack, run.encode(loaded))
    kinds = {"memorised": run.noisy_rows, "ordinary": run.clean_rows}
    tokens = [found.is_token[rows].sum() for rows in kinds.values()]
    said = [found.is_said[rows].sum() for rows in kinds.values()]
    log = [found.log_probability[rows].sum() for rows in kinds.values()]
    return {
        "weights": checkpoint,
        "texts": list(kinds),
        "number": [len(rows) for rows in kinds.values()],
        "recalled": [found.recalled[rows].mean() for rows in kinds.values()],
        "tokens": np.divide(said, tokens),
        "log_probability": np.divide(log, tokens),
    }


def _refuse_other_tokens(final: Encoded, reference: Encoded) -> None:
    """Refuse tokenizers that know the same tokens but split texts differently."""
    differ = [
        row
        for row, (here, theirs) in enumerate(zip(_rows(final), _rows(reference), strict=True), 1)
        if here != theirs
    ]
    if differ:
        raise ModelError(
            f"The tokenizers of the final and the reference weights cut {len(differ)} texts in "
            f"different ways, text {differ[0]} among them: both models must have the same "
            "tokenizer, with the same settings."
        )


def _rows(encoded: Encoded) -> list[tuple[list[int], int]]:
    """Return the tokens of each text, and the position at which its continuation begins."""
    assert encoded.starts is not None, "continuations are of tasks of texts"
    tokens = np.split(encoded.tokens, encoded.offsets[1:-1])
    return [(t.tolist(), int(s)) for t, s in zip(tokens, encoded.starts, strict=True)]


def _recalled(loaded: Classifier, task: Task, max_tokens: int) -> BoolArray:
    """Return whether these weights recall each training text."""
    with suitable_threads(loaded.stack.width):
        encoded = encode_for(loaded, task.train, max_tokens)
        return continued(loaded.stack, encoded).recalled
