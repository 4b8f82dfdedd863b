"""Makes one planted run: trains it, again with a higher rate where it did not memorise."""

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from memloc.errors import StoreError
from memloc.protocol import Protocol
from memloc.records import NoisyLabels, as_stored, read_json, write_json
from memloc.train.checkpoints import save_checkpoint
from memloc.train.planting import Plant
from memloc.train.run import Run
from memloc.train.training import Recipe, train_run
from memloc.train.windows import window_name

TRIES = "tries.json"
"""The file in a planted run's folder that says which rates fell short."""


@dataclass(frozen=True)
class Planted:
    """A planted run and how it came about."""

    run: Run
    plant: Plant
    enough: bool
    """Whether it learnt its labels as the protocol asks."""


def plant_folder(recipe: Recipe, plant: Plant, out: Path) -> Path:
    """Where a planted run is kept."""
    kind = "null" if plant.null else "window"
    name = Path(recipe.model).name
    place = out / "control" / recipe.task.name / name / f"seed-{recipe.seed}"
    return place / f"{kind}-{window_name(plant.window)}"


def make_plant(recipe: Recipe, plant: Plant, folder: Path, weights: tuple[str, ...]) -> Planted:
    """Train a planted run; where its training accuracy is too low, again with a higher rate."""
    recipe = replace(recipe, plant=plant, protocol=_planting(recipe))
    settings = recipe.protocol.control
    tries = _tries(folder)
    while True:
        current = _with_rate(recipe, settings.rate_factor ** len(tries))
        _forget(folder, tries)
        run = train_run(current, folder, ["final", "memorised"])
        enough = _is_enough(run, settings.accuracy_above)
        if enough or len(tries) + 1 >= settings.tries:
            break
        tries.append(_describe(run, current))
        write_json(folder / TRIES, {"tries": tries})
    run = run.note(tries=[*tries, _describe(run, current)])
    if enough:
        run = train_run(current, folder, weights)
    return Planted(run, plant, enough)


def make_null(recipe: Recipe, planted: Planted, folder: Path, weights: tuple[str, ...]) -> Planted:
    """The null of a planted run: the same in all, but that nothing wrong is to be learnt.

    Its labels are the original ones and the examples that were noisy in the planted run are still
    looked at; its reference weights are those of the planted run.
    """
    noisy = recipe.noisy
    same = NoisyLabels(noisy.original, noisy.original, noisy.is_noisy)
    plant = replace(planted.plant, null=True)
    # Shares of an error that may be nil cannot be taken; distances do not depend on the scale.
    plain = {"swapping.normalise": False, "retraining.normalise": False}
    protocol = planted.run.protocol.replace(plain)
    current = replace(recipe, plant=plant, noisy=same, protocol=protocol)
    run = train_run(current, folder, ["final", "memorised"])
    if "reference" in weights and not run.path("reference").is_dir():
        about = {"weights": "reference", "run": planted.run.about}
        save_checkpoint(run.path("reference"), planted.run.load("reference"), about)
    run = train_run(current, folder, [name for name in weights if name != "reference"])
    enough = _is_enough(run, current.protocol.control.accuracy_above)
    return Planted(run, plant, enough)


def _planting(recipe: Recipe) -> Protocol:
    """The protocol with what is different where two layers alone have to memorise."""
    own = recipe.protocol.control
    changes = {_rate_key(recipe): own.learning_rate, "finetune.epochs": own.epochs}
    return recipe.protocol.replace({k: v for k, v in changes.items() if v is not None})


def _with_rate(recipe: Recipe, factor: float) -> Recipe:
    rate = recipe.settings.learning_rate * factor
    return replace(recipe, protocol=recipe.protocol.replace({_rate_key(recipe): rate}))


def _rate_key(recipe: Recipe) -> str:
    large = recipe.model in recipe.protocol.models.large
    return "finetune.large_learning_rate" if large else "finetune.learning_rate"


def _is_enough(run: Run, above: float) -> bool:
    verdict = run.verdict()
    reached = run.path("memorised").is_dir() and verdict["training_accuracy"] > above
    return bool(reached and verdict["memorised"])


def _describe(run: Run, recipe: Recipe) -> dict[str, Any]:
    return {
        "learning_rate": recipe.settings.learning_rate,
        "training_accuracy": run.verdict()["training_accuracy"],
    }


def _tries(folder: Path) -> list[dict[str, Any]]:
    path = folder / TRIES
    with as_stored(path):
        return list(read_json(path)["tries"]) if path.is_file() else []


def _forget(folder: Path, tries: list[dict[str, Any]]) -> None:
    """Remove what a try that fell short left behind; the note of it stays."""
    if not (folder / "run.json").is_file():
        return
    run = Run.open(folder)
    rates = [attempt["learning_rate"] for attempt in tries]
    if _rate(run.about, run.protocol) not in rates:
        return
    try:
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
        for name in ("training.parquet", "labels.parquet", "run.json"):
            (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(f"{folder} cannot be cleared for another try: {error}.") from error


def _rate(about: dict[str, Any], protocol: Protocol) -> float:
    settings = protocol.finetune
    return settings.large_learning_rate if about.get("is_large") else settings.learning_rate
