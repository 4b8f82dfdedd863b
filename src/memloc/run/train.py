"""From a recipe to a run: its weights are made, those that were begun before go on."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from memloc.data.task import Task
from memloc.engine.loop import members_at_once, out_of_memory_explained
from memloc.errors import (
    DataError,
    SettingsError,
    checked_arguments,
    lookup,
)
from memloc.model.check import require_agreement
from memloc.model.device import pick_device, suitable_threads
from memloc.model.known import default_preset
from memloc.model.load import Classifier, LoadOptions
from memloc.progress import request, tell
from memloc.protocol import protocol_of_run
from memloc.run.checkpoints import curves_kept
from memloc.run.folder import (
    AS_ONE,
    TRAININGS,
    WEIGHTS,
    Run,
    RunRecord,
    TaskRecord,
    begin,
    few_in,
)
from memloc.run.recipe import Recipe, Together, Training
from memloc.stats.windows import check_plant
from memloc.store import paths
from memloc.store.files import drafts_in, remove
from memloc.store.lock import RUN, locked
from memloc.store.records import read_json


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
    protocol = protocol_of_run(preset or default_preset(model), settings or {})
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
    start, at_once = _start(recipe)
    with locked(folder, RUN):
        for draft in drafts_in(folder / paths.CHECKPOINTS):  # of a training that was killed
            remove(draft)
        run = begin(Path(folder), recipe.task, _record(recipe, start))
        tell(recipe.task.labels.summary())
        if few := few_in(recipe.task):
            tell(few)
        as_one = at_once > 1 and not any(_state(run, [name]).is_file() for name in AS_ONE)
        if not as_one:
            _give_up(
                _state(run, AS_ONE),
                "The noisy and the original labels were learnt as one, which these settings or "
                "this device do not allow: both are learnt from the start, one after the other.",
            )
        wanted = [*weights, *(optional if as_one else ())]
        left = _left(run, wanted, recipe.settings.epochs, as_one=as_one)
        if left:
            announce(start, {name: epochs for names, epochs in left.items() for name in names})
        return make_weights(recipe, run, left)


def _give_up(state: Path, why: str) -> None:
    """Remove a training that was begun and cannot go on, if there is one, and say so."""
    if state.is_file():
        tell(why)
        remove(state)


def _start(recipe: Recipe) -> tuple[Classifier, int]:
    """The pretrained model, checked, and how many like it learn as one."""
    device = pick_device(recipe.device)  # refused before anything is written if not there
    start = recipe.load(recipe.task, recipe.seed)
    require_agreement(start)
    if recipe.plant is not None:
        check_plant(recipe.plant.planted, start.stack.depth)
    at_once = members_at_once(start.stack, recipe.settings, device)
    if at_once > 1 and recipe.settings.adapter != "none":
        at_once = members_at_once(recipe.learner(recipe.seed).stack, recipe.settings, device)
    return start, at_once


def make_weights(recipe: Recipe, run: Run, trainings: Iterable[Together]) -> Run:
    """Carry out some trainings of a run that has been begun."""
    with suitable_threads(run.record.width), out_of_memory_explained(recipe.settings):
        for names in trainings:
            run = Training(recipe, run, names).make()
    return run


def _left(run: Run, weights: Sequence[str], epochs: int, *, as_one: bool) -> dict[Together, int]:
    """The trainings that are wanted and not done, and how many epochs are left of each."""
    done = {training for training, last in TRAININGS.items() if run.has(last)}
    wanted = {WEIGHTS[name] for name in weights} - done
    trainings: list[Together] = [(name,) for name in TRAININGS]
    for names in (AS_ONE, *trainings):
        if done.issuperset(names):
            remove(_state(run, names))  # stopped just before this
    if as_one and wanted.intersection(AS_ONE) and _was_as_one(run):
        wanted |= {*AS_ONE}  # the one that is there is made again beside the other, and stays
    if as_one and wanted.issuperset(AS_ONE):
        trainings = [AS_ONE, *(names for names in trainings if names[0] not in AS_ONE)]
    return {
        names: epochs - max(map(len, curves_kept(_state(run, names)).values()), default=0)
        for names in trainings
        if wanted.issuperset(names)
    }


def _was_as_one(run: Run) -> bool:
    """Whether the two were begun as one, or one is there that was learnt with the other."""
    if _state(run, AS_ONE).is_file():
        return True
    there = [run.path(TRAININGS[name]) / paths.PROVENANCE for name in AS_ONE]
    return any(read_json(path).get("together") == [*AS_ONE] for path in there if path.is_file())


def _state(run: Run, trainings: Sequence[str]) -> Path:
    return paths.training_state(run.folder, *trainings)


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
