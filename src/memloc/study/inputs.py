"""Checks and describes the models and tasks that a study names, without loading models."""

import json
import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from memloc.data import hub
from memloc.data.sources import DATA_VARIABLE
from memloc.data.tables import files_of
from memloc.data.task import Examples
from memloc.data.tasks import PAPER_TASKS, known_tasks
from memloc.errors import MemlocError, ModelError, SettingsError, in_words, lookup
from memloc.methods.registry import find_method
from memloc.model.known import KNOWN, TINY, no_such_model, place_of
from memloc.model.shape import Shape
from memloc.run.records import few_in
from memloc.run.spec import DataFile, RunSpec, TaskSpec
from memloc.stats.answers import too_few
from memloc.store import paths
from memloc.store.identity import hash_checkpoint, hash_files
from memloc.store.memo import Maker, key
from memloc.study.config import StudyFile

DEVICES = dict.fromkeys(("auto", "cpu", "cuda", "mps"))
TAKEN = (paths.CONTROL, paths.STEPS, paths.LOGS, paths.REPORT)
"""Folders of a study that hold other things than the runs of a task."""


def check_names(file: StudyFile) -> None:
    """Refuse names in a study that do not exist or fit, with their line in the file."""
    find: dict[str, Callable[[str], Any]] = {
        "tasks": lambda name: lookup("task", name, {**known_tasks(), **file.study.data}),
        "methods": lambda name: find_method(name, "localiser"),
        "analyses": lambda name: find_method(name, "analysis"),
        "models": partial(_check_model, file, {}),
    }
    for name, data_file in file.study.data.items():
        _check_data(file, name, data_file)
    for where, part in file.parts():
        for field, check in find.items():
            for i, name in enumerate(getattr(part, field, None) or ()):
                with file.at(*where, field, i):
                    check(name)
    with file.at("device"):
        lookup("device", file.study.device.split(":")[0], DEVICES)


def _check_data(file: StudyFile, name: str, own: DataFile) -> None:
    """Refuse a user's file that is missing, has a taken name or does not mark its wrong labels."""
    given = [key for key in ("original", "flag", "flip") if getattr(own, key) is not None]
    if name in known_tasks():
        raise file.problem("data", name, what="a task has this name already: choose another.")
    if not re.fullmatch(r"\w[\w.-]*", name) or name in TAKEN:
        raise file.problem(
            *("data", name),
            what="it names a folder: use letters, digits, `-`, `_` and `.`, and not "
            f"{', '.join(TAKEN)}.",
        )
    if len(given) != 1:
        raise file.problem(
            *("data", name),
            what="say in one way which labels are wrong: `original` or `flag` with a column, or "
            "`flip` with a share of them to make wrong.",
        )
    for field in ("file", "held_out"):
        path = getattr(own, field)
        if path is not None and not file.file_of(path).exists():
            raise file.problem("data", name, field, what=f"there is no file {file.file_of(path)}.")


def _check_model(file: StudyFile, folders: dict[str, str], name: str) -> None:
    """Refuse a model that does not exist, or that would share a folder of runs with another."""
    path = file.path_of(name)
    depth = file.study.depth
    shape_of(path, depth)
    folder = paths.run_folder(Path(), "-", path, 1, depth).parts[1]
    if folders.setdefault(folder, path) != path:
        raise SettingsError(f"{folders[folder]} and {path} would share the folder {folder}.")


@cache
def shape_of(name: str, depth: int | None = None) -> Shape:
    """Return the size of a model: embedded, in a folder, known by name, or on the hub."""
    known = {row.name: row for row in KNOWN if row.where == "hub"}
    if name in known and not Path(name).is_dir():
        whole = Shape(int(known[name].layers), int(known[name].width), 50_000)
    else:
        whole = _shape_in(name, config_of(name))
    if depth is not None and not 1 <= depth <= whole.depth:
        raise SettingsError(
            f"A depth of {depth} was asked for; this model has 1 to {whole.depth} layers."
        )
    return replace(whole, depth=depth or whole.depth)


def config_of(name: str) -> Path:
    """Return the configuration file of a model: embedded, in a folder, or on the hub."""
    source = Path(place_of(name))
    if source.is_dir():
        return source / "config.json"
    from huggingface_hub import hf_hub_download

    try:
        with hub.asked_once(name):
            return Path(hf_hub_download(name, "config.json"))
    except Exception as error:
        raise ModelError(no_such_model(name, in_words(error))) from error


