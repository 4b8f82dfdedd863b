"""From a study's file to its steps: what is wanted, what decides it, what it needs."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memloc import paths
from memloc.methods.base import find_method
from memloc.protocol import MEMORISED_ONLY, Protocol
from memloc.run import WEIGHTS, Run
from memloc.settings import Settings
from memloc.stats.layer_windows import window_name as name_of
from memloc.study.checks import check_names
from memloc.study.config import Block, ControlBlock, StudyFile
from memloc.study.plan import Part, Plan, Step
from memloc.study.sizes import (
    Shape,
    data_folder,
    file_fingerprint,
    model_fingerprint,
    planted_windows,
    shape_of,
    task_fingerprint,
)

NOT_PLANTED = ("validation_tasks", "ks", "seed", "width")
"""Settings of the control set-up that are about its summary, or are a plant's own."""


@dataclass(frozen=True)
class Asked:
    """What a study wants of one run."""

    task: str
    model: str
    seed: int
    overrides: Mapping[str, Any]
    """Settings that differ from the study's."""
    methods: tuple[str, ...]
    folder: str
    """Where it is, in the study's folder."""

    @property
    def key(self) -> tuple[str, str, int]:
        """What no two runs share."""
        return self.task, self.model, self.seed


def make_plan(file: StudyFile) -> Plan:
    """Every step that a study consists of."""
    check_names(file)
    steps = {step.name: step for step in _Makers(file).all_steps()}
    return Plan(file, steps)


