"""One step in a process of its own, also by `python -m memloc.study.step STUDY ORDER`.

Each is one call of a library function. The process that it belongs to is told what came out on a
pipe, as one line of JSON; all that is printed goes to the step's log. It ends when the process that
started it is gone, or when the step has been given to another one.
"""

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import threadpoolctl
import torch

from memloc import paths
from memloc.data.sources import load_task
from memloc.errors import MemlocError, SettingsError, StoreError
from memloc.lock import RUN, SILENT, locked, patient
from memloc.methods.apply import apply
from memloc.models.device import pick_device
from memloc.models.load import LoadOptions
from memloc.progress import lines, requested, telling
from memloc.protocol import Protocol
from memloc.records import Task
from memloc.run import Attempt, Run
from memloc.study.config import read_study
from memloc.study.executors import Order, Outcome, as_sent, die_with
from memloc.study.inputs import at_most, data_folder, load_noisy_task
from memloc.study.plan import Plan, Step, make_plan
from memloc.study.records import Store, remove
from memloc.training.checkpoints import save_checkpoint
from memloc.training.planting import Plant
from memloc.training.recipe import Recipe, train_run

WATCH = 1.0
"""Seconds between two looks at whether this process is still wanted."""
RATE = "finetune.learning_rate"


def do_step(folder: Path, order: Order) -> Outcome:
    """Do a step in this process and keep a record of how it went."""
    began, used = time.perf_counter(), time.process_time()
    store = Store(folder)
    try:
        plan = make_plan(read_study(folder))
        step = _checked(plan, order)
        with patient(2 * SILENT):  # a process that the step was taken from may be about to end
            store.begin(step, order.token)
            _watch(store, order)
            limit_threads(order.threads)
            with lines(), telling(lambda sentence: print(sentence, file=sys.stderr)):
                do(plan, step)
        if lacking := store.lacking(step):
            raise StoreError(f"{step.name} ended, but {lacking[0]} is not there.")
        facts = {"seconds": time.perf_counter() - began, "peak_mb": _peak_mb()}
        more: dict[str, float] = {"threads": order.threads}
        if pick_device(plan.file.study.device).type == "cpu":  # it waits for other devices
            more["processor"] = time.process_time() - used
        store.finish(step, {**facts, **more})
        return Outcome(order.step, "", **facts)
    except MemlocError as error:
        print(f"memloc: {error}", file=sys.stderr)
        return Outcome(order.step, str(error), time.perf_counter() - began)
    except Exception as error:  # noqa: BLE001 - whatever it is, the other steps go on
        traceback.print_exc()
        reason = traceback.format_exception_only(error)[-1].strip()
        return Outcome(order.step, reason, time.perf_counter() - began)


def _checked(plan: Plan, order: Order) -> Step:
    step = plan.steps.get(order.step)
    if step is None or step.identity != order.identity:
        raise SettingsError(
            f"{plan.file.folder} was changed while it ran, and {order.step} is another step now: "
            "run it again."
        )
    return step


def limit_threads(threads: int) -> None:
    """Use so many threads, in torch and in what numpy calls."""
    torch.set_num_threads(threads)
    threadpoolctl.threadpool_limits(threads)


def _watch(store: Store, order: Order) -> None:
    """End this process when its parent is gone, or when its step belongs to another one."""
    parent = os.getppid()

    def look() -> None:
        while True:
            time.sleep(WATCH)
            if os.getppid() != parent or store.owner(order.step) not in {"", order.token}:
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
    beside = [name for name in weights if name == "reference"]
    with locked(folder, RUN):  # between two tries as well
        before = _fell_short(folder)
        while True:
            current = _with_rate(recipe, len(before))
            _begin_again(folder, current, before)
            run = train_run(current, folder, ["final", "memorised"], beside=beside)
            enough = is_enough(run, recipe.protocol)
            if enough or len(before) + 1 >= recipe.protocol.control.tries:
                break
            before = (*before, _attempt(run))
        run = run.note(attempts=(*before, _attempt(run)))
        return train_run(current, folder, weights) if enough else run


def make_null(
    recipe: Recipe, plant: Plant, planted: Run, folder: Path, weights: tuple[str, ...]
) -> Run:
    """The null of a planted run: the same run with the original labels, so nothing is memorised.

    The examples that were noisy in the planted run are still looked at; its reference weights are
    those of the planted run.
    """
    noisy = recipe.task.labels
    same = replace(noisy, assigned=noisy.original, origin="")
    used = planted.settings.finetune
    current = replace(
        recipe,
        plant=replace(plant, null=True),
        task=replace(recipe.task, noise=same),
        protocol=recipe.protocol.replace({f"finetune.{k}": v for k, v in used.flat().items()}),
    )
    run = train_run(current, folder, ["final", "memorised"])
    if "reference" in weights and not run.has("reference"):
        about = {"weights": "reference", "run": planted.record.model_dump(mode="json")}
        save_checkpoint(run.path("reference"), planted.load("reference"), about)
    return train_run(current, folder, [name for name in weights if name != "reference"])


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
    for name in (paths.CHECKPOINTS, paths.TRAINING):
        remove(folder / name)
    run.note(settings=settings, attempts=before, final=None, without={})


def main() -> None:
    """Do the step that the command line names; the outcome goes to standard output."""
    folder, order = Path(sys.argv[1]), Order(**json.loads(sys.argv[2]))
    die_with(os.getppid())
    told = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    outcome = do_step(folder, order)
    print(as_sent(outcome), file=told, flush=True)


if __name__ == "__main__":
    main()
