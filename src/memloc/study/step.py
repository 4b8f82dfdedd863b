"""One order in a process of its own, also by `python -m memloc.study.step STUDY ORDER`.

A step is one call of a library function. The process that started it is told what came out on a
pipe, as one line of JSON; all that is printed goes to the log. It ends when that process is gone,
or when the step has been given to another one.
"""

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import threadpoolctl
import torch

from memloc.arrays import FloatArray
from memloc.data.sources import load_task
from memloc.data.task import Task
from memloc.errors import MemlocError, SettingsError
from memloc.methods.apply import apply
from memloc.model.device import pick_device
from memloc.model.load import LoadOptions
from memloc.progress import (
    lines,
    requested,
    say,
    telling,
)
from memloc.protocol import Protocol
from memloc.run.checkpoints import save_checkpoint
from memloc.run.folder import Attempt, Run
from memloc.run.planting import Plant
from memloc.run.recipe import Recipe
from memloc.run.train import train_run
from memloc.store import paths
from memloc.store.files import remove
from memloc.store.lock import (
    RUN,
    SILENT,
    locked,
    patient,
)
from memloc.study.config import read_study
from memloc.study.executors import (
    Order,
    Outcome,
    as_sent,
    die_with,
    finished,
)
from memloc.study.inputs import at_most, data_folder, load_noisy_task
from memloc.study.plan import Plan, Step, make_plan
from memloc.study.records import Store

WATCH = 1.0
"""Seconds between two looks at whether this process is still wanted."""
RATE = "finetune.learning_rate"


def do_order(folder: Path, order: Order) -> Outcome:
    """Do a step in this process and keep a record of how it went."""
    began, store = _now(), Store(folder)
    try:
        plan = make_plan(read_study(folder))
        step = _checked(plan, order)
        if done := finished(store, step):  # by a worker of a cluster that was lost after it
            return done
        with _watched():
            store.begin(step, order.token)
            _watch(store, step.name, order.token)
            limit_threads(order.threads)
            do(plan, step)
        store.check(step)
        seconds, processor = map(float, _now() - began)
        facts = {"seconds": seconds, "peak_mb": _peak_mb()}
        more: dict[str, float] = {"threads": order.threads}
        if pick_device(plan.file.study.device).type == "cpu":  # it waits for other devices
            more["processor"] = processor
        store.finish(step, {**facts, **more})
        return Outcome(step.name, "", **facts)
    except Exception as error:  # noqa: BLE001 - whatever it is, the other steps go on
        return Outcome(order.step, _said(error), float((_now() - began)[0]))


def _checked(plan: Plan, order: Order) -> Step:
    step = plan.steps.get(order.step)
    if step is None or step.identity != order.identity:
        raise SettingsError(
            f"{plan.file.folder} was changed while it ran, and {order.step} is another step now: "
            "run it again."
        )
    return step


@contextmanager
def _watched() -> Iterator[None]:
    """While active, progress goes to the log, and locks are waited for."""
    # A process that a step was taken from may be about to end.
    with patient(2 * SILENT), lines(), telling(lambda text: say(text, sys.stderr)):
        yield


def _now() -> FloatArray:
    """Seconds by the clock, and of the processor's work."""
    return np.array([time.perf_counter(), time.process_time()])


def _said(error: Exception) -> str:
    """Why something failed; the log says it, too."""
    if isinstance(error, MemlocError):
        say(f"memloc: {error}", sys.stderr)
        return str(error)
    traceback.print_exception(error)
    return traceback.format_exception_only(error)[-1].strip()


def limit_threads(threads: int) -> None:
    """Use so many threads, in torch and in what numpy calls."""
    torch.set_num_threads(threads)
    threadpoolctl.threadpool_limits(threads)


def _watch(store: Store, step: str, token: str) -> None:
    """End this process when its parent is gone, or when the step belongs to another one."""
    parent = os.getppid()

    def look() -> None:
        while True:
            time.sleep(WATCH)
            if os.getppid() != parent or store.owner(step) not in {"", token}:
                os._exit(1)

    threading.Thread(target=look, daemon=True).start()


def _peak_mb() -> float:
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1e6 if sys.platform == "darwin" else 1e3)


def do(plan: Plan, step: Step) -> None:
    """Make what a step is to leave behind; what is there already is used."""
    with requested(["run", str(plan.file.folder)]):
        DO[step.kind](plan, step)


def _train(plan: Plan, step: Step) -> None:
    train_run(_recipe(plan, step), plan.file.folder / step.run.folder, step.run.weights)


def _recipe(plan: Plan, step: Step) -> Recipe:
    study, run = plan.file.study, step.run
    return Recipe(
        run.model,
        load_noisy_task(plan.file, run.task, run.protocol),
        run.seed,
        run.protocol,
        options=LoadOptions(depth=study.depth),
        device=study.device,
    )


def _look(plan: Plan, step: Step) -> None:
    study, protocol = plan.file.study, step.run.protocol
    run = Run.open(plan.file.folder / step.run.folder, study.device)
    apply(run, [protocol.method(step.method)], protocol.verdict, force=study.force)


