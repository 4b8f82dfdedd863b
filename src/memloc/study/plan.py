"""From a study's file to a graph of steps: what is wanted, what decides it, needs and leaves."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from itertools import product
from pathlib import Path
from typing import Any

from memloc.data.tasks import known_tasks
from memloc.errors import MemlocError, SettingsError, lookup
from memloc.methods import find_method
from memloc.model.known import default_preset
from memloc.protocol import MEMORISED_ONLY, Protocol
from memloc.run.folder import AS_ONE, WEIGHTS, Run
from memloc.settings import Settings
from memloc.stats.windows import (
    check_plant,
    every_window,
    plant_name,
    read_plant,
    usual_plants,
)
from memloc.store import paths
from memloc.store.memo import Maker, key
from memloc.study.config import (
    Block,
    ControlBlock,
    StudyFile,
    parse_study,
    read_study,
    write_study,
)
from memloc.study.inputs import (
    Shape,
    check_files,
    check_names,
    model_fingerprint,
    shape_of,
    task_fingerprint,
)

KINDS = ("train", "localise", "analyse", "plant")
"""In the order in which a study needs them."""
NOT_PLANTED = ("validation_tasks", "ks", "seed", "width")
"""Settings of the control set-up that are about its summary, or are a plant's own."""
MAIN = Block.model_validate({})
"""The main part of a study: a block that differs from it in nothing."""


@dataclass(frozen=True)
class Asked:
    """What a study wants of one run."""

    task: str
    model: str
    """A name, or a path."""
    seed: int
    protocol: Protocol
    methods: tuple[str, ...]
    folder: str
    """Where it is, in the study's folder."""
    shape: Shape
    """Of the model."""
    there: Run | None = None
    """The run, where it was made before."""

    @property
    def weights(self) -> tuple[str, ...]:
        """Those that its methods look at, and the final ones."""
        kinds = [find_method(name) for name in self.methods]
        needed = {"final", *(w for kind in kinds for w in (*kind.needs, *kind.uses))}
        return tuple(name for name in WEIGHTS if name in needed)


@dataclass(frozen=True)
class Product:
    """One thing that a step makes: what decides it, and the files to remove when that changed."""

    settings: Mapping[str, Any]
    removes: tuple[str, ...]

    @property
    def identity(self) -> str:
        """A hash of what decides it."""
        return key(Maker("product", 1), self.settings)


@dataclass(frozen=True)
class Step:
    """One piece of work, done by one process."""

    name: str
    kind: str
    run: Asked
    """The run that is made or looked at."""
    products: Mapping[str, Product]
    outputs: tuple[str, ...]
    """Files and folders, in the study's folder, that are there when it is done."""
    method: str = ""
    """That looks at the run."""
    window: str = ""
    """Of layers in which the run is planted."""
    folders: tuple[str, ...] = ()
    """Of the planted run, and of its null if there is one."""
    needs: "Step | None" = None
    """The step that trains the run."""
    reads: tuple[str, ...] = ()
    """The products of that step that decide this one."""
    allowed: Mapping[str, Any] = field(default_factory=dict)
    """Settings that decide whether it may be done, and nothing of what comes out."""

    @property
    def settings(self) -> dict[str, Any]:
        """All that decides it, as it reads back from a record, for people to compare."""
        made = {k: v for product in self.products.values() for k, v in product.settings.items()}
        as_read: dict[str, Any] = json.loads(json.dumps(made))
        return as_read

    @cached_property
    def identity(self) -> str:
        """A hash of what decides it, and of what it reads."""
        read = [] if self.needs is None else [_hashed(self.needs, self.reads)]
        own = {name: product.identity for name, product in self.products.items()}
        version = find_method(self.method).version if self.method else 1
        return key(Maker(self.kind, version), {"products": own, "inputs": read})


def _hashed(step: Step, names: Iterable[str]) -> str:
    """What decides some of a step's products."""
    own = {name: step.products[name].identity for name in names}
    return key(Maker(step.kind, 1), {"products": own})


