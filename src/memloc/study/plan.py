"""Expands a study file into steps: inputs, cache keys, outputs.

A step is a JSON value: the process that runs it receives it and plans nothing again.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from itertools import product, zip_longest
from pathlib import Path
from typing import Any, Literal

from memloc.data.tasks import known_tasks
from memloc.errors import MemlocError, SettingsError, lookup
from memloc.methods import Method
from memloc.methods.protocol import Protocol
from memloc.methods.registry import find_method, trivial_names
from memloc.model.known import default_preset
from memloc.model.shape import Shape
from memloc.protocol import MEMORISED_ONLY, VerdictSettings
from memloc.run.folder import Run
from memloc.run.records import AS_ONE, WEIGHTS
from memloc.run.spec import RunSpec
from memloc.settings import Settings
from memloc.stats.windows import check_plant, every_window, named_plant, split_kind, usual_plants
from memloc.store import paths
from memloc.store.memo import Maker, key
from memloc.study.config import (
    ControlBlock,
    Study,
    StudyFile,
    checked_study,
    read_study,
    write_study,
)
from memloc.study.inputs import check_files, check_names, model_contents, shape_of, task_spec

ACTIONS = ("train", "localise", "analyse", "plant")
"""Actions of steps in the order in which a study needs them."""
Action = Literal["train", "localise", "analyse", "plant"]
Methods = Mapping[str, Method]
"""Methods by name, with their settings."""


class Step(Settings):
    """A piece of work, done by one process."""

    name: str
    action: Action
    spec: RunSpec
    """Spec of the run that is trained or analysed."""
    folder: str
    """Folder of the run, relative to the study's folder."""
    shape: Shape
    """Size of the model."""
    products: dict[str, dict[str, Any]]
    """Everything that decides each product of the step, by the name of the product."""
    removes: dict[str, tuple[str, ...]] = {}
    """Files and folders to remove when a product's inputs have changed, by product."""
    outputs: tuple[str, ...]
    """Files and folders, relative to the study's folder, that exist when the step is done."""
    checkpoints: tuple[str, ...] = ()
    """Weights to train."""
    methods: dict[str, dict[str, Any]] = {}
    """Methods to apply to the run, with their settings."""
    null: str = ""
    """Folder of a plant's null; empty without one."""
    needs: str = ""
    """Name of the step that trains the run; empty if none does."""
    reads: str = ""
    """Cache key of the products that this step reads from that step."""
    verdict: VerdictSettings = VerdictSettings()
    force: bool = False
    """Apply methods even if the labels were not memorised."""
    device: str = "auto"
    home: str = ""
    """Folder of the study."""
    token: str = ""
    """Name of this attempt: a process whose step has another token by now ends itself."""
    threads: int = 1
    memory: int = 0
    """Bytes of memory that the step takes while it runs."""
    gpus: float = 0.0

    @property
    def settings(self) -> dict[str, Any]:
        """Everything that decides the step, in the form in which a record stores it."""
        deciding = {
            name: value for facts in self.products.values() for name, value in facts.items()
        }
        as_read: dict[str, Any] = json.loads(json.dumps(deciding))
        return as_read

    @property
    def method(self) -> str:
        """Name of the method of a step that analyses a run."""
        return next(iter(self.methods), "") if self.action in {"localise", "analyse"} else ""

    @property
    def folders(self) -> tuple[str, ...]:
        """Folders of the run and, for a plant, of its null."""
        return (self.folder, self.null) if self.null else (self.folder,)

    @property
    def allowed(self) -> dict[str, Any]:
        """Settings that decide whether the step may run, but not its results."""
        if self.action not in {"localise", "analyse"}:
            return {}
        return {"force": self.force, **_flat("verdict", self.verdict)}

    @cached_property
    def keys(self) -> dict[str, str]:
        """Cache key of each product."""
        return {name: key(Maker("product", 1), facts) for name, facts in self.products.items()}

    @cached_property
    def identity(self) -> str:
        """Cache key of everything that decides the step, including all that it reads."""
        version = find_method(self.method).version if self.method else 1
        return key(Maker(self.action, version), {"products": self.keys, "inputs": self.reads})

    def made(self, names: Iterable[str]) -> str:
        """Return a cache key of some of the step's products."""
        return key(Maker(self.action, 1), {name: self.keys[name] for name in names})

    def methods_with_settings(self) -> list[Method]:
        """Return the methods as objects with their settings."""
        return [
            find_method(name).model_validate(settings) for name, settings in self.methods.items()
        ]


