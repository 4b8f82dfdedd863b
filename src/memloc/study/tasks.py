"""The tasks that a study names: what identifies them, how large they are, and how they are read."""

import os
from pathlib import Path

from memloc.data.own import load_csv
from memloc.data.sources import DATA_VARIABLE, load_task, subsample
from memloc.data.tasks import PAPER_TASKS, known_tasks
from memloc.identity import hash_files, hashed
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


def training_examples(file: StudyFile, task: str) -> int:
    """How many a task has, cut to those that the study uses; own files are read and counted."""
    if task in file.study.data:
        found = load_study_task(file, task, file.study.protocol.noise.seed)
        return len((found.task if isinstance(found, NoisyTask) else found).train)
    text = known_tasks()[task].train_size.removeprefix("part of ")
    whole = round(float(text[:-1]) * 1000) if text.endswith("k") else int(text)
    return min(whole, file.study.examples or whole)