@dataclass(frozen=True)
class Plan:
    """The steps of a study by name, each after the one that it needs."""

    file: StudyFile
    steps: Mapping[str, Step] = field(default_factory=dict)

    def chosen(self, only: Sequence[str]) -> set[str]:
        """The steps that the words name, and all that these need; no words: every step.

        The words of one text must all fit a step; several texts are alternatives.
        """
        if not only:
            return set(self.steps)
        found: set[str] = set()
        for text in only:
            fits = {name for name in self.steps if _fits(name, text.split())}
            if not fits:
                command = f"`memloc plan {self.file.folder} --steps`"
                raise SettingsError(f"No step matches --only {text!r}: {command} lists the steps.")
            found |= fits
        needs = [self.steps[name].needs for name in found]
        return found | {need.name for need in needs if need is not None}


def _fits(name: str, words: Sequence[str]) -> bool:
    """Whether each word is one of those in a step's name, or a beginning of the name."""
    there = name.split("/")
    return all(w in there or name == w or name.startswith(f"{w.rstrip('/')}/") for w in words)


def open_plan(place: str | Path) -> Plan:
    """The steps of the study in a folder, whose files of one's own can be read."""
    plan = make_plan(read_study(place))
    check_files(plan.file)
    return plan


def make_plan(file: StudyFile) -> Plan:
    """Every step that a study consists of."""
    check_names(file)
    return Plan(file, {step.name: step for step in _Makers(file).all_steps()})


def control_study(out: Path, study: Mapping[str, Any], block: Mapping[str, Any]) -> Path:
    """Write a study that does nothing but plant; its folder is returned.

    What is None is left to the study's defaults. A folder with another study is refused.
    """
    import yaml

    models = [_found(model) for model in study["models"]]
    preset = study["preset"] or default_preset(models[0])
    asked = _given({**study, "preset": preset, "models": models})
    planted = _given({"tasks": [*study["tasks"]], **block})  # a copy: YAML would refer to it
    asked |= {"methods": [], "analyses": [], "report": False, "control": planted}
    text = yaml.safe_dump(asked, sort_keys=False, allow_unicode=True)
    try:
        make_plan(parse_study(text, out))
    except SettingsError as error:  # of a file that nobody has seen
        said = re.sub(r"^line \d+, ", "", str(error).removeprefix(f"{out / paths.STUDY}, "))
        raise SettingsError(said) from None
    return write_study(text, out).parent


def _found(model: str) -> str:
    """A folder by its whole path: in a study's file, paths are from the study's folder."""
    path = Path(model).expanduser()
    return str(path.resolve()) if path.is_dir() else model


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value not in (None, {}, [])}


def asked_runs(file: StudyFile) -> list[Asked]:
    """Every task, model and seed that is to be trained, once, and what somebody wants of it."""
    runs: dict[tuple[Any, ...], Asked] = {}
    for number, block in enumerate((MAIN, *file.study.also)):
        given = dict(file.study) | {name: value for name, value in block if value is not None}
        methods = (*given["methods"], *given["analyses"])
        for names in product(given["tasks"], given["models"], given["seeds"]):
            run = _asked(file, names, given["overrides"], methods)
            key = run.task, run.model, run.seed
            before = runs.get(key, run)
            if before.protocol != run.protocol:
                one, other = before.protocol.flat(), run.protocol.flat()
                name = next(name for name in other if other[name] != one[name])
                raise file.problem(
                    *("also", number - 1, "overrides"),
                    what=f"{run.task}, {run.model}, seed {run.seed} is asked for twice, with "
                    f"different settings ({name} {one[name]} and {other[name]}): a run has one "
                    "set.",
                )
            wanted = dict.fromkeys((*before.methods, *run.methods))
            runs[key] = replace(run, methods=tuple(wanted))
    # Where layers are planted or runs are there, plain ones of which nothing is asked are not made.
    others = file.study.control is not None or file.study.runs
    return [run for run in runs.values() if run.methods or not others]


