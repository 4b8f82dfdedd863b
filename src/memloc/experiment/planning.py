"""From a study's file to its steps: what is wanted, what decides it, what it needs."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from memloc.config import ControlBlock, Study, StudyFile
from memloc.experiment.checks import check_names
from memloc.experiment.plan import Part, Plan, Step
from memloc.experiment.shapes import (
    Shape,
    data_folder,
    model_fingerprint,
    shape_of,
    task_fingerprint,
)
from memloc.protocol import Protocol
from memloc.train.run import BAR, MEMORISED_ONLY, deciding_settings
from memloc.train.windows import check_windows, every_window, read_window, usual_windows
from memloc.train.windows import window_name as name_of

WEIGHTS: Mapping[str, tuple[str, ...]] = {
    "swapping": ("final", "reference"),
    "retraining": ("final",),
    "gradients": ("memorised", "frozen"),
    "probing": ("final", "frozen"),
    "centroids": ("final", "reference"),
    "label-probes": ("final",),
    "generalisation": ("final",),
}
"""What methods and analyses look at; pretrained weights are always there."""
ALL_WEIGHTS = ("memorised", "final", "reference", "frozen")
DECIDED_BY: Mapping[str, tuple[str, ...]] = {
    "swapping": ("swapping",),
    "retraining": ("retraining",),
    "gradients": ("gradients",),
    "probing": ("probes",),
    "centroids": ("centroids", "probes.last_layer"),
    "label-probes": ("probes", "label_probes"),
    "generalisation": ("generalisation",),
}
"""Settings, or groups of them, that decide a result besides those that decide the weights."""
SUMMARY = ("layers", "scores", "nulls", "post_processing", "gradients", "plants")
"""The tables of the control set-up."""
NOT_PLANTED = ("control.validation_tasks", "control.ks", "control.seed", "control.width")
"""Settings of the control set-up that are about its summary, or are a plant's own."""


def make_plan(file: StudyFile) -> Plan:
    """Every step that a study consists of."""
    check_names(file)
    makers = _Makers(file)
    steps = {step.name: step for step in makers.all_steps()}
    return Plan(file, steps)


