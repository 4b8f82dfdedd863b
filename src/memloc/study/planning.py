"""From a study's file to its steps: what is wanted, what decides it, what it needs."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from memloc import paths
from memloc.methods.base import find_method
from memloc.protocol import MEMORISED_ONLY
from memloc.run import WEIGHTS
from memloc.settings import Settings
from memloc.study.asked import Asked, asked_run, asked_runs, protocol_for, runs_there
from memloc.study.checks import check_names
from memloc.study.config import ControlBlock, StudyFile
from memloc.study.plan import Plan, Product, Step
from memloc.study.sizes import Shape, model_fingerprint, planted_windows, shape_of
from memloc.study.tasks import task_fingerprint

NOT_PLANTED = ("validation_tasks", "ks", "seed", "width")
"""Settings of the control set-up that are about its summary, or are a plant's own."""


def make_plan(file: StudyFile) -> Plan:
    """Every step that a study consists of."""
    check_names(file)
    return Plan(file, {step.name: step for step in _Makers(file).all_steps()})


class _Makers:
    """Makes the steps of one study."""

    def __init__(self, file: StudyFile) -> None:
        self.file, self.study = file, file.study
        self.protocol = file.study.protocol
        self._prints: dict[tuple[str, str], str] = {}

    def all_steps(self) -> list[Step]:
        """In an order in which each comes after its inputs."""
        made: list[Step] = []
        runs = asked_runs(self.file)
        for run in runs:
            made.append(train := self._train(run))
            made += [self._look(run, name, train) for name in run.methods]
        for i, run in enumerate(runs_there(self.file)):
            if run.folder in {other.folder for other in runs}:
                raise self.file.problem(["runs", i], "this study trains the run that is there.")
            made += [self._look(run, name, None) for name in run.methods]
        if self.study.control is not None:
            made += self._plants(self.study.control)
        if self.study.report:
            made.append(self._report(made))
        return made

    def _print(self, kind: str, name: str) -> str:
        """The fingerprint of a model or a task, made once."""
        if (kind, name) not in self._prints:
            found = (
                model_fingerprint(name) if kind == "model" else task_fingerprint(self.file, name)
            )
            self._prints[kind, name] = found
        return self._prints[kind, name]

    def _what(self, run: Asked) -> dict[str, Any]:
        return {
            "task": run.task,
            "model": run.model,
            "seed": run.seed,
            "folder": run.folder,
            "protocol": run.protocol,
            "run": run.there,
        }

    def _train_settings(self, run: Asked) -> dict[str, Any]:
        return {
            "model": self._print("model", run.model),
            "task": self._print("task", run.task),
            "seed": run.seed,
            "examples": self.study.examples,
            "depth": self.study.depth,
            **_plain(run.protocol.for_run().deciding(memorised=True)),
        }

    def _train(self, run: Asked) -> Step:
        # The memorised weights may not be there: whether they are is found out in training.
        weights = _weights_for(run.methods)
        kept = [str(paths.checkpoint(Path(run.folder), w)) for w in weights if w != "memorised"]
        return Step(
            name=f"train/{run.folder}",
            kind="train",
            what={**self._what(run), "weights": weights},
            products=self._trained(run),
            outputs=(f"{run.folder}/{paths.RUN}", *kept),
            shape=shape_of(run.model, self.study.depth),
        )

    def _trained(self, run: Asked) -> dict[str, Product]:
        """What decides the weights, and those of near-ceiling accuracy alone."""
        where, settings = Path(run.folder), self._train_settings(run)
        when = {name: settings.pop(name) for name in MEMORISED_ONLY}
        # The training on noisy labels is done again for them; the other trainings stay.
        again = (
            where / paths.RUN,
            paths.training_state(where, "noisy"),
            *(paths.checkpoint(where, weights) for weights in ("final", "memorised")),
        )
        return {
            "weights": Product(settings, (run.folder,)),
            "memorised": Product(when, tuple(map(str, again))),
        }

    def _look(self, run: Asked, name: str, train: Step | None) -> Step:
        """A method on a run; one that was made before has no training."""
        method = find_method(name)
        kind = {"localiser": "localise", "analysis": "analyse"}[method.kind]
        path = paths.result(Path(run.folder), name)
        settings = _content(run) | _method_settings(run, name)
        is_late = "memorised" in {*method.needs, *method.uses}
        return Step(
            name=f"{kind}/{run.folder}/{name}",
            kind=kind,
            what={**self._what(run), "name": name, "force": self.study.force},
            products={"result": Product(settings, (str(path),))},
            outputs=(str(path / paths.ABOUT),),
            inputs=(train.name,) if train else (),
            reads=("weights", "memorised") if is_late else ("weights",),
            allowed={"force": self.study.force, **_flat("verdict", self.protocol.verdict)},
            shape=train.shape if train else _shape_of(run),
        )

    def _plants(self, block: ControlBlock) -> Iterator[Step]:
        auxiliary, seed = self.protocol.control.auxiliary, self.protocol.control.seed
        usual = [task for task in self.study.tasks if task != auxiliary]
        for model in block.models or self.study.models:
            depth = shape_of(self.file.path_of(model), self.study.depth).depth
            windows = planted_windows(block, depth, self.protocol)
            middle = windows[len(windows) // 2]
            for task in block.tasks or usual:
                protocol = protocol_for(self.file, task, {})
                run = asked_run(self.file, (task, model, seed), protocol, block.methods)
                for window in windows:
                    null = block.nulls == "all" or (block.nulls == "middle" and window == middle)
                    yield self._plant(run, window, null)

    def _plant(self, run: Asked, window: str, null: bool) -> Step:
        kinds = (False, True) if null else (False,)
        place = Path(run.folder)
        both = [paths.plant_folder(Path(), place, window, null=kind) for kind in (False, True)]
        folders = both[: len(kinds)]
        products = {"plant": Product(self._plant_settings(run, window), tuple(map(str, both)))}
        for method in run.methods:
            files = tuple(str(paths.result(folder, method)) for folder in both)
            products[method] = Product(_method_settings(run, method), files)
        return Step(
            name=f"plant/{run.folder}/{window.replace('/', '_')}",
            kind="plant",
            what={
                **self._what(run),
                **{
                    "folders": tuple(map(str, folders)),
                    "window": window,
                    "null": null,
                    "methods": run.methods,
                },
            },
            products=products | {"null": Product({"null": null}, (str(both[1]),))},
            # What else is there depends on whether it memorised.
            outputs=(str(folders[0] / paths.RUN),),
            shape=shape_of(run.model, self.study.depth),
        )

    def _plant_settings(self, run: Asked, window: str) -> dict[str, Any]:
        own = self.protocol.control
        instead = {"finetune.learning_rate": own.learning_rate, "finetune.epochs": own.epochs}
        return {
            **self._train_settings(run),
            **{name: value for name, value in instead.items() if value is not None},
            **_flat("control", own, without=NOT_PLANTED),
            **_flat("verdict", self.protocol.verdict),
            "auxiliary": self._print("task", own.auxiliary),
            "window": window,
        }

    def _report(self, made: Sequence[Step]) -> Step:
        protocol = self.protocol
        control = _flat("control", protocol.control)
        settings = {
            **_flat("agreement", protocol.agreement),
            **_flat("summary", protocol.summary),
            **_flat("verdict", protocol.verdict),
            **{name: control[name] for name in ("control.validation_tasks", "control.ks")},
        }
        return Step(
            name="report",
            kind="report",
            what={},
            products={"page": Product(settings, ())},
            outputs=(str(paths.page(Path())),),
            inputs=tuple(step.name for step in made),
            soft=True,
        )


def _weights_for(methods: Sequence[str]) -> tuple[str, ...]:
    """The weights that these methods look at, and the final ones."""
    kinds = [find_method(name) for name in methods]
    needed = {"final", *(w for kind in kinds for w in (*kind.needs, *kind.uses))}
    return tuple(name for name in WEIGHTS if name in needed)


def _method_settings(run: Asked, name: str) -> dict[str, Any]:
    return _flat(name, run.protocol.method(name))


def _flat(name: str, settings: Settings, without: Sequence[str] = ()) -> dict[str, Any]:
    """Settings of a group under their dotted names, as they read back from a file."""
    flat = _plain(settings.flat())
    return {f"{name}.{key}": value for key, value in flat.items() if key not in without}


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(values))
    return found


def _content(run: Asked) -> dict[str, Any]:
    """What identifies a run that was made before: its data and its weights."""
    if run.there is None:
        return {}
    return {"run": _plain(run.there.identity([*WEIGHTS, "pretrained"]))}


def _shape_of(run: Asked) -> Shape:
    assert run.there is not None
    return Shape(run.there.depth, run.there.record.width, 0)
