"""From a recipe to a run: its weights are made, alone or as one with those of other runs."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from memloc import paths
from memloc.errors import DataError, TrainingError, lookup
from memloc.lock import RUN, locked
from memloc.models.check import require_agreement
from memloc.models.device import pick_device, suitable_threads
from memloc.models.known import default_preset
from memloc.models.load import Classifier, LoadOptions
from memloc.progress import request, tell
from memloc.protocol import protocol_of_run
from memloc.records import Task, read_json
from memloc.run import AS_ONE, TRAININGS, WEIGHTS, Run, RunRecord, TaskRecord, begin
from memloc.stats.windows import check_plant
from memloc.training.checkpoints import curves_kept
from memloc.training.loop import members_at_once, out_of_memory_explained
from memloc.training.recipe import Recipe, Together, Training, Wanted, are_near_ceiling


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
    if task.noise is None:
        raise DataError(
            "Train on a task with noise: memloc.add_noise(task, rate=0.15) flips labels, and "
            "memloc.load_csv(..., original=COLUMN) reads which are wrong already."
        )
    protocol = protocol_of_run(preset or default_preset(model), settings or {})
    loading = options or LoadOptions()
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
    beside: Sequence[str] = (),
) -> Run:
    """Make the missing ones of a run's weights; what is there stays, what was begun goes on.

    Those of `beside` are made as well if they learn as one with the others, at little cost.
    """
    for name in weights:
        lookup("set of weights", name, WEIGHTS)
    start, at_once = _start(recipe)
    with locked(folder, RUN):
        run = begin(Path(folder), recipe.task, _record(recipe, start))
        tell(recipe.task.labels.summary())
        as_one = at_once > 1 and not any(_state(run, [name]).is_file() for name in AS_ONE)
        if not as_one:
            _give_up(
                _state(run, AS_ONE),
                "The noisy and the original labels were learnt as one, which these settings or "
                "this device do not allow: both are learnt from the start, one after the other.",
            )
        wanted = [*weights, *(beside if as_one else ())]
        left = _left(run, wanted, recipe.settings.epochs, as_one=as_one)
        if any({*names} & {*AS_ONE} for names in left):
            why = "began as one with other runs, and is learnt alone now, from the start."
            _give_up(paths.shared_state(run.folder), f"{run.folder} {why}")
        if left:
            announce(start, {name: epochs for names, epochs in left.items() for name in names})
        return make_weights(recipe, run, left)


def _give_up(state: Path, why: str) -> None:
    """Remove a training that was begun and cannot go on, if there is one, and say so."""
    if state.is_file():
        tell(why)
        state.unlink()


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
    for names in trainings:
        (run,) = _carry_out([(recipe, run, names)])
    return run


def _carry_out(wanted: Sequence[Wanted]) -> list[Run]:
    recipe, run, _ = wanted[0]
    with suitable_threads(run.record.width), out_of_memory_explained(recipe.settings):
        return Training(wanted).make()


def train_as_one(asked: Sequence[tuple[Recipe, Path, Sequence[str]]]) -> None:
    """Learn the noisy and the original labels of several runs as one, if their model allows it.

    `asked` are recipes, folders and sets of weights. The runs differ in their seeds or labels
    alone: those of a task with several seeds, or a plant and its null. Each becomes what it would
    be alone. `train_run` makes all that is still missing afterwards.
    """
    if not asked[0][0].settings.learns_as_one:
        return
    start, at_once = _start(asked[0][0])
    if at_once == 1:
        return
    with ExitStack() as locks:
        for folder in sorted(folder for _, folder, _ in asked):
            locks.enter_context(locked(folder, RUN))
        begun = [
            (recipe, begin(folder, recipe.task, _record(recipe, start)), weights)
            for recipe, folder, weights in asked
        ]
        for stack in _stacks(begun, at_once):
            try:
                _carry_out(stack)
            except TrainingError as error:  # of one of them, perhaps: that one will say so itself
                tell(f"{error} The runs that were learnt as one are learnt one by one.")
                paths.shared_state(stack[0][1].folder).unlink(missing_ok=True)


Begun = Sequence[tuple[Recipe, Run, Sequence[str]]]
"""Runs, and the weights that are asked for."""


def _stacks(begun: Begun, at_once: int) -> Iterator[list[Wanted]]:
    """What several runs learn as one: stacks that were begun before, then new ones.

    Each is to be carried out before the next one is asked for.
    """
    yield from _continued(begun)
    stack: list[Wanted] = []
    for recipe, run, weights in begun:
        needed = {WEIGHTS[name] for name in weights if not run.has(TRAININGS[WEIGHTS[name]])}
        names = tuple(name for name in AS_ONE if name in needed)
        alone = any(_state(run, each).is_file() for each in (AS_ONE, *((n,) for n in AS_ONE)))
        if not names or alone:
            continue
        if sum(len(others) for *_, others in stack) + len(names) > at_once:
            yield from [stack] if len(stack) > 1 else []
            stack = []
        stack.append((recipe, run, names))
    yield from [stack] if len(stack) > 1 else []


def _continued(begun: Begun) -> Iterator[list[Wanted]]:
    there = {run.folder.name: (recipe, run) for recipe, run, _ in begun}
    for _, run, _ in begun:
        state, names = paths.shared_state(run.folder), defaultdict[str, list[str]](list)
        goes_on = True
        for member, rows in curves_kept(state).items():
            folder, _, name = member.rpartition("/")
            goes_on &= folder in there and _goes_on(*there[folder], name, rows)
            names[folder].append(name)
        if not (names and goes_on):
            why = "began as one with other runs, of which one is missing, or the file is damaged"
            _give_up(state, f"{run.folder} {why}: it begins again.")
            continue
        stack = [(*there[folder], tuple(own)) for folder, own in names.items()]
        if all(run.has(TRAININGS[name]) for _, run, own in stack for name in own):
            state.unlink()  # stopped just before this
        else:
            yield stack


def _goes_on(recipe: Recipe, run: Run, name: str, rows: list[dict[str, Any]]) -> bool:
    """Whether a run still has the θ_M1 that was kept of a training, if it had come so far."""
    is_past = name == "noisy" and any(are_near_ceiling(rows, recipe.settings))
    return not is_past or run.has("memorised") or run.has("final")


def _left(run: Run, weights: Sequence[str], epochs: int, *, as_one: bool) -> dict[Together, int]:
    """The trainings that are wanted and not done, and how many epochs are left of each."""
    done = {training for training, last in TRAININGS.items() if run.has(last)}
    wanted = {WEIGHTS[name] for name in weights} - done
    trainings: list[Together] = [(name,) for name in TRAININGS]
    for names in (AS_ONE, *trainings):
        if done.issuperset(names):
            _state(run, names).unlink(missing_ok=True)  # stopped just before this
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