class _Makers:
    """Makes the steps of one study."""

    def __init__(self, file: StudyFile) -> None:
        self.file, self.study = file, file.study
        self.protocol: Protocol = file.study.protocol
        self.flat: dict[str, Any] = json.loads(json.dumps(self.protocol.flat()))
        folder = data_folder(file.study.data_folder and file.path_of(file.study.data_folder))
        self.folder = None if folder is None else str(folder)
        self._data = folder
        self._prints: dict[tuple[str, str], str] = {}

    def all_steps(self) -> Iterator[Step]:
        """In an order in which each comes after its inputs."""
        runs = wanted_runs(self.study)
        planted = self.study.control.models if self.study.control else None
        self._check_folders({model for _, model, _ in runs} | set(planted or ()))
        made: list[Step] = []
        for key, (methods, analyses) in runs.items():
            made.append(train := self._train(key, [*methods, *analyses]))
            made += [self._localise(train, key, method) for method in methods]
            made += [self._analyse(train, key, analysis) for analysis in analyses]
        if self.study.control is not None:
            plants = list(self._plants(self.study.control))
            made += [*plants, self._control(plants)]
        if self.study.report:
            made.append(self._report(made))
        yield from made

    def _check_folders(self, models: set[str]) -> None:
        seen: dict[str, str] = {}
        for model in sorted(models):
            other = seen.setdefault(self._label(model), model)
            if other != model:
                raise self.file.problem(
                    ["models"], f"{other} and {model} would share the folder {self._label(model)}."
                )

    def _label(self, model: str) -> str:
        depth = f"-depth-{self.study.depth}" if self.study.depth else ""
        return self.file.path_of(model).rstrip("/").split("/")[-1] + depth

    def _shape(self, model: str) -> Shape:
        return shape_of(self.file.path_of(model), self.study.depth)

    def _print(self, kind: str, name: str) -> str:
        """The fingerprint of a model or a task, made once."""
        if (kind, name) not in self._prints:
            self._prints[kind, name] = (
                model_fingerprint(self.file.path_of(name))
                if kind == "model"
                else task_fingerprint(name, self._data)
            )
        return self._prints[kind, name]

    def _where(self, task: str, model: str, seed: int) -> str:
        return f"{task}/{self._label(model)}/seed-{seed}"

    def _what(self, key: tuple[str, str, int]) -> dict[str, Any]:
        task, model, seed = key
        return {
            "task": task,
            "model": self.file.path_of(model),
            "seed": seed,
            "folder": self._where(*key),
            "data_folder": self.folder,
        }

    def _settings(self, groups: Sequence[str], without: Sequence[str] = ()) -> dict[str, Any]:
        """Settings of these groups, or these single ones."""
        return {
            name: value
            for name, value in self.flat.items()
            if (name in groups or name.split(".")[0] in groups) and name not in without
        }

    def _train_settings(self, key: tuple[str, str, int]) -> dict[str, Any]:
        task, model, seed = key
        is_large = self.file.path_of(model) in self.protocol.models.large
        return {
            "model": self._print("model", model),
            "task": self._print("task", task),
            "seed": seed,
            "examples": self.study.examples,
            "depth": self.study.depth,
            "large": is_large,
            **deciding_settings(self.flat, is_large),
        }

    def _train(self, key: tuple[str, str, int], users: Sequence[str]) -> Step:
        where = self._where(*key)
        needed = {w for user in users for w in WEIGHTS.get(user, ALL_WEIGHTS)}
        weights = tuple(w for w in ALL_WEIGHTS if w in {*needed, "final"})
        # The memorised weights may not be there: whether they are is found out in training.
        kept = [f"{where}/checkpoints/{w}" for w in weights if w != "memorised"]
        return Step(
            name=f"train/{where}",
            kind="train",
            what={**self._what(key), "weights": weights},
            parts=self._train_parts(key),
            outputs=(f"{where}/run.json", *kept),
            shape=self._shape(key[1]),
        )

    def _train_parts(self, key: tuple[str, str, int]) -> dict[str, Part]:
        """What decides the weights, those of near-ceiling accuracy alone, and the verdict."""
        where, settings = self._where(*key), self._train_settings(key)
        when = {name: settings.pop(name) for name in MEMORISED_ONLY}
        # The training on noisy labels is done again for them; the other trainings stay.
        again = ("run.json", *(f"checkpoints/{w}" for w in ("noisy.state", "final", "memorised")))
        return {
            "weights": Part(settings, (where,)),
            "memorised": Part(when, tuple(f"{where}/{name}" for name in again)),
            "verdict": Part(self._settings((BAR,)), ()),
        }

    def _localise(self, train: Step, key: tuple[str, str, int], method: str) -> Step:
        path = f"{self._where(*key)}/localise/{method}.parquet"
        return self._of_run("localise", train, key, (method, path))

    def _analyse(self, train: Step, key: tuple[str, str, int], analysis: str) -> Step:
        path = f"{self._where(*key)}/analyse/{analysis.replace('-', '_')}.parquet"
        return self._of_run("analyse", train, key, (analysis, path))

    def _of_run(
        self, kind: str, train: Step, key: tuple[str, str, int], result: tuple[str, str]
    ) -> Step:
        name, path = result
        reads = ("memorised",) if "memorised" in WEIGHTS.get(name, ALL_WEIGHTS) else ()
        return Step(
            name=f"{kind}/{self._where(*key)}/{name}",
            kind=kind,
            what={**self._what(key), "name": name, "force": self.study.force},
            parts={"result": Part(self._decided_by(name), (path,))},
            outputs=(path,),
            inputs=(train.name,),
            reads=("weights", *reads),
            allowed={"force": self.study.force, **self._settings((BAR,))},
            shape=train.shape,
        )

    def _decided_by(self, name: str) -> dict[str, Any]:
        """Settings of a method or analysis; of somebody else's method, all of them."""
        groups = DECIDED_BY.get(name)
        without = ("probes.class_weights",) if name == "label-probes" else ()
        return self._settings(groups, without) if groups else dict(self.flat)

    def _plants(self, block: ControlBlock) -> Iterator[Step]:
        auxiliary = self.protocol.control.auxiliary
        usual = [task for task in self.study.tasks if task != auxiliary]
        for model in block.models or self.study.models:
            shape = self._shape(model)
            windows = self._windows(block, shape.depth)
            middle = windows[len(windows) // 2]
            for task in block.tasks or usual:
                for window in windows:
                    null = block.nulls == "all" or (block.nulls == "middle" and window == middle)
                    yield self._plant(block, (task, model), window, null)

    def _windows(self, block: ControlBlock, depth: int) -> list[range]:
        given = [read_window(text) for text in block.windows]
        check_windows(given, depth)
        found = [*given, *(w for width in block.every for w in every_window(depth, width))]
        return list(dict.fromkeys(found)) or usual_windows(depth, self.protocol.control.width)

    def _plant(
        self, block: ControlBlock, subject: tuple[str, str], window: range, null: bool
    ) -> Step:
        task, model = subject
        key = (task, model, self.protocol.control.seed)
        # The planted runs' folder has the model's plain name, whatever the depth.
        name = self.file.path_of(model).rstrip("/").split("/")[-1]
        place = f"control/{task}/{name}/seed-{key[2]}"
        kinds = ("window", "null") if null else ("window",)
        folders = tuple(f"{place}/{kind}-{name_of(window)}" for kind in kinds)
        own = self.protocol.control
        instead = {"finetune.learning_rate": own.learning_rate, "finetune.epochs": own.epochs}
        training = {
            **self._train_settings(key),
            **{name: value for name, value in instead.items() if value is not None},
            **self._settings(("control", BAR), NOT_PLANTED),
            "auxiliary": self._print("task", self.protocol.control.auxiliary),
            "window": name_of(window),
        }
        parts = {"plant": Part(training, folders)}
        for method in block.methods:
            files = tuple(f"{folder}/localise/{method}.parquet" for folder in folders)
            parts[method] = Part(self._decided_by(method), files)
        return Step(
            name=f"plant/{self._where(*key)}/{name_of(window)}",
            kind="plant",
            what={
                **self._what(key),
                "folders": folders,
                "window": name_of(window),
                "methods": block.methods,
                "null": null,
            },
            parts=parts | {"null": Part({"null": null}, ())},
            # What else is there depends on whether it memorised.
            outputs=(f"{folders[0]}/run.json",),
            shape=self._shape(model),
        )

    def _control(self, plants: Sequence[Step]) -> Step:
        settings = self._settings(("control.validation_tasks", "control.ks"))
        return Step(
            name="control",
            kind="control",
            what={},
            parts={"summary": Part(settings, ())},
            outputs=tuple(f"control/{name}.parquet" for name in SUMMARY),
            inputs=tuple(step.name for step in plants),
            soft=True,
        )

    def _report(self, made: Sequence[Step]) -> Step:
        return Step(
            name="report",
            kind="report",
            what={},
            parts={"page": Part(self._settings(("agreement", "summary")), ())},
            outputs=("report/index.html",),
            inputs=tuple(step.name for step in made),
            soft=True,
        )


Runs = dict[tuple[str, str, int], tuple[list[str], list[str]]]


def wanted_runs(study: Study) -> Runs:
    """Every task, model and seed, with the methods and analyses that somebody wants of it."""
    runs: Runs = {}
    for block in (study, *study.also):
        tasks, models, seeds, methods, analyses = (
            getattr(study, name) if getattr(block, name) is None else getattr(block, name)
            for name in ("tasks", "models", "seeds", "methods", "analyses")
        )
        for task in tasks:
            for model in models:
                for seed in seeds:
                    run = runs.setdefault((task, model, seed), ([], []))
                    run[0].extend(m for m in methods if m not in run[0])
                    run[1].extend(a for a in analyses if a not in run[1])
    return runs
