"""One step in a process of its own: `python -m memloc.study.step STUDY ORDER`.

The process that it belongs to is told what came out on a pipe, as one line of JSON; all that is
printed goes to the step's log. It ends when the process that started it is gone, or when the step
has been given to another one.
"""

import json
import os
import signal
import sys
import threading
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from memloc.errors import MemlocError, SettingsError, StoreError
from memloc.lock import SILENT, patient
from memloc.progress import lines, telling
from memloc.study.config import read_study
from memloc.study.plan import Plan, Step
from memloc.study.planning import make_plan
from memloc.study.records import Store

WATCH = 1.0
"""Seconds between two looks at whether this process is still wanted."""


@dataclass(frozen=True)
class Order:
    """Which step is to be done, as what, and on how many threads."""

    step: str
    identity: str
    token: str
    """Names this attempt: a process whose step has another token by now ends itself."""
    threads: int = 1

    def text(self) -> str:
        """As it is sent to another process."""
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class Outcome:
    """How a step went; no reason: well."""

    step: str
    reason: str = ""
    seconds: float = 0.0
    peak_mb: float = 0.0

    def text(self) -> str:
        """As it is sent to another process."""
        return json.dumps(asdict(self))


def do_step(folder: Path, order: Order) -> Outcome:
    """Do a step in this process and keep a record of how it went."""
    began = time.perf_counter()
    store = Store(folder)
    try:
        plan = make_plan(read_study(folder))
        step = _checked(plan, order)
        with patient(2 * SILENT):  # a process that the step was taken from may be about to end
            store.begin(step, order.identity, order.token)
        _watch(store, order)
        limit_threads(order.threads)
        with lines(), telling(lambda sentence: print(sentence, file=sys.stderr)):
            _do(plan, step, store)
        seconds = time.perf_counter() - began
        peak = _peak_mb()
        facts = {"seconds": seconds, "peak_mb": peak, "threads": order.threads}
        store.finish(step, order.identity, facts)
        return Outcome(order.step, "", seconds, peak)
    except MemlocError as error:
        print(f"memloc: {error}", file=sys.stderr)
        return Outcome(order.step, str(error), time.perf_counter() - began)
    except Exception as error:  # noqa: BLE001 - whatever it is, the other steps go on
        traceback.print_exc()
        reason = traceback.format_exception_only(error)[-1].strip()
        return Outcome(order.step, reason, time.perf_counter() - began)


def _checked(plan: Plan, order: Order) -> Step:
    step = plan.steps.get(order.step)
    if step is None or (not step.soft and plan.identities[step.name] != order.identity):
        raise SettingsError(
            f"{plan.file.folder} was changed while it ran, and {order.step} is another step now: "
            "run it again."
        )
    return step


def _do(plan: Plan, step: Step, store: Store) -> None:
    from memloc.study.actions import do

    with patient(2 * SILENT):
        do(plan, step)
    lacking = store.lacking(step)
    if lacking:
        raise StoreError(f"{step.name} ended, but {lacking[0]} is not there.")


def limit_threads(threads: int) -> None:
    """Use so many threads, in torch and in what numpy calls."""
    import threadpoolctl
    import torch

    torch.set_num_threads(threads)
    threadpoolctl.threadpool_limits(threads)


def die_with_parent() -> None:
    """Have the system end this process when the one that started it ends (Linux)."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _watch(store: Store, order: Order) -> None:
    """End this process when its parent is gone, or when its step belongs to another one."""
    parent = os.getppid()

    def look() -> None:
        while True:
            time.sleep(WATCH)
            if os.getppid() != parent or store.owner(order.step) not in {None, order.token}:
                os._exit(1)

    threading.Thread(target=look, daemon=True).start()


def _peak_mb() -> float:
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1e6 if sys.platform == "darwin" else 1e3)


def open_log(path: Path) -> TextIO:
    """The log of a step, to be added to."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("a", encoding="utf-8")


def read_outcome(step: str, text: str, status: int) -> Outcome:
    """What a step's process said, or what its end says."""
    if text.strip():
        told: dict[str, Any] = json.loads(text)
        return Outcome(**told)
    if status < 0:
        name = signal.Signals(-status).name
        hint = " (perhaps out of memory)" if -status == signal.SIGKILL else ""
        return Outcome(step, f"its process was ended by {name}{hint}")
    return Outcome(step, f"its process ended with status {status} and said nothing")


def main() -> None:
    """Do the step that the command line names; the outcome goes to standard output."""
    folder, order = Path(sys.argv[1]), Order(**json.loads(sys.argv[2]))
    die_with_parent()
    told = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    outcome = do_step(folder, order)
    print(outcome.text(), file=told, flush=True)


if __name__ == "__main__":
    main()
