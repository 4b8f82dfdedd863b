"""Runs one step in a process of its own, also as `python -m memloc.study.step STEP`.

The process receives the step as JSON and plans nothing. It tells its parent on a pipe how the step
ended, as one line of JSON; everything that is printed goes to the log. It ends when its parent is
gone, or when the step has been given to another process.
"""

import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

import numpy as np
import threadpoolctl
import torch

from memloc.arrays import FloatArray
from memloc.errors import MemlocError
from memloc.methods.apply import apply
from memloc.model.device import pick_device
from memloc.progress import lines, requested, say, telling
from memloc.run.folder import Run
from memloc.run.plant import is_enough, make_null, make_plant
from memloc.run.train import make_run
from memloc.store.lock import SILENT, patient
from memloc.study.plan import Step
from memloc.study.records import StepEnd, Store, finished

WATCH = 1.0
"""Seconds between two checks whether this process is still needed."""


def do(step: Step) -> StepEnd:
    """Run a step, and record how it ended and its cost."""
    began = _now()
    store = Store(Path(step.home))
    try:
        if done := finished(store, step):  # by a worker of a cluster that was lost after it
            return done
        notes = telling(lambda text: say(text, sys.stderr))
        # A process that this step was taken from may be about to end, and has the lock until then.
        with patient(2 * SILENT), lines(), notes, requested(["run", step.home]):
            store.begin(step, step.token)
            _watch(store, step.name, step.token)
            limit_threads(step.threads)
            place = store.folder / step.folder
            if step.action == "train":
                make_run(step.spec, place, step.checkpoints, device=step.device)
            elif step.action == "plant":
                _plant(store.folder, step)
            else:
                _look(Run.open(place, step.device), step)
        store.check(step)
        seconds, processor = map(float, _now() - began)
        peak = _peak_mb()
        facts = {"seconds": seconds, "peak_mb": peak, "threads": step.threads}
        if pick_device(step.device).type == "cpu":  # it waits for other devices
            facts["processor"] = processor
        store.finish(step, facts)
        return StepEnd(step=step.name, seconds=seconds, peak_mb=peak)
    except Exception as error:  # noqa: BLE001 - whatever it is, the other steps go on
        return StepEnd(step=step.name, reason=_said(error), seconds=float((_now() - began)[0]))


def _look(run: Run, step: Step) -> None:
    apply(run, step.methods_with_settings(), step.verdict, force=step.force)


def _plant(folder: Path, step: Step) -> None:
    planted = make_plant(step.spec, folder / step.folder, step.checkpoints, device=step.device)
    runs = [planted]
    if step.null and is_enough(planted):
        runs.append(make_null(planted, folder / step.null, step.checkpoints))
    for run in runs:
        if is_enough(run):
            _look(Run.open(run.folder, step.device), step)


def _now() -> FloatArray:
    """Return clock time and processor time in seconds."""
    return np.array([time.perf_counter(), time.process_time()])


def _said(error: Exception) -> str:
    """Return why a step failed, and write it to the log."""
    if isinstance(error, MemlocError):
        say(f"memloc: {error}", sys.stderr)
        return str(error)
    traceback.print_exception(error)
    return traceback.format_exception_only(error)[-1].strip()


def limit_threads(threads: int) -> None:
    """Limit the threads of torch and of the libraries that numpy calls."""
    torch.set_num_threads(threads)
    threadpoolctl.threadpool_limits(threads)


def _watch(store: Store, step: str, token: str) -> None:
    """End this process when its parent is gone, or when the step belongs to another process."""
    parent = os.getppid()

    def look() -> None:
        while True:
            time.sleep(WATCH)
            if os.getppid() != parent or store.owner(step) not in {"", token}:
                os._exit(1)

    threading.Thread(target=look, daemon=True).start()


def die_with(parent: int) -> None:
    """Let the system end this process when its parent ends (Linux)."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:  # it ended before this
            os._exit(1)


def _peak_mb() -> float:
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1e6 if sys.platform == "darwin" else 1e3)


def main() -> None:
    """Run the step given on the command line, and print how it ended to standard output."""
    step = Step.model_validate_json(sys.argv[1])
    die_with(os.getppid())
    told = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print(do(step).model_dump_json(), file=told, flush=True)


if __name__ == "__main__":
    main()
