"""What the steps of a study do: each is one call of a library function."""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from memloc import paths
from memloc.data.sources import load_task, subsample
from memloc.errors import StoreError
from memloc.lock import RUN, Lock
from memloc.methods.apply import apply
from memloc.models.load import LoadOptions
from memloc.progress import requested
from memloc.protocol import Protocol
from memloc.records import NoisyLabels, Task, as_stored, read_json, write_json
from memloc.run import WEIGHTS, Attempt, Run
from memloc.stats.windows import read_window
from memloc.study.plan import Plan, Step
from memloc.study.tasks import data_folder, load_noisy_task
from memloc.training.checkpoints import save_checkpoint
from memloc.training.planting import Plant
from memloc.training.recipe import Recipe, train_run


def do(plan: Plan, step: Step) -> None:
    """Make what a step is to leave behind; what is there already is used."""
    with requested(["run", str(plan.file.folder)]):
        DO[step.kind](plan, step)


def _train(plan: Plan, step: Step) -> None:
    train_run(_recipe(plan, step), _folder(plan, step.what), step.what["weights"])


def _recipe(plan: Plan, step: Step) -> Recipe:
    study, what = plan.file.study, step.what
    protocol: Protocol = what["protocol"]
    found = load_noisy_task(plan.file, what["task"], protocol)
    return Recipe(
        what["model"],
        found.task,
        what["seed"],
        protocol,
        found.labels,
        options=LoadOptions(depth=study.depth),
        device=study.device,
    )


def _folder(plan: Plan, what: Mapping[str, Any]) -> Path:
    return plan.file.folder / str(what["folder"])


def _look(plan: Plan, step: Step) -> None:
    what, protocol = step.what, step.what["protocol"]
    run = Run.open(_folder(plan, what), plan.file.study.device)
    apply(run, [protocol.method(what["name"])], protocol.verdict, force=what["force"])


def _plant(plan: Plan, step: Step) -> None:
    study, what, recipe = plan.file.study, step.what, _recipe(plan, step)
    methods = [recipe.protocol.method(name) for name in what["methods"]]
    needed = {"final", *(w for m in methods for w in (*m.needs, *m.uses))}
    weights = tuple(name for name in WEIGHTS if name in needed)
    plant = Plant(read_window(what["window"]), _auxiliary(plan))
    folders = [plan.file.folder / folder for folder in what["folders"]]
    made = make_plant(recipe, plant, folders[0], weights)
    found = [made]
    if made.enough and what["null"]:
        found.append(make_null(recipe, made, folders[1], weights))
    for planted in found:
        if planted.enough:
            run = Run.open(planted.run.folder, study.device)
            apply(run, methods, recipe.protocol.verdict)


def _auxiliary(plan: Plan) -> Task:
    protocol = plan.file.study.protocol
    settings, seed = protocol.control, protocol.noise.seed
    task = load_task(settings.auxiliary, folder=data_folder(plan.file), seed=seed)
    few = settings.auxiliary_examples
    return task if few is None or few >= len(task.train) else subsample(task, few, seed)


def _report(plan: Plan, step: Step) -> None:  # noqa: ARG001
    from memloc.reporting.page import write_report

    write_report(plan.file.folder)


DO: dict[str, Callable[[Plan, Step], None]] = {
    "train": _train,
    "localise": _look,
    "analyse": _look,
    "plant": _plant,
    "report": _report,
}


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
