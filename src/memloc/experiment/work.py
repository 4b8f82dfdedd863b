"""What the steps of a study do: each is one call of a library function."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from memloc.analyse.analyse import analyse_run
from memloc.analyse.material import GROUPS
from memloc.data.sources import load_task, subsample
from memloc.experiment.control import Control, make_plants, read_control
from memloc.experiment.plan import Plan, Step
from memloc.experiment.planning import DECIDED_BY
from memloc.localise.localise import localise
from memloc.localise.subjects import run_subject
from memloc.models.load import LoadOptions
from memloc.protocol import Protocol
from memloc.records import Task
from memloc.train.run import Run
from memloc.train.training import Recipe, train_run
from memloc.train.windows import read_window


def do(plan: Plan, step: Step) -> None:
    """Make what a step is to leave behind; what is there already is used."""
    DO[step.kind](plan, step)


def _train(plan: Plan, step: Step) -> None:
    study, what = plan.file.study, step.what
    recipe = Recipe(
        what["model"],
        _task(plan, what),
        what["seed"],
        study.protocol,
        options=LoadOptions(depth=study.depth),
        device=study.device,
    )
    train_run(recipe, _folder(plan, what), what["weights"])


def _task(plan: Plan, what: Mapping[str, Any]) -> Task:
    study = plan.file.study
    seed = study.protocol.noise.seed
    given = what["data_folder"]
    task = load_task(what["task"], folder=given and Path(given), seed=seed)
    few = study.examples
    return task if few is None or few >= len(task.train) else subsample(task, few, seed)


def _folder(plan: Plan, what: Mapping[str, Any]) -> Path:
    return plan.file.folder / str(what["folder"])


def _localise(plan: Plan, step: Step) -> None:
    study, what = plan.file.study, step.what
    run = Run.open(_folder(plan, what))
    run.require_memorised(what["force"])
    # The study's settings: those in the run's record may have been others when it was trained.
    subject = replace(run_subject(run, study.device), protocol=study.protocol)
    localise(subject, run.folder / "localise", [what["name"]], force=what["force"])


def _analyse(plan: Plan, step: Step) -> None:
    study, what = plan.file.study, step.what
    settings = study.protocol.flat()
    changes = {name: v for name, v in settings.items() if name.split(".")[0] in GROUPS}
    analyse_run(
        _folder(plan, what),
        [what["name"]],
        changes=changes,
        force=what["force"],
        device=study.device,
    )


def _plant(plan: Plan, step: Step) -> None:
    study, what = plan.file.study, step.what
    for folder in what["folders"]:
        _refresh(plan.file.folder / folder, study.protocol)
    given = what["data_folder"]
    control = Control(
        models=[what["model"]],
        tasks=[_task(plan, what)],
        windows=[read_window(what["window"])],
        methods=what["methods"],
        nulls="all" if what["null"] else "none",
        protocol=study.protocol,
        seed=what["seed"],
        options=LoadOptions(depth=study.depth),
        data_folder=given and Path(given),
        device=study.device,
    )
    make_plants(control, plan.file.folder)


def _refresh(folder: Path, protocol: Protocol) -> None:
    """Give a planted run that is there already the methods' settings as they are now."""
    if not (folder / "run.json").is_file():
        return
    run = Run.open(folder)
    groups = {name.split(".")[0] for names in DECIDED_BY.values() for name in names}
    changes = {k: v for k, v in protocol.flat().items() if k.split(".")[0] in groups}
    if run.about["control"]["null"]:  # where errors are never shares of one that may be nil
        changes = {k: v for k, v in changes.items() if not k.endswith(".normalise")}
    now = run.protocol.replace(changes)
    if now != run.protocol:
        run.note(protocol=now.model_dump(mode="json"), changes=now.changes())


def _control(plan: Plan, step: Step) -> None:  # noqa: ARG001
    read_control(plan.file.folder, plan.file.study.protocol.control)


def _report(plan: Plan, step: Step) -> None:  # noqa: ARG001
    from memloc.report.page import write_report

    write_report(plan.file.folder)


DO: dict[str, Callable[[Plan, Step], None]] = {
    "train": _train,
    "localise": _localise,
    "analyse": _analyse,
    "plant": _plant,
    "control": _control,
    "report": _report,
}
