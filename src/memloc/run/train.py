"""From a recipe to a run: its weights are made, those that were begun before go on."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from memloc.data.task import Task
from memloc.engine.state import epochs_done
from memloc.errors import DataError, SettingsError, checked_arguments, lookup
from memloc.model.check import require_agreement
from memloc.model.device import pick_device, suitable_threads
from memloc.model.known import default_preset
from memloc.model.load import Classifier, LoadOptions
from memloc.progress import request, tell
from memloc.protocol import protocol_of_run
from memloc.run.folder import (
    TRAININGS,
    WEIGHTS,
    Run,
    RunRecord,
    TaskRecord,
    begin,
    few_in,
)
from memloc.run.recipe import Recipe, Training
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
    weights: Sequence[str] = tuple(WEIGHTS),
    options: LoadOptions | None = None,
    device: str = "auto",
) -> Run:
    """Fine-tune a model on labels of which some are wrong, and on the original ones.

    Makes the weights `memorised`, `final`, `reference` and `frozen` of a run in `folder`; one that
    was interrupted continues where it stopped. `settings` are those that differ from the preset,
    such as `{"finetune.epochs": 30}`; the default preset is `demo` for embedded models, else
    `paper`.
    """
    if not isinstance(model, str) or not model:
        raise SettingsError(f"Give a model's name or folder as a string, not {model!r}.")
    if not isinstance(task, Task):
        raise SettingsError(
            f"Train on a task, not on a {type(task).__name__}: `memloc.load_task` and "
            "`memloc.load_csv` give one."
        )
    if task.noise is None:
        raise DataError(
            "Train on a task with noise: memloc.add_noise(task, rate=0.15) flips labels, and "
            "memloc.load_csv(..., original=COLUMN) reads which are wrong already."
        )
    name = preset or default_preset(model)
    protocol = protocol_of_run(name, settings or {}, has_noise=True)
    loading = LoadOptions() if options is None else options
    if not isinstance(loading, LoadOptions):
        raise SettingsError(f"Give options as memloc.LoadOptions, not {type(options).__name__}.")
    recipe = Recipe(model, task, seed, protocol, loading, device)
    return train_run(recipe, Path(folder), weights)


Announce = Callable[[Classifier, Mapping[str, int]], None]
"""Told before work begins: the model, and how many epochs are left of each training."""


def train_run(
    recipe: Recipe,
    folder: Path,
    weights: Sequence[str] = tuple(WEIGHTS),
    announce: Announce = lambda _model, _left: None,
    *,
    optional: Sequence[str] = (),
) -> Run:
    """Make the missing ones of a run's weights; what is there stays, what was begun goes on.

    `optional` weights are made as well where they can train in the same pass, at little cost.
    """
    for name in weights:
        lookup("set of weights", name, WEIGHTS)
    start = _start(recipe)
    with locked(folder, RUN):
        for draft in drafts_in(folder / paths.CHECKPOINTS):  # of a training that was killed
            remove(draft)
        run = begin(Path(folder), recipe.task, _record(recipe, start))
        tell(recipe.task.labels.summary())
        if few := few_in(recipe.task):
            tell(few)
        left = _left(run, weights, recipe.settings.epochs)
        if left:
            announce(start, left)
        with suitable_threads(run.record.width):
            return Training(recipe, run, start).make([*left], [WEIGHTS[name] for name in optional])


def _start(recipe: Recipe) -> Classifier:
    """The pretrained model, checked."""
    pick_device(recipe.device)  # refused before anything is written if not there
    start = recipe.load(recipe.task, recipe.seed)
    require_agreement(start)
    if recipe.plant is not None:
        check_plant(recipe.plant.planted, start.stack.depth)
    return start


def _left(run: Run, weights: Sequence[str], epochs: int) -> dict[str, int]:
    """The trainings that are wanted and not done, and how many epochs are left of each."""
    wanted = {WEIGHTS[name] for name in weights}
    done = epochs_done(partial(paths.training_state, run.folder), [*TRAININGS][:2])
    done |= epochs_done(partial(paths.training_state, run.folder), [*TRAININGS][2:])
    return {
        name: epochs - done.get(name, 0)
        for name, last in TRAININGS.items()
        if name in wanted and not run.has(last)
    }


def _record(recipe: Recipe, start: Classifier) -> RunRecord:
    return RunRecord(
        model=recipe.model,
        weights_hash=start.weights_hash,
        depth=start.stack.depth,
        width=start.stack.width,
        seed=recipe.seed,
        task=TaskRecord.of(recipe.task),
        settings=recipe.protocol.for_run(),
        remote_code=recipe.options.remote_code,
        any_format=recipe.options.any_format,
        plant=None if recipe.plant is None else recipe.plant.record(recipe.protocol.control),
        command=request(),
    )