@dataclass(frozen=True)
class Plan:
    """Steps of a study by name, each after the step that it needs."""

    file: StudyFile
    steps: Mapping[str, Step] = field(default_factory=dict)
    there: Mapping[str, Run] = field(default_factory=dict)
    """Existing runs, by their folders in the study's folder."""

    def chosen(self, only: Sequence[str]) -> set[str]:
        """Return the steps named by these words, with their dependencies; without words, every
        step.

        All words of one text must match a step; several texts are alternatives.
        """
        if not only:
            return set(self.steps)
        matching: set[str] = set()
        for text in only:
            fits = {name for name in self.steps if _fits(name, text.split())}
            if not fits:
                command = f"`memloc plan {self.file.folder} --steps`"
                raise SettingsError(f"No step matches --only {text!r}: {command} lists the steps.")
            matching |= fits
        return matching | {need for name in matching if (need := self.steps[name].needs)}


def _fits(name: str, words: Sequence[str]) -> bool:
    """Return whether each word is a part of a step's name, or the name begins with it."""
    parts = name.split("/")
    return all(w in parts or name == w or name.startswith(f"{w.rstrip('/')}/") for w in words)


def open_plan(place: str | Path) -> Plan:
    """Plan the study in a folder, after a check that the user's files can be read."""
    plan = make_plan(read_study(place))
    check_files(plan.file)
    return plan


def make_plan(file: StudyFile) -> Plan:
    """Plan every step of a study."""
    check_names(file)
    existing = runs_there(file)
    return Plan(file, {step.name: step for step in _Planner(file).steps(existing)}, existing)


def control_plan(out: Path, study: Mapping[str, Any], block: Mapping[str, Any]) -> Plan:
    """Plan a study that consists of plants only, and write its file for `memloc run` to continue.

    Values that are None are left to the study's defaults. A folder with another study is refused.
    """
    import yaml

    models = [_found(model) for model in study["models"]]
    preset = study["preset"] or default_preset(models[0])
    values = _given({**study, "preset": preset, "models": models})
    planted = _given({"tasks": [*study["tasks"]], **block})  # a copy: YAML would refer to it
    values |= {"methods": [], "analyses": [], "report": False, "control": planted}
    plan = make_plan(checked_study(StudyFile(out / paths.STUDY, {}), values))
    write_study(yaml.safe_dump(values, sort_keys=False, allow_unicode=True), plan.file)
    return plan


def _found(model: str) -> str:
    """Return a folder as an absolute path, since paths in a study's file are relative to that
    file.
    """
    path = Path(model).expanduser()
    return str(path.resolve()) if path.is_dir() else model


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value not in (None, {}, [])}


def runs_there(file: StudyFile) -> dict[str, Run]:
    """Open the existing runs in the study's folder, such as adopted ones, by folder."""
    runs: dict[str, Run] = {}
    home = file.folder.resolve()
    for i, place in enumerate(file.study.runs):
        folder = (file.folder / place).resolve()
        with file.at("runs", i):
            run = Run.open(folder)
        if not folder.is_relative_to(home):
            raise file.problem("runs", i, what="a run of a study must be in the study's folder.")
        runs[folder.relative_to(home).as_posix()] = run
    return runs


def protocol_for(study: Study, task: str) -> Protocol:
    """Return the settings of a task's runs; a file may set its own share of labels to flip."""
    data_file = study.data.get(task)
    return (
        study.protocol.replace({"noise.rate": data_file.flip})
        if data_file and data_file.flip
        else study.protocol
    )


