"""What the steps of a study do: each is one call of a library function."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from memloc.data.sources import load_task, subsample
from memloc.methods.apply import apply
from memloc.models.load import LoadOptions
from memloc.protocol import Protocol
from memloc.records import NoisyTask, Task
from memloc.request import requested
from memloc.run import WEIGHTS, Run
from memloc.stats.windows import read_window
from memloc.study.plan import Plan, Step
from memloc.study.plants import make_null, make_plant
from memloc.study.tasks import data_folder, load_study_task
from memloc.training.planting import Plant
from memloc.training.recipe import Recipe, protocol_noise, train_run


def do(plan: Plan, step: Step) -> None:
    """Make what a step is to leave behind; what is there already is used."""
    with requested(["run", str(plan.file.folder)]):
        DO[step.kind](plan, step)


def _train(plan: Plan, step: Step) -> None:
    train_run(_recipe(plan, step), _folder(plan, step.what), step.what["weights"])


def _recipe(plan: Plan, step: Step) -> Recipe:
    study, what = plan.file.study, step.what
    protocol: Protocol = what["protocol"]
    found = load_study_task(plan.file, what["task"], protocol.noise.seed)
    if isinstance(found, NoisyTask):
        task, noisy = found.task, found.labels
    else:
        task, noisy = found, protocol_noise(found, protocol)
    return Recipe(
        what["model"],
        task,
        what["seed"],
        protocol,
        noisy,
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