def _asked(
    file: StudyFile, key: tuple[str, str, int], overrides: Mapping[str, Any], methods: Sequence[str]
) -> Asked:
    """A run in the place where `memloc train` would put it."""
    task, model, seed = key
    path, depth = file.path_of(model), file.study.depth
    place = paths.run_folder(Path(), task, path, seed, depth).as_posix()
    protocol = protocol_for(file, task, overrides)
    return Asked(task, path, seed, protocol, tuple(methods), place, shape_of(path, depth))


def protocol_for(file: StudyFile, task: str, overrides: Mapping[str, Any]) -> Protocol:
    """The settings of a task's runs; a file of one's own has its own share of flipped labels."""
    own = file.study.data.get(task)
    flipped = {"noise.rate": own.flip} if own and own.flip else {}
    changes = {**overrides, **flipped}
    return file.study.protocol.replace(changes) if changes else file.study.protocol


def runs_there(file: StudyFile) -> Iterator[Asked]:
    """Runs that are in the study's folder already, as `memloc adopt` makes them.

    Methods whose weights a run does not have are left out.
    """
    names, home = (*file.study.methods, *file.study.analyses), file.folder.resolve()
    for i, place in enumerate(file.study.runs):
        folder = (file.folder / place).resolve()
        with file.at("runs", i):
            run = Run.open(folder)
        if not folder.is_relative_to(home):
            raise file.problem("runs", i, what="a run of a study must be in the study's folder.")
        able = tuple(n for n in names if all(run.has(w) for w in find_method(n).needs))
        key, where = (run.record.task.name, run.record.model, run.seed), folder.relative_to(home)
        shape = Shape(run.depth, run.record.width, 0)
        yield Asked(*key, file.study.protocol, able, where.as_posix(), shape, run)


