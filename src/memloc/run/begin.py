"""Begins runs: opens the folder of an existing run, or writes the record of a new one."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from memloc.data.task import Task, hash_task
from memloc.errors import StoreError
from memloc.progress import tell
from memloc.run.folder import Run, plant_facts
from memloc.run.records import TRAININGS, WEIGHTS, RunRecord, RunStatus, labels_table
from memloc.settings import read_record
from memloc.store import paths
from memloc.store.files import remove
from memloc.store.records import as_table, read_json, write_json, write_table

FOR_PEOPLE = {"source", "noise"}
"""Fields of a task's record that inform people and decide nothing."""


def begin(
    folder: Path,
    task: Task,
    record: RunRecord,
    status: RunStatus | None = None,
    device: str = "auto",
) -> Run:
    """Open the run in this folder, or create it; refuse a run that was made from something else.

    Args:
        folder: Folder of the run.
        task: The task it is trained on.
        record: Record of the run as it should be.
        status: Status of a new run.
        device: Device of the run's models.
    """
    wanted = Run(folder, record, status=status or RunStatus(), device=device)
    if (folder / paths.RUN).is_file():
        if not (folder / paths.STATUS).is_file():
            _begin_status(wanted)
        run = Run.open(folder, device)
        _same_or_refuse(run, wanted)
        _restore(run, task)
        final = paths.checkpoint(folder, "final")
        if run.status.final is None and final.is_dir():
            _forget(folder)
        # Settings that decide nothing, such as those that save memory, may be others now.
        return replace(run, record=run.record.model_copy(update={"spec": record.spec}))
    _forget(folder)
    _write_labels(folder, task)
    wanted = wanted.note()
    # Last: its presence says that the run is begun.
    write_json(folder / paths.RUN, record.model_dump(mode="json"))
    return wanted


def _begin_status(wanted: Run) -> None:
    """Write the status of a run that lost it; remove weights without known accuracies."""
    folder = wanted.folder
    _same_or_refuse(replace(wanted, record=read_record(folder / paths.RUN, RunRecord)), wanted)
    if wanted.plant is not None:  # only the lost attempts told the learning rate of its weights
        for path in (folder / paths.CHECKPOINTS, folder / paths.TRAINING):
            remove(path)
    wanted.note()


def _forget(folder: Path) -> None:
    """Remove weights whose accuracies no record has; they are trained again."""
    early = (folder / paths.CHECKPOINTS).glob(paths.epoch("*"))
    for path in (paths.checkpoint(folder, "final"), paths.checkpoint(folder, "memorised"), *early):
        remove(path)


def _restore(run: Run, task: Task) -> None:
    """Write missing or damaged labels and curves again from the copies elsewhere."""
    try:
        _ = run.task
    except StoreError as error:
        tell(f"Made again: {error}")
        _write_labels(run.folder, task)
    made_here = [w for w in TRAININGS.values() if run.has(w) and w not in run.status.adopted]
    try:
        run.training()
    except StoreError as error:
        tell(f"Made again: {error}")
        curves = [read_json(run.path(w) / paths.PROVENANCE).get("curve", []) for w in made_here]
        table = as_table(*filter(None, curves))
        write_table(run.folder / paths.TRAINING, table, {"run": run.name})


def _write_labels(folder: Path, task: Task) -> None:
    write_table(folder / paths.LABELS, labels_table(task), {"task": hash_task(task)})


def _same_or_refuse(run: Run, wanted: Run) -> None:
    old, new = _compared(run), _compared(wanted)
    # Adopted weights may be added to a run later.
    differences = [
        (name, old[name], new[name]) for name in new if old.get(name, new[name]) != new[name]
    ]
    one, other = run.spec.model, wanted.spec.model
    if one != other and run.record.weights_hash != wanted.record.weights_hash:
        differences.insert(0, ("model", one, other))  # tells more than a hash
    if differences:
        name, before, now = differences[0]
        another = "another folder" + (" with --out" if wanted.record.made_by == "train" else "")
        differs = BY_CONTENT.get(name) or f"settings: {name} is {before!r} there and {now!r} here"
        raise StoreError(
            f"{run.folder} belongs to other {differs}. Choose {another}, or delete that one."
        )


BY_CONTENT = {
    "task.hash": "data: texts or labels differ from those that it was made from",
    "weights_hash": "weights: the model's differ from those that it was made from",
    **{f"{name} weights": f"{name} weights than these" for name in ("pretrained", *WEIGHTS)},
}
"""Sentences for differences in facts of which only hashes are known."""


def _compared(run: Run) -> dict[str, Any]:
    """Return the facts that must agree for a folder to be used again."""
    record = run.record
    named = {name: getattr(record, name) for name in ("made_by", "depth", "weights_hash")}
    task = {f"task.{k}": v for k, v in dict(record.task).items() if k not in FOR_PEOPLE}
    # The files, too: another tokenizer reads other texts.
    adopted = {f"{k} weights": (c.hash, c.files) for k, c in run.status.adopted.items()}
    facts = plant_facts(record) or {"planted": None}
    plant = {f"plant.{name}": value for name, value in facts.items()}
    settings = run.spec.settings.deciding(memorised=True)
    return {**adopted, **named, "seed": run.seed, **plant, **task, **settings}
