"""Makes one planted run: trains it, again with a higher rate where it did not memorise."""

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from memloc import paths
from memloc.errors import StoreError
from memloc.lock import RUN, Lock
from memloc.protocol import Protocol
from memloc.records import NoisyLabels, as_stored, read_json, write_json
from memloc.run import Attempt, Run
from memloc.training.checkpoints import save_checkpoint
from memloc.training.planting import Plant
from memloc.training.recipe import Recipe, train_run

TRIES = "tries.json"
"""The file in a planted run's folder that says which rates fell short."""
RATE = "finetune.learning_rate"


@dataclass(frozen=True)
class Planted:
    """A planted run and how it came about."""

    run: Run
    plant: Plant
    enough: bool
    """Whether it learnt its labels as the protocol asks."""


def make_plant(recipe: Recipe, plant: Plant, folder: Path, weights: tuple[str, ...]) -> Planted:
    """Train a planted run; where its training accuracy is too low, again with a higher rate."""
    with Lock(folder, RUN):  # between two tries as well
        return _make_plant(recipe, plant, folder, weights)


def _make_plant(recipe: Recipe, plant: Plant, folder: Path, weights: tuple[str, ...]) -> Planted:
    recipe = replace(recipe, plant=plant, protocol=_planting(recipe.protocol))
    settings = recipe.protocol.control
    tries = _tries(folder)
    while True:
        current = _with_rate(recipe, settings.rate_factor ** len(tries))
        _forget(folder, tries)
        run = train_run(current, folder, ["final", "memorised"])
        enough = _is_enough(run, recipe.protocol)
        if enough or len(tries) + 1 >= settings.tries:
            break
        tries.append(_attempt(run))
        write_json(folder / TRIES, {"tries": [attempt.model_dump() for attempt in tries]})
    run = run.note(attempts=(*tries, _attempt(run)))
    if enough:
        run = train_run(current, folder, weights)
    return Planted(run, plant, enough)


def make_null(recipe: Recipe, planted: Planted, folder: Path, weights: tuple[str, ...]) -> Planted:
    """The null of a planted run: the same run with the original labels, so nothing is memorised.

    The examples that were noisy in the planted run are still looked at; its reference weights are
    those of the planted run.
    """
    noisy = recipe.noisy
    same = NoisyLabels(noisy.original, noisy.original, noisy.is_noisy)
    plant = replace(planted.plant, null=True)
    used = planted.run.settings.finetune
    protocol = recipe.protocol.replace({f"finetune.{k}": v for k, v in used.flat().items()})
    current = replace(recipe, plant=plant, noisy=same, protocol=protocol)
    run = train_run(current, folder, ["final", "memorised"])
    if "reference" in weights and not run.has("reference"):
        about = {"weights": "reference", "run": planted.run.record.model_dump(mode="json")}
        save_checkpoint(run.path("reference"), planted.run.load("reference"), about)
    run = train_run(current, folder, [name for name in weights if name != "reference"])
    return Planted(run, plant, _is_enough(run, protocol))


def _planting(protocol: Protocol) -> Protocol:
    """The protocol with what is different where two layers alone have to memorise."""
    own = protocol.control
    changes = {RATE: own.learning_rate, "finetune.epochs": own.epochs}
    return protocol.replace({k: v for k, v in changes.items() if v is not None})


def _with_rate(recipe: Recipe, factor: float) -> Recipe:
    rate = recipe.settings.learning_rate * factor
    return replace(recipe, protocol=recipe.protocol.replace({RATE: rate}))


def _is_enough(run: Run, protocol: Protocol) -> bool:
    verdict = run.verdict(protocol.verdict.noisy_at_least)
    if verdict is None or not run.has("memorised") or not verdict.memorised:
        return False
    return verdict.accuracies.training > protocol.control.accuracy_above


def _attempt(run: Run) -> Attempt:
    assert run.record.final is not None
    rate = run.settings.finetune.learning_rate
    return Attempt(learning_rate=rate, training_accuracy=run.record.final.training)


def _tries(folder: Path) -> list[Attempt]:
    path = folder / TRIES
    with as_stored(path):
        return [Attempt(**each) for each in read_json(path)["tries"]] if path.is_file() else []


def _forget(folder: Path, tries: list[Attempt]) -> None:
    """Remove what a try that fell short left behind; the note of it stays."""
    if not (folder / paths.RUN).is_file():
        return
    rate = Run.open(folder).settings.finetune.learning_rate
    if rate not in [attempt.learning_rate for attempt in tries]:
        return
    try:
        shutil.rmtree(folder / paths.CHECKPOINTS, ignore_errors=True)
        for name in (paths.TRAINING, paths.LABELS, paths.RUN):
            (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(f"{folder} cannot be cleared for another try: {error}.") from error
