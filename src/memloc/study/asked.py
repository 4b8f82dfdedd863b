"""Which runs a study asks for, with which settings, and what is to be found in each."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from memloc import paths
from memloc.methods.base import find_method
from memloc.protocol import Protocol
from memloc.run import Run
from memloc.study.config import Block, StudyFile

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
    there: Run | None = None
    """The run, where it was made before."""


def asked_runs(file: StudyFile) -> list[Asked]:
    """Every task, model and seed that is to be trained, once, and what somebody wants of it."""
    runs: dict[tuple[Any, ...], Asked] = {}
    for number, block in enumerate((MAIN, *file.study.also)):
        for run in _of_block(file, block):
            key = run.task, run.model, run.seed
            before = runs.get(key, run)
            if before.protocol != run.protocol:
                raise file.problem(
                    ["also", number - 1, "overrides"],
                    f"{run.task}, {run.model}, seed {run.seed} is asked for twice, with other "
                    f"settings ({_difference(before.protocol, run.protocol)}): a run has one set.",
                )
            wanted = dict.fromkeys((*before.methods, *run.methods))
            runs[key] = replace(run, methods=tuple(wanted))
    # Where layers are planted or runs are there, plain ones of which nothing is asked are not made.
    others = file.study.control is not None or file.study.runs
    return [run for run in runs.values() if run.methods or not others]


def _of_block(file: StudyFile, block: Block) -> Iterator[Asked]:
    study = file.study
    tasks, models, seeds, methods, analyses = (
        getattr(study, name) if getattr(block, name) is None else getattr(block, name)
        for name in ("tasks", "models", "seeds", "methods", "analyses")
    )
    for task, model, seed in product(tasks, models, seeds):
        protocol = protocol_for(file, task, block.overrides)
        yield asked_run(file, (task, model, seed), protocol, (*methods, *analyses))


def asked_run(
    file: StudyFile, key: tuple[str, str, int], protocol: Protocol, methods: Sequence[str]
) -> Asked:
    """A run in the place where `memloc train` would put it."""
    task, model, seed = key
    path = file.path_of(model)
    place = paths.run_folder(Path(), task, path, seed, file.study.depth)
    return Asked(task, path, seed, protocol, tuple(methods), place.as_posix())


def protocol_for(file: StudyFile, task: str, overrides: Mapping[str, Any]) -> Protocol:
    """The settings of a task's runs; a file of one's own has its own share of flipped labels."""
    own = file.study.data.get(task)
    flipped = {"noise.rate": own.flip} if own and own.flip else {}
    changes = {**overrides, **flipped}
    return file.study.protocol.replace(changes) if changes else file.study.protocol


def _difference(one: Protocol, other: Protocol) -> str:
    before, now = one.flat(), other.flat()
    name = next(name for name in now if now[name] != before[name])
    return f"{name} {before[name]} and {now[name]}"


def runs_there(file: StudyFile) -> Iterator[Asked]:
    """Runs that are in the study's folder already, as `memloc adopt` makes them.

    Methods whose weights a run does not have are left out.
    """
    names = (*file.study.methods, *file.study.analyses)
    for place in file.study.runs:
        folder = (file.folder / place).resolve()
        run = Run.open(folder)
        able = tuple(n for n in names if all(run.has(w) for w in find_method(n).needs))
        where = folder.relative_to(file.folder.resolve()).as_posix()
        record = run.record
        protocol = file.study.protocol
        yield Asked(record.task.name, record.model, run.seed, protocol, able, where, run)
