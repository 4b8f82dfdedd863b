"""Whether what a study's file names exists and fits; what does not is said with its line."""

import re
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any

from memloc import paths
from memloc.data.tasks import known_tasks
from memloc.errors import MemlocError
from memloc.methods.base import methods
from memloc.run import Run
from memloc.study.config import StudyFile, suggestion
from memloc.study.sizes import planted_windows, shape_of
from memloc.study.tasks import load_study_task

DEVICES = ("auto", "cpu", "cuda", "mps")
TAKEN = (paths.CONTROL, paths.STEPS, paths.LOGS, paths.REPORT)
"""Folders of a study that hold other things than a task's runs."""


def check_names(file: StudyFile) -> None:
    """Refuse tasks, models, methods, analyses and windows that do not exist."""
    kinds = {"methods": "localiser", "analyses": "analysis"}
    known = {"tasks": [*known_tasks(), *file.study.data]}
    for field, kind in kinds.items():
        known[field] = [name for name, method in methods().items() if method.kind == kind]
    _check_data(file)
    _check_runs(file)
    for where, block in _blocks(file):
        for field, names in known.items():
            _check(file, [*where, field], getattr(block, field, None) or (), names)
        for i, model in enumerate(block.models or ()):
            _check_model(file, [*where, "models", i], model)
    _check_folders(file)
    if file.study.device.split(":")[0] not in DEVICES:
        near = suggestion(file.study.device, DEVICES)
        raise file.problem(["device"], f"there is no device {file.study.device!r}.{near}")
    if file.study.control is not None:
        _check_control(file)


def _check_data(file: StudyFile) -> None:
    """Own files: there, under a name of their own, with one way to say which labels are wrong."""
    for name, own in file.study.data.items():
        if name in known_tasks():
            raise file.problem(["data", name], "a task has this name already: choose another.")
        if not re.fullmatch(r"\w[\w.-]*", name) or name in TAKEN:
            raise file.problem(
                ["data", name],
                "it names a folder: use letters, digits, `-`, `_` and `.`, and not "
                f"{', '.join(TAKEN)}.",
            )
        given = [k for k in ("original", "flag", "flip") if getattr(own, k) is not None]
        if len(given) != 1:
            raise file.problem(
                ["data", name],
                "say in one way which labels are wrong: `original` or `flag` with a column, or "
                "`flip` with a share of them to make wrong.",
            )
        for key in ("file", "held_out"):
            path = getattr(own, key)
            if path is not None and not file.file_of(path).is_file():
                raise file.problem(["data", name, key], f"there is no file {file.file_of(path)}.")
        if file.study.examples is not None and given != ["flip"]:
            raise file.problem(
                ["examples"], f"{name} has noise of its own: shorten the file instead."
            )


def check_files(file: StudyFile) -> None:
    """Refuse files of one's own that cannot be read as the study says; reads them whole."""
    for name in file.study.data:
        try:
            load_study_task(file, name, file.study.protocol.noise.seed)
        except MemlocError as error:
            raise file.problem(["data", name], str(error)) from None


def _check_runs(file: StudyFile) -> None:
    for i, place in enumerate(file.study.runs):
        try:
            Run.open(file.folder / place)
        except MemlocError as error:
            raise file.problem(["runs", i], str(error)) from None
        if not (file.folder / place).resolve().is_relative_to(file.folder.resolve()):
            raise file.problem(["runs", i], "a run of a study must be in the study's folder.")


def _blocks(file: StudyFile) -> Iterator[tuple[list[Hashable], Any]]:
    yield [], file.study
    for i, block in enumerate(file.study.also):
        yield ["also", i], block
    if file.study.control is not None:
        yield ["control"], file.study.control


def _check(
    file: StudyFile, where: Sequence[Hashable], given: Sequence[str], known: Sequence[str]
) -> None:
    kind = {"tasks": "task", "methods": "method", "analyses": "analysis"}[str(where[-1])]
    for i, name in enumerate(given):
        if name not in known:
            raise file.problem(
                [*where, i], f"there is no {kind} {name!r}.{suggestion(name, known)}"
            )


def _check_model(file: StudyFile, where: Sequence[Hashable], name: str) -> None:
    try:
        shape_of(file.path_of(name), file.study.depth)
    except MemlocError as error:
        raise file.problem(where, str(error)) from None


def _check_folders(file: StudyFile) -> None:
    """Two models must not share a folder of runs."""
    seen: dict[str, str] = {}
    for where, block in _blocks(file):
        for i, model in enumerate(block.models or ()):
            path = file.path_of(model)
            folder = paths.run_folder(Path(), "-", path, 1, file.study.depth).parts[1]
            if seen.setdefault(folder, path) != path:
                raise file.problem(
                    [*where, "models", i],
                    f"{seen[folder]} and {path} would share the folder {folder}.",
                )


def _check_control(file: StudyFile) -> None:
    control, study = file.study.control, file.study
    assert control is not None
    settings = study.protocol.control
    if settings.auxiliary not in known_tasks():
        near = suggestion(settings.auxiliary, list(known_tasks()))
        raise file.problem(["overrides", "control.auxiliary"], f"there is no such task.{near}")
    if settings.auxiliary in (control.tasks or ()):
        raise file.problem(
            ["control", "tasks"], f"{settings.auxiliary} is the auxiliary task; plant another one."
        )
    if not control.tasks and set(study.tasks) <= {settings.auxiliary}:
        raise file.problem(["control"], "the only task is the auxiliary one; name others.")
    for task in control.tasks or study.tasks:
        if task in study.data and study.data[task].flip is None:
            raise file.problem(
                ["control"], f"{task} has noise of its own; plant a task whose labels are flipped."
            )
    for model in control.models or study.models:
        depth = shape_of(file.path_of(model), study.depth).depth
        try:
            planted_windows(control, depth, study.protocol)
        except MemlocError as error:
            raise file.problem(["control", "windows"], f"{model}: {error}") from None