SIZES = (
    ("num_hidden_layers", "num_layers", "n_layer", "n_layers"),
    ("hidden_size", "n_embd", "dim", "d_model"),
    ("vocab_size",),
)
"""Names of the number of layers, the width and the vocabulary size in configurations."""


def _shape_in(name: str, path: Path) -> Shape:
    try:
        config = dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise ModelError(f"{name} is not a model: {path} cannot be read ({error}).") from error
    depth, width, vocabulary = (
        next((config[key] for key in keys if key in config), None) for keys in SIZES
    )
    sizes = [n for n in (depth, width, vocabulary or 0) if type(n) is int and n >= 0]
    if len(sizes) < 3:
        raise ModelError(
            f"{path} does not say how many layers {name} has and how wide they are (it has "
            f"{str(depth)[:40]} and {str(width)[:40]}): take it from where the model came from."
        )
    return Shape(sizes[0], sizes[1], sizes[2], str(config.get("model_type", "")))


def model_contents(name: str) -> str:
    """Return the hash of a model's files; empty if the name identifies them."""
    local = Path(name).expanduser()
    return "" if name in TINY or not local.is_dir() else hash_checkpoint(local)


def data_folder(file: StudyFile) -> Path | None:
    """Return the folder with the paper's tasks, if there is one."""
    given = file.study.data_folder
    named = file.path_of(given) if given else os.environ.get(DATA_VARIABLE)
    return Path(named).expanduser().resolve() if named else None


def task_spec(file: StudyFile, name: str, examples: int | None) -> TaskSpec:
    """Describe a task of a study by the contents of its files and how they are read."""
    data_file = file.study.data.get(name)
    folder = data_folder(file)
    if data_file is not None:
        places = [file.file_of(path).resolve() for path in data_file.paths]
        read_as = key(Maker("data", 1), data_file.deciding())
        files = [part for place in places for part in files_of(place)]
        contents = f"{hash_files(files)} {read_as}"
        file_, *unseen = map(str, places)
        data = data_file.model_copy(update={"file": file_, "held_out": next(iter(unseen), None)})
        return TaskSpec(name=name, contents=contents, examples=examples, data=data)
    whole = name.removesuffix("-binary")
    if whole not in PAPER_TASKS or folder is None:
        return TaskSpec(name=name, examples=examples)
    contents = hash_files(sorted((folder / whole).glob("*")))
    return TaskSpec(name=name, contents=contents, examples=examples, folder=str(folder))


def check_files(file: StudyFile) -> None:
    """Refuse the user's own files that cannot be read as the study describes; they are read
    whole.
    """
    for name in file.study.data:
        with file.at("data", name):
            task_spec(file, name, file.study.examples).load(file.study.protocol.noise.seed)


def is_here(task: TaskSpec) -> bool:
    """Return whether a task can be read without fetching it from the hub."""
    return task.name.startswith("tiny-") or task.data is not None or task.folder is not None


def noise_sentence(spec: RunSpec) -> str:
    """Return how many labels of a run's task are wrong and how that is known, without fetching
    it.
    """
    if is_here(spec.task):
        with suppress(MemlocError):  # the step that trains on it reports the error
            return f"{spec.task.name}: {spec.load_task().labels.summary()}"
    share = spec.settings.noise.rate
    return f"{spec.task.name}: memloc will flip a share of {share:g} of each class's labels."


def few_sentence(spec: RunSpec) -> str:
    """Return a warning if a run's task has too few noisy examples for any verdict."""
    if is_here(spec.task):
        with suppress(MemlocError):  # the step that trains on it reports the error
            return few_in(spec.load_task())
    examples = training_examples(spec.task)
    n_classes = known_tasks()[spec.task.name].n_classes
    warning = too_few(int(spec.settings.noise.rate * examples), examples, n_classes)
    return f"{spec.task.name}: {warning}" if warning else ""


def tokens_of(examples: Examples, task: str = "") -> float:
    """Return the mean number of tokens per text: 4/3 per word, one per word in embedded tasks."""
    words = [len(" ".join(parts).split()) + len(parts) for parts in examples.parts[:500]]
    return float(np.mean(words)) * (1.0 if task.startswith("tiny-") else 4 / 3)


@cache
def training_examples(task: TaskSpec) -> int:
    """Count a task's training examples, or those of its sample; the user's own files are read."""
    if task.data is not None:
        return len(task.load(1).train)
    text = known_tasks()[task.name].train_size.removeprefix("part of ")
    whole = round(float(text[:-1]) * 1000) if text.endswith("k") else int(text)
    return min(whole, task.examples or whole)