class _Planner:
    """Makes the steps of one study."""

    def __init__(self, file: StudyFile) -> None:
        self.file, self.study = file, file.study
        self.protocol = file.study.protocol
        self._contents = cache(model_contents)
        self._task = cache(partial(task_spec, file))
        self._common: dict[str, Any] = {
            "verdict": self.protocol.verdict,
            "home": str(file.folder),
            "force": self.study.force,
            "device": self.study.device,
        }

    def steps(self, there: Mapping[str, Run]) -> Iterator[Step]:
        """Yield the steps in an order in which each comes after its inputs."""
        intended = self.intended()
        for folder, (spec, methods) in intended.items():
            train = self._train(spec, folder, methods)
            yield train
            for method in methods.values():
                yield self._look(train.spec, folder, method, train)
        for i, (folder, run) in enumerate(there.items()):
            if folder in intended:
                what = "this study trains the run that is there."
                raise self.file.problem("runs", i, what=what)
            for name in (*self.study.methods, *self.study.analyses):
                method = self.protocol.method(name)
                if all(run.has(name) for name in method.needs):
                    yield self._look(run.spec, folder, method, run)
        if self.study.control is not None:
            yield from self._plants(self.study.control)

    def intended(self) -> dict[str, tuple[RunSpec, Methods]]:
        """Return every run to train, by folder, with the methods to apply to it."""
        runs: dict[str, tuple[RunSpec, Methods]] = {}
        for number, part in enumerate(self.study.parts):
            names = (*part.methods, *part.analyses)
            for task, model, seed in product(part.tasks, part.models, part.seeds):
                protocol = protocol_for(part, task)
                spec, folder = self._spec(task, model, seed, protocol)
                methods = {name: protocol.method(name) for name in names}
                before, others = runs.get(folder, (spec, {}))
                if other := _conflict(before, others, spec, methods):
                    raise self.file.problem(
                        *("also", number - 1, "overrides"),
                        what=f"{task}, {spec.model}, seed {seed} is asked for twice, with "
                        f"different settings ({other}): a run has one set.",
                    )
                runs[folder] = (spec, {**others, **methods})
        # With plants or adopted runs, plain runs that no method looks at are not trained.
        is_alone = self.study.control is None and not self.study.runs
        return {folder: asked for folder, asked in runs.items() if asked[1] or is_alone}

    def _spec(self, task: str, model: str, seed: int, protocol: Protocol) -> tuple[RunSpec, str]:
        """Return a run's spec and the folder where `memloc train` would put the run."""
        path, depth = self.file.path_of(model), self.study.depth
        spec = RunSpec(
            model=path,
            contents=self._contents(path),
            depth=depth,
            task=self._task(task, self.study.examples),
            seed=seed,
            settings=protocol.for_run(),
        )
        return spec, paths.run_folder(Path(), task, path, seed, depth).as_posix()

    def _train(self, spec: RunSpec, folder: str, methods: Methods) -> Step:
        where, settings = Path(folder), spec.deciding()
        # Settings that decide only the near-ceiling weights: for these the training on noisy
        # labels is done again, and the other trainings stay.
        when = {name: settings.pop(name) for name in MEMORISED_ONLY}
        again = (
            where / paths.RUN,
            paths.training_state(where, "noisy"),
            paths.training_state(where, *AS_ONE),
            *(paths.checkpoint(where, name) for name in ("final", "memorised")),
        )
        checkpoints = checkpoints_for(methods)
        if spec.task.data is not None and spec.task.data.is_texts:
            checkpoints = tuple(c for c in checkpoints if c != "frozen")  # there is no new head
        # The memorised weights may not be there: whether they are is found out in training.
        kept = [str(paths.checkpoint(where, w)) for w in checkpoints if w != "memorised"]
        return Step(
            name=f"train/{folder}",
            action="train",
            spec=spec,
            folder=folder,
            shape=shape_of(spec.model, spec.depth),
            checkpoints=checkpoints,
            products={"weights": settings, "memorised": when},
            removes={"weights": (folder,), "memorised": tuple(map(str, again))},
            outputs=(f"{folder}/{paths.RUN}", *kept),
            **self._common,
        )

    def _look(self, spec: RunSpec, folder: str, method: Method, made: Step | Run) -> Step:
        """Return the step of a method on a run that another step trains, or that exists already."""
        path, name = paths.result(Path(folder), method.name), method.name
        settings, step = _flat(name, method), made if isinstance(made, Step) else None
        if isinstance(made, Run):
            settings["run"] = made.identity([*WEIGHTS, "pretrained"])
            shape = Shape(made.depth, made.record.width, 0)
        else:
            shape = made.shape
        is_late = "memorised" in {*method.needs, *method.uses}
        action: Action = "localise" if method.kind == "localiser" else "analyse"
        return Step(
            name=f"{action}/{folder}/{name}",
            action=action,
            spec=spec,
            folder=folder,
            shape=shape,
            methods={name: method.model_dump(mode="json")},
            products={"result": settings},
            removes={"result": (str(path),)},
            outputs=(str(path / paths.ABOUT),),
            needs="" if step is None else step.name,
            reads="" if step is None else step.made(["weights", *["memorised"][:is_late]]),
            **self._common,
        )

    def _plants(self, block: ControlBlock) -> Iterator[Step]:
        control, problem = self.protocol.control, partial(self.file.problem, "control")
        with self.file.at("overrides", "control.auxiliary"):
            lookup("task", control.auxiliary, known_tasks())
        tasks = block.tasks or [task for task in self.study.tasks if task != control.auxiliary]
        if control.auxiliary in tasks or not tasks:
            what = f"{control.auxiliary} is the auxiliary task; plant another one."
            raise problem("tasks", what=what)
        pairs = product(block.models or self.study.models, tasks)
        rows = [list(self._plants_of(block, *pair)) for pair in pairs]
        # Each pair begins with another plant, so finished plants cover all models, tasks and kinds.
        turned = [row[i % len(row) :] + row[: i % len(row)] for i, row in enumerate(rows)]
        for column in zip_longest(*turned):
            yield from (step for step in column if step is not None)

    def _plants_of(self, block: ControlBlock, model: str, task: str) -> Iterator[Step]:
        """Yield the steps that train the plants of one model and task and look at them.

        The plants are in the order of their windows. A plant is a run whose noisy
        labels can only be in the layers of its window.
        """
        control, problem = self.protocol.control, partial(self.file.problem, "control")
        data_file = self.study.data.get(task)
        is_texts = data_file is not None and data_file.is_texts
        if data_file is not None and data_file.flip is None and not is_texts:
            what = f"{task} has noise of its own; plant a task whose labels are flipped."
            raise problem(what=what)
        protocol = protocol_for(self.study, task)
        spec, folder = self._spec(task, model, control.seed, protocol)
        try:
            depth = shape_of(spec.model, spec.depth).depth
            windows = planted_windows(block, depth, protocol)
        except MemlocError as error:
            raise problem("windows", what=f"{model}: {error}") from None
        auxiliary = None
        if not is_texts:
            auxiliary = self._task(control.auxiliary, control.auxiliary_examples)
        chosen = [protocol.method(name) for name in with_baselines(block.methods)]
        methods = {m.name: m for m in chosen if not (is_texts and m.labels_only)}
        for window in windows:
            same = [other for other in windows if split_kind(other)[0] == split_kind(window)[0]]
            middle = block.nulls == "middle" and window == same[len(same) // 2]
            planted = spec.planted(window, auxiliary, protocol)
            yield self._plant(planted, folder, methods, null=middle or block.nulls == "all")

    def _plant(self, spec: RunSpec, run: str, methods: Methods, *, null: bool) -> Step:
        assert spec.plant is not None
        window = spec.plant.planted
        both = [paths.plant_folder(Path(), Path(run), window, null=kind) for kind in (False, True)]
        results = {name: tuple(str(paths.result(at, name)) for at in both) for name in methods}
        looks = {name: _flat(name, method) for name, method in methods.items()}
        return Step(
            name=f"plant/{run}/{window.replace('/', '_').replace(' ', '-')}",
            action="plant",
            spec=spec,
            folder=str(both[0]),
            shape=shape_of(spec.model, spec.depth),
            checkpoints=checkpoints_for(methods),
            methods={name: method.model_dump(mode="json") for name, method in methods.items()},
            null=str(both[1]) if null else "",
            products={"plant": spec.deciding(), **looks, "null": {"null": null}},
            removes={"plant": tuple(map(str, both)), **results, "null": (str(both[1]),)},
            # Further outputs depend on whether the run memorised.
            outputs=(str(both[0] / paths.RUN),),
            **self._common,
        )


def with_baselines(names: Iterable[str]) -> list[str]:
    """Return methods, then the trivial baselines that need no weights which they do not need."""
    weights = {
        "pretrained",
        "final",
        "memorised",
        *(w for name in names for w in find_method(name)().needs),
    }
    trivial = [name for name in trivial_names() if weights >= {*find_method(name)().needs}]
    return list(dict.fromkeys([*names, *trivial]))


def checkpoints_for(methods: Methods) -> tuple[str, ...]:
    """Return the final weights and those that the methods look at."""
    needed = {"final", *(w for method in methods.values() for w in (*method.needs, *method.uses))}
    return tuple(name for name in WEIGHTS if name in needed)


def _conflict(spec: RunSpec, methods: Methods, other: RunSpec, others: Methods) -> str:
    """Return the first setting in which two parts that request one run differ."""
    one, two = spec.settings.flat(), other.settings.flat()
    for name in methods.keys() & others.keys():
        one |= _flat(name, methods[name])
        two |= _flat(name, others[name])
    differing = [name for name in two if one[name] != two[name]]
    return f"{differing[0]} {one[differing[0]]} and {two[differing[0]]}" if differing else ""


def _flat(name: str, settings: Settings) -> dict[str, Any]:
    """Return the settings of a group under their dotted names."""
    return {f"{name}.{key}": value for key, value in settings.flat().items()}


def planted_windows(block: ControlBlock, depth: int, protocol: Protocol) -> list[str]:
    """Return the plants that a study requests for a model of this depth, one for each run."""
    names = [named_plant(text) for text in block.windows]
    names += [window for width in block.every for window in every_window(depth, width)]
    for plant in names:
        check_plant(plant, depth, protocol.control.epochs or protocol.finetune.epochs)
    return list(dict.fromkeys(names)) or usual_plants(depth, protocol.control.width)