class _Makers:
    """Makes the steps of one study."""

    def __init__(self, file: StudyFile) -> None:
        self.file, self.study = file, file.study
        self.protocol = file.study.protocol
        self._of_model = cache(model_fingerprint)
        self._of_task = cache(partial(task_fingerprint, file))

    def all_steps(self) -> list[Step]:
        """In an order in which each comes after its inputs."""
        made: list[Step] = []
        runs = asked_runs(self.file)
        for run in runs:
            made.append(train := self._train(run))
            made += [self._look(run, name, train) for name in run.methods]
        for i, run in enumerate(runs_there(self.file)):
            if run.folder in {other.folder for other in runs}:
                what = "this study trains the run that is there."
                raise self.file.problem("runs", i, what=what)
            made += [self._look(run, name, None) for name in run.methods]
        if self.study.control is not None:
            made += self._plants(self.study.control)
        return made

    def _train_settings(self, run: Asked) -> dict[str, Any]:
        return {
            "model": self._of_model(run.model),
            "task": self._of_task(run.task),
            "seed": run.seed,
            "examples": self.study.examples,
            "depth": self.study.depth,
            **run.protocol.for_run().deciding(memorised=True),
        }

    def _train(self, run: Asked) -> Step:
        where, settings = Path(run.folder), self._train_settings(run)
        # What decides the weights of near-ceiling accuracy alone: for these the training on noisy
        # labels is done again, and the other trainings stay.
        when = {name: settings.pop(name) for name in MEMORISED_ONLY}
        again = (
            where / paths.RUN,
            paths.training_state(where, "noisy"),
            paths.training_state(where, *AS_ONE),
            *(paths.checkpoint(where, weights) for weights in ("final", "memorised")),
        )
        # The memorised weights may not be there: whether they are is found out in training.
        kept = [str(paths.checkpoint(where, w)) for w in run.weights if w != "memorised"]
        return Step(
            name=f"train/{run.folder}",
            kind="train",
            run=run,
            products={
                "weights": Product(settings, (run.folder,)),
                "memorised": Product(when, tuple(map(str, again))),
            },
            outputs=(f"{run.folder}/{paths.RUN}", *kept),
        )

    def _look(self, run: Asked, name: str, train: Step | None) -> Step:
        """A method on a run; one that was made before has no training, and counts by content."""
        method = find_method(name)
        kind = {"localiser": "localise", "analysis": "analyse"}[method.kind]
        path = paths.result(Path(run.folder), name)
        there = run.there and {"run": run.there.identity([*WEIGHTS, "pretrained"])}
        settings = (there or {}) | _method_settings(run, name)
        is_late = "memorised" in {*method.needs, *method.uses}
        return Step(
            name=f"{kind}/{run.folder}/{name}",
            kind=kind,
            run=run,
            method=name,
            products={"result": Product(settings, (str(path),))},
            outputs=(str(path / paths.ABOUT),),
            needs=train,
            reads=("weights", "memorised") if is_late else ("weights",),
            allowed={"force": self.study.force, **_flat("verdict", self.protocol.verdict)},
        )

    def _plants(self, block: ControlBlock) -> Iterator[Step]:
        control, problem = self.protocol.control, partial(self.file.problem, "control")
        with self.file.at("overrides", "control.auxiliary"):
            lookup("task", control.auxiliary, known_tasks())
        tasks = block.tasks or [task for task in self.study.tasks if task != control.auxiliary]
        if control.auxiliary in tasks or not tasks:
            what = f"{control.auxiliary} is the auxiliary task; plant another one."
            raise problem("tasks", what=what)
        for model, task in product(block.models or self.study.models, tasks):
            if task in self.study.data and self.study.data[task].flip is None:
                what = f"{task} has noise of its own; plant a task whose labels are flipped."
                raise problem(what=what)
            run = _asked(self.file, (task, model, control.seed), {}, block.methods)
            try:
                windows = planted_windows(block, run.shape.depth, self.protocol)
            except MemlocError as error:
                raise problem("windows", what=f"{model}: {error}") from None
            for window in windows:
                middle = block.nulls == "middle" and window == windows[len(windows) // 2]
                yield self._plant(run, window, null=middle or block.nulls == "all")

    def _plant(self, run: Asked, window: str, *, null: bool) -> Step:
        place = Path(run.folder)
        both = [paths.plant_folder(Path(), place, window, null=kind) for kind in (False, True)]
        products = {"plant": Product(self._plant_settings(run, window), tuple(map(str, both)))}
        for method in run.methods:
            files = tuple(str(paths.result(folder, method)) for folder in both)
            products[method] = Product(_method_settings(run, method), files)
        return Step(
            name=f"plant/{run.folder}/{window.replace('/', '_')}",
            kind="plant",
            run=run,
            window=window,
            folders=tuple(map(str, both if null else both[:1])),
            products=products | {"null": Product({"null": null}, (str(both[1]),))},
            # What else is there depends on whether it memorised.
            outputs=(str(both[0] / paths.RUN),),
        )

    def _plant_settings(self, run: Asked, window: str) -> dict[str, Any]:
        own = self.protocol.control
        instead = {"finetune.learning_rate": own.learning_rate, "finetune.epochs": own.epochs}
        return {
            **self._train_settings(run),
            **{name: value for name, value in instead.items() if value is not None},
            **_flat("control", own, without=NOT_PLANTED),
            **_flat("verdict", self.protocol.verdict),
            "auxiliary": self._of_task(own.auxiliary),
            "window": window,
        }


def _method_settings(run: Asked, name: str) -> dict[str, Any]:
    return _flat(name, run.protocol.method(name))


def _flat(name: str, settings: Settings, without: Sequence[str] = ()) -> dict[str, Any]:
    """Settings of a group under their dotted names."""
    return {f"{name}.{key}": value for key, value in settings.flat().items() if key not in without}


def planted_windows(block: ControlBlock, depth: int, protocol: Protocol) -> list[str]:
    """The plants that a block asks for in a model of this depth; each makes a run of its own."""
    found = [plant_name(read_plant(text)) for text in block.windows]
    found += [window for width in block.every for window in every_window(depth, width)]
    for plant in found:
        check_plant(plant, depth)
    return list(dict.fromkeys(found)) or usual_plants(depth, protocol.control.width)
