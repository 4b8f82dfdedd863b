"""Trains the weights of a run; an interrupted training continues where it stopped."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from memloc.data.task import Task, hash_examples
from memloc.engine.state import epochs_done
from memloc.errors import DataError, SettingsError, checked_arguments, lookup
from memloc.model.check import require_agreement
from memloc.model.device import pick_device, suitable_threads
from memloc.model.known import default_preset
from memloc.model.load import Classifier, LoadOptions, load_model
from memloc.progress import announce, request, tell
from memloc.protocol import settings_of_run
from memloc.run.begin import begin
from memloc.run.folder import Run
from memloc.run.recipe import Training
from memloc.run.records import TRAININGS, WEIGHTS, RunRecord, TaskRecord, few_in
from memloc.run.spec import RunSpec
from memloc.stats.windows import check_plant
from memloc.store import paths
from memloc.store.files import drafts_in, remove
from memloc.store.lock import RUN, locked


@checked_arguments
def train(  # noqa: PLR0913 - one argument for each thing that people vary
    model: str,
    task: Task,
    folder: str | Path,
    *,
    seed: int = 1,
    preset: str | None = None,
    settings: Mapping[str, Any] | None = None,
    checkpoints: Sequence[str] = tuple(WEIGHTS),
    options: LoadOptions | None = None,
    device: str = "auto",
) -> Run:
    """Fine-tune a model on labels of which some are wrong, and on the original ones.

    A run that was interrupted continues where it stopped.

    Args:
        model: Embedded name, hub name or folder of the pre-trained model.
        task: The examples, with noise (`memloc.add_noise` adds it).
        folder: Folder of the run.
        seed: Seed of the order of the data, the initial head and dropout.
        preset: `paper`, `reference` or `demo`; by default `demo` for embedded models, else `paper`.
        settings: Settings that differ from the preset, such as `{"finetune.epochs": 30}`.
        checkpoints: Checkpoints to make.
        options: Permissions for loading the model, and changes to it.
        device: `auto`, `cpu`, `cuda` or `mps`.
    """
    check_given(model, task, options)
    decided = settings_of_run(preset or default_preset(model), settings or {}, has_noise=True)
    spec = RunSpec.of(model, task, seed, decided, options)
    return make_run(spec, folder, checkpoints, task=task, device=device)


def check_given(model: str, task: Task, options: LoadOptions | None) -> None:
    """Refuse arguments that cannot be trained, such as a task that has no noise."""
    if not isinstance(model, str) or not model:
        raise SettingsError(f"Give a model's name or folder as a string, not {model!r}.")
    if not isinstance(task, Task):
        raise SettingsError(
            f"Train on a task, not on a {type(task).__name__}: `memloc.load_task` and "
            "`memloc.load_csv` give one."
        )
    if options is not None and not isinstance(options, LoadOptions):
        raise SettingsError(f"Give options as memloc.LoadOptions, not {type(options).__name__}.")
    if task.noise is None:
        raise DataError(
            "Train on a task with noise: memloc.add_noise(task, rate=0.15) flips labels, and "
            "memloc.load_csv(..., original=COLUMN) reads which are wrong already."
        )


def make_run(  # noqa: PLR0913 - what a spec alone does not say
    spec: RunSpec,
    folder: str | Path,
    checkpoints: Sequence[str] = tuple(WEIGHTS),
    *,
    task: Task | None = None,
    auxiliary: Task | None = None,
    device: str = "auto",
    optional: Sequence[str] = (),
) -> Run:
    """Make the missing weights of the run that a spec describes.

    Args:
        spec: Everything that decides the weights.
        folder: Folder of the run.
        checkpoints: Checkpoints to make.
        task: The task of the spec, if it is in memory; otherwise it is read.
        auxiliary: The auxiliary task of a plant, if it is in memory; otherwise it is read.
        device: `auto`, `cpu`, `cuda` or `mps`.
        optional: Weights that are also made if they can train in the same pass at little cost.
    """
    for name in checkpoints:
        lookup("set of weights", name, WEIGHTS)
    task = spec.load_task() if task is None else task
    auxiliary = spec.load_auxiliary(task) if auxiliary is None else auxiliary
    pick_device(device)  # refused before anything is written
    start = load_model(spec.model, task.label_names, seed=spec.seed, options=spec.options)
    require_agreement(start)
    if spec.plant is not None:
        check_plant(spec.plant.planted, start.stack.depth, spec.settings.finetune.epochs)
        if task.is_texts and spec.plant.difficulty == "loud":
            raise SettingsError(
                "Texts cannot be planted in a loud way, as ordinary texts have no labels that "
                "could be wrong: use plants of the kind decoy or equal."
            )
    with locked(Path(folder), RUN):
        for draft in drafts_in(Path(folder) / paths.CHECKPOINTS):  # of a training that was killed
            remove(draft)
        run = begin(Path(folder), task, _record(spec, task, auxiliary, start))
        run = replace(run, device=device)
        tell(task.labels.summary())
        if few := few_in(task):
            tell(few)
        left = _left(run, checkpoints)
        if left:
            announce("training", run, start, left)
        with suitable_threads(run.record.width):
            training = Training(run, start, auxiliary)
            return training.make([*left], [WEIGHTS[name] for name in optional])


def _left(run: Run, checkpoints: Sequence[str]) -> dict[str, int]:
    """Return the epochs left in each requested training that is not finished."""
    wanted = {WEIGHTS[name] for name in checkpoints}
    epochs = run.settings.finetune.epochs
    done = epochs_done(partial(paths.training_state, run.folder), [*TRAININGS][:2])
    done |= epochs_done(partial(paths.training_state, run.folder), [*TRAININGS][2:])
    return {
        name: epochs - done.get(name, 0)
        for name, last in TRAININGS.items()
        if name in wanted and not run.has(last)
    }


def _record(spec: RunSpec, task: Task, auxiliary: Task | None, start: Classifier) -> RunRecord:
    return RunRecord(
        spec=spec,
        weights_hash=start.weights_hash,
        depth=start.stack.depth,
        width=start.stack.width,
        task=TaskRecord.of(task),
        auxiliary="" if auxiliary is None else hash_examples(auxiliary.train),
        command=request(),
    )
