"""What the steps of a study do: each is one call of a library function."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from memloc.data.own import load_csv
from memloc.data.sources import load_task, subsample
from memloc.methods.apply import apply
from memloc.models.load import LoadOptions
from memloc.protocol import Protocol
from memloc.records import NoisyTask, Task
from memloc.request import requested
from memloc.run import WEIGHTS, Run
from memloc.stats.layer_windows import read_window
from memloc.study.config import StudyFile
from memloc.study.plan import Plan, Step
from memloc.study.plants import make_null, make_plant
from memloc.training.planting import Plant
from memloc.training.recipe import Recipe, protocol_noise, train_run


def do(plan: Plan, step: Step) -> None:
    """Make what a step is to leave behind; what is there already is used."""
    with requested(["run", str(plan.file.folder)]):
        DO[step.kind](plan, step)


def _train(plan: Plan, step: Step) -> None:
    train_run(_recipe(plan, step), _folder(plan, step.what), step.what["weights"])


def _recipe(plan: Plan, step: Step) -> Recipe:
    study, what, protocol = plan.file.study, step.what, _protocol(plan, step)
    found = load_study_task(plan.file, what["task"], what["data_folder"])
    if isinstance(found, NoisyTask):
        task, noisy = found.task, found.labels
    else:
        own = study.data.get(what["task"])
        changes = {"noise.rate": own.flip} if own else {}
        task, noisy = found, protocol_noise(found, protocol.replace(changes))
    return Recipe(
        what["model"],
        task,
        what["seed"],
        protocol,
        noisy,
        options=LoadOptions(depth=study.depth),
        device=study.device,
    )


def _protocol(plan: Plan, step: Step) -> Protocol:
    return plan.file.study.protocol.replace(step.what["overrides"])


def load_study_task(file: StudyFile, name: str, folder: str | None) -> Task | NoisyTask:
    """A task that a study names: embedded, the paper's, or a file of one's own."""
    seed, own = file.study.protocol.noise.seed, file.study.data.get(name)
    task: Task | NoisyTask
    if own is None:
        task = load_task(name, folder=None if folder is None else Path(folder), seed=seed)
    else:
        columns = own.model_dump(include={"text", "pair", "label", "original", "flag"})
        unseen = own.held_out and file.file_of(own.held_out)
        task = load_csv(file.file_of(own.file), **columns, held_out=unseen, seed=seed, name=name)
    few = file.study.examples
    if few is None or isinstance(task, NoisyTask) or few >= len(task.train):
        return task
    return subsample(task, few, seed)


def _folder(plan: Plan, what: Mapping[str, Any]) -> Path:
    return plan.file.folder / str(what["folder"])


def _look(plan: Plan, step: Step) -> None:
    study, protocol = plan.file.study, _protocol(plan, step)
    run = Run.open(_folder(plan, step.what), study.device)
    method = protocol.method(step.what["name"])
    apply(run, [method], protocol.verdict, force=step.what["force"])


def _plant(plan: Plan, step: Step) -> None:
    study, what, recipe = plan.file.study, step.what, _recipe(plan, step)
    methods = [recipe.protocol.method(name) for name in what["methods"]]
    needed = {"final", *(w for m in methods for w in (*m.needs, *m.uses))}
    weights = tuple(name for name in WEIGHTS if name in needed)
    plant = Plant(read_window(what["window"]), _auxiliary(plan, what))
    folders = [plan.file.folder / folder for folder in what["folders"]]
    made = make_plant(recipe, plant, folders[0], weights)
    found = [made]
    if made.enough and what["null"]:
        found.append(make_null(recipe, made, folders[1], weights))
    for planted in found:
        if planted.enough:
            run = Run.open(planted.run.folder, study.device)
            apply(run, methods, recipe.protocol.verdict)


def _auxiliary(plan: Plan, what: Mapping[str, Any]) -> Task:
    protocol, given = plan.file.study.protocol, what["data_folder"]
    settings, seed = protocol.control, protocol.noise.seed
    task = load_task(settings.auxiliary, folder=given and Path(given), seed=seed)
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
