"""Plants memorisation: trains runs whose noisy labels can only change known layers."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from memloc.data.sources import load_task, subsample
from memloc.data.task import Task
from memloc.errors import SettingsError, checked_arguments
from memloc.model.checkpoints import save_checkpoint
from memloc.model.known import default_preset
from memloc.model.load import LoadOptions
from memloc.protocol import RunSettings, common_preset
from memloc.run.folder import Run
from memloc.run.records import WEIGHTS, Attempt
from memloc.run.spec import RunSpec, TaskSpec
from memloc.run.train import check_given, make_run
from memloc.store import paths
from memloc.store.files import remove
from memloc.store.lock import RUN, locked


@checked_arguments
def plant(  # noqa: PLR0913 - one argument for each thing that people vary
    model: str,
    task: Task,
    folder: str | Path,
    layers: str,
    *,
    auxiliary: Task | None = None,
    seed: int | None = None,
    preset: str | None = None,
    settings: Mapping[str, Any] | None = None,
    checkpoints: Sequence[str] = tuple(WEIGHTS),
    options: LoadOptions | None = None,
    device: str = "auto",
) -> Run:
    """Train a run whose noisy labels can only change some layers; another task changes all layers.

    In a task of texts, memorised texts can only change some layers, and ordinary texts change all.

    A training that does not memorise its labels is repeated with a higher learning rate, as the
    settings of `control` say. `run.status.attempts` lists the trainings that fell short.

    Args:
        model: Embedded name, hub name or folder of the pre-trained model.
        task: The examples, with noise (`memloc.add_noise` adds it).
        folder: Folder of the run.
        layers: Layers from 1, such as `6-7` or `2+9`; `mlp:6-7` or `attention:6-7` for a part of
            each layer; `2-3/9-10` for two groups of noisy examples, `2-3/9-10@21` if the second is
            learnt from epoch 21 on, and `2-3@1-20/9-10@21-40` if the first then ends. Groups that
            begin later than others leave the head as it is, and stages that end share all clean
            examples.
        auxiliary: Task that changes all layers; by default the preset's. For texts, always the
            ordinary ones.
        seed: Seed of the order of the data, the initial head and dropout; by default the preset's.
        preset: `paper`, `reference` or `demo`; by default `demo` for embedded models, else `paper`.
        settings: Settings that differ from the preset, such as `{"control.tries": 1}`.
        checkpoints: Checkpoints to make.
        options: Permissions for loading the model, and changes to it.
        device: `auto`, `cpu`, `cuda` or `mps`.
    """
    check_given(model, task, options)
    if auxiliary is not None and not isinstance(auxiliary, Task):
        raise SettingsError(f"Give auxiliary as a task, not as a {type(auxiliary).__name__}.")
    allowed = {*RunSettings.model_fields, "control", "verdict"}
    for key in settings or {}:
        if "." in key and key.split(".")[0] not in allowed:
            raise SettingsError(f"{key} does not decide the weights of a plant: leave it out.")
    protocol = common_preset(preset or default_preset(model)).replace(settings or {})
    control = protocol.control
    if auxiliary is not None and task.is_texts:
        raise SettingsError(
            f"The ordinary texts of {task.name} change all layers: leave auxiliary out."
        )
    if auxiliary is None and not task.is_texts:
        auxiliary = load_task(control.auxiliary, seed=protocol.noise.seed)
        few = control.auxiliary_examples
        if few is not None and few < len(auxiliary.train):
            auxiliary = subsample(auxiliary, few, protocol.noise.seed)
    run_seed = control.seed if seed is None else seed
    spec = RunSpec.of(model, task, run_seed, protocol.for_run(), options)
    other = None if auxiliary is None else TaskSpec.of_training(auxiliary)
    spec = spec.planted(layers, other, protocol)
    return make_plant(spec, folder, checkpoints, task=task, auxiliary=auxiliary, device=device)


def make_plant(
    spec: RunSpec,
    folder: str | Path,
    checkpoints: Sequence[str] = tuple(WEIGHTS),
    *,
    task: Task | None = None,
    auxiliary: Task | None = None,
    device: str = "auto",
) -> Run:
    """Make the planted run that a spec describes.

    Args:
        spec: Everything that decides the weights.
        folder: Folder of the run.
        checkpoints: Checkpoints to make.
        task: The task of the spec, if it is in memory; otherwise it is read.
        auxiliary: The auxiliary task, if it is in memory; otherwise it is read.
        device: `auto`, `cpu`, `cuda` or `mps`.
    """
    plant = spec.plant
    folder = Path(folder)
    assert plant is not None
    task = spec.load_task() if task is None else task
    auxiliary = spec.load_auxiliary(task) if auxiliary is None else auxiliary
    given: dict[str, Any] = {"task": task, "auxiliary": auxiliary, "device": device}
    optional = [name for name in checkpoints if name == "reference"]
    with locked(folder, RUN):  # also between two attempts
        for _ in range(plant.tries):
            run = make_run(spec, folder, ["final", "memorised"], optional=optional, **given)
            if is_enough(run):
                return make_run(spec, folder, checkpoints, **given)
            if len(run.status.attempts) + 1 >= plant.tries:
                break
            _start_again(run)
        return run


def make_null(
    planted: Run,
    folder: str | Path,
    checkpoints: Sequence[str] = tuple(WEIGHTS),
    *,
    auxiliary: Task | None = None,
) -> Run:
    """Make the null of a planted run: the same run with the original labels.

    There is nothing to memorise, but the examples that are noisy in the planted run are still
    measured. The reference weights are those of the planted run. A null of texts never sees the
    texts that are memorised in the planted run.

    Args:
        planted: The planted run.
        folder: Folder of the null.
        checkpoints: Checkpoints to make.
        auxiliary: The auxiliary task, if it is in memory; otherwise it is read.
    """
    spec = planted.spec.null(planted.settings)
    task = planted.task
    noisy = planted.noisy
    if not task.is_texts:
        task = replace(task, noise=replace(noisy, assigned=noisy.original, origin=""))
    given: dict[str, Any] = {"task": task, "auxiliary": auxiliary, "device": planted.device}
    run = make_run(spec, folder, ["final", "memorised"], **given)
    if "reference" in checkpoints and not run.has("reference"):
        about = {"weights": "reference", "run": planted.record.model_dump(mode="json")}
        save_checkpoint(run.path("reference"), planted.load("reference"), about)
    return make_run(spec, folder, [name for name in checkpoints if name != "reference"], **given)


def is_enough(run: Run) -> bool:
    """Return whether a planted run learnt its labels as well as its spec requires."""
    final, plant = run.status.final, run.plant
    assert plant is not None
    if final is None or not run.memorised(plant.noisy_at_least):
        return False
    if run.task.is_texts:  # ordinary texts need not be recalled
        return True
    return run.has("memorised") and final.training > plant.accuracy_above


def _start_again(run: Run) -> None:
    """Delete the weights of an attempt that fell short, and record the attempt for a higher rate.

    A process that is killed in between repeats the attempt, with the same result.
    """
    assert run.status.final is not None
    for path in (run.folder / paths.CHECKPOINTS, run.folder / paths.TRAINING):
        remove(path)
    rate, accuracy = run.settings.finetune.learning_rate, run.status.final.training
    attempt = Attempt(learning_rate=rate, training_accuracy=accuracy)
    run.note(attempts=(*run.status.attempts, attempt), final=None, without={})
