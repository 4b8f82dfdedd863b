"""Whether the names in a study's file exist; what does not is said with its line."""

from collections.abc import Hashable, Iterator, Sequence
from importlib.metadata import entry_points
from typing import Any

from memloc.config import ANALYSES, METHODS, StudyFile, suggestion
from memloc.data.tasks import known_tasks
from memloc.errors import MemlocError
from memloc.experiment.shapes import shape_of
from memloc.train.windows import check_windows, every_window, read_window, usual_windows

LOCALISERS = "memloc.localisers"
"""The group of entry points under which other packages register methods."""
DEVICES = ("auto", "cpu", "cuda", "mps")


def check_names(file: StudyFile) -> None:
    """Refuse tasks, models, methods, analyses and windows that do not exist."""
    methods, analyses = known_methods(), list(ANALYSES)
    known = {"tasks": list(known_tasks()), "methods": methods, "analyses": analyses}
    for where, block in _blocks(file):
        for field, names in known.items():
            _check(file, [*where, field], getattr(block, field, None) or (), names)
        for i, model in enumerate(block.models or ()):
            _check_model(file, [*where, "models", i], model)
    if file.study.device.split(":")[0] not in DEVICES:
        near = suggestion(file.study.device, DEVICES)
        raise file.problem(["device"], f"there is no device {file.study.device!r}.{near}")
    if file.study.control is not None:
        _check_control(file)


def known_methods() -> list[str]:
    """The paper's four, then those that other packages bring."""
    return [*METHODS, *sorted(p.name for p in entry_points(group=LOCALISERS))]


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
    for model in control.models or study.models:
        depth = shape_of(file.path_of(model), study.depth).depth
        try:
            check_windows([read_window(text) for text in control.windows], depth)
            for width in control.every:
                every_window(depth, width)
            usual_windows(depth, settings.width)
        except MemlocError as error:
            raise file.problem(["control", "windows"], f"{model}: {error}") from None