def _plant(plan: Plan, step: Step) -> None:
    recipe, weights = _recipe(plan, step), step.run.weights
    plant = Plant(step.window, _auxiliary(plan))
    folder, *nulls = (plan.file.folder / folder for folder in step.folders)
    planted = make_plant(recipe, plant, folder, weights)
    if not is_enough(planted, recipe.protocol):
        return
    made = [planted, *(make_null(recipe, plant, planted, null, weights) for null in nulls)]
    methods = [recipe.protocol.method(name) for name in step.run.methods]
    for run in made:
        if is_enough(run, recipe.protocol):
            looked_at = Run.open(run.folder, plan.file.study.device)
            apply(looked_at, methods, recipe.protocol.verdict)


def _auxiliary(plan: Plan) -> Task:
    protocol = plan.file.study.protocol
    settings, seed = protocol.control, protocol.noise.seed
    task = load_task(settings.auxiliary, folder=data_folder(plan.file), seed=seed)
    return at_most(task, settings.auxiliary_examples, seed)


DO: dict[str, Callable[[Plan, Step], None]] = {
    "train": _train,
    "localise": _look,
    "analyse": _look,
    "plant": _plant,
}


def make_plant(recipe: Recipe, plant: Plant, folder: Path, weights: tuple[str, ...]) -> Run:
    """Train a planted run; where its training accuracy is too low, again with a higher rate."""
    recipe = replace(recipe, plant=plant, protocol=_planting(recipe.protocol))
    optional = [name for name in weights if name == "reference"]
    with locked(folder, RUN):  # between two tries as well
        before = _fell_short(folder)
        while True:
            current = _with_rate(recipe, len(before))
            _begin_again(folder, current, before)
            run = train_run(current, folder, ["final", "memorised"], optional=optional)
            enough = is_enough(run, recipe.protocol)
            if enough or len(before) + 1 >= recipe.protocol.control.tries:
                break
            before = (*before, _attempt(run))
        run = run.note(attempts=(*before, _attempt(run)))
        return train_run(current, folder, weights) if enough else run


def make_null(
    recipe: Recipe, plant: Plant, planted: Run, folder: Path, weights: tuple[str, ...]
) -> Run:
    """The null of a planted run; its reference weights are those of the planted run."""
    used = planted.settings.finetune
    protocol = recipe.protocol.replace({f"finetune.{k}": v for k, v in used.flat().items()})
    current = _null_of(replace(recipe, plant=plant, protocol=protocol))
    run = train_run(current, folder, ["final", "memorised"])
    if "reference" in weights and not run.has("reference"):
        about = {"weights": "reference", "run": planted.record.model_dump(mode="json")}
        save_checkpoint(run.path("reference"), planted.load("reference"), about)
    return train_run(current, folder, [name for name in weights if name != "reference"])


def _null_of(recipe: Recipe) -> Recipe:
    """The same planted run with the original labels, so that nothing is memorised.

    The examples that are noisy in the planted run are still looked at.
    """
    assert recipe.plant is not None
    noisy = recipe.task.labels
    same = replace(noisy, assigned=noisy.original, origin="")
    null, task = replace(recipe.plant, null=True), replace(recipe.task, noise=same)
    return replace(recipe, plant=null, task=task)


def is_enough(run: Run, protocol: Protocol) -> bool:
    """Whether a planted run learnt its labels as the protocol asks."""
    final, is_memorised = run.record.final, run.memorised(protocol.verdict.noisy_at_least)
    if final is None or not is_memorised or not run.has("memorised"):
        return False
    return final.training > protocol.control.accuracy_above


def _planting(protocol: Protocol) -> Protocol:
    """The protocol with what is different where two layers alone have to memorise."""
    own = protocol.control
    changes = {RATE: own.learning_rate, "finetune.epochs": own.epochs}
    return protocol.replace({k: v for k, v in changes.items() if v is not None})


def _with_rate(recipe: Recipe, tries: int) -> Recipe:
    """The recipe after so many tries that fell short."""
    rate = recipe.settings.learning_rate * recipe.protocol.control.rate_factor**tries
    return replace(recipe, protocol=recipe.protocol.replace({RATE: rate}))


def _attempt(run: Run) -> Attempt:
    assert run.record.final is not None
    rate = run.settings.finetune.learning_rate
    return Attempt(learning_rate=rate, training_accuracy=run.record.final.training)


def _fell_short(folder: Path) -> tuple[Attempt, ...]:
    """The tries before the one that is in a folder; its record has them, and itself once done."""
    if not (folder / paths.RUN).is_file():
        return ()
    run = Run.open(folder)
    rate = run.settings.finetune.learning_rate
    return tuple(each for each in run.record.attempts if each.learning_rate != rate)


def _begin_again(folder: Path, recipe: Recipe, before: tuple[Attempt, ...]) -> None:
    """Make a run that fell short one of the recipe, of which nothing is trained yet.

    So is one with a later rate that does not know of the tries before it.
    """
    if not (folder / paths.RUN).is_file():
        return
    run, settings = Run.open(folder), recipe.protocol.for_run()
    rate = run.settings.finetune.learning_rate
    if rate == settings.finetune.learning_rate:  # it was begun before
        return
    if run.record.attempts and rate not in [each.learning_rate for each in before]:
        return  # it belongs to other settings, and is refused by the training
    for path in (folder / paths.CHECKPOINTS, folder / paths.TRAINING):
        remove(path)
    run.note(settings=settings, attempts=before, final=None, without={})


def main() -> None:
    """Do the order that the command line gives; the outcome goes to standard output."""
    folder, order = Path(sys.argv[1]), Order(**json.loads(sys.argv[2]))
    die_with(os.getppid())
    told = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print(as_sent(do_order(folder, order)), file=told, flush=True)


if __name__ == "__main__":
    main()
