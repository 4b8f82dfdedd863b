"""What a single run will cost, said before it is trained; counted as a study's steps are."""

from collections.abc import Mapping
from pathlib import Path

from memloc.models.device import pick_device, suitable_threads
from memloc.models.load import Classifier
from memloc.progress import hidden
from memloc.run import WEIGHTS
from memloc.study.calibrate import speed, tokens_of, usual_length
from memloc.study.estimate import UNSURE, Costs, keep, measured_here
from memloc.study.sizes import Shape
from memloc.study.view import disk_sentences, training_sentences
from memloc.training.recipe import Recipe


def expected_of(
    recipe: Recipe, model: Classifier, left: Mapping[str, int], folder: Path
) -> list[str]:
    """The updates, time and disk of what is left: so many epochs of each training.

    The machine is measured for some seconds where `folder` does not say how fast it is.
    """
    vocabulary = getattr(model.model.config, "vocab_size", None) or 0
    shape = Shape(model.stack.depth, model.stack.width, vocabulary)
    examples, settings = len(recipe.task.train), recipe.settings
    tokens, measured = tokens_of(recipe.task), measured_here(folder)
    if shape.name not in measured["speeds"]:
        with suitable_threads(shape.width), hidden():
            device = pick_device(recipe.device)
            found = speed(shape, usual_length(tokens), recipe.protocol, device)
        measured = keep(folder, {"speeds": {shape.name: found}})
    seconds = Costs(shape, recipe.protocol, examples, tokens, measured).training(left)
    updates = sum(left.values()) * -(-examples // settings.batch_size)
    weights = sum(training in left for training in WEIGHTS.values())
    return [
        *training_sentences(left, updates, seconds, UNSURE),
        *disk_sentences(weights * shape.bytes, folder),
    ]
