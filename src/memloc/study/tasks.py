"""The tasks that a study names: what identifies them, how large they are, and how they are read."""

import os
from contextlib import suppress
from pathlib import Path

from memloc.data.own import load_csv
from memloc.data.perturb import add_noise
from memloc.data.sources import DATA_VARIABLE, load_task, subsample
from memloc.data.tasks import PAPER_TASKS, known_tasks
from memloc.errors import MemlocError
from memloc.identity import hash_files, hashed
from memloc.protocol import Protocol
from memloc.records import NoisyTask, Task
from memloc.study.config import DataFile, StudyFile

COLUMNS = {"text", "pair", "label", "original", "flag"}
"""What a study says of the columns of a file."""


def data_folder(file: StudyFile) -> Path | None:
    """The folder with the paper's tasks, if there is one."""
    given = file.study.data_folder
    named = file.path_of(given) if given else os.environ.get(DATA_VARIABLE)
    return Path(named).expanduser() if named else None


def task_fingerprint(file: StudyFile, name: str) -> str:
    """What identifies a task: its name, and what is in its files."""
    if name in file.study.data:
        return _file_fingerprint(file, name)
    whole, folder = name.removesuffix("-binary"), data_folder(file)
    if whole not in PAPER_TASKS or folder is None:
        return name
    return f"{name} {hash_files(sorted((folder / whole).glob('*')))}"


def _file_fingerprint(file: StudyFile, name: str) -> str:
    """Of a file of one's own: its contents, and how they are read."""
    own = file.study.data[name]
    places = [file.file_of(path) for path in (own.file, own.held_out) if path is not None]
    return f"{name} {hash_files(places)} {hashed(own.model_dump(exclude={'file', 'held_out'}))}"


def load_study_task(file: StudyFile, name: str, seed: int) -> Task | NoisyTask:
    """A task that a study names, with noise where its file says which labels are wrong."""
    own, few = file.study.data.get(name), file.study.examples
    if own is None:
        task: Task | NoisyTask = load_task(name, folder=data_folder(file), seed=seed)
    else:
        task = _load_own(file, name, own, seed)
    if few is None or isinstance(task, NoisyTask) or few >= len(task.train):
        return task
    return subsample(task, few, seed)


def _load_own(file: StudyFile, name: str, own: DataFile, seed: int) -> Task | NoisyTask:
    unseen = None if own.held_out is None else file.file_of(own.held_out)
    columns = own.model_dump(include=COLUMNS)
    path = file.file_of(own.file)
    found: Task | NoisyTask = load_csv(path, **columns, held_out=unseen, seed=seed, name=name)
    return found


def load_noisy_task(file: StudyFile, name: str, protocol: Protocol) -> NoisyTask:
    """A task as its runs are trained on it: with its own noise, or with that of the protocol."""
    noise = protocol.noise
    found = load_study_task(file, name, noise.seed)
    if isinstance(found, NoisyTask):
        return found
    return add_noise(found, noise.rate, noise.seed, noise.kind)


def is_here(file: StudyFile, name: str) -> bool:
    """Whether a task can be read without fetching it from the hub."""
    return name.startswith("tiny-") or name in file.study.data or data_folder(file) is not None


def noise_sentence(file: StudyFile, name: str, protocol: Protocol) -> str:
    """How many labels of a task are wrong, and how that is known; a task is not fetched for it."""
    if is_here(file, name):
        with suppress(MemlocError):  # the step that trains on it will say what is wrong
            return f"{name}: {load_noisy_task(file, name, protocol).labels.summary()}"
    return f"{name}: memloc will flip a share of {protocol.noise.rate:g} of each class's labels."


def training_examples(file: StudyFile, task: str) -> int:
    """How many a task has, cut to those that the study uses; own files are read and counted."""
    if task in file.study.data:
        found = load_study_task(file, task, file.study.protocol.noise.seed)
        return len((found.task if isinstance(found, NoisyTask) else found).train)
    text = known_tasks()[task].train_size.removeprefix("part of ")
    whole = round(float(text[:-1]) * 1000) if text.endswith("k") else int(text)
    return min(whole, file.study.examples or whole)