class _Makers:
    """Makes the steps of one study."""

    def __init__(self, file: StudyFile) -> None:
        self.file, self.study = file, file.study
        self.protocol: Protocol = file.study.protocol
        folder = data_folder(file.study.data_folder and file.path_of(file.study.data_folder))
        self.folder = None if folder is None else str(folder)
        self._data = folder
        self._prints: dict[tuple[str, str], str] = {}

    def all_steps(self) -> Iterator[Step]:
        """In an order in which each comes after its inputs."""
        runs = self._wanted()
        planted = self.study.control.models if self.study.control else None
        self._check_folders({run.model for run in runs} | set(planted or ()))
        made: list[Step] = []
        for run in runs:
            made.append(train := self._train(run))
            made += [self._look(run, name, train) for name in run.methods]
        for run in self._made_before():
            made += [self._look(run, name, None) for name in run.methods]
        if self.study.control is not None:
            made += self._plants(self.study.control)
        if self.study.report:
            made.append(self._report(made))
        yield from made

    def _wanted(self) -> list[Asked]:
        """Every task, model and seed, with the methods that somebody wants of it."""
        runs: dict[tuple[str, str, int], Asked] = {}
        for number, block in enumerate((self.study, *self.study.also)):
            tasks, models, seeds, methods, analyses = (
                getattr(self.study, name) if getattr(block, name) is None else getattr(block, name)
                for name in ("tasks", "models", "seeds", "methods", "analyses")
            )
            overrides = block.overrides if isinstance(block, Block) else {}
            for task, model, seed in _product(tasks, models, seeds):
                before = runs.get((task, model, seed))
                if before and before.overrides != overrides:
                    raise self.file.problem(
                        ["also", number - 1],
                        f"{task}, {model}, seed {seed} is asked for twice with other settings.",
                    )
                wanted = (*(before.methods if before else ()), *methods, *analyses)
                runs[task, model, seed] = Asked(
                    *(task, model, seed, overrides, tuple(dict.fromkeys(wanted))),
                    self._where(task, model, seed),
                )
        # Where layers are planted, plain runs of which nothing is asked are not made.
        return [run for run in runs.values() if run.methods or self.study.control is None]

    def _made_before(self) -> Iterator[Asked]:
        """Runs that are in the study's folder already, as `memloc adopt` makes them."""
        names = (*self.study.methods, *self.study.analyses)
        for place in self.study.runs:
            run = Run.open(self.file.folder / place)
            able = [n for n in names if all(run.has(w) for w in find_method(n).needs)]
            key = run.record.task.name, run.record.model, run.seed
            yield Asked(*key, {}, tuple(able), place)

    def _check_folders(self, models: set[str]) -> None:
        seen: dict[str, str] = {}
        for model in sorted(models):
            other = seen.setdefault(self._label(model), model)
            if other != model:
                raise self.file.problem(
                    ["models"], f"{other} and {model} would share the folder {self._label(model)}."
                )

    def _label(self, model: str) -> str:
        return paths.run_folder(Path(), "-", self.file.path_of(model), 1, self.study.depth).parts[1]

    def _where(self, task: str, model: str, seed: int) -> str:
        place = paths.run_folder(Path(), task, self.file.path_of(model), seed, self.study.depth)
        return place.as_posix()

    def _shape(self, model: str) -> Shape:
        return shape_of(self.file.path_of(model), self.study.depth)

    def _print(self, kind: str, name: str) -> str:
        """The fingerprint of a model or a task, made once."""
        if (kind, name) not in self._prints:
            if kind == "model":
                found = model_fingerprint(self.file.path_of(name))
            elif name in self.study.data:
                found = file_fingerprint(self.file, name)
            else:
                found = task_fingerprint(name, self._data)
            self._prints[kind, name] = found
        return self._prints[kind, name]

    def _what(self, run: Asked) -> dict[str, Any]:
        return {
            "task": run.task,
            "model": self.file.path_of(run.model),
            "seed": run.seed,
            "folder": run.folder,
            "data_folder": self.folder,
            "overrides": dict(run.overrides),
        }

    def _protocol(self, run: Asked) -> Protocol:
        return self.protocol.replace(run.overrides)

    def _train_settings(self, run: Asked) -> dict[str, Any]:
        return {
            "model": self._print("model", run.model),
            "task": self._print("task", run.task),
            "seed": run.seed,
            "examples": self.study.examples,
            "depth": self.study.depth,
            **_plain(self._protocol(run).for_run().deciding(memorised=True)),
        }

    def _train(self, run: Asked) -> Step:
        # The memorised weights may not be there: whether they are is found out in training.
        weights = _weights_for(run.methods)
        kept = [str(paths.checkpoint(Path(run.folder), w)) for w in weights if w != "memorised"]
        return Step(
            name=f"train/{run.folder}",
            kind="train",
            what={**self._what(run), "weights": weights},
            parts=self._train_parts(run),
            outputs=(f"{run.folder}/{paths.RUN}", *kept),
            shape=self._shape(run.model),
        )

    def _train_parts(self, run: Asked) -> dict[str, Part]:
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
            "weights": Part(settings, (run.folder,)),
            "memorised": Part(when, tuple(map(str, again))),
        }

    def _look(self, run: Asked, name: str, train: Step | None) -> Step:
        """A method on a run; one that was made before has no training."""
        method = find_method(name)
        kind = {"localiser": "localise", "analysis": "analyse"}[method.kind]
        path = paths.result(Path(run.folder), name)
        needed = {*method.needs, *method.uses}
        here = {} if train else {"run": _content(self.file.folder / run.folder)}
        return Step(
            name=f"{kind}/{run.folder}/{name}",
            kind=kind,
            what={**self._what(run), "name": name, "force": self.study.force},
            parts={"result": Part({**here, **self._method_settings(run, name)}, (str(path),))},
            outputs=(str(path / paths.ABOUT),),
            inputs=(train.name,) if train else (),
            reads=("weights", *(("memorised",) if "memorised" in needed else ())),
            allowed={"force": self.study.force, **_flat("verdict", self._protocol(run).verdict)},
            shape=train.shape if train else _shape_of_run(self.file.folder / run.folder),
        )

    def _method_settings(self, run: Asked, name: str) -> dict[str, Any]:
        return _flat(name, self._protocol(run).method(name))

    def _plants(self, block: ControlBlock) -> Iterator[Step]:
        auxiliary = self.protocol.control.auxiliary
        usual = [task for task in self.study.tasks if task != auxiliary]
        for model in block.models or self.study.models:
            windows = planted_windows(block, self._shape(model).depth, self.protocol)
            middle = windows[len(windows) // 2]
            for task in block.tasks or usual:
                for window in windows:
                    null = block.nulls == "all" or (block.nulls == "middle" and window == middle)
                    yield self._plant(block, (task, model), window, null)

    def _plant(
        self, block: ControlBlock, subject: tuple[str, str], window: range, null: bool
    ) -> Step:
        task, model = subject
        seed = self.protocol.control.seed
        place = self._where(task, model, seed)
        run = Asked(task, model, seed, {}, tuple(block.methods), place)
        kinds = (False, True) if null else (False,)
        folders = tuple(
            str(paths.plant_folder(Path(), Path(place), name_of(window), null=kind))
            for kind in kinds
        )
        own = self.protocol.control
        instead = {"finetune.learning_rate": own.learning_rate, "finetune.epochs": own.epochs}
        settings = {
            **self._train_settings(run),
            **{name: value for name, value in instead.items() if value is not None},
            **_flat("control", own, NOT_PLANTED),
            **_flat("verdict", self.protocol.verdict),
            "auxiliary": self._print("task", self.protocol.control.auxiliary),
            "window": name_of(window),
        }
        parts = {"plant": Part(settings, folders)}
        for method in block.methods:
            files = tuple(str(paths.result(Path(folder), method)) for folder in folders)
            parts[method] = Part(self._method_settings(run, method), files)
        return Step(
            name=f"plant/{place}/{name_of(window)}",
            kind="plant",
            what={
                **self._what(run),
                "folders": folders,
                "window": name_of(window),
                "methods": run.methods,
                "null": null,
            },
            parts=parts | {"null": Part({"null": null}, ())},
            # What else is there depends on whether it memorised.
            outputs=(f"{folders[0]}/{paths.RUN}",),
            shape=self._shape(model),
        )

    def _report(self, made: Sequence[Step]) -> Step:
        protocol = self.protocol
        about_control = {"validation_tasks", "ks"}
        settings = {
            **_flat("agreement", protocol.agreement),
            **_flat("summary", protocol.summary),
            **_flat("verdict", protocol.verdict),
            **_flat("control", protocol.control, set(_names(protocol.control)) - about_control),
        }
        return Step(
            name="report",
            kind="report",
            what={},
            parts={"page": Part(settings, ())},
            outputs=(str(paths.page(Path())),),
            inputs=tuple(step.name for step in made),
            soft=True,
        )


def _weights_for(methods: Sequence[str]) -> tuple[str, ...]:
    """The weights that these methods look at, and the final ones."""
    kinds = [find_method(name) for name in methods]
    needed = {"final", *(w for kind in kinds for w in (*kind.needs, *kind.uses))}
    return tuple(name for name in WEIGHTS if name in needed)


def _product(
    tasks: Sequence[str], models: Sequence[str], seeds: Sequence[int]
) -> Iterator[tuple[str, str, int]]:
    return ((task, model, seed) for task in tasks for model in models for seed in seeds)


def _flat(name: str, settings: Settings, without: Sequence[str] | set[str] = ()) -> dict[str, Any]:
    """Settings of a group under their dotted names, as they read back from a file."""
    flat = _plain(settings.flat())
    return {f"{name}.{key}": value for key, value in flat.items() if key not in without}


def _names(settings: Settings) -> list[str]:
    return list(type(settings).model_fields)


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(values))
    return found


def _content(folder: Path) -> Any:
    """What identifies a run that was made before: its data and its weights."""
    run = Run.open(folder)
    return _plain(run.identity([*WEIGHTS, "pretrained"]))


def _shape_of_run(folder: Path) -> Shape:
    record = Run.open(folder).record
    return Shape(record.depth, record.width, 0)
